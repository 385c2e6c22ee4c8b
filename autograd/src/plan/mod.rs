//! The plan: what a backend compiles. Movement is absorbed into strided reads, nodes are grouped into a few kinds of
//! kernel, and values live in slots that are reused as soon as their last reader has run.

mod body;
mod build;
mod earlier;
mod emit;
mod group;
mod memory;
mod merge;
mod operand;
mod print;
mod profile;
mod width;

pub use body::{Body, Form, Instr, Level, Value};
pub use operand::Operand;
pub use print::Described;
pub use profile::Cost;

use crate::{
    DType, Shape, Site,
    collective::Way,
    node::{NodeId, ScopeId},
    op::Op,
    store::StateId,
};
use std::{ops::Range, sync::Arc};

/// The options of the planner. Everything is on by default; each part can be switched off, and changes nothing but speed
/// and the rounding of sums.
#[derive(Clone, PartialEq, Debug)]
pub struct Grouping {
    /// Constants are folded, and arithmetic that changes nothing is dropped. (This is done before planning, to the
    /// program.)
    pub simplify: bool,
    /// Maps join maps.
    pub maps: bool,
    /// Reductions join the maps before them, and maps the reductions before them.
    pub rows: bool,
    /// Segments are rows, too; and what is repeated over segments is looked up by whatever reads it.
    pub segments: bool,
    /// Maps join the matrix product before them.
    pub epilogues: bool,
    /// Cheap values are computed again instead of being stored.
    pub recompute: bool,
    /// Kernels write over states, and over dying values, that they read element by element.
    pub in_place: bool,
    /// Parts of an assembly are computed where they belong.
    pub direct: bool,
    /// Attention reads rows of heads wherever they lie, and its results lie with the heads of a position side by side.
    pub heads: bool,
    /// Values whose lifetimes do not overlap share memory.
    pub reuse: bool,
    /// The longest row that is walked twice within a kernel.
    pub row_limit: usize,
    /// The most nodes in a group.
    pub values: usize,
    /// The most buffers that a kernel of several nodes reads and writes: see [`Plan::buffers`].
    pub buffers: usize,
}

/// The options for the least device that wgrad runs on: eight buffers per kernel.
impl Default for Grouping {
    fn default() -> Self {
        Self { row_limit: 16 * 1024, values: 48, buffers: 8, ..Self::none() }.all()
    }
}

impl Grouping {
    /// One kernel per node, each with memory of its own.
    pub fn none() -> Self {
        let [simplify, maps, rows, segments, epilogues, recompute, in_place, direct, heads, reuse] = [false; 10];
        Self {
            simplify,
            maps,
            rows,
            segments,
            epilogues,
            recompute,
            in_place,
            direct,
            heads,
            reuse,
            row_limit: 0,
            values: 1,
            buffers: 8,
        }
    }

    fn all(self) -> Self {
        let [simplify, maps, rows, segments, epilogues, recompute, in_place, direct, heads, reuse] = [true; 10];
        Self { simplify, maps, rows, segments, epilogues, recompute, in_place, direct, heads, reuse, ..self }
    }
}

/// The place where the elements of a slot come from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Home {
    /// Written by kernels during a run.
    Transient,
    /// The data of an input, by its position.
    Input(usize),
    /// A state of the session. Kernels may write it too: see [`Plan::commits`].
    State(StateId),
    /// A constant, once: the slot's length is 1.
    Const(f64),
    /// `0, 1, 2, ..` (u32).
    Iota,
    /// A constant vector, by its position in [`Plan::tables`].
    Table(usize),
}

/// A stretch of memory.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
    /// The place where they come from.
    pub home: Home,
}

/// The computation of a kernel.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Elementwise functions and reductions of one index space, any number of results: maps, rows (softmax, norms),
    /// reductions, column sums. See [`Body`].
    Loop(Body),
    /// A matrix product, and maps of it.
    MatMul(MatMul),
    /// Zeros in these ranges `(start, len)`, counted from the first element of the one write, which is contiguous.
    Fill(Vec<(usize, usize)>),
    /// One op by itself, over strided reads, one write per output, each contiguous: the ops that move elements by
    /// index (and by segment, where [`Grouping::segments`] is off), that assemble, cumulative sums, convolutions, and
    /// fused ops. Some read contiguous operands: see [`Op::reads_contiguous`]. Attention may read and write rows where
    /// they lie: see [`Grouping::heads`].
    Op(Op),
}

