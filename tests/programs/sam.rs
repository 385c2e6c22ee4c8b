//! Sharpness-aware minimisation (Foret et al. 2021, arXiv 2010.01412) of a network that tells two spirals apart.

use wgrad::{Optimizer, Result, Session, Step, Store, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Landscape, Mlp, MlpConfig,
    data::{Batch, Spirals, Task},
    optim::{Sam, Sgd, SgdConfig},
};

/// The mean loss over points `[1, rows, 2]` and their classes.
fn loss<'t>(net: &Mlp, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
    net.forward(x.squeeze(0), true).cross_entropy(y)
}

/// The network, and the points that it learns.
pub struct FlatSpirals {
    session: Session,
    step: Step,
    landscape: Landscape,
    data: Batch,
}

impl FlatSpirals {
    /// Records a step on `rows` points, with this radius of the climb. A radius of 0 is plain descent.
    pub fn new(rows: usize, rho: f64, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let config = MlpConfig { inputs: 2, width: 128, depth: 2, outputs: 2, ..MlpConfig::default() };
        let net = Mlp::new(Builder::new(&mut store, 0), &MlpConfig { activation: Activation::Tanh, ..config });
        let params = store.params();
        let sgd = SgdConfig { lr: 0.1.into(), momentum: 0.9, ..SgdConfig::default() };
        let (sgd, sam) = (Sgd::new(&mut store, &params, sgd), Sam::new(rho));
        let data = Spirals::new(0).train(rows, 0);
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let step = session.record(|t| {
            let (x, y) = (t.input_like("x", &data["x"]), t.input_like("y", &data["y"]));
            t.tap("loss", loss(&net, x, y));
            sgd.step(sam.grad(|| loss(&net, x, y).grad(&params)).check_finite());
        })?;
        let landscape = Landscape::new(&params, move |batch| loss(&net, batch.get("x"), batch.get("y")).into());
        Ok(Self { session, step, landscape, data })
    }

    /// An update. Returns the loss before it.
    pub fn step(&mut self) -> Result<f64> {
        Ok(self.session.run_now(&self.step, &self.data.inputs())?.scalar("loss").expect("tapped"))
    }

    /// The largest eigenvalue of the Hessian of the loss.
    pub fn sharpness(&mut self) -> wgrad_nn::Result<f64> {
        Ok(self.landscape.sharpness(&mut self.session, &self.data.inputs(), 0.01, 100)?.value)
    }
}
