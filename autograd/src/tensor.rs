//! The user's vocabulary: primitive operations as methods of [`Tensor`].
//!
//! Shapes broadcast as in NumPy; types never convert by themselves. Every method panics at the caller's line when the
//! shapes or types do not fit, naming the op.

use crate::{
    DType, Operand, Shape,
    grad::sweep,
    grads::{Grads, Unscaled},
    node::NodeId,
    op::{Binary, Op, Place, Reduce, Segments, Unary},
    store::ParamSet,
    tape::versions::Paths,
    tape::{Call, Tape},
};
use std::{fmt, sync::Arc};

/// A value of a tape: a handle to one node, free to copy.
#[derive(Clone, Copy)]
pub struct Tensor<'t> {
    pub(crate) tape: &'t Tape,
    pub(crate) id: NodeId,
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.id, self.dtype(), self.shape())
    }
}

/// Defines methods that apply a unary op.
macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => { impl<'t> Tensor<'t> { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Self {
            self.tape.push(Op::Unary(Unary::$op), &[self])
        }
    )* } };
}

unary_methods! {
    /// `1 / x`.
    recip => Recip,
    /// Square root. Its slope at 0 is infinite: guard the input where a gradient is wanted there.
    sqrt => Sqrt,
    /// `e^x`.
    exp => Exp,
    /// `e^x - 1`, exact for small x.
    expm1 => Expm1,
    /// Natural logarithm.
    log => Log,
    /// `log(1 + x)`, exact for small x.
    log1p => Log1p,
    /// Sine, of radians.
    sin => Sin,
    /// Cosine, of radians.
    cos => Cos,
    /// Hyperbolic tangent.
    tanh => Tanh,
    /// The error function.
    erf => Erf,
    /// `1 / (1 + e^-x)`, accurate for very negative x, too.
    sigmoid => Sigmoid,
    /// The normal distribution's function, `(1 + erf(x / sqrt 2)) / 2`: the probability of less than x.
    normal_cdf => NormalCdf,
    /// The normal distribution's density, `e^(-x^2 / 2) / sqrt(2 pi)`.
    normal_pdf => NormalPdf,
    /// The largest whole number that is not above x. No gradient flows through it.
    floor => Floor,
    /// The nearest whole number; the even one of two that are equally near. No gradient flows through it: where one
    /// should, as if `x` were not rounded, write `x + (x.round() - x).detach()` (Bengio et al. 2013).
    round => Round,
    /// Bool: true for each element that is neither NaN nor infinite.
    is_finite => IsFinite,
}

/// Defines methods that apply a binary op to broadcast operands.
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => { impl<'t> Tensor<'t> { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, other: impl Into<Operand<'t>>) -> Self {
            self.called(stringify!($name), other.into(), Binary::$op)
        }
    )* } };
}

binary_methods! {
    /// The larger of the two; NaN if either is. A tie sends half of the gradient to each. Logical or, of bools.
    maximum => Max,
    /// Bool: `self < other`.
    less => Lt,
    /// Bool: `self == other`.
    equals => Eq,
}

