//! Recurrent cells over sequences: a loop over time in one node.

use super::{Form, Named, push_all};
use crate::{
    DType, Tensor,
    lints::facts::Mark,
    op::{Op, Typed},
};
use serde::{Deserialize, Serialize};

/// The kind of a recurrent layer: how `h_t` follows from `h_(t-1)` and from `z_t`, the input's contribution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Cell {
    /// `h = tanh(z + W_hh h)`, with `z = W_ih x + b` (Elman 1990).
    Tanh,
    /// `h = sigmoid(z + W_hh h)`.
    Sigmoid,
    /// `h = relu(z + W_hh h)`, meant to start at the identity (Le et al. 2015).
    Irnn,
    /// `c = f c + i g`, `h = o tanh(c)`, with the gates i, f, o (sigmoid) and g (tanh) of `z + W_hh h`, in the order
    /// i, f, g, o (Hochreiter & Schmidhuber 1997; Gers et al. 2000).
    Lstm,
    /// `n = tanh(z_n + r (W_hn h + b_hn))`, `h = (1 - u) n + u h`, with the gates r (reset) and u (update) of
    /// `z + W_hh h + b_hh`, in the order r, u, n (Cho et al. 2014, in PyTorch's variant). Here `z = W_ih x + b_ih`.
    Gru,
}

impl Cell {
    /// The name of the layer's scope.
    pub fn scope(self) -> &'static str {
        match self {
            Cell::Tanh | Cell::Sigmoid | Cell::Irnn => "rnn",
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
        }
    }

    /// The name in printed tapes.
    pub fn name(self) -> &'static str {
        match self {
            Cell::Tanh => "tanh",
            Cell::Sigmoid => "sigmoid",
            Cell::Irnn => "irnn",
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
        }
    }

    /// The number of blocks of `hidden` rows in its weights.
    pub fn gates(self) -> usize {
        match self {
            Cell::Tanh | Cell::Sigmoid | Cell::Irnn => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }
}

/// The inputs and the outputs of a sequence op: see [`Op::fused_inputs`].
fn cell_signature(op: &Op) -> Option<(Cell, Named, Named)> {
    use Form::{Activated, Bias, Gates, State, Steps, Weight};
    Some(match op {
        Op::Sequence { cell, .. } => match cell {
            Cell::Lstm => (
                *cell,
                &[("z", Gates), ("w_hh", Weight), ("h0", State), ("c0", State)],
                &[("h", Steps), ("c", Steps), ("gates", Activated)],
            ),
            Cell::Gru => (
                *cell,
                &[("z", Gates), ("w_hh", Weight), ("h0", State), ("b_hh", Bias)],
                &[("h", Steps), ("gates", Activated)],
            ),
            _ => (*cell, &[("z", Gates), ("w_hh", Weight), ("h0", State)], &[("h", Steps)]),
        },
        Op::SequenceGrad { cell, .. } => match cell {
            Cell::Lstm => (
                *cell,
                &[("w_hh", Weight), ("c0", State), ("c", Steps), ("gates", Activated), ("dh", Steps), ("dc", Steps)],
                &[("dz", Gates), ("dh0", State), ("dc0", State)],
            ),
            Cell::Gru => (
                *cell,
                &[("w_hh", Weight), ("h0", State), ("h", Steps), ("gates", Activated), ("dh", Steps)],
                &[("dz", Gates), ("dr", Gates), ("dh0", State)],
            ),
            _ => (*cell, &[("w_hh", Weight), ("h", Steps), ("dh", Steps)], &[("dz", Gates), ("dh0", State)]),
        },
        _ => return None,
    })
}

pub(super) fn signature(op: &Op) -> Option<(Named, Named)> {
    cell_signature(op).map(|(_, inputs, outputs)| (inputs, outputs))
}

