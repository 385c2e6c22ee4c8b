//! The gradient of attention: the scores of some queries and keys are computed again, and the gradients from them.

use super::{
    Extents, FEW, Memory, ROWS,
    block::{block, queries, transposed},
    heads::{clear, scale},
};
use crate::{
    matmul::{
        matrix::Place,
        tiles::{Rows, multiply},
    },
    simd::float::Real,
};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The work of a thread at a time, for the heads of queries that share one of keys and values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Task {
    /// Blocks of queries, of all these heads, head by head.
    blocks: Range<usize>,
    keys: Range<usize>,
    /// True if it gives the queries' gradient, for which it has all keys; and those of keys and values, for which it has all
    /// queries.
    gives: [bool; 2],
}

/// The tasks of a head of keys and values.
pub(super) fn tasks(x: &Extents) -> Vec<Task> {
    /// With so few blocks of queries, a second computation of the scores does not pay.
    const SMALL: usize = 4;
    let blocks = x.group * x.blocks();
    if x.shared >= FEW || blocks < SMALL {
        return vec![Task { blocks: 0..blocks, keys: 0..x.keys, gives: [true, true] }];
    }
    let parts = FEW.div_ceil(x.shared.max(1));
    let cut = |n: usize| {
        let parts = parts.min(n.div_ceil(x.block[0])).max(1);
        (0..parts).map(move |i| i * n / parts..(i + 1) * n / parts)
    };
    let of_queries = cut(blocks).map(|blocks| Task { blocks, keys: 0..x.keys, gives: [true, false] });
    let of_keys = cut(x.keys).map(|keys| Task { blocks: 0..blocks, keys, gives: [false, true] });
    of_queries.chain(of_keys).collect()
}

/// One task of the heads of queries that share one of keys and values.
pub(super) struct Backward<'a, T> {
    x: &'a Extents,
    shared: usize,
    task: &'a Task,
    memory: Memory<'a>,
    room: &'a mut [T],
}

/// The scratch of a task.
pub(super) fn room(x: &Extents) -> usize {
    (2 * x.width + x.value + 2 * x.block[1]) * ROWS
}

impl<'a, T: Real> Backward<'a, T> {
    /// # Safety
    /// Nobody else has this task of these heads.
    pub unsafe fn new(x: &'a Extents, shared: usize, task: &'a Task, memory: Memory<'a>, room: &'a mut [T]) -> Self {
        Self { x, shared, task, memory, room }
    }
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, shared, task, memory, room } = self;
        let (room, _) = room.as_chunks_mut();
        let (q_transposed, room) = room.split_at_mut(x.width);
        let (q_scaled, room) = room.split_at_mut(x.width);
        let (do_transposed, room) = room.split_at_mut(x.value);
        let (p, ds) = room.split_at_mut(x.block[1]);
        let [k, v] = [1, 2].map(|i| memory.rows::<T>((i, shared, 0)));
        let [dk, dv] = [1, 2].map(|i| memory.place::<T>((i, shared, 0)));
        if task.gives[1] {
            let [dk, dv] = [dk, dv].map(|place| place.from(task.keys.start));
            // SAFETY: nobody else gives these keys' gradients.
            unsafe {
                clear(dk, [task.keys.len(), x.width]);
                clear(dv, [task.keys.len(), x.value]);
            }
        }
        for i in task.blocks.clone() {
            let (head, queried) = (shared * x.group + i / x.blocks(), x.rows(i % x.blocks()));
            let count = queried.len();
            let here = |i: usize| (i, head, queried.start);
            let [q, o, l, d_o] = [0, 3, 4, 5].map(|i| memory.rows::<T>(here(i)));
            let dq = memory.place::<T>(here(0));
            let visible = task.keys.start..task.keys.end.min(x.seen(&queried));
            transposed(q, [count, x.width], x.scale(), q_transposed);
            transposed(d_o, [count, x.value], T::ONE, do_transposed);
            let q_scaled = &mut q_scaled.as_flattened_mut()[..count * x.width];
            // Loops, here and below: a closure may be compiled without the machine's vectors.
            for (row, to) in q_scaled.chunks_exact_mut(x.width.max(1)).enumerate() {
                for (to, &q) in to.iter_mut().zip(q.row(row, x.width)) {
                    *to = q * x.scale();
                }
            }
            let (mut high, mut delta) = ([T::ZERO; ROWS], [T::ZERO; ROWS]);
            high[..count].copy_from_slice(l.row(0, count));
            for (i, delta) in delta[..count].iter_mut().enumerate() {
                *delta = dot(o.row(i, x.value), d_o.row(i, x.value));
            }
            if task.gives[0] {
                // SAFETY: nobody else gives these queries' gradients.
                unsafe { clear(dq, [count, x.width]) };
            }
            for first in visible.clone().step_by(x.block[1]) {
                let keys = first..visible.end.min(first + x.block[1]);
                let (p, ds) = (&mut p[..keys.len()], &mut ds[..keys.len()]);
                x.scores(simd, &keys, k, &queried, q_transposed, p);
                let (shape, to) = ([keys.len(), x.value, ROWS], Place::of(ds.as_flattened_mut(), ROWS));
                // SAFETY: the scores' gradients are borrowed mutably.
                unsafe { multiply(simd, shape, v.from(first).matrix(), block(do_transposed), to, false) };
                for (p, ds) in p.iter_mut().zip(&mut *ds) {
                    for i in 0..ROWS {
                        p[i] = (p[i] - high[i]).exp().share();
                        ds[i] = p[i] * (ds[i] - delta[i]);
                    }
                }
                if task.gives[0] {
                    let shape = [count, keys.len(), x.width];
                    // SAFETY: nobody else gives these queries' gradients.
                    unsafe { multiply(simd, shape, queries(ds), k.from(first), dq, true) };
                }
                if task.gives[1] {
                    let [dk, dv] = [dk, dv].map(|place| place.from(first));
                    let (p, ds) = (block(p).matrix(), block(ds).matrix());
                    let q = Rows { data: &*q_scaled, stride: x.width };
                    // SAFETY: nobody else gives these keys' gradients.
                    unsafe {
                        multiply(simd, [keys.len(), count, x.width], ds, q, dk, true);
                        multiply(simd, [keys.len(), count, x.value], p, d_o, dv, true);
                    }
                }
            }
            if task.gives[0] {
                // SAFETY: as above.
                unsafe { scale(dq, x.width, &[x.scale(); ROWS][..count]) };
            }
        }
    }
}

/// The sum of products, in as many parts as vectors have elements.
#[inline(always)]
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 16;
    let mut sums = [T::ZERO; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] = sums[i] + a[i] * b[i];
        }
    }
    for (i, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] = sums[i] + a * b;
    }
    let mut sum = T::ZERO;
    for x in sums {
        sum = sum + x;
    }
    sum
}
