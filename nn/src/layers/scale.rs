//! One learnable factor.

use super::{Builder, Init};
use wgrad::{Param, Tensor};

/// `y = s x`, with a learnable scalar `s`: it matches the magnitudes of two parts of a model where they meet.
#[derive(Clone, Debug)]
pub struct Scale {
    /// `[]`.
    pub weight: Param,
}

impl Scale {
    /// Declares `weight` with its first value; 1 changes nothing at first.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, first: f64) -> Self {
        Self { weight: b.param("weight", [], &Init::Constant(first)) }
    }

    /// A tensor of the same shape.
    ///
    /// # Panics
    /// If `x` is of another type than the factor.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let weight = x.tape().param(self.weight);
        let _call = x.tape().call("scale", &[x, weight]);
        x * weight
    }
}
