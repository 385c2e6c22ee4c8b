//! A chunk of rows through all time steps.

use super::{
    Sequence,
    panels::Panels,
    rows::{Output, Steps, hold},
    slopes::update,
};
use crate::simd::float::Real;
use pulp::{Simd, WithSimd};
use std::ops::Range;
use wgrad::Cell;

/// The rows of one chunk: what is read, and the part of each output that is written.
pub(super) struct Forward<'a, T> {
    shape: &'a Sequence,
    rows: Range<usize>,
    z: &'a [T],
    /// The recurrent weights, transposed.
    weights: Panels<'a, T>,
    h0: &'a [T],
    /// An LSTM's first memory, or a GRU's recurrent bias.
    more: &'a [T],
    h: Steps<'a, T>,
    c: Steps<'a, T>,
    gates: Steps<'a, T>,
}

impl<'a, T: Real> Forward<'a, T> {
    pub(super) fn new(
        shape: &'a Sequence,
        weights: Panels<'a, T>,
        inputs: &[&'a [T]],
        outputs: &[Option<Output<'a, T>>; 3],
        rows: &Range<usize>,
    ) -> Self {
        let steps = |i: usize| shape.steps(&outputs[i], shape.time, rows);
        let (c, gates) = match shape.cell {
            Cell::Lstm => (steps(1), steps(2)),
            Cell::Gru => (Steps::none(), steps(1)),
            _ => (Steps::none(), Steps::none()),
        };
        let (z, h0, more) = (inputs[0], inputs[2], inputs.get(3).copied().unwrap_or_default());
        Self { shape, rows: rows.clone(), z, weights, h0, more, h: steps(0), c, gates }
    }

    /// Some rows of a tensor `[batch, hidden]`.
    fn first(&self, x: &'a [T]) -> &'a [T] {
        &x[self.rows.start * self.shape.hidden..self.rows.end * self.shape.hidden]
    }

    #[inline(always)]
    fn plain<S: Simd>(mut self, simd: S, f: impl Fn(T) -> T) {
        let (shape, hidden) = (self.shape, self.shape.hidden);
        for t in 0..shape.time {
            let first = self.first(self.h0);
            let (before, h) = self.h.after(t);
            let before = before.unwrap_or(first);
            hold(h, shape.step(self.z, t, &self.rows));
            self.weights.product(simd, before, (&mut *h, hidden), true);
            update(h, [], |z, []| f(z));
        }
    }

    #[inline(always)]
    fn lstm<S: Simd>(mut self, simd: S) {
        let (shape, hidden) = (self.shape, self.shape.hidden);
        for t in 0..shape.time {
            let (first_h, first_c) = (self.first(self.h0), self.first(self.more));
            let ((before, h), (memory, c), all_gates) = (self.h.after(t), self.c.after(t), self.gates.at(t));
            let (before, memory) = (before.unwrap_or(first_h), memory.unwrap_or(first_c));
            hold(all_gates, shape.step(self.z, t, &self.rows));
            self.weights.product(simd, before, (&mut *all_gates, 4 * hidden), true);
            let rows = all_gates.chunks_exact_mut(4 * hidden);
            let states = h.chunks_exact_mut(hidden).zip(c.chunks_exact_mut(hidden));
            for ((gates, (h, c)), memory) in rows.zip(states).zip(memory.chunks_exact(hidden)) {
                update(&mut gates[..2 * hidden], [], |z, []| z.sigmoid());
                update(&mut gates[2 * hidden..3 * hidden], [], |z, []| z.tanh());
                update(&mut gates[3 * hidden..], [], |z, []| z.sigmoid());
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| &gates[gate * hidden..][..hidden]);
                update(c, [f, memory, i, g], |_, [f, c, i, g]| f * c + i * g);
                update(h, [o, c], |_, [o, c]| o * c.tanh());
            }
        }
    }

    #[inline(always)]
    fn gru<S: Simd>(mut self, simd: S) {
        let (shape, hidden, bias) = (self.shape, self.shape.hidden, self.more);
        for t in 0..shape.time {
            let first = self.first(self.h0);
            let ((before, h), all_gates) = (self.h.after(t), self.gates.at(t));
            let before = before.unwrap_or(first);
            self.weights.product(simd, before, (&mut *all_gates, 4 * hidden), false);
            let rows = all_gates.chunks_exact_mut(4 * hidden);
            let rows = rows.zip(shape.step(self.z, t, &self.rows).chunks_exact(3 * hidden));
            let states = h.chunks_exact_mut(hidden).zip(before.chunks_exact(hidden));
            for ((gates, z), (h, before)) in rows.zip(states) {
                let (reset_update, rest) = gates.split_at_mut(2 * hidden);
                let (n, kept) = rest.split_at_mut(hidden);
                update(reset_update, [z, bias], |recurrent, [z, b]| (z + (recurrent + b)).sigmoid());
                let (r, u) = reset_update.split_at(hidden);
                // By way of h, a matrix of its own: see `update`.
                update(h, [n, &bias[2 * hidden..]], |_, [recurrent, b]| recurrent + b);
                kept.copy_from_slice(h);
                update(h, [&z[2 * hidden..], r], |kept, [z, r]| (z + r * kept).tanh());
                n.copy_from_slice(h);
                update(h, [u, before], |n, [u, before]| n + u * (before - n));
            }
        }
    }
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.shape.cell {
            Cell::Tanh => self.plain(simd, T::tanh),
            Cell::Sigmoid => self.plain(simd, T::sigmoid),
            Cell::Irnn => self.plain(simd, |z| if z <= T::ZERO { T::ZERO } else { z }),
            Cell::Lstm => self.lstm(simd),
            Cell::Gru => self.gru(simd),
        }
    }
}
