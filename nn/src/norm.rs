//! Normalisation of each sample by itself: over its features, or over groups of channels.

use crate::{Builder, Init};
use wgrad::{Param, Tensor};

/// Layer normalisation of the last dimension (Ba et al. 2016): see [`Tensor::layer_norm`].
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// `[width]`, 1 at first.
    pub weight: Param,
    /// `[width]`, 0 at first.
    pub bias: Param,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// Declares `weight` and `bias`, with an epsilon of 1e-5.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, width: usize) -> Self {
        let (weight, bias) = (b.param("weight", [width], &Init::Ones), b.param("bias", [width], &Init::Zeros));
        Self { weight, bias, eps: 1e-5 }
    }

    /// Normalises the rows of `[.., width]`.
    ///
    /// # Panics
    /// If the last extent is another.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let tape = x.tape();
        x.layer_norm(1, Some(tape.param(self.weight)), Some(tape.param(self.bias)), self.eps)
    }
}

/// RMS normalisation of the last dimension (Zhang and Sennrich 2019): see [`Tensor::rms_norm`].
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `[width]`, 1 at first.
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f64,
}

impl RmsNorm {
    /// Declares `weight`, with an epsilon of 1e-5.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, width: usize) -> Self {
        Self { weight: b.param("weight", [width], &Init::Ones), eps: 1e-5 }
    }

    /// Normalises the rows of `[.., width]`.
    ///
    /// # Panics
    /// If the last extent is another.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        x.rms_norm(1, Some(x.tape().param(self.weight)), self.eps)
    }
}

/// Group normalisation (Wu and He 2018): see [`Tensor::group_norm`].
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// `[channels]`, 1 at first.
    pub weight: Param,
    /// `[channels]`, 0 at first.
    pub bias: Param,
    /// How many groups the channels are split into.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f64,
}

impl GroupNorm {
    /// Declares `weight` and `bias`, with an epsilon of 1e-5.
    ///
    /// # Panics
    /// If the groups do not divide the channels.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, groups: usize, channels: usize) -> Self {
        assert!(groups > 0 && channels.is_multiple_of(groups), "group_norm: {groups} groups of {channels} channels");
        let (weight, bias) = (b.param("weight", [channels], &Init::Ones), b.param("bias", [channels], &Init::Zeros));
        Self { weight, bias, groups, eps: 1e-5 }
    }

    /// Normalises `[batch, channels, ..]`.
    ///
    /// # Panics
    /// If the channels are others.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let tape = x.tape();
        x.group_norm(self.groups, Some(tape.param(self.weight)), Some(tape.param(self.bias)), self.eps)
    }
}
