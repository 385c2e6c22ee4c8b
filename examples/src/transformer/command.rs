//! The `transformer` command: runs the example and prints its results.

use super::{
    args::{Fix, TransformerArgs, TransformerRunArgs},
    config::{CURES, Config},
    example::VOCABULARY,
};
use crate::{
    Result,
    cli::Common,
    run::{Asked, Beside, cured, name_of, show},
};
use std::path::Path;
use wgrad_nn::checkpoint;

/// The default number of characters to sample.
const SAMPLE: usize = 200;

/// `wgrad transformer`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &TransformerRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let mut config = Config::new(settings, common.steps)?;
    let cure = cured(CURES, settings.case, settings.fix)?.first();
    config.sample = args.sample.unwrap_or(SAMPLE);
    if let Some(path) = &args.run.files.resume {
        same_vocabulary(&config, path)?;
        if args.sample.is_some() && common.steps.is_none() {
            config.steps = 0;
        }
    }
    let beside = match settings.fix {
        Fix::None => None,
        _ => {
            let other = Config::new(&TransformerArgs { fix: Fix::None, ..settings.clone() }, common.steps)?;
            Some(Beside { title: "without the cure", run: Box::new(other) })
        }
    };
    let asked = Asked {
        run: &config,
        beside: beside.filter(|_| config.steps > 0),
        title: "with the cure",
        what: "block",
        cure: cure.filter(|_| settings.fix == Fix::None).map(|fix| name_of(*fix)),
    };
    show(&asked, common, &args.run)
}

/// Refuses a saved model whose vocabulary differs from the text's. This error says more than the later one about the
/// shapes of the weights.
fn same_vocabulary(config: &Config, path: &Path) -> Result<()> {
    let saved = checkpoint::metadata(path)?;
    let Some(characters) = saved.get(VOCABULARY) else { return Ok(()) };
    Ok(config.read(0)?.vocabulary().check(characters)?)
}