impl<'t> Tensor<'t> {
    /// The tape that this value lives on.
    pub fn tape(self) -> &'t Tape {
        self.tape
    }

    /// The node's id.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// The extent of each dimension.
    pub fn shape(self) -> Shape {
        self.tape.inner.borrow().nodes[self.id.index()].shape.clone()
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.tape.inner.borrow().nodes[self.id.index()].dtype
    }

    /// The number of dimensions.
    pub fn rank(self) -> usize {
        self.shape().rank()
    }

    /// The number of elements.
    pub fn numel(self) -> usize {
        self.shape().numel()
    }

    // Gradients.

    /// Records the gradient of this scalar with respect to parameters: one flat vector per arena, and the set of
    /// parameters that the loss reaches.
    ///
    /// A parameter may be read before and after a step of other parameters, as a generator's are if a discriminator is
    /// first trained on its samples. The parameter has one value, and its gradient is the sum over all reads. No
    /// gradient flows through a step or an assignment of parameters to earlier values: for gradients through an update
    /// see [`crate::Optimizer::update`] and [`Tape::with_params`].
    ///
    /// # Panics
    /// If this is not a float scalar. If it reads a parameter of the set at two values, before and after a change of
    /// the parameter: the message has the lines of both reads and of the change. An assignment of an arena, or other
    /// values within [`Tape::with_params`], count as a change of each of its parameters, unless
    /// [`crate::Optimizer::update`] has made them.
    #[track_caller]
    pub fn grad(self, params: &ParamSet) -> Grads<'t, Unscaled> {
        Grads::of(self, params)
    }

    /// Records the gradient of this scalar with respect to some tensors. `None` for a tensor that it does not depend
    /// on.
    ///
    /// A result of [`Tape::param`] stands for all reads of that value, before and after steps of other parameters. If
    /// several such results are given, each stands for itself.
    ///
    /// # Panics
    /// If this is not a float scalar.
    #[track_caller]
    pub fn grad_wrt(self, wrt: &[Tensor<'t>]) -> Vec<Option<Tensor<'t>>> {
        self.grad_along(wrt, &self.tape.paths(self, wrt))
    }

    /// As [`Tensor::grad_wrt`], along some paths only.
    #[track_caller]
    pub(crate) fn grad_along(self, wrt: &[Tensor<'t>], paths: &Paths) -> Vec<Option<Tensor<'t>>> {
        self.check_loss();
        sweep(self.tape, &[(self, self.ones_like())], wrt, paths)
    }

    /// Records the vector-Jacobian product: the cotangents of `wrt`, given this tensor's.
    ///
    /// # Panics
    /// If the cotangent's shape or type is not this tensor's.
    #[track_caller]
    pub fn vjp(self, cotangent: Tensor<'t>, wrt: &[Tensor<'t>]) -> Vec<Option<Tensor<'t>>> {
        self.tape.own(cotangent, "vjp");
        for x in wrt {
            self.tape.own(*x, "vjp");
        }
        let fits = cotangent.shape() == self.shape() && cotangent.dtype() == self.dtype();
        self.tape.require(fits, "vjp", &[self], || {
            format!(
                "the cotangent is {}{}, but must have the tensor's shape and type",
                cotangent.dtype(),
                cotangent.shape()
            )
        });
        sweep(self.tape, &[(self, cotangent)], wrt, &self.tape.paths(self, wrt))
    }

    /// Panics if this is not a float scalar.
    #[track_caller]
    pub(crate) fn check_loss(self) {
        self.tape.require(self.rank() == 0 && self.dtype().is_float(), "grad", &[self], || {
            "needs a float scalar: reduce the tensor first (`sum`, `mean`), or use `vjp`".into()
        });
    }

    /// The same value, as a constant to the reverse sweep.
    #[track_caller]
    pub fn detach(self) -> Self {
        self.tape.push(Op::Detach, &[self])
    }

    /// The same value, never merged with an equal one elsewhere on the tape.
    #[track_caller]
    pub fn barrier(self) -> Self {
        self.tape.push(self.tape.new_barrier(), &[self])
    }

    // Elementwise.

    /// `self^other`; `0^0` is 1, with gradient 0.
    #[track_caller]
    pub fn pow(self, other: impl Into<Operand<'t>>) -> Self {
        self.arithmetic("pow", Binary::Pow, other.into(), false)
    }

    /// A binary op under the name of a function.
    #[track_caller]
    fn called(self, name: &'static str, other: Operand<'t>, op: Binary) -> Self {
        let (_call, other) = self.call_with(name, other);
        self.binary(op, other)
    }

    /// Begins a function of this tensor and an operand, and gives the operand as a tensor.
    #[track_caller]
    pub(crate) fn call_with(self, name: &'static str, other: impl Into<Operand<'t>>) -> (Call<'t>, Self) {
        let other = other.into();
        (self.call_on(name, other), other.like(self))
    }

    #[track_caller]
    fn call_on(self, name: &'static str, other: Operand<'t>) -> Call<'t> {
        match other {
            Operand::Value(_) => self.tape.call(name, &[self]),
            Operand::Tensor(other) => self.tape.call(name, &[self, other]),
        }
    }

    #[track_caller]
    pub(crate) fn binary(self, op: Binary, other: Tensor<'t>) -> Self {
        let (a, b) = self.broadcast_with(other, op.name());
        self.tape.push(Op::Binary(op), &[a, b])
    }

    /// Arithmetic with a tensor or a number, which is the left operand if `swapped`.
    #[track_caller]
    pub(crate) fn arithmetic(self, name: &'static str, op: Binary, other: Operand<'t>, swapped: bool) -> Self {
        let _call = self.call_on(name, other);
        if self.dtype() == DType::F16 && other.is_no_half() {
            return self.cast(DType::F32).arithmetic(name, op, other, swapped).cast(DType::F16);
        }
        let other = other.like(self);
        if swapped { other.binary(op, self) } else { self.binary(op, other) }
    }

    #[track_caller]
    fn broadcast_with(self, other: Tensor<'t>, op: &str) -> (Self, Self) {
        let (a, b) = (self.shape(), other.shape());
        let Some(shape) = a.broadcast(&b) else {
            panic!("{}", self.tape.refusal(op, &[self, other], "the shapes do not broadcast"))
        };
        (self.broadcast_to(&shape), other.broadcast_to(&shape))
    }

    /// `self ? a : b`, elementwise, for a bool tensor. The branch not taken has gradient exactly 0.
    #[track_caller]
    pub fn select(self, a: Tensor<'t>, b: Tensor<'t>) -> Self {
        let _call = self.tape.call("select", &[self, a, b]);
        let (a, b) = a.broadcast_with(b, "select");
        let (condition, a) = self.broadcast_with(a, "select");
        self.tape.push(Op::Select, &[condition, a, b.broadcast_to(a.shape())])
    }

    /// The elements in another type; this tensor if it has that type.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Self {
        if self.dtype() == dtype { self } else { self.tape.push(Op::Cast(dtype), &[self]) }
    }

    /// Zeros of the same shape and type.
    #[track_caller]
    pub fn zeros_like(self) -> Self {
        self.tape.full(self.shape(), 0.0, self.dtype())
    }

    /// Ones of the same shape and type.
    #[track_caller]
    pub fn ones_like(self) -> Self {
        self.tape.full(self.shape(), 1.0, self.dtype())
    }

    // Reductions.

    /// The sum over some axes, which disappear.
    #[track_caller]
    pub fn sum_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("sum_axes", &[self]);
        self.reduce(Reduce::Sum, axes)
    }

    /// The maximum over some axes, which disappear. Equal maxima share the gradient.
    #[track_caller]
    pub fn max_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("max_axes", &[self]);
        self.reduce(Reduce::Max, axes)
    }

    /// The Euclidean norm over some axes, which disappear: see [`Tensor::norm`].
    #[track_caller]
    pub fn norm_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("norm_axes", &[self]);
        if axes.is_empty() { self.abs() } else { self.reduce(Reduce::Norm, axes) }
    }

    #[track_caller]
    fn reduce(self, kind: Reduce, axes: &[usize]) -> Self {
        if axes.is_empty() {
            return self;
        }
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.tape.push(Op::Reduce(kind, axes.into()), &[self])
    }

    /// The index of the first largest element along an axis (u32).
    #[track_caller]
    pub fn argmax(self, axis: usize) -> Self {
        self.tape.push(Op::ArgMax(axis), &[self])
    }

    /// Repeats a reduced tensor over the axes (ascending) that a reduction of `shape` removed.
    #[track_caller]
    pub(crate) fn unreduce(self, axes: &[usize], shape: &Shape) -> Self {
        let kept = axes.iter().fold(shape.clone(), |kept, &axis| kept.with(axis, 1));
        self.reshape(kept).broadcast_to(shape)
    }

    // Movement.

    /// The same elements, row-major, in another shape.
    #[track_caller]
    pub fn reshape(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        if self.shape() == shape { self } else { self.tape.push(Op::Reshape(shape), &[self]) }
    }

    /// Reorders the dimensions: dimension `d` of the result is dimension `order[d]` of this tensor.
    #[track_caller]
    pub fn permute(self, order: &[usize]) -> Self {
        self.tape.push(Op::Permute(order.into()), &[self])
    }

    /// Swaps the last two dimensions.
    #[track_caller]
    pub fn transpose(self) -> Self {
        let rank = self.rank();
        self.tape.require(rank >= 2, "transpose", &[self], || "needs two dimensions".into());
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.permute(&order)
    }

    /// Repeats dimensions of extent 1, and adds leading ones, up to a shape.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl Into<Shape>) -> Self {
        let (from, to) = (self.shape(), shape.into());
        if from == to {
            return self;
        }
        let repeats = from.broadcast(&to).is_some_and(|both| both == to);
        self.tape.require(repeats, "broadcast_to", &[self], || format!("the shape does not broadcast to {to}"));
        let mut aligned = vec![1; to.rank() - from.rank()];
        aligned.extend(from.iter());
        let x = self.reshape(aligned);
        if x.shape() == to { x } else { self.tape.push(Op::Expand(to), &[x]) }
    }

    /// `len` elements along an axis, from `start`.
    #[track_caller]
    pub fn slice(self, axis: usize, start: usize, len: usize) -> Self {
        self.slice_step(axis, start, len, 1)
    }

    /// `len` elements along an axis: `start`, `start + step`, ..; negative steps walk backwards.
    #[track_caller]
    pub fn slice_step(self, axis: usize, start: usize, len: usize, step: isize) -> Self {
        let whole = start == 0 && step == 1 && self.shape().get(axis) == Some(&len);
        if whole { self } else { self.tape.push(Op::Slice { axis, start, len, step }, &[self]) }
    }

    /// One position of an axis, which disappears.
    #[track_caller]
    pub fn index(self, axis: usize, position: usize) -> Self {
        let _call = self.tape.call("index", &[self]);
        let shape = self.shape();
        self.slice(axis, position, 1).reshape(shape.without(&[axis]))
    }

    /// Joins tensors along an axis.
    ///
    /// # Panics
    /// If there are none, or they differ in type or in another axis.
    #[track_caller]
    pub fn concat(parts: &[Tensor<'t>], axis: usize) -> Self {
        assert!(!parts.is_empty(), "concat: of nothing");
        let _call = parts[0].tape.call("concat", parts);
        let mut start = 0;
        let placed: Vec<(Place, Tensor<'t>)> = parts
            .iter()
            .map(|&x| {
                let place = Place { start, step: 1 };
                start += x.shape().get(axis).copied().unwrap_or(0);
                (place, x)
            })
            .collect();
        Self::assemble(&placed, axis, start)
    }

    /// Joins tensors of one shape along a new leading axis.
    #[track_caller]
    pub fn stack(parts: &[Tensor<'t>]) -> Self {
        assert!(!parts.is_empty(), "stack: of nothing");
        let _call = parts[0].tape.call("stack", parts);
        let mut lifted = Vec::with_capacity(parts.len());
        for x in parts {
            lifted.push(x.reshape([&[1], &x.shape()[..]].concat()));
        }
        Self::concat(&lifted, 0)
    }

    /// Pads an axis with zeros before and after.
    #[track_caller]
    pub fn pad(self, axis: usize, before: usize, after: usize) -> Self {
        let _call = self.tape.call("pad", &[self]);
        let extent = self.shape().get(axis).copied().unwrap_or(0);
        Self::assemble(&[(Place { start: before, step: 1 }, self)], axis, before + extent + after)
    }

    /// Parts at disjoint places of an axis of extent `len`, zeros elsewhere. The caller sees to it that no two overlap.
    #[track_caller]
    pub(crate) fn assemble(parts: &[(Place, Tensor<'t>)], axis: usize, len: usize) -> Self {
        if let [(Place { start: 0, step: 1 }, x)] = parts
            && x.shape().get(axis) == Some(&len)
        {
            return *x;
        }
        let (places, x): (Vec<Place>, Vec<Tensor<'t>>) = parts.iter().copied().unzip();
        x[0].tape.push(Op::Assemble { axis, len, places: places.into() }, &x)
    }

    // Indexing.

    /// `out[.., i, ..] = self[.., index[.., i, ..], ..]` along an axis. The index (u32) has as many dimensions as this
    /// tensor, and its extents in every other axis. An index out of range is an error when the program runs.
    #[track_caller]
    pub fn gather(self, index: Tensor<'t>, axis: usize) -> Self {
        self.tape.push(Op::Gather(axis), &[self, index])
    }

    /// The transpose of [`Tensor::gather`]: adds each element at its index along an axis of extent `len`, in row-major
    /// order.
    #[track_caller]
    pub fn scatter_add(self, index: Tensor<'t>, axis: usize, len: usize) -> Self {
        self.tape.push(Op::ScatterAdd { axis, len }, &[self, index])
    }

    /// One sum per segment of a flat vector.
    #[track_caller]
    pub fn segment_sum(self, segments: &Arc<Segments>) -> Self {
        let _call = self.tape.call("segment_sum", &[self]);
        self.tape.push(Op::SegmentReduce(Reduce::Sum, segments.clone()), &[self])
    }

    /// The maximum of each segment of a flat vector. Equal maxima share the gradient.
    #[track_caller]
    pub fn segment_max(self, segments: &Arc<Segments>) -> Self {
        let _call = self.tape.call("segment_max", &[self]);
        self.tape.push(Op::SegmentReduce(Reduce::Max, segments.clone()), &[self])
    }

    /// The Euclidean norm of each segment of a flat vector: see [`Tensor::norm`].
    #[track_caller]
    pub fn segment_norm(self, segments: &Arc<Segments>) -> Self {
        let _call = self.tape.call("segment_norm", &[self]);
        self.tape.push(Op::SegmentReduce(Reduce::Norm, segments.clone()), &[self])
    }

    /// Repeats element `s` over segment `s` of a flat vector; the gaps are 0.
    #[track_caller]
    pub fn segment_broadcast(self, segments: &Arc<Segments>) -> Self {
        self.tape.push(Op::SegmentBroadcast(segments.clone()), &[self])
    }

    // Contraction.

    /// The matrix product over the last two dimensions; leading dimensions broadcast as a batch. A vector is a row on
    /// the left and a column on the right, and has no dimension in the result.
    #[track_caller]
    pub fn matmul(self, other: Tensor<'t>) -> Self {
        let _call = self.tape.call("matmul", &[self, other]);
        let (a, b) = (self.shape(), other.shape());
        let (row, column) = (a.rank() == 1, b.rank() == 1);
        if row || column {
            let inner = if column { b[0] } else { b.get(b.rank().wrapping_sub(2)).copied().unwrap_or(0) };
            let fits = a.last() == Some(&inner);
            self.tape.require(fits, "matmul", &[self, other], || "the inner extents differ".into());
        }
        let left = if row { self.unsqueeze(0) } else { self };
        let right = if column { other.unsqueeze(1) } else { other };
        let product = left.matmul_broadcast(right, false);
        let product = if column { product.squeeze(product.rank() - 1) } else { product };
        if row { product.squeeze(product.rank() - 1 - usize::from(!column)) } else { product }
    }

    /// `self` times the transpose of `other`: for weights stored `[out, in]`.
    #[track_caller]
    pub fn matmul_t(self, other: Tensor<'t>) -> Self {
        let _call = self.tape.call("matmul_t", &[self, other]);
        self.matmul_broadcast(other, true)
    }

    #[track_caller]
    fn matmul_broadcast(self, other: Tensor<'t>, tb: bool) -> Self {
        if let Some(half) = self.tape.autocasts(self, other) {
            return self.cast(half).matmul_broadcast(other.cast(half), tb).cast(DType::F32);
        }
        let (a, b) = (self.shape(), other.shape());
        let (ra, rb) = (a.rank(), b.rank());
        if ra > 2 && rb == 2 {
            // One matrix multiplies the whole batch, whose rows form one tall matrix.
            let n = if tb { b[0] } else { b[1] };
            let rows: usize = a[..ra - 1].iter().product();
            return self.reshape([rows, a[ra - 1]]).matmul_with(other, false, tb).reshape(a.with(ra - 1, n));
        }
        if ra < 2 || rb < 2 || a[..ra - 2] == b[..rb - 2] {
            return self.matmul_with(other, false, tb);
        }
        let Some(batch) = Shape::from(&a[..ra - 2]).broadcast(&Shape::from(&b[..rb - 2])) else {
            panic!("{}", self.tape.refusal("matmul", &[self, other], "the batches do not broadcast"))
        };
        let lifted = |matrix: &[usize]| Shape::from([&batch[..], matrix].concat());
        let (x, y) = (self.broadcast_to(lifted(&a[ra - 2..])), other.broadcast_to(lifted(&b[rb - 2..])));
        x.matmul_with(y, false, tb)
    }

    /// The matrix product of equal batches, of sides that may be stored transposed.
    #[track_caller]
    pub(crate) fn matmul_with(self, other: Tensor<'t>, ta: bool, tb: bool) -> Self {
        self.tape.push(Op::MatMul { ta, tb }, &[self, other])
    }
}
