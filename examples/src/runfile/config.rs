//! What a run file says: its tables as data.

use crate::cli::Training;
use std::path::PathBuf;
use wgrad::Weighting;
use wgrad_nn::{Activation, Bridge, Cell, Init, LossScale, NormKind, NormPlace, track::Setting};

/// A run that a file describes.
#[derive(Clone, PartialEq, Debug)]
pub struct RunFile {
    /// The file.
    pub path: PathBuf,
    /// The model.
    pub model: Model,
    /// The data.
    pub data: DataName,
    /// The text, where there is one: a file, from where the command was called.
    pub text: Option<PathBuf>,
    /// The most training steps.
    pub steps: usize,
    /// Samples per step.
    pub batch: usize,
    /// Decides parameters, data and noise.
    pub seed: u64,
    /// The held-out metric that is to be reached.
    pub target: f64,
    /// Patterns of the paths of parameters that are not trained.
    pub freeze: Vec<String>,
    /// What is done to the data.
    pub inputs: Inputs,
    /// The loss.
    pub loss: LossConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes.
    pub schedule: ScheduleConfig,
    /// What is done to gradients.
    pub trainer: TrainerSettings,
    /// How batches are cut, and what is computed in.
    pub training: Training,
    /// The value of each key, by its full name: the file's, or the default.
    pub keys: Vec<(String, Setting)>,
}

/// Where samples come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataName {
    /// Handwritten digits.
    Digits,
    /// Two spirals.
    Spirals,
    /// Friedman's regression.
    Regression,
    /// Which of two marks came first and second.
    TemporalOrder,
    /// The sum of two marked numbers.
    Adding,
    /// A text, character by character.
    Text,
}

/// A model with its sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Model {
    /// A stack of linear layers.
    Mlp(MlpModel),
    /// A recurrent network.
    Rnn(RnnModel),
    /// A decoder of transformer blocks.
    Transformer(TransformerModel),
    /// A residual network.
    ResNet(ResNetModel),
    /// An encoder of images and a decoder of text.
    TwoTower(TwoTowerModel),
}

/// A stack of linear layers.
#[derive(Clone, PartialEq, Debug)]
pub struct MlpModel {
    /// The width of hidden layers.
    pub width: usize,
    /// How many there are.
    pub depth: usize,
    /// What follows each.
    pub activation: Activation,
    /// What normalises them.
    pub norm: NormKind,
    /// Whether they have shortcuts.
    pub residual: bool,
    /// The probability of a zero.
    pub dropout: f64,
    /// First weights.
    pub init: Init,
    /// First biases.
    pub bias: f64,
    /// The layer behind which the gradient is cut.
    pub detach_after: Option<usize>,
    /// Whether there is a layer that the loss does not reach.
    pub unused: bool,
}

/// A recurrent network.
#[derive(Clone, PartialEq, Debug)]
pub struct RnnModel {
    /// The recurrent layer.
    pub cell: Cell,
    /// Its width.
    pub hidden: usize,
    /// The number of time steps.
    pub length: usize,
    /// The spectral radius of the first recurrent weights of a plain cell.
    pub spectral_radius: f64,
}

/// A decoder of transformer blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct TransformerModel {
    /// The width of a position.
    pub width: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The heads of each attention.
    pub heads: usize,
    /// Positions per sample.
    pub context: usize,
    /// The width of the feed-forward networks.
    pub hidden: usize,
    /// Where blocks normalise.
    pub place: NormPlace,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// What scores are divided by.
    pub temperature: f64,
    /// The standard deviation of first weights.
    pub std: f64,
    /// What the first weights of queries and keys are multiplied by.
    pub score_gain: f64,
    /// The probability of a zero.
    pub dropout: f64,
    /// Whether the output weights are those of the symbols.
    pub tied: bool,
}

