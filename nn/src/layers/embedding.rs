//! A table of vectors, looked up by index.

use super::{Builder, Init};
use wgrad::{Param, Tensor};

/// One vector per symbol.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Param,
}

impl Embedding {
    /// Declares `weight`.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, rows: usize, width: usize, init: &Init) -> Self {
        Self { weight: b.param("weight", [rows, width], init) }
    }

    /// The vectors of some symbols: u32 indices of any shape `[..]` give `[.., width]`. An index that is not a row is
    /// an error when the program runs.
    ///
    /// # Panics
    /// If the indices are not u32.
    #[track_caller]
    pub fn forward<'t>(&self, index: Tensor<'t>) -> Tensor<'t> {
        let weight = index.tape().param(self.weight);
        let _call = index.tape().call("embedding", &[weight, index]);
        weight.rows(index)
    }
}
