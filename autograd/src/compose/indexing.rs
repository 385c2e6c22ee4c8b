//! Picking by index: rows of a table, positions of an axis, one-hot vectors.

use crate::{DType, Tensor};

impl<'t> Tensor<'t> {
    /// Picks rows of this `[rows, ..]` table: `out[i] = self[index[i]]` for an index (u32) of any shape, whose
    /// dimensions come first in the result. An index that is not a row is an error when the program runs.
    ///
    /// # Panics
    /// If this is a scalar, or the index is not u32.
    #[track_caller]
    pub fn rows(self, index: Tensor<'t>) -> Self {
        let _call = self.tape.call("rows", &[self, index]);
        let (shape, at) = (self.shape(), index.shape());
        self.tape.require(shape.rank() > 0, "rows", &[self, index], || "needs a table".into());
        let width: usize = shape[1..].iter().product();
        let spread = index.reshape([at.numel(), 1]).broadcast_to([at.numel(), width]);
        self.reshape([shape[0], width]).gather(spread, 0).reshape([&at[..], &shape[1..]].concat())
    }

    /// Picks rows as [`Tensor::rows`] does. The row of index `padding` is read, but gets no gradient.
    ///
    /// # Panics
    /// As [`Tensor::rows`].
    #[track_caller]
    pub fn embedding(self, index: Tensor<'t>, padding: Option<u32>) -> Self {
        let _call = self.tape.call("embedding", &[self, index]);
        let rows = self.rows(index);
        let Some(padding) = padding else { return rows };
        let dims = vec![1; rows.rank() - index.rank()];
        let padded = index.equals(f64::from(padding)).reshape([&index.shape()[..], &dims].concat());
        padded.select(rows.detach(), rows)
    }

    /// Picks positions of an axis by an index `[n]` (u32): the axis has extent `n` in the result.
    ///
    /// # Panics
    /// If there is no such axis, or the index is not a vector of u32.
    #[track_caller]
    pub fn index_select(self, axis: usize, index: Tensor<'t>) -> Self {
        let _call = self.tape.call("index_select", &[self, index]);
        let (shape, at) = (self.shape(), index.shape());
        self.tape.require(axis < shape.rank() && at.rank() == 1, "index_select", &[self, index], || {
            format!("axis {axis} must exist, and the index must be a vector of u32")
        });
        let dims: Vec<usize> = (0..shape.rank()).map(|d| if d == axis { at[0] } else { 1 }).collect();
        self.gather(index.reshape(dims).broadcast_to(shape.with(axis, at[0])), axis)
    }

    /// `[.., classes]`: 1 where the class is the index (u32 or i32, of shape `[..]`), 0 elsewhere. An index that is not
    /// a class gives a row of zeros.
    ///
    /// # Panics
    /// If the index is of another type, or there are more classes than it can count.
    #[track_caller]
    pub fn one_hot(self, classes: usize, dtype: DType) -> Self {
        let _call = self.tape.call("one_hot", &[self]);
        let of = self.dtype();
        let fits = matches!(of, DType::U32 | DType::I32);
        self.tape.require(fits, "one_hot", &[self], || "needs u32 or i32".into());
        self.unsqueeze(self.rank()).equals(self.tape.iota(classes).cast(of)).cast(dtype)
    }
}
