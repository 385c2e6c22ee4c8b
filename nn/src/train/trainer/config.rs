//! The settings of a trainer.

use crate::{monitor::MonitorConfig, optim::Sam, train::Edit};
use wgrad::{DynamicScale, Noise, ParamSet, Weighting};

/// The precision of contractions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Matrix products and convolutions in f16, everything else in f32, parameters and optimizer state too: see
    /// [`wgrad::Tape::autocast`].
    F16,
}

/// The factor of the loss.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum LossScale {
    /// A dynamic scale for f16, none otherwise.
    #[default]
    Auto,
    /// None.
    None,
    /// A constant.
    Fixed(f64),
    /// A scale that adapts itself, with these settings.
    Dynamic(DynamicScale),
}

/// A [`super::Trainer`]'s passes and options. The default has no passes; it only skips non-finite steps.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainerConfig {
    /// The prefix of its states' and taps' names; each trainer of a store needs its own.
    pub name: String,
    /// The number of micro-batches that make an update; at least 1.
    pub accumulate: usize,
    /// The weighting of micro-batches. To weight by tokens, the loss must give their number:
    /// [`super::Loss::over_tokens`].
    pub weighting: Weighting,
    /// The precision of contractions.
    pub precision: Precision,
    /// The factor of the loss.
    pub loss_scale: LossScale,
    /// The climb after which the gradient of each micro-batch is taken: sharpness-aware minimisation, for twice the
    /// work. The loss is recorded twice; updates report its value before the climb.
    pub sam: Option<Sam>,
    /// The factors of some parameters' gradients, before any other pass.
    pub scale_grad: Vec<(ParamSet, f64)>,
    /// Noise added to the gradient, drawn from `seed`.
    pub noise: Option<Noise>,
    /// True if the gradient of each weight loses its mean, row by row: see [`wgrad::Centralize`].
    pub centralize: bool,
    /// The factor of adaptive clipping, unit by unit; 0.01 is the paper's.
    pub agc: Option<f64>,
    /// The output layer, which adaptive clipping and centralization leave alone.
    pub head: ParamSet,
    /// The bound on the norm of all gradients together.
    pub clip_norm: Option<f64>,
    /// The bound on each element of the gradient.
    pub clip_value: Option<f64>,
    /// The decay rate of an average of the parameters.
    pub ema: Option<f64>,
    /// True if a non-finite loss ends the run with an error ([`wgrad::Pitfall::NonFiniteLoss`]); its update is skipped.
    pub check_loss: bool,
    /// The run ends with an error after more than this many non-finite updates in a row; `None` for never.
    pub give_up: Option<u32>,
    /// True if each update taps the norm of every parameter's gradient, and of the gradient that the optimizer gets.
    /// This reads all gradients two more times.
    pub profile: bool,
    /// The measurements of some of the updates: see [`MonitorConfig`] and [`super::Trainer::measurements`]. They do not
    /// change a bit of any state.
    pub monitor: Option<MonitorConfig>,
    /// Changes of the run beyond the other settings, for a run that is made again.
    pub edits: Vec<Edit>,
    /// The seed of the noise.
    pub seed: u64,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            name: "trainer".into(),
            accumulate: 1,
            weighting: Weighting::Mean,
            precision: Precision::F32,
            loss_scale: LossScale::Auto,
            sam: None,
            scale_grad: vec![],
            noise: None,
            centralize: false,
            agc: None,
            head: ParamSet::default(),
            clip_norm: None,
            clip_value: None,
            ema: None,
            check_loss: true,
            give_up: Some(100),
            profile: false,
            monitor: None,
            edits: vec![],
            seed: 0,
        }
    }
}
