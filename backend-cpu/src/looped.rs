//! Loop kernels: tiles shared among threads, or chunks of them where there are few.

use crate::{
    fold::{self, with_monoid},
    memory::{Element, Env},
    pool::Pool,
    schedule::Schedule,
    scratch::Workers,
    tile::Machine,
};
use std::sync::{Mutex, PoisonError};
use wgrad::Data;

/// Beyond this many tiles there is enough to share without splitting any.
const FEW: usize = 256;

/// A loop kernel.
#[derive(Debug)]
pub(crate) struct Loop {
    schedule: Schedule,
    /// What each chunk's reductions give, and each tile's; nothing where chunks are never split among threads.
    chunks: Vec<Mutex<Vec<Data>>>,
    tiles: Vec<Mutex<Vec<Data>>>,
}

impl Loop {
    pub fn new(schedule: Schedule) -> Self {
        let split = schedule.cut.chunks() > 1 && schedule.cut.tiles() < FEW && !schedule.accs.is_empty();
        let results = || {
            let acc = |acc: &crate::schedule::Acc| {
                let (dtype, _) = fold::accumulator(acc.kind, acc.dtype);
                Data::zeros(dtype, schedule.cut.rows * acc.width)
            };
            Mutex::new(schedule.accs.iter().map(acc).collect())
        };
        let tiles = if split { schedule.cut.tiles() } else { 0 };
        let (chunks, tiles) = (tiles * schedule.cut.chunks(), tiles);
        let (chunks, tiles) = ((0..chunks).map(|_| results()).collect(), (0..tiles).map(|_| results()).collect());
        Self { schedule, chunks, tiles }
    }

    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        let schedule = &self.schedule;
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
                    let mut results = locked(&self.chunks[task]);
                    machine.accumulators(p, |i, chunk, _| copy(chunk, &mut results[i]));
                }
            });
            for (tile, total) in self.tiles.iter().enumerate() {
                let mut total = locked(total);
                for i in schedule.phases[p].accs.clone() {
                    let acc = &schedule.accs[i];
                    with_monoid!(acc.kind, acc.dtype, T, M => {
                        let total = Element::slice_mut(&mut total[i]);
                        fold::start::<T, M>(total);
                        for chunk in &self.chunks[tile * chunks..][..chunks] {
                            fold::merge::<T, M>(total, Element::slice(&locked(chunk)[i]));
                        }
                    });
                }
            }
        }
        self.finale(env, workers, pool);
    }

    /// Goes to a tile whose first `phases` phases have their results.
    fn resume(&self, machine: &mut Machine, tile: usize, phases: usize) {
        machine.enter_tile(tile);
        for p in 0..phases {
            let results = locked(&self.tiles[tile]);
            machine.accumulators(p, |i, _, total| copy(&results[i], total));
            drop(results);
            machine.finish(p);
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

/// Copies what fits: a register may be longer than what it holds.
fn copy(from: &Data, to: &mut Data) {
    crate::memory::with_type!(from.dtype(), T => {
        let (from, to) = (T::slice(from), T::slice_mut(to));
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
    });
}
