//! Elementwise operations, and the matrix product.

use super::{
    Call,
    Form::{Binary, One, Unary},
    Operation, Recorded, op,
};
use crate::verify::Refusal;
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("add", Binary(|a, b| a + b)),
    op("sub", Binary(|a, b| a - b)),
    op("mul", Binary(|a, b| a * b)),
    op("div", Binary(|a, b| a / b)),
    op("pow", Binary(|a, b| a.pow(b))),
    op("maximum", Binary(|a, b| a.maximum(b))),
    op("minimum", Binary(|a, b| a.minimum(b))),
    op("matmul", Binary(matmul)),
    op("neg", Unary(|x| -x)),
    op("reciprocal", Unary(|x| x.recip())),
    op("sqrt", Unary(|x| x.sqrt())),
    op("square", Unary(|x| x.square())),
    op("abs", Unary(|x| x.abs())),
    op("exp", Unary(|x| x.exp())),
    op("log", Unary(|x| x.log())),
    op("sin", Unary(|x| x.sin())),
    op("cos", Unary(|x| x.cos())),
    op("erf", Unary(|x| x.erf())),
    op("tanh", Unary(|x| x.tanh())),
    op("sigmoid", Unary(|x| x.sigmoid())),
    op("relu", Unary(|x| x.relu())),
    op("pow_scalar", One(power)),
    op("pow3", One(power)),
    op("where", One(|call| Ok(call.input("c")?.select(call.input("a")?, call.input("b")?)))),
    op("dropout", One(dropout)),
];

fn power<'t>(call: &Call<'t, '_>) -> Recorded<Tensor<'t>> {
    Ok(call.input("x")?.pow(call.attrs.number("exponent")?))
}

/// The matrix product in which a vector on the left is a row, and one on the right a column, which disappear again.
pub fn matmul<'t>(a: Tensor<'t>, b: Tensor<'t>) -> Tensor<'t> {
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    let a = if row { a.reshape([1, a.numel()]) } else { a };
    let b = if column { b.reshape([b.numel(), 1]) } else { b };
    let product = a.matmul(b);
    let shape = product.shape();
    let mut gone = vec![];
    if row {
        gone.push(shape.rank() - 2);
    }
    if column {
        gone.push(shape.rank() - 1);
    }
    product.reshape(shape.without(&gone))
}

/// What is kept is drawn elsewhere, and given.
fn dropout<'t>(call: &Call<'t, '_>) -> Recorded<Tensor<'t>> {
    let (x, p) = (call.input("x")?, call.attrs.number("p")?);
    if !(0.0..1.0).contains(&p) {
        return Err(Refusal::Unsupported(format!("dropout with probability {p}")));
    }
    Ok(call.input("keep")?.select(x / (1.0 - p), x.zeros_like()))
}
