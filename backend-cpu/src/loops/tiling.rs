//! The division of an index space: into rows and columns, tiles, blocks and chunks.
//!
//! The index space is a matrix: `kept` rows by `reduced` columns (in a body that reduces nothing, whatever dimensions
//! can be walked evenly are its columns). A **tile** is a few rows, a **block** a tile's part that registers hold, a
//! **chunk** a tile's part that is reduced by itself before it is merged with the others. Where neighbouring rows, not
//! columns, are neighbours in memory, registers hold blocks **transposed**: column by column.

use super::{
    segments::{Part, parts},
    view::{View, even_tail},
};
use crate::memory::{elements::Source, sizes::Sizes};
use std::sync::Arc;
use wgrad::{
    op::Segments,
    plan::{Body, Instr, Level, Operand},
};

/// Parts of a tile whose rows are segments.
const PARTS: usize = 2;

/// The arguments of a body's compilation.
pub(crate) struct Setting<'a> {
    pub body: &'a Body,
    pub reads: &'a [Operand],
    pub writes: &'a [Operand],
    /// The place where the operands are; targets are what the kernel writes.
    pub source: &'a dyn Fn(&Operand) -> Source,
    /// The view of a matrix product, in its epilogue.
    pub product: Option<View>,
    pub sizes: Sizes,
}

/// A vector whose rows are segments, cut up.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    pub segments: Arc<Segments>,
    pub parts: Vec<Part>,
    /// True if a segment may lie in several parts.
    pub split: bool,
}

/// An index space, cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The dimension that the columns begin with.
    pub split: usize,
    pub kept: usize,
    pub reduced: usize,
    /// True if registers hold blocks column by column.
    pub transposed: bool,
    /// Rows of a tile.
    pub rows: usize,
    /// Rows of a block: a tile's, save where rows are segments, which lie one behind the other.
    pub lines: usize,
    /// The number of parts in a tile, of a vector that is cut into segments.
    pub parts: usize,
    /// Columns of a block.
    pub block: usize,
    /// Columns that a walk goes through at a time: a block, or where nothing is in registers, a chunk.
    pub stretch: usize,
    /// Columns of a chunk: a multiple of a block's.
    pub chunk: usize,
    /// True if intermediate values of a tile are kept from one walk over it to the next.
    pub resident: bool,
}

impl Cut {
    /// Cuts up the space of a body that takes this many walks over a row.
    pub fn new(setting: &Setting, walks: usize) -> Self {
        let Setting { body, sizes, .. } = *setting;
        let operands = || setting.reads.iter().chain(setting.writes).filter(|o| o.shape == body.space);
        let split = match (&setting.product, body.reduced) {
            (Some(_), _) => body.space.rank() - 1,
            (None, 0) => body.space.rank() - even_tail(&body.space, operands()),
            (None, reduced) => body.space.rank() - reduced,
        };
        let (kept, reduced) = body.space.split_at(split);
        let (kept, reduced): (usize, usize) = (kept.iter().product(), reduced.iter().product());
        let transposed = body.reduced > 0 && kept > 1 && prefers_transposed(setting, split);
        let most = if kept * reduced >= sizes.many * sizes.long { sizes.long } else { sizes.block };
        // The size of equal parts, none larger than so much.
        let parts = |n: usize, largest: usize| n.div_ceil(n.div_ceil(largest).max(1)).max(1);
        let (rows, block) = if transposed {
            // Fewer rows, if their values then fit the cache; but lines stay long enough for vector instructions.
            let few = if walks > 1 { (sizes.resident / reduced.max(1)).max(sizes.square) } else { usize::MAX };
            let rows = parts(kept, most.min(few));
            (rows, (most / rows).clamp(1, reduced.max(1)))
        } else if body.reduced == 0 && reduced >= sizes.square && prefers_square(setting, split) {
            // Neither rows nor columns suit all operands: square blocks touch each line of memory once.
            (sizes.square.min(kept.max(1)), sizes.square)
        } else if reduced >= most {
            (1, parts(reduced, sizes.long).next_multiple_of(16).min(reduced.max(1)))
        } else {
            ((most / reduced.max(1)).clamp(1, kept.max(1)), reduced.max(1))
        };
        let resident = walks > 1 && (reduced <= block || rows * reduced <= sizes.resident);
        let chunk = if resident {
            reduced.max(1)
        } else {
            (sizes.chunk / rows).max(reduced.div_ceil(sizes.chunks)).next_multiple_of(block).max(block)
        };
        let stretch = if rows == 1 && reads_and_reduces(setting) { chunk } else { block };
        Self { split, kept, reduced, transposed, rows, lines: rows, parts: 1, block, stretch, chunk, resident }
    }

