//! The `two-tower` command: runs the example and prints its results.

use super::{
    args::{TwoTowerArgs, TwoTowerRunArgs},
    config::{CURES, Config},
};
use crate::{
    Result,
    cli::Common,
    run::{compare, cured},
};

/// `wgrad two-tower`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &TwoTowerRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let cures = cured(CURES, settings.case, settings.fix)?;
    let config = |fix| Config::new(&TwoTowerArgs { fix, ..settings.clone() }, common.steps);
    compare(settings.fix, cures, config, "layer", common, &args.run)
}
