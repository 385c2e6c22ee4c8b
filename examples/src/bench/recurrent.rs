//! Workloads w3 and w4: training steps of recurrent networks.

use super::{
    data::{Draw, Source},
    training::{BATCHES, Training, Weight, zip},
};
use crate::Result;
use wgrad::{Array, Optimizer, ParamSet, Store, Tensor};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    data::{Adding, Batch, Task},
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};

/// The number of sequences per batch.
const BATCH: usize = 32;

/// A recurrent network, and the data, loss and optimizer that train it.
pub struct Sequences {
    name: &'static str,
    cell: Cell,
    time: usize,
    inputs: usize,
    hidden: usize,
    outputs: usize,
    batches: fn(&Sequences, &mut Source, usize) -> Result<Vec<Batch>>,
    loss: for<'t> fn(Tensor<'t>, Tensor<'t>) -> Tensor<'t>,
    optimizer: fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>,
}

/// A tanh RNN on the adding problem.
pub const W3: Sequences = Sequences {
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
pub const W4: Sequences = Sequences {
    name: "w4",
    cell: Cell::Lstm,
    time: 100,
    inputs: 64,
    hidden: 256,
    outputs: 10,
    batches: noise,
    loss: |outputs, y| outputs.cross_entropy(y),
    // Every framework has these settings: rate 1e-3, betas 0.9 and 0.999, eps 1e-8, decay 0.01.
    optimizer: |store, params| Box::new(AdamW::new(store, params, AdamWConfig::default())),
};

/// Batches of the adding problem.
fn adding(of: &Sequences, source: &mut Source, batch: usize) -> Result<Vec<Batch>> {
    let file = match source {
        Source::Seed(seed) => {
            let task = Adding::new(of.time, *seed);
            return Ok((0..BATCHES as u64).map(|i| task.train(batch, i)).collect());
        }
        Source::File(file) => file,
    };
    let x = file.floats("data.x", &[BATCHES, of.time, batch, of.inputs])?;
    let y = file.floats("data.y", &[BATCHES, batch])?;
    Ok(zip(&x, &Array::new([BATCHES, batch, of.outputs], y.into_data())))
}

/// Batches of normal numbers with random classes.
fn noise(of: &Sequences, source: &mut Source, batch: usize) -> Result<Vec<Batch>> {
    let x = source.floats("data.x", &[BATCHES, of.time, batch, of.inputs], Draw::Normal(0.0, 1.0))?;
    Ok(zip(&x, &source.classes("data.y", &[BATCHES, batch], of.outputs as u32)?))
}

impl Training for Sequences {
    type Model = (Recurrent, Linear);

    fn name(&self) -> &'static str {
        self.name
    }

    fn declare(&self, store: &mut Store) -> (Recurrent, Linear) {
        let zeros = RecurrentInit { input: Init::Zeros, hidden: Init::Zeros, bias: Init::Zeros, forget_bias: None };
        let mut b = Builder::new(store, 0);
        let recurrent = Recurrent::new(b.at("rnn"), self.cell, self.inputs, self.hidden, &zeros);
        (recurrent, Linear::new(b.at("head"), self.hidden, self.outputs, &Init::Zeros))
    }

    fn weights(&self, (recurrent, head): &(Recurrent, Linear)) -> Vec<Weight> {
        let draw = Draw::Uniform(1.0 / (self.hidden as f64).sqrt());
        let width = self.cell.gates() * self.hidden;
        vec![
            Weight::turned("wx", recurrent.weight_ih, [self.inputs, width], draw),
            Weight::turned("wh", recurrent.weight_hh, [self.hidden, width], draw),
            Weight::plain("b", recurrent.bias, &[width], draw),
            Weight::turned("wo", head.weight, [self.hidden, self.outputs], draw),
            Weight::plain("bo", head.bias.expect("a linear layer with a bias"), &[self.outputs], draw),
        ]
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn batches(&self, source: &mut Source, batch: usize) -> Result<Vec<Batch>> {
        (self.batches)(self, source, batch)
    }

    fn axis(&self) -> usize {
        1
    }

    fn loss<'t>(&self, (recurrent, head): &(Recurrent, Linear), x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        (self.loss)(head.forward(recurrent.forward(x).last), y)
    }

    fn optimizer(&self, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer> {
        (self.optimizer)(store, params)
    }
}
