//! The positions that sort an axis: each line is sorted by one task.

use crate::{
    memory::{
        elements::Target,
        strides::{Nest, at},
    },
    simd::functions::Number,
    threads::pool::Pool,
};
use std::cmp::Ordering;
use wgrad::{Shape, plan::Operand};

/// Sorts along one axis of a strided read, with a contiguous result.
#[derive(Debug)]
pub(crate) struct ArgSort {
    /// Over the first elements of the lines: those of the read, and those of the result.
    lines: Nest<2>,
    extent: usize,
    /// From one element of a line to the next, in the read and in the result.
    steps: [isize; 2],
    descending: bool,
}

impl ArgSort {
    pub fn new(read: &Operand, result: &Shape, axis: usize, descending: bool) -> Self {
        let strides = [&read.strides[..], &result.strides()];
        let lines = Nest::new(&result.with(axis, 1), [read.offset, 0], strides);
        Self { lines, extent: result[axis], steps: strides.map(|strides| strides[axis]), descending }
    }

    /// Sorts the elements that `x` shows; the result begins at `start` of the target.
    pub fn run<T: Number>(&self, x: &[T], target: &Target, start: usize, pool: Pool) {
        let [sx, so] = self.lines.strides();
        let [step, out_step] = self.steps;
        let comparisons = self.extent * (self.extent.max(1).ilog2() as usize + 1);
        pool.each(self.lines.len(), self.lines.len() * comparisons, |range| {
            let mut order: Vec<u32> = Vec::with_capacity(self.extent);
            self.lines.visit(range, |_, len, [ix, io]| {
                for line in 0..len {
                    let (ix, io) = (at(ix, line, sx) as isize, at(io, line, so) as isize);
                    let value = |i: u32| x[at(ix, i as usize, step)];
                    order.clear();
                    order.extend(0..self.extent as u32);
                    // Both sorts are stable.
                    match self.descending {
                        false => order.sort_by(|&a, &b| ascending(value(a), value(b))),
                        true => order.sort_by(|&a, &b| ascending(value(b), value(a))),
                    }
                    for (i, &from) in order.iter().enumerate() {
                        // SAFETY: each line belongs to one task, and this is an element of its line.
                        unsafe { target.part::<u32>(start + at(io, i, out_step), 1)[0] = from };
                    }
                }
            });
        });
    }
}

/// The order of sorted values: NaN comes last.
fn ascending<T: Number>(a: T, b: T) -> Ordering {
    let nan = |x: T| x.partial_cmp(&x).is_none();
    a.partial_cmp(&b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}
