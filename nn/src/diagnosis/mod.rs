//! Diagnosis: the faults of a training run, with their places, the updates that first show them, and proven remedies.
//!
//! A [`Study`] makes a run from its start several times. The first time, it runs unchanged, with a monitor, and the
//! [`rules`] look for faults. Then it runs once with each remedy of the first fault, on the same batches, until one is
//! proven to cure. The user gives the run as a closure that declares the store and the trainer, and opens a session.
//! The closure must apply its [`Setup`] to the trainer's configuration.
//!
//! ```
//! use wgrad::{Array, Session, Store};
//! use wgrad_cpu::CpuBackend;
//! use wgrad_nn::{Builder, Mlp, MlpConfig, Trainer, TrainerConfig, optim::{Sgd, SgdConfig}};
//! use wgrad_nn::{data::{Digits, Task}, diagnosis::{Opened, Study}};
//!
//! # fn main() -> Result<(), wgrad_nn::Error> {
//! let mut study = Study::new(60, |setup| {
//!     let mut store = Store::new();
//!     let config = MlpConfig { inputs: 64, width: 16, outputs: 10, ..MlpConfig::default() };
//!     let model = Mlp::new(Builder::new(&mut store, 0), &config);
//!     let params = store.params();
//!     let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 300.0.into(), ..Default::default() });
//!     let trainer = Trainer::new(&mut store, &params, sgd, setup.of(TrainerConfig::default()), move |batch| {
//!         model.forward(batch.get("x").squeeze(2).transpose(), true).cross_entropy(batch.get("y")).into()
//!     });
//!     let session = Session::new(Box::new(CpuBackend::new(1)?), store)?;
//!     let (digits, mut step) = (Digits::embedded(0), 0);
//!     let batches = move || {
//!         let batch = digits.train(32, step);
//!         step += 1;
//!         Ok(vec![batch.into_iter().collect()])
//!     };
//!     Ok::<_, wgrad_nn::Error>(Opened { trainer, session, batches: Box::new(batches), judge: None })
//! });
//! let mut diagnosis = study.diagnose()?;
//! study.prove(&mut diagnosis)?;
//! println!("{diagnosis}");
//! assert_eq!(diagnosis.fault(), "rate-too-high");
//! # Ok(())
//! # }
//! ```

mod forecast;
mod lr_finder;
mod proof;
mod reading;
pub mod rules;
mod shown;
mod signs;
mod study;

pub use forecast::{Forecast, Sign, Warning};
pub use lr_finder::{LrFinder, LrPoint, LrRange};
pub use proof::{Losses, Outcome, Proof};
pub use rules::{Evidence, Remedy, Rule};
pub use study::{BatchMeasure, Batches, Judge, MicroBatch, Opened, Setup, Study, Trace};

use crate::train::{Failure, Spike};
use signs::Signs;

/// A fault of a run.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule that found the fault, with the fault's name.
    pub rule: &'static Rule,
    /// Paths of parameters or sites, or source lines.
    pub place: Vec<String>,
    /// The first update at which the fault shows, counted from 0.
    pub since: usize,
    /// The numbers that indicate the fault.
    pub evidence: Vec<Evidence>,
    /// The remedies: a proven one first, the others in the order of the rule.
    pub remedies: Vec<Remedy>,
    /// The replays that prove the first remedy; `None` if nothing is proven.
    pub proof: Option<Proof>,
    /// If nothing is proven: the remedies that were tried, each with the outcome of its replay.
    pub tried: Vec<(&'static str, Outcome)>,
}

/// The findings of a run.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The findings, the weightiest first.
    pub findings: Vec<Finding>,
    /// The first loss.
    pub loss_first: f64,
    /// The median loss over the last tenth of updates.
    pub loss_last: f64,
    /// The metric on held-out data, if the run has a judge.
    pub metric: Option<f64>,
    /// The number of updates made.
    pub steps: usize,
    /// True if the run was stopped before its end.
    pub stopped: bool,
    /// The warnings that appeared before the run broke.
    pub warnings: Vec<Warning>,
    /// The place where the run broke, if its last loss is non-finite.
    pub failure: Option<Failure>,
    /// The place where values grew at the first spike of the loss.
    pub spike: Option<Spike>,
}

/// The name that stands for the fault of a run without findings.
pub const HEALTHY: &str = "healthy";

impl Diagnosis {
    /// The diagnosis of a run that was to make `steps` updates.
    pub fn of(trace: &Trace, steps: usize) -> Self {
        let signs = Signs::new(trace, steps);
        let find = |rule: &'static Rule| {
            let rules::Found { place, since, evidence, remedies } = (rule.find)(&signs)?;
            Some(Finding { rule, place, since, evidence, remedies, proof: None, tried: vec![] })
        };
        Self {
            findings: rules::RULES.iter().filter_map(find).collect(),
            loss_first: signs.first_loss(),
            loss_last: signs.last_loss(),
            metric: trace.metric,
            steps: trace.updates.len(),
            stopped: trace.stopped,
            warnings: trace.warnings(),
            failure: trace.failure.clone(),
            spike: trace.spike.clone(),
        }
    }

    /// The weightiest fault, or [`HEALTHY`].
    pub fn fault(&self) -> &'static str {
        self.findings.first().map_or(HEALTHY, |finding| finding.rule.fault)
    }
}
