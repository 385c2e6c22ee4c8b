//! Kernels of recurrent cells over sequences, forward and backward: the whole loop over time in one call.
//!
//! The batch is split into chunks of rows, each of which runs all time steps on one thread: between the chunks there is
//! no barrier. The chunks depend on the batch alone, never on the number of threads, because a product whose columns are no
//! whole vectors may sum in another order when it is given another number of rows. So the bits are the same on any number
//! of threads.

mod backward;
mod forward;
pub(crate) mod kernel;
mod panels;
mod rows;
mod slopes;
#[cfg(test)]
mod tests;

use crate::{simd::float::Real, threads::team::Team};
use backward::Backward;
use forward::Forward;
use panels::Panels;
use pulp::WithSimd;
use rows::{Output, Steps};
use std::ops::Range;
use wgrad::{Cell, Shape, op::Op};

/// Rows that one thread works on together, where the batch has as many: fewer make worse use of a product.
const ROWS: usize = 16;

/// Multiplications below which everything runs on the calling thread: about 20 us of work.
const SERIAL: usize = 1 << 20;

/// A sequence op, or its gradient, with its extents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sequence {
    cell: Cell,
    backward: bool,
    time: usize,
    batch: usize,
    hidden: usize,
    /// Equal but for one row; none is a single row, unless the batch is.
    chunks: Vec<Range<usize>>,
}

impl Sequence {
    /// The kernel of an op over inputs of these shapes, which fit it; `None` for an op that is no sequence.
    pub fn new(op: &Op, inputs: &[&Shape]) -> Option<Self> {
        let (cell, backward, steps, weight) = match op {
            Op::Sequence { cell, .. } => (*cell, false, inputs[0], inputs[1]),
            // The gradient with respect to h, whose position depends on the cell, has the extents of h itself.
            Op::SequenceGrad { cell: cell @ (Cell::Lstm | Cell::Gru), .. } => (*cell, true, inputs[2], inputs[0]),
            Op::SequenceGrad { cell, .. } => (*cell, true, inputs[1], inputs[0]),
            _ => return None,
        };
        let (time, batch, hidden) = (steps[0], steps[1], weight[1]);
        Some(Self { cell, backward, time, batch, hidden, chunks: chunks(batch) })
    }

    /// The number of elements of scratch memory that a run needs.
    pub fn scratch(&self) -> usize {
        self.wide() * self.hidden
    }

    /// The number of floating-point operations of its products.
    pub fn flops(&self) -> usize {
        2 * self.time * self.batch * self.wide() * self.hidden
    }

    /// The width of all gates together.
    fn wide(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Runs over contiguous inputs, in the order of the op's inputs, and writes all of its outputs, in their order.
    /// Neither the scratch memory nor the outputs need any first value; but where the input that
    /// [`Op::overwrites`](wgrad::op::Op::overwrites) names lies in the memory of its output, an empty slice stands for it.
    ///
    /// # Panics
    /// If a slice has another length than the op's shapes say.
    pub fn run<T: Real>(&self, team: &Team, scratch: &mut [T], inputs: &[&[T]], outputs: &mut [&mut [T]]) {
        if self.batch * self.hidden == 0 {
            return; // Every output is empty.
        }
        let mut outputs = outputs.iter_mut();
        let outputs: [Option<Output<T>>; 3] = std::array::from_fn(|_| outputs.next().map(|out| Output::new(out)));
        if self.backward {
            let weights = Panels::new(team, inputs[0], [self.wide(), self.hidden], false, scratch);
            self.each(team, |rows| Backward::new(self, weights, inputs, &outputs, rows));
        } else {
            let weights = Panels::new(team, inputs[1], [self.hidden, self.wide()], true, scratch);
            self.each(team, |rows| Forward::new(self, weights, inputs, &outputs, rows));
        }
    }

    /// Runs all chunks, on several threads where there is enough to do.
    fn each<F: WithSimd<Output = ()>>(&self, team: &Team, chunk: impl Fn(&Range<usize>) -> F + Sync) {
        // The loops within are compiled for each set of vector instructions; this takes the best that the machine has.
        let arch = pulp::Arch::new();
        if self.flops() / 2 < SERIAL || team.threads() == 1 {
            self.chunks.iter().for_each(|rows| arch.dispatch(chunk(rows)));
        } else {
            team.each(self.chunks.len(), |i| arch.dispatch(chunk(&self.chunks[i])));
        }
    }

    /// The rows of a chunk in an output `[time, batch, ..]`, if the op has it.
    fn steps<'a, T>(&self, output: &Option<Output<'a, T>>, time: usize, rows: &Range<usize>) -> Steps<'a, T> {
        // SAFETY: the chunks do not overlap, and each is run once.
        output.as_ref().map_or_else(Steps::none, |out| unsafe { out.rows(time, self.batch, rows) })
    }

    /// Some rows of time step `t`, of a tensor `[time, batch, width]`.
    fn step<'a, T>(&self, all: &'a [T], t: usize, rows: &Range<usize>) -> &'a [T] {
        let width = all.len() / (self.time * self.batch);
        &all[(t * self.batch + rows.start) * width..(t * self.batch + rows.end) * width]
    }
}

/// The chunks of a batch: an even number, for an even number of threads, of at most [`ROWS`] rows and at least two.
fn chunks(batch: usize) -> Vec<Range<usize>> {
    let count = if batch < 4 { 1 } else { batch.div_ceil(ROWS).next_multiple_of(2) };
    (0..count).map(|i| i * batch / count..(i + 1) * batch / count).collect()
}
