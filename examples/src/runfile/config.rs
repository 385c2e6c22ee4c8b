//! The settings of a run file, as data.

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
    /// The file of the text, if there is one, relative to the working directory.
    pub text: Option<PathBuf>,
    /// The most training steps.
    pub steps: usize,
    /// The number of samples per step.
    pub batch: usize,
    /// The seed of parameters, data and noise.
    pub seed: u64,
    /// The target of the metric on held-out data.
    pub target: f64,
    /// Patterns of the paths of parameters that are not trained.
    pub freeze: Vec<String>,
    /// The changes to the data.
    pub inputs: Inputs,
    /// The loss.
    pub loss: LossConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The schedule of the learning rate.
    pub schedule: ScheduleConfig,
    /// The passes on gradients, and the loss scale.
    pub trainer: TrainerSettings,
    /// The micro-batches, the precision, and the checkpointing.
    pub training: Training,
    /// The value of each key, by its full name: from the file, or the default.
    pub keys: Vec<(String, Setting)>,
}

/// The source of the samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataName {
    /// Handwritten digits.
    Digits,
    /// Two spirals.
    Spirals,
    /// Friedman's regression.
    Regression,
    /// The order of two marks among distractors.
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
    /// The number of hidden layers.
    pub depth: usize,
    /// The activation after each hidden layer.
    pub activation: Activation,
    /// The normalisation of the hidden layers.
    pub norm: NormKind,
    /// True if the hidden layers have shortcuts.
    pub residual: bool,
    /// The probability that dropout zeroes an element.
    pub dropout: f64,
    /// The initial weights.
    pub init: Init,
    /// The initial biases.
    pub bias: f64,
    /// The layer whose output is detached: no gradient flows back through it.
    pub detach_after: Option<usize>,
    /// True to declare a layer that the loss does not depend on.
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
    /// The spectral radius of the initial recurrent weights of a plain cell.
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
    /// The number of positions per sample.
    pub context: usize,
    /// The width of the feed-forward networks.
    pub hidden: usize,
    /// The place of the normalisation in a block.
    pub place: NormPlace,
    /// True if queries and keys are normalised.
    pub qk_norm: bool,
    /// The divisor of the attention scores.
    pub temperature: f64,
    /// The standard deviation of the initial weights.
    pub std: f64,
    /// The factor of the initial weights of queries and keys.
    pub score_gain: f64,
    /// The probability that dropout zeroes an element.
    pub dropout: f64,
    /// True if the output weights are the weights of the symbols' embedding.
    pub tied: bool,
}

/// A residual network.
#[derive(Clone, PartialEq, Debug)]
pub struct ResNetModel {
    /// The number of layers with weights.
    pub depth: usize,
    /// The width of the first stage.
    pub width: usize,
    /// True if blocks have shortcuts.
    pub residual: bool,
    /// The normalisation.
    pub norm: NormKind,
    /// The activation.
    pub activation: Activation,
    /// The initial weights of the convolutions.
    pub init: Init,
}

/// An encoder of images and a decoder of text.
#[derive(Clone, PartialEq, Debug)]
pub struct TwoTowerModel {
    /// The factor of the image features.
    pub feature_scale: f64,
    /// The bridge between the towers.
    pub bridge: Bridge,
    /// The weight of the encoder's own loss; 0 without one.
    pub vision_loss: f64,
}

/// The targets that a sample gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Labels {
    /// The sample's own targets.
    True,
    /// The targets of another sample of the batch.
    Shuffled,
    /// The targets of the first sample of the batch.
    Constant,
}

/// The changes to the data.
#[derive(Clone, PartialEq, Debug)]
pub struct Inputs {
    /// The factor of every input.
    pub scale: f64,
    /// The number that is then added to every input.
    pub shift: f64,
    /// True if all inputs are the same.
    pub constant: bool,
    /// The targets that samples get.
    pub labels: Labels,
    /// The step whose batch holds a NaN.
    pub nan_at: Option<usize>,
    /// The step whose batch is scaled by `outlier_scale`.
    pub outlier_at: Option<usize>,
    /// The factor of that batch.
    pub outlier_scale: f64,
}

/// An operation without a guard against its singularity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unguarded {
    /// Every operation is guarded.
    None,
    /// The logarithm of a softmax, as two separate operations.
    Log,
    /// Features divided by their norm.
    Div,
    /// The square root of a sum of squares that starts at 0.
    Sqrt,
}

/// The loss.
#[derive(Clone, PartialEq, Debug)]
pub struct LossConfig {
    /// True if the loss is the sum over samples instead of the mean.
    pub sum: bool,
    /// True if a softmax makes probabilities of the logits before a loss that expects logits.
    pub softmax_first: bool,
    /// The operation without a guard.
    pub unguarded: Unguarded,
    /// The factor of the loss.
    pub weight: f64,
}

/// The kind of optimizer.
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
    /// Adagrad.
    Adagrad,
    /// Lion.
    Lion,
    /// Muon for matrices, Adam with decoupled decay for everything else.
    Muon,
}

/// The optimizer.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizerConfig {
    /// The kind.
    pub kind: OptimizerName,
    /// The learning rate.
    pub lr: f64,
    /// The momentum of SGD, RMSprop and Muon; `None` for the optimizer's usual value.
    pub momentum: Option<f64>,
    /// The decay rates of the moments of Adam and Lion; `None` for the optimizer's usual values.
    pub betas: Option<(f64, f64)>,
    /// The number added to the divisor of Adam, RMSprop and Adagrad.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// True if Adam divides by the largest second moment so far.
    pub amsgrad: bool,
    /// Patterns of the matrices that Muon leaves to Adam.
    pub exclude: Vec<String>,
    /// Factors of the learning rate by pattern.
    pub group_lr: Vec<(String, f64)>,
}

/// The decay of a learning rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decay {
    /// No decay.
    Constant,
    /// A straight line to 0.
    Linear,
    /// Half a cosine to 0.
    Cosine,
}

/// The schedule of the learning rate.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleConfig {
    /// The number of steps over which the rate rises.
    pub warmup: u32,
    /// The decay after the warm-up.
    pub decay: Decay,
    /// The step at which the decay ends.
    pub over: u32,
}

/// The passes on gradients, and the loss scale.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainerSettings {
    /// The bound on the global gradient norm.
    pub clip_norm: Option<f64>,
    /// The bound on the magnitude of each element.
    pub clip_value: Option<f64>,
    /// The factor of adaptive clipping.
    pub agc: Option<f64>,
    /// True if gradients are centralised: each row of a weight's gradient loses its mean.
    pub centralize: bool,
    /// The standard deviation of the gradient noise.
    pub noise: Option<f64>,
    /// The radius of sharpness-aware minimisation.
    pub sam: Option<f64>,
    /// The weighting of micro-batches in an update.
    pub weighting: Weighting,
    /// The loss scale.
    pub loss_scale: LossScale,
}

impl RunFile {
    /// The kind of the rows of the flow: `step`, `block` or `layer`.
    pub fn part(&self) -> &'static str {
        match self.model {
            Model::Rnn(_) => "step",
            Model::Transformer(_) => "block",
            Model::Mlp(_) | Model::ResNet(_) | Model::TwoTower(_) => "layer",
        }
    }
}
