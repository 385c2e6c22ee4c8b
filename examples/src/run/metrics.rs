//! The file of a run's metrics, one JSON object a line.

use super::Seen;
use crate::{Error, Result};
use std::{
    io,
    path::{Path, PathBuf},
};
use wgrad_nn::{
    Measurement, Update,
    track::{Jsonl, Tracker},
};

/// Records that may wait to be written while a run goes on.
pub const QUEUE: usize = 4096;
/// Steps from one measurement that is written to the next.
const EVERY: usize = 10;

/// Takes what a run shows to a file.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    tracker: Tracker,
}

impl Metrics {
    /// A new file; or, of a run that goes on from another's end, one that may be there. So many records may wait to be written.
    ///
    /// # Errors
    /// [`Error::Metrics`] if it cannot be written, or is there already.
    pub fn open(path: &Path, goes_on: bool, queue: usize) -> Result<Self> {
        let file = if goes_on { Jsonl::append(path) } else { Jsonl::create(path) };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => "it is there already: name another file, or remove it".into(),
            _ => error.to_string(),
        };
        let file = file.map_err(|error| Error::Metrics { path: path.into(), why: failed(error) })?;
        Ok(Self { path: path.into(), tracker: Tracker::new(vec![Box::new(file)], queue) })
    }

    /// Takes a step.
    pub fn seen(&mut self, step: usize, seen: &Seen<'_>) {
        self.update(step, seen.update);
        if let Some(measured) = seen.measured.filter(|_| step.is_multiple_of(EVERY)) {
            self.measurement(step, measured);
        }
    }

    /// Takes what a step did.
    pub fn update(&mut self, step: usize, update: &Update) {
        self.tracker.update(step, update);
    }

    /// Takes what a step looked like from within.
    pub fn measurement(&mut self, step: usize, measured: &Measurement) {
        self.tracker.measurement(step, measured);
    }

    /// Takes the metric on held-out data after so many steps.
    pub fn evaluation(&mut self, steps: usize, name: &str, value: f64) {
        self.tracker.value(steps, name, value);
    }

    /// Brings all of it to the file.
    ///
    /// # Errors
    /// [`Error::Metrics`] if it could not be written to its end.
    pub fn finish(self) -> Result<()> {
        let Self { path, tracker } = self;
        let tracked = tracker.finish();
        if tracked.dropped > 0 {
            eprintln!("wgrad: {} lacks {} records, for which there was no time", path.display(), tracked.dropped);
        }
        match tracked.errors.first() {
            Some(failed) => Err(Error::Metrics { path, why: failed.error.to_string() }),
            None => Ok(()),
        }
    }
}
