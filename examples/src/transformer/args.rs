//! The options of `wgrad transformer`.

use crate::cli::{RunOptions, Training};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What is wrong with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// Nothing.
    #[default]
    Healthy,
    /// First weights and learning rate are too large, and nothing clips the gradient.
    Exploding,
    /// A deep stack that normalises after each block, without a warm-up.
    PostNorm,
    /// Queries and keys start so large that each position attends to one other.
    Scores,
    /// Half precision, in which gradients are too small to be told from 0.
    Underflow,
}

/// What cures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// Nothing.
    #[default]
    None,
    /// Clip the global gradient norm to 1.
    ClipNorm,
    /// Normalise what enters each block, not what leaves it.
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

/// How large a network is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Size {
    /// Four blocks of width 64 over 64 characters.
    #[default]
    Small,
    /// Four blocks of width 128 over 128 characters.
    Medium,
}

/// What a run of `wgrad transformer` is, and of which `wgrad tape transformer` prints a step.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct TransformerArgs {
    /// What is wrong with the run
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// What cures it; exploding: clip-norm; post-norm: pre-norm, warmup; scores: qk-norm, temperature; underflow: loss-scale
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// The text to learn, UTF-8, whose last tenth is held out; default: the sources of this command
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// How large the network is
    #[arg(long, value_enum, default_value_t = Size::Small, value_name = "SIZE")]
    pub size: Size,
    /// How it is trained
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad transformer`.
#[derive(Args, Clone, Debug)]
pub struct TransformerRunArgs {
    /// What the run is
    #[command(flatten)]
    pub settings: TransformerArgs,
    /// How many characters to sample at the end; default: 200. With --resume and without --steps, a saved model is not
    /// trained further
    #[arg(long, value_name = "N")]
    pub sample: Option<usize>,
    /// Its files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
