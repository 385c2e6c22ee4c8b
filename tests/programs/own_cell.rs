//! A recurrent cell of one's own, the minimal gated unit (Zhou et al. 2016, arXiv 1603.09420), on the adding problem.

use wgrad::{DType::F32, Session, Store, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Init, Linear, Result, Trainer, TrainerConfig,
    data::{Adding, Task},
    optim::{Adam, AdamConfig},
};

/// `h = (1 - f) h + f tanh(W [x, f h] + b)` with the gate `f = sigmoid(V [x, h] + c)`.
#[derive(Clone)]
pub struct MinimalGatedUnit {
    gate: Linear,
    candidate: Linear,
    units: usize,
}

impl MinimalGatedUnit {
    /// Declares both maps.
    pub fn new(mut b: Builder<'_>, inputs: usize, units: usize) -> Self {
        let mut map = |name| Linear::new(b.at(name), inputs + units, units, &Init::XavierUniform { gain: 1.0 });
        Self { gate: map("gate"), candidate: map("candidate"), units }
    }

    fn next<'t>(&self, x: Tensor<'t>, h: Tensor<'t>) -> Tensor<'t> {
        let f = self.gate.forward(Tensor::concat(&[x, h], 1)).sigmoid();
        let candidate = self.candidate.forward(Tensor::concat(&[x, f * h], 1)).tanh();
        h + f * (candidate - h)
    }

    /// The last state of a sequence `[time, batch, inputs]`.
    pub fn last<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let start = x.tape().full([x.shape()[1], self.units], 0.0, x.dtype());
        (0..x.shape()[0]).fold(start, |h, time| self.next(x.index(0, time), h))
    }
}

/// The cell with a readout, and the sequences that it learns.
pub struct AddingRun {
    session: Session,
    trainer: Trainer,
    adding: Adding,
    batch: usize,
    steps: u64,
}

impl AddingRun {
    /// Batches of sequences of `time` steps.
    pub fn new(time: usize, batch: usize, threads: usize) -> Result<Self> {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0).with_dtype(F32);
        let cell = MinimalGatedUnit::new(b.at("cell"), 2, 64);
        let readout = Linear::new(b.at("readout"), 64, 1, &Init::XavierUniform { gain: 1.0 });
        let params = store.params();
        let adam = Adam::new(&mut store, &params, AdamConfig { lr: 5e-3.into(), ..AdamConfig::default() });
        let config = TrainerConfig { clip_norm: Some(1.0), ..TrainerConfig::default() };
        let trainer = Trainer::new(&mut store, &params, adam, config, move |batch| {
            readout.forward(cell.last(batch.get("x"))).mse(batch.get("y")).into()
        });
        let session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        Ok(Self { session, trainer, adding: Adding::new(time, 0), batch, steps: 0 })
    }

    /// An update. Returns its loss.
    pub fn step(&mut self) -> Result<f64> {
        let data = self.adding.train(self.batch, self.steps);
        self.steps += 1;
        self.trainer.step(&mut self.session, &data.inputs())?;
        self.session.wait()?;
        Ok(self.trainer.updates(&self.session.taps()?)[0].loss)
    }
}
