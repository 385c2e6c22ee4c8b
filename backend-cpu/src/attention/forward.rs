//! Attention of a block of queries: one walk over the keys that they see, which takes in the largest score of each query
//! as it comes (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").

use super::{
    Extents, Memory, ROWS,
    block::{Row, queries, transposed},
    heads::{clear, scale},
};
use crate::{matmul::tiles::multiply, simd::float::Real};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// One block of queries of one head.
pub(super) struct Forward<'a, T> {
    x: &'a Extents,
    head: usize,
    rows: Range<usize>,
    memory: Memory<'a>,
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
        Self { x, head, rows, memory, room }
    }
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, head, rows: block, memory, room } = self;
        let shared = head / x.group;
        let [q, k, v] = [(0, head, block.start), (1, shared, 0), (2, shared, 0)].map(|at| memory.rows::<T>(at));
        let [o, l] = [(0, head, block.start), (1, head, block.start)].map(|at| memory.place::<T>(at));
        let (room, _) = room.as_chunks_mut();
        let (q_transposed, scores) = room.split_at_mut(x.width);
        transposed(q, [block.len(), x.width], x.scale(), q_transposed);
        let seen = x.seen(&block);
        // Of each query: the largest score, what is subtracted from scores, and the sum of exponentials.
        let (mut high, mut shift, mut sum): (Row<T>, Row<T>, Row<T>) =
            ([T::LEAST; ROWS], [T::ZERO; ROWS], [T::ZERO; ROWS]);
        if seen == 0 {
            // SAFETY: nobody else has these queries.
            unsafe { clear(o, [block.len(), x.value]) };
        }
        for first in (0..seen).step_by(x.block[1]) {
            let keys = first..seen.min(first + x.block[1]);
            let scores = &mut scores[..keys.len()];
            x.scores(simd, &keys, k, &block, q_transposed, scores);
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
                    scores[i] = (scores[i] - shift[i]).exp().share();
                    added[i] = added[i] + scores[i];
                }
            }
            for i in 0..ROWS {
                sum[i] = sum[i] + added[i];
            }
            let shape = [block.len(), keys.len(), x.value];
            // SAFETY: nobody else has these queries.
            unsafe {
                if first > 0 {
                    scale(o, x.value, &factor[..block.len()]);
                }
                multiply(simd, shape, queries(scores), v.from(first), o, first > 0);
            }
        }
        let mut factor = [T::ZERO; ROWS];
        // SAFETY: as above.
        let l = unsafe { l.row(0, block.len()) };
        for i in 0..block.len() {
            let nothing = sum[i] == T::ZERO;
            factor[i] = if nothing { T::ONE } else { T::ONE / sum[i] };
            l[i] = if nothing { T::from_f64(f64::INFINITY) } else { sum[i].ln() + shift[i] };
        }
        // SAFETY: as above.
        unsafe { scale(o, x.value, &factor[..block.len()]) };
    }
}
