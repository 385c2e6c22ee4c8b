//! The f64 reference interpreter: the definition of every operation.
//!
//! Every value, of whatever type, is a vector of f64, computed node by node in the order of the tape. Conversions round
//! as the type says; arithmetic does not, save that a value of type f16 is rounded to half wherever a node gives one.
//! A fused op is what it decomposes into.

pub mod plan;

use crate::simd::gates;
use wgrad::{
    Array, Conv2d, DType, Data, Error, Node, Program, Result, Shape, f16_from_f64,
    op::{Binary, Gate, Op, Reduce, Unary},
    random,
};

/// The results of a program.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The tapped values, with name and shape.
    pub taps: Vec<(String, Shape, Vec<f64>)>,
    /// Every state of the store after the commits, in the order of declaration.
    pub states: Vec<Vec<f64>>,
}

/// Runs a program on the given values of the store's states, and inputs by name.
///
/// # Errors
/// If an input is missing, or an index is out of range.
pub fn run(program: &Program, states: &[Data], inputs: &[(&str, &Array)]) -> Result<Outcome> {
    if program.nodes().iter().any(|node| node.op.is_fused()) {
        return run(&program.lowered(false, |_, _| false), states, inputs);
    }
    let mut values: Vec<Vec<f64>> = vec![];
    for node in program.nodes() {
        let x: Vec<&[f64]> = node.inputs.iter().map(|i| &values[i.index()][..]).collect();
        let shapes: Vec<&Shape> = node.inputs.iter().map(|i| &program.node(*i).shape).collect();
        let mut value = match &node.op {
            Op::Input(id) => {
                let decl = &program.inputs()[id.0 as usize];
                let given = inputs.iter().find(|(name, _)| *name == decl.name);
                given.map(|(_, array)| array.to_f64()).ok_or_else(|| decl.missing())?
            }
            Op::State(id) => {
                let (position, _) =
                    program.layout().states().enumerate().find(|(_, (s, _))| s == id).expect("a declared state");
                states[position].to_f64()
            }
            _ => eval(node, &x, &shapes)?,
        };
        if node.dtype == DType::F16 {
            value.iter_mut().for_each(|v| *v = round(DType::F16, *v));
        }
        debug_assert_eq!(value.len(), node.shape.numel());
        values.push(value);
    }
    let taps = program
        .taps()
        .iter()
        .map(|tap| (tap.name.clone(), program.node(tap.node).shape.clone(), values[tap.node.index()].clone()));
    let after = program.layout().states().enumerate().map(|(i, (id, _))| {
        let commit = program.commits().iter().find(|(state, _)| *state == id);
        commit.map_or_else(|| states[i].to_f64(), |(_, node)| values[node.index()].clone())
    });
    Ok(Outcome { taps: taps.collect(), states: after.collect() })
}

/// All index tuples of a shape, row-major.
pub(crate) fn indices(shape: &Shape) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.numel()).map(|mut flat| {
        let mut index = vec![0; shape.rank()];
        for d in (0..shape.rank()).rev() {
            index[d] = flat % shape[d];
            flat /= shape[d];
        }
        index
    })
}

/// The row-major position of an index tuple.
pub(crate) fn position(shape: &Shape, index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |flat, (&extent, &i)| flat * extent + i)
}

/// A value as the type stores it.
pub(crate) fn round(dtype: DType, v: f64) -> f64 {
    match dtype {
        DType::F64 => v,
        DType::F32 => v as f32 as f64,
        DType::F16 => f16_from_f64(v).to_f64(),
        DType::U32 => v as u32 as f64,
        DType::I32 => v as i32 as f64,
        DType::Bool => (v != 0.0) as u8 as f64,
    }
}

pub(crate) fn unary(op: Unary, dtype: DType, x: f64) -> f64 {
    match op {
        // The least integer has no negative: it wraps.
        Unary::Neg if dtype == DType::I32 => (x as i32).wrapping_neg() as f64,
        Unary::Neg => -x,
        Unary::Recip => 1.0 / x,
        Unary::Sqrt => x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Erf => libm::erf(x),
        Unary::Sigmoid => gates::sigmoid(x),
        Unary::NormalCdf => gates::normal_cdf(x),
        Unary::NormalPdf => gates::normal_pdf(x),
        Unary::Gated(Gate::Sigmoid) => gates::silu(x),
        Unary::GatedSlope(Gate::Sigmoid) => gates::silu_slope(x),
        Unary::Gated(Gate::Normal) => gates::gelu(x),
        Unary::GatedSlope(Gate::Normal) => gates::gelu_slope(x),
        Unary::Gated(Gate::NormalTanh) => gates::gelu_tanh(x),
        Unary::GatedSlope(Gate::NormalTanh) => gates::gelu_tanh_slope(x),
        Unary::Floor => x.floor(),
        Unary::Round => x.round_ties_even(),
        Unary::IsFinite => x.is_finite() as u8 as f64,
    }
}

