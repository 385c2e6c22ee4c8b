//! Sums of groups of elements of one line, by vectors of 512 bits: faster than the compiler's code for [`Sum`], with the same
//! bits. The summands may be results of an instruction, which are never written.

use super::{
    Code,
    sink::{Lines, Place},
};
use crate::{
    loops::reduce::{Monoid, Sum, WIDE},
    memory::elements::Element,
};
use pulp::Simd;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use wgrad::Data;

/// True if vectors have 512 bits.
pub(super) const fn wide<S: Simd>() -> bool {
    cfg!(target_arch = "x86_64") && size_of::<S::f32s>() == 64
}

/// True if [`fold`] can be called.
#[inline(always)]
pub(super) fn possible<S: Simd>(_: S, lines: Lines) -> bool {
    (lines.transposed || wide::<S>()) && lines.width.is_multiple_of(WIDE)
}

/// Adds some elements to accumulators, if they are a group of a line and vectors have 512 bits.
#[inline(always)]
pub(super) fn sum<S: Simd>(simd: S, x: &[f32], at: Place, acc: &mut Data) -> bool {
    let group = wide::<S>() && x.len() == WIDE && at.lines.width.is_multiple_of(WIDE);
    if group {
        let (x, _) = S::as_simd_f32s(x);
        add(simd, |i| x[i], at, acc);
    }
    group
}

/// Adds what an instruction computes of a group of elements to accumulators.
///
/// # Safety
/// There are so many elements at each of the pointers that it uses.
#[inline(always)]
pub(super) unsafe fn fold<S: Simd>(simd: S, code: Code, of: [*const f32; 2], at: Place, acc: &mut Data) {
    if !wide::<S>() {
        // SAFETY: promised by the caller.
        let group = |operand: usize| unsafe { of[operand].cast::<[f32; WIDE]>().read() };
        let mut x = group(0);
        match code {
            Code::Neg => x.iter_mut().for_each(|x| *x = -*x),
            _ => x.iter_mut().zip(group(1)).for_each(|(x, y)| *x *= y),
        }
        f64::slice_mut(acc)[at.column..].iter_mut().zip(x).for_each(|(acc, x)| *acc = Sum::add(*acc, x));
        return;
    }
    // SAFETY: promised by the caller.
    let vector = |operand: usize, i: usize| unsafe { of[operand].cast::<S::f32s>().add(i).read_unaligned() };
    match code {
        Code::Neg => add(simd, |i| simd.neg_f32s(vector(0, i)), at, acc),
        _ => add(simd, |i| simd.mul_f32s(vector(0, i), vector(1, i)), at, acc),
    }
}

