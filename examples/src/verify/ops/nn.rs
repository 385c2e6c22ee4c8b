//! Layers of networks.

use super::{
    Call,
    Form::{One, Several},
    Operation, Outputs, op,
};
use crate::verify::{Attempt, Attributes, Refusal};
use wgrad::{Attention, Conv2d, DType, Pool2d, Tensor};
use wgrad_nn::{InstanceNorm, Rotary, RotaryPairs};

pub const OPERATIONS: &[Operation] = &[
    op("linear", One(linear)),
    op("conv2d", One(conv2d)),
    op("max_pool2d", One(|call| Ok(call.input("x")?.max_pool2d(&pool(call.attrs)?)))),
    op("avg_pool2d", One(avg_pool2d)),
    op("layer_norm", One(layer_norm)),
    op("rms_norm", One(rms_norm)),
    op("group_norm", One(group_norm)),
    op("batch_norm", Several(batch_norm)),
    op("instance_norm", One(instance_norm)),
    op("embedding", One(embedding)),
    op("sdpa", One(attention)),
    op("rotary", One(rotary)),
];

fn linear<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let y = call.input("x")?.matmul(call.input("weight")?.transpose());
    Ok(call.optional("bias").map_or(y, |bias| y + bias))
}

fn conv2d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    Ok(biased(call, call.input("x")?.conv2d(call.input("weight")?, geometry(call.attrs)?)))
}

/// The geometry of a convolution.
pub fn geometry(attrs: Attributes<'_>) -> Attempt<Conv2d> {
    Ok(Conv2d {
        stride: attrs.pair("stride")?,
        padding: attrs.pair("padding")?,
        dilation: attrs.pair("dilation")?,
        groups: attrs.extent("groups")?,
    })
}

/// `[batch, channels, ..]` plus the bias of each channel, if there is one.
pub fn biased<'t>(call: &Call<'t, '_>, y: Tensor<'t>) -> Tensor<'t> {
    let of = |bias: Tensor<'t>| (2..y.rank()).fold(bias, |bias, axis| bias.unsqueeze(axis - 1));
    call.optional("bias").map_or(y, |bias| y + of(bias))
}

fn pool(attrs: Attributes<'_>) -> Attempt<Pool2d> {
    Ok(Pool2d { kernel: attrs.pair("kernel")?, stride: attrs.pair("stride")?, padding: attrs.pair("padding")? })
}

fn avg_pool2d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    Ok(call.input("x")?.avg_pool2d(&pool(call.attrs)?, call.attrs.flag("count_include_pad")?))
}

/// The input, and the number of its last dimensions to normalise, whose extents must be `normalized_shape`.
fn normalized<'t>(call: &Call<'t, '_>) -> Attempt<(Tensor<'t>, usize)> {
    let (x, shape) = (call.input("x")?, call.attrs.extents("normalized_shape")?);
    if !x.shape().ends_with(&shape) {
        return Err(Refusal::Misfit(format!("normalized_shape is {shape:?}, and x has shape {}", x.shape())));
    }
    Ok((x, shape.len()))
}

fn layer_norm<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, dims) = normalized(call)?;
    Ok(x.layer_norm(dims, call.optional("weight"), call.optional("bias"), call.attrs.number("eps")?))
}

fn rms_norm<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, dims) = normalized(call)?;
    Ok(x.rms_norm(dims, call.optional("weight"), call.attrs.number("eps")?))
}

fn group_norm<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (groups, eps) = (call.attrs.extent("num_groups")?, call.attrs.number("eps")?);
    Ok(call.input("x")?.group_norm(groups, call.optional("weight"), call.optional("bias"), eps))
}

/// Returns `y`; in training also the running statistics after the batch.
fn batch_norm<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let (x, eps) = (call.input("x")?, call.attrs.number("eps")?);
    let (weight, bias) = (call.optional("weight"), call.optional("bias"));
    let (mean, var) = (call.input("running_mean")?, call.input("running_var")?);
    if !call.attrs.flag("training")? {
        return Ok(vec![("y".into(), x.batch_norm_eval(mean, var, weight, bias, eps))]);
    }
    let normed = x.batch_norm(weight, bias, eps);
    let (mean, var) = normed.running(mean, var, call.attrs.number("momentum")?);
    Ok(vec![("y".into(), normed.y), ("running_mean".into(), mean), ("running_var".into(), var)])
}

fn instance_norm<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let x = call.input("x")?;
    let channels = x.shape().get(1).copied().unwrap_or(0);
    Ok(InstanceNorm { eps: call.attrs.number("eps")?, ..InstanceNorm::new(channels) }.forward(x))
}

fn embedding<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (weight, attrs) = (call.input("weight")?, call.attrs);
    let rows = weight.shape().first().copied().unwrap_or(0);
    // The index is read like an axis, because PyTorch counts negative indices from the end too.
    let padding = attrs.get("padding_idx").map(|_| attrs.axis("padding_idx", rows)).transpose()?;
    Ok(weight.embedding(call.input("index")?, padding.map(|row| row as u32)))
}

/// `mask` is the kind of the input `m`. With `bool`, true lets a query attend to a key; with `additive`, `m` is added
/// to the scores.
fn attention<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let attrs = call.attrs;
    let mask = match attrs.get("mask").map(|_| attrs.text("mask")).transpose()? {
        None => None,
        Some(kind @ ("bool" | "additive")) => {
            let mask = call.input("m")?;
            if (mask.dtype() == DType::Bool) != (kind == "bool") {
                return Err(Refusal::Misfit(format!("the mask is {kind}, and m of type {}", mask.dtype())));
            }
            Some(mask)
        }
        Some(other) => return Err(Refusal::Unsupported(format!("attention mask {other:?}"))),
    };
    let scale = attrs.get("scale").map(|_| attrs.number("scale")).transpose()?;
    let options = Attention { causal: attrs.flag("causal")?, scale, mask, dropout: None };
    Ok(call.input("q")?.attention(call.input("k")?, call.input("v")?, &options))
}

/// The positions are 0, 1 and so on, unless an input holds others.
fn rotary<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let pairs = match call.attrs.text("pairs")? {
        "neighbours" => RotaryPairs::Neighbours,
        "halves" => RotaryPairs::Halves,
        other => return Err(Refusal::Unsupported(format!("rotary with pairs of {other:?}"))),
    };
    let (x, rotary) = (call.input("x")?, Rotary { base: call.attrs.number("base")?, pairs });
    Ok(match call.optional("positions") {
        Some(positions) => rotary.forward_at(x, positions),
        None => rotary.forward(x),
    })
}
