//! A denoising diffusion model (Ho, Jain & Abbeel 2020, arXiv 2006.11239) of points in two clusters.

use wgrad::{Array, DType::F32, DType::U32, Optimizer, Result, Rng, Session, StateId, Step, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Mlp, MlpConfig,
    optim::{AdamW, AdamWConfig},
};

const TIMES: usize = 100;
const FREQUENCIES: usize = 16;

/// The noise of each time, and the share of the data's variance that is left after it.
fn schedule(t: &Tape) -> [Tensor<'_>; 2] {
    let beta: Vec<f64> = (0..TIMES).map(|i| 1e-3 + 0.1 * i as f64 / (TIMES - 1) as f64).collect();
    let left = beta.iter().scan(1.0, |left, beta| {
        *left *= 1.0 - beta;
        Some(*left)
    });
    [t.table(&beta, F32), t.table(&left.collect::<Vec<f64>>(), F32)]
}

/// The noise in points `[n, 2]`, as the network sees it at times `[n]`.
fn noise_in<'t>(net: &Mlp, points: Tensor<'t>, time: Tensor<'t>) -> Tensor<'t> {
    let frequency = (points.tape().iota(FREQUENCIES).cast(F32) * -0.5).exp();
    let angle = time.cast(F32).unsqueeze(1) * frequency;
    net.forward(Tensor::concat(&[points, angle.sin(), angle.cos()], 1), true)
}

/// Points around (1.5, 0.5) and around (-1.5, -0.5), of deviation 0.2.
fn clusters(t: &Tape, rng: Rng, rows: usize) -> Tensor<'_> {
    let side = rng.bernoulli(t, 0.5, [rows, 1]).cast(F32) * 2 - 1;
    side * t.table(&[1.5, 0.5], F32) + rng.normal(t, [rows, 2], F32) * 0.2
}

/// The network, its training step, and the two programs that draw samples.
pub struct Ddpm {
    session: Session,
    train: Step,
    begin: Step,
    denoise: Step,
    samples: StateId,
}

impl Ddpm {
    /// Records a step on `rows` points, and the loop that draws as many samples.
    pub fn new(rows: usize, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let (inputs, activation) = (2 + 2 * FREQUENCIES, Activation::Silu);
        let config = MlpConfig { inputs, width: 128, depth: 3, outputs: 2, activation, ..MlpConfig::default() };
        let net = Mlp::new(Builder::new(&mut store, 0), &config);
        let params = store.params();
        let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 2e-3.into(), ..AdamWConfig::default() });
        let (rng, chance) = (Rng::new(&mut store, "rng", 0), Rng::new(&mut store, "chance", 1));
        let samples = store.state("samples", &Array::zeros([rows, 2], F32));
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let train = session.record(|t| {
            let time = rng.integers(t, TIMES as u32, [rows]);
            let noise = rng.normal(t, [rows, 2], F32);
            let left = schedule(t)[1].gather(time, 0).unsqueeze(1);
            let noisy = clusters(t, rng, rows) * left.sqrt() + noise * (1 - left).sqrt();
            let loss = noise_in(&net, noisy, time).mse(noise);
            t.tap("loss", loss);
            adamw.step(loss.grad(&params).check_finite());
            rng.advance(t);
        })?;
        let begin = session.record(|t| {
            t.assign(samples, chance.normal(t, [rows, 2], F32));
            chance.advance(t);
        })?;
        let denoise = session.record(|t| {
            let (points, time) = (t.state(samples), t.input("time", [1], U32));
            let [beta, left] = schedule(t).map(|of_time| of_time.gather(time, 0));
            let noise = noise_in(&net, points, time.broadcast_to([rows]));
            let mean = (points - noise * beta / (1 - left).sqrt()) / (1 - beta).sqrt();
            let fresh = chance.normal(t, [rows, 2], F32) * beta.sqrt();
            t.assign(samples, time.greater(0).select(mean + fresh, mean));
            chance.advance(t);
        })?;
        Ok(Self { session, train, begin, denoise, samples })
    }

    /// An update. Returns its loss.
    pub fn step(&mut self) -> Result<f64> {
        Ok(self.session.run_now(&self.train, &[])?.scalar("loss").expect("tapped"))
    }

    /// Draws samples `[rows, 2]`, from noise to data.
    pub fn sample(&mut self) -> Result<Array> {
        self.session.run(&self.begin, &[])?;
        for time in (0..TIMES as u32).rev() {
            self.session.run(&self.denoise, &[("time", &Array::new([1], vec![time]))])?;
        }
        self.session.read(self.samples)
    }
}
