//! Recurrent weights, and products with them on one thread. Every time step multiplies by the same matrix, so it is
//! copied once into panels of a few columns, in the order in which a product reads them.

use super::rows::Output;
use crate::simd::float::Real;
use crate::{
    matmul::{
        matrix::{Matrix, Place},
        tiles::{self, Rows},
        transpose::transpose,
    },
    threads::team::Team,
};
use pulp::Simd;

/// Columns of a panel: those of a tile of sums with the longest vectors.
const COLUMNS: usize = 48;

/// Elements below which the calling thread copies all panels.
const SERIAL: usize = 1 << 15;

/// The right side `[inner, columns]` of products.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, T> {
    elements: &'a [T],
    inner: usize,
    columns: usize,
}

impl<'a, T: Real> Panels<'a, T> {
    /// Panels of a matrix `[inner, columns]` of rows, or with `transposed` of one that lies `[columns, inner]`, in memory
    /// that may hold anything.
    ///
    /// # Panics
    /// If the memory or the matrix has another number of elements.
    pub fn new(team: &Team, from: &[T], [inner, columns]: [usize; 2], transposed: bool, to: &'a mut [T]) -> Self {
        assert!(from.len() == inner * columns && to.len() == from.len());
        let all = Output::new(to);
        let panel = |i: usize| {
            let first = i * COLUMNS;
            let width = COLUMNS.min(columns - first);
            // SAFETY: each panel is written once; the columns before it fill so much.
            let to = unsafe { all.part(inner * first, inner * width) };
            if transposed {
                let from = Matrix { data: from, start: (first * inner) as isize, strides: [1, inner as isize] };
                // SAFETY: the panel is borrowed mutably.
                unsafe { transpose(from, Place::of(to, width), [inner, width]) };
            } else {
                let rows = to.chunks_exact_mut(width).zip(from.chunks_exact(columns));
                rows.for_each(|(to, from)| to.copy_from_slice(&from[first..first + width]));
            }
        };
        let panels = columns.div_ceil(COLUMNS);
        if from.len() < SERIAL {
            (0..panels).for_each(panel);
        } else {
            team.each(panels, panel);
        }
        Self { elements: to, inner, columns }
    }

    /// `out = x w`, or with `add` `out = out + x w`: matrices of rows, those of the result `stride` elements apart.
    ///
    /// # Panics
    /// If the slices do not have that many elements.
    #[inline(always)]
    pub fn product<S: Simd>(&self, simd: S, x: &[T], (out, stride): (&mut [T], usize), add: bool) {
        let rows = x.len() / self.inner;
        assert!(x.len() == rows * self.inner && out.len() == rows * stride && self.columns <= stride);
        let left = Matrix { data: x, start: 0, strides: [self.inner as isize, 1] };
        let all = Place::of(out, stride);
        for first in (0..self.columns).step_by(COLUMNS) {
            let width = COLUMNS.min(self.columns - first);
            let panel = Rows { data: &self.elements[self.inner * first..][..self.inner * width], stride: width };
            let out = Place { start: first as isize, ..all };
            // SAFETY: `out` is borrowed mutably.
            unsafe { tiles::multiply(simd, [rows, self.inner, width], left, panel, out, add) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    struct Product<'a>(Panels<'a, f32>, &'a [f32], &'a mut [f32], usize, bool);

    impl WithSimd for Product<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            self.0.product(simd, self.1, (self.2, self.3), self.4);
        }
    }

    #[test]
    fn panels_multiply_as_their_matrix_does() {
        let team = Team::new(2).expect("a thread");
        let whole = |i: usize| (i * 31 % 17) as f32 - 8.0;
        for [rows, inner, columns] in [[1, 1, 1], [2, 3, 17], [16, 20, 48], [9, 33, 112], [5, 400, 100]] {
            let x: Vec<f32> = (0..rows * inner).map(whole).collect();
            let w: Vec<f32> = (0..inner * columns).map(|i| whole(i + 5)).collect();
            let columns_first: Vec<f32> = (0..w.len()).map(|i| w[i % inner * columns + i / inner]).collect();
            for (from, transposed) in [(&w, false), (&columns_first, true)] {
                let mut room = vec![f32::NAN; w.len()];
                let panels = Panels::new(&team, from, [inner, columns], transposed, &mut room);
                for (gap, add) in [(0, false), (3, false), (0, true), (3, true)] {
                    let stride = columns + gap;
                    let first = if add { 2.0 } else { f32::NAN };
                    let mut out = vec![first; rows * stride];
                    Arch::new().dispatch(Product(panels, &x, &mut out, stride, add));
                    for (i, &out) in out.iter().enumerate() {
                        let (row, column) = (i / stride, i % stride);
                        if column >= columns {
                            assert_eq!(out.to_bits(), first.to_bits(), "between rows");
                            continue;
                        }
                        let sum: f32 = (0..inner).map(|k| x[row * inner + k] * w[k * columns + column]).sum();
                        assert_eq!(out, if add { sum + 2.0 } else { sum }, "{rows}x{inner}x{columns}");
                    }
                }
            }
        }
    }
}
