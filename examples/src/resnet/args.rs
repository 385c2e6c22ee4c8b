//! The options of `wgrad resnet`.

use super::config::{Case, Fix};
use crate::cli::{RunOptions, Training};
use clap::Args;
use std::path::PathBuf;

/// What a run of `wgrad resnet` is, and of which `wgrad tape resnet` prints a step.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct ResNetArgs {
    /// What is wrong with the run
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// What cures it; degradation: residual; exploding: agc, batch-norm, clip-norm; vanishing: he-init, batch-norm; sigmoid:
    /// relu; dead-relu: leaky-relu
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// A folder of CIFAR-10 (binary version) or MNIST (IDX, unpacked); default: the digits that the command carries
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The number of layers with weights: 8, 14, 20 and so on; default: 20; 56 in the case of degradation,
    /// 8 in those of other plain networks
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// How it is trained
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad resnet`.
#[derive(Args, Clone, Debug)]
pub struct ResNetRunArgs {
    /// What the run is
    #[command(flatten)]
    pub settings: ResNetArgs,
    /// Its files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
