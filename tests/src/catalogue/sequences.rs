//! Sequences, and operations that change the reverse sweep only.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::{Cell, Recurrence, Shape, Tensor};

/// The states of a sequence that a loss reads.
#[derive(Clone, Copy)]
enum Reads {
    /// Every hidden state.
    Steps,
    /// The last hidden state.
    Last,
    /// The first and the last hidden state, and the last memory cell of an LSTM.
    Both,
}

pub(super) fn sequences() -> Vec<Row> {
    let mut rows = vec![];
    let cases = [
        (Cell::Tanh, [3, 2, 3], Reads::Steps),
        (Cell::Tanh, [2, 1, 1], Reads::Last),
        (Cell::Tanh, [1, 1, 1], Reads::Steps),
        (Cell::Tanh, [2, 0, 2], Reads::Steps),
        (Cell::Sigmoid, [2, 3, 2], Reads::Steps),
        (Cell::Sigmoid, [1, 2, 1], Reads::Last),
        (Cell::Irnn, [3, 2, 2], Reads::Both),
        (Cell::Irnn, [1, 1, 3], Reads::Last),
        (Cell::Lstm, [2, 2, 2], Reads::Both),
        (Cell::Lstm, [3, 1, 1], Reads::Steps),
        (Cell::Lstm, [1, 2, 1], Reads::Last),
        (Cell::Lstm, [2, 0, 1], Reads::Both),
        (Cell::Gru, [2, 2, 2], Reads::Steps),
        (Cell::Gru, [3, 1, 1], Reads::Last),
        (Cell::Gru, [1, 2, 2], Reads::Both),
        (Cell::Gru, [2, 1, 0], Reads::Steps),
    ];
    for (cell, [time, batch, hidden], reads) in cases {
        let wide = cell.gates() * hidden;
        let mut shapes: Vec<Shape> = vec![[time, batch, wide].into(), [wide, hidden].into(), [batch, hidden].into()];
        shapes.extend((cell == Cell::Lstm).then(|| [batch, hidden].into()));
        shapes.extend((cell == Cell::Gru).then(|| [wide].into()));
        rows.push(row(&format!("sequence: {}", cell.name()), Gradcheck::new(shapes), move |x| {
            let of = |kind: Cell| (cell == kind).then(|| x[3]);
            let (c0, b_hh) = (of(Cell::Lstm), of(Cell::Gru));
            let (h, c) = Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0, b_hh }.run();
            match reads {
                Reads::Steps => h,
                Reads::Last => h.index(0, time - 1),
                Reads::Both => h.index(0, time - 1) + c.unwrap_or(h).index(0, time - 1) * h.index(0, 0),
            }
        }));
    }
    rows
}

pub(super) fn control() -> Vec<Row> {
    let pair = || Gradcheck::new([[2usize, 3], [2, 3]]);
    vec![
        row("custom", pair(), |x| {
            let outputs = x[0].tape().custom_vjp(
                x,
                |x| vec![x[0] * x[1], x[0].sin()],
                |v| {
                    let (x, y) = (v.inputs[0], v.inputs[1]);
                    let (first, second) = (v.cotangents[0], v.cotangents[1]);
                    let (first, second) = (first.expect("used"), second.expect("used"));
                    vec![Some(first * y + second * x.cos()), Some(first * x)]
                },
            );
            outputs[0] - outputs[1]
        }),
        row("custom: of nothing", Gradcheck::new([[0usize]]), |x| own_rule(x[0])),
        row("custom: of one", Gradcheck::new([[1usize]]), |x| own_rule(x[0])),
        row("checkpoint: of nothing", Gradcheck::new([[0usize]]), |x| x[0].tape().checkpoint(|| x[0].tanh().exp())),
        row("checkpoint: of one", Gradcheck::new([[1usize]]), |x| x[0].tape().checkpoint(|| x[0].tanh().exp())),
        row("checkpoint", pair(), |x| x[0].tape().checkpoint(|| (x[0] * x[1]).tanh().exp()) * x[0]),
    ]
}

/// A sine with a custom gradient rule.
fn own_rule(x: Tensor<'_>) -> Tensor<'_> {
    let outputs =
        x.tape().custom_vjp(&[x], |x| vec![x[0].sin()], |v| vec![v.cotangents[0].map(|g| g * v.inputs[0].cos())]);
    outputs[0]
}
