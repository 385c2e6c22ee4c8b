//! The diagnosis of a run, and the proof of its cure.

use super::{Kept, Metrics, Runnable, Settings, live::Live, measured};
use crate::{
    Result,
    cli::Common,
    device::Place,
    history::{History, Observed},
    interrupt,
    output::json,
    report::{Ending, Identity, Report, Verdict},
    say,
};
use serde::Serialize;
use std::{path::Path, time::Instant};
use wgrad::{Array, Program};
use wgrad_nn::{
    Measurement,
    diagnosis::{Diagnosis, Evidence, Opened, Proof, Setup, Study, Trace},
    track::{End, Recorded},
};

/// The settings of a diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct Diagnose<'a> {
    /// The run's name.
    pub title: &'a str,
    /// True to prove remedies by replay.
    pub prove: bool,
    /// The steps of each replay.
    pub horizon: Option<u32>,
    /// The command that proves the remedy, for the hint to the user.
    pub again: &'a str,
    /// The files that record the run.
    pub kept: Kept<'a>,
    /// The file for the capsule of the step at which the run breaks.
    pub capsule: Option<&'a Path>,
}

/// A number and its normal range as JSON; an unbounded end is null.
#[derive(Serialize)]
struct Shown<'a> {
    what: &'a str,
    value: f64,
    low: f64,
    high: f64,
}

impl<'a> From<&'a Evidence> for Shown<'a> {
    fn from(Evidence { what, value, low, high }: &'a Evidence) -> Self {
        Self { what, value: *value, low: *low, high: *high }
    }
}

/// A diagnosis as JSON.
#[derive(Serialize)]
struct Summary<'a> {
    fault: &'static str,
    place: &'a [String],
    since: usize,
    /// The first remedy, which is the proven one if there is a proof.
    remedy: Option<&'static str>,
    remedies: Vec<&'static str>,
    proven: bool,
    evidence: Vec<Shown<'a>>,
    others: Vec<&'static str>,
    loss_first: f64,
    loss_last: f64,
    metric: f64,
    reached: bool,
    verdict: Verdict,
    steps: usize,
    seconds: f64,
}

/// Runs that take at least this many seconds are replayed only in part.
const LONG: f64 = 15.0;

