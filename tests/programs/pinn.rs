//! A network that solves Burgers' equation `u_t + u u_x = NU u_xx` (a physics-informed network: Raissi et al. 2019).

use wgrad::{DType::F32, Optimizer, Result, Rng, Session, Step, Store, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Init, Mlp, MlpConfig,
    optim::{Adam, AdamConfig},
};

const NU: f64 = 0.1;

/// A solution in closed form: a wave that travels at speed 1/2.
fn wave<'t>(x: Tensor<'t>, time: Tensor<'t>) -> Tensor<'t> {
    ((time / 2 - x) / (2.0 * NU)).sigmoid()
}

/// The derivative of each row of `y` by the same row of `x`.
fn slope<'t>(y: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
    y.sum().grad_wrt(&[x])[0].expect("y depends on x")
}

/// The network, over places from -1 to 1 and times from 0 to 1.
pub struct Pinn {
    session: Session,
    step: Step,
    net: Mlp,
}

impl Pinn {
    /// Records a step on `points` points inside, as many at the start, and as many at both ends.
    pub fn new(points: usize, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let (activation, init) = (Activation::Tanh, Init::XavierUniform { gain: 1.0 });
        let config = MlpConfig { inputs: 2, width: 50, depth: 3, activation, init, ..MlpConfig::default() };
        let net = Mlp::new(Builder::new(&mut store, 0), &config);
        let params = store.params();
        let adam = Adam::new(&mut store, &params, AdamConfig { lr: 3e-3.into(), ..AdamConfig::default() });
        let rng = Rng::new(&mut store, "points", 0);
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let step = session.record(|t| {
            let u = |x, time| net.forward(Tensor::concat(&[x, time], 1), true);
            let x = rng.uniform(t, [points, 1], F32) * 2 - 1;
            let time = rng.uniform(t, [points, 1], F32);
            let inside = u(x, time);
            let u_x = slope(inside, x);
            let residual = slope(inside, time) + inside * u_x - slope(u_x, x) * NU;
            let (start, end) = (time.zeros_like(), x.sign());
            let loss = residual.square().mean() + u(x, start).mse(wave(x, start)) + u(end, time).mse(wave(end, time));
            t.tap("loss", loss);
            adam.step(loss.grad(&params).check_finite());
            rng.advance(t);
        })?;
        Ok(Self { session, step, net })
    }

    /// An update. Returns its loss.
    pub fn step(&mut self) -> Result<f64> {
        Ok(self.session.run_now(&self.step, &[])?.scalar("loss").expect("tapped"))
    }

    /// The largest distance from the closed solution, over a grid of 41 by 41 points.
    pub fn error(&mut self) -> Result<f64> {
        let error = self.session.eval(&[], |t| {
            let place = t.iota(41 * 41);
            let x = ((place / 41).cast(F32) / 20 - 1).unsqueeze(1);
            let time = ((place - place / 41 * 41).cast(F32) / 40).unsqueeze(1);
            (self.net.forward(Tensor::concat(&[x, time], 1), false) - wave(x, time)).abs().max()
        })?;
        Ok(error.item(0))
    }
}
