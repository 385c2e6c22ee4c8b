//! Attention and its gradient, a block of queries and a block of keys at a time.
//!
//! Scores lie with their keys as rows and their queries as columns: the largest score of each query, and the sum of its
//! exponentials, are then sums of vectors, and no matrix but the few queries of a block has to be transposed for a
//! product. Keys that a causal mask hides from all queries of a block are skipped.
//!
//! One task is some queries of a head forwards, and backwards all heads that share keys and values, so that each gradient
//! is summed by one task, in a fixed order. Where there are few such heads, some tasks compute the gradients of some
//! queries, and others those of some keys.

mod backward;
mod block;
mod forward;
mod heads;

use crate::{
    matmul::{matrix::Place, tiles::Rows},
    memory::{
        elements::{Env, Source, aligned_mut},
        scratch::{Files, Workers},
        sizes::Sizes,
    },
    simd::float::Real,
    threads::pool::Pool,
};
use backward::Backward;
use forward::Forward;
use heads::Heads;
use std::ops::Range;
use wgrad::{
    DType, Scores,
    op::Op,
    plan::{Kernel, Operand},
};

/// The most queries of a block: the columns of a matrix of scores.
const ROWS: usize = 32;

/// Heads that share keys and values below which these are shared among tasks.
const FEW: usize = 8;

/// The extents of attention, and how its scores are made.
#[derive(Clone, Copy, Debug)]
struct Extents {
    scores: Scores,
    /// Heads of keys and values, of the whole batch.
    shared: usize,
    /// Heads of queries for each of them.
    group: usize,
    queries: usize,
    keys: usize,
    /// Of a query and a key.
    width: usize,
    /// Of a value.
    value: usize,
    /// Queries and keys of a block.
    block: [usize; 2],
}

impl Extents {
    /// The number of blocks of queries in a head.
    fn blocks(&self) -> usize {
        self.queries.div_ceil(self.block[0])
    }

    /// The queries of a block.
    fn rows(&self, block: usize) -> Range<usize> {
        block * self.block[0]..self.queries.min((block + 1) * self.block[0])
    }

    /// The number of keys that some queries see.
    fn seen(&self, rows: &Range<usize>) -> usize {
        if self.scores.causal { self.keys.min(rows.end) } else { self.keys }
    }
}

/// An op of attention.
#[derive(Debug)]
pub(crate) struct Attention {
    extents: Extents,
    backward: bool,
    reads: Vec<Heads>,
    writes: Vec<Heads>,
    scratch: usize,
    dtype: DType,
}

impl Attention {
    /// The kernel of an op of attention; `None` for another.
    pub fn new(
        op: &Op,
        kernel: &Kernel,
        source: &dyn Fn(&Operand) -> Source,
        dtype: DType,
        sizes: Sizes,
        files: &mut Files,
    ) -> Option<Self> {
        let (scores, backward) = match op {
            Op::Attention(scores, _) => (*scores, false),
            Op::AttentionGrad(scores, _) => (*scores, true),
            _ => return None,
        };
        let [q, k, v] = [0, 1, 2].map(|i| &kernel.reads[i].shape);
        let r = q.rank();
        let extents = Extents {
            scores,
            shared: k[..r - 2].iter().product(),
            group: q[r - 3] / k[r - 3].max(1),
            queries: q[r - 2],
            keys: k[r - 2],
            width: k[r - 1],
            value: v[r - 1],
            block: [sizes.attended[0].min(ROWS), sizes.attended[1].min(k[r - 2]).max(1)],
        };
        let heads = |o: &Operand| Heads::new(source(o), o, r - 2);
        let room = if backward { backward::room(&extents) } else { forward::room(&extents) };
        Some(Self {
            extents,
            backward,
            reads: kernel.reads.iter().map(heads).collect(),
            writes: kernel.writes.iter().map(heads).collect(),
            scratch: files.take(dtype, room),
            dtype,
        })
    }

    /// Runs the op.
    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        match self.dtype {
            DType::F64 => self.run_in::<f64>(env, workers, pool),
            DType::F32 => self.run_in::<f32>(env, workers, pool),
            dtype => unreachable!("attention of {dtype} is not claimed"),
        }
    }

    fn run_in<T: Real>(&self, env: Env, workers: &Workers, pool: Pool) {
        let x = &self.extents;
        let memory = Memory { reads: &self.reads, writes: &self.writes, env };
        // In elements of a map: sixteen multiplications of a product, or a quarter of an exponential.
        let work = |products: usize| {
            let pair = (x.width + x.value) * products / 32 + 4 * products;
            x.shared * x.group * x.queries * x.keys * pair
        };
        // The loops within are compiled for each set of vector instructions; this takes the best that the machine has.
        let arch = pulp::Arch::new();
        if self.backward {
            let tasks = backward::tasks(x);
            pool.each(x.shared * tasks.len(), work(5), |range| {
                let mut scratch = workers.mine();
                let room = &mut T::slice_mut(&mut scratch.registers[self.scratch])[..];
                for i in range {
                    let (shared, task) = (i / tasks.len(), &tasks[i % tasks.len()]);
                    // SAFETY: tasks write different keys' gradients, or different queries', and each is run once.
                    arch.dispatch(unsafe { Backward::new(x, shared, task, memory, aligned_mut(room)) });
                }
            });
        } else {
            let blocks = x.blocks();
            pool.each(x.shared * x.group * blocks, work(2), |range| {
                let mut scratch = workers.mine();
                let room = &mut T::slice_mut(&mut scratch.registers[self.scratch])[..];
                for i in range {
                    let (head, rows) = (i / blocks, x.rows(i % blocks));
                    // SAFETY: blocks of queries do not overlap, and each is run once.
                    arch.dispatch(unsafe { Forward::new(x, head, rows, memory, aligned_mut(room)) });
                }
            });
        }
    }
}

/// The reads and writes of a kernel.
#[derive(Clone, Copy)]
struct Memory<'a> {
    reads: &'a [Heads],
    writes: &'a [Heads],
    env: Env<'a>,
}

impl<'a> Memory<'a> {
    /// Input `i`'s matrix of a head, from a row on.
    fn rows<T: Real>(&self, (i, head, row): (usize, usize, usize)) -> Rows<'a, T> {
        self.reads[i].rows(&self.env, head, row)
    }

    /// The place where output `i`'s matrix of a head is written, from a row on.
    fn place<T: Real>(&self, (i, head, row): (usize, usize, usize)) -> Place<T> {
        self.writes[i].place(&self.env, head, row)
    }
}
