//! The options of `wgrad two-tower`.

use super::config::{Case, Fix};
use crate::cli::{RunOptions, Training};
use clap::Args;

/// What a run of `wgrad two-tower` is, and of which `wgrad tape two-tower` prints a step.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct TwoTowerArgs {
    /// What is wrong with the run
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// What cures it; boundary: layer-norm, scale, unfreeze; imbalance: scale-grad, group-lr
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// How it is trained
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad two-tower`.
#[derive(Args, Clone, Debug)]
pub struct TwoTowerRunArgs {
    /// What the run is
    #[command(flatten)]
    pub settings: TwoTowerArgs,
    /// Its files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}
