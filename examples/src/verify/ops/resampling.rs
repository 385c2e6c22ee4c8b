//! Signals and images in another resolution: transposed convolutions, pools, interpolation.

use super::{
    Call,
    Form::One,
    Operation,
    nn::{biased, geometry},
    op,
};
use crate::verify::{Attempt, Refusal};
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[
    op("conv_transpose1d", One(conv_transpose1d)),
    op("conv_transpose2d", One(conv_transpose2d)),
    op("max_pool1d", One(max_pool1d)),
    op("avg_pool1d", One(avg_pool1d)),
    op("adaptive_avg_pool2d", One(|call| Ok(call.input("x")?.adaptive_avg_pool2d(call.attrs.pair("output_size")?)))),
    op("adaptive_max_pool2d", One(|call| Ok(call.input("x")?.adaptive_max_pool2d(call.attrs.pair("output_size")?)))),
    op("interpolate", One(interpolate)),
];

fn conv_transpose1d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let extent = |name| call.attrs.extent(name);
    let y = call.input("x")?.conv_transpose1d(
        call.input("weight")?,
        extent("stride")?,
        extent("padding")?,
        extent("output_padding")?,
        extent("dilation")?,
        extent("groups")?,
    );
    Ok(biased(call, y))
}

fn conv_transpose2d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (conv, output_padding) = (geometry(call.attrs)?, call.attrs.pair("output_padding")?);
    Ok(biased(call, call.input("x")?.conv_transpose2d(call.input("weight")?, conv, output_padding)))
}

fn max_pool1d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let extent = |name| call.attrs.extent(name);
    Ok(call.input("x")?.max_pool1d(extent("kernel")?, extent("stride")?, extent("padding")?))
}

fn avg_pool1d<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let extent = |name| call.attrs.extent(name);
    let count_include_pad = call.attrs.flag("count_include_pad")?;
    Ok(call.input("x")?.avg_pool1d(extent("kernel")?, extent("stride")?, extent("padding")?, count_include_pad))
}

/// `mode` is `nearest` or `bilinear`; the latter has `align_corners`.
fn interpolate<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, size) = (call.input("x")?, call.attrs.pair("size")?);
    match call.attrs.text("mode")? {
        "nearest" => Ok(x.resize_nearest2d(size)),
        "bilinear" => Ok(x.resize_bilinear2d(size, call.attrs.flag("align_corners")?)),
        other => Err(Refusal::Unsupported(format!("interpolation {other:?}"))),
    }
}
