//! Loss scaling: multiplying the loss so that small gradients survive a narrow type.

use crate::{
    Tensor,
    grads::{Grads, Scaled},
    store::ParamSet,
};

/// A loss scale. Scale the loss, take its gradient, and [`Grads::unscale`] that with the same scaler.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScaler {
    scale: Option<f64>,
}

/// A loss multiplied by a scale: its gradients are [`Scaled`].
#[derive(Clone, Copy, Debug)]
pub struct ScaledLoss<'t> {
    loss: Tensor<'t>,
    scaler: LossScaler,
}

impl LossScaler {
    /// No scale: gradients pass unchanged, and are still checked for NaN and infinity.
    pub fn none() -> Self {
        Self { scale: None }
    }

    /// A constant scale. Powers of two change no bit of a gradient that stays in range.
    ///
    /// # Panics
    /// If the scale or its reciprocal is not a positive normal number of f32.
    #[track_caller]
    pub fn fixed(scale: f64) -> Self {
        let usable = |v: f64| v > 0.0 && (v as f32).is_normal();
        assert!(usable(scale) && usable(1.0 / scale), "loss scale: {scale} or its reciprocal is not a normal f32");
        Self { scale: Some(scale) }
    }

    /// The scale; `None` without one.
    pub fn scale_value(self) -> Option<f64> {
        self.scale
    }

    /// `loss * scale`.
    #[track_caller]
    pub fn scale(self, loss: Tensor<'_>) -> ScaledLoss<'_> {
        let scaled = self.scale.map_or(loss, |scale| loss * scale);
        ScaledLoss { loss: scaled, scaler: self }
    }
}

impl<'t> ScaledLoss<'t> {
    /// The gradient of the scaled loss: see [`Tensor::grad`].
    #[track_caller]
    pub fn grad(self, params: &ParamSet) -> Grads<'t, Scaled> {
        let grads = Grads::of(self.loss, params);
        Grads { scaler: self.scaler, ..grads }
    }
}
