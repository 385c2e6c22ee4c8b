//! Training: runs one recorded step until the task is solved, all steps are made, or the user interrupts it.

use super::{
    Example, Kept, Metrics, Names, Runnable, Settings,
    live::Live,
    metrics::{EVERY, QUEUE},
};
use crate::{
    Error, Result,
    cli::{Common, FileArgs},
    device::Place,
    history::History,
    interrupt,
    ranks::own_streams,
    report::{Ending, Identity, Report},
};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wgrad::{Array, Session, Severity};
use wgrad_nn::{ClipWatch, MonitorConfig, SaveFile, checkpoint, diagnosis::Setup, track::End};

/// The files of a run: checkpoints, metrics and report.
#[derive(Default, Debug)]
pub struct Files {
    /// The checkpoint to write when the run ends or is interrupted, and after evaluations, as often as a tenth of the
    /// time allows.
    pub save: Option<SaveFile>,
    /// True if another rank writes a checkpoint.
    pub elsewhere: bool,
    /// The checkpoint to read before the first step.
    pub resume: Option<PathBuf>,
    /// The writer of the run's records.
    pub metrics: RefCell<Option<Metrics>>,
    /// True if updates are measured in full for a report.
    pub is_reported: bool,
}

impl Files {
    /// Opens the files before the training, so that no run trains in vain for a file that cannot be written, or that
    /// another run saves to. Among ranks, only the first `writes`; all read the checkpoint.
    ///
    /// # Errors
    /// As [`SaveFile::open`], [`checkpoint::metadata`] and [`Metrics::open`].
    pub fn open(args: &FileArgs, kept: Kept<'_>, writes: bool) -> Result<Self> {
        let save = args.save.as_ref().filter(|_| writes).map(SaveFile::open).transpose()?;
        if let Some((file, why)) = save.as_ref().and_then(|file| Some((file, file.unlocked()?))) {
            let path = file.path().display();
            eprintln!("wgrad: {path} cannot be locked ({why}), so another run could save to the same file");
        }
        let resume = args.resume.clone();
        // The checkpoint is checked first, so that a run that cannot resume begins no report.
        if let Some(path) = &resume {
            checkpoint::metadata(path)?;
        }
        let metrics = if writes { Metrics::open(kept, resume.is_some(), QUEUE)? } else { None };
        let (elsewhere, is_reported) = (args.save.is_some() && !writes, kept.report.is_some());
        Ok(Self { save, elsewhere, resume, metrics: RefCell::new(metrics), is_reported })
    }

    /// True if some rank writes a checkpoint.
    fn saves(&self) -> bool {
        self.save.is_some() || self.elsewhere
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The report with the verdict.
    pub report: Report,
    /// The history that the report is based on.
    pub history: History,
    /// The names of the numbers in the history.
    pub names: Names,
    /// The example's remarks at the end, if they are printed.
    pub remarks: Vec<String>,
    /// The duration in seconds, from the first step on: building the model is not included.
    pub seconds: f64,
    /// True if Ctrl-C ended the run.
    pub interrupted: bool,
}

/// The output of a run while it trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Warnings on standard error, unless the result is JSON; and a progress bar, if standard error is a terminal.
    Bar,
    /// No output.
    Silent,
}

/// A run in progress.
struct Run<'a> {
    common: &'a Common,
    asked: &'a dyn Runnable,
    example: Box<dyn Example>,
    settings: Settings,
    session: Session,
    history: History,
    /// The number of steps that were started. The history has the steps whose taps have arrived.
    made: usize,
    /// The last save of this process.
    saved: Option<Saved>,
    /// The time of each training step of this process.
    times: Vec<Duration>,
    /// Counts the clipped updates of this process, for a lint at the end.
    clips: ClipWatch,
    /// The writer of the run's records.
    metrics: Option<Metrics>,
    /// The live display.
    live: Live,
}

/// The entry of a checkpoint for the summary of a history.
const HISTORY: &str = "history";

/// A save.
#[derive(Clone, Copy)]
struct Saved {
    /// The number of steps in the checkpoint.
    steps: usize,
    at: Instant,
    took: Duration,
}

/// The time between two saves is at least this many times the duration of a save. Saves take longer as the history
/// grows.
const BETWEEN_SAVES: u32 = 9;

impl Saved {
    /// True if it is too early for another save.
    fn is_recent(&self) -> bool {
        self.at.elapsed() < self.took * BETWEEN_SAVES
    }
}

/// Opens and reads everything that a run needs, so that no comparison is trained for a run that cannot start.
///
/// # Errors
/// As [`run`].
pub fn check(asked: &dyn Runnable, common: &Common, place: &Place, files: &Files) -> Result<()> {
    Run::open(asked, common, place, files).map(drop)
}

