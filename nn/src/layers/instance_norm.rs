//! Normalisation of each channel of each sample by itself.

use super::{Builder, Init};
use wgrad::{Param, Tensor};

/// Instance normalisation (Ulyanov et al. 2016, arXiv 1607.08022): `(x - mean) / sqrt(var + eps)` over all positions of
/// a channel of a sample, and then `weight` and `bias` of the channel, if there are any.
///
/// As by PyTorch's defaults there are none, and no running statistics: it does the same in training and in evaluation.
///
/// ```
/// use wgrad::{DType, Store, Tape};
/// use wgrad_nn::{Builder, InstanceNorm};
/// let mut store = Store::new();
/// let plain = InstanceNorm::new(3);
/// let affine = InstanceNorm::affine(Builder::new(&mut store, 0).at("norm"), 3);
/// let t = Tape::new(store.into_parts().0);
/// let y = affine.forward(plain.forward(t.input("x", [8, 3, 16, 16], DType::F32)));
/// assert_eq!(y.shape(), [8, 3, 16, 16].into());
/// ```
#[derive(Clone, Debug)]
pub struct InstanceNorm {
    /// `[channels]`, 1 at first.
    pub weight: Option<Param>,
    /// `[channels]`, 0 at first.
    pub bias: Option<Param>,
    /// The number of channels.
    pub channels: usize,
    /// Added to the variance.
    pub eps: f64,
}

impl InstanceNorm {
    /// A norm without parameters, so that there is nothing to declare, with an epsilon of 1e-5.
    pub fn new(channels: usize) -> Self {
        Self { weight: None, bias: None, channels, eps: 1e-5 }
    }

    /// Declares `weight` and `bias`.
    #[track_caller]
    pub fn affine(mut b: Builder<'_>, channels: usize) -> Self {
        let (weight, bias) = (b.param("weight", [channels], &Init::Ones), b.param("bias", [channels], &Init::Zeros));
        Self { weight: Some(weight), bias: Some(bias), ..Self::new(channels) }
    }

    /// Normalises `[batch, channels, ..]`, such as sequences or images.
    ///
    /// # Panics
    /// If `x` has fewer than three dimensions, another number of channels, or channels of fewer than two positions,
    /// which would all become 0.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let (tape, shape, channels) = (x.tape(), x.shape(), self.channels);
        let fits = shape.rank() >= 3 && shape[1] == channels && shape[2..].iter().product::<usize>() > 1;
        assert!(
            fits,
            "instance_norm of {}{shape}: needs [batch, {channels}, ..] with more than one position in each channel",
            x.dtype()
        );
        let _call = tape.call("instance_norm", &[x]);
        let [weight, bias] = [self.weight, self.bias].map(|param| param.map(|param| tape.param(param)));
        x.group_norm(channels, weight, bias, self.eps)
    }
}
