//! The words of a run file, and their meanings.

use super::config::{DataName, Decay, Labels, OptimizerName, Unguarded};
use crate::cli::PrecisionName;
use wgrad::Weighting;
use wgrad_nn::{Activation, Bridge, Cell, Fan, Init, NormKind, NormPlace};

type Words<T> = &'static [(&'static str, T)];

/// `data`.
pub const DATA: Words<DataName> = &[
    ("digits", DataName::Digits),
    ("spirals", DataName::Spirals),
    ("regression", DataName::Regression),
    ("temporal-order", DataName::TemporalOrder),
    ("adding", DataName::Adding),
    ("text", DataName::Text),
];

/// `activation`.
pub const ACTIVATIONS: Words<Activation> = &[
    ("relu", Activation::Relu),
    ("leaky-relu", Activation::LeakyRelu(0.01)),
    ("gelu", Activation::Gelu),
    ("silu", Activation::Silu),
    ("tanh", Activation::Tanh),
    ("sigmoid", Activation::Sigmoid),
    ("identity", Activation::Identity),
];

/// `norm` of an MLP; its momentum is another key.
pub const MLP_NORMS: Words<NormKind> =
    &[("none", NormKind::None), ("layer", NormKind::Layer), ("rms", NormKind::Rms), ("batch", NormKind::BATCH)];

/// `norm` of a residual network; the width decides the groups.
pub const IMAGE_NORMS: Words<NormKind> =
    &[("none", NormKind::None), ("batch", NormKind::BATCH), ("group", NormKind::Group { groups: 1 })];

/// An initializer by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitName {
    /// He et al. 2015, normal.
    HeNormal,
    /// He et al. 2015, uniform.
    HeUniform,
    /// Glorot & Bengio 2010, normal.
    XavierNormal,
    /// Glorot & Bengio 2010, uniform.
    XavierUniform,
    /// Saxe et al. 2014.
    Orthogonal,
    /// Normal, with a given standard deviation.
    Normal,
    /// A constant value.
    Constant,
}

impl InitName {
    /// The initializer. `std` is the standard deviation of [`InitName::Normal`], and the value of
    /// [`InitName::Constant`].
    pub fn init(self, std: f64) -> Init {
        match self {
            InitName::HeNormal => Init::He { fan: Fan::In },
            InitName::HeUniform => Init::HeUniform { fan: Fan::In },
            InitName::XavierNormal => Init::XavierNormal { gain: 1.0 },
            InitName::XavierUniform => Init::XavierUniform { gain: 1.0 },
            InitName::Orthogonal => Init::Orthogonal { gain: 1.0 },
            InitName::Normal => Init::Normal(std),
            InitName::Constant => Init::Constant(std),
        }
    }
}

/// `init`.
pub const INITS: Words<InitName> = &[
    ("he-normal", InitName::HeNormal),
    ("he-uniform", InitName::HeUniform),
    ("xavier-normal", InitName::XavierNormal),
    ("xavier-uniform", InitName::XavierUniform),
    ("orthogonal", InitName::Orthogonal),
    ("normal", InitName::Normal),
    ("constant", InitName::Constant),
];

/// `cell`; the activation of `rnn` is another key.
pub const CELLS: Words<Cell> = &[("rnn", Cell::Tanh), ("irnn", Cell::Irnn), ("lstm", Cell::Lstm), ("gru", Cell::Gru)];

/// `activation` of `cell = "rnn"`.
pub const RNN_ACTIVATIONS: Words<Cell> = &[("tanh", Cell::Tanh), ("sigmoid", Cell::Sigmoid)];

/// `place`.
pub const PLACES: Words<NormPlace> = &[("pre", NormPlace::Pre), ("post", NormPlace::Post)];

/// `bridge`.
pub const BRIDGES: Words<Bridge> =
    &[("none", Bridge::Plain), ("layer-norm", Bridge::Norm), ("scale", Bridge::Scale(1e-3))];

/// `labels`.
pub const LABELS: Words<Labels> =
    &[("true", Labels::True), ("shuffled", Labels::Shuffled), ("constant", Labels::Constant)];

/// `unguarded`.
pub const UNGUARDED: Words<Unguarded> =
    &[("none", Unguarded::None), ("log", Unguarded::Log), ("div", Unguarded::Div), ("sqrt", Unguarded::Sqrt)];

/// `kind` of an optimizer.
pub const OPTIMIZERS: Words<OptimizerName> = &[
    ("sgd", OptimizerName::Sgd),
    ("adam", OptimizerName::Adam),
    ("adamw", OptimizerName::AdamW),
    ("rmsprop", OptimizerName::RmsProp),
    ("adagrad", OptimizerName::Adagrad),
    ("lion", OptimizerName::Lion),
    ("muon", OptimizerName::Muon),
];

/// `decay` of a schedule.
pub const DECAYS: Words<Decay> = &[("constant", Decay::Constant), ("linear", Decay::Linear), ("cosine", Decay::Cosine)];

/// `weighting`.
pub const WEIGHTINGS: Words<Weighting> = &[("mean", Weighting::Mean), ("sum", Weighting::Sum)];

/// `precision`.
pub const PRECISIONS: Words<PrecisionName> = &[("f32", PrecisionName::F32), ("f16", PrecisionName::F16)];
