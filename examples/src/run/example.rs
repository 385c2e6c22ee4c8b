//! The interface between an example and a run.

use crate::{Error, Result, cli::Common, device::Place, history::Observed, ranks::Share, report::Metric};
use wgrad::{Lint, Program, Session, Taps};
use wgrad_nn::{
    Measurement, Update,
    checkpoint::Metadata,
    diagnosis::{Opened, Setup},
    track::{Recorded, Setting},
};

/// The length of a run, and its metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The example.
    pub example: &'static str,
    /// The case.
    pub case: String,
    /// The cure.
    pub fix: String,
    /// The number of samples per step.
    pub batch: usize,
    /// The most training steps.
    pub steps: usize,
    /// The number of steps between evaluations on held-out data, and between saves.
    pub evaluate_every: usize,
    /// The metric, with its target.
    pub metric: Metric,
    /// The value of the metric at which the task counts as solved, and the run ends. With NaN, the task never counts as
    /// solved.
    pub solved: f64,
    /// The seed of parameters and data.
    pub seed: u64,
}

/// The names of the numbers in a history.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// The layers or time steps, first to last.
    pub flow: Vec<String>,
    /// The weights, in the order of their declaration.
    pub weights: Vec<String>,
}

/// A run's settings, from which it can be opened any number of times.
pub trait Runnable {
    /// Declares the model and the data, and moves them to a device. `setup` changes the trainer's configuration; the
    /// default setup measures the numbers that a run prints.
    ///
    /// # Errors
    /// If data cannot be read, or the device fails.
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)>;

    /// The run's own settings that [`Settings`] does not have.
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
    /// The settings of the run.
    fn settings(&self) -> &Settings;

    /// The names of the numbers in the history.
    fn names(&self) -> &Names;

    /// The settings that a resumed run must share with the saved run, beyond the names and shapes of the tensors.
    fn identity(&self) -> Vec<(&'static str, String)>;

    /// Takes this share of each batch from now on. The steps are then those of a session of as many ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are more ranks than rows.
    fn join(&mut self, share: Share) -> Result<()>;

    /// Makes one training step.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&mut self, session: &mut Session) -> Result<()>;

    /// Calls `tell` for each step whose end is among these taps, oldest first.
    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Seen<'_>));

    /// The metric on held-out data. The caller has observed all steps before.
    ///
    /// # Errors
    /// If the device fails.
    fn evaluate(&mut self, session: &mut Session) -> Result<f64>;

    /// The parts of the run for a diagnosis, which makes the steps itself.
    fn opened(self: Box<Self>, session: Session) -> Opened<Error>;

    /// The recorded step.
    fn program(&self) -> &Program;

    /// The recorded step, measured on the last batch with the current states, which stay unchanged. `None` before the
    /// first step.
    ///
    /// # Errors
    /// If the device fails.
    fn measured(&self, session: &mut Session, moment: &str) -> Result<Option<Recorded>>;

    /// The lints of the recorded step.
    fn lints(&self) -> Vec<Lint>;

    /// The position in the data, which a checkpoint keeps besides states and history.
    fn position(&self) -> Metadata {
        Metadata::new()
    }

    /// Continues after `steps` steps, from the position that [`Example::position`] returned.
    ///
    /// # Errors
    /// If the position is invalid.
    fn resume(&mut self, metadata: &Metadata, steps: usize) -> Result<()>;

    /// Lines to print at the end of a run.
    ///
    /// # Errors
    /// If the device fails.
    fn remarks(&mut self, _session: &mut Session) -> Result<Vec<String>> {
        Ok(vec![])
    }
}
