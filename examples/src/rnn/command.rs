//! The `rnn` command: runs the example and prints its results.

use super::config::{BAD_BOUND, CURES, CellName, Config, Fix, TaskName};
use crate::{
    Result,
    cli::{Common, RnnArgs, RnnRunArgs},
    run::{Asked, Beside, cured, name_of, show},
};

/// `wgrad rnn`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &RnnRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let config = Config::new(settings, common.steps)?;
    let cure = cured(CURES, settings.case, settings.fix)?.first();
    let asked = Asked {
        run: &config,
        beside: comparison(settings, common)?,
        title: if settings.fix == Fix::None { "as asked" } else { "with the cure" },
        what: "step",
        cure: cure.filter(|_| settings.fix == Fix::None).map(|fix| name_of(*fix)),
    };
    show(&asked, common, &args.run)
}

/// The run for comparison: a cured run is compared with the same run without the cure, and a gated cell on the digits
/// with the tanh network.
fn comparison(args: &RnnArgs, common: &Common) -> Result<Option<Beside>> {
    let (title, other) = match (args.fix, args.task, args.cell) {
        (Fix::None, TaskName::Digits, None | Some(CellName::Lstm | CellName::Gru)) => {
            ("the tanh network", RnnArgs { cell: Some(CellName::Rnn), ..args.clone() })
        }
        (Fix::None, ..) => return Ok(None),
        (Fix::MetaClip, ..) => {
            let max_norm = Some(args.max_norm.unwrap_or(BAD_BOUND));
            ("with the bound that it begins with", RnnArgs { fix: Fix::ClipNorm, max_norm, ..args.clone() })
        }
        _ => ("without the cure", RnnArgs { fix: Fix::None, max_norm: None, ..args.clone() }),
    };
    Ok(Some(Beside { title, run: Box::new(Config::new(&other, common.steps)?) }))
}
