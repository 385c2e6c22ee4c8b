//! Training: one recorded step, run until the task is solved, the steps are used up, or somebody stops it.

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
    report::{Ending, Identity, Report},
};
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wgrad::{Session, Severity};
use wgrad_nn::{ClipWatch, MonitorConfig, SaveFile, checkpoint, diagnosis::Setup, track::End};

/// Where a run is saved, and where it goes on from.
#[derive(Default, Debug)]
pub struct Files {
    /// Written when the run ends or is interrupted, and after evaluations: after each, or as often as a tenth of the time
    /// allows.
    pub save: Option<SaveFile>,
    /// Read before the first step.
    pub resume: Option<PathBuf>,
    /// Takes what the run shows.
    pub metrics: RefCell<Option<Metrics>>,
    /// True if updates are measured in full for a report.
    pub is_reported: bool,
}

impl Files {
    /// Takes the file that is to be saved to, so that nothing is trained for one that cannot be written, or that another
    /// run saves to.
    ///
    /// # Errors
    /// As [`SaveFile::open`], [`checkpoint::metadata`] and [`Metrics::open`].
    pub fn open(args: &FileArgs, kept: Kept<'_>) -> Result<Self> {
        let save = args.save.as_ref().map(SaveFile::open).transpose()?;
        if let Some((file, why)) = save.as_ref().and_then(|file| Some((file, file.unlocked()?))) {
            let path = file.path().display();
            eprintln!("wgrad: nothing keeps another run from saving to {path}, which cannot be locked: {why}");
        }
        let resume = args.resume.clone();
        // A run that cannot go on begins no report.
        if let Some(path) = &resume {
            checkpoint::metadata(path)?;
        }
        let metrics = Metrics::open(kept, resume.is_some(), QUEUE)?;
        Ok(Self { save, resume, metrics: RefCell::new(metrics), is_reported: kept.report.is_some() })
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The judgement.
    pub report: Report,
    /// What it is based on.
    pub history: History,
    /// What the numbers of the history stand for.
    pub names: Names,
    /// What the example has to say at the end, where that is shown.
    pub remarks: Vec<String>,
    /// How long it took, without building and evaluation of the model before the first step.
    pub seconds: f64,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// Whether a run shows its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Warnings on standard error, unless the result is JSON; and a progress bar, if that is a terminal.
    Bar,
    /// Nothing.
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
    /// The steps that were made, of which the history has all that have arrived.
    made: usize,
    /// What this process has saved last.
    saved: Option<Saved>,
    /// Time per training step made by this process.
    times: Vec<Duration>,
    /// How often this process has clipped.
    clips: ClipWatch,
    /// Takes what is seen.
    metrics: Option<Metrics>,
    /// Shows it.
    live: Live,
}

/// The entry of a checkpoint for the summary of a history.
const HISTORY: &str = "history";

/// A save.
#[derive(Clone, Copy)]
struct Saved {
    /// After how many steps.
    steps: usize,
    at: Instant,
    took: Duration,
}

/// How many times as long as a save takes at least passes before the next: a history grows, and so does what is saved.
const BETWEEN_SAVES: u32 = 9;

impl Saved {
    /// Whether it is too short a time ago for another one.
    fn is_recent(&self) -> bool {
        self.at.elapsed() < self.took * BETWEEN_SAVES
    }
}

/// Opens and reads all that a run needs, so that nothing is trained for one that cannot start.
///
/// # Errors
/// As [`run`].
pub fn check(asked: &dyn Runnable, common: &Common, place: &Place, files: &Files) -> Result<()> {
    Run::open(asked, common, place, files).map(drop)
}

/// Trains, and judges.
///
/// # Errors
/// If a file cannot be read or written, or the device fails: [`Error::Saved`] where the run can be gone on with.
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
        let mut interrupted = false;
        loop {
            // Before the first step too: a run that goes on from its own end has nothing left to do.
            if self.due() {
                value = self.evaluate()?;
                self.live.metric(value);
                if let Some(file) = files.save.as_ref().filter(|_| self.has_moved() && !self.has_just_saved()) {
                    self.save(file)?;
                }
                if self.settings.metric.reaches(value, self.settings.solved) && self.history.settled() {
                    break;
                }
            }
            // A loss that is not a number has no way back.
            if self.made >= self.settings.steps || self.history.last_loss().is_some_and(|loss| !loss.is_finite()) {
                break;
            }
            if interrupt::requested() && self.made > 0 {
                interrupted = true;
                break;
            }
            self.step()?;
            self.live.show(self.history.len());
        }
        self.live.clear();
        self.arrive()?;
        if self.history.is_empty() {
            let path = files.resume.as_ref().map_or(String::new(), |path| path.display().to_string());
            return Err(Error::Usage(format!("{path} holds no step, and none was asked for")));
        }
        if !self.due() {
            value = self.evaluate()?;
        }
        let is_saved = self.saved.is_some_and(|saved| saved.steps == self.history.len());
        if let Some(file) = files.save.as_ref().filter(|_| !is_saved) {
            self.save(file)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        if let Some(mut metrics) = self.metrics.take() {
            if files.is_reported
                && let Some(recorded) = self.example.measured(&mut self.session, "after the last step")?
            {
                metrics.recorded(self.made, recorded);
            }
            let is_sound = self.history.last_loss().is_none_or(f64::is_finite);
            metrics.finish(self.made, if interrupted { End::Interrupted } else { End::of(is_sound) })?;
        }
        let ending = Ending {
            metric: self.settings.metric,
            value,
            finite_params: self.finite_params()?,
            ms_per_step: self.ms_per_step(),
        };
        let report = Report::new(self.identity(), &self.history, &ending);
        let told = !interrupted && !self.common.json && !self.common.quiet;
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
        let (example, session) = asked.open(common, place, &setup)?;
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
        Ok(run)
    }

    /// Whether the run is at a step after which it is evaluated and saved.
    fn due(&self) -> bool {
        let steps = self.made;
        steps > 0 && (steps.is_multiple_of(self.settings.evaluate_every) || steps == self.settings.steps)
    }

    /// Whether this process has made a step.
    fn has_moved(&self) -> bool {
        !self.times.is_empty()
    }

    /// Whether it has saved so recently that another save would take too much of the time.
    fn has_just_saved(&self) -> bool {
        self.saved.is_some_and(|saved| saved.is_recent())
    }

    /// Makes one step, and takes in what has arrived of those so far.
    fn step(&mut self) -> Result<()> {
        let start = Instant::now();
        self.example.step(&mut self.session)?;
        self.made += 1;
        self.times.push(start.elapsed());
        self.observe()
    }

    /// Takes in what has arrived of the steps. A GPU may be a step or two beyond one whose loss is not a number: they do
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

    // Files.

    fn save(&mut self, file: &SaveFile) -> Result<()> {
        let start = Instant::now();
        let (summary, arrays) = self.history.save();
        let mut metadata = self.example.position();
        let entries = self.example.identity().into_iter().chain([(HISTORY, summary)]);
        metadata.extend(entries.map(|(key, value)| (key.to_string(), value)));
        checkpoint::save_to(file, &mut self.session, &metadata, &arrays)?;
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
