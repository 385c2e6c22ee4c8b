//! The options of `wgrad two-tower`.

use super::config::{Case, Fix};
use crate::cli::{RunOptions, Training};
use clap::Args;

/// The settings of a run of `wgrad two-tower`; `wgrad tape two-tower` prints a step of the same run.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct TwoTowerArgs {
    /// The failure that the run reproduces
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// The cure of the case; boundary: layer-norm, scale, unfreeze; imbalance: scale-grad, group-lr
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// The training options
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad two-tower`.
#[derive(Args, Clone, Debug)]
pub struct TwoTowerRunArgs {
    /// The settings of the run
    #[command(flatten)]
    pub settings: TwoTowerArgs,
    /// The run's files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
