//! Recording a recipe on a tape.

use super::recipe::{Kind, Recipe, Step};
use crate::{
    Attention, Cell, Conv2d, DType, Recurrence, Shape, Tensor,
    op::{Place, Segments},
    tape::Tape,
};
use std::sync::Arc;

/// The greatest number of elements of a value.
const MAX_NUMEL: usize = 64;
/// Values whose magnitude could exceed this are squashed.
const MAX_BOUND: f64 = 4.0;

/// The way to record ops that mean something to the reverse sweep only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As themselves.
    Plain,
    /// By their meaning: a detached value is an input `frozen0`, `frozen1`, .. of the program; a hook that scales by
    /// `f` is `x * f + frozen * (1 - f)`; barriers, checkpoints and custom rules are left out. The function recorded
    /// then has the gradient that the plain recording claims, so finite differences of it check that gradient.
    Explicit,
    /// As themselves, but each element of each value is changed by up to 1e-5 of itself, as the seed decides. This
    /// stands for the effect of rounding in f32 by the end of a tape, wherever it happens.
    Moved(u32),
}

/// The relative step of [`Mode::Moved`].
const MOVED: f64 = 1e-5;

/// A recorded recipe.
pub struct Recorded<'t> {
    /// A float scalar that depends on every value that no other step has used.
    pub loss: Tensor<'t>,
    /// The values that no other step has used. The loss is their weighted sum.
    pub unused: Vec<Tensor<'t>>,
    /// The leaves.
    pub leaves: Vec<Tensor<'t>>,
    /// The discrete facts about the values: the outcomes of comparisons, the winners of maxima, integers. If these
    /// differ between two points, a kink or a jump lies between them.
    pub branches: Vec<Tensor<'t>>,
    /// The values that the sweep takes as constants, for the inputs `frozen0`, `frozen1`, .. of [`Mode::Explicit`].
    pub frozen: Vec<Tensor<'t>>,
}

impl Recipe {
    /// Records the recipe over inputs `x0`, `x1`, .., one for each leaf.
    pub fn record<'t>(&self, tape: &'t Tape, mode: Mode) -> Recorded<'t> {
        let leaves: Vec<Tensor<'t>> = self
            .leaves
            .iter()
            .enumerate()
            .map(|(i, leaf)| tape.shared_input(&format!("x{i}"), &leaf.shape, self.dtype))
            .collect();
        self.record_over(&leaves, mode)
    }

    /// Records the recipe over given leaves (states, parameters, values of a larger program), which have the shapes and
    /// type of the recipe's own.
    pub fn record_over<'t>(&self, leaves: &[Tensor<'t>], mode: Mode) -> Recorded<'t> {
        self.record_in_parts(leaves, mode, &[], |_| vec![])
    }

    /// As [`Recipe::record_over`], in parts. Before the step at each of some positions (ascending, at most the number
    /// of steps), `between` is called with the number of the part before it, from 0 on, and may record anything. It
    /// returns values, each with the number of a leaf. Later steps may read such a value beside the leaf, and in its
    /// place.
    pub fn record_in_parts<'t>(
        &self,
        leaves: &[Tensor<'t>],
        mode: Mode,
        positions: &[usize],
        mut between: impl FnMut(usize) -> Vec<(usize, Tensor<'t>)>,
    ) -> Recorded<'t> {
        let tape = leaves[0].tape();
        let leaf = |(i, x): (usize, Tensor<'t>)| Entry { x, key: 1 + i as u8, bound: 2.0, used: false };
        let pool = leaves.iter().copied().enumerate().map(leaf).collect();
        let mut player =
            Player { tape, dtype: self.dtype, mode, pool, picked: vec![], branches: vec![], frozen: vec![] };
        let mut start = 0;
        for (part, &position) in positions.iter().enumerate() {
            player.play(&self.steps[start..position]);
            player.pool.extend(between(part).into_iter().map(leaf));
            start = position;
        }
        player.play(&self.steps[start..]);
        let unused: Vec<Tensor<'t>> = player.pool.iter().filter(|e| !e.used).map(|e| e.x).collect();
        let loss = player.loss(&unused);
        Recorded { loss, unused, leaves: leaves.to_vec(), branches: player.branches, frozen: player.frozen }
    }
}

