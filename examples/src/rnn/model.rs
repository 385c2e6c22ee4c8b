//! The model: a recurrent layer, and a linear layer that reads its last hidden state.

use super::config::{Config, TaskName};
use wgrad::{Store, Tensor};
use wgrad_nn::{Builder, Linear, Outputs, Recurrent, data::Task};

/// A recurrent network with a linear head.
#[derive(Clone, Debug)]
pub struct Model {
    /// The recurrent layer.
    pub recurrent: Recurrent,
    /// The linear layer from the last hidden state to the outputs.
    pub head: Linear,
    task: TaskName,
}

impl Model {
    /// Declares the parameters.
    pub fn new(store: &mut Store, config: &Config, data: &dyn Task, seed: u64) -> Self {
        let mut b = Builder::new(store, seed);
        let recurrent = Recurrent::new(b.at("rnn"), config.cell, data.inputs(), config.hidden, &config.init);
        let head = Linear::new(b.at("head"), config.hidden, data.outputs(), &config.head);
        Self { recurrent, head, task: config.task }
    }

    /// The hidden states for a sequence `[time, batch, inputs]`, and the outputs `[batch, outputs]`.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> (Outputs<'t>, Tensor<'t>) {
        self.with_head(self.recurrent.forward(x))
    }

    /// The same as [`Model::forward`], unrolled step by step, for losses that need the gradient of each hidden state.
    #[track_caller]
    pub fn unrolled<'t>(&self, x: Tensor<'t>) -> (Outputs<'t>, Tensor<'t>) {
        self.with_head(self.recurrent.unrolled(x))
    }

    #[track_caller]
    fn with_head<'t>(&self, hidden: Outputs<'t>) -> (Outputs<'t>, Tensor<'t>) {
        let outputs = hidden.last.tape().scoped("head", || self.head.forward(hidden.last));
        (hidden, outputs)
    }

    /// The loss of outputs: cross-entropy in nats, or the mean squared error.
    #[track_caller]
    pub fn loss<'t>(&self, outputs: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        outputs.tape().scoped("loss", || match self.task {
            TaskName::Adding => outputs.mse(y),
            TaskName::TemporalOrder | TaskName::Digits => outputs.cross_entropy(y),
        })
    }

    /// The metric on held-out data: accuracy, or the mean squared error.
    #[track_caller]
    pub fn metric<'t>(&self, outputs: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        outputs.tape().scoped("metric", || match self.task {
            TaskName::Adding => outputs.mse(y),
            TaskName::TemporalOrder | TaskName::Digits => outputs.accuracy(y),
        })
    }
}
