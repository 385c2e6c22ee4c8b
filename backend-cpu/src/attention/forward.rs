//! Attention of a block of queries: one walk over the keys that they see, which takes in the largest score of each query
//! as it comes (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").

use super::{
    Extents, Memory, ROWS, Real,
    block::{Row, queries, turned},
};
use crate::small::{Rows, multiply};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// One block of queries of one head.
pub(super) struct Forward<'a, T> {
    x: &'a Extents,
    rows: Range<usize>,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a mut [T],
    l: &'a mut [T],
    room: &'a mut [T],
}

/// The scratch of a task.
pub(super) fn room(x: &Extents) -> usize {
    (x.width + x.block[1]) * ROWS
}

impl<'a, T: Real> Forward<'a, T> {
    /// # Safety
    /// Nobody else has these queries of this head.
    pub unsafe fn new(x: &'a Extents, head: usize, rows: Range<usize>, memory: Memory<'a>, room: &'a mut [T]) -> Self {
        let (first, count, shared) = (head * x.queries + rows.start, rows.len(), head / x.group);
        Self {
            q: memory.input(0, first * x.width, count * x.width),
            k: memory.input(1, shared * x.keys * x.width, x.keys * x.width),
            v: memory.input(2, shared * x.keys * x.value, x.keys * x.value),
            // SAFETY: promised by the caller.
            o: unsafe { memory.output(0, first * x.value, count * x.value) },
            // SAFETY: as above.
            l: unsafe { memory.output(1, first, count) },
            x,
            rows,
            room,
        }
    }
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, rows: block, q, k, v, o, l, room } = self;
        let (room, _) = room.as_chunks_mut();
        let (q_turned, scores) = room.split_at_mut(x.width);
        turned(q, x.width, x.scale(), q_turned);
        let seen = x.seen(&block);
        // Of each query: the largest score, what is subtracted from scores, and the sum of exponentials.
        let (mut high, mut shift, mut sum): (Row<T>, Row<T>, Row<T>) =
            ([T::LEAST; ROWS], [T::ZERO; ROWS], [T::ZERO; ROWS]);
        if seen == 0 {
            o.fill(T::ZERO);
        }
        for first in (0..seen).step_by(x.block[1]) {
            let keys = first..seen.min(first + x.block[1]);
            let scores = &mut scores[..keys.len()];
            x.scores(simd, &keys, k, &block, q_turned, scores);
            for scores in &*scores {
                for i in 0..ROWS {
                    high[i] = if scores[i] > high[i] { scores[i] } else { high[i] };
                }
            }
            let mut factor = [T::ZERO; ROWS];
            for i in 0..ROWS {
                let before = std::mem::replace(&mut shift[i], high[i].or_zero());
                let some = (before - shift[i]).exp();
                factor[i] = if sum[i] == T::ZERO { T::ZERO } else { some };
                sum[i] = sum[i] * factor[i];
            }
            let mut added = [T::ZERO; ROWS];
            for scores in &mut *scores {
                for i in 0..ROWS {
                    scores[i] = (scores[i] - shift[i]).exp().weight();
                    added[i] = added[i] + scores[i];
                }
            }
            for i in 0..ROWS {
                sum[i] = sum[i] + added[i];
            }
            if first > 0 {
                scale(o, x.value, &factor);
            }
            let v = Rows { data: &v[first * x.value..], stride: x.value };
            multiply(simd, [block.len(), keys.len(), x.value], queries(scores), v, (&mut *o, x.value), first > 0);
        }
        let mut factor = [T::ZERO; ROWS];
        for i in 0..block.len() {
            let nothing = sum[i] == T::ZERO;
            factor[i] = if nothing { T::ONE } else { sum[i].recip() };
            l[i] = if nothing { T::from_f64(f64::INFINITY) } else { sum[i].ln() + shift[i] };
        }
        scale(o, x.value, &factor);
    }
}

/// Multiplies each row of a matrix by a number of its own.
#[inline(always)]
fn scale<T: Real>(o: &mut [T], width: usize, factors: &Row<T>) {
    for (o, &factor) in o.chunks_exact_mut(width.max(1)).zip(factors) {
        for o in o {
            *o = *o * factor;
        }
    }
}
