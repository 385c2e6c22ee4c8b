//! `wgrad rnn`: what it prints.

use super::{
    config::{BAD_BOUND, Case, CellName, Config, Fix, TaskName},
    table::{FlowColumn, flow_table},
    train::{Files, Finished, Watch, check, run},
};
use crate::{
    Result,
    cli::{Common, RnnArgs, RnnRunArgs},
    device::Place,
    output::json,
    say,
    tour::line,
};

/// A run that another is shown beside.
struct Beside {
    title: &'static str,
    run: Finished,
}

/// `wgrad rnn`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &RnnRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let config = Config::new(settings, common.steps)?;
    let place = Place::open(common)?;
    let files = Files { save: args.save.clone(), resume: args.resume.clone() };
    let watch = if common.quiet { Watch::Silent } else { Watch::Bar };
    let comparison = if common.json || common.quiet { None } else { comparison(settings, common)? };
    let mut beside = None;
    if let Some((title, other)) = comparison {
        check(&config, common, &place, &files)?;
        say!("First {title}, for the comparison:");
        let run = run(&other, common, &place, &Files::default(), watch)?;
        say!("{}", line(&run));
        if run.interrupted {
            say!("Interrupted before the run itself: nothing is saved");
            return Ok(());
        }
        say!("\nNow as asked:");
        beside = Some(Beside { title, run });
    }
    let finished = run(&config, common, &place, &files, watch)?;
    if common.json {
        json(&finished.report);
        return Ok(());
    }
    if finished.interrupted {
        let steps = finished.report.steps;
        match &files.save {
            Some(path) => say!("Interrupted after {steps} steps and saved: go on with --resume {}", path.display()),
            None => say!("Interrupted after {steps} steps; nothing is saved without --save FILE"),
        }
    }
    say!("{}", line(&finished));
    if !common.quiet {
        show(settings, beside, &finished);
    }
    Ok(())
}

/// The run that this one is shown beside: a cured one beside the same without the cure, a gated cell on the digits beside
/// the tanh network.
fn comparison(args: &RnnArgs, common: &Common) -> Result<Option<(&'static str, Config)>> {
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
    Ok(Some((title, Config::new(&other, common.steps)?)))
}

/// The flow of gradients over time, and the verdict.
fn show(args: &RnnArgs, beside: Option<Beside>, finished: &Finished) {
    let name = match (&beside, args.fix) {
        (None, _) => "|dL/dz|",
        (Some(_), Fix::None) => "as asked",
        (Some(_), _) => "with the cure",
    };
    let columns = |flow: fn(&Finished) -> Vec<f64>| {
        let runs = beside.iter().map(|b| (b.title, &b.run)).chain([(name, finished)]);
        flow_table(&runs.map(|(name, run)| FlowColumn { name: name.into(), flow: flow(run) }).collect::<Vec<_>>())
    };
    let (peak, typical) = (columns(|run| run.history.flow_at_peak()), columns(|run| run.history.typical_flow()));
    say!("\nMean |dL/dz| per time step, at the step of the largest gradient:\n{peak}");
    say!("Mean |dL/dz| per time step, the median over the last tenth of steps:\n{typical}");
    say!("flow ratio, first third over last third: {:.1e}", finished.report.flow_ratio);
    if let Some(bound) = finished.bound {
        say!("bound on the gradient norm: {bound:.2}, from {}", args.max_norm.unwrap_or(BAD_BOUND));
    }
    say!("verdict: {}", finished.report.verdict);
    match (args.case, args.fix) {
        (Case::Exploding, Fix::None) => say!("The cure is one flag away: --fix clip-norm"),
        (Case::Vanishing, Fix::None) => say!("The cure is one flag away: --fix omega"),
        _ => {}
    }
}