/// A value that later steps may use.
#[derive(Clone, Copy)]
struct Entry<'t> {
    x: Tensor<'t>,
    key: u8,
    /// No element is larger than this in magnitude.
    bound: f64,
    used: bool,
}

struct Player<'t> {
    tape: &'t Tape,
    dtype: DType,
    mode: Mode,
    pool: Vec<Entry<'t>>,
    /// The values that the present step uses.
    picked: Vec<usize>,
    branches: Vec<Tensor<'t>>,
    frozen: Vec<Tensor<'t>>,
}

impl<'t> Player<'t> {
    fn play(&mut self, mut steps: &[Step]) {
        while let Some((first, rest)) = steps.split_first() {
            steps = rest;
            if first.kind == Kind::Checkpoint {
                let (inside, after) = rest.split_at(rest.len().min(1 + first.n[0] as usize % 6));
                match self.mode {
                    Mode::Plain | Mode::Moved(_) => self.tape.checkpoint(|| self.play(inside)),
                    Mode::Explicit => self.play(inside),
                }
                steps = after;
            } else {
                let result = self.step(first);
                let picked = std::mem::take(&mut self.picked);
                if let Some((x, bound)) = result {
                    picked.into_iter().for_each(|i| self.pool[i].used = true);
                    self.push(x, first.key, bound);
                }
            }
        }
    }

