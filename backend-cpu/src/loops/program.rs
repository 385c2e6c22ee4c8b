//! Schedules: what is computed in which walk over the rows, block by block, in which registers. All that depends on
//! shapes alone is decided when a schedule is [arranged](crate::loops::compile::arranged), and in the [`Cut`].

use super::{
    chain::Chain,
    tiling::{Cut, Tiling},
    view::View,
};
use crate::memory::elements::Source;
use std::sync::Arc;
use wgrad::{
    DType,
    op::{Binary, Reduce, Segments, Unary},
};

/// The number of elements that a value has in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// One for all.
    One,
    /// One per row.
    Rows,
    /// One per column.
    Columns,
    /// One per element.
    Block,
}

impl Extent {
    /// The extent of what follows from two values.
    pub fn with(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::One, a) | (a, Self::One) => a,
            _ => Self::Block,
        }
    }
}

/// The place where a value is while a block is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home {
    /// Nowhere: it is a constant.
    Const(f64),
    /// In a register, unless it is found in memory. A resident one has room for the whole tile.
    Register { index: usize, resident: bool },
}

/// A value of the schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub home: Home,
    pub dtype: DType,
    pub extent: Extent,
}

impl Cell {
    /// True if its register is yet to be chosen: nothing but one walk needs it.
    pub fn is_open(&self) -> bool {
        matches!(self.home, Home::Register { index: usize::MAX, .. })
    }

    /// True if its register holds it from one walk to the next.
    pub fn is_resident(&self) -> bool {
        matches!(self.home, Home::Register { resident: true, .. })
    }
}

/// The action of one step; values are named by their cells.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Load(usize),
    Random {
        stream: u64,
        key: [usize; 3],
        index: usize,
    },
    /// The element of a vector for the segment of each position; a block that lies in one segment may stay one value.
    Lookup {
        from: Vector,
        segments: Arc<Segments>,
        index: usize,
        whole: bool,
    },
    /// The value of each element's row, where rows are segments.
    Spread {
        from: usize,
        whole: bool,
    },
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    /// Several of the above and of the below at once: the results are the chain's own.
    Chain(Box<Chain>),
    Select(usize, usize, usize),
    /// One of two values as a whole, by a condition that is the same all over the block: it stays where it is.
    Choose(usize, usize, usize),
    Cast(usize),
    /// A value per row, or one for all, repeated for each element.
    Expand(usize),
    /// A value to memory, unless it has been computed there.
    Store(usize, usize),
    /// A block into an accumulator.
    Fold(usize, usize),
    /// Notes in an accumulator that a block has a non-finite number.
    FoldNonFinite(usize, usize),
}

impl Action {
    pub fn operands(&self) -> impl Iterator<Item = usize> + Clone {
        let used = match *self {
            Action::Load(_) | Action::Lookup { .. } | Action::Chain(_) => [None; 3],
            Action::Random { key: [a, b, c], .. } | Action::Select(a, b, c) | Action::Choose(a, b, c) => {
                [Some(a), Some(b), Some(c)]
            }
            Action::Binary(_, a, b) => [Some(a), Some(b), None],
            Action::Spread { from: a, .. } | Action::Unary(_, a) | Action::Cast(a) | Action::Expand(a) => {
                [Some(a), None, None]
            }
            Action::Store(_, a) | Action::Fold(_, a) | Action::FoldNonFinite(_, a) => [Some(a), None, None],
        };
        let inputs = match self {
            Action::Chain(chain) => &chain.inputs[..],
            _ => &[],
        };
        used.into_iter().flatten().chain(inputs.iter().map(|input| input.cell()))
    }
}

/// An evenly spaced vector in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    pub source: Source,
    pub offset: usize,
    pub stride: isize,
}

/// One step, over a block or over the values of its rows.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub action: Action,
    /// The cell of the result.
    pub to: Option<usize>,
    /// A view that the result is written to at once, where a block of it lies in one piece.
    pub direct: Option<usize>,
}

impl Step {
    /// The cells of all results.
    pub fn results(&self) -> impl Iterator<Item = usize> {
        let outputs = match &self.action {
            Action::Chain(chain) => &chain.outputs[..],
            _ => &[],
        };
        self.to.into_iter().chain(outputs.iter().map(|output| output.cell))
    }
}

/// A reduction's accumulators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acc {
    pub kind: Reduce,
    pub dtype: DType,
    /// Scratch elements per row.
    pub width: usize,
    /// The register that accumulates over a chunk, and the one that does over a tile.
    pub chunk: usize,
    pub tile: usize,
    /// The cell of the result.
    pub to: usize,
}

/// One walk over a tile, and what follows from its reductions for each row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase {
    pub block: Vec<Step>,
    /// The accumulators that it fills.
    pub accs: std::ops::Range<usize>,
    pub rows: Vec<Step>,
    /// True if it reads memory that nothing has read or prefetched.
    pub fresh: bool,
}

/// A loop kernel, with everything decided.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub cut: Cut,
    /// The tiles, where rows are segments.
    pub tiling: Option<Tiling>,
    pub cells: Vec<Cell>,
    pub views: Vec<View>,
    pub accs: Vec<Acc>,
    /// Values of rows that no reduction is needed for.
    pub prelude: Vec<Step>,
    pub phases: Vec<Phase>,
    /// Stores of values of rows: nothing reads memory any more.
    pub finale: Vec<Step>,
    /// The weight of one element.
    pub cost: usize,
}

impl Schedule {
    /// The cost of the whole, in weighted elements.
    pub fn work(&self) -> usize {
        if let Some(tiling) = &self.tiling {
            return tiling.segments.total.max(tiling.segments.ranges.len()) * self.cost;
        }
        self.cut.kept * self.cut.reduced.max(1) * self.cost
    }
}