/// See [`Op::overwrites`]: an LSTM's gates may overwrite z, and its dz the gates; with a single gate, h may overwrite
/// z, and dz dh.
pub(super) fn overwrites(op: &Op) -> Option<(usize, usize)> {
    match op {
        Op::Sequence { cell: Cell::Gru, .. } | Op::SequenceGrad { cell: Cell::Gru, .. } => None,
        Op::Sequence { cell: Cell::Lstm, .. } => Some((0, 2)),
        Op::Sequence { .. } => Some((0, 0)),
        Op::SequenceGrad { cell: Cell::Lstm, .. } => Some((3, 0)),
        Op::SequenceGrad { .. } => Some((2, 0)),
        _ => None,
    }
}

/// All outputs of a sequence op, in primitives; `None` for any other op.
pub(super) fn decompose<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Vec<Tensor<'t>>> {
    Some(match *op {
        Op::Sequence { cell, .. } => Recurrence::of(cell, x).decompose(),
        Op::SequenceGrad { cell: Cell::Lstm, .. } => lstm_grad(x),
        Op::SequenceGrad { cell: Cell::Gru, .. } => gru_grad(x),
        Op::SequenceGrad { cell, .. } => plain_grad(cell, x),
        _ => return None,
    })
}

/// The shape and type of a sequence op's result.
pub(super) fn infer(op: &Op, x: &[Typed]) -> Result<Typed, String> {
    let (cell, inputs, outputs) = cell_signature(op).expect("a sequence op");
    let without_dc = matches!(op, Op::SequenceGrad { cell: Cell::Lstm, .. }) && x.len() + 1 == inputs.len();
    if x.len() != inputs.len() && !without_dc {
        return Err(format!("needs {} inputs", inputs.len()));
    }
    let find = |form: &[Form], rank: usize| {
        let at = inputs.iter().position(|(_, f)| form.contains(f)).expect("every signature has one");
        let (name, shape) = (inputs[at].0, &x[at].0);
        if shape.rank() == rank { Ok(shape) } else { Err(format!("{name} needs {rank} dimensions")) }
    };
    let hidden = find(&[Form::Weight], 2)?[1];
    let steps = find(&[Form::Gates, Form::Steps], 3)?;
    let (time, batch, wide) = (steps[0], steps[1], cell.gates() * hidden);
    if time == 0 {
        return Err("needs at least one time step".into());
    }
    let shape = |form: Form| match form {
        Form::Gates => vec![time, batch, wide],
        Form::Steps => vec![time, batch, hidden],
        Form::Activated => vec![time, batch, 4 * hidden],
        Form::Weight => vec![wide, hidden],
        Form::Bias => vec![wide],
        Form::State => vec![batch, hidden],
        _ => unreachable!("forms of attention"),
    };
    for ((name, form), (have, dtype)) in inputs.iter().zip(x) {
        let want = crate::Shape::from(shape(*form));
        if *have != want {
            return Err(format!("{name} must be {want}, not {have}"));
        }
        if *dtype != x[0].1 || !dtype.is_float() {
            return Err(format!("needs floats of one type, and {name} is {dtype}"));
        }
    }
    Ok((shape(outputs[op.outputs().1].1).into(), x[0].1))
}

/// A recurrent cell and the tensors that it runs over.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence<'t> {
    /// The kind.
    pub cell: Cell,
    /// The input's contribution, its bias included: `[time, batch, gates * hidden]`, of at least one step.
    pub z: Tensor<'t>,
    /// The recurrent weights, `[gates * hidden, hidden]`.
    pub w_hh: Tensor<'t>,
    /// The hidden state before the first step, `[batch, hidden]`.
    pub h0: Tensor<'t>,
    /// An LSTM's memory before the first step, `[batch, hidden]`; `None` for other cells.
    pub c0: Option<Tensor<'t>>,
    /// A GRU's recurrent bias, `[gates * hidden]`; `None` for other cells.
    pub b_hh: Option<Tensor<'t>>,
}

/// The outputs of a cell at one time step.
struct Step<'t> {
    h: Tensor<'t>,
    c: Option<Tensor<'t>>,
    /// The parts of the `gates` output, `[batch, _]` each.
    gates: Vec<Tensor<'t>>,
}

impl<'t> Recurrence<'t> {
    fn width(&self) -> usize {
        self.h0.shape()[1]
    }