pub(crate) fn binary(op: Binary, dtype: DType, a: f64, b: f64) -> f64 {
    match (op, dtype) {
        (Binary::Max, _) => larger(a, b),
        (Binary::Lt, _) => (a < b) as u8 as f64,
        (Binary::Eq, _) => (a == b) as u8 as f64,
        (_, DType::U32) => {
            let (a, b) = (a as u32, b as u32);
            let result = match op {
                Binary::Add => a.wrapping_add(b),
                Binary::Sub => a.wrapping_sub(b),
                Binary::Mul => a.wrapping_mul(b),
                _ => a.checked_div(b).unwrap_or(0),
            };
            result as f64
        }
        (_, DType::I32) => {
            let (a, b) = (a as i32, b as i32);
            let result = match op {
                Binary::Add => a.wrapping_add(b),
                Binary::Sub => a.wrapping_sub(b),
                Binary::Mul => a.wrapping_mul(b),
                _ if b == 0 => 0,
                _ => a.wrapping_div(b),
            };
            result as f64
        }
        (Binary::Add, _) => a + b,
        (Binary::Sub, _) => a - b,
        (Binary::Mul, _) => a * b,
        (Binary::Div, _) => a / b,
        (Binary::Pow, _) => a.powf(b),
    }
}

/// The larger value; NaN if either is.
pub(crate) fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

/// The order of sorted values: NaN comes last.
fn ascending(a: f64, b: f64) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The maximum of nothing.
pub(crate) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 => f64::NEG_INFINITY,
        DType::U32 | DType::Bool => 0.0,
        DType::I32 => i32::MIN as f64,
    }
}

/// Every product that a convolution of these images with these weights sums: the positions in its result, in the images
/// and in the weights. Products with padding are left out.
fn taps(conv: &Conv2d, images: &Shape, weights: &Shape, mut each: impl FnMut(usize, usize, usize)) {
    let reach = |d: usize| images[2 + d] + 2 * conv.padding[d] - (weights[2 + d] - 1) * conv.dilation[d] - 1;
    let result = Shape::from([images[0], weights[0], reach(0) / conv.stride[0] + 1, reach(1) / conv.stride[1] + 1]);
    for (y, out) in indices(&result).enumerate() {
        let group = out[1] / (weights[0] / conv.groups);
        for kernel in indices(&[weights[1], weights[2], weights[3]].into()) {
            let at = |d: usize| {
                let padded = out[2 + d] * conv.stride[d] + kernel[1 + d] * conv.dilation[d];
                padded.checked_sub(conv.padding[d]).filter(|&i| i < images[2 + d])
            };
            if let (Some(row), Some(column)) = (at(0), at(1)) {
                let channel = group * weights[1] + kernel[0];
                let weight = position(weights, &[out[1], kernel[0], kernel[1], kernel[2]]);
                each(y, position(images, &[out[0], channel, row, column]), weight);
            }
        }
    }
}

