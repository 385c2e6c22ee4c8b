//! `wgrad two-tower`: what it prints.

use super::{
    args::{TwoTowerArgs, TwoTowerRunArgs},
    config::{CURES, Config, Fix},
};
use crate::{
    Result,
    cli::Common,
    run::{Asked, Beside, cured, name_of, show},
};

/// `wgrad two-tower`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &TwoTowerRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let config = Config::new(settings, common.steps)?;
    let cure = cured(CURES, settings.case, settings.fix)?.first();
    let alone = settings.fix == Fix::None;
    let beside = match alone {
        true => None,
        false => {
            let other = TwoTowerArgs { fix: Fix::None, ..settings.clone() };
            Some(Beside { title: "without the cure", run: Box::new(Config::new(&other, common.steps)?) })
        }
    };
    let asked = Asked {
        run: &config,
        beside,
        title: if alone { "as asked" } else { "with the cure" },
        what: "layer",
        cure: cure.filter(|_| alone).map(|fix| name_of(*fix)),
    };
    show(&asked, common, &args.files.clone().into())
}
