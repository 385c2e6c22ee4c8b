//! The scalar program of a kernel: what is computed at each point of an index space.

use crate::{
    DType, Shape,
    op::{Binary, Reduce, Segments, Unary},
};
use std::sync::Arc;

/// True if a value has one element per point of the index space, or one per row of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// One element per row: per point of the leading dimensions.
    Row,
    /// One element per point.
    Element,
}

/// The instruction for one value, from earlier ones, named by their position in [`Body::values`]. An operand of level
/// [`Level::Row`] stands for the same value at every point of its row.
#[derive(Clone, PartialEq, Debug)]
pub enum Instr {
    /// An element of one of the kernel's reads. The read's shape is the space, or its leading dimensions for
    /// [`Level::Row`].
    Load(usize),
    /// A constant. (Its level is [`Level::Row`] in a body that reduces, save one whose rows are segments.)
    Const(f64),
    /// An element of a small vector: of read `load`, one element per segment, that of the segment which position `index`
    /// lies in, and 0 between segments.
    Lookup {
        /// The read, of shape `[segments]`.
        load: usize,
        /// The segments.
        segments: Arc<Segments>,
        /// The position in the vector that the segments divide: `offset + sum of coordinate * stride`. Its shape is that of
        /// this value's level; its slot means nothing.
        index: super::Operand,
    },
    /// If rows are segments ([`Body::segments`]): the value of a point's own row, and 0 between segments.
    Spread(usize),
    /// The matrix product that this body is the epilogue of.
    Product,
    /// Random bits (u32): word `index` of the stream, for the key and counter that two values hold, see
    /// [`crate::op::Op::Random`]. `index` is the position that a read of contiguous memory would have: its slot means
    /// nothing.
    Random {
        /// The stream.
        stream: u64,
        /// The values that hold the key's two words and the counter.
        key: [usize; 3],
        /// The word: `offset + sum of coordinate * stride`. Its shape is that of this value's level.
        index: super::Operand,
    },
    /// An elementwise function.
    Unary(Unary, usize),
    /// An elementwise function of two values.
    Binary(Binary, usize, usize),
    /// `condition ? a : b`.
    Select(usize, usize, usize),
    /// Conversion to this value's type.
    Cast(usize),
    /// A value of level [`Level::Element`], combined over each row.
    Reduce(Reduce, usize),
}

impl Instr {
    /// The values it uses.
    pub fn operands(&self) -> impl Iterator<Item = usize> {
        let used: [Option<usize>; 3] = match *self {
            Instr::Load(_) | Instr::Const(_) | Instr::Product | Instr::Lookup { .. } => [None; 3],
            Instr::Random { key: [a, b, c], .. } | Instr::Select(a, b, c) => [Some(a), Some(b), Some(c)],
            Instr::Binary(_, a, b) => [Some(a), Some(b), None],
            Instr::Unary(_, a) | Instr::Cast(a) | Instr::Reduce(_, a) | Instr::Spread(a) => [Some(a), None, None],
        };
        used.into_iter().flatten()
    }

    /// The same instruction over other values.
    pub(super) fn renumbered(&self, to: impl Fn(usize) -> usize) -> Self {
        match self {
            Instr::Load(_) | Instr::Const(_) | Instr::Product | Instr::Lookup { .. } => self.clone(),
            Instr::Random { stream, key, index } => {
                Instr::Random { stream: *stream, key: key.map(to), index: index.clone() }
            }
            Instr::Select(a, b, c) => Instr::Select(to(*a), to(*b), to(*c)),
            Instr::Binary(op, a, b) => Instr::Binary(*op, to(*a), to(*b)),
            Instr::Unary(op, a) => Instr::Unary(*op, to(*a)),
            Instr::Cast(a) => Instr::Cast(to(*a)),
            Instr::Reduce(kind, a) => Instr::Reduce(*kind, to(*a)),
            Instr::Spread(a) => Instr::Spread(to(*a)),
        }
    }
}

/// One value of a body.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// The instruction that computes it.
    pub instr: Instr,
    /// Its type. `F16` is rounded when it is stored, and by a cast; arithmetic in between is f32.
    pub dtype: DType,
    /// Its level: one element per point, or one per row.
    pub level: Level,
}

