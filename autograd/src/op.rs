//! The closed set of operations, and the shape and dtype rule of each.
//!
//! Every operation is defined by the f64 reference interpreter of `wgrad-cpu`, differentiated by `vjp.rs`,
//! and printed by `print.rs`; each of these is one `match` over [`Op`].

pub(crate) mod conv;
mod elementwise;
pub(crate) mod fused;
mod part;
mod place;

pub use elementwise::Gate;
pub use part::{Part, Share};
pub use place::{Place, Segments};

use crate::{DType, Shape, StateId, collective::Way};
use conv::Conv2d;
use fused::{Cell, Scores};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Elementwise functions of one tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `1 / x`
    Recip,
    /// Square root; its slope at 0 is infinite.
    Sqrt,
    /// `e^x`
    Exp,
    /// `e^x - 1`, exact for small x.
    Expm1,
    /// Natural logarithm.
    Log,
    /// `log(1 + x)`, exact for small x.
    Log1p,
    /// Sine, of radians.
    Sin,
    /// Cosine, of radians.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// The normal distribution's function, `(1 + erf(x / sqrt 2)) / 2`.
    NormalCdf,
    /// The normal distribution's density, `e^(-x^2 / 2) / sqrt(2 pi)`.
    NormalPdf,
    /// `x gate(x)`
    Gated(Gate),
    /// The derivative of `x gate(x)`. Written in primitives, its sum would cancel and its product overflow.
    GatedSlope(Gate),
    /// The largest whole number that is not above x.
    Floor,
    /// The nearest whole number; the even one of two that are equally near.
    Round,
    /// True if an element is neither NaN nor infinite; gives bool.
    IsFinite,
}

/// Elementwise functions of two tensors of one shape and type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// `a^b`; `0^0` is 1.
    Pow,
    /// The larger; NaN if either is NaN; logical or, of bools. A tie sends half of the gradient to each.
    Max,
    /// `a < b`, bool.
    Lt,
    /// `a == b`, bool.
    Eq,
}

/// Reductions over a set of axes, which disappear from the shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Reduce {
    /// The sum; 0 over nothing. The CPU accumulates in f64; in long rows of f32 it first adds up groups of eight in
    /// f32.
    Sum,
    /// The maximum; NaN if any is NaN; minus infinity (or `false`, or the least integer) over nothing.
    /// Equal maxima share the gradient equally.
    Max,
    /// The Euclidean norm: 0 over nothing; NaN if any is NaN, else infinite if any is infinite. Kernels scale by the
    /// maximum, so that it overflows only if the norm itself does. Its gradient at 0 is 0, of any order.
    Norm,
}

/// Names an input of a program: its position in the order of declaration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct InputId(pub u32);

/// Names the closures of a hook; they live on the tape and run while it is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct HookId(pub(crate) u32);

/// Names the rule of a [`crate::Tape::custom_vjp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RuleId(pub(crate) u32);

