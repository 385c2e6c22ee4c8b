//! The `resnet` command: runs the example and prints its results.

use super::{
    args::{ResNetArgs, ResNetRunArgs},
    config::{CURES, Config},
};
use crate::{
    Result,
    cli::Common,
    run::{compare, cured},
};

/// `wgrad resnet`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &ResNetRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let cures = cured(CURES, settings.case, settings.fix)?;
    let config = |fix| Config::new(&ResNetArgs { fix, ..settings.clone() }, common.steps);
    compare(settings.fix, cures, config, "layer", common, &args.run)
}
