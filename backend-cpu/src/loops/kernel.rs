//! Loop kernels: tiles shared among threads, or chunks of them where there are few.

use super::{
    program::Schedule,
    reduce::{self, with_monoid},
    run::Machine,
    segments::Part,
    tiling::Tiling,
};
use crate::{
    memory::{
        elements::{Element, Env},
        scratch::{Scratch, Workers},
    },
    threads::pool::Pool,
};
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};
use wgrad::Data;

/// With more tiles than this, no tile needs to be split among threads.
const FEW: usize = 256;

/// A loop kernel.
#[derive(Debug)]
pub(crate) struct Loop {
    pub schedule: Schedule,
    /// The results of each chunk's reductions, and of each tile's; nothing where chunks are never split among threads.
    chunks: Vec<Mutex<Vec<Data>>>,
    tiles: Vec<Mutex<Vec<Data>>>,
}

impl Loop {
    pub fn new(schedule: Schedule) -> Self {
        let split = schedule.cut.chunks() > 1 && schedule.cut.tiles() < FEW && !schedule.accs.is_empty();
        let results_of = |rows: usize| {
            let acc = |acc: &crate::loops::program::Acc| {
                let (dtype, _) = reduce::accumulator(acc.kind, acc.dtype);
                Data::zeros(dtype, rows * acc.width)
            };
            Mutex::new(schedule.accs.iter().map(acc).collect())
        };
        if let Some(tiling) = &schedule.tiling {
            // Parts that share a segment are chunks of it.
            let parts = if tiling.split { &tiling.parts[..] } else { &[] };
            let chunks = parts.iter().map(|part| results_of(part.rows.len())).collect();
            return Self { schedule, chunks, tiles: vec![] };
        }
        let results = || results_of(schedule.cut.rows);
        let tiles = if split { schedule.cut.tiles() } else { 0 };
        let (chunks, tiles) = (tiles * schedule.cut.chunks(), tiles);
        let (chunks, tiles) = ((0..chunks).map(|_| results()).collect(), (0..tiles).map(|_| results()).collect());
        Self { schedule, chunks, tiles }
    }

    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
        if let Some(tiling) = &schedule.tiling {
            return self.run_segments(tiling, env, workers, pool);
        }
        let (tiles, chunks, work) = (schedule.cut.tiles(), schedule.cut.chunks(), schedule.work());
        let parts = pool.parts(work);
        if schedule.accs.is_empty() && chunks > 1 {
            self.walk_apart(env, workers, pool);
        } else if parts > 1 && tiles < parts && !self.chunks.is_empty() {
            self.reduce_apart(env, workers, pool);
        } else {
            pool.each(tiles, work, |range| {
                let mut scratch = workers.mine();
                let mut machine = Machine::new(schedule, env, &mut scratch);
                range.for_each(|tile| machine.tile(tile));
            });
        }
    }

    /// Rows that are segments: whole ones in each part; or parts of them, reduced by themselves, and then merged in order.
    fn run_segments(&self, tiling: &Tiling, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
        if self.chunks.is_empty() {
            let tiles: Vec<&[Part]> = tiling.parts.chunks(schedule.cut.parts).collect();
            return pool.each(tiles.len(), schedule.work(), |range| {
                let mut scratch = workers.mine();
                let mut machine = Machine::new(schedule, env, &mut scratch);
                tiles[range].iter().for_each(|parts| machine.parts(parts));
            });
        }
        pool.each(tiling.parts.len(), schedule.work(), |range| {
            let mut scratch = workers.mine();
            let mut machine = Machine::new(schedule, env, &mut scratch);
            for i in range {
                machine.enter(tiling.parts[i].rows.clone());
                machine.walk_parts(0, &tiling.parts[i..=i]);
                let mut results = locked(&self.chunks[i]);
                machine.accumulators(0, |i, chunk, _| copy(chunk, &mut results[i]));
            }
        });
        let rows = tiling.segments.ranges.len();
        pool.each(rows.div_ceil(schedule.cut.rows), rows * schedule.cost, |range| {
            let mut scratch = workers.mine();
            let mut machine = Machine::new(schedule, env, &mut scratch);
            for tile in range {
                let rows = tile * schedule.cut.rows..rows.min((tile + 1) * schedule.cut.rows);
                machine.enter(rows.clone());
                machine.start(0, false);
                let first = tiling.parts.partition_point(|part| part.rows.end <= rows.start);
                for (i, part) in tiling.parts.iter().enumerate().skip(first) {
                    let both = part.rows.start.max(rows.start)..part.rows.end.min(rows.end);
                    if part.rows.start >= rows.end {
                        break;
                    }
                    let results = locked(&self.chunks[i]);
                    machine.accumulators(0, |acc, _, total| {
                        let what = &schedule.accs[acc];
                        let at = |first: usize| (both.start - first) * what.width..(both.end - first) * what.width;
                        with_monoid!(what.kind, what.dtype, T, M => {
                            let total = &mut Element::slice_mut(total)[at(rows.start)];
                            reduce::merge::<T, M>(total, &Element::slice(&results[acc])[at(part.rows.start)]);
                        });
                    });
                }
                machine.finish(0, false);
                machine.leave();
            }
        });
    }

    /// One walk without reductions: chunks are independent.
    fn walk_apart(&self, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
        let chunks = schedule.cut.chunks();
        pool.each(schedule.cut.tiles() * chunks, schedule.work(), |range| {
            let mut scratch = workers.mine();
            let mut machine = Machine::new(schedule, env, &mut scratch);
            let mut tile = usize::MAX;
            for task in range {
                if task / chunks != tile {
                    tile = task / chunks;
                    machine.enter_tile(tile);
                }
                machine.chunk(0, task % chunks);
            }
        });
        if !schedule.finale.is_empty() {
            self.finale(env, workers, pool);
        }
    }

    /// Chunks are reduced on different threads, and merged in order.
    fn reduce_apart(&self, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
        let chunks = schedule.cut.chunks();
        for p in 0..schedule.phases.len() {
            pool.each(schedule.cut.tiles() * chunks, schedule.work(), |range| {
                let mut scratch = workers.mine();
                let mut machine = Machine::new(schedule, env, &mut scratch);
                let mut tile = usize::MAX;
                for task in range {
                    if task / chunks != tile {
                        tile = task / chunks;
                        self.resume(&mut machine, tile, p);
                    }
                    machine.chunk(p, task % chunks);
                    self.note(task, p, &mut machine);
                }
            });
            self.merge_chunks(p);
        }
        self.finale(env, workers, pool);
    }

    /// Keeps the results of a chunk's reductions.
    fn note(&self, task: usize, phase: usize, machine: &mut Machine) {
        let mut results = locked(&self.chunks[task]);
        machine.accumulators(phase, |i, chunk, _| copy(chunk, &mut results[i]));
    }

    /// Merges the results of each tile's chunks, in order.
    fn merge_chunks(&self, p: usize) {
        let (schedule, chunks) = (&self.schedule, self.schedule.cut.chunks());
        for (tile, total) in self.tiles.iter().enumerate() {
            let mut total = locked(total);
            for i in schedule.phases[p].accs.clone() {
                let acc = &schedule.accs[i];
                with_monoid!(acc.kind, acc.dtype, T, M => {
                    let total = Element::slice_mut(&mut total[i]);
                    reduce::start::<T, M>(total);
                    for chunk in &self.chunks[tile * chunks..][..chunks] {
                        reduce::merge::<T, M>(total, Element::slice(&locked(chunk)[i]));
                    }
                });
            }
        }
    }

    /// True if threads may share the chunks of a tile.
    pub fn is_split(&self) -> bool {
        self.schedule.tiling.is_none() && !self.chunks.is_empty()
    }

    /// Begins with a chunk of the only tile, in the only phase: what is accumulated stays in scratch.
    pub fn begin(&self, env: Env, scratch: &mut Scratch) {
        self.machine(env, scratch).start(0, true);
    }

    /// Walks over some columns of that chunk.
    pub fn go_on(&self, columns: Range<usize>, env: Env, scratch: &mut Scratch) {
        self.machine(env, scratch).walk(0, columns);
    }

    /// Keeps the results of that chunk's reductions.
    pub fn end(&self, chunk: usize, env: Env, scratch: &mut Scratch) {
        self.note(chunk, 0, &mut self.machine(env, scratch));
    }

    /// Merges the chunks, and stores the results.
    pub fn merge(&self, env: Env, workers: &Workers, pool: Pool) {
        self.merge_chunks(0);
        self.finale(env, workers, pool);
    }

    fn machine<'a>(&'a self, env: Env<'a>, scratch: &'a mut Scratch) -> Machine<'a> {
        let mut machine = Machine::new(&self.schedule, env, scratch);
        machine.enter_tile(0);
        machine
    }

    /// Goes to a tile whose first `phases` phases have their results.
    fn resume(&self, machine: &mut Machine, tile: usize, phases: usize) {
        machine.enter_tile(tile);
        for p in 0..phases {
            let results = locked(&self.tiles[tile]);
            machine.accumulators(p, |i, _, total| copy(&results[i], total));
            drop(results);
            machine.finish(p, false);
        }
    }

    /// Stores the values of rows, when no thread reads memory any more.
    fn finale(&self, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
        let phases = if self.tiles.is_empty() { 0 } else { schedule.phases.len() };
        pool.each(schedule.cut.tiles(), schedule.cut.kept * schedule.cost, |range| {
            let mut scratch = workers.mine();
            let mut machine = Machine::new(schedule, env, &mut scratch);
            for tile in range {
                self.resume(&mut machine, tile, phases);
                machine.leave();
            }
        });
    }
}

fn locked(results: &Mutex<Vec<Data>>) -> std::sync::MutexGuard<'_, Vec<Data>> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies as many elements as fit: a register may be longer than its contents.
fn copy(from: &Data, to: &mut Data) {
    crate::memory::elements::with_type!(from.dtype(), T => {
        let (from, to) = (T::slice(from), T::slice_mut(to));
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
    });
}
