//! The arithmetic of chains' instructions, compiled for the vector instructions that the machine has.

use super::{
    Code, Question, groups, roots,
    sink::{Lines, Place, fold, look},
};
use crate::{
    loops::reduce::{Max, Norm, Sum, WIDE},
    memory::elements::Element,
    simd::{
        functions::{Few, Number},
        math,
    },
};
use pulp::Simd;
use wgrad::{
    Data,
    op::{Reduce, Unary},
};

/// The number of elements that a chain computes at a time: enough to make the choice of an instruction cheap, few enough for all
/// values to stay in the cache.
pub(crate) const FEW: usize = 2 * WIDE;
/// The elements that a function computes at a time.
const HALF: usize = FEW / 2;

/// Floats that chains compute in.
pub(crate) trait Lane: Element + PartialEq {
    /// The value of a condition that holds.
    const ONE: Self;

    /// Computes one instruction for [`FEW`] elements.
    ///
    /// # Safety
    /// There are so many elements at each of the pointers that it uses, and nobody else writes those at `to`.
    unsafe fn compute<S: Simd>(simd: S, code: Code, of: impl Fn(usize) -> *const Self, to: *mut Self);

    /// True if [`Lane::fold_made`] can be called.
    fn folds_made<S: Simd>(simd: S, lines: Lines) -> bool;

    /// Adds what an instruction computes of a group of elements, which begin at a place, to accumulators. The bits are those of
    /// [`Lane::compute`] and [`Lane::fold`].
    ///
    /// # Safety
    /// There are so many elements at each of the pointers that it uses.
    unsafe fn fold_made<S: Simd>(simd: S, code: Code, of: [*const Self; 2], at: Place, acc: &mut Data);

    /// Marks the lines that have a non-finite element among these, which begin at a place. Lines with a finite norm have none.
    fn look<S: Simd>(simd: S, x: &[Self], at: Place, acc: &mut Data, norms: &[f64]);

    /// Combines elements, which begin at a place, into accumulators.
    fn fold<S: Simd>(simd: S, question: Question, x: &[Self], at: Place, acc: &mut Data);
}

