//! The options of `wgrad transformer`.

use crate::cli::{RunOptions, Training};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The failures that a run can reproduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// No failure.
    #[default]
    Healthy,
    /// The initial weights and the learning rate are too large, and nothing clips the gradient.
    Exploding,
    /// A deep stack that normalises after each block, without a warm-up.
    PostNorm,
    /// Queries and keys start so large that each position attends to a single position.
    Scores,
    /// Half precision (f16), in which small gradients round to 0.
    Underflow,
}

/// The cures of the cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// No cure.
    #[default]
    None,
    /// Clip the global gradient norm to 1.
    ClipNorm,
    /// Normalise the input of each block instead of its output.
    PreNorm,
    /// Let the learning rate rise slowly.
    Warmup,
    /// Normalise queries and keys.
    QkNorm,
    /// Divide attention's scores by a temperature.
    Temperature,
    /// Multiply the loss by a scale that adapts itself.
    LossScale,
}

/// The size of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Size {
    /// Four blocks of width 64 over 64 characters.
    #[default]
    Small,
    /// Four blocks of width 128 over 128 characters.
    Medium,
}

/// The settings of a run of `wgrad transformer`; `wgrad tape transformer` prints a step of the same run.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct TransformerArgs {
    /// The failure that the run reproduces
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// The cure of the case; exploding: clip-norm; post-norm: pre-norm, warmup; scores: qk-norm, temperature;
    /// underflow: loss-scale
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// The text to learn, UTF-8, whose last tenth is held out; default: the sources of this command
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// The size of the network
    #[arg(long, value_enum, default_value_t = Size::Small, value_name = "SIZE")]
    pub size: Size,
    /// The training options
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad transformer`.
#[derive(Args, Clone, Debug)]
pub struct TransformerRunArgs {
    /// The settings of the run
    #[command(flatten)]
    pub settings: TransformerArgs,
    /// The number of characters to sample at the end; default: 200. With --resume and without --steps, a saved model is
    /// not trained further
    #[arg(long, value_name = "N")]
    pub sample: Option<usize>,
    /// The run's files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
