//! The table of rules: which signal, beyond which bound, speaks for which fault, and what cures it.
//!
//! The order is that of their weight: a fault of the program or of the data explains what the later rules would see, which are
//! symptoms.

mod data;
mod model;
mod program;
mod training;

use super::signs::Signs;
use crate::Edit;

/// A number that speaks for a fault, beside the range in which it is sound.
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// The number's name.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The least that is sound.
    pub low: f64,
    /// The most that is sound.
    pub high: f64,
}

impl Evidence {
    /// A number with its sound range.
    pub fn new(what: impl Into<String>, value: f64, low: f64, high: f64) -> Self {
        Self { what: what.into(), value, low, high }
    }
}

/// What may cure a fault.
#[derive(Clone, PartialEq, Debug)]
pub struct Remedy {
    /// Its name, one of the words of the specification.
    pub name: &'static str,
    /// What to change, as advice to a person.
    pub advice: String,
    /// What a replay changes; nothing where a replay cannot show it.
    pub edits: Vec<Edit>,
}

impl Remedy {
    /// A remedy by name.
    pub fn new(name: &'static str, advice: impl Into<String>, edits: Vec<Edit>) -> Self {
        Self { name, advice: advice.into(), edits }
    }
}

/// What a rule has found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Paths of parameters or sites, or source lines.
    pub place: Vec<String>,
    /// The update from which on it shows.
    pub since: usize,
    /// The numbers.
    pub evidence: Vec<Evidence>,
    /// What may cure it, the best first.
    pub remedies: Vec<Remedy>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The fault, one of the words of the specification.
    pub fault: &'static str,
    /// What is looked at.
    pub signal: &'static str,
    /// Beyond what.
    pub bound: &'static str,
    /// Where that comes from.
    pub source: &'static str,
    /// What cures it, by name.
    pub remedies: &'static [&'static str],
    /// The rule itself.
    pub(super) find: fn(&Signs<'_>) -> Option<Found>,
}

/// Writes the table.
macro_rules! rules {
    ($($fault:literal, $signal:literal, $bound:literal, $source:literal, [$($remedy:literal),+], $find:path;)+) => {
        &[$(Rule { fault: $fault, signal: $signal, bound: $bound, source: $source, remedies: &[$($remedy),+], find: $find }),+]
    };
}