macro_rules! lanes {
    ($($t:ident: $s:ident, $splat:ident $neg:ident $abs:ident $add:ident $sub:ident $mul:ident $div:ident $lt:ident $eq:ident $select:ident,
        $sqrt:path, $exps:expr, $groups:ident;)*) => { $(
        impl Lane for $t {
            const ONE: $t = 1.0;

            #[inline(always)]
            unsafe fn compute<S: Simd>(simd: S, code: Code, of: impl Fn(usize) -> *const $t, to: *mut $t) {
                let (zero, one) = (simd.$splat(0.0), simd.$splat(1.0));
                let (add, sub, mul, div) = (
                    |a, b| simd.$add(a, b),
                    |a, b| simd.$sub(a, b),
                    |a, b| simd.$mul(a, b),
                    |a, b| simd.$div(a, b),
                );
                let sqrt = |x| $sqrt(simd, x);
                let root = |x| simd.$select(simd.$eq(x, zero), zero, sqrt(x));
                macro_rules! each {
                    ($operands:pat => $result:expr) => {{
                        let from = std::array::from_fn(|operand| of(operand).cast::<S::$s>());
                        for i in 0..FEW * size_of::<$t>() / size_of::<S::$s>() {
                            // SAFETY: promised by the caller.
                            let $operands = from.map(|from| unsafe { from.add(i).read_unaligned() });
                            let result = $result;
                            // SAFETY: as above.
                            unsafe { to.cast::<S::$s>().add(i).write_unaligned(result) };
                        }
                    }};
                }
                // Copies let the compiler vectorize the loops, as long as the arrays are short.
                macro_rules! half {
                    // SAFETY: promised by the caller.
                    ($half:ident, $operand:literal) => { unsafe { of($operand).cast::<[$t; HALF]>().add($half).read() } };
                    ($half:ident => $y:expr) => {{
                        let y = $y;
                        // SAFETY: as above.
                        unsafe { to.cast::<[$t; HALF]>().add($half).write(y) };
                    }};
                }
                let exps = $exps;
                match code {
                    Code::Function(Unary::Exp) => {
                        for half in 0..FEW / HALF {
                            half!(half => exps(half!(half, 0)));
                        }
                    }
                    Code::ExpSub => {
                        for half in 0..FEW / HALF {
                            let (mut x, y) = (half!(half, 0), half!(half, 1));
                            for i in 0..HALF {
                                x[i] -= y[i];
                            }
                            half!(half => exps(x));
                        }
                    }
                    Code::Function(op) => {
                        for half in 0..FEW / HALF {
                            half!(half => <$t>::function(op, Few(half!(half, 0))));
                        }
                    }
                    Code::Copy => each!([a] => a),
                    Code::Neg => each!([a] => simd.$neg(a)),
                    Code::Recip => each!([a] => div(one, a)),
                    Code::Sqrt => each!([a] => sqrt(a)),
                    Code::IsFinite => {
                        let infinity = simd.$splat($t::INFINITY);
                        each!([a] => simd.$select(simd.$lt(simd.$abs(a), infinity), one, zero));
                    }
                    Code::Add => each!([a, b] => add(a, b)),
                    Code::Sub => each!([a, b] => sub(a, b)),
                    Code::Mul => each!([a, b] => mul(a, b)),
                    Code::Div => each!([a, b] => div(a, b)),
                    // NaN does not equal itself, and wins.
                    Code::Max => each!([a, b] => {
                        simd.$select(simd.$eq(b, b), simd.$select(simd.$lt(a, b), b, a), b)
                    }),
                    Code::Lt => each!([a, b] => simd.$select(simd.$lt(a, b), one, zero)),
                    Code::Eq => each!([a, b] => simd.$select(simd.$eq(a, b), one, zero)),
                    Code::Select => each!([a, b, c] => simd.$select(simd.$eq(a, zero), c, b)),
                    Code::SelectLt => each!([a, b, c, d] => simd.$select(simd.$lt(a, b), c, d)),
                    Code::Mul3 => each!([a, b, c] => mul(mul(a, b), c)),
                    Code::Mul3Add => each!([a, b, c, d] => add(mul(mul(a, b), c), d)),
                    Code::MulAdd => each!([a, b, c] => add(mul(a, b), c)),
                    Code::MulSub => each!([a, b, c] => sub(mul(a, b), c)),
                    Code::SubMul => each!([a, b, c] => sub(c, mul(a, b))),
                    Code::Deviation => each!([a, b, c] => mul(sub(a, b), c)),
                    Code::Mix => each!([a, b, c, d] => add(mul(a, b), mul(c, d))),
                    Code::MixAdd => each!([a, b, c, d, e] => add(add(mul(a, b), mul(c, d)), e)),
                    Code::Mix3 => each!([a, b, c, d, e] => add(mul(a, b), mul(mul(c, d), e))),
                    Code::Root => each!([a] => root(a)),
                    Code::Ratio => each!([a, b, c, d, e] => div(mul(a, b), add(mul(sqrt(c), d), e))),
                    Code::RootRatio => each!([a, b, c, d, e] => div(mul(a, b), add(mul(root(c), d), e))),
                    Code::Choose => unreachable!("nothing is computed"),
                }
            }

            #[inline(always)]
            fn folds_made<S: Simd>(simd: S, lines: Lines) -> bool {
                $groups::possible(simd, lines)
            }

            #[inline(always)]
            unsafe fn fold_made<S: Simd>(
                simd: S, code: Code,
                of: [*const $t; 2],
                at: Place,
                acc: &mut Data,
            ) {
                // SAFETY: promised by the caller.
                unsafe { $groups::fold(simd, code, of, at, acc) }
            }

            #[inline(always)]
            fn look<S: Simd>(simd: S, x: &[$t], at: Place, acc: &mut Data, norms: &[f64]) {
                look(simd, x, at, acc, Some(norms));
            }

            #[inline(always)]
            fn fold<S: Simd>(simd: S, question: Question, x: &[$t], at: Place, acc: &mut Data) {
                match question {
                    Question::Reduce(Reduce::Sum) if $groups::sum(simd, x, at, acc) => {}
                    Question::Reduce(Reduce::Sum) => fold::<$t, Sum>(x, at, acc),
                    Question::Reduce(Reduce::Max) => fold::<$t, Max>(x, at, acc),
                    Question::Reduce(Reduce::Norm) => fold::<$t, Norm>(x, at, acc),
                    Question::NonFinite => look(simd, x, at, acc, None),
                    Question::NonFiniteNorm(_) => unreachable!("looked for with the norms at hand"),
                }
            }
        }
    )* };
}
lanes! {
    f32: f32s, splat_f32s neg_f32s abs_f32s add_f32s sub_f32s mul_f32s div_f32s less_than_f32s equal_f32s select_f32s,
        roots::of_f32s, math::exps, groups;
    f64: f64s, splat_f64s neg_f64s abs_f64s add_f64s sub_f64s mul_f64s div_f64s less_than_f64s equal_f64s select_f64s,
        Simd::sqrt_f64s, |x: [f64; HALF]| x.map(f64::exp), no_groups;
}

/// For f64 there are no kernels of groups: the plain loops are used.
mod no_groups {
    use super::*;

    pub fn possible<S: Simd>(_: S, _: Lines) -> bool {
        false
    }

    pub fn sum<S: Simd>(_: S, _: &[f64], _: Place, _: &mut Data) -> bool {
        false
    }

    pub unsafe fn fold<S: Simd>(_: S, code: Code, _: [*const f64; 2], _: Place, _: &mut Data) {
        unreachable!("{code:?} is computed first")
    }
}
