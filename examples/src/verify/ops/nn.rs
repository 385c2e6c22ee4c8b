//! Layers of networks.

use super::{Call, Form::One, Operation, Recorded, op};
use wgrad::Tensor;

pub const OPERATIONS: &[Operation] = &[op("linear", One(linear))];

fn linear<'t>(call: &Call<'t, '_>) -> Recorded<Tensor<'t>> {
    let (x, weight) = (call.input("x")?, call.input("weight")?);
    // A vector is one row.
    let rows = if x.rank() == 1 { x.reshape([1, x.numel()]) } else { x };
    let y = rows.matmul_t(weight);
    let y = if x.rank() == 1 { y.reshape([y.numel()]) } else { y };
    Ok(call.optional("bias").map_or(y, |bias| y + bias))
}
