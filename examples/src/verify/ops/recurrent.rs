//! Recurrent cells and sequences, with PyTorch's parameters and layouts: `x` is `[time, batch, inputs]`.

use super::{Call, Form::Several, Operation, Outputs, op};
use crate::verify::Attempt;
use wgrad::{Cell, Recurrence, Tensor};

pub const OPERATIONS: &[Operation] = &[
    op("rnn_tanh_cell", Several(|call| step(call, Cell::Tanh))),
    op("rnn_tanh_seq", Several(|call| sequence(call, Cell::Tanh))),
    op("lstm_cell", Several(|call| step(call, Cell::Lstm))),
    op("lstm_seq", Several(|call| sequence(call, Cell::Lstm))),
    op("gru_cell", Several(|call| step(call, Cell::Gru))),
    op("gru_seq", Several(|call| sequence(call, Cell::Gru))),
];

/// The hidden states of all steps, and the memory cells of an LSTM.
fn run<'t>(call: &Call<'t, '_>, cell: Cell, x: Tensor<'t>) -> Attempt<(Tensor<'t>, Option<Tensor<'t>>)> {
    let (b_ih, b_hh) = (call.input("b_ih")?, call.input("b_hh")?);
    // The two biases differ in effect only for a GRU.
    let gru = cell == Cell::Gru;
    let bias = if gru { b_ih } else { b_ih + b_hh };
    let recurrence = Recurrence {
        cell,
        z: x.matmul_t(call.input("w_ih")?) + bias,
        w_hh: call.input("w_hh")?,
        h0: call.input("h")?,
        c0: if cell == Cell::Lstm { Some(call.input("c")?) } else { None },
        b_hh: gru.then_some(b_hh),
    };
    Ok(recurrence.run())
}

/// The states after the last step.
fn last<'t>(h: Tensor<'t>, c: Option<Tensor<'t>>) -> Outputs<'t> {
    let states = [("h", Some(h)), ("c", c)];
    let named = |(name, steps): (&str, Option<Tensor<'t>>)| {
        steps.map(|steps| (name.to_string(), steps.index(0, steps.shape()[0] - 1)))
    };
    states.into_iter().filter_map(named).collect()
}

fn sequence<'t>(call: &Call<'t, '_>, cell: Cell) -> Attempt<Outputs<'t>> {
    let (h, c) = run(call, cell, call.input("x")?)?;
    Ok([vec![("y".into(), h)], last(h, c)].concat())
}

/// Runs a sequence of one step.
fn step<'t>(call: &Call<'t, '_>, cell: Cell) -> Attempt<Outputs<'t>> {
    let (h, c) = run(call, cell, Tensor::stack(&[call.input("x")?]))?;
    Ok(last(h, c))
}
