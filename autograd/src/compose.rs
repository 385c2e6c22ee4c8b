//! Functions over primitives: each is its definition, and its gradient follows from the rules of what it records.

use crate::{Operand, Rng, Tensor};

impl<'t> Tensor<'t> {
    // Elementwise.

    /// `x * x`.
    #[track_caller]
    pub fn square(self) -> Self {
        self * self
    }

    /// `|x|`; its gradient at 0 is 0.
    #[track_caller]
    pub fn abs(self) -> Self {
        self.maximum(-self)
    }

    /// The smaller of two floats; NaN if either is. A tie sends half of the gradient to each.
    #[track_caller]
    pub fn minimum(self, other: impl Into<Operand<'t>>) -> Self {
        -(-self).maximum(-other.into().like(self))
    }

    /// `1 / (1 + e^-x)`, as `(1 + tanh(x / 2)) / 2`, which overflows nowhere.
    #[track_caller]
    pub fn sigmoid(self) -> Self {
        (self * 0.5).tanh() * 0.5 + 0.5
    }

    /// Bool: logical and, of bool tensors.
    #[track_caller]
    pub fn and(self, other: Tensor<'t>) -> Self {
        self.select(other, self)
    }

    /// Bool: `self <= other`; false where either is NaN.
    #[track_caller]
    pub fn less_equal(self, other: impl Into<Operand<'t>>) -> Self {
        let other = other.into().like(self);
        self.less(other).maximum(self.equals(other))
    }

    /// `max(x, 0)`; its gradient at 0 is 0, and NaN stays NaN.
    #[track_caller]
    pub fn relu(self) -> Self {
        self.less_equal(0.0).select(self.zeros_like(), self)
    }

    /// Zeroes each element with probability `p`, and divides the others by `1 - p`, so that the mean stays (Srivastava et al.
    /// 2014, in the form that leaves evaluation alone). Record it where a model is trained, and not where it is used.
    ///
    /// # Panics
    /// If `p` is not in [0, 1).
    #[track_caller]
    pub fn dropout(self, p: f64, rng: Rng) -> Self {
        assert!((0.0..1.0).contains(&p), "dropout: {p} is not a probability below 1");
        rng.bernoulli(self.tape, 1.0 - p, self.shape()).select(self / (1.0 - p), self.zeros_like())
    }

    // Reductions.

    fn axes(self) -> Vec<usize> {
        (0..self.rank()).collect()
    }

    /// The number of elements in the given axes.
    fn extent(self, axes: &[usize]) -> f64 {
        let shape = self.shape();
        axes.iter().map(|&a| shape[a]).product::<usize>() as f64
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum(self) -> Self {
        self.sum_axes(&self.axes())
    }

    /// The mean of all elements; NaN of none.
    #[track_caller]
    pub fn mean(self) -> Self {
        self.mean_axes(&self.axes())
    }

    /// The mean over some axes, which disappear.
    ///
    /// # Panics
    /// If the elements are not floats: integers have no mean of their type.
    #[track_caller]
    pub fn mean_axes(self, axes: &[usize]) -> Self {
        assert!(self.dtype().is_float(), "mean of {}{}: cast it to floats first", self.dtype(), self.shape());
        self.sum_axes(axes) / self.extent(axes)
    }

    /// The variance over some axes, which disappear: the mean squared distance from the mean (divided by n).
    #[track_caller]
    pub fn var_axes(self, axes: &[usize]) -> Self {
        let mean = self.mean_axes(axes).unreduce(axes, &self.shape());
        (self - mean).square().mean_axes(axes)
    }

    /// The largest element.
    #[track_caller]
    pub fn max(self) -> Self {
        self.max_axes(&self.axes())
    }

    /// Bool scalar: whether no element is NaN or infinite; true of none.
    #[track_caller]
    pub fn all_finite(self) -> Self {
        !(!self.is_finite()).max()
    }

    /// The inner product of two tensors of one shape.
    #[track_caller]
    pub fn dot(self, other: Tensor<'t>) -> Self {
        (self * other).sum()
    }

    /// The Euclidean norm of all elements, which overflows only if the norm itself does; its gradient at 0 is 0.
    #[track_caller]
    pub fn norm(self) -> Self {
        self.norm_axes(&self.axes())
    }

    /// The square root, with gradient 0 at 0: the input is replaced there, not the output, so that no order of
    /// derivative meets `0 * inf`.
    #[track_caller]
    pub fn guarded_sqrt(self) -> Self {
        let zero = self.equals(0.0);
        zero.select(self.zeros_like(), zero.select(self.ones_like(), self).sqrt())
    }

    // Rows.

    /// `log(sum(e^x))` along an axis, which disappears.
    #[track_caller]
    pub fn logsumexp(self, axis: usize) -> Self {
        let (e, shift) = self.shifted_exp(axis);
        e.sum_axes(&[axis]).log() + shift
    }

    /// `e^(x - m)`, and m: the maximum along an axis, or 0 where that is not finite. m is a constant to gradients.
    #[track_caller]
    fn shifted_exp(self, axis: usize) -> (Self, Self) {
        let max = self.max_axes(&[axis]).detach();
        let shift = max.is_finite().select(max, max.zeros_like());
        ((self - shift.unreduce(&[axis], &self.shape())).exp(), shift)
    }

    /// `x - logsumexp(x)` along an axis.
    #[track_caller]
    pub fn log_softmax(self, axis: usize) -> Self {
        self - self.logsumexp(axis).unreduce(&[axis], &self.shape())
    }

    /// `e^x / sum(e^x)` along an axis.
    #[track_caller]
    pub fn softmax(self, axis: usize) -> Self {
        let (e, _) = self.shifted_exp(axis);
        e * e.sum_axes(&[axis]).recip().unreduce(&[axis], &self.shape())
    }

    // Losses.

    /// The mean cross-entropy of logits `[rows, classes]` against class indices `[rows]` (u32), in nats.
    ///
    /// An index that is not a class is an error when the program runs.
    #[track_caller]
    pub fn cross_entropy(self, targets: Tensor<'t>) -> Self {
        let shape = self.shape();
        assert!(
            shape.rank() == 2 && *targets.shape() == shape[..1],
            "cross_entropy of {}{shape} and {}{}: needs logits [rows, classes] and targets [rows]",
            self.dtype(),
            targets.dtype(),
            targets.shape()
        );
        -self.log_softmax(1).gather(targets.reshape([shape[0], 1]), 1).mean()
    }

    /// The mean squared error.
    #[track_caller]
    pub fn mse(self, target: Tensor<'t>) -> Self {
        (self - target).square().mean()
    }

    /// The share of rows of `[rows, classes]` whose largest logit is the target's (f32 scalar).
    #[track_caller]
    pub fn accuracy(self, targets: Tensor<'t>) -> Self {
        self.argmax(1).equals(targets).cast(crate::DType::F32).mean()
    }

    /// Picks rows of this `[rows, ..]` table: `out[i] = self[index[i]]` for an index (u32) of any shape, whose
    /// dimensions come first in the result.
    #[track_caller]
    pub fn rows(self, index: Tensor<'t>) -> Self {
        let (shape, at) = (self.shape(), index.shape());
        assert!(shape.rank() > 0, "rows of {}{shape}: needs a table", self.dtype());
        let width: usize = shape[1..].iter().product();
        let spread = index.reshape([at.numel(), 1]).broadcast_to([at.numel(), width]);
        self.reshape([shape[0], width]).gather(spread, 0).reshape([&at[..], &shape[1..]].concat())
    }
}
