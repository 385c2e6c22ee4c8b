//! The types of arithmetic, and those that convolutions are stored in.

use super::{
    functions::Number,
    gates,
    lanes::{Lanes, map1},
    math,
};
use crate::memory::{
    elements::Element,
    half::{narrow, widen},
};
use pulp::Simd;
use std::ops::{Add, Div, Mul, Sub};
use wgrad::f16;

/// The types of arithmetic: f32 and f64.
pub(crate) trait Real:
    Number + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;

    /// A vector of the machine.
    type Vector<S: Simd>: Copy;
    /// Its elements.
    fn lanes<S: Simd>() -> usize;
    /// All elements the same.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b`.
    fn vector_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b`.
    fn vector_sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b + c`, rounded once.
    fn mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of a vector's elements.
    fn sum<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;

    /// These as elementwise kernels compute them.
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-x)`, for numbers of moderate size the faster.
    fn sigmoid(self) -> Self;

    /// The same where it is finite, else 0.
    fn or_zero(self) -> Self;
    /// The same, but 0 for what comes near the end of the normal range. Gradients that vanish over time get there, and
    /// processors take a hundred times as long over numbers below it: here that was nine tenths of a backward pass. The
    /// bound leaves room for a product with a weight. (GPUs round such numbers to 0 as a matter of course.)
    fn flushed(self) -> Self;
    /// The same, but 0 for a share of a soft-max that is nothing beside the largest, which is 1: products with it would come
    /// to the end of the normal range.
    fn share(self) -> Self;
}

macro_rules! reals {
    ($($t:ident: $vector:ident, $lanes:ident, $splat:ident, $add:ident, $sub:ident, $mul_add:ident, $sum:ident,
        $exp:path, $ln:path, $tanh:path, $sigmoid:path, $nothing:literal;)*) => { $(
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;

            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> S::$vector {
                simd.$splat(x)
            }
            #[inline(always)]
            fn vector_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn vector_sub<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$sub(a, b)
            }
            #[inline(always)]
            fn mul_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }
            #[inline(always)]
            fn sum<S: Simd>(simd: S, x: S::$vector) -> Self {
                simd.$sum(x)
            }
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> $t {
                $ln(self)
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                $tanh(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> $t {
                $sigmoid(self)
            }
            #[inline(always)]
            fn or_zero(self) -> $t {
                if self.is_finite() { self } else { 0.0 }
            }
            #[inline(always)]
            fn flushed(self) -> $t {
                if self.abs() < $t::MIN_POSITIVE * 65536.0 { 0.0 } else { self }
            }
            #[inline(always)]
            fn share(self) -> $t {
                if self < $nothing { 0.0 } else { self }
            }
        }
    )* };
}
reals! {
    f32: f32s, F32_LANES, splat_f32s, add_f32s, sub_f32s, mul_add_f32s, reduce_sum_f32s,
        math::exp, math::log, math::tanh, math::quick_sigmoid, 1e-24;
    f64: f64s, F64_LANES, splat_f64s, add_f64s, sub_f64s, mul_add_f64s, reduce_sum_f64s,
        f64::exp, f64::ln, f64::tanh, gates::sigmoid, 1e-180;
}

/// A type that images and weights are stored in.
pub(crate) trait Stored: Element {
    /// The type of sums of their products.
    type Sum: Real;
    /// The same numbers.
    fn read(from: &[Self], to: &mut [Self::Sum]);
    /// The same numbers where they are, if they are stored as they are summed.
    fn seen(from: &[Self]) -> Option<&[Self::Sum]>;
    /// The same number.
    fn one(self) -> Self::Sum;
    /// The nearest numbers.
    fn write(from: &[Self::Sum], to: &mut [Self]);
    /// The nearest number.
    fn nearest(sum: Self::Sum) -> Self;
}

/// Copies. Short rows, of which there are many, are not worth a call.
#[inline(always)]
fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    let len = from.len();
    match len {
        0 => {}
        1..4 => {
            to[len / 2] = from[len / 2];
            to[0] = from[0];
            to[len - 1] = from[len - 1];
        }
        4..8 => {
            to[..4].copy_from_slice(&from[..4]);
            to[len - 4..].copy_from_slice(&from[len - 4..]);
        }
        8..=16 => {
            to[..8].copy_from_slice(&from[..8]);
            to[len - 8..].copy_from_slice(&from[len - 8..]);
        }
        _ => to.copy_from_slice(from),
    }
}

macro_rules! stored {
    ($($t:ty),*) => { $(
        impl Stored for $t {
            type Sum = $t;
            #[inline(always)]
            fn read(from: &[$t], to: &mut [$t]) {
                copy(from, to);
            }
            #[inline(always)]
            fn seen(from: &[$t]) -> Option<&[$t]> {
                Some(from)
            }
            #[inline(always)]
            fn one(self) -> $t {
                self
            }
            #[inline(always)]
            fn write(from: &[$t], to: &mut [$t]) {
                copy(from, to);
            }
            #[inline(always)]
            fn nearest(sum: $t) -> $t {
                sum
            }
        }
    )* };
}
stored!(f32, f64);

impl Stored for f16 {
    type Sum = f32;
    #[inline(always)]
    fn read(from: &[f16], to: &mut [f32]) {
        map1(Lanes::Slice(from), to, widen);
    }
    #[inline(always)]
    fn seen(_: &[f16]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn one(self) -> f32 {
        widen(self)
    }
    #[inline(always)]
    fn write(from: &[f32], to: &mut [f16]) {
        map1(Lanes::Slice(from), to, narrow);
    }
    #[inline(always)]
    fn nearest(sum: f32) -> f16 {
        narrow(sum)
    }
}
