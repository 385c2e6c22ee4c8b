//! The convolution of images, and its transpose, which enlarges them.

use super::{Builder, Init};
use wgrad::{Param, Tensor};

/// `y = x * W + b`, over images `[batch, channels, height, width]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// `[outputs, inputs / groups, kernel, kernel]`.
    pub weight: Param,
    /// `[outputs]`; `None` without a bias, as before a normalisation, which would cancel the bias.
    pub bias: Option<Param>,
    /// The stride, padding, dilation and groups.
    pub geometry: wgrad::Conv2d,
}

impl Conv2d {
    /// Declares `weight`, a square kernel with the given first values, and `bias` with zeros.
    ///
    /// # Panics
    /// If the geometry's groups do not divide the inputs.
    #[track_caller]
    pub fn new(
        mut b: Builder<'_>,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        geometry: wgrad::Conv2d,
        init: &Init,
    ) -> Self {
        let bias = Some(b.param("bias", [outputs], &Init::Zeros));
        Self { bias, ..Self::without_bias(b, inputs, outputs, kernel, geometry, init) }
    }

    /// Declares `weight` alone.
    ///
    /// # Panics
    /// As [`Conv2d::new`].
    #[track_caller]
    pub fn without_bias(
        mut b: Builder<'_>,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        geometry: wgrad::Conv2d,
        init: &Init,
    ) -> Self {
        let groups = geometry.groups;
        assert!(groups > 0 && inputs.is_multiple_of(groups), "conv2d: {groups} groups of {inputs} channels");
        Self { weight: b.param("weight", [outputs, inputs / groups, kernel, kernel], init), bias: None, geometry }
    }

    /// Maps `[batch, inputs, height, width]` to `[batch, outputs, ..]`.
    ///
    /// # Panics
    /// If `x` has another shape or type, or the kernel does not fit the images.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        biased(x.conv2d(x.tape().param(self.weight), self.geometry), self.bias)
    }
}

/// A transposed convolution, over images `[batch, channels, height, width]`: each pixel adds its multiple of the kernel
/// to the result, `stride` pixels apart. A kernel of 4, stride 2 and padding 1 doubles height and width.
///
/// ```
/// use wgrad::{Conv2d, DType, Store, Tape};
/// use wgrad_nn::{Builder, ConvTranspose2d, Fan, Init};
/// let mut store = Store::new();
/// let geometry = Conv2d { stride: [2, 2], padding: [1, 1], ..Conv2d::default() };
/// let mut b = Builder::new(&mut store, 1);
/// let doubling = ConvTranspose2d::new(b.at("up"), 8, 3, 4, geometry, &Init::He { fan: Fan::In });
/// let t = Tape::new(store.into_parts().0);
/// let y = doubling.forward(t.input("x", [2, 8, 7, 7], DType::F32));
/// assert_eq!(y.shape(), [2, 3, 14, 14].into());
/// ```
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    /// `[inputs, outputs / groups, kernel, kernel]`.
    pub weight: Param,
    /// `[outputs]`; `None` without a bias.
    pub bias: Option<Param>,
    /// The stride, padding, dilation and groups of the convolution that this is the transpose of.
    pub geometry: wgrad::Conv2d,
    /// Rows and columns that the result has beyond the least number; 0 unless it is set.
    pub output_padding: [usize; 2],
}

impl ConvTranspose2d {
    /// Declares `weight`, a square kernel with the given first values, and `bias` with zeros.
    ///
    /// # Panics
    /// If the geometry's groups do not divide the inputs and the outputs.
    #[track_caller]
    pub fn new(
        mut b: Builder<'_>,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        geometry: wgrad::Conv2d,
        init: &Init,
    ) -> Self {
        let bias = Some(b.param("bias", [outputs], &Init::Zeros));
        Self { bias, ..Self::without_bias(b, inputs, outputs, kernel, geometry, init) }
    }

    /// Declares `weight` alone.
    ///
    /// # Panics
    /// As [`ConvTranspose2d::new`].
    #[track_caller]
    pub fn without_bias(
        mut b: Builder<'_>,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        geometry: wgrad::Conv2d,
        init: &Init,
    ) -> Self {
        let groups = geometry.groups;
        let divides = groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups);
        assert!(divides, "conv_transpose2d: {groups} groups of {inputs} channels, to {outputs}");
        let weight = b.param("weight", [inputs, outputs / groups, kernel, kernel], init);
        Self { weight, bias: None, geometry, output_padding: [0; 2] }
    }

    /// Maps `[batch, inputs, height, width]` to `[batch, outputs, ..]`: see [`Tensor::conv_transpose2d`] for the
    /// extents.
    ///
    /// # Panics
    /// If `x` has another shape or type, or the output padding is not below the stride.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        biased(x.conv_transpose2d(x.tape().param(self.weight), self.geometry, self.output_padding), self.bias)
    }
}

/// Images plus a number for each channel, if there is a bias.
#[track_caller]
fn biased<'t>(y: Tensor<'t>, bias: Option<Param>) -> Tensor<'t> {
    match bias {
        Some(bias) => y + y.tape().param(bias).reshape([1, y.shape()[1], 1, 1]),
        None => y,
    }
}
