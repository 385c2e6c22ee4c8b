//! Two kernels that go through the same rows, together: a few rows by the one, and while they are in the caches, the same rows
//! by the other.
//!
//! The first computes rows, as a normalisation does; the second reduces over them, as the gradients of its gain and bias do,
//! and would have to fetch everything from memory again. No result depends on it: each does what it would do alone, in the
//! same order.

use super::{kernel::Loop, program::Schedule, run::Machine};
use crate::{
    memory::{elements::Env, scratch::Workers},
    threads::{clock::Instant, pool::Pool},
};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use wgrad::plan::{Kernel, Kind, Operand};

/// Chunks per thread from which on threads share the chunks of the second.
const CHUNKS: usize = 2;

/// Two loop kernels.
#[derive(Debug)]
pub(crate) struct Together {
    rows: Loop,
    columns: Loop,
    /// The second's share of the last run, in nanoseconds.
    second: AtomicU64,
}

impl Together {
    /// Puts two kernels together, if that can be, which run one after the other: they have no registers in common.
    pub fn new([rows, columns]: [Loop; 2]) -> Option<Self> {
        let fit = fit([&rows.schedule, &columns.schedule]) && columns.is_split();
        fit.then(|| Self { rows, columns, second: AtomicU64::new(0) })
    }

    /// The time of the second.
    pub fn second(&self) -> Duration {
        Duration::from_nanos(self.second.load(Relaxed))
    }

    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        let Self { rows, columns, second } = self;
        let chunks = columns.schedule.cut.chunks();
        let work = rows.schedule.work() + columns.schedule.work();
        let parts = pool.parts(work);
        second.store(0, Relaxed);
        if chunks < CHUNKS * parts.min(pool.team().threads()) {
            rows.run(env, workers, pool);
            let start = Instant::now();
            columns.run(env, workers, pool);
            second.store(start.elapsed().as_nanos() as u64, Relaxed);
            return;
        }
        let height = rows.schedule.cut.rows;
        let tiles = columns.schedule.cut.chunk / height;
        pool.each(chunks, work, |range| {
            let mut scratch = workers.mine();
            for chunk in range {
                columns.begin(env, &mut scratch);
                for tile in chunk * tiles..rows.schedule.cut.tiles().min((chunk + 1) * tiles) {
                    Machine::new(&rows.schedule, env, &mut scratch).tile(tile);
                    let start = Instant::now();
                    columns.go_on(tile * height..rows.schedule.cut.kept.min((tile + 1) * height), env, &mut scratch);
                    second.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
                }
                columns.end(chunk, env, &mut scratch);
            }
        });
        let start = Instant::now();
        columns.merge(env, workers, pool);
        let apart = second.load(Relaxed) / parts.min(pool.team().threads()) as u64;
        second.store(apart + start.elapsed().as_nanos() as u64, Relaxed);
    }
}

/// True if the first computes whole rows, tile by tile, and the second walks once over columns whose elements they are.
fn fit([rows, columns]: [&Schedule; 2]) -> bool {
    let plain = rows.tiling.is_none() && columns.tiling.is_none();
    let tiles = !rows.cut.transposed && rows.cut.tiles() > 1 && rows.cut.chunks() == 1;
    let walks =
        columns.cut.transposed && columns.cut.tiles() == 1 && columns.phases.len() == 1 && columns.prelude.is_empty();
    plain && tiles && walks && columns.cut.reduced == rows.cut.kept && columns.cut.chunk.is_multiple_of(rows.cut.rows)
}

/// True if two kernels may go through rows together: the second reads of what the first writes nothing but the row at hand, and
/// writes nothing that the first touches.
pub(crate) fn may_go_together([first, second]: [&Kernel; 2]) -> bool {
    let (Kind::Loop(rows), Kind::Loop(columns)) = (&first.kind, &second.kind) else { return false };
    let kept: usize = rows.space[..rows.space.rank() - rows.reduced].iter().product();
    let split = columns.space.rank() - columns.reduced;
    let touches = |write: &Operand| first.reads.iter().chain(&first.writes).any(|other| other.slot == write.slot);
    let fits = |read: &Operand| {
        let of_slot = |write: &&Operand| write.slot == read.slot;
        first.writes.iter().filter(of_slot).all(|write| {
            let width = write.shape.numel() / kept.max(1);
            write.is_contiguous() && read.shape == columns.space && lies_in_rows(read, write.offset, width, split)
        })
    };
    !second.writes.iter().any(touches) && second.reads.iter().all(fits)
}

