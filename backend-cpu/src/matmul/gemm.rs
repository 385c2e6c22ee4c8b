//! The product of two matrices, by the `gemm` crate.

use super::matrix::{Matrix, Place};
use crate::memory::elements::Element;
use gemm::Parallelism;

/// `out = lhs rhs`, or `out += lhs rhs`, for shape `[m, k, n]`, none of m and n being 0, in a type that `gemm` knows.
///
/// A product of few rows and a transposed matrix is cut into narrow strips, for which `gemm` packs neither side. Packing
/// would take longer than the product.
///
/// # Safety
/// The elements of the place are alive and overlap neither input, and those of the result nobody else touches.
pub(crate) unsafe fn multiply<T: Element>(
    [m, k, n]: [usize; 3],
    lhs: Matrix<T>,
    rhs: Matrix<T>,
    out: Place<T>,
    add: bool,
) {
    const FEW: std::ops::RangeInclusive<usize> = 2..=32;
    /// Up to so many elements of a result, `gemm` reads rows of both sides as they are.
    const STRIP: usize = 256;
    assert!(out.holds([m, n]));
    assert!(k == 0 || lhs.holds([m, k]) && rhs.holds([k, n]));
    let strips = FEW.contains(&m) && lhs.strides[1] == 1 && rhs.strides[0] == 1;
    let width = if strips { STRIP / m } else { n };
    for column in (0..n).step_by(width) {
        // SAFETY: every element that `gemm` touches lies at `start + row * row_stride + column * column_stride`, and
        // the assertions above have checked the corners of that range (where k is 0 no element of the inputs is
        // touched). `out` is as the caller promises.
        unsafe {
            gemm::gemm(
                m,
                width.min(n - column),
                k,
                out.data.offset(out.start + column as isize * out.strides[1]),
                out.strides[1],
                out.strides[0],
                add,
                lhs.data.as_ptr().wrapping_offset(lhs.start),
                lhs.strides[1],
                lhs.strides[0],
                rhs.data.as_ptr().wrapping_offset(rhs.start + column as isize * rhs.strides[1]),
                rhs.strides[1],
                rhs.strides[0],
                T::from_f64(if add { 1.0 } else { 0.0 }),
                T::from_f64(1.0),
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}