/// Trains the model, and judges the run.
///
/// # Errors
/// If a file cannot be read or written, or the device fails. The error is [`Error::Saved`] if the run can be resumed
/// from a save.
pub fn run(asked: &dyn Runnable, common: &Common, place: &Place, files: &Files, watch: Watch) -> Result<Finished> {
    let mut run = Run::open(asked, common, place, files)?;
    let finished = run.finish(files, watch);
    finished.map_err(|error| match (run.saved, &files.save) {
        (Some(Saved { steps, .. }), Some(file)) => {
            Error::Saved { source: Box::new(error), steps, path: file.path().into() }
        }
        _ => error,
    })
}

impl<'a> Run<'a> {
    /// Trains to the end.
    fn finish(&mut self, files: &Files, watch: Watch) -> Result<Finished> {
        self.metrics = files.metrics.take();
        if let Some(metrics) = &mut self.metrics {
            metrics.begin(self.asked, &*self.example);
        }
        let warns = watch == Watch::Bar && !self.common.json;
        if warns {
            let lints = self.example.lints();
            lints.iter().filter(|lint| lint.severity == Severity::Warning).for_each(|lint| eprintln!("{lint}"));
        }
        let Settings { steps, batch, metric, .. } = self.settings;
        self.live =
            Live::new(watch == Watch::Bar && Live::is_wanted(self.common), steps, self.made, batch, metric.name);
        let start = Instant::now();
        let mut value = f64::NAN;
        let mut stopped = false;
        loop {
            // The evaluation also comes before the first step, because a run that resumes at its end has nothing left
            // to do.
            if self.due() {
                value = self.evaluate()?;
                self.live.metric(value);
                if files.saves() && self.has_moved() && self.saves_now()? {
                    self.save(files)?;
                }
                if self.settings.metric.reaches(value, self.settings.solved) && self.history.settled() {
                    break;
                }
            }
            if self.made >= self.settings.steps {
                break;
            }
            // A run does not recover from a non-finite loss. Ranks learn of it, and of Ctrl-C, at different moments, and
            // stop together.
            if !self.is_sound() || (interrupt::requested() && self.made > 0) {
                self.session.ask_to_stop();
            }
            if self.session.asked_to_stop() {
                stopped = true;
                break;
            }
            self.step()?;
            self.live.show(self.history.len());
        }
        self.live.clear();
        self.arrive()?;
        let interrupted = stopped && self.is_sound();
        if self.history.is_empty() {
            let path = files.resume.as_ref().map_or(String::new(), |path| path.display().to_string());
            return Err(Error::Usage(format!("{path} holds no steps, and this command asks for none")));
        }
        if !self.due() {
            value = self.evaluate()?;
        }
        let has_saved = self.saved.is_some_and(|saved| saved.steps == self.history.len());
        if files.saves() && !has_saved {
            self.save(files)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        if let Some(mut metrics) = self.metrics.take() {
            if files.is_reported
                && let Some(recorded) = self.example.measured(&mut self.session, "after the last step")?
            {
                metrics.recorded(self.made, recorded);
            }
            metrics.finish(self.made, if interrupted { End::Interrupted } else { End::of(self.is_sound()) })?;
        }
        if self.session.ranks() > 1 {
            // The others wait here until the first rank has saved, so that its failure is theirs too.
            self.session.check_replicas()?;
        }
        let ending = Ending {
            metric: self.settings.metric,
            value,
            finite_params: self.finite_params()?,
            ms_per_step: self.ms_per_step(),
        };
        let report = Report::new(self.identity(), &self.history, &ending);
        let told = !interrupted && !self.common.json && !self.common.quiet && self.common.rank.is_first();
        let remarks = if told { self.example.remarks(&mut self.session)? } else { vec![] };
        if let Some(lint) = self.clips.lint().filter(|_| warns) {
            eprintln!("{lint}");
        }
        let (history, names) = (std::mem::take(&mut self.history), self.example.names().clone());
        Ok(Finished { report, names, remarks, history, seconds, interrupted })
    }

    fn open(asked: &'a dyn Runnable, common: &'a Common, place: &Place, files: &Files) -> Result<Self> {
        let full = MonitorConfig { every: EVERY, histograms: true, ..MonitorConfig::default() };
        let setup = Setup { monitor: files.is_reported.then_some(full), ..Setup::default() };
        let (mut example, session) = asked.open(common, place, &setup)?;
        let share = common.rank.share();
        example.join(share)?;
        let session = common.rank.join(session);
        let settings = example.settings().clone();
        let mut run = Self {
            common,
            asked,
            example,
            settings,
            session,
            history: History::default(),
            made: 0,
            saved: None,
            times: vec![],
            clips: ClipWatch::default(),
            metrics: None,
            live: Live::new(false, 0, 0, 1, ""),
        };
        if let Some(path) = &files.resume {
            run.resume(path)?;
        }
        own_streams(&mut run.session, share)?;
        Ok(run)
    }

    /// True if the run is evaluated and saved after the current step.
    fn due(&self) -> bool {
        let steps = self.made;
        steps > 0 && (steps.is_multiple_of(self.settings.evaluate_every) || steps == self.settings.steps)
    }

    /// True if the last loss is finite.
    fn is_sound(&self) -> bool {
        self.history.last_loss().is_none_or(f64::is_finite)
    }

    /// True if this process has made a step.
    fn has_moved(&self) -> bool {
        !self.times.is_empty()
    }

    /// True unless the last save was so recent that another one would take too much of the time. Ranks that share states
    /// out save together, when the first says so.
    fn saves_now(&mut self) -> Result<bool> {
        let own = self.saved.is_none_or(|saved| !saved.is_recent());
        if !self.shares_out() {
            return Ok(own);
        }
        let first = Array::new([], vec![own && self.common.rank.is_first()]);
        self.session.run_cached("save now", &[("first", &first)], |t| {
            t.tap("all", t.input_like("first", &first).any_over_ranks());
        })?;
        self.session.wait()?;
        let taps = self.session.taps()?;
        Ok(taps.last().and_then(|taps| taps.get("all")).expect("tapped by the run").item(0) != 0.0)
    }

    /// True if the ranks share states out.
    fn shares_out(&self) -> bool {
        self.session.layout().states().any(|(_, decl)| decl.share.is_some())
    }

    /// Makes one step, and observes the steps that have arrived.
    fn step(&mut self) -> Result<()> {
        let start = Instant::now();
        self.example.step(&mut self.session)?;
        self.made += 1;
        self.times.push(start.elapsed());
        self.observe()
    }

    /// Observes the steps that have arrived. A GPU may be a step or two past the first non-finite loss; these steps do
    /// not count.
    fn observe(&mut self) -> Result<()> {
        for taps in self.session.taps()? {
            self.clips.observe(&taps);
            let (history, metrics, live) = (&mut self.history, &mut self.metrics, &mut self.live);
            self.example.observe(&taps, &mut |seen| {
                if history.last_loss().is_none_or(f64::is_finite) {
                    if let Some(metrics) = metrics {
                        metrics.seen(history.len(), &seen);
                    }
                    live.update(history.len(), seen.update);
                    live.flow(seen.observed.flow);
                    history.push(seen.observed);
                }
            });
        }
        Ok(())
    }

    /// Waits for all steps so far.
    fn arrive(&mut self) -> Result<()> {
        self.session.wait()?;
        self.observe()
    }

    /// The metric on held-out data.
    fn evaluate(&mut self) -> Result<f64> {
        self.arrive()?;
        let value = self.example.evaluate(&mut self.session)?;
        if let Some(metrics) = &mut self.metrics {
            metrics.evaluation(self.made, self.settings.metric.name, value);
        }
        Ok(value)
    }

    fn finite_params(&mut self) -> Result<bool> {
        let layout = self.session.layout().clone();
        for (arena, _) in layout.states().filter(|(id, _)| layout.is_arena(*id)) {
            if self.session.read(arena)?.to_f64().iter().any(|v| !v.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn ms_per_step(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }

    fn identity(&self) -> Identity {
        Identity {
            example: self.settings.example,
            case: self.settings.case.clone(),
            fix: self.settings.fix.clone(),
            device: self.session.device(),
            seed: self.settings.seed,
        }
    }

    // Saving and resuming.

    /// Saves, or gives the rank that does so this rank's part.
    fn save(&mut self, files: &Files) -> Result<()> {
        let start = Instant::now();
        match &files.save {
            None => checkpoint::take_part(&mut self.session)?,
            Some(file) => {
                let (summary, arrays) = self.history.save();
                let mut metadata = self.example.position();
                let entries = self.example.identity().into_iter().chain([(HISTORY, summary)]);
                metadata.extend(entries.map(|(key, value)| (key.to_string(), value)));
                checkpoint::save_to(file, &mut self.session, &metadata, &arrays)?;
            }
        }
        self.saved = Some(Saved { steps: self.history.len(), at: Instant::now(), took: start.elapsed() });
        Ok(())
    }

    fn resume(&mut self, path: &Path) -> Result<()> {
        let (metadata, arrays) = checkpoint::load_with_arrays(&mut self.session, path)?;
        let entry = |key: &str| metadata.get(key).cloned().unwrap_or_default();
        for (what, wanted) in self.example.identity() {
            let saved = entry(what);
            if saved != wanted {
                return Err(Error::OtherRun { path: path.display().to_string(), what, saved, wanted });
            }
        }
        let Names { flow, weights } = self.example.names();
        let history = History::restore(&entry(HISTORY), &arrays, flow.len(), weights.len());
        self.history = history.map_err(|why| Error::History { path: path.into(), why })?;
        self.made = self.history.len();
        self.example.resume(&metadata, self.made)
    }
}
