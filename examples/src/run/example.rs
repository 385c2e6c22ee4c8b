//! What an example is to a run.

use crate::{Error, Result, cli::Common, device::Place, history::Observed, report::Metric};
use wgrad::{Lint, Program, Session, Taps};
use wgrad_nn::{
    Measurement, Update,
    checkpoint::Metadata,
    diagnosis::{Opened, Setup},
    track::{Recorded, Setting},
};

/// How long a run is, and what it is judged by.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The example.
    pub example: &'static str,
    /// The case.
    pub case: String,
    /// The cure.
    pub fix: String,
    /// Samples per step.
    pub batch: usize,
    /// The most training steps.
    pub steps: usize,
    /// Steps between evaluations on held-out data; also between saves.
    pub evaluate_every: usize,
    /// The metric, with its target.
    pub metric: Metric,
    /// A value of the metric at which the task counts as solved, and the run ends; NaN: it never does.
    pub solved: f64,
    /// Decides parameters and data.
    pub seed: u64,
}

/// What the numbers of a history stand for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// Layers or time steps, first to last.
    pub flow: Vec<String>,
    /// Weights, in the order of declaration.
    pub weights: Vec<String>,
}

/// A run's settings, from which it can be opened any number of times.
pub trait Runnable {
    /// Declares model and data, and moves them to a device. What `setup` says goes into the trainer's configuration; the default
    /// measures what a run prints.
    ///
    /// # Errors
    /// If data cannot be read, or the device fails.
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)>;

    /// Its own settings, where [`Settings`] does not have them.
    fn parameters(&self) -> Vec<(String, Setting)> {
        vec![]
    }
}

/// The observations of one step.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The numbers that the history keeps.
    pub observed: Observed<'a>,
    /// The update.
    pub update: &'a Update,
    /// The measurement, if there is one.
    pub measured: Option<&'a Measurement>,
}

/// A model with its data and everything that trains it.
pub trait Example {
    /// What the run is.
    fn settings(&self) -> &Settings;

    /// What the numbers of the history stand for.
    fn names(&self) -> &Names;

    /// What a run that goes on from a file has in common with the one that wrote it, where the tensors do not tell.
    fn identity(&self) -> Vec<(&'static str, String)>;

    /// Makes one training step.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&mut self, session: &mut Session) -> Result<()>;

    /// Tells of the steps among these runs, oldest first.
    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Seen<'_>));

    /// The metric on held-out data. All steps have arrived before.
    ///
    /// # Errors
    /// If the device fails.
    fn evaluate(&mut self, session: &mut Session) -> Result<f64>;

    /// The run for a diagnosis, which makes its steps by itself.
    fn opened(self: Box<Self>, session: Session) -> Opened<Error>;

    /// The recorded step.
    fn program(&self) -> &Program;

    /// The recorded step, measured on the last batch with the states as they are, which stay so. `None` before the first step.
    ///
    /// # Errors
    /// If the device fails.
    fn measured(&self, session: &mut Session, moment: &str) -> Result<Option<Recorded>>;

    /// What is doubtful about the recorded step.
    fn lints(&self) -> Vec<Lint>;

    /// Where the data is: what a checkpoint keeps besides states and history.
    fn position(&self) -> Metadata {
        Metadata::new()
    }

    /// Goes on after so many steps, with what [`Example::position`] has kept.
    ///
    /// # Errors
    /// If the position is none.
    fn resume(&mut self, metadata: &Metadata, steps: usize) -> Result<()>;

    /// Lines to show after a run that has ended.
    ///
    /// # Errors
    /// If the device fails.
    fn remarks(&mut self, _session: &mut Session) -> Result<Vec<String>> {
        Ok(vec![])
    }
}
