//! A chunk of rows back through all time steps. The gradients of a step's states lie where those of the first
//! states end up: in `dh0` and `dc0`.

use super::{
    Sequence,
    panels::Panels,
    rows::{Output, Steps, hold},
    slopes::{sigmoid_slope, tanh_slope, update},
};
use crate::simd::float::Real;
use pulp::{Simd, WithSimd};
use std::ops::Range;
use wgrad::Cell;

/// The elements of a row whose gates are saved together: some vectors of any machine.
const BLOCK: usize = 64;

/// The rows of one chunk: what is read, and the part of each output that is written.
pub(super) struct Backward<'a, T> {
    shape: &'a Sequence,
    rows: Range<usize>,
    weights: Panels<'a, T>,
    inputs: Inputs<'a, T>,
    /// The gradient of `z`.
    dz: Steps<'a, T>,
    /// A GRU's gradient of `W_hh h + b_hh`.
    dr: Steps<'a, T>,
    dh0: &'a mut [T],
    /// An LSTM's; else empty.
    dc0: &'a mut [T],
}

/// The reads of the op, for the whole batch; those that its cell does not have are empty.
#[derive(Clone, Copy)]
struct Inputs<'a, T> {
    /// The first memory of an LSTM, the first hidden state of a GRU.
    first: &'a [T],
    /// The memories of an LSTM, the hidden states of any other cell.
    states: &'a [T],
    gates: &'a [T],
    dh: &'a [T],
    dc: Option<&'a [T]>,
}

