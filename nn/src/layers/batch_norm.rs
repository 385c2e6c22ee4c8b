//! Normalisation by the statistics of a batch in training, and by running statistics in evaluation.

use super::{Builder, Init};
use wgrad::{Param, StateId, Tensor};

/// Batch normalisation, channel by channel (Ioffe and Szegedy 2015): see [`Tensor::batch_norm`].
///
/// In training it updates its running statistics, which are buffers. A skipped step must leave them as they were: a
/// [`crate::Trainer`] ensures that, and a hand-written step uses [`crate::Buffers`].
///
/// The statistics are those of one micro-batch, so accumulated micro-batches do not equal one large batch.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// `[channels]`, 1 at first; 0 for a silent norm ([`crate::Norm::silent`]).
    pub weight: Param,
    /// `[channels]`, 0 at first.
    pub bias: Param,
    /// `[2, channels]`: the running means, 0 at first, and the running variances, unbiased, 1 at first. One state for
    /// both takes half as many kernels to settle.
    pub running: StateId,
    /// The share of a new batch in the running statistics, in (0, 1].
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl BatchNorm {
    /// Declares `weight` and `bias`, and the buffer `running`, with PyTorch's momentum of 0.1 and epsilon of 1e-5.
    #[track_caller]
    pub fn new(b: Builder<'_>, channels: usize) -> Self {
        Self::declare(b, channels, &Init::Ones)
    }

    #[track_caller]
    pub(crate) fn declare(mut b: Builder<'_>, channels: usize, weight: &Init) -> Self {
        let (weight, bias) = (b.param("weight", [channels], weight), b.param("bias", [channels], &Init::Zeros));
        let running = b.buffer("running", [2, channels], &[vec![0.0; channels], vec![1.0; channels]].concat());
        Self { weight, bias, running, momentum: 0.1, eps: 1e-5 }
    }

    /// The same with another momentum, in (0, 1].
    ///
    /// # Panics
    /// If the momentum is outside its range.
    #[must_use]
    #[track_caller]
    pub fn with_momentum(self, momentum: f64) -> Self {
        assert!(momentum > 0.0 && momentum <= 1.0, "batch_norm: momentum is {momentum}, and must be in (0, 1]");
        Self { momentum, ..self }
    }

    /// Normalises `[batch, channels, ..]`, such as rows of features or images. In training it uses the statistics of
    /// the batch, and updates the running ones. Otherwise it uses the running statistics, which stay as they are.
    ///
    /// # Panics
    /// If `x` has fewer than two dimensions, or another number of channels; in training, if a channel has fewer than
    /// two elements.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let tape = x.tape();
        let (weight, bias) = (Some(tape.param(self.weight)), Some(tape.param(self.bias)));
        let running = tape.state(self.running);
        let (mean, var) = (running.index(0, 0), running.index(0, 1));
        if !training {
            return x.batch_norm_eval(mean, var, weight, bias, self.eps);
        }
        let normed = x.batch_norm(weight, bias, self.eps);
        let (mean, var) = normed.running(mean, var, self.momentum);
        tape.assign(self.running, Tensor::stack(&[mean, var]));
        normed.y
    }
}

/// [`BatchNorm`] of features or of sequences, and of nothing else, as PyTorch's `BatchNorm1d`: images that lack a
/// dimension are refused instead of being taken for sequences.
///
/// ```
/// use wgrad::{DType, Store, Tape};
/// use wgrad_nn::{BatchNorm1d, Builder};
/// let mut store = Store::new();
/// let norm = BatchNorm1d::new(Builder::new(&mut store, 0).at("norm"), 3);
/// let t = Tape::new(store.into_parts().0);
/// let y = norm.forward(t.input("x", [8, 3, 20], DType::F32), true);
/// assert_eq!(y.shape(), [8, 3, 20].into());
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm1d {
    /// The normalisation. Its parameters and its buffer have the paths of a [`BatchNorm`].
    pub norm: BatchNorm,
}

impl BatchNorm1d {
    /// Declares what [`BatchNorm::new`] declares.
    #[track_caller]
    pub fn new(b: Builder<'_>, channels: usize) -> Self {
        Self { norm: BatchNorm::new(b, channels) }
    }

    /// The same with another momentum, in (0, 1].
    ///
    /// # Panics
    /// If the momentum is outside its range.
    #[must_use]
    #[track_caller]
    pub fn with_momentum(self, momentum: f64) -> Self {
        Self { norm: self.norm.with_momentum(momentum) }
    }

    /// Normalises `[batch, channels]` or `[batch, channels, length]` as [`BatchNorm::forward`] does.
    ///
    /// # Panics
    /// If `x` has another number of dimensions, or of channels; in training, if a channel has fewer than two elements.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let shape = x.shape();
        assert!(
            matches!(shape.rank(), 2 | 3),
            "batch_norm_1d of {}{shape}: needs [batch, channels] or [batch, channels, length]",
            x.dtype()
        );
        let _call = x.tape().call("batch_norm_1d", &[x]);
        self.norm.forward(x, training)
    }
}
