//! The models of run files as networks, with their losses and metrics.

use super::config::{LossConfig, Unguarded};
use crate::run::{Network, Objective};
use wgrad::{CrossEntropy, Reduction, Tensor};
use wgrad_nn::{Dropout, Gpt, Linear, Mlp, Recurrent, ResNet};

/// A model that maps inputs to outputs.
#[derive(Clone, Debug)]
pub enum Outputs {
    /// A stack of linear layers.
    Mlp(Mlp),
    /// A recurrent layer, and a linear layer that reads its last hidden state.
    Rnn(Recurrent, Linear),
    /// A decoder.
    Gpt(Gpt),
    /// A residual network.
    ResNet(ResNet),
}

/// The kind of the targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Classes, judged by accuracy.
    Classes,
    /// Numbers, judged by the mean squared error.
    Numbers,
    /// Symbols, judged by the cross-entropy in nats.
    Symbols,
}

/// A model with its loss.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The model.
    pub model: Outputs,
    /// The kind of the targets.
    pub targets: Targets,
    /// The loss.
    pub loss: LossConfig,
    /// The dropout with its random numbers, if there is any.
    pub dropout: Option<Dropout>,
}

impl Judged {
    /// The outputs of the model, `[rows, classes]` or `[rows, values]`.
    #[track_caller]
    fn outputs<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        match &self.model {
            Outputs::Mlp(mlp) if self.loss.unguarded == Unguarded::Div => {
                let features = mlp.features(x, training);
                let squares = features.square().sum_axes(&[1]);
                let norm = squares.sqrt().unsqueeze(1);
                features.tape().scoped("head", || mlp.head.forward(features / norm))
            }
            Outputs::Mlp(mlp) => mlp.forward(x, training),
            Outputs::Rnn(recurrent, head) => {
                let last = recurrent.forward(x).last;
                last.tape().scoped("head", || head.forward(last))
            }
            Outputs::Gpt(gpt) => {
                let logits = gpt.forward(x, training);
                let shape = logits.shape();
                logits.reshape([shape[0] * shape[1], shape[2]])
            }
            Outputs::ResNet(resnet) => resnet.forward(x, training),
        }
    }

    /// The standard mean loss of outputs, without the options of the file.
    #[track_caller]
    fn mean<'t>(&self, outputs: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        match self.targets {
            Targets::Numbers => outputs.mse(y),
            Targets::Classes | Targets::Symbols => outputs.cross_entropy(y),
        }
    }

    /// The loss with the options of the file.
    #[track_caller]
    fn asked<'t>(&self, outputs: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let reduction = if self.loss.sum { Reduction::Sum } else { Reduction::Mean };
        let outputs = if self.loss.softmax_first { outputs.softmax(1) } else { outputs };
        match (self.targets, self.loss.unguarded) {
            (Targets::Numbers, _) => outputs.mse_with(y, reduction),
            (_, Unguarded::Log) => {
                let likelihoods = outputs.softmax(1).log().gather(y.unsqueeze(1), 1);
                if self.loss.sum { -likelihoods.sum() } else { -likelihoods.mean() }
            }
            (_, _) => outputs.cross_entropy_with(y, &CrossEntropy { reduction, ..CrossEntropy::default() }),
        }
    }
}

impl Network for Judged {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t> {
        let tape = x.tape();
        if let Some(dropout) = self.dropout {
            dropout.rng().advance(tape);
        }
        let outputs = self.outputs(x, true);
        let y = if self.targets == Targets::Numbers { y } else { y.reshape([y.numel()]) };
        tape.scoped("loss", || {
            let mut loss = self.asked(outputs, y);
            // The run minimises another number than the mean loss that it reports.
            let mean = (self.loss.sum || self.loss.weight != 1.0).then(|| self.mean(outputs, y));
            if let (Unguarded::Sqrt, Outputs::Mlp(mlp)) = (self.loss.unguarded, &self.model) {
                let bias = tape.param(mlp.head.bias.expect("a head has one"));
                loss += bias.square().sum().sqrt();
            }
            let value = if self.loss.weight == 1.0 { loss } else { loss * self.loss.weight };
            Objective { value, mean }
        })
    }

    fn is_sum(&self) -> bool {
        self.loss.sum
    }

    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let outputs = self.outputs(x, false);
        match self.targets {
            Targets::Classes => outputs.accuracy(y),
            Targets::Numbers => outputs.mse(y),
            Targets::Symbols => outputs.cross_entropy(y.reshape([y.numel()])),
        }
    }
}
