//! Transposes: contiguous columns become rows.

use super::matrix::{Matrix, Place};
use crate::memory::{elements::Element, strides::at};

/// Rows and columns of the squares that are transposed one after another.
const SQUARE: usize = 16;

/// Copies a matrix `[rows, width]` with contiguous columns into contiguous rows.
///
/// # Panics
/// If the columns or the rows of the place are not contiguous, or the matrix does not lie within either.
///
/// # Safety
/// The elements of the place are alive and not the matrix's, and those of the result nobody else touches.
pub(crate) unsafe fn transpose<T: Element>(from: Matrix<T>, to: Place<T>, [rows, width]: [usize; 2]) {
    if rows * width == 0 {
        return;
    }
    assert!(from.strides[0] == 1 && from.holds([rows, width]));
    assert!(to.strides[1] == 1 && to.holds([rows, width]));
    let (square, to_stride) = (squares::<T>(), to.strides[0]);
    // The squares of some columns, one below the other: each column is read as one contiguous stretch of memory.
    for column in (0..width).step_by(SQUARE) {
        for row in (0..rows).step_by(SQUARE) {
            let (height, columns) = (SQUARE.min(rows - row), SQUARE.min(width - column));
            let start = at(from.start + row as isize, column, from.strides[1]);
            // SAFETY: the square lies within both matrices, by the assertions; `squares` gives what the machine has.
            unsafe {
                let (from, down) = (from.data.as_ptr().add(start), from.strides[1]);
                let to = to.data.offset(to.start + row as isize * to.strides[0] + column as isize);
                match square {
                    Some(square) if height == SQUARE && columns == SQUARE => square(from, down, to, to_stride),
                    _ => {
                        for c in 0..columns as isize {
                            (0..height as isize)
                                .for_each(|r| to.offset(r * to_stride + c).write(*from.offset(c * down + r)));
                        }
                    }
                }
            }
        }
    }
}

/// Transposes a square: its beginning, the distance of its columns, its destination, and the distance of rows there.
type Square<T> = unsafe fn(*const T, isize, *mut T, isize);

/// The function that transposes a square of elements of a type in this machine's registers, if there is one.
#[cfg(target_arch = "x86_64")]
fn squares<T: Element>() -> Option<Square<T>> {
    let able = T::DTYPE == wgrad::DType::F32 && is_x86_feature_detected!("avx512f");
    // SAFETY: for f32, and only for it, `T` is f32.
    able.then(|| unsafe { std::mem::transmute::<Square<f32>, Square<T>>(avx512) })
}

#[cfg(not(target_arch = "x86_64"))]
fn squares<T: Element>() -> Option<Square<T>> {
    None
}

/// A square of f32: the elements of two rows are interleaved, then pairs of two pairs of rows, and quarters of vectors
/// find their places in two steps more.
///
/// # Safety
/// The machine has AVX-512, and both squares exist.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(from: *const f32, columns: isize, to: *mut f32, rows: isize) {
    use std::arch::x86_64::*;
    let zero = _mm512_setzero_ps();
    let (mut x, mut y) = ([zero; SQUARE], [zero; SQUARE]);
    for (i, x) in x.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *x = unsafe { _mm512_loadu_ps(from.offset(i as isize * columns)) };
    }
    for i in (0..SQUARE).step_by(2) {
        (y[i], y[i + 1]) = (_mm512_unpacklo_ps(x[i], x[i + 1]), _mm512_unpackhi_ps(x[i], x[i + 1]));
    }
    for i in (0..SQUARE).step_by(4) {
        for j in 0..2 {
            let (a, b) = (_mm512_castps_pd(y[i + j]), _mm512_castps_pd(y[i + j + 2]));
            x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for j in 0..4 {
        let even = [0, 8].map(|i| _mm512_shuffle_f32x4::<0x88>(x[i + j], x[i + 4 + j]));
        let odd = [0, 8].map(|i| _mm512_shuffle_f32x4::<0xdd>(x[i + j], x[i + 4 + j]));
        y[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        y[j + 8] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        y[j + 4] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        y[j + 12] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    for (i, y) in y.into_iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe { _mm512_storeu_ps(to.offset(i as isize * rows), y) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (rows, width) in [(0, 3), (3, 0), (1, 1), (16, 16), (17, 33), (15, 64), (48, 40), (70, 5)] {
            for gap in [0, 3] {
                let stride = rows + gap;
                let data: Vec<f32> = (0..2 + stride * width).map(|i| i as f32).collect();
                let from = Matrix { data: &data[..], start: 2, strides: [1, stride as isize] };
                let want = |r: usize, c: usize| data[2 + c * stride + r];
                let wide: Vec<f64> = data.iter().map(|&x| x.into()).collect();
                let wide = Matrix { data: &wide[..], start: 2, strides: [1, stride as isize] };
                for gap in [0, 5] {
                    let (mut to, mut to_wide) =
                        (vec![f32::NAN; rows * (width + gap)], vec![f64::NAN; rows * (width + gap)]);
                    // SAFETY: both places are borrowed mutably.
                    unsafe {
                        transpose(from, Place::of(&mut to, width + gap), [rows, width]);
                        transpose(wide, Place::of(&mut to_wide, width + gap), [rows, width]);
                    }
                    for i in 0..to.len() {
                        let (r, c) = (i / (width + gap), i % (width + gap));
                        if c < width {
                            assert_eq!((to[i], to_wide[i]), (want(r, c), want(r, c).into()), "{rows}x{width}");
                        } else {
                            assert!(to[i].is_nan() && to_wide[i].is_nan(), "between rows");
                        }
                    }
                }
            }
        }
    }
}
