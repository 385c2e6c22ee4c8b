//! Workloads w3 and w4: training steps of recurrent networks.

use super::{
    command::Bench,
    data::{Draw, Source, split, transposed},
    measure,
};
use crate::Result;
use std::time::Instant;
use wgrad::{Array, Optimizer, ParamSet, Session, Store, Tensor};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    data::{Adding, Batch, Task},
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};

/// Step `i` trains on batch `i` modulo this number.
const BATCHES: usize = 4;
/// Sequences per batch.
const BATCH: usize = 32;
/// The bound on the global gradient norm.
const MAX_NORM: f64 = 1.0;

/// A recurrent network and how it is trained.
pub struct Training {
    name: &'static str,
    cell: Cell,
    time: usize,
    inputs: usize,
    hidden: usize,
    outputs: usize,
    batches: fn(&Training, &mut Source) -> Result<Vec<Batch>>,
    loss: for<'t> fn(Tensor<'t>, Tensor<'t>) -> Tensor<'t>,
    optimizer: fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>,
}

/// A tanh network on the adding problem.
pub const W3: Training = Training {
    name: "w3",
    cell: Cell::Tanh,
    time: 200,
    inputs: 2,
    hidden: 128,
    outputs: 1,
    batches: adding,
    loss: |outputs, y| outputs.mse(y),
    optimizer: |store, params| Box::new(Sgd::new(store, params, SgdConfig { lr: 0.01.into(), ..SgdConfig::default() })),
};

/// An LSTM that classifies noise.
pub const W4: Training = Training {
    name: "w4",
    cell: Cell::Lstm,
    time: 100,
    inputs: 64,
    hidden: 256,
    outputs: 10,
    batches: noise,
    loss: |outputs, y| outputs.cross_entropy(y),
    // The defaults are what every framework is given: 1e-3, betas 0.9 and 0.999, eps 1e-8, decay 0.01.
    optimizer: |store, params| Box::new(AdamW::new(store, params, AdamWConfig::default())),
};

/// Batches of the adding problem.
fn adding(of: &Training, source: &mut Source) -> Result<Vec<Batch>> {
    let file = match source {
        Source::Seed(seed) => {
            let task = Adding::new(of.time, *seed);
            return Ok((0..BATCHES as u64).map(|i| task.train(BATCH, i)).collect());
        }
        Source::File(file) => file,
    };
    let x = split(&file.floats("data.x", &[BATCHES, of.time, BATCH, of.inputs])?);
    let y = file.floats("data.y", &[BATCHES, BATCH])?;
    let y = split(&Array::new([BATCHES, BATCH, of.outputs], y.into_data()));
    Ok(zip(x, y))
}

/// Batches of normal numbers with random classes.
fn noise(of: &Training, source: &mut Source) -> Result<Vec<Batch>> {
    let x = source.floats("data.x", &[BATCHES, of.time, BATCH, of.inputs], Draw::Normal(0.0, 1.0))?;
    let y = source.classes("data.y", &[BATCHES, BATCH], of.outputs as u32)?;
    Ok(zip(split(&x), split(&y)))
}

fn zip(x: Vec<Array>, y: Vec<Array>) -> Vec<Batch> {
    x.into_iter().zip(y).map(|(x, y)| Batch { x, y }).collect()
}

impl Training {
    /// Times training steps, and prints the result.
    ///
    /// # Errors
    /// If the data is not there, or the device fails.
    pub fn run(&self, bench: &Bench<'_>, mut source: Source) -> Result<()> {
        let rss_base = measure::peak_rss();
        let mut store = Store::new();
        let (recurrent, head) = self.declare(&mut store);
        let params = store.params();
        let optimizer = (self.optimizer)(&mut store, &params);
        let mut session = bench.session(store)?;
        self.load(&mut session, &mut source, &recurrent, &head)?;
        let batches = (self.batches)(self, &mut source)?;
        let start = Instant::now();
        let step = session.record(|t| {
            let (x, y) = (t.input_like("x", &batches[0].x), t.input_like("y", &batches[0].y));
            let outputs = head.forward(recurrent.forward(x).last);
            let loss = (self.loss)(outputs, y);
            t.tap("loss", loss);
            optimizer.step(loss.grad(&params).clip_by_global_norm(MAX_NORM));
        })?;
        let prepared = start.elapsed();
        let measured = measure::steps(bench.budget, prepared, |i| {
            let Batch { x, y } = &batches[i % BATCHES];
            session.run(&step, &[("x", x), ("y", y)])?;
            session.wait()?;
            let taps = session.taps()?;
            Ok(taps.last().and_then(|taps| taps.scalar("loss")).expect("tapped by the step"))
        })?;
        if let Some((timing, losses)) = measured {
            bench.show(self.name, &timing, losses, rss_base);
        }
        Ok(())
    }

    /// The model, whose first values [`Training::load`] writes.
    fn declare(&self, store: &mut Store) -> (Recurrent, Linear) {
        let zeros = RecurrentInit { input: Init::Zeros, hidden: Init::Zeros, bias: Init::Zeros, forget_bias: None };
        let mut b = Builder::new(store, 0);
        let recurrent = Recurrent::new(b.at("rnn"), self.cell, self.inputs, self.hidden, &zeros);
        (recurrent, Linear::new(b.at("head"), self.hidden, self.outputs, &Init::Zeros))
    }

    /// Gives the parameters their first values. Matrices are stored `[in, out]`, and ours are `[out, in]`.
    fn load(&self, session: &mut Session, source: &mut Source, recurrent: &Recurrent, head: &Linear) -> Result<()> {
        let draw = Draw::Uniform(1.0 / (self.hidden as f64).sqrt());
        let width = self.cell.gates() * self.hidden;
        for (name, param, shape) in [
            ("wx", recurrent.weight_ih, &[self.inputs, width][..]),
            ("wh", recurrent.weight_hh, &[self.hidden, width]),
            ("b", recurrent.bias, &[width]),
            ("wo", head.weight, &[self.hidden, self.outputs]),
            ("bo", head.bias.expect("a linear layer with a bias"), &[self.outputs]),
        ] {
            let stored = source.floats(name, shape, draw)?;
            session.write_param(param, &if shape.len() == 2 { transposed(&stored) } else { stored })?;
        }
        Ok(())
    }
}