/// The form of a body, for the choice of loops and for the printer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// Nothing is reduced.
    Map,
    /// A reduction, and values of rows that depend on it; no element depends on it.
    Reduce,
    /// Elements that depend on a reduction of their row: the row is walked more than once.
    Row,
}

/// A scalar program over an index space.
///
/// The last `reduced` dimensions of the space are the rows that reductions combine, whatever their place in memory: the
/// strides of the reads say that. With `reduced` 0 there are no rows, and every value has level [`Level::Element`].
///
/// If `segments` are given, the space is a vector, and its segments are the rows, of different lengths and with points
/// between them that belong to none. Values of one level do not mix with those of the other there: [`Instr::Reduce`] leads
/// to level [`Level::Row`], and [`Instr::Spread`] back.
#[derive(Clone, PartialEq, Debug)]
pub struct Body {
    /// The index space.
    pub space: Shape,
    /// The number of its last dimensions that are reduced.
    pub reduced: usize,
    /// The segments of a space of one dimension that are its rows.
    pub segments: Option<Arc<Segments>>,
    /// The values, each using earlier ones.
    pub values: Vec<Value>,
    /// The value that each of the kernel's writes holds.
    pub stores: Vec<usize>,
}

impl Body {
    /// The shape of a level's values.
    pub fn shape(&self, level: Level) -> Shape {
        match (level, &self.segments) {
            (Level::Element, _) => self.space.clone(),
            (Level::Row, Some(segments)) => [segments.ranges.len()].into(),
            (Level::Row, None) => self.space[..self.space.rank() - self.reduced].into(),
        }
    }

    /// The number of points that a row has: 1 where nothing is reduced. Segments differ.
    pub fn row_len(&self) -> usize {
        self.space[self.space.rank() - self.reduced..].iter().product()
    }

    /// The number of reductions of its row that each value waits for, one after another.
    pub fn depths(&self) -> Vec<usize> {
        let mut depths: Vec<usize> = vec![];
        for value in &self.values {
            let before = value.instr.operands().map(|o| depths[o]).max().unwrap_or(0);
            depths.push(before + usize::from(matches!(value.instr, Instr::Reduce(..))));
        }
        depths
    }

    /// The number of walks over a row: for the reductions that do not wait for others, for those that wait for these, and so
    /// on; and once more where elements are stored that wait for the last ones.
    pub fn passes(&self) -> usize {
        let depths = self.depths();
        let reduced = self.values.iter().filter_map(|value| match value.instr {
            Instr::Reduce(_, x) => Some(depths[x]),
            _ => None,
        });
        let stored = self.stores.iter().filter(|&&v| self.values[v].level == Level::Element).map(|&v| depths[v]);
        reduced.chain(stored).max().unwrap_or(0) + 1
    }

    /// The body without values that no stored value depends on.
    pub(super) fn without_unused(mut self) -> Self {
        let mut used = vec![false; self.values.len()];
        self.stores.iter().for_each(|&v| used[v] = true);
        for v in (0..used.len()).rev() {
            if used[v] {
                self.values[v].instr.operands().for_each(|o| used[o] = true);
            }
        }
        let mut new = vec![0; used.len()];
        let mut left = vec![];
        for (v, value) in self.values.into_iter().enumerate().filter(|(v, _)| used[*v]) {
            new[v] = left.len();
            left.push(Value { instr: value.instr.renumbered(|o| new[o]), ..value });
        }
        self.stores.iter_mut().for_each(|v| *v = new[*v]);
        Self { values: left, ..self }
    }

    /// The form of the body.
    pub fn form(&self) -> Form {
        if self.values.iter().all(|value| !matches!(value.instr, Instr::Reduce(..))) {
            return Form::Map;
        }
        // The values that depend on a reduction.
        let mut after = vec![false; self.values.len()];
        for (i, value) in self.values.iter().enumerate() {
            after[i] = matches!(value.instr, Instr::Reduce(..)) || value.instr.operands().any(|o| after[o]);
        }
        let walked_again = |(i, value): (usize, &Value)| after[i] && value.level == Level::Element;
        if self.values.iter().enumerate().any(walked_again) || self.two_passes(&after) {
            Form::Row
        } else {
            Form::Reduce
        }
    }

    /// True if a reduction is over elements that depend on another reduction.
    fn two_passes(&self, after: &[bool]) -> bool {
        self.values.iter().any(|value| matches!(value.instr, Instr::Reduce(_, x) if after[x]))
    }
}
