//! The common part of forward and backward: blocks of queries transposed, and the scores of a block.

use super::{Extents, ROWS};
use crate::matmul::{
    matrix::{Matrix, Place},
    tiles::{Rows, multiply},
};
use crate::simd::float::Real;
use pulp::Simd;
use std::ops::Range;

/// A number for each query of a block. Beyond the block's queries it has no meaning.
pub(super) type Row<T> = [T; ROWS];

/// Rows of a block, as the right side of a product.
pub(super) fn block<T>(rows: &[Row<T>]) -> Rows<'_, T> {
    Rows { data: rows.as_flattened(), stride: ROWS }
}

/// A matrix of scores, with its queries as rows.
pub(super) fn queries<T>(scores: &[Row<T>]) -> Matrix<'_, T> {
    Matrix { data: scores.as_flattened(), start: 0, strides: [1, ROWS as isize] }
}

/// Transposes a matrix of few rows, and multiplies it.
#[inline(always)]
pub(super) fn transposed<T: Real>(from: Rows<T>, [rows, columns]: [usize; 2], factor: T, to: &mut [Row<T>]) {
    for row in 0..rows {
        for (to, &x) in to.iter_mut().zip(from.row(row, columns)) {
            to[row] = x * factor;
        }
    }
}

impl Extents {
    /// The factor of scores.
    pub(super) fn scale<T: Real>(&self) -> T {
        T::from_f64(self.scores.scale())
    }

    /// The scores of some keys and the queries of a block, which are given transposed and multiplied.
    #[inline(always)]
    pub(super) fn scores<S: Simd, T: Real>(
        &self,
        simd: S,
        keys: &Range<usize>,
        k: Rows<T>,
        queries: &Range<usize>,
        transposed: &[Row<T>],
        scores: &mut [Row<T>],
    ) {
        let (shape, k) = ([keys.len(), self.width, ROWS], k.from(keys.start).matrix());
        let to = Place::of(scores.as_flattened_mut(), ROWS);
        // SAFETY: the scores are borrowed mutably.
        unsafe { multiply(simd, shape, k, block(transposed), to, false) };
        if self.scores.causal {
            for (key, scores) in keys.clone().zip(scores) {
                let hidden = key.saturating_sub(queries.start).min(ROWS);
                scores[..hidden].fill(T::LEAST);
            }
        }
    }
}
