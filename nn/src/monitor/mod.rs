//! Measurements within a training step: its gradients, parameter by parameter, and its activations, site by site;
//! measured on the device, as nodes of the step itself.
//!
//! ```
//! use wgrad::{Array, DType, Session, Store};
//! use wgrad_cpu::CpuBackend;
//! use wgrad_nn::{Builder, Mlp, MlpConfig, MonitorConfig, Trainer, TrainerConfig, optim::{Sgd, SgdConfig}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut store = Store::new();
//! let config = MlpConfig { inputs: 3, outputs: 2, ..MlpConfig::default() };
//! let model = Mlp::new(Builder::new(&mut store, 0), &config);
//! let params = store.params();
//! let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
//! let config = TrainerConfig { monitor: Some(MonitorConfig { every: 2, ..MonitorConfig::default() }), ..Default::default() };
//! let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
//!     model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
//! });
//! let mut session = Session::new(Box::new(CpuBackend::new(1)?), store)?;
//! let (x, y) = (Array::new([4, 3], vec![0.5f32; 12]), Array::zeros([4], DType::U32));
//! for _ in 0..5 {
//!     trainer.step(&mut session, &[("x", &x), ("y", &y)])?;
//! }
//! session.wait()?;
//! let measured = trainer.measurements(&session.taps()?);
//! assert_eq!(measured.len(), 3); // the first update, the third and the fifth
//! for param in &measured[0].params {
//!     println!("{}: gradient {:.1e}, update over parameter {:.1e}", param.path, param.grad.norm, param.grad.update_ratio());
//! }
//! let sites: Vec<&str> = measured[0].sites.iter().map(|site| &*site.path).collect();
//! assert_eq!(sites, ["inputs/x", "layer[0]/z", "logits"]);
//! # Ok(())
//! # }
//! ```

pub mod probe;

mod compare;
mod loss_watch;
mod measure;
mod parts;
mod record;
mod update;
mod watch;

pub use compare::{Change, Comparison, RunHistory, compare, suggest_max_norm};
pub use loss_watch::{LossAlert, LossWatch};
pub(crate) use measure::Reader;
pub use measure::{
    FlowMeasure, GradMeasure, Histogram, Measurement, ParamMeasure, ScoreMeasure, SiteMeasure, UnitMeasure,
    ValueMeasure,
};
pub use parts::{Balance, Boundary, Category};
pub(crate) use record::Recorder;
pub use update::{Profile, Update};
pub use watch::ClipWatch;

use wgrad::ParamSet;

/// The choice of measurements, and their interval.
#[derive(Clone, PartialEq, Debug)]
pub struct MonitorConfig {
    /// The interval between measured updates, at least 1. The first update is measured.
    pub every: usize,
    /// Parameters that are measured together too, by name.
    pub groups: Vec<(String, ParamSet)>,
    /// True if each parameter's gradient is counted by magnitude and sign: see [`Histogram`].
    pub histograms: bool,
    /// The detail of an update's measurements.
    pub detail: Detail,
}

/// The detail of an update's measurements.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Detail {
    /// Everything.
    #[default]
    Full,
    /// Only the gradient that reaches the input of each activation, the sites named `z`. A gradient that vanishes or
    /// explodes on its way back shows there, but not in the gradients of weights.
    Flow,
}

impl Default for MonitorConfig {
    /// Every tenth update, in full but for groups and histograms.
    fn default() -> Self {
        Self { every: 10, groups: vec![], histograms: false, detail: Detail::Full }
    }
}

/// The number of measures of a gradient. Each is tapped as a vector over parameters, one vector after another.
const GRADIENT: usize = 7;

/// The number of measures of a tensor at a site.
const VALUES: usize = 4;
/// The number of further measures of an activation's input.
const UNITS: usize = 4;

/// The number of measures of the gradient at a site. The mean of each time step may follow them.
const FLOW: usize = 4;
