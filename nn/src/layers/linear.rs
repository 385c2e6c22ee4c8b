//! The affine map of the last dimension.

use super::{Builder, Init};
use wgrad::{Param, Tensor};

/// `y = x W^T + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Param,
    /// `[outputs]`; `None` without a bias.
    pub bias: Option<Param>,
}

impl Linear {
    /// Declares `weight` with the given first values and `bias` with zeros.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, inputs: usize, outputs: usize, init: &Init) -> Self {
        let bias = Some(b.param("bias", [outputs], &Init::Zeros));
        Self { bias, ..Self::without_bias(b, inputs, outputs, init) }
    }

    /// Declares `weight` alone.
    #[track_caller]
    pub fn without_bias(mut b: Builder<'_>, inputs: usize, outputs: usize, init: &Init) -> Self {
        Self { weight: b.param("weight", [outputs, inputs], init), bias: None }
    }

    /// Maps `[.., inputs]` to `[.., outputs]`.
    ///
    /// # Panics
    /// If `x` has fewer than two dimensions, another last extent, or another type.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let (tape, weight) = (x.tape(), x.tape().param(self.weight));
        let _call = tape.call("linear", &[x, weight]);
        let y = x.matmul_t(weight);
        match self.bias {
            Some(bias) => y + tape.param(bias),
            None => y,
        }
    }
}
