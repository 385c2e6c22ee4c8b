//! The elementwise functions of each element type, a loop over a block for each.

use super::lanes::{Lanes, map1, map2};
use super::{gates, math};
use crate::memory::elements::Element;
use wgrad::op::{Binary, Gate, Unary};

/// A number's type, and the elementwise functions that exist in it.
pub(crate) trait Number: Element + PartialOrd {
    /// # Panics
    /// If the function does not exist in this type, as it does in none of those below.
    fn unary(op: Unary, _: Lanes<Self>, _: &mut [Self]) {
        unreachable!("{op:?} of {}", Self::DTYPE)
    }
    fn binary(op: Binary, a: Lanes<Self>, b: Lanes<Self>, out: &mut [Self]);
    fn is_finite(_: Lanes<Self>, _: &mut [bool]) {
        unreachable!("only floats can be infinite, not {}", Self::DTYPE)
    }
    /// The larger of two values; NaN if either is.
    fn larger(self, other: Self) -> Self;
    /// The maximum of nothing.
    const LEAST: Self;
}

/// `a < b` or `a == b`.
pub(crate) fn compare<T: Number>(op: Binary, a: Lanes<T>, b: Lanes<T>, out: &mut [bool]) {
    match op {
        Binary::Lt => map2(a, b, out, |a, b| a < b),
        _ => map2(a, b, out, |a, b| a == b),
    }
}

macro_rules! floats {
    ($($t:ty { exp: $exp:expr, expm1: $expm1:expr, log: $log:expr, log1p: $log1p:expr, sin: $sin:expr, cos: $cos:expr, tanh: $tanh:expr, erf: $erf:expr, gates: $gates:ident, pow: $pow:expr })*) => { $(
        impl Number for $t {
            fn unary(op: Unary, a: Lanes<$t>, out: &mut [$t]) {
                match op {
                    Unary::Neg => map1(a, out, |x| -x),
                    Unary::Recip => map1(a, out, |x| 1.0 / x),
                    Unary::Sqrt => map1(a, out, |x| x.sqrt()),
                    Unary::Exp => map1(a, out, $exp),
                    Unary::Expm1 => map1(a, out, $expm1),
                    Unary::Log => map1(a, out, $log),
                    Unary::Log1p => map1(a, out, $log1p),
                    Unary::Sin => $sin(a, out),
                    Unary::Cos => $cos(a, out),
                    Unary::Tanh => map1(a, out, $tanh),
                    Unary::Erf => map1(a, out, $erf),
                    Unary::Sigmoid => map1(a, out, $gates::sigmoid),
                    Unary::NormalCdf => map1(a, out, $gates::normal_cdf),
                    Unary::NormalPdf => map1(a, out, $gates::normal_pdf),
                    Unary::Gated(Gate::Sigmoid) => map1(a, out, $gates::silu),
                    Unary::GatedSlope(Gate::Sigmoid) => map1(a, out, $gates::silu_slope),
                    Unary::Gated(Gate::Normal) => map1(a, out, $gates::gelu),
                    Unary::GatedSlope(Gate::Normal) => map1(a, out, $gates::gelu_slope),
                    Unary::Gated(Gate::NormalTanh) => map1(a, out, $gates::gelu_tanh),
                    Unary::GatedSlope(Gate::NormalTanh) => map1(a, out, $gates::gelu_tanh_slope),
                    Unary::IsFinite => unreachable!("gives bool"),
                }
            }
            fn binary(op: Binary, a: Lanes<$t>, b: Lanes<$t>, out: &mut [$t]) {
                match op {
                    Binary::Add => map2(a, b, out, |a, b| a + b),
                    Binary::Sub => map2(a, b, out, |a, b| a - b),
                    Binary::Mul => map2(a, b, out, |a, b| a * b),
                    Binary::Div => map2(a, b, out, |a, b| a / b),
                    Binary::Pow => map2(a, b, out, $pow),
                    Binary::Max => map2(a, b, out, Number::larger),
                    Binary::Lt | Binary::Eq => unreachable!("gives bool"),
                }
            }
            fn is_finite(a: Lanes<$t>, out: &mut [bool]) {
                map1(a, out, |x| x.is_finite());
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                // Without a branch, so that it vectorises.
                if (self < other) | other.is_nan() { other } else { self }
            }
            const LEAST: $t = <$t>::NEG_INFINITY;
        }
    )* };
}
floats! {
    f64 {
        exp: f64::exp, expm1: f64::exp_m1, log: f64::ln, log1p: f64::ln_1p, sin: |a, out: &mut [f64]| map1(a, out, f64::sin),
        cos: |a, out: &mut [f64]| map1(a, out, f64::cos), tanh: f64::tanh, erf: libm::erf, gates: gates, pow: f64::powf
    }
    f32 {
        exp: math::exp, expm1: math::expm1, log: math::log, log1p: math::log1p, sin: math::sin, cos: math::cos, tanh: math::tanh, erf: math::erf, gates: math, pow: math::pow
    }
}

macro_rules! integers {
    ($($t:ty { div: $div:expr, $($unary:item)? })*) => { $(
        impl Number for $t {
            $($unary)?
            fn binary(op: Binary, a: Lanes<$t>, b: Lanes<$t>, out: &mut [$t]) {
                match op {
                    Binary::Add => map2(a, b, out, <$t>::wrapping_add),
                    Binary::Sub => map2(a, b, out, <$t>::wrapping_sub),
                    Binary::Mul => map2(a, b, out, <$t>::wrapping_mul),
                    Binary::Div => map2(a, b, out, $div),
                    Binary::Max => map2(a, b, out, Number::larger),
                    _ => unreachable!("{op:?} of {}", Self::DTYPE),
                }
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                self.max(other)
            }
            const LEAST: $t = <$t>::MIN;
        }
    )* };
}
integers! {
    u32 { div: |a, b| a.checked_div(b).unwrap_or(0), }
    i32 {
        div: |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
        fn unary(_: Unary, a: Lanes<i32>, out: &mut [i32]) {
            map1(a, out, i32::wrapping_neg);
        }
    }
}

impl Number for bool {
    fn binary(op: Binary, a: Lanes<bool>, b: Lanes<bool>, out: &mut [bool]) {
        match op {
            Binary::Max => map2(a, b, out, Number::larger),
            _ => unreachable!("{op:?} of bool"),
        }
    }
    #[inline(always)]
    fn larger(self, other: bool) -> bool {
        self | other
    }
    const LEAST: bool = false;
}

/// The weight of one element of a function's result, an addition being 1.
pub(crate) fn weight(unary: Option<Unary>, binary: Option<Binary>) -> usize {
    match (unary, binary) {
        (Some(Unary::Exp | Unary::Expm1 | Unary::Tanh), _) => 4,
        (Some(Unary::Sqrt | Unary::Recip), _) | (_, Some(Binary::Div)) => 2,
        (Some(Unary::Neg | Unary::IsFinite), _) | (None, _) if binary != Some(Binary::Pow) => 1,
        _ => 10,
    }
}
