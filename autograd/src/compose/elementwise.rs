//! Elementwise functions: comparisons and logic, roots, activations, dropout.

use crate::{
    DType, Operand, Rng, Tensor,
    op::{Gate, Op, Unary},
    simplify::uniform,
};
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
    /// If either is not a bool tensor.
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
        self.widened("rsqrt", |x| {
            // The rules of root and reciprocal together would round seven times.
            let root = |x: &[Tensor<'t>]| vec![x[0].sqrt().recip()];
            x.tape.custom_vjp(&[x], root, |v| vec![v.cotangents[0].map(|g| g * (v.outputs[0] * -0.5 / v.inputs[0]))])[0]
        })
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

    /// -1, 0 or 1, as `x` is negative, zero or positive; NaN stays NaN. No gradient flows through it.
    #[track_caller]
    pub fn sign(self) -> Self {
        let _call = self.tape.call("sign", &[self]);
        let x = self.detach();
        let one = x.ones_like();
        let positive = x.greater(0.0).select(one, x);
        // Unsigned numbers have no -1, and none is negative.
        if x.dtype() == DType::U32 { positive } else { x.less(0.0).select(-one, positive) }
    }

    /// The smallest whole number that is not below `x`. No gradient flows through it.
    #[track_caller]
    pub fn ceil(self) -> Self {
        let _call = self.tape.call("ceil", &[self]);
        -(-self).floor()
    }

    /// The smaller of two; NaN if either is; logical and, of bools. A tie sends half of the gradient to each.
    #[track_caller]
    pub fn minimum(self, other: impl Into<Operand<'t>>) -> Self {
        let (_call, other) = self.call_with("minimum", other);
        self.reversed().maximum(other.reversed()).reversed()
    }

    /// `x` kept between two numbers; NaN stays NaN. The gradient is 0 at the bounds and beyond. An infinite bound has
    /// no effect.
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

    /// `f` of this tensor; f16 is computed in f32, so that values and gradients are rounded once.
    #[track_caller]
    fn widened(self, name: &'static str, f: impl FnOnce(Self) -> Self) -> Self {
        let _call = self.tape.call(name, &[self]);
        self.tape.require(self.dtype().is_float(), name, &[self], || "needs floats".into());
        f(self.cast(self.wide())).cast(self.dtype())
    }

    /// `log(1 + e^x)`, as `max(x, 0) + log(1 + e^-|x|)`: neither it nor its gradient overflows.
    #[track_caller]
    pub fn softplus(self) -> Self {
        self.widened("softplus", |x| {
            // A selection, not a sum of functions with kinks: at 0 each branch has the derivatives of the whole.
            let positive = x.greater(0.0);
            let rest = positive.select(-x, x).exp().log1p();
            positive.select(x + rest, rest)
        })
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
        self.widened("leaky_relu", |x| x.less_equal(0.0).select(x * slope, x))
    }

    /// `x` where it is positive, `alpha (e^x - 1)` elsewhere (Clevert et al. 2016); the gradient at 0 is alpha.
    #[track_caller]
    pub fn elu(self, alpha: f64) -> Self {
        self.widened("elu", |x| {
            let positive = x.greater(0.0);
            positive.select(x, positive.select(x.zeros_like(), x).expm1() * alpha)
        })
    }

    /// `x Phi(x)`, with the normal distribution's `Phi(x) = (1 + erf(x / sqrt 2)) / 2` (Hendrycks and Gimpel 2016).
    #[track_caller]
    pub fn gelu(self) -> Self {
        self.tape.push(Op::Unary(Unary::Gated(Gate::Normal)), &[self])
    }

    /// GELU with `Phi(x)` approximated by `(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    #[track_caller]
    pub fn gelu_tanh(self) -> Self {
        self.tape.push(Op::Unary(Unary::Gated(Gate::NormalTanh)), &[self])
    }

    /// `x sigmoid(x)`, also called swish (Elfwing et al. 2017).
    #[track_caller]
    pub fn silu(self) -> Self {
        self.tape.push(Op::Unary(Unary::Gated(Gate::Sigmoid)), &[self])
    }

    /// The second derivative of `x gate(x)`.
    #[track_caller]
    pub(crate) fn gated_curvature(self, gate: Gate) -> Self {
        // Far out the curvature is 0: clamp x, so that its powers do not overflow.
        let bound = |bound: f64| self.tape.full(self.shape(), bound, self.dtype());
        let x = self.greater(1000.0).select(bound(1000.0), self);
        let x = x.less(-1000.0).select(bound(-1000.0), x);
        // The gate is the sigmoid of `x (a + b x^2)`, and its slope that of the sigmoid times `a + 3 b x^2`.
        let (a, b) = match gate {
            Gate::Normal => return x.normal_pdf() * (2.0 - x * x),
            Gate::Sigmoid => (1.0, 0.0),
            Gate::NormalTanh => (2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * 0.044715),
        };
        let (inner, slope) = (x * (x * x * b + a), x * x * (3.0 * b) + a);
        let (gate, rest) = (inner.sigmoid(), (-inner).sigmoid());
        gate * rest * (slope * 2.0 + x * (x * (6.0 * b) + slope * slope * (rest - gate)))
    }

    /// The derivatives of `y = self^power` by the base and by the power. Both `x^0` in x and `0^p` in p have slope 0 at
    /// x = 0. Inputs are replaced there, not results, so that no order of derivative meets `0 * inf`, and the
    /// derivative of `p x^(p-1)` by p is kept at p = 0.
    #[track_caller]
    pub(crate) fn power_slopes(self, power: Self, y: Self) -> [Self; 2] {
        let (zero, one, flat) = (self.zeros_like(), self.ones_like(), self.equals(0.0));
        let base = flat.select(one, self);
        let less = power - 1.0;
        // The rounding error of `p - 1` (Knuth 1969): the power amplifies it by the logarithm of x.
        let taken = less - power;
        let lost = (power - (less - taken)) - (taken + 1.0);
        let d_base = power * flat.and(power.equals(0.0)).select(one, self).pow(less);
        let d_base = match uniform(lost) {
            Some(0.0) => d_base,
            // An infinite base needs no correction.
            _ => d_base * (lost * self.is_finite().select(base, one).abs().log() + 1.0),
        };
        [d_base, flat.select(zero, y * base.log())]
    }

    /// Zeroes each element with probability `p`, and divides the others by `1 - p`, so that the mean stays (Srivastava
    /// et al. 2014, in the inverted form, which needs no scaling in evaluation). Record it for training only.
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