    /// The sum of some values, each element with a weight of its own.
    fn loss(&self, values: &[Tensor<'t>]) -> Tensor<'t> {
        let weighted = values.iter().map(|&x| {
            let weights = (self.tape.iota(x.numel()).cast(self.dtype) * 0.7 + 0.3).cos();
            (x * weights.reshape(x.shape())).sum()
        });
        weighted.reduce(|a, b| a + b).expect("the last value is unused")
    }

    /// Makes a value available to later steps, squashed if it could be large.
    fn push(&mut self, x: Tensor<'t>, key: u8, bound: f64) {
        let (x, bound) = if bound > MAX_BOUND { ((x * (MAX_BOUND / bound)).tanh(), 1.0) } else { (x, bound) };
        let x = match self.mode {
            Mode::Moved(seed) if x.dtype().is_float() => {
                let phases = self.tape.iota(x.numel()).cast(x.dtype()) * 12.9898 + 78.233 * f64::from(seed);
                x * (phases.sin().reshape(x.shape()) * MOVED + 1.0)
            }
            _ => x,
        };
        self.pool.push(Entry { x, key, bound, used: false });
    }

    /// The latest value for 0, else the value with the nearest key; the later of two.
    fn pick(&mut self, key: u8) -> (Tensor<'t>, f64) {
        let distance = |i: &usize| if key == 0 { 0 } else { self.pool[*i].key.abs_diff(key) };
        let i = (0..self.pool.len()).rev().min_by_key(distance).expect("there is a leaf");
        self.picked.push(i);
        (self.pool[i].x, self.pool[i].bound)
    }

    /// A constant to the sweep; in the explicit recording, an input.
    fn freeze(&mut self, x: Tensor<'t>) -> Tensor<'t> {
        let frozen = match self.mode {
            Mode::Plain | Mode::Moved(_) => x.detach(),
            Mode::Explicit => self.tape.input(&format!("frozen{}", self.frozen.len()), x.shape(), x.dtype()),
        };
        self.frozen.push(frozen);
        frozen
    }

    /// `len` indices below `extent`, in a shape.
    fn index(&self, extent: usize, shape: &Shape, offset: u8) -> Tensor<'t> {
        let bank = self.tape.shared_input(&format!("index{extent}"), [Recipe::INDICES], DType::U32);
        let start = offset as usize % (Recipe::INDICES - MAX_NUMEL);
        bank.slice(0, start, shape.numel()).reshape(shape)
    }

    /// Numbers from 0 to 1, of one of a few streams.
    fn random(&self, step: &Step, shape: &Shape) -> Tensor<'t> {
        let key = self.tape.shared_input("key", [2], DType::U32);
        let counter = self.tape.shared_input("counter", [], DType::U32);
        let stream = ((step.n[0] as u64 % 3) << 32) | 1;
        self.tape.random(key, counter, stream, shape).cast(self.dtype) * 2f64.powi(-32)
    }

    /// Records one step; `None` if it does not apply to its operand.
    fn step(&mut self, step: &Step) -> Option<(Tensor<'t>, f64)> {
        let (x, b) = self.pick(step.a);
        Some(match step.kind {
            Kind::Neg => (-x, b),
            Kind::Sin => (x.sin(), 1.0),
            Kind::Cos => (x.cos(), 1.0),
            Kind::Tanh => (x.tanh(), 1.0),
            Kind::Erf => (x.erf(), 1.0),
            Kind::Exp if b > 1.5 => (x.tanh().exp(), 1f64.exp()),
            Kind::Exp => (x.exp(), b.exp()),
            Kind::Expm1 if b > 1.5 => (x.tanh().expm1(), 2.0),
            Kind::Expm1 => (x.expm1(), b.exp_m1().max(1.0)),
            Kind::Recip => ((x * x + 0.5).recip(), 2.0),
            Kind::Sqrt => ((x * x + 0.5).sqrt(), b + 1.0),
            Kind::Log => ((x * x + 0.5).log(), (b * b + 0.5).ln().max(1.0)),
            Kind::Log1p => ((x * x).log1p(), (b * b).ln_1p().max(1.0)),
            Kind::Add | Kind::Sub | Kind::Mul | Kind::Div | Kind::Pow | Kind::Max => {
                return Some(self.binary(step, x, b));
            }
            Kind::SelectLess | Kind::SelectEqual | Kind::SelectFinite => return Some(self.select(step, x, b)),
            Kind::CastFloat | Kind::CastHalf | Kind::CastInteger | Kind::CastBool => self.cast(step, x, b),
            Kind::Random => (x * self.random(step, &x.shape()), b),
            Kind::Sum | Kind::ReduceMax | Kind::Norm | Kind::ArgMax | Kind::CumSum => return self.reduce(step, x, b),
            Kind::Reshape | Kind::Permute | Kind::Expand | Kind::Slice | Kind::Windows | Kind::Pad => {
                return movement(step, x, b);
            }
            Kind::Concat | Kind::Assemble => return self.join(step, x, b),
            Kind::Gather | Kind::ScatterAdd | Kind::SegmentSum | Kind::SegmentBroadcast => {
                return self.indexing(step, x, b);
            }
            Kind::MatMul => return self.matmul(step, x, b),
            Kind::Convolution => return self.convolution(step, x, b),
            Kind::Sequence => self.sequence(step, x, b),
            Kind::Attention => self.attention(step, x),
            Kind::Detach => (self.freeze(x), b),
            Kind::Barrier if self.mode != Mode::Explicit => (x.barrier(), b),
            Kind::Barrier => (x, b),
            Kind::Hook => (self.hook(step, x), b),
            Kind::Custom => return Some(self.custom(step, x, b)),
            Kind::Checkpoint => unreachable!("handled where steps are played"),
        })
    }

    fn binary(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> (Tensor<'t>, f64) {
        let (y, by) = self.pick(step.b);
        let y = fit(y, &x.shape());
        match step.kind {
            Kind::Add => (x + y, bx + by),
            Kind::Sub => (x - y, bx + by),
            Kind::Mul => (x * y, bx * by),
            Kind::Div => (x / (y * y + 0.5), bx * 2.0),
            Kind::Pow => ((x * x + 0.5).pow(y.tanh()), (bx * bx + 0.5).max(2.0)),
            _ => {
                self.branches.extend(sides(x, y));
                (x.maximum(y), bx.max(by))
            }
        }
    }

    fn select(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> (Tensor<'t>, f64) {
        let (y, by) = self.pick(step.b);
        let y = fit(y, &x.shape());
        let bound = bx.max(by).max(1.0);
        let condition = match step.kind {
            Kind::SelectEqual => {
                self.branches.extend(sides(x, y));
                return (x.equals(y).select(x, y.sin()), bound);
            }
            Kind::SelectLess => x.less(y),
            _ => x.is_finite().and(y.less(1.0)),
        };
        self.branches.push(condition);
        (condition.select(y.sin(), x), bound)
    }

    fn cast(&mut self, step: &Step, x: Tensor<'t>, b: f64) -> (Tensor<'t>, f64) {
        let other = match (step.kind, self.dtype, step.n[0] % 2) {
            (Kind::CastFloat, DType::F64, _) => DType::F32,
            (Kind::CastFloat, ..) => DType::F64,
            (Kind::CastHalf, ..) => DType::F16,
            (Kind::CastInteger, _, 0) => DType::I32,
            (Kind::CastInteger, ..) => DType::U32,
            _ => DType::Bool,
        };
        match step.kind {
            Kind::CastFloat | Kind::CastHalf => (x.cast(other).sin().cast(self.dtype), 1.0),
            _ => {
                // u32 needs the square, because it holds no number below 0.
                let discrete = (if other == DType::U32 { x * x } else { x }).cast(other);
                self.branches.push(discrete);
                (x + discrete.cast(self.dtype), b + b * b)
            }
        }
    }

    fn reduce(&mut self, step: &Step, x: Tensor<'t>, b: f64) -> Option<(Tensor<'t>, f64)> {
        let shape = x.shape();
        let axes: Vec<usize> = (0..shape.rank()).filter(|d| step.n[0] >> d & 1 == 1).collect();
        let count: usize = axes.iter().map(|&a| shape[a]).product();
        match step.kind {
            Kind::Sum => Some((x.sum_axes(&axes), b * count as f64)),
            // Of positive elements: the norm has a kink at 0.
            Kind::Norm => Some(((x * x + 0.5).norm_axes(&axes), (b * b + 0.5) * (count as f64).sqrt())),
            // The maximum of nothing is infinite.
            Kind::ReduceMax if count > 0 => {
                let max = x.max_axes(&axes);
                self.branches.push(x.equals(max.unreduce(&axes, &shape)));
                Some((max, b))
            }
            Kind::CumSum if shape.rank() > 0 => {
                let axis = step.n[0] as usize % shape.rank();
                Some((x.cumsum(axis), b * shape[axis] as f64))
            }
            Kind::ArgMax if shape.rank() > 0 => {
                let axis = step.n[0] as usize % shape.rank();
                if shape[axis] == 0 {
                    return None;
                }
                let winner = x.argmax(axis);
                self.branches.push(winner);
                Some((x.gather(winner.reshape(shape.with(axis, 1)), axis), b))
            }
            _ => None,
        }
    }

    fn join(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> Option<(Tensor<'t>, f64)> {
        let (y, by) = self.pick(step.b);
        let shape = x.shape();
        if shape.rank() == 0 || x.numel() * 3 > MAX_NUMEL {
            return None;
        }
        let axis = step.n[0] as usize % shape.rank();
        let bound = bx.max(by);
        if step.kind == Kind::Concat {
            let extent = step.n[1] as usize % (shape[axis] + 1);
            let y = resize(y, &shape.with(axis, extent));
            let parts = if step.n[2].is_multiple_of(2) { vec![x, y] } else { vec![y, x, y] };
            return Some((Tensor::concat(&parts, axis), bound));
        }
        // Interleaved, the second part backwards, with a gap at the end.
        let (y, extent) = (resize(y, &shape), shape[axis]);
        let len = 2 * extent + step.n[1] as usize % 3;
        if shape.with(axis, len).numel() > MAX_NUMEL {
            return None;
        }
        let places = [Place { start: 0, step: 2 }, Place { start: (2 * extent).saturating_sub(1), step: -2 }];
        Some((Tensor::assemble(&[(places[0], x), (places[1], y)], axis, len), bound))
    }

    fn indexing(&mut self, step: &Step, x: Tensor<'t>, b: f64) -> Option<(Tensor<'t>, f64)> {
        let shape = x.shape();
        match step.kind {
            Kind::Gather | Kind::ScatterAdd if shape.rank() > 0 => {
                let axis = step.n[0] as usize % shape.rank();
                let extent = 1 + step.n[1] as usize % 4;
                let result = shape.with(axis, extent);
                if result.numel() > MAX_NUMEL || shape[axis] == 0 {
                    return None;
                }
                if step.kind == Kind::Gather {
                    return Some((x.gather(self.index(shape[axis], &result, step.n[2]), axis), b));
                }
                let index = self.index(extent, &shape, step.n[2]);
                Some((x.scatter_add(index, axis, extent), b * shape[axis] as f64))
            }
            Kind::SegmentSum => {
                let flat = x.reshape([x.numel()]);
                let segments = segments(&step.n, 3, Some(x.numel()));
                Some((flat.segment_sum(&segments), b * x.numel() as f64))
            }
            Kind::SegmentBroadcast => {
                let flat = x.reshape([x.numel()]);
                let segments = segments(&step.n, x.numel(), None);
                (segments.ranges.len() == x.numel()).then(|| (flat.segment_broadcast(&segments), b))
            }
            _ => None,
        }
    }

    fn matmul(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> Option<(Tensor<'t>, f64)> {
        let (y, by) = self.pick(step.b);
        let (ta, tb) = (step.n[0] & 1 == 1, step.n[0] & 2 == 2);
        let x = match x.rank() {
            0 | 1 if ta => x.reshape([x.numel(), 1]),
            0 | 1 => x.reshape([1, x.numel()]),
            _ => x,
        };
        let shape = x.shape();
        let r = shape.rank();
        let (m, k) = if ta { (shape[r - 1], shape[r - 2]) } else { (shape[r - 2], shape[r - 1]) };
        let n = 1 + step.n[1] as usize % 3;
        let batch: usize = shape[..r - 2].iter().product();
        if batch * k.max(m) * n > MAX_NUMEL {
            return None;
        }
        let matrix = if tb { [n, k] } else { [k, n] };
        let bound = bx * by * k as f64;
        if !ta && step.n[2].is_multiple_of(2) {
            // The public form: one matrix for the whole batch.
            let y = resize(y, &matrix.into());
            return Some((if tb { x.matmul_t(y) } else { x.matmul(y) }, bound));
        }
        let y = resize(y, &[&shape[..r - 2], &matrix].concat().into());
        Some((x.matmul_with(y, ta, tb), bound))
    }

    /// A convolution of one or two small images, in one or two groups. Each parameter has bits of its own, so that
    /// clearing them shrinks the convolution to one product.
    fn convolution(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> Option<(Tensor<'t>, f64)> {
        let (w, bw) = self.pick(step.b);
        let [n0, n1, n2, n3] = step.n.map(usize::from);
        let groups = 1 + n0 % 2;
        let images = Shape::from([1 + n0 / 2 % 2, groups * (1 + n0 / 4 % 2), 1 + n1 % 4, 1 + n1 / 4 % 4]);
        let weights = Shape::from([groups * (1 + n0 / 8 % 2), images[1] / groups, 1 + n2 % 4 % 3, 1 + n2 / 4 % 2]);
        let dilation = [1 + n3 / 16 % 2, 1 + n3 / 32 % 2];
        // As much padding as the kernel needs, or more.
        let padding = [0, 1].map(|d| {
            let reach = (weights[2 + d] - 1) * dilation[d] + 1;
            reach.saturating_sub(images[2 + d]).div_ceil(2) + n3 / 8 % 2
        });
        let conv = Conv2d { stride: [1 + n3 % 2, 1 + n3 / 2 % 4 % 3], padding, dilation, groups };
        let result = conv.output(&images, &weights).expect("the padding is enough");
        if images.numel().max(result.numel()) > MAX_NUMEL {
            return None;
        }
        let y = resize(x, &images).conv2d(resize(w, &weights), conv);
        Some((y, bx * bw * weights[1..].iter().product::<usize>() as f64))
    }

    /// One to three steps of a recurrent layer of one or two units over one or two rows.
    fn sequence(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> (Tensor<'t>, f64) {
        const CELLS: [Cell; 5] = [Cell::Tanh, Cell::Irnn, Cell::Lstm, Cell::Gru, Cell::Sigmoid];
        let [n0, n1, n2, n3] = step.n;
        let cell = CELLS[n0 as usize % CELLS.len()];
        let (time, batch, hidden) = (1 + n1 as usize % 3, 1 + n1 as usize / 3 % 2, 1 + n1 as usize / 6 % 2);
        let wide = cell.gates() * hidden;
        let ((w, bw), (h0, bh)) = (self.pick(step.b), self.pick(n2));
        let state = Shape::from([batch, hidden]);
        let mut bound = bh.max(1.0);
        let mut of = |only: Cell, shape: Shape| {
            (cell == only).then(|| {
                let (x, b) = self.pick(n3);
                bound = bound.max(b + time as f64);
                resize(x, &shape)
            })
        };
        let recurrence = Recurrence {
            cell,
            z: resize(x, &[time, batch, wide].into()),
            w_hh: resize(w, &[wide, hidden].into()),
            h0: resize(h0, &state),
            c0: of(Cell::Lstm, state),
            b_hh: of(Cell::Gru, [wide].into()),
        };
        let (h, c) = recurrence.run();
        if cell == Cell::Irnn {
            // A unit at 0 is a branch. No function bounds the other units.
            self.branches.push(h.equals(0.0));
            bound = (0..time).fold(bh, |bound, _| bound.max(bx + hidden as f64 * bw * bound));
        }
        match (c, n0 as usize / CELLS.len() % 3) {
            (Some(c), 2) => (c, bound),
            (_, 1) => (h.index(0, time - 1), bound),
            _ => (h, bound),
        }
    }

    /// Attention of up to four queries to up to three keys, in heads of which one or two share keys. Scores are small.
    fn attention(&mut self, step: &Step, x: Tensor<'t>) -> (Tensor<'t>, f64) {
        let [n0, n1, n2, n3] = step.n.map(usize::from);
        let ((k, _), (v, bound)) = (self.pick(step.b), self.pick(step.n[3]));
        let (shared, group, width) = (1 + n0 % 2, 1 + n0 / 2 % 2, 1 + n2 % 3);
        let (queries, keys) = (1 + n1 % 4, (1 + n1 / 4) % 4);
        let q = resize(x.tanh(), &[shared * group, queries, width].into());
        let k = resize(k.tanh(), &[shared, keys, width].into());
        let v = resize(v, &[shared, keys, 1 + n2 / 3 % 2].into());
        (q.attention(k, v, &Attention { causal: n3 % 2 == 1, ..Attention::default() }), bound)
    }

    fn hook(&mut self, step: &Step, x: Tensor<'t>) -> Tensor<'t> {
        let factor = [2.0, 0.5, -1.0, 0.0][step.n[0] as usize % 4];
        let twice = step.n[1].is_multiple_of(2);
        match self.mode {
            Mode::Plain | Mode::Moved(_) => {
                self.frozen.push(x);
                if !self.tape.takes_gradients(x) {
                    return x;
                }
                let hooked = x.on_grad(move |g| g * factor);
                if twice { hooked.on_grad(|g| g * 3.0) } else { hooked }
            }
            Mode::Explicit => {
                let factor = if twice { factor * 3.0 } else { factor };
                x * factor + self.freeze(x) * (1.0 - factor)
            }
        }
    }

    /// Two outputs, `sin(x) * y` and `x * x`, with a rule of their own, of which one or both are used.
    fn custom(&mut self, step: &Step, x: Tensor<'t>, bx: f64) -> (Tensor<'t>, f64) {
        let (y, by) = self.pick(step.b);
        let y = resize(y, &x.shape());
        let forward = |x: &[Tensor<'t>]| vec![x[0].sin() * x[1], x[0] * x[0]];
        let outputs = match self.mode {
            Mode::Explicit => forward(&[x, y]),
            Mode::Plain | Mode::Moved(_) => self.tape.custom_vjp(&[x, y], forward, |v| {
                let (x, y) = (v.inputs[0], v.inputs[1]);
                let from_first = v.cotangents[0].map(|g| g * x.cos() * y);
                let from_second = v.cotangents[1].map(|g| g * x * 2.0);
                let both = [from_first, from_second].into_iter().flatten().reduce(|a, b| a + b);
                vec![both, v.cotangents[0].map(|g| g * x.sin())]
            }),
        };
        match step.n[0] % 3 {
            0 => (outputs[0], by),
            1 => (outputs[1], bx * bx),
            _ => (outputs[0] - outputs[1], by + bx * bx),
        }
    }
}

/// The order of two values. Equality alone would not show a crossing, because it holds on neither side of it.
fn sides<'t>(x: Tensor<'t>, y: Tensor<'t>) -> [Tensor<'t>; 2] {
    [x.less(y), y.less(x)]
}

/// Movement of one value.
fn movement<'t>(step: &Step, x: Tensor<'t>, b: f64) -> Option<(Tensor<'t>, f64)> {
    let (shape, numel) = (x.shape(), x.numel());
    let [n0, n1, n2, n3] = step.n.map(usize::from);
    let axis = || (shape.rank() > 0).then(|| n0 % shape.rank());
    let moved = match step.kind {
        Kind::Reshape => {
            let divisors: Vec<usize> = (1..=numel).filter(|d| numel.is_multiple_of(*d)).collect();
            let rows = divisors.get(n1 % divisors.len().max(1)).copied().unwrap_or(3);
            match n0 % 4 {
                0 => x.reshape([numel]),
                1 => x.reshape([rows, numel / rows]),
                2 => x.reshape([rows, 1, numel / rows]),
                _ => x.reshape([&shape[..], &[1]].concat()),
            }
        }
        Kind::Permute => {
            let mut left: Vec<usize> = (0..shape.rank()).collect();
            let order: Vec<usize> = (0..shape.rank()).map(|i| left.remove((n0 >> (2 * i)) % left.len())).collect();
            x.permute(&order)
        }
        Kind::Expand => {
            let times = 2 + n1 % 2;
            if numel * times > MAX_NUMEL {
                return None;
            }
            let ones: Vec<usize> = (0..shape.rank()).filter(|&d| shape[d] == 1).collect();
            match ones.get(n0 % (ones.len() + 1)) {
                Some(&axis) => x.broadcast_to(shape.with(axis, times)),
                None => x.broadcast_to([&[times], &shape[..]].concat()),
            }
        }
        Kind::Slice => {
            let axis = axis().filter(|&axis| shape[axis] > 0)?;
            let (extent, stride) = (shape[axis], 1 + n2 % 3);
            let start = n1 % extent;
            let backwards = n2 % 2 == 1;
            let room = if backwards { start } else { extent - 1 - start } / stride + 1;
            let len = if n3 >= 240 { 0 } else { room - n3 % room };
            x.slice_step(axis, start, len, if backwards { -(stride as isize) } else { stride as isize })
        }
        Kind::Windows => {
            let axis = axis().filter(|&axis| shape[axis] > 1)?;
            let last = shape[axis] - 1;
            let ahead = x.slice(axis, 0, last);
            return Some((ahead * x.slice_step(axis, last, last, -1), b * b));
        }
        _ => {
            let axis = axis()?;
            let (before, after) = (n1 % 3, n2 % 3);
            if shape.with(axis, shape[axis] + before + after).numel() > MAX_NUMEL {
                return None;
            }
            x.pad(axis, before, after)
        }
    };
    Some((moved, b))
}

/// `x` as it is if it broadcasts with `shape` and the result is small enough; resized otherwise.
fn fit<'t>(x: Tensor<'t>, shape: &Shape) -> Tensor<'t> {
    let small = |both: Shape| both.numel() <= MAX_NUMEL;
    if x.shape().broadcast(shape).is_some_and(small) { x } else { resize(x, shape) }
}

/// The elements of `x`, row-major, repeated or cut off to fill a shape; zeros if there are none.
fn resize<'t>(x: Tensor<'t>, shape: &Shape) -> Tensor<'t> {
    let (have, want) = (x.numel(), shape.numel());
    if x.shape() == *shape {
        return x;
    }
    if have == 0 {
        return x.sum().broadcast_to(shape);
    }
    let times = want.div_ceil(have).max(1);
    let repeated = x.reshape([1, have]).broadcast_to([times, have]).reshape([times * have]);
    repeated.slice(0, 0, want).reshape(shape)
}

/// Up to `count` segments of a vector of `total` elements, or without a total, of a vector as long as they need. Some
/// are empty, with gaps between.
fn segments(n: &[u8; 4], count: usize, total: Option<usize>) -> Arc<Segments> {
    let mut ranges = vec![];
    let mut end = 0;
    for s in 0..count {
        let (gap, len) = (n[s % 4] as usize % 2, n[(s + 1) % 4] as usize / 2 % 4);
        if end + gap + len > total.unwrap_or(MAX_NUMEL) {
            break;
        }
        ranges.push((end + gap, len));
        end += gap + len;
    }
    Arc::new(Segments { total: total.unwrap_or(end + n[3] as usize % 2), ranges: ranges.into() })
}
