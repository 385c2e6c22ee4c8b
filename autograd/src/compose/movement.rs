//! Movement by name: dimensions added, dropped, swapped, reversed; padding with a value.

use crate::Tensor;

impl<'t> Tensor<'t> {
    /// Swaps two dimensions.
    ///
    /// # Panics
    /// If there is no such dimension.
    #[track_caller]
    pub fn swap_axes(self, a: usize, b: usize) -> Self {
        let rank = self.rank();
        self.tape.require(a.max(b) < rank, "swap_axes", &[self], || format!("there is no axis {}", a.max(b)));
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(a, b);
        if a == b { self } else { self.permute(&order) }
    }

    /// A new dimension of extent 1, at this place among the dimensions.
    ///
    /// # Panics
    /// If the place is beyond the last dimension's end.
    #[track_caller]
    pub fn unsqueeze(self, axis: usize) -> Self {
        let shape = self.shape();
        self.tape.require(axis <= shape.rank(), "unsqueeze", &[self], || format!("there is no place {axis}"));
        self.reshape([&shape[..axis], &[1], &shape[axis..]].concat())
    }

    /// Drops a dimension of extent 1.
    ///
    /// # Panics
    /// If its extent is not 1.
    #[track_caller]
    pub fn squeeze(self, axis: usize) -> Self {
        let shape = self.shape();
        let single = shape.get(axis) == Some(&1);
        self.tape.require(single, "squeeze", &[self], || format!("axis {axis} has no extent of 1"));
        self.reshape(shape.without(&[axis]))
    }

    /// Merges the dimensions from `axis` on into one.
    ///
    /// # Panics
    /// If there is no such dimension.
    #[track_caller]
    pub fn flatten_from(self, axis: usize) -> Self {
        let shape = self.shape();
        self.tape.require(axis < shape.rank(), "flatten_from", &[self], || format!("there is no axis {axis}"));
        self.reshape([&shape[..axis], &[shape[axis..].iter().product()]].concat())
    }

    /// The elements in reverse order along some axes.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn flip(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("flip", &[self]);
        let (shape, mut x) = (self.shape(), self);
        for &axis in axes {
            self.tape.require(axis < shape.rank(), "flip", &[self], || format!("there is no axis {axis}"));
            x = x.slice_step(axis, shape[axis].saturating_sub(1), shape[axis], -1);
        }
        x
    }

    /// Pads an axis with copies of a value before and after.
    ///
    /// # Panics
    /// If there is no such axis, or the type does not hold the value.
    #[track_caller]
    pub fn pad_with(self, axis: usize, before: usize, after: usize, value: f64) -> Self {
        let _call = self.tape.call("pad_with", &[self]);
        let shape = self.shape();
        self.tape.require(axis < shape.rank(), "pad_with", &[self], || format!("there is no axis {axis}"));
        if value == 0.0 {
            return self.pad(axis, before, after);
        }
        let (dtype, mut parts) = (self.dtype(), vec![self]);
        if before > 0 {
            parts.insert(0, self.tape.full(shape.with(axis, before), value, dtype));
        }
        if after > 0 {
            parts.push(self.tape.full(shape.with(axis, after), value, dtype));
        }
        Tensor::concat(&parts, axis)
    }
}