/// One operation. Attributes are compile-time facts of the program; everything else is an input.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Op {
    // Leaves.
    /// A scalar constant: the bits of an f64, rounded to the node's dtype.
    Const(u64),
    /// Host data, given anew for each run.
    Input(InputId),
    /// The value of a state when the program starts.
    State(StateId),
    /// `0, 1, 2, ..` along the last axis of a rank-1 tensor of this length.
    Iota(usize),
    /// A constant vector: the bits of f64 values, rounded to the node's dtype. Facts of the layout, one per segment.
    Table(Arc<[u64]>),
    /// Random words (u32) of this shape: a pure function of the inputs, which are the key (`u32[2]`) and the counter
    /// (u32), of the stream and of the position. See [`crate::random`].
    Random {
        /// The number of this use of the key.
        stream: u64,
        /// The shape of the result.
        shape: Shape,
    },
    // Maps.
    /// An elementwise function of one tensor.
    Unary(Unary),
    /// An elementwise function of two tensors.
    Binary(Binary),
    /// `condition ? a : b`, elementwise; the branch not taken has gradient exactly 0.
    Select,
    /// Conversion: to nearest for floats, truncated for integers, `!= 0` for bool.
    Cast(DType),
    // Reductions.
    /// A reduction over the given axes (ascending).
    Reduce(Reduce, Box<[usize]>),
    /// The index (u32) of the first largest element along an axis, which disappears. NaN counts as largest.
    ArgMax(usize),
    /// The positions (u32) that sort an axis, from the largest on if the flag is set. Equal elements keep their order;
    /// NaN counts as largest.
    ArgSort(usize, bool),
    /// The sum of the elements up to each position of an axis, or from each position on; the position is included.
    CumSum {
        /// The axis.
        axis: usize,
        /// True if the sums run from each position to the end.
        reverse: bool,
    },
    // Movement: no arithmetic.
    /// The same elements, row-major, in another shape.
    Reshape(Shape),
    /// Dimension `d` of the result is dimension `order[d]` of the input.
    Permute(Box<[usize]>),
    /// Repeats dimensions of extent 1 up to this shape.
    Expand(Shape),
    /// `len` elements along one axis: `start`, `start + step`, ..
    Slice {
        /// The axis.
        axis: usize,
        /// The first position.
        start: usize,
        /// The number.
        len: usize,
        /// The distance between neighbours; negative steps walk backwards.
        step: isize,
    },
    /// Places its inputs along one axis, disjointly, with zeros in the gaps: concatenation, padding, and the transpose
    /// of any set of disjoint slices.
    Assemble {
        /// The axis.
        axis: usize,
        /// The extent of the result along it.
        len: usize,
        /// The place where each input goes.
        places: Arc<[Place]>,
    },
    // Indexing; each is the transpose of its neighbour.
    /// `out[.., i, ..] = x[.., index[.., i, ..], ..]`: inputs x and an index of the output's shape.
    Gather(usize),
    /// `out[.., index[.., i, ..], ..] += x[.., i, ..]`, summed in row-major order: inputs x and an index of its shape.
    ScatterAdd {
        /// The axis.
        axis: usize,
        /// The extent of the result along it.
        len: usize,
    },
    /// A reduction of each segment of a flat vector, to one element per segment.
    SegmentReduce(Reduce, Arc<Segments>),
    /// Repeats element `s` over segment `s` of a flat vector; gaps are 0.
    SegmentBroadcast(Arc<Segments>),
    // Contraction.
    /// Matrix product over the last two dimensions, of inputs that may be stored transposed; leading dimensions are a
    /// batch.
    MatMul {
        /// True if the first input is stored as `[.., k, m]`.
        ta: bool,
        /// True if the second input is stored as `[.., n, k]`.
        tb: bool,
    },
    // Convolution; the gradient of each is the other two: `conv.rs` has their shapes.
    /// Correlates images `[batch, channels, height, width]` with weights `[out, channels / groups, kh, kw]`.
    Conv2d(Conv2d),
    /// The gradient of a convolution's images, of this height and width. Inputs: the cotangent of its result, and the
    /// weights.
    ConvInputGrad(Conv2d, [usize; 2]),
    /// The gradient of a convolution's weights, of this kernel height and width. Inputs: the cotangent of its result,
    /// and the images.
    ConvWeightGrad(Conv2d, [usize; 2]),
    // Fused: `fused.rs` has their shapes, decompositions and gradient rules.
    /// Output `out` of a recurrent cell over a sequence: the hidden states after each step, or a value that the
    /// gradient needs ([`Op::fused_inputs`], [`Op::fused_outputs`]).
    Sequence {
        /// The kind of cell.
        cell: Cell,
        /// The number of this output.
        out: usize,
    },
    /// Output `out` of the gradient of a sequence, by the loop backwards in time. The gradient of the weights is not
    /// part of it: that is a product over all steps at once.
    SequenceGrad {
        /// The kind of cell.
        cell: Cell,
        /// The number of this output.
        out: usize,
    },
    /// Output 0 of attention is its result; output 1 is a value per row that the gradient needs.
    Attention(Scores, usize),
    /// Outputs 0, 1 and 2 of attention's gradient are those of queries, keys and values.
    AttentionGrad(Scores, usize),
    /// Values of all ranks become one: their elementwise sum (of bools, the maximum), all of them, or a stretch of their
    /// sum. With it, a hash of the facts that all ranks must agree on.
    Exchange(Way, u64),
    /// The stretch of a vector that is this rank's, or the transpose of that: `part.rs`.
    Part(Part),
    // Control: identities that mean something to the reverse sweep.
    /// The input, as a constant.
    Detach,
    /// The input, kept apart from any equal value elsewhere on the tape: recomputation starts here.
    Barrier(u32),
    /// A value that a checkpoint recomputed. Inputs: the original and its copy. The value is the copy's; gradients go
    /// to the original, so that derivatives of every order are those of the program without the checkpoint.
    Recomputed,
    /// The first input; its cotangent passes through the hook's closures, which may use the other inputs.
    Hook(HookId),
    /// Output `out` of a composition with a gradient rule of its own. Inputs: the `args` arguments, then all outputs
    /// as the composition computed them. Its `outs` nodes follow one another on the tape.
    Custom {
        /// The rule.
        rule: RuleId,
        /// The number of arguments.
        args: usize,
        /// The number of outputs.
        outs: usize,
        /// The number of this output.
        out: usize,
    },
}

/// The shape and the type of an operation's input or result.
pub type Typed = (Shape, DType);

