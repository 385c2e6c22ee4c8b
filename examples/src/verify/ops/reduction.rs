//! Reductions, and what works along one axis.

use super::{
    Call,
    Form::{One},
    Operation, Recorded, op,
};
use crate::verify::Refusal;
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("sum", One(|call| reduced(call, |x, axes| Ok(x.sum_axes(axes))))),
    op("mean", One(|call| reduced(call, |x, axes| Ok(x.mean_axes(axes))))),
    op("amax", One(|call| reduced(call, |x, axes| Ok(x.max_axes(axes))))),
    op("norm", One(norm)),
    op("softmax", One(|call| along(call, Tensor::softmax))),
    op("log_softmax", One(|call| along(call, Tensor::log_softmax))),
];

/// A reduction over the axes `dims`, which stay with extent 1 where `keepdim` says so.
fn reduced<'t>(
    call: &Call<'t, '_>,
    reduce: impl FnOnce(Tensor<'t>, &[usize]) -> Recorded<Tensor<'t>>,
) -> Recorded<Tensor<'t>> {
    let x = call.input("x")?;
    let axes = call.attrs.axes("dims", x.rank())?;
    let y = reduce(x, &axes)?;
    Ok(if call.attrs.flag("keepdim")? {
        y.reshape(axes.iter().fold(x.shape(), |kept, &axis| kept.with(axis, 1)))
    } else {
        y
    })
}

/// What works along the axis `dim`.
fn along<'t>(call: &Call<'t, '_>, f: impl FnOnce(Tensor<'t>, usize) -> Tensor<'t>) -> Recorded<Tensor<'t>> {
    let x = call.input("x")?;
    Ok(f(x, call.attrs.axis("dim", x.rank())?))
}

/// The `p`-norm of all elements.
fn norm<'t>(call: &Call<'t, '_>) -> Recorded<Tensor<'t>> {
    let (x, p) = (call.input("x")?, call.attrs.number("p")?);
    match p {
        1.0 => Ok(x.abs().sum()),
        2.0 => Ok(x.norm()),
        f64::INFINITY => Ok(x.abs().max()),
        _ => Err(Refusal::Unsupported(format!("norm of order {p}"))),
    }
}
