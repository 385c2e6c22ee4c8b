//! The convolution of images.

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
        let tape = x.tape();
        let y = x.conv2d(tape.param(self.weight), self.geometry);
        match self.bias {
            Some(bias) => y + tape.param(bias).reshape([1, y.shape()[1], 1, 1]),
            None => y,
        }
    }
}