/// All rules, the weightiest first.
pub const RULES: &[Rule] = rules![
    "nan-input", "elements of a batch that are not finite", "any, and a loss that is not finite at that step", "—", ["skip-step", "clean-data"], data::nan_input;
    "unguarded", "logarithm, root, reciprocal or division of what can be 0, on the way to the loss", "any without a guard", "pitfall P38", ["guard"], program::unguarded;
    "cut", "parameters that the loss depends on only through `detach`", "any", "spec: static findings", ["attach"], program::cut;
    "unused", "parameters of which a gradient is asked, and that the loss does not depend on", "any", "spec: static findings", ["remove"], program::unused;
    "double-softmax", "what a cross-entropy is given", "the output of a soft-max", "spec: static findings", ["logits"], program::double_softmax;
    "sum-not-mean", "how samples, or micro-batches, join the loss", "a sum with weights of 1/2 or more", "spec: static findings", ["mean", "lower-rate", "clip-norm"], program::sum_not_mean;
    "batch-statistics", "share of the first values that is left in running statistics at the end", "> 0.5", "Ioffe and Szegedy 2015", ["statistics", "other-norm"], program::batch_statistics;
    "symmetry", "rows of a first weight matrix", "all equal, and not 0", "Goodfellow et al. 2016, 8.4", ["init"], model::symmetry;
    "input-constant", "the elements of a batch", "all equal, in every batch", "—", ["data"], data::input_constant;
    "outlier-batch", "root mean square of a batch over the median of the run's", "> 20, or < 1/20, and the run is harmed", "spec: outlier", ["skip-step", "clip-norm", "clean-data"], data::outlier;
    "overflow", "halves: steps that are not taken, activations beyond 65504", "> half of the steps; any", "Micikevicius et al. 2018", ["dynamic-scale", "norm", "full-precision", "init"], training::overflow;
    "underflow", "halves without a loss scale: share of gradients that are 0 at the inputs of activations", "> 0.5", "Micikevicius et al. 2018", ["loss-scale"], training::underflow;
    "dropout-too-high", "the probability that a value is dropped", "> 0.8, and the run does not learn", "Srivastava et al. 2014", ["lower-dropout"], program::dropout;
    "dead-units", "share of rectifiers that are off for all of the first batch", "> 0.9 in a layer", "Maas et al. 2013", ["init"], model::dead;
    "saturated-units", "share of inputs of tanh or sigmoid in their flat part, at first", "> 0.5 in a layer", "Glorot and Bengio 2010", ["scale-inputs", "norm", "init"], model::saturated;
    "attention-logits", "range of the scores of attention in the first batch", "> 30", "Wortsman et al. 2023; Dehghani et al. 2023", ["temperature", "qk-norm", "init"], model::attention_logits;
    "scale-mismatch", "root mean square of features at a boundary over the median of the other sites", "> 50", "spec: boundary", ["norm", "scale"], model::boundary;
    "input-scale", "median root mean square of the inputs", "> 10, and the run does not learn", "LeCun et al. 1998", ["scale-inputs", "norm", "lower-rate"], data::input_scale;
    "post-norm", "root mean square of the residual path after each of at least 6 blocks, at first", "within 0.05 of 1, and the run does not learn", "Xiong et al. 2020", ["warmup", "pre-norm"], model::post_norm;
    "exploding-init", "growth of the inputs of activations from the first layer to the last, at first", "> 100", "He et al. 2015", ["init", "norm", "clip-norm"], model::exploding_init;
    "frozen", "parameters that the loss depends on, and that are not trained", "any, and the run does not learn", "—", ["unfreeze"], program::frozen;
    "vanishing-time", "mean |dL/dz| of the first third of time steps over the last third, at first", "< 0.01, and the run does not learn", "Pascanu et al. 2013", ["init", "omega", "gated-cell"], model::vanishing_time;
    "exploding-time", "a recurrent layer without a clip: the largest norm of the gradient over the median", "> 10, or a loss that rises", "Pascanu et al. 2013", ["clip-norm", "init"], model::exploding_time;
    "vanishing-activation", "sigmoid or tanh: mean |dL/dz| of the first third of layers over the last third", "< 0.05 at first, and the run does not learn", "Glorot and Bengio 2010", ["norm", "residual", "activation"], model::vanishing_activation;
    "vanishing-init", "the inputs of activations of the last layer over those of the first, at first", "< 0.1, and the run does not learn", "He et al. 2015", ["init", "norm", "residual"], model::vanishing_init;
    "vanishing-depth", "layers without shortcuts", "20 or more, and the run does not learn", "He et al. 2016", ["residual", "norm"], model::vanishing_depth;
    "momentum-too-high", "steps that momentum looks back over those of the run", "> 1/5, and the run does not learn", "Sutskever et al. 2013", ["lower-momentum", "lower-rate"], training::momentum;
    "noise-too-large", "norm of what the optimizer is given over that of the gradient, with noise", "> 5", "Neelakantan et al. 2015", ["lower-noise"], training::noise;
    "decay-too-large", "what an update takes of a weight by decay alone", "> 0.01, and the run does not learn", "Loshchilov and Hutter 2019", ["lower-decay"], training::decay;
    "epsilon-too-large", "the optimizer's epsilon over the root mean square of the gradient", "> 3, and the run does not learn", "Kingma and Ba 2015", ["lower-epsilon"], training::epsilon;
    "agc-too-tight", "norm of what the optimizer is given over that of the gradient, with AGC", "< 0.01, and the run does not learn", "Brock et al. 2021", ["raise-agc"], training::agc;
    "clip-too-tight", "norm of what the optimizer is given over that of the gradient, with a clip", "< 0.01, and the run does not learn", "Pascanu et al. 2013", ["raise-clip"], training::clip;
    "warmup-too-long", "the learning rate at the last step over the highest of the schedule, while it rises", "< 0.3, and the run does not learn", "—", ["shorter-warmup", "raise-rate"], training::warmup;
    "decays-too-early", "the share of steps until the learning rate is below a hundredth of its highest", "< 0.3, and the run does not learn", "—", ["longer-schedule", "raise-rate"], training::decays_early;
    "imbalance", "the largest weight of a loss that is a sum of several over the smallest", "> 30", "spec: balance", ["loss-weight", "scale-grad", "group-rate"], program::imbalance;
    "rate-too-high", "loss, gradient, or rectifiers that are off, against the first steps", "loss × 3, gradient × 1000, off > 0.9", "LeCun et al. 1998", ["lower-rate", "warmup", "clip-norm"], training::rate_high;
    "rate-too-low", "median norm of an update over that of its parameter", "< 3e-4, and the run does not learn", "the usual 1e-3 (Karpathy 2015)", ["raise-rate"], training::rate_low;
    "labels-shuffled", "a loss that stays at that of a guess, with sound gradients and updates", "within 10 %", "Zhang et al. 2017", ["data"], data::labels;
];
