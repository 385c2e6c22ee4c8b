//! The files that record a run: metrics, one JSON object a line, and a report.

use super::{Example, Runnable, Seen};
use crate::{Error, Result, say};
use std::{
    io,
    path::{Path, PathBuf},
};
use wgrad_nn::{
    Measurement, Update,
    track::{End, Jsonl, Page, Recorded, Setting, Sink, TensorBoard, Tracker},
};

/// The number of records that may wait to be written.
pub const QUEUE: usize = 4096;
/// The number of steps between measurements that are written.
pub const EVERY: usize = 10;

/// The files that the command line asks for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Kept<'a> {
    /// A file of metrics.
    pub metrics: Option<&'a Path>,
    /// The folder of a report.
    pub report: Option<&'a Path>,
}

/// Writes the records of a run to its files.
#[derive(Debug)]
pub struct Metrics {
    /// The file of metrics, if there is one. A failure to write this file is an error of the run.
    path: Option<PathBuf>,
    /// The folder of the report, if there is one. A failure to write the report is printed, and does not stop the run.
    report: Option<PathBuf>,
    tracker: Tracker,
}

/// The error of a file that cannot be created.
fn failed(path: &Path, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::AlreadyExists => "it exists already: choose another name, or remove it".into(),
        _ => error.to_string(),
    };
    Error::Metrics { path: path.into(), why }
}

impl Metrics {
    /// Creates the files. A run that is resumed (`goes_on`) appends to its file of metrics. `queue` records may wait to
    /// be written. Returns `None` if no file is asked for.
    ///
    /// # Errors
    /// [`Error::Metrics`] if a file cannot be written, or exists already.
    pub fn open(kept: Kept<'_>, goes_on: bool, queue: usize) -> Result<Option<Self>> {
        let mut sinks: Vec<Box<dyn Sink>> = vec![];
        if let Some(path) = kept.metrics {
            let file = if goes_on { Jsonl::append(path) } else { Jsonl::create(path) };
            sinks.push(Box::new(file.map_err(|error| failed(path, &error))?));
        }
        if let Some(folder) = kept.report {
            // The page is created first, so that an existing page stops the command before it writes anything else. Its
            // title is the command.
            let page = folder.join("index.html");
            let asked: Vec<String> = std::env::args().skip(1).collect();
            sinks.push(Box::new(
                Page::create(folder, &format!("wgrad {}", asked.join(" "))).map_err(|error| failed(&page, &error))?,
            ));
            let lines = folder.join("metrics.jsonl");
            sinks.push(Box::new(Jsonl::create(&lines).map_err(|error| failed(&lines, &error))?));
            sinks.push(Box::new(TensorBoard::create(folder).map_err(|error| failed(folder, &error))?));
        }
        let own = |path: Option<&Path>| path.map(Path::to_owned);
        let (path, report) = (own(kept.metrics), own(kept.report));
        Ok((!sinks.is_empty()).then(|| Self { path, report, tracker: Tracker::new(sinks, queue) }))
    }

    /// Records the settings of the run.
    pub fn begin(&mut self, run: &dyn Runnable, example: &dyn Example) {
        let settings = example.settings();
        let text = |name: &str, value: &str| (name.to_string(), Setting::Text(value.into()));
        let number = |name: &str, value: f64| (name.to_string(), Setting::Number(value));
        let asked: Vec<String> = std::env::args().skip(1).collect();
        let mut all = vec![
            text("command", &format!("wgrad {}", asked.join(" "))),
            text("example", settings.example),
            text("case", &settings.case),
            text("fix", &settings.fix),
        ];
        all.extend([number("steps", settings.steps as f64), number("batch", settings.batch as f64)]);
        all.push(number("target", settings.metric.target));
        let identity = example.identity().into_iter().map(|(name, value)| {
            let parsed = value.parse().map_or_else(|_| Setting::Text(value.clone()), Setting::Number);
            (name.to_string(), parsed)
        });
        for (name, setting) in identity.chain(run.parameters()) {
            if !all.iter().any(|(known, _)| *known == name) {
                all.push((name, setting));
            }
        }
        self.tracker.settings(all, settings.metric.name);
        if self.report.is_some() {
            self.recorded(0, Recorded::new(example.program()));
            self.tracker.text(0, "tape", &example.program().to_string());
        }
    }

    /// Records a step.
    pub fn seen(&mut self, step: usize, seen: &Seen<'_>) {
        self.update(step, seen.update);
        if let Some(measured) = seen.measured.filter(|_| step.is_multiple_of(EVERY)) {
            self.measurement(step, measured);
        }
    }

    /// Records the update of a step.
    pub fn update(&mut self, step: usize, update: &Update) {
        self.tracker.update(step, update);
    }

    /// Records the measurement of a step.
    pub fn measurement(&mut self, step: usize, measured: &Measurement) {
        self.tracker.measurement(step, measured);
    }

    /// Records the metric on held-out data after `steps` steps.
    pub fn evaluation(&mut self, steps: usize, name: &str, value: f64) {
        self.tracker.value(steps, name, value);
    }

    /// Records a finding, as text.
    pub fn finding(&mut self, steps: usize, text: &str) {
        self.tracker.text(steps, "finding", text);
    }

    /// Records the settings of a command that has no metric.
    pub fn settings(&mut self, all: Vec<(String, Setting)>) {
        self.tracker.settings(all, "");
    }

    /// Adds a recorded step to the report.
    pub fn recorded(&mut self, steps: usize, recorded: Recorded) {
        if self.report.is_some() {
            self.tracker.tape(steps, recorded);
        }
    }

    /// Records the losses of a replay under its name.
    pub fn replayed(&mut self, name: &str, losses: &[f64]) {
        losses.iter().enumerate().for_each(|(step, loss)| self.tracker.value(step, &format!("proof/{name}"), *loss));
    }

    /// Writes the remaining records, and closes the files.
    ///
    /// # Errors
    /// [`Error::Metrics`] if the file of metrics could not be written completely.
    pub fn finish(self, steps: usize, end: End) -> Result<()> {
        let Self { path, report, mut tracker } = self;
        tracker.end(steps, end);
        let tracked = tracker.finish();
        if tracked.dropped > 0 {
            let of =
                path.iter().chain(&report).map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
            eprintln!("wgrad: {of} lacks {} records, because the disk was too slow", tracked.dropped);
        }
        let mut error = None;
        for failed in tracked.errors {
            match path.as_ref().filter(|path| path.display().to_string() == failed.sink) {
                Some(path) => error = Some(Error::Metrics { path: path.clone(), why: failed.error.to_string() }),
                None => eprintln!("wgrad: the report is not complete: {failed}"),
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Prints the path of the report.
    pub fn told(kept: Kept<'_>) {
        if let Some(folder) = kept.report {
            say!("The report: {}", folder.join("index.html").display());
        }
    }
}
