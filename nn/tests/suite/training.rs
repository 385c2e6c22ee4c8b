//! Short trainings: the parts of this crate learn together.

use crate::open;
use wgrad::{Optimizer, Store};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    data::{Adding, Task, TemporalOrder},
    optim::{Adam, AdamConfig},
};

/// The mean training loss of the first and the last tenth of some updates.
fn train(task: &dyn Task, cell: Cell, updates: u64) -> (f64, f64) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let layer = Recurrent::new(b.at("rnn"), cell, task.inputs(), 24, &RecurrentInit::of(cell));
    let readout = Linear::new(b.at("readout"), 24, task.outputs(), &Init::XavierUniform { gain: 1.0 });
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 1e-2.into(), ..Default::default() });
    let mut session = open(store);
    let mut losses = vec![];
    for update in 0..updates {
        let batch = task.train(20, update);
        session
            .run_cached("step", &batch.inputs(), |t| {
                let (x, y) = (t.input_like("x", &batch["x"]), t.input_like("y", &batch["y"]));
                let out = readout.forward(layer.forward(x).last);
                let loss = if y.dtype().is_float() { out.mse(y) } else { out.cross_entropy(y) };
                t.tap("loss", loss);
                adam.step(loss.grad(&params).clip_by_global_norm(1.0));
            })
            .expect("runs");
        losses.extend(session.taps().expect("ran").iter().filter_map(|taps| taps.scalar("loss")));
    }
    let tenth = losses.len() / 10;
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    (mean(&losses[..tenth]), mean(&losses[losses.len() - tenth..]))
}

#[test]
fn every_cell_learns_temporal_order() {
    for cell in [Cell::Tanh, Cell::Sigmoid, Cell::Irnn, Cell::Lstm, Cell::Gru] {
        let (first, last) = train(&TemporalOrder::new(10, 1), cell, 300);
        assert!(first > 0.3 && last < 0.1, "{cell:?}: cross-entropy from {first} to {last}");
    }
}

#[test]
fn an_lstm_learns_adding() {
    // Who always says 1 has a squared error of 1/6.
    let (first, last) = train(&Adding::new(8, 1), Cell::Lstm, 500);
    assert!(first > 0.1 && last < 0.01, "squared error from {first} to {last}");
}
