//! The elementwise functions of each element type, a loop over a block for each.

use super::lanes::{Lanes, map1, map2};
use super::{gates, math};
use crate::memory::elements::Element;
use wgrad::op::{Binary, Gate, Unary};

/// A number's type, and the elementwise functions that exist in it.
pub(crate) trait Number: Element + PartialOrd {
    /// A function of one value that gives one of its type.
    ///
    /// # Panics
    /// If it does not exist in this type.
    fn function<E: Each<Self>>(op: Unary, _: E) -> E::Out {
        unreachable!("{op:?} of {}", Self::DTYPE)
    }
    /// That function of each element of a block.
    fn unary(op: Unary, a: Lanes<Self>, out: &mut [Self]) {
        Self::function(op, Block(a, out));
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

/// Values that a function is applied to, each by itself.
pub(crate) trait Each<T> {
    type Out;

    fn each(self, f: impl Fn(T) -> T) -> Self::Out;
    /// As [`Each::each`], with another function for large values, which are rare.
    fn each_but(self, f: impl Fn(T) -> T, large: impl Fn(T) -> bool, other: impl Fn(T) -> T) -> Self::Out;
}

/// The elements of a block.
struct Block<'a, T>(Lanes<'a, T>, &'a mut [T]);

impl<T: Copy> Each<T> for Block<'_, T> {
    type Out = ();

    fn each(self, f: impl Fn(T) -> T) {
        map1(self.0, self.1, f);
    }
    fn each_but(self, f: impl Fn(T) -> T, large: impl Fn(T) -> bool, other: impl Fn(T) -> T) {
        let Self(a, out) = self;
        map1(a, out, &f);
        let any = match a {
            Lanes::Splat(x) => large(x),
            Lanes::Slice(x) | Lanes::Lines(x) | Lanes::Tile(x) => x.iter().fold(false, |any, &x| any | large(x)),
        };
        if any {
            map1(a, out, |x| if large(x) { other(x) } else { f(x) });
        }
    }
}

/// A few elements in registers.
pub(crate) struct Few<T, const N: usize>(pub [T; N]);

impl<T: Copy, const N: usize> Each<T> for Few<T, N> {
    type Out = [T; N];

    #[inline(always)]
    fn each(self, f: impl Fn(T) -> T) -> [T; N] {
        let mut y = self.0;
        y.iter_mut().for_each(|y| *y = f(*y));
        y
    }
    #[inline(always)]
    fn each_but(self, f: impl Fn(T) -> T, large: impl Fn(T) -> bool, other: impl Fn(T) -> T) -> [T; N] {
        let x = self.0;
        let y = self.each(f);
        match x.iter().fold(false, |any, &x| any | large(x)) {
            true => std::array::from_fn(|i| if large(x[i]) { other(x[i]) } else { y[i] }),
            false => y,
        }
    }
}

macro_rules! floats {
    ($($t:ty { exp: $exp:expr, expm1: $expm1:expr, log: $log:expr, log1p: $log1p:expr, trig: $trig:ident, tanh: $tanh:expr, erf: $erf:expr, gates: $gates:ident, pow: $pow:expr })*) => { $(
        impl Number for $t {
            #[inline(always)]
            fn function<E: Each<$t>>(op: Unary, of: E) -> E::Out {
                match op {
                    Unary::Neg => of.each(|x| -x),
                    Unary::Recip => of.each(|x| 1.0 / x),
                    Unary::Sqrt => of.each(|x| x.sqrt()),
                    Unary::Exp => of.each($exp),
                    Unary::Expm1 => of.each($expm1),
                    Unary::Log => of.each($log),
                    Unary::Log1p => of.each($log1p),
                    Unary::Sin => of.each_but($trig::sin, $trig::is_large, <$t>::sin),
                    Unary::Cos => of.each_but($trig::cos, $trig::is_large, <$t>::cos),
                    Unary::Tanh => of.each($tanh),
                    Unary::Erf => of.each($erf),
                    Unary::Sigmoid => of.each($gates::sigmoid),
                    Unary::NormalCdf => of.each($gates::normal_cdf),
                    Unary::NormalPdf => of.each($gates::normal_pdf),
                    Unary::Gated(Gate::Sigmoid) => of.each($gates::silu),
                    Unary::GatedSlope(Gate::Sigmoid) => of.each($gates::silu_slope),
                    Unary::Gated(Gate::Normal) => of.each($gates::gelu),
                    Unary::GatedSlope(Gate::Normal) => of.each($gates::gelu_slope),
                    Unary::Gated(Gate::NormalTanh) => of.each($gates::gelu_tanh),
                    Unary::GatedSlope(Gate::NormalTanh) => of.each($gates::gelu_tanh_slope),
                    Unary::Floor => of.each(|x| x.floor()),
                    Unary::Round => of.each(|x| x.round_ties_even()),
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
        exp: f64::exp, expm1: f64::exp_m1, log: f64::ln, log1p: f64::ln_1p, trig: library, tanh: f64::tanh, erf: libm::erf,
        gates: gates, pow: f64::powf
    }
    f32 {
        exp: math::exp, expm1: math::expm1, log: math::log, log1p: math::log1p, trig: math, tanh: math::tanh,
        erf: math::erf, gates: math, pow: math::pow
    }
}

/// The standard library's functions of angles: no angle is too large for them.
mod library {
    pub fn sin(x: f64) -> f64 {
        x.sin()
    }
    pub fn cos(x: f64) -> f64 {
        x.cos()
    }
    pub fn is_large(_: f64) -> bool {
        false
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
        fn function<E: Each<i32>>(_: Unary, of: E) -> E::Out {
            of.each(i32::wrapping_neg)
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
        (Some(Unary::Neg | Unary::Floor | Unary::Round | Unary::IsFinite), _) | (None, _)
            if binary != Some(Binary::Pow) =>
        {
            1
        }
        _ => 10,
    }
}
