//! Fused operations: much work in one node. Each is defined by its decomposition into primitives.
//!
//! The decomposition is the op's meaning, the oracle of every kernel for it, and gives its derivative of any order. The
//! gradient rule of a fused op is another fused op. If there is no rule (second derivatives), the decomposition is
//! differentiated instead. A backend that has a kernel claims the op. For a backend that has none,
//! [`crate::Program::lowered`] replaces the op by its decomposition.

mod attention;
mod sequence;

pub use attention::Scores;
pub(crate) use attention::attention;
pub use sequence::{Cell, Recurrence};

use super::{Op, Typed};
use crate::Tensor;

/// The shape of an input or output of a fused op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `[time, batch, gates * hidden]`
    Gates,
    /// `[time, batch, hidden]`
    Steps,
    /// `[time, batch, 4 * hidden]`
    Activated,
    /// `[gates * hidden, hidden]`
    Weight,
    /// `[gates * hidden]`
    Bias,
    /// `[batch, hidden]`
    State,
    /// `[.., heads, queries, width]`
    Queries,
    /// `[.., kv_heads, keys, width]`
    Keys,
    /// `[.., kv_heads, keys, value width]`
    Values,
    /// `[.., heads, queries, value width]`
    Attended,
    /// `[.., heads, queries]`
    Rows,
}

/// Named tensors of a fused op, and the form of each.
pub type Named = &'static [(&'static str, Form)];

/// The inputs and the outputs of a fused op.
fn signature(op: &Op) -> Option<(Named, Named)> {
    sequence::signature(op).or_else(|| attention::signature(op))
}

impl Op {
    /// True if this is one of the ops that have a decomposition.
    pub fn is_fused(&self) -> bool {
        signature(self).is_some()
    }

    /// The names and forms of a fused op's inputs; empty for any other op.
    ///
    /// An LSTM's `gates` are i, f, g, o after their activations. A GRU's are r, u, n and, as the fourth block,
    /// `W_hn h + b_hn`: the hidden state's contribution to n, before the reset gate. `dz` is the gradient of `z`. A
    /// GRU's `dr` is the gradient of `W_hh h + b_hh`; every other cell's is `dz`. `dc`, the last input of an LSTM's
    /// gradient, is missing if no gradient flows back to `c`.
    ///
    /// Attention's `l` is the logarithm of the sum of the exponentials of a row's scores; it is f32 if the other values
    /// are f16. If a query may attend to no key, its `l` is infinite, so that `exp(s - l)` is 0.
    pub fn fused_inputs(&self) -> Named {
        signature(self).map_or(&[], |(inputs, _)| inputs)
    }

    /// The names and forms of a fused op's outputs; empty for any other op.
    pub fn fused_outputs(&self) -> Named {
        signature(self).map_or(&[], |(_, outputs)| outputs)
    }

    /// An input and an output of a fused op that may share memory: every kernel reads each element of the input only
    /// before it writes the output's element there.
    pub fn overwrites(&self) -> Option<(usize, usize)> {
        sequence::overwrites(self)
    }

    /// All outputs of a fused op, recorded in primitives.
    ///
    /// # Panics
    /// If the op is not fused, or the inputs do not fit it.
    #[track_caller]
    pub fn decompose<'t>(&self, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
        let decomposed = x[0].tape.at_caller(|| sequence::decompose(self, x).or_else(|| attention::decompose(self, x)));
        decomposed.unwrap_or_else(|| panic!("{} is a primitive: it has no decomposition", self.name()))
    }
}

/// The outputs of a fused op over f16, computed by the same op over f32 and rounded once each; `None` for an op that
/// also rounds its intermediate values to f16.
pub(crate) fn widened<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Vec<Tensor<'t>>> {
    attention::widened(op, x)
}

/// The shape and type of a fused op's result.
pub(crate) fn infer(op: &Op, x: &[Typed]) -> Result<Typed, String> {
    match op {
        Op::Attention(..) | Op::AttentionGrad(..) => attention::infer(op, x),
        _ => sequence::infer(op, x),
    }
}

/// The number of output nodes, and the index of this one. An op that is not fused has one.
pub(crate) fn outputs(op: &Op) -> (usize, usize) {
    match op {
        Op::Sequence { out, .. } | Op::SequenceGrad { out, .. } => (op.fused_outputs().len(), *out),
        Op::Attention(_, out) | Op::AttentionGrad(_, out) => (op.fused_outputs().len(), *out),
        _ => (1, 0),
    }
}

/// Records all outputs of a fused op, one after another.
#[track_caller]
fn push_all<'t>(op: impl Fn(usize) -> Op, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let count = op(0).outputs().0;
    // A loop, not a closure: the nodes name the caller's line.
    let mut outputs = Vec::with_capacity(count);
    for out in 0..count {
        outputs.push(x[0].tape.push(op(out), x));
    }
    outputs
}

/// The gradient rule; `None` if only the decomposition has a derivative.
pub(crate) fn vjp<'t>(
    op: &Op,
    y: &[Tensor<'t>],
    x: &[Tensor<'t>],
    g: &[Option<Tensor<'t>>],
) -> Option<Vec<Option<Tensor<'t>>>> {
    match op {
        Op::Attention(..) | Op::AttentionGrad(..) => attention::vjp(op, y, x, g),
        _ => sequence::vjp(op, y, x, g),
    }
}
