//! Loops over a block, one per elementwise function: compiled for the vector instructions that the machine turns out to
//! have, with the same bits on each.

use crate::{gates, math, memory::Element};
use pulp::{Arch, NullaryFnOnce};
use wgrad::op::{Binary, Gate, Unary};

/// The values that an instruction uses: one per element of the block, one per line of it, a line that all lines are
/// equal to, or one for all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lanes<'a, T> {
    Slice(&'a [T]),
    Lines(&'a [T]),
    Tile(&'a [T]),
    Splat(T),
}

impl<T: Copy> Lanes<'_, T> {
    /// How many lines a block of `len` elements has, as far as this operand is concerned.
    #[inline(always)]
    pub fn lines(&self, len: usize) -> usize {
        match self {
            Self::Lines(x) => x.len(),
            Self::Tile(x) => len / x.len(),
            _ => 1,
        }
    }

    /// What one line of the block uses.
    #[inline(always)]
    pub fn line(&self, line: usize, width: usize) -> Self {
        match *self {
            Self::Slice(x) => Self::Slice(&x[line * width..][..width]),
            Self::Lines(x) => Self::Splat(x[line]),
            Self::Tile(x) => Self::Slice(x),
            splat => splat,
        }
    }
}

struct Map1<'a, A, O, F>(&'a [A], &'a mut [O], F);

impl<A: Copy, O, F: Fn(A) -> O> NullaryFnOnce for Map1<'_, A, O, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(a, out, f) = self;
        out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a));
    }
}

struct Map2<'a, A, O, F>(Lanes<'a, A>, Lanes<'a, A>, &'a mut [O], F);

impl<A: Copy, O: Copy, F: Fn(A, A) -> O> NullaryFnOnce for Map2<'_, A, O, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(a, b, out, f) = self;
        let width = out.len() / a.lines(out.len()).max(b.lines(out.len()));
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            match (a.line(r, width), b.line(r, width)) {
                (Lanes::Slice(a), Lanes::Slice(b)) => {
                    out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (&a, &b))| *o = f(a, b));
                }
                (Lanes::Slice(a), Lanes::Splat(b)) => out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a, b)),
                (Lanes::Splat(a), Lanes::Slice(b)) => out.iter_mut().zip(b).for_each(|(o, &b)| *o = f(a, b)),
                (Lanes::Splat(a), Lanes::Splat(b)) => out.fill(f(a, b)),
                _ => unreachable!("a line uses a slice or one value"),
            }
        }
    }
}

struct Pick<'a, T>(Lanes<'a, bool>, Lanes<'a, T>, Lanes<'a, T>, &'a mut [T]);

impl<T: Copy> NullaryFnOnce for Pick<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(condition, a, b, out) = self;
        let pick = |c: bool, a: T, b: T| if c { a } else { b };
        let [c, d, e] = [condition.lines(out.len()), a.lines(out.len()), b.lines(out.len())];
        let width = out.len() / c.max(d).max(e);
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let condition = match condition.line(r, width) {
                Lanes::Slice(condition) => condition,
                Lanes::Splat(true) => {
                    copy(a.line(r, width), out);
                    continue;
                }
                _ => {
                    copy(b.line(r, width), out);
                    continue;
                }
            };
            let out = out.iter_mut().zip(condition);
            match (a.line(r, width), b.line(r, width)) {
                (Lanes::Slice(a), Lanes::Slice(b)) => {
                    out.zip(a.iter().zip(b)).for_each(|((o, &c), (&a, &b))| *o = pick(c, a, b));
                }
                (Lanes::Slice(a), Lanes::Splat(b)) => out.zip(a).for_each(|((o, &c), &a)| *o = pick(c, a, b)),
                (Lanes::Splat(a), Lanes::Slice(b)) => out.zip(b).for_each(|((o, &c), &b)| *o = pick(c, a, b)),
                (Lanes::Splat(a), Lanes::Splat(b)) => out.for_each(|(o, &c)| *o = pick(c, a, b)),
                _ => unreachable!("a line uses a slice or one value"),
            }
        }
    }
}

/// `out[i] = f(a[i])`.
pub(crate) fn map1<A: Copy, O: Copy>(a: Lanes<A>, out: &mut [O], f: impl Fn(A) -> O) {
    map1_by(a, out, &f);
}

fn map1_by<A: Copy, O: Copy, F: Fn(A) -> O>(a: Lanes<A>, out: &mut [O], f: &F) {
    match a {
        Lanes::Slice(a) => Arch::new().dispatch(Map1(a, out, f)),
        Lanes::Splat(a) => out.fill(f(a)),
        Lanes::Lines(x) => {
            let width = out.len() / x.len();
            out.chunks_exact_mut(width).zip(x).for_each(|(out, &x)| out.fill(f(x)));
        }
        Lanes::Tile(x) => out.chunks_exact_mut(x.len()).for_each(|out| map1_by(Lanes::Slice(x), out, f)),
    }
}

/// `out[i] = f(a[i], b[i])`.
pub(crate) fn map2<A: Copy, O: Copy>(a: Lanes<A>, b: Lanes<A>, out: &mut [O], f: impl Fn(A, A) -> O) {
    Arch::new().dispatch(Map2(a, b, out, f));
}

/// Copies, or repeats.
pub(crate) fn copy<T: Copy>(a: Lanes<T>, out: &mut [T]) {
    match a {
        Lanes::Slice(a) => out.copy_from_slice(a),
        Lanes::Tile(a) => out.chunks_exact_mut(a.len()).for_each(|out| out.copy_from_slice(a)),
        a => map1(a, out, |a| a),
    }
}

/// `out[i] = condition[i] ? a[i] : b[i]`.
pub(crate) fn select<T: Copy>(condition: Lanes<bool>, a: Lanes<T>, b: Lanes<T>, out: &mut [T]) {
    Arch::new().dispatch(Pick(condition, a, b, out));
}

/// Conversion between numbers, by way of f64, which holds every value of every type.
pub(crate) fn cast<A: Element, O: Element>(a: Lanes<A>, out: &mut [O]) {
    map1(a, out, |a| O::from_f64(a.into_f64()));
}

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
