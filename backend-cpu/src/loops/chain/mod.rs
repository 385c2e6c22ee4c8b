//! Chains: the float arithmetic of a walk over rows, run a few elements at a time. What lies between two instructions stays
//! in the nearest memory, and every operand is met once, whatever their number. The bits are those of the instructions one
//! by one.

mod compute;
mod fuse;
mod groups;
mod join;
mod pieces;
mod roots;
mod run;
mod sink;

pub(crate) use compute::Lane;
pub(crate) use join::join;
pub(crate) use pieces::{Area, Pieces};
pub(crate) use run::{From, INPUTS, LONGEST, Run, To};
pub(crate) use sink::{FOLDS, Folds, Lines};

use wgrad::{
    DType,
    op::{Binary, Reduce, Unary},
};

/// The function of an instruction, of values a, b, c, d, e. Conditions are 1 and 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    /// `a`, as it is.
    Copy,
    Neg,
    Recip,
    Sqrt,
    /// A function that is more than arithmetic.
    Function(Unary),
    IsFinite,
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Lt,
    Eq,
    /// `a ? b : c`.
    Select,
    /// `a < b ? c : d`.
    SelectLt,
    /// As `Select`, where `a` is one for the whole block: the value is found where it is.
    Choose,
    /// `a * b * c`.
    Mul3,
    /// `a * b + c`.
    MulAdd,
    /// `a * b * c + d`.
    Mul3Add,
    /// `a * b - c`.
    MulSub,
    /// `c - a * b`.
    SubMul,
    /// `(a - b) * c`: how far from a mean, in units of something.
    Deviation,
    /// `e^(a - b)`: a share of a soft-max.
    ExpSub,
    /// `a * b + c * d`: a running mean.
    Mix,
    /// `a * b + c * d + e`: the gradient of what is normalised.
    MixAdd,
    /// `a * b + c * d * e`: a running mean of squares.
    Mix3,
    /// The square root, and 0 for what equals 0, which of a root says its sign.
    Root,
    /// `a * b / (sqrt(c) * d + e)`: a step in units of a root.
    Ratio,
    /// As `Ratio`, with `Root`.
    RootRatio,
}

impl Code {
    fn unary(op: Unary) -> Self {
        match op {
            Unary::Neg => Self::Neg,
            Unary::Recip => Self::Recip,
            Unary::Sqrt => Self::Sqrt,
            Unary::IsFinite => Self::IsFinite,
            function => Self::Function(function),
        }
    }

    /// The code of a function, if chains have it.
    fn binary(op: Binary) -> Option<Self> {
        Some(match op {
            Binary::Add => Self::Add,
            Binary::Sub => Self::Sub,
            Binary::Mul => Self::Mul,
            Binary::Div => Self::Div,
            Binary::Max => Self::Max,
            Binary::Lt => Self::Lt,
            Binary::Eq => Self::Eq,
            _ => return None,
        })
    }

    /// True if a result is finite only if all values are that it is computed from.
    fn keeps_non_finite(self) -> bool {
        let products = [Self::Neg, Self::Mul, Self::Mul3, Self::MulAdd, Self::Mul3Add, Self::MulSub, Self::SubMul];
        let sums = [Self::Copy, Self::Add, Self::Sub, Self::Deviation, Self::Mix, Self::MixAdd, Self::Mix3];
        products.contains(&self) || sums.contains(&self)
    }

    /// The number of values that it uses.
    fn arity(self) -> usize {
        match self {
            Self::Copy | Self::Neg | Self::Recip | Self::Sqrt | Self::IsFinite | Self::Root | Self::Function(_) => 1,
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Max | Self::Lt | Self::Eq | Self::ExpSub => 2,
            Self::Select | Self::Choose | Self::Mul3 | Self::MulAdd | Self::MulSub | Self::SubMul | Self::Deviation => {
                3
            }
            Self::SelectLt | Self::Mix | Self::Mul3Add => 4,
            Self::Mix3 | Self::MixAdd | Self::Ratio | Self::RootRatio => 5,
        }
    }
}

/// One instruction. Its result is the next value; values are numbered from the chain's inputs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub code: Code,
    /// The values that it uses, as far as it has so many.
    pub of: [u8; 5],
}

/// A value that leaves a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// The value.
    pub value: usize,
    /// Its cell.
    pub cell: usize,
    /// A view that it is written to at once, where a block of it is contiguous.
    pub direct: Option<usize>,
    /// True if the old contents are not needed once the value is computed.
    pub alone: bool,
}

/// A chain's question about a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    Reduce(Reduce),
    /// True if any element is not finite.
    NonFinite,
    /// As [`Question::NonFinite`], where the norm at this place among the reductions is finite only if no element is non-finite.
    NonFiniteNorm(usize),
}

/// A value that a chain reduces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    /// The value.
    pub value: usize,
    pub question: Question,
    /// The instruction that computes it, if a sum can do that by itself, and nothing else needs the value.
    pub made: Option<Instruction>,
    /// The accumulator of the schedule.
    pub acc: usize,
}

/// The place where a chain's first values come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// A cell of the chain's type, of any extent; or a condition.
    Cell(usize),
    /// A cell with a value for each row, where rows are segments: the value of each element's row, and 0 between segments.
    Spread(usize),
}

impl Input {
    pub fn cell(self) -> usize {
        match self {
            Self::Cell(cell) | Self::Spread(cell) => cell,
        }
    }
}

/// The most prefetches of a chain.
pub(crate) const PREFETCHES: usize = 8;

/// Memory that a chain prefetches while it computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    pub view: usize,
    /// True if the next tile's is meant.
    pub next: bool,
}

/// A list of instructions that run side by side over a block.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The type of its arithmetic: f32 or f64.
    pub dtype: DType,
    pub inputs: Vec<Input>,
    pub code: Vec<Instruction>,
    pub outputs: Vec<Output>,
    pub folds: Vec<Fold>,
    /// The instructions that sums compute themselves, as bits.
    pub made: u32,
    /// The register in which it keeps a few elements of each value.
    pub file: usize,
    /// The prefetches while it computes.
    pub prefetches: Vec<Prefetch>,
}

impl Chain {
    /// True if it computes so much that memory is idle.
    pub fn is_slow(&self) -> bool {
        self.code.iter().any(|of| matches!(of.code, Code::Function(_) | Code::ExpSub))
    }

    /// The number of values.
    pub fn values(&self) -> usize {
        self.inputs.len() + self.code.len()
    }
}
