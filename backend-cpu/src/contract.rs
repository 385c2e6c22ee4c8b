//! Matrix products, by the `gemm` crate.

use crate::nest::Nest;
use gemm::Parallelism;
use rayon::prelude::*;

/// Multiplications below which a product runs on one thread.
const SERIAL: usize = 1 << 20;

/// A batch of strided matrices `[m, k] x [k, n]`, written contiguously.
#[derive(Clone, Debug)]
pub(crate) struct MatMul {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Where each batch's matrices start.
    pub batch: Nest<2>,
    /// Row and column strides of the left side.
    pub lhs: (isize, isize),
    /// Row and column strides of the right side.
    pub rhs: (isize, isize),
}

/// The element types that `gemm` multiplies.
pub(crate) trait Float: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

pub(crate) fn matmul<T: Float>(shape: &MatMul, a: &[T], b: &[T], out: &mut [T]) {
    let MatMul { m, k, n, .. } = *shape;
    if m * n == 0 {
        return;
    }
    if k == 0 {
        return out.fill(T::ZERO);
    }
    let mut starts = vec![];
    shape.batch.visit(0..shape.batch.len(), |_, len, at| {
        let [sa, sb] = shape.batch.strides;
        starts.extend((0..len).map(|i| (crate::map::at(at[0], i, sa), crate::map::at(at[1], i, sb))));
    });
    let threads = rayon::current_num_threads();
    let (each, all) = (m * k * n, m * k * n * starts.len());
    if threads > 1 && starts.len() > 1 && all >= SERIAL {
        let matrices = out.par_chunks_mut(m * n).zip(starts);
        matrices.for_each(|(out, (ia, ib))| product(shape, a, ia, b, ib, out, Parallelism::None));
        return;
    }
    let parallelism = if threads > 1 && each >= SERIAL { Parallelism::Rayon(threads) } else { Parallelism::None };
    for (out, (ia, ib)) in out.chunks_mut(m * n).zip(starts) {
        product(shape, a, ia, b, ib, out, parallelism);
    }
}

/// One product, `a` and `b` starting at `ia` and `ib`.
fn product<T: Float>(shape: &MatMul, a: &[T], ia: usize, b: &[T], ib: usize, out: &mut [T], parallelism: Parallelism) {
    let MatMul { m, k, n, lhs, rhs, .. } = *shape;
    assert!(out.len() == m * n && within(a.len(), ia, (m, k), lhs) && within(b.len(), ib, (k, n), rhs));
    // SAFETY: every element that `gemm` touches lies at `start + row * row_stride + column * column_stride`, and the
    // assertion above has checked the corners of that range against the slices; `out` is borrowed mutably, so it
    // overlaps neither input.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr().add(ia),
            lhs.1,
            lhs.0,
            b.as_ptr().add(ib),
            rhs.1,
            rhs.0,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Whether a strided matrix lies within a slice of `len` elements.
fn within(len: usize, start: usize, (rows, columns): (usize, usize), strides: (isize, isize)) -> bool {
    let reach = [(rows - 1) as isize * strides.0, (columns - 1) as isize * strides.1];
    let low: isize = reach.iter().map(|r| r.min(&0)).sum();
    let high: isize = reach.iter().map(|r| r.max(&0)).sum();
    start as isize + low >= 0 && start as isize + high < len as isize
}
