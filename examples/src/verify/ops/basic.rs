//! Elementwise operations, the matrix product, and Einstein's summation.

use super::{
    Call,
    Form::{Binary, One, Unary},
    Operation, op,
};
use crate::verify::{Attempt, Refusal};
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("add", Binary(|a, b| a + b)),
    op("sub", Binary(|a, b| a - b)),
    op("mul", Binary(|a, b| a * b)),
    op("div", Binary(|a, b| a / b)),
    op("pow", Binary(|a, b| a.pow(b))),
    op("maximum", Binary(|a, b| a.maximum(b))),
    op("minimum", Binary(|a, b| a.minimum(b))),
    op("matmul", Binary(|a, b| a.matmul(b))),
    op("einsum", One(einsum)),
    op("neg", Unary(|x| -x)),
    op("reciprocal", Unary(|x| x.recip())),
    op("sqrt", Unary(|x| x.sqrt())),
    op("rsqrt", Unary(|x| x.rsqrt())),
    op("square", Unary(|x| x.square())),
    op("abs", Unary(|x| x.abs())),
    op("sign", Unary(|x| x.sign())),
    op("round", Unary(|x| x.round())),
    op("floor", Unary(|x| x.floor())),
    op("ceil", Unary(|x| x.ceil())),
    op("exp", Unary(|x| x.exp())),
    op("expm1", Unary(|x| x.expm1())),
    op("log", Unary(|x| x.log())),
    op("log1p", Unary(|x| x.log1p())),
    op("sin", Unary(|x| x.sin())),
    op("cos", Unary(|x| x.cos())),
    op("erf", Unary(|x| x.erf())),
    op("tanh", Unary(|x| x.tanh())),
    op("sigmoid", Unary(|x| x.sigmoid())),
    op("softplus", Unary(|x| x.softplus())),
    op("log_sigmoid", Unary(|x| x.log_sigmoid())),
    op("silu", Unary(|x| x.silu())),
    op("relu", Unary(|x| x.relu())),
    op("leaky_relu", One(|call| Ok(call.input("x")?.leaky_relu(call.attrs.number("negative_slope")?)))),
    op("elu", One(|call| Ok(call.input("x")?.elu(call.attrs.number("alpha")?)))),
    op("gelu", One(gelu)),
    op("clamp", One(clamp)),
    op("pow_scalar", One(power)),
    op("pow3", One(power)),
    op("where", One(|call| Ok(call.input("c")?.select(call.input("a")?, call.input("b")?)))),
    op("dropout", One(dropout)),
];

/// An equation of all inputs, in the order of their names.
fn einsum<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let operands: Vec<Tensor<'t>> = call.inputs.values().copied().collect();
    Ok(Tensor::einsum(call.attrs.text("equation")?, &operands))
}

fn power<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    Ok(call.input("x")?.pow(call.attrs.number("exponent")?))
}

/// `approximate` is `none` or `tanh`; the default is `none`.
fn gelu<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    match call.attrs.get("approximate").map(|_| call.attrs.text("approximate")).transpose()? {
        None | Some("none") => Ok(x.gelu()),
        Some("tanh") => Ok(x.gelu_tanh()),
        Some(other) => Err(Refusal::Unsupported(format!("gelu with the approximation {other:?}"))),
    }
}

/// A missing bound does not clamp.
fn clamp<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let bound = |name, none| call.attrs.number_or(name, none);
    Ok(call.input("x")?.clamp(bound("min", f64::NEG_INFINITY)?, bound("max", f64::INFINITY)?))
}

/// The mask of kept elements is the input `keep`, because random numbers differ between frameworks.
fn dropout<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, p) = (call.input("x")?, call.attrs.number("p")?);
    if !(0.0..1.0).contains(&p) {
        return Err(Refusal::Unsupported(format!("dropout with probability {p}")));
    }
    Ok(call.input("keep")?.select(x / (1.0 - p), x.zeros_like()))
}
