//! Draws kernels: spaces of all ranks, operands of all strides, values of all types and levels.

use crate::{Case, naive::position};
use std::sync::Arc;
use wgrad::{
    DType, Data, Shape,
    op::{Binary, Reduce, Segments, Unary},
    plan::{Body, Instr, Kind, Level, MatMul, Operand, Value},
};

const TYPES: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::U32, DType::I32, DType::Bool];

/// How the levels of values relate.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// There are none.
    None,
    /// What a row has is at hand at each of its points.
    Plain,
    /// Rows are segments: only what is spread is.
    Segments,
}

/// A source of choices.
pub(crate) struct Draw {
    state: u64,
    slots: Vec<Data>,
    reads: Vec<Operand>,
    writes: Vec<Operand>,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, slots: vec![], reads: vec![], writes: vec![] }
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn dtype(&mut self) -> DType {
        if self.below(2) == 0 { DType::F32 } else { self.of(&TYPES) }
    }

    fn shape(&mut self, rank: usize) -> Shape {
        let extents = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 40];
        let mut shape: Vec<usize> = (0..rank).map(|_| self.of(&extents)).collect();
        while shape.iter().product::<usize>() > 3000 {
            let d = self.below(rank);
            shape[d] = shape[d].div_ceil(2);
        }
        if rank > 0 && self.below(20) == 0 {
            let d = self.below(rank);
            shape[d] = 0;
        }
        shape.into()
    }

    /// A stretch of a new slot, laid out at random: contiguous at times, else in any order of dimensions, backwards,
    /// with gaps, and where elements may repeat, with repeated ones.
    fn layout(&mut self, shape: &Shape, dtype: DType, repeat: bool) -> Operand {
        let rank = shape.rank();
        let mut order: Vec<usize> = (0..rank).collect();
        let (plain, before) = (self.below(3) == 0, self.below(4));
        if !plain {
            (0..rank).for_each(|d| {
                let other = self.below(rank);
                order.swap(d, other);
            });
        }
        let mut strides = vec![0isize; rank];
        let mut offset = before;
        let mut span = 1;
        for &d in order.iter().rev() {
            if !plain && repeat && self.below(4) == 0 {
                continue;
            }
            let gap = if plain || self.below(3) > 0 { 0 } else { self.below(3) };
            strides[d] = (span * (1 + gap)) as isize;
            span *= shape[d].max(1) * (1 + gap);
            if !plain && self.below(4) == 0 && shape[d] > 0 {
                offset += (shape[d] - 1) * strides[d] as usize;
                strides[d] = -strides[d];
            }
        }
        if shape.numel() == 0 {
            offset = 0;
        }
        let len = before + span + self.below(3);
        let values: Vec<f64> = (0..len).map(|_| self.value(dtype)).collect();
        self.slots.push(Data::from_f64(dtype, &values));
        Operand { slot: self.slots.len() - 1, offset, shape: shape.clone(), strides }
    }

    /// A small integer, seldom something special.
    fn value(&mut self, dtype: DType) -> f64 {
        match self.below(400) {
            0 if dtype.is_float() => self.of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]),
            n => (n % 9) as f64 - if dtype == DType::U32 { 0.0 } else { 4.0 },
        }
    }

    /// A loop kernel.
    pub(crate) fn looped(mut self) -> Case {
        let rank = self.below(5);
        let space = self.shape(rank);
        let reduced = if self.below(3) == 0 { 0 } else { self.below(rank + 1) };
        let cut = rank == 1 && self.below(2) == 0;
        let segments = cut.then(|| self.segments(space[0]));
        let reduced = if cut { 1 } else { reduced };
        let mut body = Body { space, reduced, segments, values: vec![], stores: vec![] };
        for _ in 0..1 + self.below(4) {
            let level = if reduced > 0 && self.below(4) == 0 { Level::Row } else { Level::Element };
            let dtype = self.dtype();
            let operand = self.layout(&body.shape(level), dtype, true);
            body.values.push(Value { instr: Instr::Load(self.reads.len()), dtype, level });
            self.reads.push(operand);
        }
        if self.below(4) == 0 && body.segments.is_none() {
            self.random(&mut body);
        }
        if self.below(3) == 0 {
            self.lookup(&mut body);
        }
        self.values(&mut body);
        if self.below(2) == 0 {
            self.idiom(&mut body);
        }
        self.stores(&mut body);
        Case { kind: Kind::Loop(body), reads: self.reads, writes: self.writes, slots: self.slots }
    }

    /// What optimizers do: some long vectors are overwritten with what follows from all of them, if a verdict says so.
    pub(crate) fn update(mut self) -> Case {
        let dtype = self.of(&[DType::F32, DType::F64]);
        let space: Shape = [1 + self.below(700)].into();
        let segments = (self.below(2) == 0).then(|| self.segments(space[0]));
        let rows = segments.is_some();
        let mut body =
            Body { space: space.clone(), reduced: usize::from(rows), segments, values: vec![], stores: vec![] };
        let vectors = 2 + self.below(4);
        for _ in 0..vectors {
            let values: Vec<f64> = (0..space[0]).map(|_| self.below(9) as f64 - 4.0).collect();
            self.slots.push(Data::from_f64(dtype, &values));
            body.values.push(Value { instr: Instr::Load(self.reads.len()), dtype, level: Level::Element });
            self.reads.push(Operand::contiguous(self.slots.len() - 1, &space));
        }
        if rows {
            let summed = Instr::Reduce(Reduce::Sum, self.below(vectors));
            body.values.push(Value { instr: summed, dtype, level: Level::Row });
            body.values.push(Value { instr: Instr::Spread(vectors), dtype, level: Level::Element });
        }
        let vector = |body: &Body, v: usize| body.values[v].level == Level::Element && body.values[v].dtype == dtype;
        let verdict = self.below(3) > 0;
        self.slots.push(Data::Bool(vec![verdict]));
        let verdict = Operand { slot: self.slots.len() - 1, offset: 0, shape: space.clone(), strides: vec![0] };
        body.values.push(Value { instr: Instr::Load(self.reads.len()), dtype: DType::Bool, level: Level::Element });
        self.reads.push(verdict);
        let verdict = body.values.len() - 1;
        let first = body.values.len();
        for _ in 0..2 + self.below(9) {
            let known: Vec<usize> = (0..body.values.len()).filter(|&v| vector(&body, v)).collect();
            let [a, b] = [0; 2].map(|_| self.of(&known));
            // Small enough for every result to be exact.
            let ops = [Binary::Add, Binary::Sub, Binary::Max, Binary::Mul];
            let op = self.of(if a < vectors && b < vectors { &ops[..] } else { &ops[..3] });
            // What is chosen is computed with, too.
            let chosen = self.below(4) == 0;
            let instr = if chosen { Instr::Select(verdict, a, b) } else { Instr::Binary(op, a, b) };
            body.values.push(Value { instr, dtype, level: Level::Element });
        }
        let known: Vec<usize> = (first..body.values.len()).collect();
        for old in 0..vectors {
            if self.below(4) == 0 {
                continue;
            }
            let mut new = self.of(&known);
            if self.below(3) > 0 {
                let chosen = Instr::Select(verdict, new, old);
                body.values.push(Value { instr: chosen, dtype, level: Level::Element });
                new = body.values.len() - 1;
            }
            body.stores.push(new);
            self.writes.push(self.reads[old].clone());
        }
        Case { kind: Kind::Loop(body), reads: self.reads, writes: self.writes, slots: self.slots }
    }

    /// Segments of a vector, some empty, with gaps.
    fn segments(&mut self, total: usize) -> Arc<Segments> {
        let (mut ranges, mut end) = (vec![], 0);
        for _ in 0..self.below(12) {
            let gap = if self.below(3) == 0 { self.below(9) } else { 0 };
            let longest = self.of(&[1, 4, 20, 200]);
            let (start, len) = (end + gap, self.below(longest));
            if start + len > total {
                break;
            }
            ranges.push((start, len));
            end = start + len;
        }
        Arc::new(Segments { total, ranges: ranges.into() })
    }

    /// An element of a vector for each point, by the segment of some position.
    fn lookup(&mut self, body: &mut Body) {
        let total = self.below(60);
        let segments = self.segments(total);
        let mut index = self.layout(&body.space, DType::U32, true);
        let len = self.slots[index.slot].len();
        if self.below(2) == 0 {
            index = Operand { offset: index.offset % 3, ..Operand::contiguous(index.slot, &body.space) };
        }
        // Where the vector ends in a long gap, no position is outside.
        let segments = Arc::new(Segments { total: total + len + 3, ranges: segments.ranges.clone() });
        let (dtype, shape) = (self.dtype(), [segments.ranges.len()].into());
        let operand = self.layout(&shape, dtype, true);
        let instr = Instr::Lookup { load: self.reads.len(), segments, index };
        self.reads.push(operand);
        body.values.push(Value { instr, dtype, level: Level::Element });
    }

    /// Random bits, for a key and a counter that are constants or among what has been loaded.
    fn random(&mut self, body: &mut Body) {
        let level = if body.reduced > 0 { Level::Row } else { Level::Element };
        for _ in 0..3 {
            let instr = Instr::Const(self.below(1000) as f64);
            body.values.push(Value { instr, dtype: DType::U32, level });
        }
        let words = |v: &usize| body.values[*v].dtype == DType::U32;
        let words: Vec<usize> = (0..body.values.len()).filter(words).collect();
        let key = [0; 3].map(|_| self.of(&words));
        let own = if body.reduced > 0 && self.below(2) == 0 { Level::Row } else { Level::Element };
        let level = key.iter().map(|&k| body.values[k].level).max().expect("three").max(own);
        let index = self.layout(&body.shape(level), DType::U32, true);
        let stream = self.below(usize::MAX) as u64;
        body.values.push(Value { instr: Instr::Random { stream, key, index }, dtype: DType::U32, level });
    }

    /// A matrix product with an epilogue.
    pub(crate) fn product(mut self) -> Case {
        let rank = self.below(3);
        let batch: Shape = (0..rank).map(|_| self.of(&[1, 2, 3])).collect::<Vec<_>>().into();
        let [m, k, n] = [0; 3].map(|_| self.of(&[0, 1, 2, 3, 5, 8, 17, 33]));
        let dtype = self.of(&[DType::F32, DType::F64, DType::F16]);
        for matrix in [[m, k], [k, n]] {
            let shape = [&batch[..], &matrix[..]].concat().into();
            let operand = self.layout(&shape, dtype, true);
            self.reads.push(operand);
        }
        let space: Shape = [&batch[..], &[m, n][..]].concat().into();
        let mut body = Body { space: space.clone(), reduced: 0, segments: None, values: vec![], stores: vec![] };
        body.values.push(Value { instr: Instr::Product, dtype, level: Level::Element });
        for _ in 0..self.below(3) {
            let dtype = if self.below(2) == 0 { dtype } else { self.dtype() };
            let operand = self.layout(&space, dtype, true);
            body.values.push(Value { instr: Instr::Load(self.reads.len()), dtype, level: Level::Element });
            self.reads.push(operand);
        }
        if self.below(3) > 0 {
            self.values(&mut body);
        }
        self.stores(&mut body);
        // What is in place is for loops.
        for i in 0..self.writes.len() {
            if self.reads.iter().any(|r| r.slot == self.writes[i].slot) {
                let dtype = self.slots[self.writes[i].slot].dtype();
                self.writes[i] = self.layout(&space, dtype, false);
            }
        }
        if !body.values.iter().enumerate().any(|(i, _)| body.stores.contains(&i)) {
            body.stores.push(0);
            let write = self.layout(&space, dtype, false);
            self.writes.push(write);
        }
        let kind = Kind::MatMul(MatMul { batch, m, k, n, epilogue: body });
        Case { kind, reads: self.reads, writes: self.writes, slots: self.slots }
    }

    /// Some values that follow from those there are.
    fn values(&mut self, body: &mut Body) {
        let rows = match body.segments {
            Some(_) => Rows::Segments,
            None if body.reduced > 0 => Rows::Plain,
            None => Rows::None,
        };
        for _ in 0..1 + self.below(12) {
            if self.below(8) == 0 {
                let dtype = self.dtype();
                let level = match rows {
                    Rows::Plain => Level::Row,
                    Rows::None => Level::Element,
                    Rows::Segments => self.of(&[Level::Row, Level::Element]),
                };
                let instr = Instr::Const(self.below(7) as f64 - if dtype == DType::U32 { 0.0 } else { 3.0 });
                body.values.push(Value { instr, dtype, level });
                continue;
            }
            let a = self.below(body.values.len());
            let dtype = body.values[a].dtype;
            let level = body.values[a].level;
            let at_hand = |v: &usize| rows != Rows::Segments || body.values[*v].level == level;
            let alike = |v: &usize| body.values[*v].dtype == dtype && at_hand(v);
            let others: Vec<usize> = (0..body.values.len()).filter(alike).collect();
            let b = self.of(&others);
            let bools: Vec<usize> =
                (0..body.values.len()).filter(|&v| body.values[v].dtype == DType::Bool && at_hand(&v)).collect();
            let number = dtype != DType::Bool;
            let loaded = matches!(body.values[b].instr, Instr::Load(_) | Instr::Const(_));
            let (instr, to) = match self.below(9) {
                0..3 if rows == Rows::Segments && level == Level::Row => (Instr::Spread(a), dtype),
                0 | 1 if body.reduced > 0 && body.values[a].level == Level::Element => {
                    let kind = match self.below(5) {
                        0 | 1 if number => Reduce::Sum,
                        2 if dtype.is_float() => Reduce::Norm,
                        _ => Reduce::Max,
                    };
                    (Instr::Reduce(kind, a), dtype)
                }
                0 if dtype.is_float() || dtype == DType::I32 => (Instr::Unary(Unary::Neg, a), dtype),
                1 if dtype.is_float() => (Instr::Unary(Unary::IsFinite, a), DType::Bool),
                2 if !bools.is_empty() => (Instr::Select(self.of(&bools), a, b), dtype),
                3 => {
                    let to = self.of(&TYPES);
                    (Instr::Cast(a), to)
                }
                4 if number => (Instr::Binary(Binary::Lt, a, b), DType::Bool),
                5 => (Instr::Binary(Binary::Eq, a, b), DType::Bool),
                6 if number && loaded => (Instr::Binary(Binary::Mul, a, b), dtype),
                7 if number => (Instr::Binary(self.of(&[Binary::Add, Binary::Sub]), a, b), dtype),
                7 | 8 if matches!(dtype, DType::U32 | DType::I32) => (Instr::Binary(Binary::Div, a, b), dtype),
                _ => (Instr::Binary(Binary::Max, a, b), dtype),
            };
            let level = match instr {
                Instr::Reduce(..) => Level::Row,
                Instr::Spread(_) => Level::Element,
                _ => instr.operands().map(|o| body.values[o].level).max().expect("it uses something"),
            };
            body.values.push(Value { instr, dtype: to, level });
        }
    }

    /// Instructions that may be run as one, at times with something among them that others need too.
    fn idiom(&mut self, body: &mut Body) {
        let floats = |v: &usize| {
            let value = &body.values[*v];
            value.level == Level::Element && matches!(value.dtype, DType::F32 | DType::F64)
        };
        let floats: Vec<usize> = (0..body.values.len()).filter(floats).collect();
        if floats.is_empty() {
            return;
        }
        let x = self.of(&floats);
        let dtype = body.values[x].dtype;
        let alike: Vec<usize> = floats.into_iter().filter(|v| body.values[*v].dtype == dtype).collect();
        let y = self.of(&alike);
        let level = if body.reduced > 0 && body.segments.is_none() { Level::Row } else { Level::Element };
        let [s, t, u] = [0; 3].map(|_| {
            let instr = if self.below(2) == 0 {
                Instr::Const(1.0 + self.below(3) as f64)
            } else {
                // One element for all, or at times one for each.
                let shape = body.shape(level);
                let mut operand = self.layout(&shape, dtype, true);
                if self.below(4) > 0 {
                    operand = Operand { offset: 0, strides: vec![0; shape.rank()], ..operand };
                }
                self.reads.push(operand);
                Instr::Load(self.reads.len() - 1)
            };
            body.values.push(Value { instr, dtype, level });
            body.values.len() - 1
        });
        let first = body.values.len();
        let mut push = |instr: Instr, to: DType| {
            let level = instr.operands().map(|o| body.values[o].level).max().unwrap_or(level);
            body.values.push(Value { instr, dtype: to, level });
            body.values.len() - 1
        };
        let mut binary = |op, a, b| push(Instr::Binary(op, a, b), dtype);
        match self.below(7) {
            0 => {
                let once = binary(Binary::Mul, x, s);
                let twice = binary(Binary::Mul, t, once);
                binary(Binary::Mul, twice, u);
            }
            op @ 1..4 => {
                let scaled = binary(Binary::Mul, s, x);
                let op = [Binary::Add, Binary::Sub, Binary::Sub][op - 1];
                let transposed = self.below(2) == 0;
                if transposed {
                    binary(op, y, scaled)
                } else {
                    binary(op, scaled, y)
                };
            }
            4 => {
                let [a, b] = [binary(Binary::Mul, x, s), binary(Binary::Mul, y, t)];
                binary(Binary::Add, a, b);
            }
            5 => {
                let square = binary(Binary::Mul, y, y);
                let [a, b] = [binary(Binary::Mul, x, s), binary(Binary::Mul, square, t)];
                let transposed = self.below(2) == 0;
                if transposed {
                    binary(Binary::Add, b, a)
                } else {
                    binary(Binary::Add, a, b)
                };
            }
            _ => {
                let guarded = self.below(2) == 0;
                let square = binary(Binary::Mul, y, y);
                let root = if guarded {
                    let mut constant = |c| push(Instr::Const(c), dtype);
                    let [zero, one] = [constant(0.0), constant(1.0)];
                    let nothing = push(Instr::Binary(Binary::Eq, square, zero), DType::Bool);
                    let safe = push(Instr::Select(nothing, one, square), dtype);
                    let root = push(Instr::Unary(Unary::Sqrt, safe), dtype);
                    push(Instr::Select(nothing, zero, root), dtype)
                } else {
                    push(Instr::Unary(Unary::Sqrt, square), dtype)
                };
                let scaled = push(Instr::Binary(Binary::Mul, root, t), dtype);
                let below = push(Instr::Binary(Binary::Add, u, scaled), dtype);
                let above = push(Instr::Binary(Binary::Mul, s, x), dtype);
                push(Instr::Binary(Binary::Div, above, below), dtype);
            }
        }
        if self.below(3) == 0 {
            let among = first + self.below(body.values.len() - first);
            let last = body.values.len() - 1;
            if body.values[among].dtype == dtype && body.values[among].level == body.values[last].level {
                let instr = Instr::Binary(Binary::Max, among, last);
                body.values.push(Value { instr, dtype, level: body.values[last].level });
            }
        }
    }

    /// Some writes: over a read, to slots of their own, and next to one another in one slot.
    fn stores(&mut self, body: &mut Body) {
        for _ in 0..1 + self.below(4) {
            let v = if self.below(2) == 0 { body.values.len() - 1 } else { self.below(body.values.len()) };
            let Value { dtype, level, .. } = body.values[v];
            let shape = body.shape(level);
            let over = |r: &&Operand| {
                let alone = self.reads.iter().filter(|other| other.slot == r.slot).count() == 1;
                let distinct = r.shape.iter().zip(&r.strides).all(|(&n, &s)| n <= 1 || s != 0);
                let free = self.writes.iter().all(|w| w.slot != r.slot);
                let pointwise = body.values.iter().all(|value| match value.instr {
                    Instr::Lookup { load, .. } => self.reads[load] != **r,
                    // There may be as many segments as points.
                    Instr::Load(load) => body.segments.is_none() || self.reads[load] != **r || value.level == level,
                    _ => true,
                });
                pointwise && r.shape == shape && alone && distinct && free && self.slots[r.slot].dtype() == dtype
            };
            let over: Vec<Operand> = self.reads.iter().filter(over).cloned().collect();
            let write = if !over.is_empty() && self.below(2) == 0 {
                over[self.below(over.len())].clone()
            } else {
                self.layout(&shape, dtype, false)
            };
            body.stores.push(v);
            self.writes.push(write.clone());
            if self.below(4) == 0 && !over.contains(&write) {
                // The same again behind it, in the same slot.
                let slot = &self.slots[write.slot];
                let len = slot.len();
                let doubled = [slot.to_f64(), slot.to_f64()].concat();
                self.slots[write.slot] = Data::from_f64(dtype, &doubled);
                body.stores.push(v);
                self.writes.push(Operand { offset: write.offset + len, ..write });
            }
        }
        debug_assert!(
            self.writes
                .iter()
                .all(|w| w.shape.numel() == 0 || position(w, &vec![0; w.shape.rank()]) < self.slots[w.slot].len())
        );
    }
}
