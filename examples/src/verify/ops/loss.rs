//! Losses.

use super::{Call, Form::One, Operation, op};
use crate::verify::{Attempt, Attributes, Refusal};
use wgrad::{CrossEntropy, Reduction, Tensor};

pub const OPERATIONS: &[Operation] = &[
    op("cross_entropy", One(|call| Ok(call.input("x")?.cross_entropy_with(call.input("target")?, &of_classes(call)?)))),
    op("nll_loss", One(|call| Ok(call.input("x")?.nll_with(call.input("target")?, &of_classes(call)?)))),
    op("mse_loss", One(|call| Ok(call.input("x")?.mse_with(call.input("target")?, reduction(call.attrs)?)))),
    op("l1_loss", One(|call| Ok(call.input("x")?.l1(call.input("target")?, reduction(call.attrs)?)))),
    op("huber_loss", One(huber)),
    op("kl_div", One(|call| Ok(call.input("x")?.kl_divergence(call.input("target")?, reduction(call.attrs)?)))),
    op("bce_with_logits", One(binary)),
];

fn reduction(attrs: Attributes<'_>) -> Attempt<Reduction> {
    match attrs.text("reduction")? {
        "mean" => Ok(Reduction::Mean),
        "sum" => Ok(Reduction::Sum),
        "none" => Ok(Reduction::None),
        other => Err(Refusal::Unsupported(format!("reduction {other:?}"))),
    }
}

/// The classes are in axis 1, unless `class_dim` names another axis.
fn of_classes<'t>(call: &Call<'t, '_>) -> Attempt<CrossEntropy<'t>> {
    let (x, attrs) = (call.input("x")?, call.attrs);
    Ok(CrossEntropy {
        class_weights: call.optional("weight"),
        class_axis: if attrs.get("class_dim").is_some() { attrs.axis("class_dim", x.rank())? } else { 1 },
        reduction: reduction(attrs)?,
        ignore_index: attrs.integer("ignore_index")?,
        label_smoothing: attrs.number_or("label_smoothing", 0.0)?,
    })
}

fn huber<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    Ok(call.input("x")?.huber(call.input("target")?, call.attrs.number("delta")?, reduction(call.attrs)?))
}

fn binary<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, target, reduction) = (call.input("x")?, call.input("target")?, reduction(call.attrs)?);
    Ok(match call.optional("pos_weight") {
        Some(weight) => x.bce_with_logits_weighted(target, weight, reduction),
        None => x.bce_with_logits(target, reduction),
    })
}
