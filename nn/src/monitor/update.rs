//! The record of one update.

/// The loss and the gradient norm of an update, and whether it was taken.
#[derive(Clone, PartialEq, Debug)]
pub struct Update {
    /// The number of the run that made it: see [`wgrad::Taps::run`].
    pub run: u64,
    /// The mean loss of its micro-batches on all ranks, before the update.
    pub loss: f64,
    /// The norm of the gradient of the whole batch, without the loss scale, before noise and clips.
    pub grad_norm: f64,
    /// True if the global norm was clipped; `None` without that clip.
    pub clipped: Option<bool>,
    /// True if the step was taken; a step with a non-finite gradient is skipped.
    pub taken: bool,
    /// The scale that the loss was multiplied by; 1 without one.
    pub loss_scale: f64,
    /// The norms that [`crate::TrainerConfig::profile`] asks for.
    pub profile: Option<Profile>,
}

/// The norms of an update's gradient, by parameter and after all passes.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// The norm of the gradient of each parameter that has one, in the order of declaration, at the same place as
    /// [`Update::grad_norm`].
    pub norms: Vec<f64>,
    /// The norm of the gradient that the optimizer got.
    pub applied_norm: f64,
}
