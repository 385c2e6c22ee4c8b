//! The types of convolutions: what is stored, and what sums are kept in.

use super::lanes::{Lanes, map1};
use crate::memory::{
    elements::Element,
    half::{narrow, widen},
};
use pulp::Simd;
use wgrad::f16;

/// A type that is multiplied and added up, in vectors.
pub(crate) trait Real: Element {
    /// A vector of the machine.
    type Vector<S: Simd>: Copy;
    /// Its elements.
    fn lanes<S: Simd>() -> usize;
    /// All elements the same.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b`.
    fn add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b`.
    fn sub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b + c`, rounded once.
    fn mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of a vector's elements.
    fn sum<S: Simd>(simd: S, x: Self::Vector<S>) -> Self;
    /// The sum of two.
    fn plus(self, other: Self) -> Self;
    /// The difference.
    fn minus(self, other: Self) -> Self;
    /// The product.
    fn times(self, other: Self) -> Self;
}

macro_rules! reals {
    ($($t:ident: $vector:ident, $lanes:ident, $splat:ident, $add:ident, $sub:ident, $mul_add:ident, $sum:ident;)*) => { $(
        impl Real for $t {
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
            fn add<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn sub<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
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
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
        }
    )* };
}
reals! {
    f32: f32s, F32_LANES, splat_f32s, add_f32s, sub_f32s, mul_add_f32s, reduce_sum_f32s;
    f64: f64s, F64_LANES, splat_f64s, add_f64s, sub_f64s, mul_add_f64s, reduce_sum_f64s;
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
