//! Gradients of weights: sums of outer products over many rows. Both sides are read in place, a few rows at a time, which stay in
//! the caches. `gemm` would pack both sides, and needs memory for that.

use super::{
    matrix::{Matrix, Place},
    tiles::{self, Rows},
};
use crate::simd::float::Real;
use pulp::{Arch, Simd, WithSimd};
use wgrad::DType;

/// The unit of the result's columns: whole vectors on any machine.
pub(crate) const COLUMNS: usize = 16;
/// Rows that are summed over at a time.
const DEPTH: usize = 128;

/// True if a result of this shape, from rows so many elements apart, is computed by this kernel. The answer does not depend on
/// the number of threads, because the order of sums differs from `gemm`'s.
pub(crate) fn suits(dtype: DType, shape: [usize; 2], apart: [isize; 2]) -> bool {
    /// The longest side whose rows fit in a cache of the second level.
    const LONGEST: usize = 2048;
    /// Rows so far apart, in bytes, share one set of the first cache, which holds few of them.
    const PAGE: usize = 4096;
    let whole = shape.iter().any(|side| side.is_multiple_of(COLUMNS));
    let spread = apart.iter().all(|apart| !(apart.unsigned_abs() * dtype.size()).is_multiple_of(PAGE));
    whole && spread && shape[0].max(shape[1]) <= LONGEST
}

/// `out = lhs rhs` for shape `[m, k, n]`, where the columns of the left side and the rows of the others are contiguous,
/// and n is a multiple of [`COLUMNS`]. Each element is a sum in an order that depends on k alone.
///
/// # Panics
/// If a matrix does not lie within its elements, or not in that way.
///
/// # Safety
/// The elements of the place are alive and overlap neither input, and those of the result nobody else touches.
pub(crate) unsafe fn multiply<T: Real>(shape: [usize; 3], lhs: Matrix<T>, rhs: Matrix<T>, out: Place<T>) {
    assert!(lhs.strides[0] == 1 && rhs.strides[1] == 1 && shape[2].is_multiple_of(COLUMNS));
    let rhs = Rows { data: &rhs.data[rhs.start as usize..], stride: rhs.strides[0] as usize };
    Arch::new().dispatch(Outer { shape, lhs, rhs, out });
}

struct Outer<'a, T> {
    shape: [usize; 3],
    lhs: Matrix<'a, T>,
    rhs: Rows<'a, T>,
    out: Place<T>,
}

impl<T: Real> WithSimd for Outer<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { shape: [m, k, n], lhs, rhs, out } = self;
        for first in (0..k.max(1)).step_by(DEPTH) {
            let lhs = Matrix { start: lhs.start + first as isize * lhs.strides[1], ..lhs };
            // SAFETY: promised by the caller of `multiply`.
            unsafe { tiles::multiply(simd, [m, DEPTH.min(k - first), n], lhs, rhs.from(first), out, first > 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rows_are_summed_over() {
        for [m, k, n] in
            [[1, 1, 16], [2, 0, 32], [3, 127, 16], [8, 128, 48], [9, 129, 64], [33, 500, 80], [128, 257, 128]]
        {
            let (left, right) = (m + 3, n + 1);
            let whole = |len: usize, by: usize| (0..len).map(|i| (i * by % 17) as f32 - 8.0).collect::<Vec<f32>>();
            let (x, y) = (whole(k * left, 31), whole(k * right + 1, 13));
            let lhs = Matrix { data: &x, start: 2, strides: [1, left as isize] };
            let rhs = Matrix { data: &y, start: 1, strides: [right as isize, 1] };
            let mut out = vec![f32::NAN; m * (n + 2)];
            // SAFETY: `out` is borrowed mutably.
            unsafe { multiply([m, k, n], lhs, rhs, Place::of(&mut out, n + 2)) };
            for (i, &out) in out.iter().enumerate() {
                let (row, column) = (i / (n + 2), i % (n + 2));
                let sum: f32 = (0..k).map(|k| x[2 + k * left + row] * y[1 + k * right + column.min(n - 1)]).sum();
                assert!(if column < n { out == sum } else { out.is_nan() }, "{m}x{k}x{n} at {row}, {column}");
            }
        }
    }
}