/// True if row after row of a read, whose rows are the dimensions from `split` on, lies in row after row of so many elements.
fn lies_in_rows(read: &Operand, start: usize, width: usize, split: usize) -> bool {
    let (kept, rows) = read.shape.split_at(split);
    let (across, down) = read.strides.split_at(split);
    let mut step = width as isize;
    for (&extent, &stride) in rows.iter().zip(down).rev().filter(|(extent, _)| **extent != 1) {
        if stride != step {
            return false;
        }
        step *= extent as isize;
    }
    let reach: isize = kept.iter().zip(across).map(|(&extent, &stride)| (extent.max(1) - 1) as isize * stride).sum();
    let forwards = across.iter().all(|&stride| stride >= 0);
    forwards && read.offset >= start && read.offset - start + (reach as usize) < width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::Compiled,
        memory::{elements::Source, scratch::Files, sizes::Sizes},
    };
    use wgrad::{
        DType, Shape, Tape, Tensor,
        plan::{Grouping, Plan},
    };

    /// A read of 6 columns of 4 rows that begins at 40, of rows of 10 elements from there on.
    fn lies(offset: usize, strides: [isize; 2]) -> bool {
        let read = Operand { slot: 0, offset, shape: Shape::from([6, 4]), strides: strides.into() };
        lies_in_rows(&read, 40, 10, 1)
    }

    #[test]
    fn rows_of_a_read_lie_in_rows_of_a_write_or_do_not() {
        assert!(lies(40, [1, 10]) && lies(44, [1, 10]) && lies(40, [0, 10]), "within");
        assert!(!lies(45, [1, 10]) && !lies(40, [2, 10]), "beyond their ends");
        assert!(!lies(39, [1, 10]) && !lies(50, [1, 10]), "other rows");
        assert!(!lies(70, [1, -10]) && !lies(40, [1, 0]) && !lies(40, [10, 1]) && !lies(45, [-1, 10]), "another order");
        let several = |strides: [isize; 3]| {
            let read = Operand { slot: 0, offset: 0, shape: Shape::from([3, 2, 2]), strides: strides.into() };
            lies_in_rows(&read, 0, 3, 1)
        };
        assert!(several([1, 6, 3]) && !several([1, 3, 6]));
    }

    /// The kernels of a program that go together, of those that follow one another.
    fn pairs(record: impl FnOnce(&Tape)) -> Vec<bool> {
        let tape = Tape::default();
        record(&tape);
        let plan =
            Plan::with(&tape.finish().lowered(true, |_, _| true), &Grouping { buffers: 24, ..Grouping::default() });
        let together = |kernels: &[Kernel]| {
            let place = |slot: usize| Source::Slot(slot);
            Compiled::together([&kernels[0], &kernels[1]], &place, Sizes::TINY, &mut Files::default()).is_some()
        };
        plan.kernels.windows(2).map(together).collect()
    }

    fn mean(x: Tensor<'_>) -> Tensor<'_> {
        x.mean_axes(&[1]).reshape([40, 1])
    }

    #[test]
    fn a_normalisation_goes_with_the_gradients_of_its_gain_and_bias() {
        let norm = |flipped: bool| {
            pairs(move |t| {
                let [x, dy] = ["x", "dy"].map(|name| t.input(name, [40, 12], DType::F32));
                let [gain, bias] = ["gain", "bias"].map(|name| t.input(name, [12], DType::F32));
                let centred = x - mean(x);
                let y = centred * (mean(centred.square()) + 1e-5).rsqrt() * gain + bias;
                let dx = y.vjp(dy, &[x])[0].expect("it depends on it");
                [("y", y), ("dx", dx)].into_iter().for_each(|(name, value)| t.tap(name, value));
                if flipped {
                    t.tap("other rows", (y.flip(&[0]) * dy).sum_axes(&[0]));
                } else {
                    let gradients = y.vjp(dy, &[gain, bias]);
                    for (name, gradient) in ["of gain", "of bias"].into_iter().zip(gradients) {
                        t.tap(name, gradient.expect("it depends on it"));
                    }
                }
            })
        };
        assert_eq!(norm(false), [true]);
        assert_eq!(norm(true), [false], "what reads other rows than the one at hand waits");
    }
}
