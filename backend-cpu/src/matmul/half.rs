//! Matrix products of f16: both sides are converted a stretch of the inner dimension at a time, and sums are kept in f32.

use super::{
    float::Float,
    gemm::multiply,
    matrix::{Matrix, Place},
};
use crate::{
    memory::{
        half::{narrow, widen},
        strides::at,
    },
    simd::lanes::{Lanes, map1},
};
use wgrad::f16;

/// The part of a product's inner dimension that is converted at a time.
const DEPTH: usize = 512;

/// The room in f32 for the product of a part: a stretch of each side, and the sums.
pub(crate) fn room([m, n]: [usize; 2], k: usize) -> [usize; 3] {
    let depth = DEPTH.min(k);
    [m * depth, depth * n, m * n]
}

/// A matrix in f32.
fn wide<'a>(x: Matrix<f16>, [rows, columns]: [usize; 2], to: &'a mut [f32]) -> Matrix<'a, f32> {
    let [down, across] = x.strides;
    if down == 1 && across != 1 {
        let transposed = Matrix { strides: [across, down], ..x };
        let Matrix { data, start, strides: [down, across] } = wide(transposed, [columns, rows], to);
        return Matrix { data, start, strides: [across, down] };
    }
    let to = &mut to[..rows * columns];
    for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        let from = at(x.start, row, down);
        match across {
            1 => map1(Lanes::Slice(&x.data[from..][..columns]), to, widen),
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = widen(x.data[at(from as isize, i, across)])),
        }
    }
    Matrix { data: to, start: 0, strides: [columns as isize, 1] }
}

impl Float for f16 {
    /// Sums in f32, and rounds at the end.
    unsafe fn multiply(
        [m, k, n]: [usize; 3],
        lhs: Matrix<f16>,
        rhs: Matrix<f16>,
        out: Place<f16>,
        room: Option<[&mut [f32]; 3]>,
    ) {
        let [left, right, sums] = room.expect("a product of f16 has room for f32");
        let total = Place { data: sums.as_mut_ptr(), len: sums.len(), start: 0, strides: [n as isize, 1] };
        for first in (0..k.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            let from = |x: Matrix<'_, f16>, axis: usize| x.start + first as isize * x.strides[axis];
            let lhs = wide(Matrix { start: from(lhs, 1), ..lhs }, [m, depth], left);
            let rhs = wide(Matrix { start: from(rhs, 0), ..rhs }, [depth, n], right);
            // SAFETY: the sums are borrowed mutably, apart from both sides.
            unsafe { multiply([m, depth, n], lhs, rhs, total, first > 0) };
        }
        assert!(out.holds([m, n]));
        for (row, sums) in sums[..m * n].chunks_exact(n).enumerate() {
            for (column, &sum) in sums.iter().enumerate() {
                // SAFETY: within the place, by the assertion; nobody else touches these elements, by the caller's
                // promise.
                unsafe {
                    out.data
                        .add(at(out.start + row as isize * out.strides[0], column, out.strides[1]))
                        .write(narrow(sum))
                };
            }
        }
    }

    unsafe fn outer(_: [usize; 3], _: Matrix<f16>, _: Matrix<f16>, _: Place<f16>) {
        unreachable!("sums of f16 are in f32");
    }

    fn add(_: &mut [f16], _: &[f16]) {
        unreachable!("sums of f16 are in f32");
    }
}
