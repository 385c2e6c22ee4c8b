//! Sums up to each position of an axis: line by line, or where the axis is not the last, over neighbouring lines at once.
//! Each line is summed in one order, whichever thread sums it.

use crate::{
    memory::{
        elements::{Element, Target},
        half::{narrow, widen},
        strides::{Nest, at},
    },
    threads::pool::Pool,
};
use wgrad::{Shape, f16, plan::Operand};

/// A type that can be summed, and what sums of it are kept in: each is rounded when it is stored.
pub(crate) trait Summand: Element {
    type Sum: Copy + Default;
    fn plus(sum: Self::Sum, x: Self) -> Self::Sum;
    fn stored(sum: Self::Sum) -> Self;
}

macro_rules! summands {
    ($($t:ty => $sum:ty: $plus:expr, $stored:expr;)*) => { $(
        impl Summand for $t {
            type Sum = $sum;
            #[inline(always)]
            fn plus(sum: $sum, x: $t) -> $sum {
                $plus(sum, x)
            }
            #[inline(always)]
            fn stored(sum: $sum) -> $t {
                $stored(sum)
            }
        }
    )* };
}
summands! {
    f64 => f64: |sum, x| sum + x, |sum| sum;
    f32 => f64: |sum, x| sum + x as f64, |sum| sum as f32;
    f16 => f32: |sum, x| sum + widen(x), narrow;
    u32 => u32: u32::wrapping_add, |sum| sum;
    i32 => i32: i32::wrapping_add, |sum| sum;
}

/// Sums along one axis of a strided read, with a contiguous result.
#[derive(Debug)]
pub(crate) struct CumSum {
    /// Over the first elements of the lines: those of the read, and those of the result.
    lines: Nest<2>,
    extent: usize,
    /// From one element of a line to the next, in the read and in the result.
    steps: [isize; 2],
    reverse: bool,
}

/// Neighbouring lines that are summed at once.
const LINES: usize = 64;

impl CumSum {
    pub fn new(read: &Operand, result: &Shape, axis: usize, reverse: bool) -> Self {
        let strides = [&read.strides[..], &result.strides()];
        let lines = Nest::new(&result.with(axis, 1), [read.offset, 0], strides);
        Self { lines, extent: result[axis], steps: strides.map(|strides| strides[axis]), reverse }
    }

    /// Sums what `x` shows; the result begins at `start` of the target.
    pub fn run<T: Summand>(&self, x: &[T], target: &Target, start: usize, pool: Pool) {
        let [sx, so] = self.lines.strides();
        let [step, out_step] = self.steps;
        let place = |i: usize| if self.reverse { self.extent - 1 - i } else { i };
        // Tasks of neighbours that share cache lines.
        let task = if so == 1 { LINES } else { 1 };
        pool.each(self.lines.len().div_ceil(task), self.lines.len() * self.extent * 2, |range| {
            let lines = range.start * task..self.lines.len().min(range.end * task);
            self.lines.visit(lines, |_, len, [ix, io]| {
                // Lines lie beside each other, or one after the other; then each is contiguous.
                let group = if so == 1 { LINES } else { 1 };
                for first in (0..len).step_by(group) {
                    let len = group.min(len - first);
                    let (ix, io) = (at(ix, first, sx) as isize, at(io, first, so) as isize);
                    let mut sums = [T::Sum::default(); LINES];
                    for i in (0..self.extent).map(place) {
                        let from = at(ix, i, step) as isize;
                        // SAFETY: each line belongs to one task, and this is one element of each of its lines.
                        let out = unsafe { target.part::<T>(start + at(io, i, out_step), len) };
                        for (j, (sum, out)) in sums.iter_mut().zip(out).enumerate() {
                            *sum = T::plus(*sum, x[at(from, j, sx)]);
                            *out = T::stored(*sum);
                        }
                    }
                }
            });
        });
    }
}
