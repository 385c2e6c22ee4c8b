//! Algebra that changes no bit, except the last one of some squares (`x * x` is correctly rounded, a power need not
//! be): constants are folded, identities dropped. Rules that could change a NaN or the sign of a zero (`x * 0`,
//! `x + 0`) are not used.

use crate::{
    Array, DType, Tensor,
    node::Node,
    op::{Binary, Op, Place, Unary},
};

/// The simpler form of a node, if there is one: its op over inputs that have been simplified.
pub(crate) fn simplified<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    let value = |i: usize| uniform(x[i]);
    match op {
        Op::Unary(Unary::Neg) => match node(x[0]).op {
            Op::Unary(Unary::Neg) => Some(input(x[0])),
            _ => folded(op, x),
        },
        Op::Binary(Binary::Mul) if value(1) == Some(1.0) => Some(x[0]),
        Op::Binary(Binary::Mul) if value(0) == Some(1.0) => Some(x[1]),
        Op::Binary(Binary::Div) if value(1) == Some(1.0) => Some(x[0]),
        Op::Binary(Binary::Sub) if value(1).is_some_and(|v| v.to_bits() == 0) => Some(x[0]),
        Op::Binary(Binary::Pow) if value(1) == Some(1.0) => Some(x[0]),
        Op::Binary(Binary::Pow) if value(1) == Some(2.0) => Some(x[0] * x[0]),
        Op::Select if x[1].id == x[2].id => Some(x[1]),
        Op::Select => value(0).map(|condition| if condition != 0.0 { x[1] } else { x[2] }),
        Op::Cast(to) if *to == x[0].dtype() => Some(x[0]),
        Op::Cast(to) => {
            let value = Array::new([], vec![value(0)?]).cast(*to).item(0);
            Some(x[0].tape.full(x[0].shape(), value, *to))
        }
        Op::Unary(_) | Op::Binary(_) => folded(op, x),
        Op::Assemble { axis, len, places } => taken_apart(*axis, *len, places, x),
        _ => None,
    }
}

/// The tensor that the parts are slices of, if each part is at its old place and together they cover the tensor.
fn taken_apart<'t>(axis: usize, len: usize, places: &[Place], parts: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    let mut whole = None;
    let mut covered = 0;
    for (part, place) in parts.iter().zip(places) {
        let mut slice = *part;
        while let Op::Reshape(_) = node(slice).op {
            slice = input(slice);
        }
        let Node { op: Op::Slice { axis: along, start, len: extent, step: 1 }, inputs, shape, .. } = node(slice) else {
            return None;
        };
        let same = along == axis && *place == (Place { start, step: 1 }) && shape == part.shape();
        if !same || *whole.get_or_insert(inputs[0]) != inputs[0] {
            return None;
        }
        covered += extent;
    }
    let whole = Tensor { tape: parts[0].tape, id: whole? };
    (covered == len && whole.shape()[axis] == len).then_some(whole)
}

fn node(x: Tensor<'_>) -> Node {
    x.tape.node(x.id)
}

/// The first input of a tensor's node.
fn input(x: Tensor<'_>) -> Tensor<'_> {
    Tensor { tape: x.tape, id: node(x).inputs[0] }
}

/// The common value of all elements of a tensor, if it is a constant behind movement ops alone.
pub(crate) fn uniform(x: Tensor<'_>) -> Option<f64> {
    let node = node(x);
    match node.op {
        Op::Const(bits) => Some(Array::new([], vec![f64::from_bits(bits)]).cast(node.dtype).item(0)),
        Op::Expand(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => uniform(input(x)),
        _ => None,
    }
}

/// Folds operations on constants that every device rounds correctly; an f32 result is rounded from f64.
fn folded<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    let dtype = x[0].dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        return None;
    }
    let a = uniform(x[0])?;
    let value = match op {
        Op::Unary(Unary::Neg) => -a,
        Op::Unary(Unary::Recip) => 1.0 / a,
        Op::Unary(Unary::Sqrt) => a.sqrt(),
        Op::Binary(binary) => {
            let b = uniform(x[1])?;
            match binary {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                _ => return None,
            }
        }
        _ => return None,
    };
    let value = Array::new([], vec![value]).cast(dtype).item(0);
    Some(x[0].tape.full(x[0].shape(), value, dtype))
}