    /// Cuts up a vector whose rows are segments, for so many walks over them, and the parts that are its tiles. Parts of
    /// segments are tiles only where one walk is enough.
    pub fn segments(segments: &Arc<Segments>, sizes: &Sizes, walks: usize) -> (Self, Tiling) {
        let longest = segments.ranges.iter().map(|(_, len)| *len).max().unwrap_or(0);
        let split = walks == 1 && longest > sizes.long;
        let parts = parts(segments, if split { sizes.chunk } else { sizes.long }, sizes.long, split);
        // The values of rows are computed for several parts at a time, all of which are in the cache.
        let together = if split { 1 } else { PARTS };
        let most = |size: &dyn Fn(&[Part]) -> usize| parts.chunks(together).map(size).max().unwrap_or(0).max(1);
        let rows = most(&|tile| tile[tile.len() - 1].rows.end - tile[0].rows.start);
        let reduced = most(&|tile| tile[tile.len() - 1].columns.end - tile[0].columns.start);
        let block = parts.iter().map(|part| part.columns.len()).max().unwrap_or(0).clamp(1, sizes.long);
        let resident = walks > 1 && reduced <= sizes.resident;
        let cut = Self {
            split: 0,
            kept: 1,
            reduced,
            transposed: false,
            rows,
            lines: 1,
            parts: together,
            block,
            stretch: block,
            chunk: reduced,
            resident,
        };
        (cut, Tiling { segments: segments.clone(), parts, split })
    }

    /// The number of tiles.
    pub fn tiles(&self) -> usize {
        self.kept.div_ceil(self.rows)
    }

    /// The number of chunks that a tile has.
    pub fn chunks(&self) -> usize {
        self.reduced.div_ceil(self.chunk).max(1)
    }
}

/// True if the body only reduces contiguous memory.
fn reads_and_reduces(setting: &Setting) -> bool {
    let body = setting.body;
    let reduces = body.stores.iter().all(|&v| body.values[v].level == Level::Row);
    reduces
        && body.values.iter().all(|value| match value.instr {
            Instr::Load(read) => setting.reads[read].is_contiguous(),
            Instr::Reduce(..) | Instr::Const(_) => true,
            _ => value.level == Level::Row,
        })
}

/// True if more operands are contiguous along the rows' dimension than along the columns'.
fn prefers_transposed(setting: &Setting, split: usize) -> bool {
    let near = |o: &Operand, dims: std::ops::Range<usize>| {
        let inner = dims.rev().find(|&d| o.shape[d] != 1);
        inner.is_none_or(|d| o.strides[d].unsigned_abs() <= 1)
    };
    let space = &setting.body.space;
    let wide: Vec<&Operand> = setting.reads.iter().chain(setting.writes).filter(|o| o.shape == *space).collect();
    let along = wide.iter().filter(|o| near(o, split..space.rank())).count();
    let across = wide.iter().filter(|o| near(o, 0..split)).count();
    across > along
}

/// True if an operand is contiguous along the rows' dimension, and not along the columns'.
fn prefers_square(setting: &Setting, split: usize) -> bool {
    let transposed = |o: &&Operand| {
        if o.shape != setting.body.space {
            return false; // A vector that is looked up.
        }
        let inner = (split..o.shape.rank()).rev().find(|&d| o.shape[d] != 1);
        let outer = (0..split).rev().find(|&d| o.shape[d] != 1);
        let step = |d: Option<usize>| d.map_or(0, |d| o.strides[d].unsigned_abs());
        step(outer) == 1 && step(inner) > 1
    };
    setting.reads.iter().chain(setting.writes).any(|o| transposed(&o))
}
