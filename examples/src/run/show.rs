//! The printed results of a run, and of the run for comparison.

use super::{Column, Diagnose, Files, Finished, Metrics, Names, Runnable, Watch, check, diagnose, name_of, run, table};
use crate::{
    Result,
    cli::{Common, RunOptions},
    device::Place,
    history::History,
    output::json,
    say,
};
use clap::ValueEnum;

/// The run that another run is compared with.
pub struct Beside {
    /// The difference to the other run, such as `without the cure`.
    pub title: &'static str,
    /// Its settings.
    pub run: Box<dyn Runnable>,
}

/// The run that the command line asks for.
pub struct Asked<'a> {
    /// The run.
    pub run: &'a dyn Runnable,
    /// The run for comparison.
    pub beside: Option<Beside>,
    /// The heading of its column in a comparison.
    pub title: &'static str,
    /// The kind of the rows of the flow: `step` or `layer`.
    pub what: &'static str,
    /// The default cure, if a case is run without a cure.
    pub cure: Option<String>,
}

/// Runs a case with one of its cures, after the same run without the cure. If `fix` is the default value, which means
/// no cure, the case is run alone. `config` makes the settings of both runs; `what` is the kind of the rows of the
/// flow.
///
/// # Errors
/// If the settings do not go together; otherwise as [`show`].
pub fn compare<F, R>(
    fix: F,
    cures: &[F],
    config: impl Fn(F) -> Result<R>,
    what: &'static str,
    common: &Common,
    options: &RunOptions,
) -> Result<()>
where
    F: ValueEnum + Copy + PartialEq + Default,
    R: Runnable + 'static,
{
    let alone = fix == F::default();
    let other = if alone { None } else { Some(config(F::default())?) };
    let asked = Asked {
        run: &config(fix)?,
        beside: other.map(|other| Beside { title: "without the cure", run: Box::new(other) }),
        title: if alone { "as asked" } else { "with the cure" },
        what,
        cure: cures.first().filter(|_| alone).map(|fix| name_of(*fix)),
    };
    show(&asked, common, options)
}

/// Runs the run for comparison, if there is one, then the requested run, and prints the results. Among ranks, the first
/// prints, and all run.
///
/// # Errors
/// As [`Files::open`] and [`run`].
pub fn show(asked: &Asked<'_>, common: &Common, options: &RunOptions) -> Result<()> {
    if options.diagnose {
        let how = Diagnose {
            title: "the run",
            prove: options.prove,
            horizon: None,
            again: "the same command with --prove",
            kept: options.kept(),
            capsule: options.capsule.as_deref(),
        };
        return diagnose(asked.run, &how, common);
    }
    let args = &options.files;
    // The device comes first, so that a run without a device creates no file.
    let place = Place::open(common)?;
    let is_first = common.rank.is_first();
    let files = Files::open(args, options.kept(), is_first)?;
    let watch = if common.quiet || !is_first { Watch::Silent } else { Watch::Bar };
    let tell = |text: String| {
        if is_first {
            say!("{text}");
        }
    };
    let mut beside = None;
    if let Some(other) = asked.beside.as_ref().filter(|_| !common.json && !common.quiet) {
        check(asked.run, common, &place, &files)?;
        tell(format!("First {}, for the comparison:", other.title));
        let run = run(&*other.run, common, &place, &Files::default(), watch)?;
        tell(line(&run));
        if run.interrupted {
            tell("Interrupted before the run itself: nothing is saved".into());
            return Ok(());
        }
        tell("\nNow as asked:".into());
        beside = Some((other.title, run));
    }
    let finished = run(asked.run, common, &place, &files, watch)?;
    // The files are complete here, even if the results cannot be printed.
    drop(files);
    if !is_first {
        return Ok(());
    }
    if common.json {
        json(&finished.report);
        return Ok(());
    }
    if finished.interrupted {
        let steps = finished.report.steps;
        match &args.save {
            Some(path) => say!("Interrupted after {steps} steps and saved: go on with --resume {}", path.display()),
            None => say!("Interrupted after {steps} steps; nothing is saved without --save FILE"),
        }
    }
    say!("{}", line(&finished));
    if !common.quiet {
        tables(asked, beside, &finished);
        Metrics::told(options.kept());
    }
    Ok(())
}

/// Prints the gradients by layer, the remarks, and the verdict.
fn tables(asked: &Asked<'_>, beside: Option<(&'static str, Finished)>, finished: &Finished) {
    let title = if beside.is_some() { asked.title } else { "" };
    let runs: Vec<(&str, &Finished)> =
        beside.iter().map(|(title, run)| (*title, run)).chain([(title, finished)]).collect();
    let columns = |names: fn(&Names) -> &Vec<String>, numbers: fn(&History) -> Vec<f64>| {
        let column = |(title, run): &(&str, &Finished)| Column::new(*title, names(&run.names), numbers(&run.history));
        runs.iter().map(column).collect::<Vec<_>>()
    };
    let flow: fn(&Names) -> &Vec<String> = |names| &names.flow;
    let weights: fn(&Names) -> &Vec<String> = |names| &names.weights;
    let (peak, late) = ("at the step of the largest gradient", "the median over the last tenth of steps");
    let of = asked.what;
    say!("\nMean |dL/dz| per {of}, {peak}:\n{}", table(of, &columns(flow, History::flow_at_peak)));
    say!("Mean |dL/dz| per {of}, {late}:\n{}", table(of, &columns(flow, History::typical_flow)));
    say!("Norm of dL/dW per weight, {peak}:\n{}", table("weight", &columns(weights, History::weights_at_peak)));
    say!("Norm of dL/dW per weight, {late}:\n{}", table("weight", &columns(weights, History::typical_weights)));
    let report = &finished.report;
    match &beside {
        None => say!("flow ratio, first third over last third: {:.1e}", report.flow_ratio),
        Some((other, run)) => {
            let width = other.len().max(title.len());
            say!("{:<width$}  flow ratio  verdict", "");
            for (title, report) in [(*other, &run.report), (title, report)] {
                say!("{title:<width$}  {:>10.1e}  {}", report.flow_ratio, report.verdict);
            }
            say!("(flow ratio: mean |dL/dz| of the first third over that of the last third)");
        }
    }
    finished.remarks.iter().for_each(|remark| say!("{remark}"));
    say!("verdict: {}", report.verdict);
    if let Some(cure) = &asked.cure {
        say!("The cure is one flag away: --fix {cure}");
    }
}

/// The summary of a run in one line.
pub fn line(Finished { report: r, history, seconds, .. }: &Finished) -> String {
    let (recent, _) = history.recent_loss();
    let speed =
        if r.ms_per_step.is_nan() { "no new steps".to_string() } else { format!("{:.2} ms a step", r.ms_per_step) };
    format!(
        "{}: {} {:.3} after {} steps ({seconds:.1} s, {speed}); loss {:.3} at first, {recent:.3} over the last \
         tenth; largest applied norm {:.1e}",
        r.verdict, r.metric_name, r.metric, r.steps, r.loss_first, r.applied_norm_max
    )
}