/// Makes a run, and prints the diagnosis of it.
///
/// # Errors
/// If a run fails, or a file cannot be written.
pub fn diagnose(run: &dyn Runnable, asked: &Diagnose<'_>, common: &Common) -> Result<()> {
    let place = Place::open(common)?;
    let start = Instant::now();
    let example = run.open(common, &place, &Setup::default())?.0;
    let settings = example.settings().clone();
    // The queue has room for all records of the run, because they are written at once: each step's update, measurement
    // and alerts.
    let mut metrics = Metrics::open(asked.kept, false, 8 * (settings.steps + 2))?;
    if let Some(metrics) = &mut metrics {
        metrics.begin(run, &*example);
    }
    let program = example.program().clone();
    drop(example);
    let Settings { steps, batch, metric, .. } = settings;
    let mut live = Live::new(Live::is_wanted(common), steps, 0, batch, metric.name);
    let (mut seen, mut known) = (0, 0);
    let mut study = Study::new(settings.steps, |setup: &Setup| {
        let (example, session) = run.open(common, &place, setup)?;
        Ok::<_, crate::Error>(example.opened(session))
    });
    let mut diagnosis = study.diagnose_watched(&mut |trace| {
        for (at, update) in trace.updates.iter().enumerate().skip(seen) {
            live.update(at, update);
        }
        if let Some((_, last)) = trace.measured.get(known..).and_then(<[_]>::last) {
            live.flow(&layers(last));
        }
        (seen, known) = (trace.updates.len(), trace.measured.len());
        live.show(trace.batches.len());
        !interrupt::requested()
    })?;
    let took = start.elapsed().as_secs_f64();
    if let Some(metrics) = &mut metrics {
        write(metrics, &settings, study.trace().expect("it has been made"));
    }
    if let Some((path, failure)) = asked.capsule.zip(diagnosis.failure.as_ref()) {
        failure.capsule.save(path)?;
    }
    if asked.prove && !interrupt::requested() {
        let part = if took < LONG { settings.steps } else { settings.steps * 4 / 10 };
        let horizon = asked.horizon.map_or(part, |steps| steps as usize);
        study.prove_within(&mut diagnosis, horizon, &mut |remedy, trace| {
            live.replay(remedy, trace.batches.len(), horizon.min(settings.steps));
            !interrupt::requested()
        })?;
    }
    live.clear();
    if let Some(mut metrics) = metrics {
        show(&mut metrics, &diagnosis);
        let recorded = match failing(&diagnosis, &place)? {
            None => {
                let (example, session) = run.open(common, &place, &Setup::default())?;
                Some((0, first(example.opened(session), &program, &place)?))
            }
            found => found,
        };
        recorded.into_iter().for_each(|(update, recorded)| metrics.recorded(update, recorded));
        let stopped = diagnosis.stopped || interrupt::requested();
        let end = if stopped { End::Interrupted } else { End::of(diagnosis.failure.is_none()) };
        metrics.finish(diagnosis.steps, end)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let report = report(&settings, study.trace().expect("it has been made"), &diagnosis);
    if common.json {
        json(&summary(&diagnosis, &report, seconds));
        return Ok(());
    }
    if interrupt::requested() {
        say!(
            "Interrupted after {} steps: the diagnosis covers these steps and the proofs that were complete",
            diagnosis.steps
        );
    }
    if !common.quiet {
        let target = if report.reached { "reached" } else { "missed" };
        say!(
            "{}: {} steps, {} {:.3} on held-out data, {target} the target of {}",
            asked.title,
            report.steps,
            report.metric_name,
            report.metric,
            report.target
        );
    }
    say!("{diagnosis}");
    match (asked.capsule, diagnosis.failure.is_some()) {
        (Some(path), true) => say!("The failing step is saved; replay it with: wgrad replay {}", path.display()),
        (Some(path), false) => say!("All values are finite, so {} is not written", path.display()),
        (None, _) => {}
    }
    let provable =
        diagnosis.findings.first().is_some_and(|finding| finding.remedies.iter().any(|r| !r.edits.is_empty()));
    if !asked.prove && provable && !common.quiet {
        say!("Prove the remedy by replay: {}", asked.again);
    }
    if !common.quiet {
        Metrics::told(asked.kept);
    }
    Ok(())
}

/// Writes the updates, measurements and metric of a run.
fn write(metrics: &mut Metrics, settings: &Settings, trace: &Trace) {
    let mut measured = trace.measured.iter().peekable();
    for (step, update) in trace.updates.iter().enumerate() {
        metrics.update(step, update);
        while let Some((_, of)) = measured.next_if(|(at, _)| *at <= step) {
            metrics.measurement(step, of);
        }
    }
    if let Some(value) = trace.metric {
        metrics.evaluation(trace.updates.len(), settings.metric.name, value);
    }
}

/// Writes the diagnosis, and the losses of its proof.
fn show(metrics: &mut Metrics, diagnosis: &Diagnosis) {
    metrics.finding(diagnosis.steps, &diagnosis.to_string());
    if let Some(Proof { remedy, unfit_name, losses, .. }) =
        diagnosis.findings.first().and_then(|finding| finding.proof.as_ref())
    {
        metrics.replayed(&format!("with {remedy}"), &losses.cured);
        metrics.replayed("with nothing changed", &losses.unchanged);
        metrics.replayed(&format!("with {unfit_name}, which does not fit"), &losses.unfit);
    }
}

/// The step at which the run broke or first spiked, measured again, with the chain of nodes from the cause to the loss.
fn failing(diagnosis: &Diagnosis, place: &Place) -> Result<Option<(usize, Recorded)>> {
    let failed = diagnosis.failure.as_ref().map(|failure| (failure.update, &failure.origin.chain, &failure.capsule));
    let spiked = diagnosis.spike.as_ref().map(|spike| (spike.update, &spike.growth.chain, &spike.capsule));
    let Some((update, chain, capsule)) = failed.or(spiked) else { return Ok(None) };
    let (mut session, step) = capsule.open(place.backend()?)?;
    let why = if failed.is_some() { "breaks" } else { "has its first spike" };
    let moment = format!("at step {update}, where the run {why}");
    let recorded = measured(&mut session, &step, &capsule.inputs(), &moment, place)?;
    Ok(Some((update, recorded.with_chain(chain.iter().map(|place| place.node)))))
}

/// The first step of a run, measured.
fn first(opened: Opened<crate::Error>, program: &Program, place: &Place) -> Result<Recorded> {
    let Opened { mut session, mut batches, .. } = opened;
    let micro = batches()?.swap_remove(0);
    let named: Vec<(&str, &Array)> = micro.iter().map(|(name, array)| (name.as_str(), array)).collect();
    measured(&mut session, program, &named, "before the first step", place)
}

/// The mean |dL/dz| of each layer.
fn layers(measured: &Measurement) -> Vec<f64> {
    let sites = measured.sites.iter().filter(|site| site.path.ends_with("/z") || site.path == "z");
    sites.filter_map(|site| site.flow.as_ref()).map(|flow| flow.mean_abs).collect()
}

/// The report on the run, judged as `wgrad train` judges it.
fn report(settings: &Settings, trace: &Trace, diagnosis: &Diagnosis) -> Report {
    let mut history = History::default();
    let mut measured = trace.measured.iter().peekable();
    let (mut flow, mut applied) = (vec![], 0.0);
    for (step, update) in trace.updates.iter().enumerate() {
        // Between two measurements, the earlier one counts.
        while let Some((_, of)) = measured.next_if(|(at, _)| *at <= step) {
            flow = layers(of);
            applied = of.applied_norm;
        }
        let known = |value: f64| if value.is_finite() { value } else { 0.0 };
        history.push(Observed {
            loss: update.loss,
            grad_norm: known(update.grad_norm),
            applied_norm: if update.taken { known(applied) } else { 0.0 },
            flow: &flow,
            weights: &[],
        });
    }
    let metric = settings.metric;
    let value = diagnosis.metric.unwrap_or(f64::NAN);
    let ending = Ending { metric, value, finite_params: true, ms_per_step: f64::NAN };
    let Settings { example, case, fix, seed, .. } = settings.clone();
    Report::new(Identity { example, case, fix, device: String::new(), seed }, &history, &ending)
}

fn summary<'a>(diagnosis: &'a Diagnosis, report: &Report, seconds: f64) -> Summary<'a> {
    let first = diagnosis.findings.first();
    let mut remedies: Vec<&str> = first.map_or(vec![], |f| f.remedies.iter().map(|remedy| remedy.name).collect());
    remedies.dedup();
    Summary {
        fault: diagnosis.fault(),
        place: first.map_or(&[], |finding| &finding.place),
        since: first.map_or(0, |finding| finding.since),
        remedy: remedies.first().copied(),
        remedies,
        proven: first.is_some_and(|finding| finding.proof.is_some()),
        evidence: first.map_or(vec![], |finding| finding.evidence.iter().map(Shown::from).collect()),
        others: diagnosis.findings.iter().skip(1).map(|finding| finding.rule.fault).collect(),
        loss_first: diagnosis.loss_first,
        loss_last: diagnosis.loss_last,
        metric: report.metric,
        reached: report.reached,
        verdict: report.verdict,
        steps: diagnosis.steps,
        seconds,
    }
}