/// A residual network.
#[derive(Clone, PartialEq, Debug)]
pub struct ResNetModel {
    /// The number of layers with weights.
    pub depth: usize,
    /// The width of the first stage.
    pub width: usize,
    /// Whether blocks have shortcuts.
    pub residual: bool,
    /// What normalises.
    pub norm: NormKind,
    /// The activation.
    pub activation: Activation,
    /// First weights of the convolutions.
    pub init: Init,
}

/// An encoder of images and a decoder of text.
#[derive(Clone, PartialEq, Debug)]
pub struct TwoTowerModel {
    /// What features are multiplied by.
    pub feature_scale: f64,
    /// What lies between the towers.
    pub bridge: Bridge,
    /// The weight of the encoder's own loss; 0 without one.
    pub vision_loss: f64,
}

/// Which targets a sample has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Labels {
    /// Its own.
    True,
    /// Those of another sample of its batch.
    Shuffled,
    /// Those of the first sample of its batch.
    Constant,
}

/// What is done to the data.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    /// What every input is multiplied by.
    pub scale: f64,
    /// What is then added.
    pub shift: f64,
    /// Whether every input is the same.
    pub constant: bool,
    /// Which targets samples have.
    pub labels: Labels,
    /// The step whose batch holds a NaN.
    pub nan_at: Option<usize>,
    /// The step whose batch is multiplied.
    pub outlier_at: Option<usize>,
    /// By what.
    pub outlier_scale: f64,
}

/// An operation that nothing keeps from its pole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unguarded {
    /// None.
    None,
    /// The logarithm of a soft-max, each by itself.
    Log,
    /// Features over their norm.
    Div,
    /// The root of a sum of squares that is 0 at first.
    Sqrt,
}

/// The loss.
#[derive(Clone, PartialEq, Debug)]
pub struct LossConfig {
    /// Whether it is the sum over samples in place of their mean.
    pub sum: bool,
    /// Whether probabilities are given where logits are expected.
    pub softmax_first: bool,
    /// What is not guarded.
    pub unguarded: Unguarded,
    /// What it is multiplied by.
    pub weight: f64,
}

/// How parameters are updated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptimizerName {
    /// Stochastic gradient descent.
    Sgd,
    /// Adam.
    Adam,
    /// Adam with decoupled decay.
    AdamW,
    /// RMSprop.
    RmsProp,
}

/// The optimizer.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizerConfig {
    /// The rule.
    pub kind: OptimizerName,
    /// The learning rate.
    pub lr: f64,
    /// Momentum of SGD and RMSprop.
    pub momentum: f64,
    /// Decay rates of Adam's means.
    pub betas: (f64, f64),
    /// Added to the divisor of Adam and RMSprop.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Factors of the learning rate by pattern.
    pub group_lr: Vec<(String, f64)>,
}

/// How a learning rate falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decay {
    /// Not at all.
    Constant,
    /// In a straight line to 0.
    Linear,
    /// Along half a cosine to 0.
    Cosine,
}

/// How the learning rate changes.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleConfig {
    /// Steps over which it rises.
    pub warmup: u32,
    /// How it falls afterwards.
    pub decay: Decay,
    /// The step at which it has fallen.
    pub over: u32,
}

/// What is done to gradients.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainerSettings {
    /// The bound on the norm of all gradients together.
    pub clip_norm: Option<f64>,
    /// The bound on each element.
    pub clip_value: Option<f64>,
    /// The factor of adaptive clipping.
    pub agc: Option<f64>,
    /// Whether rows of weights lose their mean.
    pub centralize: bool,
    /// The standard deviation of noise.
    pub noise: Option<f64>,
    /// How micro-batches add up.
    pub weighting: Weighting,
    /// What the loss is multiplied by.
    pub loss_scale: LossScale,
}

impl RunFile {
    /// What the numbers of the flow are of.
    pub fn part(&self) -> &'static str {
        match self.model {
            Model::Rnn(_) => "step",
            Model::Transformer(_) => "block",
            Model::Mlp(_) | Model::ResNet(_) | Model::TwoTower(_) => "layer",
        }
    }
}
