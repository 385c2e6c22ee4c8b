//! The options of `wgrad resnet`.

use super::config::{Case, Fix};
use crate::cli::{RunOptions, Training};
use clap::Args;
use std::path::PathBuf;

/// The settings of a run of `wgrad resnet`; `wgrad tape resnet` prints a step of the same run.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct ResNetArgs {
    /// The failure that the run reproduces
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// The cure of the case; degradation: residual; exploding: agc, batch-norm, clip-norm; vanishing: he-init,
    /// batch-norm; sigmoid: relu; dead-relu: leaky-relu
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// A folder of CIFAR-10 (binary version) or MNIST (IDX, unpacked); default: the digits built into the command
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The number of layers with weights: 8, 14, 20 and so on; default: 20, for degradation 56, for vanishing, sigmoid
    /// and dead-relu 8
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// The training options
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad resnet`.
#[derive(Args, Clone, Debug)]
pub struct ResNetRunArgs {
    /// The settings of the run
    #[command(flatten)]
    pub settings: ResNetArgs,
    /// The run's files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