pub(crate) fn eval(node: &Node, x: &[&[f64]], shapes: &[&Shape]) -> Result<Vec<f64>> {
    let (shape, dtype) = (&node.shape, node.dtype);
    let in_range = |index: f64, extent: usize| {
        let known = (index as usize) < extent;
        known.then_some(index as usize).ok_or(Error::IndexOutOfRange {
            op: node.op.name(),
            index: index as u32,
            extent,
            site: node.site,
        })
    };
    Ok(match &node.op {
        Op::Input(_) | Op::State(_) => unreachable!("leaves with data are handled by the caller"),
        Op::Const(bits) => vec![round(dtype, f64::from_bits(*bits))],
        Op::Iota(len) => (0..*len).map(|i| i as f64).collect(),
        Op::Table(values) => values.iter().map(|&bits| round(dtype, f64::from_bits(bits))).collect(),
        Op::Random { stream, .. } => {
            let key = random::stream_key([x[0][0] as u32, x[0][1] as u32], *stream);
            (0..shape.numel()).map(|i| random::word(key, x[1][0] as u32, i) as f64).collect()
        }
        Op::Unary(op) => x[0].iter().map(|&a| unary(*op, dtype, a)).collect(),
        Op::Binary(op) => x[0].iter().zip(x[1]).map(|(&a, &b)| binary(*op, dtype, a, b)).collect(),
        Op::Select => (0..shape.numel()).map(|i| if x[0][i] != 0.0 { x[1][i] } else { x[2][i] }).collect(),
        Op::Cast(to) => x[0].iter().map(|&a| round(*to, a)).collect(),
        Op::Reduce(kind, axes) => {
            let start = if *kind == Reduce::Max { least(dtype) } else { 0.0 };
            let mut out = vec![start; shape.numel()];
            let kept = |index: &[usize]| -> usize {
                let kept: Vec<usize> = (0..index.len()).filter(|d| !axes.contains(d)).map(|d| index[d]).collect();
                position(shape, &kept)
            };
            // The divisor of a norm before it squares: its largest element, where that is of any use.
            let mut scale = vec![0.0; shape.numel()];
            if *kind == Reduce::Norm {
                indices(shapes[0]).zip(x[0]).for_each(|(index, v)| {
                    let to = &mut scale[kept(&index)];
                    *to = larger(*to, v.abs());
                });
                scale.iter_mut().filter(|s| **s == 0.0 || !s.is_finite()).for_each(|s| *s = 1.0);
            }
            for (flat, index) in indices(shapes[0]).enumerate() {
                let (v, at) = (x[0][flat], kept(&index));
                let to = &mut out[at];
                *to = match kind {
                    Reduce::Sum => binary(Binary::Add, dtype, *to, v),
                    Reduce::Max => larger(*to, v),
                    Reduce::Norm => *to + (v / scale[at]).powi(2),
                };
            }
            if *kind == Reduce::Norm {
                out.iter_mut().zip(scale).for_each(|(o, scale)| *o = o.sqrt() * scale);
            }
            out
        }
        Op::ArgMax(axis) => {
            let at = |index: &[usize], i: usize| {
                let mut full = index.to_vec();
                full.insert(*axis, i);
                x[0][position(shapes[0], &full)]
            };
            let best = |index: Vec<usize>| {
                let beats = |a: f64, b: f64| a > b || (a.is_nan() && !b.is_nan());
                let first = (1..shapes[0][*axis])
                    .fold(0, |best, i| if beats(at(&index, i), at(&index, best)) { i } else { best });
                first as f64
            };
            indices(shape).map(best).collect()
        }
        Op::ArgSort(axis, descending) => {
            let mut out = vec![0.0; x[0].len()];
            let lines = indices(shape).filter(|index| index[*axis] == 0);
            for line in lines {
                let at = |i: usize| {
                    let mut index = line.clone();
                    index[*axis] = i;
                    position(shape, &index)
                };
                let mut order: Vec<usize> = (0..shape[*axis]).collect();
                order.sort_by(|&a, &b| {
                    let order = ascending(x[0][at(a)], x[0][at(b)]);
                    if *descending { order.reverse() } else { order }
                });
                order.into_iter().enumerate().for_each(|(to, from)| out[at(to)] = from as f64);
            }
            out
        }
        Op::CumSum { axis, reverse } => {
            let mut out = x[0].to_vec();
            for index in indices(shape).filter(|index| index[*axis] > 0) {
                // From the end, position i is the i-th from there.
                let at = |i: usize| {
                    let mut index = index.clone();
                    index[*axis] = if *reverse { shape[*axis] - 1 - i } else { i };
                    position(shape, &index)
                };
                let (to, before) = (at(index[*axis]), at(index[*axis] - 1));
                out[to] = binary(Binary::Add, dtype, out[to], out[before]);
            }
            out
        }
        // The reference is rank 0, and the others bring zeros.
        Op::Exchange(..) | Op::Part(_) => {
            let mut out = x[0].to_vec();
            out.resize(shape.numel(), 0.0);
            out
        }
        Op::Reshape(_) | Op::Detach | Op::Barrier(_) | Op::Hook(_) => x[0].to_vec(),
        Op::Recomputed => x[1].to_vec(),
        Op::Custom { args, out, .. } => x[args + out].to_vec(),
        Op::Permute(order) => {
            let from = |index: Vec<usize>| {
                let mut source = vec![0; order.len()];
                order.iter().zip(&index).for_each(|(&d, &i)| source[d] = i);
                x[0][position(shapes[0], &source)]
            };
            indices(shape).map(from).collect()
        }
        Op::Expand(_) => {
            let from = |index: Vec<usize>| {
                let source: Vec<usize> = index.iter().zip(shapes[0].iter()).map(|(&i, &n)| i.min(n - 1)).collect();
                x[0][position(shapes[0], &source)]
            };
            indices(shape).map(from).collect()
        }
        Op::Slice { axis, start, step, .. } => {
            let from = |mut index: Vec<usize>| {
                index[*axis] = (*start as isize + index[*axis] as isize * step) as usize;
                x[0][position(shapes[0], &index)]
            };
            indices(shape).map(from).collect()
        }
        Op::Assemble { axis, places, .. } => {
            let mut out = vec![0.0; shape.numel()];
            for ((place, part), part_shape) in places.iter().zip(x).zip(shapes) {
                for (flat, mut index) in indices(part_shape).enumerate() {
                    index[*axis] = (place.start as isize + index[*axis] as isize * place.step) as usize;
                    out[position(shape, &index)] = part[flat];
                }
            }
            out
        }
        Op::Gather(axis) => {
            let mut out = Vec::with_capacity(shape.numel());
            for (flat, mut index) in indices(shape).enumerate() {
                index[*axis] = in_range(x[1][flat], shapes[0][*axis])?;
                out.push(x[0][position(shapes[0], &index)]);
            }
            out
        }
        Op::ScatterAdd { axis, len } => {
            let mut out = vec![0.0; shape.numel()];
            for (flat, mut index) in indices(shapes[0]).enumerate() {
                index[*axis] = in_range(x[1][flat], *len)?;
                let to = &mut out[position(shape, &index)];
                *to = binary(Binary::Add, dtype, *to, x[0][flat]);
            }
            out
        }
        Op::SegmentReduce(kind, segments) => {
            segments.ranges.iter().map(|&(start, len)| reduce(*kind, dtype, &x[0][start..start + len])).collect()
        }
        Op::SegmentBroadcast(segments) => {
            let mut out = vec![0.0; segments.total];
            segments.ranges.iter().zip(x[0]).for_each(|(&(start, len), &v)| out[start..start + len].fill(v));
            out
        }
        Op::Conv2d(conv) => {
            let mut out = vec![0.0; shape.numel()];
            taps(conv, shapes[0], shapes[1], |y, i, w| out[y] += x[0][i] * x[1][w]);
            out
        }
        Op::ConvInputGrad(conv, _) => {
            let mut out = vec![0.0; shape.numel()];
            taps(conv, shape, shapes[1], |y, i, w| out[i] += x[0][y] * x[1][w]);
            out
        }
        Op::ConvWeightGrad(conv, _) => {
            let mut out = vec![0.0; shape.numel()];
            taps(conv, shapes[1], shape, |y, i, w| out[w] += x[0][y] * x[1][i]);
            out
        }
        Op::Sequence { .. } | Op::SequenceGrad { .. } | Op::Attention(..) | Op::AttentionGrad(..) => {
            unreachable!("the caller has decomposed it")
        }
        Op::MatMul { ta, tb } => {
            let rank = shape.rank();
            let inner = shapes[0][if *ta { rank - 2 } else { rank - 1 }];
            let element = |index: Vec<usize>| {
                let at = |shape: &Shape, row: usize, column: usize, transposed: bool| {
                    let mut full = index.clone();
                    (full[rank - 2], full[rank - 1]) = if transposed { (column, row) } else { (row, column) };
                    position(shape, &full)
                };
                let (i, j) = (index[rank - 2], index[rank - 1]);
                let product = |k| x[0][at(shapes[0], i, k, *ta)] * x[1][at(shapes[1], k, j, *tb)];
                (0..inner).map(product).fold(0.0, |sum, v| sum + v)
            };
            indices(shape).map(element).collect()
        }
    })
}

/// A reduction of some elements to one, in an order that no device need keep.
pub(crate) fn reduce(kind: Reduce, dtype: DType, x: &[f64]) -> f64 {
    match kind {
        Reduce::Sum => x.iter().fold(0.0, |a, &b| binary(Binary::Add, dtype, a, b)),
        Reduce::Max => x.iter().fold(least(dtype), |a, &b| larger(a, b)),
        Reduce::Norm => {
            let most = x.iter().fold(0.0, |a, b| larger(a, b.abs()));
            let scale = if most == 0.0 || !most.is_finite() { 1.0 } else { most };
            x.iter().fold(0.0, |sum, v| sum + (v / scale).powi(2)).sqrt() * scale
        }
    }
}
