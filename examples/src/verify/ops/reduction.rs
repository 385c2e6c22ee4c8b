//! Reductions, and operations along one axis.

use super::{
    Call,
    Form::{One, Several},
    Operation, Outputs, op,
};
use crate::verify::{Attempt, Refusal};
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("sum", One(|call| reduced(call, |x, axes| Ok(x.sum_axes(axes))))),
    op("mean", One(|call| reduced(call, |x, axes| Ok(x.mean_axes(axes))))),
    op("amax", One(|call| reduced(call, |x, axes| Ok(x.max_axes(axes))))),
    op("amin", One(|call| reduced(call, |x, axes| Ok(x.min_axes(axes))))),
    op("logsumexp", One(|call| reduced(call, |x, axes| Ok(x.logsumexp_axes(axes))))),
    op("var", One(|call| reduced(call, |x, axes| Ok(x.var_axes_with(axes, call.attrs.number("correction")?))))),
    op("std", One(|call| reduced(call, |x, axes| Ok(x.std_axes_with(axes, call.attrs.number("correction")?))))),
    op("prod", One(|call| reduced(call, |x, axes| Ok(x.prod_axes(axes))))),
    op("norm", One(norm)),
    op("max_dim", Several(max_dim)),
    op("cumsum", One(|call| along(call, Tensor::cumsum))),
    op("cumprod", One(|call| along(call, Tensor::cumprod))),
    op("sort", Several(sort)),
    op("argsort", One(argsort)),
    op("topk", Several(topk)),
    op("softmax", One(|call| along(call, Tensor::softmax))),
    op("log_softmax", One(|call| along(call, Tensor::log_softmax))),
];

/// A reduction over the axes `dims`. With `keepdim`, they stay with extent 1.
fn reduced<'t>(
    call: &Call<'t, '_>,
    reduce: impl FnOnce(Tensor<'t>, &[usize]) -> Attempt<Tensor<'t>>,
) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    let mut axes = call.attrs.axes("dims", x.rank())?;
    axes.sort_unstable();
    let y = reduce(x, &axes)?;
    Ok(if call.attrs.flag("keepdim")? {
        y.reshape(axes.iter().fold(x.shape(), |kept, &axis| kept.with(axis, 1)))
    } else {
        y
    })
}

/// An operation along the axis `dim`.
fn along<'t>(call: &Call<'t, '_>, f: impl FnOnce(Tensor<'t>, usize) -> Tensor<'t>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    Ok(f(x, call.attrs.axis("dim", x.rank())?))
}

/// The `p`-norm of all elements.
fn norm<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, p) = (call.input("x")?, call.attrs.number("p")?);
    match p {
        1.0 => Ok(x.abs().sum()),
        2.0 => Ok(x.norm()),
        f64::INFINITY => Ok(x.abs().max()),
        _ => Err(Refusal::Unsupported(format!("norm of order {p}"))),
    }
}

/// The largest elements along an axis, and their indices.
fn max_dim<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let x = call.input("x")?;
    Ok(indexed(x.max_with_index(call.attrs.axis("dim", x.rank())?)))
}

/// Elements, and the indices that they come from.
fn indexed<'t>((values, indices): (Tensor<'t>, Tensor<'t>)) -> Outputs<'t> {
    vec![("values".into(), values), ("indices".into(), indices)]
}

fn sort<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let x = call.input("x")?;
    Ok(indexed(x.sort(call.attrs.axis("dim", x.rank())?, call.attrs.flag("descending")?)))
}

fn argsort<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    Ok(x.argsort(call.attrs.axis("dim", x.rank())?, call.attrs.flag("descending")?))
}

/// The `k` largest elements along an axis.
fn topk<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let x = call.input("x")?;
    Ok(indexed(x.topk(call.attrs.extent("k")?, call.attrs.axis("dim", x.rank())?)))
}