/// Adds the elements of eight vectors of 512 bits to the accumulator of their line, or of each its own.
#[inline(always)]
fn add<S: Simd>(simd: S, x: impl Fn(usize) -> S::f32s, at: Place, acc: &mut Data) {
    let acc = f64::slice_mut(acc);
    if !at.lines.transposed {
        acc[at.line] += total(simd, x);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    for (i, acc) in acc[at.column..][..WIDE].as_chunks_mut().0.iter_mut().enumerate() {
        assert!(wide::<S>());
        // SAFETY: vectors of this size are what the machine has with AVX-512 alone.
        unsafe { apart(std::mem::transmute_copy(&x(i)), acc) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no sum of vectors of 512 bits is asked for")
}

/// The sum of the elements of eight vectors of 512 bits.
#[inline(always)]
fn total<S: Simd>(simd: S, x: impl Fn(usize) -> S::f32s) -> f64 {
    let add = |a, b| simd.add_f32s(a, b);
    let (near, far) = (add(add(x(0), x(1)), add(x(2), x(3))), add(add(x(4), x(5)), add(x(6), x(7))));
    let all = add(near, far);
    #[cfg(target_arch = "x86_64")]
    {
        assert!(wide::<S>());
        // SAFETY: vectors of this size are what the machine has with AVX-512 alone.
        unsafe { across(std::mem::transmute_copy(&all)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("no sum of vectors of 512 bits is asked for, of {all:?}")
}

/// The sum of the elements of a vector, in f64, two by two.
///
/// # Safety
/// The machine has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn across(x: __m512) -> f64 {
    let upper = _mm512_shuffle_f32x4::<0b1110>(x, x);
    let [x, y] = [x, upper].map(|x| _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    let x = _mm512_add_pd(x, y);
    let x = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd::<1>(x));
    let x = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd::<1>(x));
    _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)))
}

/// Adds each element of a vector to an accumulator of its own.
///
/// # Safety
/// The machine has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn apart(x: __m512, acc: &mut [f64; 16]) {
    let upper = _mm512_shuffle_f32x4::<0b1110>(x, x);
    for (x, acc) in [x, upper].into_iter().zip(acc.as_chunks_mut::<8>().0) {
        let x = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        // SAFETY: eight elements are there.
        unsafe { _mm512_storeu_pd(acc.as_mut_ptr(), _mm512_add_pd(_mm512_loadu_pd(acc.as_ptr()), x)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::chain::sink;
    use crate::loops::reduce;
    use pulp::{Arch, WithSimd};

    /// Two groups, side by side in each of two lines, or one below the other.
    struct Groups<'a> {
        a: &'a [f32; 2 * WIDE],
        b: &'a [f32; 2 * WIDE],
        code: Code,
        lines: Lines,
    }

    impl WithSimd for Groups<'_> {
        /// Accumulators after sums of the results, and after sums made of what they are results of.
        type Output = [Vec<f64>; 2];

        fn with_simd<S: Simd>(self, simd: S) -> [Vec<f64>; 2] {
            let Self { a, b, code, lines } = self;
            let mut accs = [(); 2].map(|()| Data::F64(vec![0.125; 2 * WIDE]));
            for first in [0, WIDE] {
                let at = lines.start().behind(first);
                let x: Vec<f32> =
                    (first..first + WIDE).map(|i| if code == Code::Neg { -a[i] } else { a[i] * b[i] }).collect();
                if !sum(simd, &x, at, &mut accs[0]) {
                    sink::fold::<f32, reduce::Sum>(&x, at, &mut accs[0]);
                }
                if possible(simd, lines) {
                    let of = [a, b].map(|x| x[first..].as_ptr());
                    // SAFETY: a group is there from each of these on.
                    unsafe { super::fold(simd, code, of, at, &mut accs[1]) };
                } else {
                    sink::fold::<f32, reduce::Sum>(&x, at, &mut accs[1]);
                }
            }
            accs.map(|acc| f64::slice(&acc).to_vec())
        }
    }

    #[test]
    fn sums_by_vectors_have_the_bits_of_sums_by_elements() {
        let numbers = |seed: usize| {
            std::array::from_fn(|i| (((i + seed) * 7919 % 20011) as f32 - 1e4) * 1.1f32.powi(i as i32 % 40))
        };
        let (a, b) = (numbers(0), numbers(7));
        for (width, transposed) in [(WIDE, false), (2 * WIDE, false), (WIDE, true), (2 * WIDE, true)] {
            let lines = Lines { width, transposed };
            for code in [Code::Mul, Code::Neg] {
                let mut want = Data::F64(vec![0.125; 2 * WIDE]);
                let x: Vec<f32> = (0..2 * WIDE).map(|i| if code == Code::Neg { -a[i] } else { a[i] * b[i] }).collect();
                for first in [0, WIDE] {
                    sink::fold::<f32, reduce::Sum>(&x[first..][..WIDE], lines.start().behind(first), &mut want);
                }
                let have = Arch::new().dispatch(Groups { a: &a, b: &b, code, lines });
                for have in have {
                    assert_eq!(have, f64::slice(&want), "{code:?}, lines of {width}, transposed: {transposed}");
                }
            }
        }
    }
}
