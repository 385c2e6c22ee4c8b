//! Products of small matrices within other kernels, read in place: a tile of sums, some rows by a few vectors of columns, stays
//! in the machine's registers, and nothing is packed.

use super::{
    gemm,
    matrix::{Matrix, Place},
};
use crate::simd::float::Real;
use pulp::Simd;

/// The most rows and vectors of a tile.
const ROWS: usize = 8;
const VECTORS: usize = 3;

/// A matrix whose rows lie `stride` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, A> {
    pub data: &'a [A],
    pub stride: usize,
}

impl<'a, A> Rows<'a, A> {
    /// A row of so many elements.
    #[inline(always)]
    pub fn row(&self, row: usize, columns: usize) -> &'a [A] {
        &self.data[row * self.stride..][..columns]
    }

    /// The matrix without its first rows.
    #[inline(always)]
    pub fn from(&self, row: usize) -> Self {
        Self { data: self.data.get(row * self.stride..).unwrap_or(&[]), stride: self.stride }
    }

    /// As the left side of a product.
    #[inline(always)]
    pub fn matrix(&self) -> Matrix<'a, A> {
        Matrix { data: self.data, start: 0, strides: [self.stride as isize, 1] }
    }

    /// The number of elements that so many rows of a length take.
    fn len([rows, columns]: [usize; 2], stride: usize) -> usize {
        if rows * columns == 0 { 0 } else { (rows - 1) * stride + columns }
    }
}

/// `out = lhs rhs`, or `out += lhs rhs`, for shape `[m, k, n]`, each row of the result contiguous. Each element is a sum
/// in the order of the inner dimension, where the columns are whole vectors.
///
/// # Panics
/// If a matrix does not lie within its elements.
///
/// # Safety
/// The elements of the place are alive and overlap neither input, and those of the result nobody else touches.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, A: Real>(
    simd: S,
    [m, k, n]: [usize; 3],
    lhs: Matrix<A>,
    rhs: Rows<A>,
    out: Place<A>,
    add: bool,
) {
    if m * n == 0 {
        return;
    }
    let lanes = A::lanes::<S>();
    if !n.is_multiple_of(lanes) {
        // SAFETY: promised by the caller.
        return unsafe { gemm::multiply([m, k, n], lhs, rhs.matrix(), out, add) };
    }
    assert!(k == 0 || lhs.holds([m, k]) && Rows::<A>::len([k, n], rhs.stride) <= rhs.data.len());
    assert!(out.holds([m, n]) && out.strides[1] == 1);
    let mut column = 0;
    while column < n {
        let vectors = match (n - column) / lanes {
            4 => 2,
            left => left.min(VECTORS),
        };
        let mut row = 0;
        while row < m {
            let rows = match m - row {
                ROWS.. if S::REGISTER_COUNT >= 32 => ROWS,
                4.. => 4,
                left => left,
            };
            let tile = Tile {
                lhs: lhs.data.as_ptr().wrapping_offset(lhs.start + row as isize * lhs.strides[0]),
                strides: lhs.strides,
                rhs: rhs.data.as_ptr().wrapping_add(column),
                rhs_stride: rhs.stride,
                depth: k,
                out: out.data.wrapping_offset(out.start + row as isize * out.strides[0] + column as isize),
                stride: out.strides[0],
                add,
            };
            // SAFETY: the tile lies within the three matrices, by the assertions; where the depth is 0, only the result's
            // elements are touched.
            unsafe { tile.sums(simd, rows, vectors) };
            row += rows;
        }
        column += vectors * lanes;
    }
}

/// The place where a tile begins in the three matrices.
struct Tile<A> {
    lhs: *const A,
    strides: [isize; 2],
    rhs: *const A,
    rhs_stride: usize,
    depth: usize,
    out: *mut A,
    stride: isize,
    add: bool,
}

impl<A: Real> Tile<A> {
    /// # Safety
    /// The matrices have so many rows, and columns of so many vectors, here.
    #[inline(always)]
    unsafe fn sums<S: Simd>(&self, simd: S, rows: usize, vectors: usize) {
        macro_rules! run {
            ($($rows:literal)*) => {
                // SAFETY: promised by the caller.
                unsafe {
                    match (rows, vectors) {
                        $(
                            ($rows, 1) => self.run::<S, $rows, 1>(simd),
                            ($rows, 2) => self.run::<S, $rows, 2>(simd),
                            ($rows, _) => self.run::<S, $rows, VECTORS>(simd),
                        )*
                        _ => unreachable!("tiles have 1 to 4 rows, or 8"),
                    }
                }
            };
        }
        run!(8 4 3 2 1);
    }

    /// # Safety
    /// As for `sums`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
    unsafe fn run<S: Simd, const M: usize, const V: usize>(&self, simd: S) {
        let (zero, lanes) = (A::splat(simd, A::default()), A::lanes::<S>());
        let (mut lhs, mut rhs) = (self.lhs, self.rhs);
        let mut sums = [[zero; V]; M];
        for _ in 0..self.depth {
            // SAFETY: promised by the caller.
            unsafe {
                let mut right = [zero; V];
                for v in 0..V {
                    right[v] = rhs.add(v * lanes).cast::<A::Vector<S>>().read_unaligned();
                }
                for m in 0..M {
                    let left = A::splat(simd, *lhs.offset(m as isize * self.strides[0]));
                    for v in 0..V {
                        sums[m][v] = A::mul_add(simd, left, right[v], sums[m][v]);
                    }
                }
            }
            rhs = rhs.wrapping_add(self.rhs_stride);
            lhs = lhs.wrapping_offset(self.strides[1]);
        }
        for m in 0..M {
            for v in 0..V {
                // SAFETY: promised by the caller.
                unsafe {
                    let out = self.out.offset(m as isize * self.stride).add(v * lanes).cast::<A::Vector<S>>();
                    let sum = if self.add { A::vector_add(simd, out.read_unaligned(), sums[m][v]) } else { sums[m][v] };
                    out.write_unaligned(sum);
                }
            }
        }
    }
}
