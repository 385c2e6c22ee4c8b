//! Losses.

use super::{Call, Form::One, Operation, op};
use crate::verify::{Attempt, Attributes, Refusal};
use wgrad::{CrossEntropy, Reduction, Tensor};

pub const OPERATIONS: &[Operation] = &[
    op("cross_entropy", One(cross_entropy)),
    op("mse_loss", One(|call| Ok(call.input("x")?.mse_with(call.input("target")?, reduction(call.attrs)?)))),
    op(
        "bce_with_logits",
        One(|call| Ok(call.input("x")?.bce_with_logits(call.input("target")?, reduction(call.attrs)?))),
    ),
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
fn cross_entropy<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (x, attrs) = (call.input("x")?, call.attrs);
    let options = CrossEntropy {
        class_weights: call.optional("weight"),
        class_axis: if attrs.get("class_dim").is_some() { attrs.axis("class_dim", x.rank())? } else { 1 },
        reduction: reduction(attrs)?,
        ignore_index: attrs.integer("ignore_index")?,
        label_smoothing: attrs.number_or("label_smoothing", 0.0)?,
    };
    Ok(x.cross_entropy_with(call.input("target")?, &options))
}
