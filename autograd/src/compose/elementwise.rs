//! Elementwise functions: comparisons and logic, roots, activations, dropout.

use crate::{DType, Operand, Rng, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

impl<'t> Tensor<'t> {
    // Comparisons and logic.

    /// Bool: `self <= other`; false where either is NaN.
    #[track_caller]
    pub fn less_equal(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("less_equal", other);
        self.less(other).maximum(self.equals(other))
    }

    /// Bool: `self > other`; false where either is NaN.
    #[track_caller]
    pub fn greater(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("greater", other);
        other.less(self)
    }

    /// Bool: `self >= other`; false where either is NaN.
    #[track_caller]
    pub fn greater_equal(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("greater_equal", other);
        other.less_equal(self)
    }

    /// Bool: `self != other`; true where either is NaN.
    #[track_caller]
    pub fn not_equals(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("not_equals", other);
        !self.equals(other)
    }

    /// Bool: logical and, of bool tensors.
    #[track_caller]
    pub fn and(self, other: Tensor<'t>) -> Self {
        let _call = self.tape.call("and", &[self, other]);
        self.select(other, self)
    }

    /// Bool: logical or, of bool tensors.
    ///
    /// # Panics
    /// If either is no bool tensor.
    #[track_caller]
    pub fn or(self, other: Tensor<'t>) -> Self {
        let _call = self.tape.call("or", &[self, other]);
        self.tape.require(self.dtype() == DType::Bool, "or", &[self, other], || "needs bools".into());
        self.maximum(other)
    }

    // Powers and bounds.

    /// `x * x`.
    #[track_caller]
    pub fn square(self) -> Self {
        let _call = self.tape.call("square", &[self]);
        self * self
    }

    /// `1 / sqrt(x)`.
    #[track_caller]
    pub fn rsqrt(self) -> Self {
        let _call = self.tape.call("rsqrt", &[self]);
        self.sqrt().recip()
    }

    /// The square root, with gradient 0 at 0: the input is replaced there, not the output, so that no order of
    /// derivative meets `0 * inf`.
    #[track_caller]
    pub fn guarded_sqrt(self) -> Self {
        let _call = self.tape.call("guarded_sqrt", &[self]);
        let zero = self.equals(0.0);
        zero.select(self.zeros_like(), zero.select(self.ones_like(), self).sqrt())
    }

    /// `|x|`; its gradient at 0 is 0.
    #[track_caller]
    pub fn abs(self) -> Self {
        let _call = self.tape.call("abs", &[self]);
        self.maximum(-self)
    }

    /// The smaller of two; NaN if either is; logical and, of bools. A tie sends half of the gradient to each.
    #[track_caller]
    pub fn minimum(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("minimum", other);
        self.reversed().maximum(other.reversed()).reversed()
    }

    /// `x` kept between two numbers; NaN stays NaN. The gradient is 0 at the bounds and beyond. An infinite bound is none.
    ///
    /// # Panics
    /// If the bounds are in the wrong order, or NaN.
    #[track_caller]
    pub fn clamp(self, low: f64, high: f64) -> Self {
        let _call = self.tape.call("clamp", &[self]);
        self.tape.require(low <= high, "clamp", &[self], || format!("no number lies between {low} and {high}"));
        let (tape, shape, dtype, mut x) = (self.tape, self.shape(), self.dtype(), self);
        if low.is_finite() {
            x = self.less_equal(low).select(tape.full(&shape, low, dtype), x);
        }
        if high.is_finite() {
            x = self.greater_equal(high).select(tape.full(&shape, high, dtype), x);
        }
        x
    }

    // Activations.

    /// `1 / (1 + e^-x)`, as `(1 + tanh(x / 2)) / 2`, which overflows nowhere.
    #[track_caller]
    pub fn sigmoid(self) -> Self {
        let _call = self.tape.call("sigmoid", &[self]);
        (self * 0.5).tanh() * 0.5 + 0.5
    }

    /// `log(1 + e^x)`, as `max(x, 0) + log(1 + e^-|x|)`: nothing in it, or in its gradient, overflows.
    #[track_caller]
    pub fn softplus(self) -> Self {
        let _call = self.tape.call("softplus", &[self]);
        // Selected, not made of kinks that cancel: at 0 each side has the derivatives of the whole.
        let positive = self.greater(0.0);
        let rest = positive.select(-self, self).exp().log1p();
        positive.select(self + rest, rest)
    }

    /// `log(sigmoid(x))`, without underflow.
    #[track_caller]
    pub fn log_sigmoid(self) -> Self {
        let _call = self.tape.call("log_sigmoid", &[self]);
        -(-self).softplus()
    }

    /// `max(x, 0)`; its gradient at 0 is 0, and NaN stays NaN.
    #[track_caller]
    pub fn relu(self) -> Self {
        let _call = self.tape.call("relu", &[self]);
        self.less_equal(0.0).select(self.zeros_like(), self)
    }

    /// `x` where it is positive, `slope * x` elsewhere (Maas et al. 2013); the gradient at 0 is the slope.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Self {
        let _call = self.tape.call("leaky_relu", &[self]);
        self.less_equal(0.0).select(self * slope, self)
    }

    /// `x` where it is positive, `alpha (e^x - 1)` elsewhere (Clevert et al. 2016); the gradient at 0 is alpha.
    #[track_caller]
    pub fn elu(self, alpha: f64) -> Self {
        let _call = self.tape.call("elu", &[self]);
        let positive = self.greater(0.0);
        positive.select(self, positive.select(self.zeros_like(), self).expm1() * alpha)
    }

    /// `x Phi(x)`, with the normal distribution's `Phi(x) = (1 + erf(x / sqrt 2)) / 2` (Hendrycks and Gimpel 2016).
    #[track_caller]
    pub fn gelu(self) -> Self {
        let _call = self.tape.call("gelu", &[self]);
        self * ((self * FRAC_1_SQRT_2).erf() * 0.5 + 0.5)
    }

    /// GELU with `Phi(x)` approximated by `(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    #[track_caller]
    pub fn gelu_tanh(self) -> Self {
        let _call = self.tape.call("gelu_tanh", &[self]);
        // Beyond 10, tanh is 1 in every type; an overflow on the way to it would make its gradient 0 times infinity.
        let x = self.greater(10.0).select(self.tape.full(self.shape(), 10.0, self.dtype()), self);
        let x = x.less(-10.0).select(self.tape.full(self.shape(), -10.0, self.dtype()), x);
        let scale = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
        let inner = x * (x * x * (0.044715 * scale) + scale);
        self * (inner.tanh() * 0.5 + 0.5)
    }

    /// `x sigmoid(x)`, also called swish (Elfwing et al. 2017).
    #[track_caller]
    pub fn silu(self) -> Self {
        let _call = self.tape.call("silu", &[self]);
        self * self.sigmoid()
    }

    /// Zeroes each element with probability `p`, and divides the others by `1 - p`, so that the mean stays (Srivastava et al.
    /// 2014, in the form that leaves evaluation alone). Record it where a model is trained, and not where it is used.
    ///
    /// # Panics
    /// If `p` is not in [0, 1).
    #[track_caller]
    pub fn dropout(self, p: f64, rng: Rng) -> Self {
        let _call = self.tape.call("dropout", &[self]);
        let fits = (0.0..1.0).contains(&p);
        self.tape.require(fits, "dropout", &[self], || format!("{p} is not a probability below 1"));
        rng.bernoulli(self.tape, 1.0 - p, self.shape()).select(self / (1.0 - p), self.zeros_like())
    }
}