impl<'a, T: Real> Backward<'a, T> {
    pub(super) fn new(
        shape: &'a Sequence,
        weights: Panels<'a, T>,
        x: &[&'a [T]],
        outputs: &[Option<Output<'a, T>>; 3],
        rows: &Range<usize>,
    ) -> Self {
        let inputs = match shape.cell {
            Cell::Lstm | Cell::Gru => {
                Inputs { first: x[1], states: x[2], gates: x[3], dh: x[4], dc: x.get(5).copied() }
            }
            _ => Inputs { first: &[], states: x[1], gates: &[], dh: x[2], dc: None },
        };
        let steps = |i: usize| shape.steps(&outputs[i], shape.time, rows);
        let first = |i: usize| shape.steps(&outputs[i], 1, rows).only();
        let (dr, dh0, dc0) = match shape.cell {
            Cell::Gru => (steps(1), first(2), &mut [][..]),
            Cell::Lstm => (Steps::none(), first(1), first(2)),
            _ => (Steps::none(), first(1), &mut [][..]),
        };
        Self { shape, rows: rows.clone(), weights, inputs, dz: steps(0), dr, dh0, dc0 }
    }

    /// The rows of time step `t`, of a tensor `[time, batch, width]`.
    fn at(&self, x: &'a [T], t: usize) -> &'a [T] {
        self.shape.step(x, t, &self.rows)
    }

    /// The states before time step `t`.
    fn before(&self, t: usize) -> &'a [T] {
        let hidden = self.shape.hidden;
        match t {
            0 => &self.inputs.first[self.rows.start * hidden..self.rows.end * hidden],
            t => self.at(self.inputs.states, t - 1),
        }
    }

    /// `slope` is the activation's, as a function of its value.
    #[inline(always)]
    fn plain<S: Simd>(mut self, simd: S, gradient: impl Fn(T, T) -> T) {
        let hidden = self.shape.hidden;
        self.dh0.fill(T::ZERO);
        for t in (0..self.shape.time).rev() {
            let (h, dh) = (self.at(self.inputs.states, t), self.at(self.inputs.dh, t));
            let dz = self.dz.at(t);
            update(self.dh0, [if dh.is_empty() { dz } else { dh }], |carry, [dh]| dh + carry);
            update(dz, [h, self.dh0], |_, [h, dh]| gradient(dh, h).flushed());
            self.weights.product(simd, self.dz.at(t), (&mut *self.dh0, hidden), false);
        }
    }

    /// The gradients overwrite the gates, so the gates of some elements are saved first.
    #[inline(always)]
    fn lstm<S: Simd>(mut self, simd: S) {
        let hidden = self.shape.hidden;
        let mut kept = [[T::ZERO; BLOCK]; 5];
        self.dh0.fill(T::ZERO);
        self.dc0.fill(T::ZERO);
        for t in (0..self.shape.time).rev() {
            update(self.dh0, [self.at(self.inputs.dh, t)], |carry, [dh]| dh + carry);
            let (gates, c, before) = (self.at(self.inputs.gates, t), self.at(self.inputs.states, t), self.before(t));
            let given = self.inputs.dc.map(|dc| self.at(dc, t));
            hold(self.dz.at(t), gates);
            let blocks = (0..self.rows.len()).flat_map(|row| (0..hidden).step_by(BLOCK).map(move |j| (row, j)));
            for (row, j) in blocks {
                let (len, start) = (BLOCK.min(hidden - j), row * hidden + j);
                let of = |x: &'a [T]| &x[start..][..len];
                let (c, before, dh, dc) = (of(c), of(before), &self.dh0[start..][..len], &mut self.dc0[start..][..len]);
                let (di, rest) = self.dz.at(t)[4 * row * hidden..][..4 * hidden].split_at_mut(hidden);
                let (df, rest) = rest.split_at_mut(hidden);
                let (dg, d_o) = rest.split_at_mut(hidden);
                let gates = [di, df, dg, d_o].map(|gate| &mut gate[j..][..len]);
                gates.iter().zip(&mut kept).for_each(|(gate, kept)| kept[..len].copy_from_slice(gate));
                update(&mut kept[4][..len], [c], |_, [c]| c.tanh());
                let [i, f, g, o, squashed] = kept.each_ref().map(|kept| &kept[..len]);
                let [di, df, dg, d_o] = gates;
                let own = |dh: T, o: T, squashed: T| dh * o * tanh_slope(squashed);
                match given.map(of) {
                    Some(given) => update(dc, [dh, o, squashed, given], |carry, [dh, o, squashed, given]| {
                        (own(dh, o, squashed) + given) + carry
                    }),
                    None => update(dc, [dh, o, squashed], |carry, [dh, o, squashed]| own(dh, o, squashed) + carry),
                }
                update(d_o, [dh, squashed, o], |_, [dh, squashed, o]| (dh * squashed * sigmoid_slope(o)).flushed());
                update(di, [dc, g, i], |_, [dc, g, i]| (dc * g * sigmoid_slope(i)).flushed());
                update(df, [dc, before, f], |_, [dc, before, f]| (dc * before * sigmoid_slope(f)).flushed());
                update(dg, [dc, i, g], |_, [dc, i, g]| (dc * i * tanh_slope(g)).flushed());
                update(dc, [f], |dc, [f]| (dc * f).flushed());
            }
            self.weights.product(simd, self.dz.at(t), (&mut *self.dh0, hidden), false);
        }
    }

    #[inline(always)]
    fn gru<S: Simd>(mut self, simd: S) {
        let hidden = self.shape.hidden;
        self.dh0.fill(T::ZERO);
        for t in (0..self.shape.time).rev() {
            update(self.dh0, [self.at(self.inputs.dh, t)], |carry, [dh]| dh + carry);
            let (gates, before) = (self.at(self.inputs.gates, t), self.before(t));
            let gradients = self.dz.at(t).chunks_exact_mut(3 * hidden).zip(self.dr.at(t).chunks_exact_mut(3 * hidden));
            for (row, (dz, recurrent)) in gradients.enumerate() {
                let before = &before[row * hidden..][..hidden];
                let dh = &mut self.dh0[row * hidden..][..hidden];
                let [r, u, n, kept] = [0, 1, 2, 3].map(|gate| &gates[(4 * row + gate) * hidden..][..hidden]);
                let (dr, rest) = dz.split_at_mut(hidden);
                let (du, dn) = rest.split_at_mut(hidden);
                let (recurrent_ru, recurrent_n) = recurrent.split_at_mut(2 * hidden);
                // By way of the other matrix: see `update`.
                update(recurrent_n, [dh, u, n], |_, [dh, u, n]| (dh * (T::ONE - u) * tanh_slope(n)).flushed());
                dn.copy_from_slice(recurrent_n);
                update(dr, [recurrent_n, kept, r], |_, [dn, kept, r]| (dn * kept * sigmoid_slope(r)).flushed());
                update(du, [dh, before, n, u], |_, [dh, before, n, u]| {
                    (dh * (before - n) * sigmoid_slope(u)).flushed()
                });
                recurrent_ru.copy_from_slice(&dz[..2 * hidden]);
                update(recurrent_n, [r], |dn, [r]| (dn * r).flushed());
                update(dh, [u], |dh, [u]| (dh * u).flushed());
            }
            self.weights.product(simd, self.dr.at(t), (&mut *self.dh0, hidden), true);
        }
    }
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.shape.cell {
            Cell::Tanh => self.plain(simd, |dh, h| dh * tanh_slope(h)),
            Cell::Sigmoid => self.plain(simd, |dh, h| dh * sigmoid_slope(h)),
            Cell::Irnn => self.plain(simd, |dh, h| if h <= T::ZERO { T::ZERO } else { dh }),
            Cell::Lstm => self.lstm(simd),
            Cell::Gru => self.gru(simd),
        }
    }
}
