//! The gradient rule of every op: given the cotangent of its result, the cotangents of its inputs.
//!
//! Rules are written with ordinary tensor operations, recorded on the same tape, so each is itself differentiable:
//! second derivatives need nothing more. `None` says that no gradient flows to an input.

use crate::{
    DType, Tensor,
    op::{Binary, Op, Place, Reduce, Unary},
};
use std::f64::consts::PI;

/// The cotangents of the inputs `x` of an unfused `op`, from the cotangents `g` of its results `y`. An op with one
/// result is asked only if that result has a cotangent.
pub(crate) fn vjp<'t>(
    op: &Op,
    y: &[Tensor<'t>],
    x: &[Tensor<'t>],
    g: &[Option<Tensor<'t>>],
) -> Vec<Option<Tensor<'t>>> {
    if let Op::Custom { rule, args, .. } = op {
        return y[0].tape.run_rule(*rule, &x[..*args], y, g);
    }
    let (y, Some(g)) = (y[0], g[0]) else { return vec![None; x.len()] };
    let tape = y.tape;
    let rounds = matches!(op, Op::Unary(_) | Op::Binary(Binary::Div | Binary::Pow)) && *op != Op::Unary(Unary::Neg);
    if rounds && y.dtype() == DType::F16 {
        // A gradient in f16 is rounded once. The result is computed again in f32: in f16 it has lost digits that rules
        // may need.
        let wide: Vec<Tensor<'t>> = x.iter().map(|x| x.cast(DType::F32)).collect();
        let sent = vjp(op, &[tape.push(op.clone(), &wide)], &wide, &[Some(g.cast(DType::F32))]);
        return sent.into_iter().map(|d| Some(d?.cast(DType::F16))).collect();
    }
    let some = |d: Tensor<'t>| vec![Some(d)];
    match op {
        Op::Const(_) | Op::Input(_) | Op::State(_) | Op::Iota(_) | Op::Table(_) => vec![],
        Op::Random { .. } => vec![None, None],
        Op::Unary(unary) => some(match unary {
            Unary::Neg => -g,
            Unary::Recip => -(g * y * y),
            Unary::Sqrt => g / (y + y),
            Unary::Exp => g * y,
            Unary::Expm1 => g * x[0].exp(),
            Unary::Log => g / x[0],
            Unary::Log1p => g / (x[0] + 1.0),
            Unary::Sin => g * x[0].cos(),
            Unary::Cos => -(g * x[0].sin()),
            // Near y = 1, `1 - y^2` has no digits left.
            Unary::Tanh => g * ((x[0] * 2.0).sigmoid() * 4.0 * (x[0] * -2.0).sigmoid()),
            Unary::Erf => g * (x[0].normal_pdf() * (4.0 * PI.sqrt()) * x[0].normal_pdf()),
            Unary::Sigmoid => g * (y * (-x[0]).sigmoid()),
            Unary::NormalCdf => g * x[0].normal_pdf(),
            Unary::NormalPdf => -(g * (x[0].clamp(-64.0, 64.0) * y)), // Beyond, the density is 0.
            Unary::Gated(gate) => g * tape.push(Op::Unary(Unary::GatedSlope(*gate)), &[x[0]]),
            Unary::GatedSlope(gate) => g * x[0].gated_curvature(*gate),
            Unary::Floor | Unary::Round | Unary::IsFinite => return vec![None],
        }),
        Op::Binary(binary) => match binary {
            Binary::Add => vec![Some(g), Some(g)],
            Binary::Sub => vec![Some(g), Some(-g)],
            Binary::Mul if x[0].id == x[1].id => vec![Some(g * 2.0 * x[0]), None], // A square: one product, not two.
            Binary::Mul => vec![Some(g * x[1]), Some(g * x[0])],
            Binary::Div => vec![Some(g / x[1]), Some(-(g * y / x[1]))],
            Binary::Pow => x[0].power_slopes(x[1], y).map(|slope| Some(g * slope)).to_vec(),
            Binary::Max => {
                let half = x[0].equals(x[1]).select(g * 0.5, g.zeros_like());
                let first = x[0].less(x[1]).select(g.zeros_like(), g) - half;
                vec![Some(first), Some(g - first)]
            }
            Binary::Lt | Binary::Eq => vec![None, None],
        },
        Op::Select => {
            let zero = g.zeros_like();
            vec![None, Some(x[0].select(g, zero)), Some(x[0].select(zero, g))]
        }
        Op::Cast(_) => vec![x[0].dtype().is_float().then(|| g.cast(x[0].dtype()))],
        Op::Reduce(kind, _) | Op::SegmentReduce(kind, _) if y.dtype() == DType::F16 && *kind != Reduce::Sum => {
            // f16 is too narrow to count equal maxima, and a norm may exceed it: apply the rule in f32, and round once.
            let x = [x[0].cast(DType::F32)];
            let d = vjp(op, &[tape.push(op.clone(), &x)], &x, &[Some(g.cast(DType::F32))]);
            vec![d[0].map(|d| d.cast(y.dtype()))]
        }
        Op::Reduce(kind, _) | Op::SegmentReduce(kind, _) => {
            let (spread, sum): (&dyn Fn(Tensor<'t>) -> Tensor<'t>, _) = match op {
                Op::Reduce(_, axes) => (&|y| y.unreduce(axes, &x[0].shape()), Op::Reduce(Reduce::Sum, axes.clone())),
                Op::SegmentReduce(_, s) => (&|y| y.segment_broadcast(s), Op::SegmentReduce(Reduce::Sum, s.clone())),
                _ => unreachable!("one of the two"),
            };
            some(match kind {
                Reduce::Sum => spread(g),
                Reduce::Max => {
                    let winners = x[0].equals(spread(y)).cast(g.dtype());
                    winners * spread(g / tape.push(sum, &[winners]))
                }
                Reduce::Norm => {
                    // x / |x|. If the norm is 0, the rule takes 0 / 1, so that no order of derivative meets 0 / 0. The
                    // gaps between segments have norm 0, so no gradient flows to them.
                    let (norm, zero) = (spread(y), spread(y).equals(0.0));
                    spread(g) * (zero.select(x[0].zeros_like(), x[0]) / zero.select(norm.ones_like(), norm))
                }
            })
        }
        Op::Exchange(way, tag) => some(tape.push(Op::Exchange(way.adjoint(), *tag), &[g])),
        Op::Part(part) => some(tape.push(Op::Part(part.transposed()), &[g])),
        Op::CumSum { axis, reverse } => some(tape.push(Op::CumSum { axis: *axis, reverse: !reverse }, &[g])),
        Op::Reshape(_) => some(g.reshape(x[0].shape())),
        Op::Permute(order) => {
            let mut inverse = vec![0; order.len()];
            order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            some(g.permute(&inverse))
        }
        Op::Expand(to) => {
            let from = x[0].shape();
            let axes: Vec<usize> = (0..to.rank()).filter(|&d| from[d] != to[d]).collect();
            some(g.sum_axes(&axes).reshape(from))
        }
        Op::Assemble { axis, places, .. } => {
            let part = |(place, x): (&Place, &Tensor<'t>)| {
                Some(g.slice_step(*axis, place.start, x.shape()[*axis], place.step))
            };
            places.iter().zip(x).map(part).collect()
        }
        Op::Gather(axis) => vec![Some(g.scatter_add(x[1], *axis, x[0].shape()[*axis])), None],
        Op::ScatterAdd { axis, .. } => vec![Some(g.gather(x[1], *axis)), None],
        Op::SegmentBroadcast(segments) => some(g.segment_sum(segments)),
        Op::MatMul { ta, tb } => {
            let (a, b) = (x[0], x[1]);
            let da = if *ta { b.matmul_with(g, *tb, true) } else { g.matmul_with(b, false, !*tb) };
            let db = if *tb { g.matmul_with(a, true, *ta) } else { a.matmul_with(g, !*ta, false) };
            vec![Some(da), Some(db)]
        }
        // <g, conv(x, w)> is linear in each of the three, and each op is its gradient with respect to one of them.
        Op::Conv2d(conv) => vec![Some(conv.input_grad(g, x[1], x[0])), Some(conv.weight_grad(g, x[0], x[1]))],
        Op::ConvInputGrad(conv, _) => vec![Some(g.conv2d(x[1], *conv)), Some(conv.weight_grad(x[0], g, x[1]))],
        Op::ConvWeightGrad(conv, _) => vec![Some(x[1].conv2d(g, *conv)), Some(conv.input_grad(x[0], g, x[1]))],
        Op::Detach | Op::ArgMax(_) | Op::ArgSort(..) => vec![None],
        Op::Barrier(_) => some(g),
        Op::Recomputed => vec![Some(g), None],
        Op::Hook(hook) => {
            let mut cotangents = vec![None; x.len()];
            cotangents[0] = Some(tape.run_hooks(*hook, g, &x[1..]));
            cotangents
        }
        Op::Slice { .. } => unreachable!("the sweep deals with slices: disjoint ones become one assembly"),
        Op::Custom { .. } => unreachable!("handled above: the rule may want a cotangent of any output"),
        Op::Sequence { .. } | Op::SequenceGrad { .. } | Op::Attention(..) | Op::AttentionGrad(..) => {
            unreachable!("fused: the sweep asks their own rules")
        }
    }
}