    /// The recurrence of an op with the inputs `x`.
    fn of(cell: Cell, x: &[Tensor<'t>]) -> Self {
        let last = |of: Cell| (cell == of).then(|| x[3]);
        Self { cell, z: x[0], w_hh: x[1], h0: x[2], c0: last(Cell::Lstm), b_hh: last(Cell::Gru) }
    }

    /// The inputs of the op.
    #[track_caller]
    fn inputs(&self) -> Vec<Tensor<'t>> {
        let fits = self.c0.is_some() == (self.cell == Cell::Lstm) && self.b_hh.is_some() == (self.cell == Cell::Gru);
        self.z.tape.require(fits, self.cell.name(), &[self.z], || {
            "an LSTM, and nothing else, has a memory; a GRU, and nothing else, a recurrent bias".into()
        });
        [self.z, self.w_hh, self.h0].into_iter().chain(self.c0).chain(self.b_hh).collect()
    }

    /// Runs over the sequence as one op. Gives the hidden states `[time, batch, hidden]`, and an LSTM's memories.
    ///
    /// # Panics
    /// If the shapes or types do not fit, naming the one that does not.
    #[track_caller]
    pub fn run(&self) -> (Tensor<'t>, Option<Tensor<'t>>) {
        let outputs = push_all(|out| Op::Sequence { cell: self.cell, out }, &self.inputs());
        outputs.iter().for_each(|x| x.tape.mark(*x, Mark::Recurrent));
        (outputs[0], (self.cell == Cell::Lstm).then(|| outputs[1]))
    }

    /// Runs over the sequence step by step, in primitives. The values are those of [`Recurrence::run`], and every
    /// step's hidden state (and an LSTM's memory), `[batch, hidden]`, is a tensor that the later steps read. Like the
    /// fused op, the steps keep their type within [`crate::Tape::autocast`].
    ///
    /// # Panics
    /// As [`Recurrence::run`].
    #[track_caller]
    pub fn unrolled(&self) -> Vec<(Tensor<'t>, Option<Tensor<'t>>)> {
        let (tape, inputs) = (self.z.tape, self.inputs());
        let typed: Vec<Typed> = inputs.iter().map(|x| (x.shape(), x.dtype())).collect();
        if let Err(why) = infer(&Op::Sequence { cell: self.cell, out: 0 }, &typed) {
            panic!("{}", tape.refusal("sequence", &inputs, &why));
        }
        let steps = tape.at_caller(|| tape.autocast(DType::F32, || self.steps(|_| ())));
        steps.into_iter().map(|(step, ())| (step.h, step.c)).collect()
    }

