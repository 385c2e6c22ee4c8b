//! The arithmetic of sequence kernels: floats, and loops over rows.

use crate::simd::{self, gates, math};
use std::ops::{Add, Mul, Sub};

/// An element type of sequences: f32 and f64 alone.
#[allow(private_bounds, reason = "so that there are no others")]
pub trait Real: simd::float::Real + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// The same, but 0 for what comes near the end of the normal range. Gradients that vanish over time get there, and
    /// processors take a hundred times as long over numbers below it: here that was nine tenths of a backward pass. The
    /// bound leaves room for a product with a weight. (GPUs round such numbers to 0 as a matter of course.)
    fn flushed(self) -> Self;

    /// The hyperbolic tangent, as elementwise kernels compute it.
    fn tanh(self) -> Self;

    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;

    /// The slope of the sigmoid where its value is this, `y (1 - y)`.
    #[inline(always)]
    fn sigmoid_slope(self) -> Self {
        self * (Self::ONE - self)
    }

    /// The slope of the hyperbolic tangent where its value is this, `1 - y^2`.
    #[inline(always)]
    fn tanh_slope(self) -> Self {
        Self::ONE - self * self
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn flushed(self) -> f32 {
        if self.abs() < f32::MIN_POSITIVE * 65536.0 { 0.0 } else { self }
    }

    #[inline(always)]
    fn tanh(self) -> f32 {
        math::tanh(self)
    }

    #[inline(always)]
    fn sigmoid(self) -> f32 {
        math::quick_sigmoid(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn flushed(self) -> f64 {
        if self.abs() < f64::MIN_POSITIVE * 65536.0 { 0.0 } else { self }
    }

    #[inline(always)]
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }

    #[inline(always)]
    fn sigmoid(self) -> f64 {
        gates::sigmoid(self)
    }
}

/// Replaces each element by a function of it and of the elements at the same place elsewhere.
///
/// The compiler makes vector instructions of this where it can check that the slices do not overlap. It does so for few
/// slices, and once for all rows of a loop: an input in the rows of the same matrix as `out` then seems to overlap, and
/// the loop goes over single elements, ten times slower.
#[inline(always)]
pub(super) fn update<T: Copy, const N: usize>(out: &mut [T], x: [&[T]; N], f: impl Fn(T, [T; N]) -> T) {
    let len = out.len();
    let x = x.map(|x| &x[..len]);
    // Counted, not an iterator over `out`: so all checks of bounds disappear. A check that stays has the compiler leave
    // the last vector of each call to a slow loop over single elements.
    #[allow(clippy::needless_range_loop)]
    for i in 0..len {
        out[i] = f(out[i], x.map(|x| x[i]));
    }
}
