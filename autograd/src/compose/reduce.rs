//! Reductions: sums, means, extremes, products, norms.

use crate::{DType, Tensor, op::Op};

impl<'t> Tensor<'t> {
    pub(super) fn axes(self) -> Vec<usize> {
        (0..self.rank()).collect()
    }

    /// The number of elements in the given axes.
    #[track_caller]
    pub(super) fn extent(self, axes: &[usize]) -> f64 {
        let shape = self.shape();
        for axis in axes {
            self.tape.require(*axis < shape.rank(), "extent", &[self], || format!("there is no axis {axis}"));
        }
        axes.iter().map(|&a| shape[a]).product::<usize>() as f64
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum(self) -> Self {
        self.sum_axes(&self.axes())
    }

    /// The mean of all elements; NaN if there are none.
    #[track_caller]
    pub fn mean(self) -> Self {
        let _call = self.tape.call("mean", &[self]);
        self.mean_axes(&self.axes())
    }

    /// Maps elements so that their order reverses; applied twice, it is the identity. Integers are not negated, because
    /// their type may not hold the negative.
    #[track_caller]
    pub(super) fn reversed(self) -> Self {
        match self.dtype() {
            DType::Bool => !self,
            DType::U32 => self.tape.full(self.shape(), f64::from(u32::MAX), DType::U32) - self,
            DType::I32 => self.tape.full(self.shape(), -1.0, DType::I32) - self,
            _ => -self,
        }
    }

    /// The type for sums and squares on the way to a mean: f32 for f16, whose range they soon exceed.
    pub(crate) fn wide(self) -> DType {
        if self.dtype() == DType::F16 { DType::F32 } else { self.dtype() }
    }

    /// The mean over some axes, which disappear. For f16, the sum is computed in f32. If the sum overflows, the mean is
    /// infinite.
    ///
    /// # Panics
    /// If the elements are not floats: integers have no mean of their type.
    #[track_caller]
    pub fn mean_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("mean_axes", &[self]);
        self.tape.require(self.dtype().is_float(), "mean_axes", &[self], || "cast it to floats first".into());
        (self.cast(self.wide()).sum_axes(axes) / self.extent(axes)).cast(self.dtype())
    }

    /// The largest element.
    #[track_caller]
    pub fn max(self) -> Self {
        self.max_axes(&self.axes())
    }

    /// The smallest element.
    #[track_caller]
    pub fn min(self) -> Self {
        let _call = self.tape.call("min", &[self]);
        self.min_axes(&self.axes())
    }

    /// The minimum over some axes, which disappear. Equal minima share the gradient.
    #[track_caller]
    pub fn min_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("min_axes", &[self]);
        self.reversed().max_axes(axes).reversed()
    }

    /// The largest element along an axis, which disappears, and its index (u32). It is the first of equal ones, and
    /// alone gets the gradient.
    #[track_caller]
    pub fn max_with_index(self, axis: usize) -> (Self, Self) {
        let _call = self.tape.call("max_with_index", &[self]);
        let (index, kept) = (self.argmax(axis), self.shape().with(axis, 1));
        (self.gather(index.reshape(kept), axis).reshape(index.shape()), index)
    }

    /// The index of the first smallest element along an axis (u32).
    #[track_caller]
    pub fn argmin(self, axis: usize) -> Self {
        let _call = self.tape.call("argmin", &[self]);
        self.reversed().argmax(axis)
    }

    /// The sums of the elements up to each position of an axis, that position included.
    #[track_caller]
    pub fn cumsum(self, axis: usize) -> Self {
        self.tape.push(Op::CumSum { axis, reverse: false }, &[self])
    }

    /// Bool scalar: true if no element is NaN or infinite, so also if there are none.
    #[track_caller]
    pub fn all_finite(self) -> Self {
        let _call = self.tape.call("all_finite", &[self]);
        !(!self.is_finite()).max()
    }

    /// The inner product of two tensors of one shape.
    #[track_caller]
    pub fn dot(self, other: Tensor<'t>) -> Self {
        let _call = self.tape.call("dot", &[self, other]);
        (self * other).sum()
    }

    /// The Euclidean norm of all elements, which overflows only if the norm itself does; its gradient at 0 is 0.
    #[track_caller]
    pub fn norm(self) -> Self {
        let _call = self.tape.call("norm", &[self]);
        self.norm_axes(&self.axes())
    }

    /// The product of all elements; 1 if there are none.
    ///
    /// # Panics
    /// If the elements are bools.
    #[track_caller]
    pub fn prod(self) -> Self {
        let _call = self.tape.call("prod", &[self]);
        self.prod_axes(&self.axes())
    }

    /// The product over some axes, which disappear; 1 over nothing. Its gradient divides by no element, so that zeros
    /// among them do no harm. f16 is computed in f32.
    ///
    /// # Panics
    /// If there is no such axis, or the elements are bools.
    #[track_caller]
    pub fn prod_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("prod_axes", &[self]);
        self.tape.require(self.dtype() != DType::Bool, "prod_axes", &[self], || {
            "bools have no arithmetic: cast them first".into()
        });
        let mut x = self.cast(self.wide());
        for &axis in axes {
            self.tape.require(axis < self.rank(), "prod_axes", &[self], || format!("there is no axis {axis}"));
            // A tree of pairs: as many multiplications as a loop, in few steps.
            while x.shape()[axis] > 1 {
                let (len, half) = (x.shape()[axis], x.shape()[axis] / 2);
                let pairs = x.slice(axis, 0, half) * x.slice(axis, half, half);
                let odd = x.slice(axis, 2 * half, len - 2 * half);
                x = if len.is_multiple_of(2) { pairs } else { Tensor::concat(&[pairs, odd], axis) };
            }
            if x.shape()[axis] == 0 {
                x = self.tape.full(x.shape().with(axis, 1), 1.0, x.dtype());
            }
        }
        x.reshape(self.shape().without(&ascending(axes))).cast(self.dtype())
    }

    /// The products of the elements up to each position of an axis, that position included. Its gradient divides by no
    /// element. It takes `log2 n` steps for an axis of extent n. f16 is computed in f32.
    ///
    /// # Panics
    /// If there is no such axis, or the elements are bools.
    #[track_caller]
    pub fn cumprod(self, axis: usize) -> Self {
        let _call = self.tape.call("cumprod", &[self]);
        let fits = axis < self.rank() && self.dtype() != DType::Bool;
        self.tape.require(fits, "cumprod", &[self], || format!("needs an axis {axis} of numbers"));
        let (len, mut x, mut reach) = (self.shape()[axis], self.cast(self.wide()), 1);
        // After each step, an element is the product of the last `reach` ones (Hillis and Steele 1986).
        while reach < len {
            let rest = len - reach;
            x = Tensor::concat(&[x.slice(axis, 0, reach), x.slice(axis, reach, rest) * x.slice(axis, 0, rest)], axis);
            reach *= 2;
        }
        x.cast(self.dtype())
    }
}

/// The axes in ascending order.
pub(super) fn ascending(axes: &[usize]) -> Vec<usize> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    axes
}