/// Matrix products `[m, k] x [k, n]`, one for each point of `batch`. Read 0 is the left side, seen as `[batch.., m, k]`,
/// read 1 the right side, seen as `[batch.., k, n]`: transposition is in their strides. The epilogue's space is
/// `[batch.., m, n]`; in it, [`Instr::Product`] is the product, and its loads start at read 2.
#[derive(Clone, Debug)]
pub struct MatMul {
    /// The leading dimensions.
    pub batch: Shape,
    /// Rows of the result.
    pub m: usize,
    /// The dimension that is summed over.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// The epilogue, computed of the product and stored: nothing is reduced in it.
    pub epilogue: Body,
}

/// One computation. It reads whatever its reads show, and then writes every element of its writes.
///
/// A write shares its slot with a read in one case only: in a [`Kind::Loop`], where the two are the same operand, and so
/// each element is read before it is overwritten and never after. Reads of that slot by other operands do not occur.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its computation.
    pub kind: Kind,
    /// Its reads.
    pub reads: Vec<Operand>,
    /// Its writes: operands of slots, whose elements do not overlap.
    pub writes: Vec<Operand>,
    /// The nodes that it computes, ascending.
    pub nodes: Vec<NodeId>,
    /// The scope of its first node.
    pub scope: ScopeId,
    /// The line that recorded its first node.
    pub site: Site,
}

impl Kernel {
    /// True if a write of the same operand as a read gives each point the element that the point has read, and no other point
    /// has: where rows are segments, there may be as many rows as points.
    pub fn reads_pointwise(&self, read: usize, write: usize) -> bool {
        let body = match &self.kind {
            Kind::Loop(body) => body,
            Kind::Op(op) => return op.overwrites() == Some((read, write)),
            _ => return false,
        };
        let level = body.values[body.stores[write]].level;
        body.values.iter().all(|value| match value.instr {
            Instr::Load(load) => load != read || value.level == level || body.segments.is_none(),
            Instr::Lookup { load, .. } => load != read,
            _ => true,
        })
    }

    /// The way in which ranks exchange its value, if it is an exchange.
    pub fn exchange(&self) -> Option<Way> {
        match self.kind {
            Kind::Op(Op::Exchange(way, _)) => Some(way),
            _ => None,
        }
    }

    /// The slots it reads and writes, each once.
    pub fn slots(&self) -> Vec<usize> {
        let mut slots: Vec<usize> = self.reads.iter().chain(&self.writes).map(|operand| operand.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

impl Plan {
    /// The number of buffers that a kernel needs where scalars share one, and the vectors that it looks up share another. (A
    /// write may be over a read of the same slot.)
    pub fn buffers(&self, kernel: &Kernel) -> usize {
        let mut slots = kernel.slots();
        let all = slots.len();
        slots.retain(|&slot| self.slots[slot].len > 1);
        let scalars = usize::from(slots.len() < all);
        let large = slots.len();
        if let Kind::Loop(Body { values, .. }) | Kind::MatMul(MatMul { epilogue: Body { values, .. }, .. }) =
            &kernel.kind
        {
            let looked_up = values.iter().filter_map(|value| match value.instr {
                Instr::Lookup { load, .. } => Some(kernel.reads[load].slot),
                _ => None,
            });
            looked_up.for_each(|table| slots.retain(|&slot| slot != table));
        }
        scalars + usize::from(slots.len() < large) + slots.len()
    }
}

/// A program, ready to be compiled.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The kernels, in the order in which they run.
    pub kernels: Vec<Kernel>,
    /// The memory they use.
    pub slots: Vec<Slot>,
    /// Constant vectors: the bits of f64 values, which a slot holds rounded to its type.
    pub tables: Vec<Arc<[u64]>>,
    /// The values that the host is shown after the kernels have run, and before the commits.
    pub taps: Vec<Operand>,
    /// The states that change after everything else, by a copy. Other states are written by kernels in place: after
    /// the last kernel that can fail, and after the last one that reads the old value.
    pub commits: Vec<(StateId, Operand)>,
}

impl Plan {
    /// The places where the plan is cut into stages: kernels that are exchanges with other ranks, as ranges of those that
    /// follow one another and of which none reads another's result. A device runs the kernels of a range, which bring
    /// this rank's values to where the results will lie; then these go to the host, through
    /// [`crate::collective::exchange`] together, and back to the same place; then the device goes on.
    pub fn exchanges(&self) -> Vec<Range<usize>> {
        let mut exchanges: Vec<Range<usize>> = vec![];
        for k in (0..self.kernels.len()).filter(|k| self.kernels[*k].exchange().is_some()) {
            let reads = |slot: usize| self.kernels[k].reads.iter().any(|read| read.slot == slot);
            let waits =
                |last: &Range<usize>| self.kernels[last.clone()].iter().any(|other| reads(other.writes[0].slot));
            match exchanges.last_mut().filter(|last| last.end == k && !waits(last)) {
                Some(last) => last.end += 1,
                None => exchanges.push(k..k + 1),
            }
        }
        exchanges
    }
}
