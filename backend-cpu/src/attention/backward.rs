//! The gradient of attention: the scores of some queries and keys once more, and what follows from them.

use super::{
    Extents, FEW, Memory, ROWS, Real,
    block::{block, queries, rows, turned},
};
use crate::small::{Rows, multiply};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// What one thread does at a time, for the heads of queries that share one of keys and values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Task {
    /// Blocks of queries, of all these heads, head by head.
    blocks: Range<usize>,
    keys: Range<usize>,
    /// Whether it gives the queries' gradient, for which it has all keys; and those of keys and values, for which it has
    /// all queries.
    gives: [bool; 2],
}

/// The tasks of a head of keys and values.
pub(super) fn tasks(x: &Extents) -> Vec<Task> {
    /// So few blocks of queries are not worth computing scores twice.
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

/// One task.
pub(super) struct Backward<'a, T> {
    x: &'a Extents,
    task: &'a Task,
    /// Of all heads of queries that share the keys.
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    l: &'a [T],
    d_o: &'a [T],
    /// Of the task's queries.
    dq: &'a mut [T],
    /// Of the task's keys.
    dk: &'a mut [T],
    dv: &'a mut [T],
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
        let (queries, keys) = (x.group * x.queries, x.keys);
        let (of_queries, of_keys) = (shared * queries, shared * keys);
        let row = |block: usize| block / x.blocks() * x.queries + x.rows(block % x.blocks()).start;
        let given = match task.blocks {
            _ if !task.gives[0] || task.blocks.is_empty() => 0..0,
            Range { start, end } => row(start)..row(end - 1) + x.rows((end - 1) % x.blocks()).len(),
        };
        let given_keys = if task.gives[1] { task.keys.clone() } else { 0..0 };
        let output = |i: usize, first: usize, rows: &Range<usize>, width: usize| {
            // SAFETY: promised by the caller.
            unsafe { memory.output(i, (first + rows.start) * width, rows.len() * width) }
        };
        Self {
            q: memory.input(0, of_queries * x.width, queries * x.width),
            k: memory.input(1, of_keys * x.width, keys * x.width),
            v: memory.input(2, of_keys * x.value, keys * x.value),
            o: memory.input(3, of_queries * x.value, queries * x.value),
            l: memory.input(4, of_queries, queries),
            d_o: memory.input(5, of_queries * x.value, queries * x.value),
            dq: output(0, of_queries, &given, x.width),
            dk: output(1, of_keys, &given_keys, x.width),
            dv: output(2, of_keys, &given_keys, x.value),
            x,
            task,
            room,
        }
    }
}

impl<'a, T: Real> WithSimd for Backward<'a, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, task, q, k, v, o, l, d_o, mut dq, dk, dv, room } = self;
        let (room, _) = room.as_chunks_mut();
        let (q_turned, room) = room.split_at_mut(x.width);
        let (q_scaled, room) = room.split_at_mut(x.width);
        let (do_turned, room) = room.split_at_mut(x.value);
        let (p, ds) = room.split_at_mut(x.block[1]);
        dk.fill(T::ZERO);
        dv.fill(T::ZERO);
        for i in task.blocks.clone() {
            let (head, queried) = (i / x.blocks(), x.rows(i % x.blocks()));
            let (first, count) = (head * x.queries + queried.start, queried.len());
            let part = |data: &'a [T], width: usize| &data[first * width..][..count * width];
            let (q, o, d_o) = (part(q, x.width), part(o, x.value), part(d_o, x.value));
            let (dq_block, rest) = dq.split_at_mut(if task.gives[0] { count * x.width } else { 0 });
            dq = rest;
            dq_block.fill(T::ZERO);
            let visible = task.keys.start..task.keys.end.min(x.seen(&queried));
            turned(q, x.width, x.scale(), q_turned);
            turned(d_o, x.value, T::ONE, do_turned);
            let q_scaled = &mut q_scaled.as_flattened_mut()[..q.len()];
            // Loops, here and below: a closure may be compiled without the machine's vectors.
            for (to, &q) in q_scaled.iter_mut().zip(q) {
                *to = q * x.scale();
            }
            let (mut high, mut delta) = ([T::ZERO; ROWS], [T::ZERO; ROWS]);
            high[..count].copy_from_slice(&l[first..][..count]);
            for (i, delta) in delta[..count].iter_mut().enumerate() {
                let row = i * x.value..(i + 1) * x.value;
                *delta = dot(&o[row.clone()], &d_o[row]);
            }
            for first in visible.clone().step_by(x.block[1]) {
                let keys = first..visible.end.min(first + x.block[1]);
                let (p, ds) = (&mut p[..keys.len()], &mut ds[..keys.len()]);
                x.scores(simd, &keys, k, &queried, q_turned, p);
                let v = rows(&v[first * x.value..], x.value);
                let shape = [keys.len(), x.value, ROWS];
                multiply(simd, shape, v, block(do_turned), (ds.as_flattened_mut(), ROWS), false);
                for (p, ds) in p.iter_mut().zip(&mut *ds) {
                    for i in 0..ROWS {
                        p[i] = (p[i] - high[i]).exp().weight();
                        ds[i] = p[i] * (ds[i] - delta[i]);
                    }
                }
                if task.gives[0] {
                    let k = Rows { data: &k[first * x.width..], stride: x.width };
                    let shape = [count, keys.len(), x.width];
                    multiply(simd, shape, queries(ds), k, (&mut *dq_block, x.width), true);
                }
                if task.gives[1] {
                    let at = first - task.keys.start;
                    let (dk, dv) = (&mut dk[at * x.width..], &mut dv[at * x.value..]);
                    let (p, ds) = (rows(p.as_flattened(), ROWS), rows(ds.as_flattened(), ROWS));
                    let (q, d_o) = (Rows { data: &*q_scaled, stride: x.width }, Rows { data: d_o, stride: x.value });
                    multiply(simd, [keys.len(), count, x.width], ds, q, (dk, x.width), true);
                    multiply(simd, [keys.len(), count, x.value], p, d_o, (dv, x.value), true);
                }
            }
            for dq in dq_block {
                *dq = *dq * x.scale();
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
