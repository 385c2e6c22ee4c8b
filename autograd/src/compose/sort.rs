//! Sorting along an axis.

use crate::{Tensor, op::Op};

impl<'t> Tensor<'t> {
    /// The positions (u32) that sort an axis: `self.gather(index, axis)` is sorted. Equal elements keep their order. NaN
    /// counts as larger than any number. A CPU takes `n log n` comparisons for n elements, a GPU `n^2`.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn argsort(self, axis: usize, descending: bool) -> Self {
        self.tape.push(Op::ArgSort(axis, descending), &[self])
    }

    /// The elements in order along an axis, and the positions (u32) that they come from: see [`Tensor::argsort`]. The
    /// gradient of an element goes to its place before.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn sort(self, axis: usize, descending: bool) -> (Self, Self) {
        let _call = self.tape.call("sort", &[self]);
        let index = self.argsort(axis, descending);
        (self.gather(index, axis), index)
    }

    /// The `k` largest elements along an axis, the largest first, and their positions (u32): see [`Tensor::argsort`].
    ///
    /// # Panics
    /// If there is no such axis, or it has fewer elements.
    #[track_caller]
    pub fn topk(self, k: usize, axis: usize) -> (Self, Self) {
        let _call = self.tape.call("topk", &[self]);
        let shape = self.shape();
        let fits = shape.get(axis).is_some_and(|extent| k <= *extent);
        self.tape.require(fits, "topk", &[self], || format!("needs an axis {axis} of at least {k} elements"));
        let index = self.argsort(axis, true).slice(axis, 0, k);
        (self.gather(index, axis), index)
    }
}