impl Op {
    /// The number of output nodes, and the index of this one.
    pub fn outputs(&self) -> (usize, usize) {
        match self {
            Op::Custom { outs, out, .. } => (*outs, *out),
            _ => fused::outputs(self),
        }
    }

    /// True if a kernel of this op reads contiguous operands only: convolutions and fused ops.
    pub fn reads_contiguous(&self) -> bool {
        matches!(self, Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..)) || self.is_fused()
    }

    /// The number of leading inputs that gradients may flow to. The others are constants to the op.
    pub(crate) fn differentiable_inputs(&self, inputs: usize) -> usize {
        match self {
            Op::Detach => 0,
            Op::Hook(_) | Op::Recomputed => 1,
            Op::Custom { args, .. } => *args,
            _ => inputs,
        }
    }

    /// The shape and dtype of the result of an op that has inputs.
    ///
    /// # Errors
    /// A sentence that says what the op wanted; the tape adds the op, the shapes and the caller's line.
    pub(crate) fn infer(&self, x: &[Typed]) -> Result<Typed, String> {
        let shape = |i: usize| x[i].0.clone();
        let dtype = |i: usize| x[i].1;
        let axis_in = |axis: usize| (axis < x[0].0.rank()).then_some(()).ok_or(format!("there is no axis {axis}"));
        let float = |i: usize| dtype(i).is_float().then_some(()).ok_or(format!("needs floats, not {}", dtype(i)));
        let same = |i: usize, j: usize| match (x[i].0 == x[j].0, x[i].1 == x[j].1) {
            (true, true) => Ok(()),
            (false, _) => Err("the shapes differ".to_string()),
            (_, false) => Err(format!("the types differ: {} and {}", x[i].1, x[j].1)),
        };
        Ok(match self {
            Op::Const(_) | Op::Input(_) | Op::State(_) | Op::Table(_) => {
                return Err("a leaf states its own shape".into());
            }
            Op::Iota(len) if u32::try_from(*len).is_err() => return Err(format!("{len} exceeds u32")),
            Op::Iota(len) => ([*len].into(), DType::U32),
            Op::Random { shape: to, .. } => {
                if *x != [([2].into(), DType::U32), (Shape::scalar(), DType::U32)] {
                    return Err("needs a key of u32[2] and a counter of u32[]".into());
                }
                if to.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64)).is_none_or(|n| n > 1 << 32) {
                    return Err(format!("{to} has more than 2^32 elements"));
                }
                (to.clone(), DType::U32)
            }
            Op::Unary(Unary::IsFinite) => {
                float(0)?;
                (shape(0), DType::Bool)
            }
            Op::Unary(Unary::Neg) if dtype(0) == DType::I32 => (shape(0), DType::I32),
            Op::Unary(_) => {
                float(0)?;
                (shape(0), dtype(0))
            }
            Op::Binary(b) => {
                same(0, 1)?;
                match b {
                    Binary::Lt if dtype(0) == DType::Bool => return Err("bools have no order".into()),
                    Binary::Lt | Binary::Eq => (shape(0), DType::Bool),
                    Binary::Max => (shape(0), dtype(0)),
                    Binary::Pow => {
                        float(0)?;
                        (shape(0), dtype(0))
                    }
                    _ if dtype(0) == DType::Bool => return Err("bools have no arithmetic: cast them first".into()),
                    _ => (shape(0), dtype(0)),
                }
            }
            Op::Select => {
                same(1, 2)?;
                if dtype(0) != DType::Bool || x[0].0 != x[1].0 {
                    return Err("the condition must be bool, of the branches' shape".into());
                }
                (shape(1), dtype(1))
            }
            Op::Cast(to) => (shape(0), *to),
            Op::Reduce(kind, axes) => {
                axes.iter().try_for_each(|&a| axis_in(a))?;
                kind.takes(dtype(0))?;
                if !axes.is_sorted_by(|a, b| a < b) {
                    return Err("an axis is named twice".into());
                }
                (x[0].0.without(axes), dtype(0))
            }
            Op::Exchange(way, _) => (way.takes(&shape(0), dtype(0))?, dtype(0)),
            Op::Part(part) => (part.takes(&shape(0))?, dtype(0)),
            Op::ArgMax(axis) => {
                axis_in(*axis)?;
                if x[0].0[*axis] == 0 {
                    return Err(format!("axis {axis} is empty"));
                }
                (x[0].0.without(&[*axis]), DType::U32)
            }
            Op::ArgSort(axis, _) => axis_in(*axis).map(|()| (shape(0), DType::U32))?,
            Op::CumSum { axis, .. } => {
                axis_in(*axis)?;
                if dtype(0) == DType::Bool {
                    return Err("bools have no arithmetic: cast them first".into());
                }
                (shape(0), dtype(0))
            }
            Op::Reshape(to) if to.numel() == x[0].0.numel() => (to.clone(), dtype(0)),
            Op::Reshape(to) => return Err(format!("{to} has {} elements, not {}", to.numel(), x[0].0.numel())),
            Op::Permute(order) => {
                let mut seen = order.to_vec();
                seen.sort_unstable();
                if !seen.iter().copied().eq(0..x[0].0.rank()) {
                    return Err(format!("{order:?} is not an order of its dimensions"));
                }
                (order.iter().map(|&d| x[0].0[d]).collect::<Vec<_>>().into(), dtype(0))
            }
            Op::Expand(to) => {
                if to.rank() != x[0].0.rank() || x[0].0.iter().zip(to.iter()).any(|(&a, &b)| a != b && a != 1) {
                    return Err(format!("the shape does not broadcast to {to}"));
                }
                (to.clone(), dtype(0))
            }
            Op::Slice { axis, start, len, step } => {
                axis_in(*axis)?;
                if !(Place { start: *start, step: *step }).fits(*len, x[0].0[*axis]) {
                    return Err(format!("{len} elements from {start} by {step} leave axis {axis}"));
                }
                (x[0].0.with(*axis, *len), dtype(0))
            }
            Op::Assemble { axis, len, places } => {
                axis_in(*axis)?;
                for (xi, place) in x.iter().zip(places.iter()) {
                    if xi.0.with(*axis, 0) != x[0].0.with(*axis, 0) || xi.1 != dtype(0) {
                        return Err(format!("the parts differ in type, or in an axis other than {axis}"));
                    }
                    if !place.fits(xi.0[*axis], *len) {
                        return Err(format!("a part leaves axis {axis} of extent {len}"));
                    }
                }
                (x[0].0.with(*axis, *len), dtype(0))
            }
            Op::Gather(axis) | Op::ScatterAdd { axis, .. } => {
                axis_in(*axis)?;
                if dtype(1) != DType::U32 {
                    return Err(format!("indices are u32, not {}", dtype(1)));
                }
                if x[0].0.rank() != x[1].0.rank() {
                    return Err("the index needs as many dimensions as the data".into());
                }
                let (fits, len) = match self {
                    Op::ScatterAdd { len, .. } => (x[0].0 == x[1].0, *len),
                    _ => (x[0].0.with(*axis, x[1].0[*axis]) == x[1].0, x[1].0[*axis]),
                };
                if !fits {
                    return Err(format!("index and data differ in an axis other than {axis}"));
                }
                (x[0].0.with(*axis, len), dtype(0))
            }
            Op::SegmentReduce(kind, s) if *x[0].0 == [s.total] => {
                kind.takes(dtype(0))?;
                ([s.ranges.len()].into(), dtype(0))
            }
            Op::SegmentBroadcast(s) if *x[0].0 == [s.ranges.len()] => ([s.total].into(), dtype(0)),
            Op::SegmentReduce(..) | Op::SegmentBroadcast(_) => {
                return Err("the length does not match the segments".into());
            }
            Op::MatMul { ta, tb } => {
                let (a, b) = (&x[0].0, &x[1].0);
                let r = a.rank();
                if r < 2 || b.rank() != r || a[..r - 2] != b[..r - 2] {
                    return Err("needs two matrices, or equal batches of them".into());
                }
                if dtype(0) != dtype(1) {
                    return Err(format!("the types differ: {} and {}", dtype(0), dtype(1)));
                }
                float(0)?;
                let (m, ka) = if *ta { (a[r - 1], a[r - 2]) } else { (a[r - 2], a[r - 1]) };
                let (n, kb) = if *tb { (b[r - 2], b[r - 1]) } else { (b[r - 1], b[r - 2]) };
                if ka != kb {
                    return Err(format!("the inner extents {ka} and {kb} differ"));
                }
                (a.with(r - 2, m).with(r - 1, n), dtype(0))
            }
            Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..) => conv::infer(self, x)?,
            Op::Sequence { .. } | Op::SequenceGrad { .. } => fused::infer(self, x)?,
            Op::Attention(..) | Op::AttentionGrad(..) => fused::infer(self, x)?,
            Op::Detach | Op::Barrier(_) | Op::Recomputed | Op::Hook(_) => (shape(0), dtype(0)),
            Op::Custom { args, out, .. } => (shape(args + out), dtype(args + out)),
        })
    }
}

impl Reduce {
    /// Refuses a type whose elements cannot be reduced.
    pub(crate) fn takes(self, dtype: DType) -> Result<(), String> {
        match self {
            Reduce::Norm if !dtype.is_float() => Err(format!("needs floats, not {dtype}")),
            Reduce::Sum if dtype == DType::Bool => Err("bools have no arithmetic: cast them first".into()),
            _ => Ok(()),
        }
    }
}
