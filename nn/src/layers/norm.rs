//! Normalisation of each sample by itself, over its features or over groups of channels; and the choice among all
//! norms.

use super::{BatchNorm, Builder, Init};
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
    pub fn new(b: Builder<'_>, width: usize) -> Self {
        Self::declare(b, width, &Init::Ones)
    }

    #[track_caller]
    fn declare(mut b: Builder<'_>, width: usize, weight: &Init) -> Self {
        let (weight, bias) = (b.param("weight", [width], weight), b.param("bias", [width], &Init::Zeros));
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
    pub fn new(b: Builder<'_>, width: usize) -> Self {
        Self::declare(b, width, &Init::Ones)
    }

    #[track_caller]
    fn declare(mut b: Builder<'_>, width: usize, weight: &Init) -> Self {
        Self { weight: b.param("weight", [width], weight), eps: 1e-5 }
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
    /// The number of groups that the channels are split into.
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
    pub fn new(b: Builder<'_>, groups: usize, channels: usize) -> Self {
        Self::declare(b, groups, channels, &Init::Ones)
    }

    #[track_caller]
    fn declare(mut b: Builder<'_>, groups: usize, channels: usize, weight: &Init) -> Self {
        assert!(groups > 0 && channels.is_multiple_of(groups), "group_norm: {groups} groups of {channels} channels");
        let (weight, bias) = (b.param("weight", [channels], weight), b.param("bias", [channels], &Init::Zeros));
        Self { weight, bias, groups, eps: 1e-5 }
    }

    /// Normalises `[batch, channels, ..]`.
    ///
    /// # Panics
    /// If `x` has another number of channels.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let tape = x.tape();
        x.group_norm(self.groups, Some(tape.param(self.weight)), Some(tape.param(self.bias)), self.eps)
    }
}

/// The normalisation of a configuration.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub enum NormKind {
    /// None.
    #[default]
    None,
    /// [`LayerNorm`].
    Layer,
    /// [`RmsNorm`].
    Rms,
    /// [`BatchNorm`]; usually [`NormKind::BATCH`].
    Batch {
        /// The share of a new batch in the running statistics, in (0, 1].
        momentum: f64,
    },
    /// [`GroupNorm`].
    Group {
        /// The number of groups that the channels are split into.
        groups: usize,
    },
}

impl NormKind {
    /// Batch normalisation with PyTorch's momentum.
    pub const BATCH: Self = Self::Batch { momentum: 0.1 };
}

/// The normalisation that a configuration asks for.
#[derive(Clone, Debug)]
pub enum Norm {
    /// None.
    None,
    /// The norm of the last dimension.
    Layer(LayerNorm),
    /// The norm of the last dimension by its root mean square.
    Rms(RmsNorm),
    /// The norm of each channel by the batch.
    Batch(BatchNorm),
    /// The norm of groups of channels.
    Group(GroupNorm),
}

impl Norm {
    /// Declares the norm for `width` features or channels.
    ///
    /// # Panics
    /// If the momentum is outside its range, or the groups do not divide the channels.
    #[track_caller]
    pub fn new(b: Builder<'_>, kind: NormKind, width: usize) -> Self {
        Self::declare(b, kind, width, &Init::Ones)
    }

    /// As [`Norm::new`], but with weights of 0 at first, so that the norm gives 0 at first.
    ///
    /// # Panics
    /// As [`Norm::new`].
    #[track_caller]
    pub fn silent(b: Builder<'_>, kind: NormKind, width: usize) -> Self {
        Self::declare(b, kind, width, &Init::Zeros)
    }

    #[track_caller]
    fn declare(b: Builder<'_>, kind: NormKind, width: usize, weight: &Init) -> Self {
        match kind {
            NormKind::None => Self::None,
            NormKind::Layer => Self::Layer(LayerNorm::declare(b, width, weight)),
            NormKind::Rms => Self::Rms(RmsNorm::declare(b, width, weight)),
            NormKind::Batch { momentum } => Self::Batch(BatchNorm::declare(b, width, weight).with_momentum(momentum)),
            NormKind::Group { groups } => Self::Group(GroupNorm::declare(b, groups, width, weight)),
        }
    }

    /// The batch normalisation, if this is one.
    pub fn batch(&self) -> Option<&BatchNorm> {
        if let Self::Batch(norm) = self { Some(norm) } else { None }
    }

    /// A tensor of the same shape.
    ///
    /// # Panics
    /// As the norm's own `forward`.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        match self {
            Self::None => x,
            Self::Layer(norm) => norm.forward(x),
            Self::Rms(norm) => norm.forward(x),
            Self::Batch(norm) => norm.forward(x, training),
            Self::Group(norm) => norm.forward(x),
        }
    }
}
