//! Movement by name: dimensions added, dropped, swapped, reversed, shifted; triangles; padding with a value.

use crate::{DType, Tensor};

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

    /// The elements shifted along an axis by `shift` places; elements that leave one end come in at the other.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn roll(self, axis: usize, shift: isize) -> Self {
        let _call = self.tape.call("roll", &[self]);
        let shape = self.shape();
        self.tape.require(axis < shape.rank(), "roll", &[self], || format!("there is no axis {axis}"));
        let len = shape[axis];
        let first = if len == 0 { 0 } else { shift.rem_euclid(len as isize) as usize };
        if first == 0 {
            return self;
        }
        Tensor::concat(&[self.slice(axis, len - first, first), self.slice(axis, 0, len - first)], axis)
    }

    /// The lower triangle of each matrix of the last two axes: elements above diagonal `diagonal` are 0. Diagonal 0 is
    /// the main one, positive ones lie above it.
    ///
    /// # Panics
    /// If there are fewer than two axes.
    #[track_caller]
    pub fn tril(self, diagonal: i32) -> Self {
        let _call = self.tape.call("tril", &[self]);
        let (row, column) = self.places_in_matrix("tril");
        column.less_equal(row + f64::from(diagonal)).select(self, self.zeros_like())
    }

    /// The upper triangle of each matrix of the last two axes: elements below diagonal `diagonal` are 0. Diagonal 0 is
    /// the main one, positive ones lie above it.
    ///
    /// # Panics
    /// If there are fewer than two axes.
    #[track_caller]
    pub fn triu(self, diagonal: i32) -> Self {
        let _call = self.tape.call("triu", &[self]);
        let (row, column) = self.places_in_matrix("triu");
        column.greater_equal(row + f64::from(diagonal)).select(self, self.zeros_like())
    }

    /// The row and the column of each element of a matrix: `[rows, 1]` and `[columns]`, i32.
    #[track_caller]
    fn places_in_matrix(self, what: &str) -> (Self, Self) {
        let (shape, rank) = (self.shape(), self.rank());
        self.tape.require(rank >= 2, what, &[self], || "needs two dimensions".into());
        let places = |axis: usize| self.tape.iota(shape[axis]).cast(DType::I32);
        (places(rank - 2).unsqueeze(1), places(rank - 1))
    }
}