    /// All steps, each with the result of `extra`, which runs within the step's scope.
    fn steps<R>(&self, extra: impl Fn(&Step<'t>) -> R) -> Vec<(Step<'t>, R)> {
        let (tape, time) = (self.z.tape, self.z.shape()[0]);
        let mut steps: Vec<(Step<'t>, R)> = Vec::with_capacity(time);
        for t in 0..time {
            let (h, c) = steps.last().map_or((self.h0, self.c0), |(step, _)| (step.h, step.c));
            steps.push(tape.scoped_turn("step", t, || {
                let step = self.step(self.z.index(0, t), h, c);
                tape.mark(step.h, Mark::Recurrent);
                let more = extra(&step);
                (step, more)
            }));
        }
        steps
    }

    /// One time step; `z` is the input's contribution, `[batch, gates * hidden]`.
    fn step(&self, z: Tensor<'t>, h: Tensor<'t>, c: Option<Tensor<'t>>) -> Step<'t> {
        let plain = |h: Tensor<'t>| Step { h, c: None, gates: vec![] };
        let recurrent = h.matmul_t(self.w_hh);
        match (self.cell, c, self.b_hh) {
            (Cell::Lstm, Some(c), _) => {
                let z = z + recurrent;
                let input_forget = blocks(z, self.width(), 0, 2).sigmoid();
                let (i, f) = (blocks(input_forget, self.width(), 0, 1), blocks(input_forget, self.width(), 1, 1));
                let (g, o) = (blocks(z, self.width(), 2, 1).tanh(), blocks(z, self.width(), 3, 1).sigmoid());
                let c = f * c + i * g;
                Step { h: o * c.tanh(), c: Some(c), gates: vec![input_forget, g, o] }
            }
            (Cell::Gru, _, Some(b_hh)) => {
                let recurrent = recurrent + b_hh;
                let reset_update = (blocks(z, self.width(), 0, 2) + blocks(recurrent, self.width(), 0, 2)).sigmoid();
                let (r, u) = (blocks(reset_update, self.width(), 0, 1), blocks(reset_update, self.width(), 1, 1));
                let kept = blocks(recurrent, self.width(), 2, 1);
                let n = (blocks(z, self.width(), 2, 1) + r * kept).tanh();
                Step { h: n + u * (h - n), c: None, gates: vec![reset_update, n, kept] }
            }
            (Cell::Sigmoid, ..) => plain((z + recurrent).sigmoid()),
            (Cell::Irnn, ..) => plain((z + recurrent).relu()),
            _ => plain((z + recurrent).tanh()),
        }
    }

    /// The outputs of the op.
    fn decompose(&self) -> Vec<Tensor<'t>> {
        let gated = self.b_hh.is_some() || self.c0.is_some();
        let steps = self.steps(|step| gated.then(|| Tensor::concat(&step.gates, 1)));
        let stack = |parts: Vec<Tensor<'t>>| (!parts.is_empty()).then(|| Tensor::stack(&parts));
        let h = stack(steps.iter().map(|(step, _)| step.h).collect());
        let c = stack(steps.iter().filter_map(|(step, _)| step.c).collect());
        let gates = stack(steps.iter().filter_map(|(_, gates)| *gates).collect());
        [h, c, gates].into_iter().flatten().collect()
    }
}

/// The rows `[batch, hidden]` of `count` gates of `[batch, gates * hidden]`, from gate `first` on.
fn blocks<'t>(x: Tensor<'t>, width: usize, first: usize, count: usize) -> Tensor<'t> {
    x.slice(1, first * width, count * width)
}

// Gradients: the loops run backwards. `carry` is the cotangent that a step sends to the step before it.

/// Records the turns of a loop from the last time step to the first. Each turn receives the carry of the time step
/// after it.
fn backwards<'t, R>(
    like: Tensor<'t>,
    mut turn: impl FnMut(usize, Option<Tensor<'t>>) -> (R, Tensor<'t>),
) -> (Vec<R>, Tensor<'t>) {
    let (tape, time) = (like.tape, like.shape()[0]);
    let (mut carry, mut given) = (None, vec![]);
    for t in (0..time).rev() {
        let (gives, next) = tape.scoped_turn("step", t, || turn(t, carry));
        given.push(gives);
        carry = Some(next);
    }
    given.reverse();
    (given, carry.expect("at least one time step"))
}

/// `g + carry`.
fn plus<'t>(g: Tensor<'t>, carry: Option<Tensor<'t>>) -> Tensor<'t> {
    carry.map_or(g, |carry| g + carry)
}

/// `dz = dh f'(z)`, the slope being a function of `h = f(z)`; a step sends back `dz W_hh`.
fn plain_grad<'t>(cell: Cell, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [w_hh, h, dh] = *x else { panic!("three inputs") };
    let (dz, dh0) = backwards(dh, |t, carry| {
        let (h, dh) = (h.index(0, t), plus(dh.index(0, t), carry));
        let dz = match cell {
            Cell::Sigmoid => dh * (h * (1.0 - h)),
            Cell::Irnn => h.less_equal(0.0).select(dh.zeros_like(), dh),
            _ => dh * (1.0 - h * h),
        };
        (dz, dz.matmul(w_hh))
    });
    vec![Tensor::stack(&dz), dh0]
}

fn lstm_grad<'t>(x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [w_hh, c0, c, gates, dh] = x[..5] else { panic!("at least five inputs") };
    let width = w_hh.shape()[1];
    let mut dc0 = None;
    let (dz, dh0) = backwards(dh, |t, carry| {
        let gates = gates.index(0, t);
        let [i, f, g, o] = [0, 1, 2, 3].map(|gate| blocks(gates, width, gate, 1));
        let before = if t == 0 { c0 } else { c.index(0, t - 1) };
        let (squashed, dh) = (c.index(0, t).tanh(), plus(dh.index(0, t), carry));
        let dc = dh * o * (1.0 - squashed * squashed);
        let dc = plus(x.get(5).map_or(dc, |given| dc + given.index(0, t)), dc0);
        let di = dc * g * (i * (1.0 - i));
        let df = dc * before * (f * (1.0 - f));
        let dg = dc * i * (1.0 - g * g);
        let d_o = dh * squashed * (o * (1.0 - o));
        let dz = Tensor::concat(&[di, df, dg, d_o], 1);
        dc0 = Some(dc * f);
        (dz, dz.matmul(w_hh))
    });
    vec![Tensor::stack(&dz), dh0, dc0.expect("at least one time step")]
}

fn gru_grad<'t>(x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [w_hh, h0, h, gates, dh] = *x else { panic!("five inputs") };
    let width = w_hh.shape()[1];
    let (steps, dh0) = backwards(dh, |t, carry| {
        let gates = gates.index(0, t);
        let [r, u, n, kept] = [0, 1, 2, 3].map(|gate| blocks(gates, width, gate, 1));
        let before = if t == 0 { h0 } else { h.index(0, t - 1) };
        let dh = plus(dh.index(0, t), carry);
        let dn = dh * (1.0 - u) * (1.0 - n * n);
        let dr = dn * kept * (r * (1.0 - r));
        let du = dh * (before - n) * (u * (1.0 - u));
        let recurrent = Tensor::concat(&[dr, du, dn * r], 1);
        ((Tensor::concat(&[dr, du, dn], 1), recurrent), recurrent.matmul(w_hh) + dh * u)
    });
    let (dz, dr): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
    vec![Tensor::stack(&dz), Tensor::stack(&dr), dh0]
}

/// The gradient rule of a sequence is its gradient op, and two products for the gradient of the weights: one for the
/// first step, one over all others. `None` for a gradient op, and if a gradient flows back to `gates`, which only
/// gradient ops read.
pub(super) fn vjp<'t>(
    op: &Op,
    y: &[Tensor<'t>],
    x: &[Tensor<'t>],
    g: &[Option<Tensor<'t>>],
) -> Option<Vec<Option<Tensor<'t>>>> {
    let Op::Sequence { cell, .. } = *op else { return None };
    let grad = |x: &[Tensor<'t>]| push_all(|out| Op::SequenceGrad { cell, out }, x);
    let dh = g[0].unwrap_or_else(|| y[0].zeros_like());
    let (w_hh, h0) = (x[1], x[2]);
    let given = match (cell, g) {
        (Cell::Lstm, [_, dc, None]) => grad(&[w_hh, x[3], y[1], y[2], dh].into_iter().chain(*dc).collect::<Vec<_>>()),
        (Cell::Gru, [_, None]) => grad(&[w_hh, h0, y[0], y[1], dh]),
        (Cell::Lstm | Cell::Gru, _) => return None,
        _ => grad(&[w_hh, y[0], dh]),
    };
    // The gradient of W_hh h. It is that of z, unless a reset gate comes between them.
    let recurrent = if cell == Cell::Gru { given[1] } else { given[0] };
    // The first step has its own product, so that the other steps' previous states are a slice of y.
    let mut dw = recurrent.index(0, 0).matmul_with(h0, true, false);
    let (later, [batch, wide]) = (recurrent.shape()[0] - 1, [recurrent.shape()[1], recurrent.shape()[2]]);
    if later > 0 {
        let before = y[0].slice(0, 0, later).reshape([later * batch, h0.shape()[1]]);
        dw = recurrent.slice(0, 1, later).reshape([later * batch, wide]).matmul_with(before, true, false) + dw;
    }
    let rest = match cell {
        Cell::Lstm => vec![given[1], given[2]],
        Cell::Gru => vec![given[2], recurrent.sum_axes(&[0, 1])],
        _ => vec![given[1]],
    };
    Some([given[0], dw].into_iter().chain(rest).map(Some).collect())
}
