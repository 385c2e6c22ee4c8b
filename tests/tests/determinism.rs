//! The same seed gives the same bits: run after run, and on any number of threads.

use std::sync::Arc;
use wgrad::{Array, DType, Optimizer, Store, Tape};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    optim::{Adam, AdamConfig},
};
use wgrad_tests::{Machine, same_bits};

const TIME: usize = 12;
const BATCH: usize = 16;
const INPUTS: usize = 8;
const HIDDEN: usize = 48;

/// Trains a recurrent network for some steps, and gives all losses and the states at the end.
fn train(seed: u64, threads: usize, steps: usize) -> (Vec<Array>, Vec<Array>) {
    let mut store = Store::new();
    let mut builder = Builder::new(&mut store, seed);
    let rnn = Recurrent::new(builder.at("rnn"), Cell::Lstm, INPUTS, HIDDEN, &RecurrentInit::of(Cell::Lstm));
    let head = Linear::new(builder.at("head"), HIDDEN, 4, &Init::Normal(0.2));
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.01.into(), ..AdamConfig::default() });
    let mut cpu = Machine::poisoned(threads, store);
    let step = cpu.session.record(|t: &Tape| {
        let x = t.input("x", [TIME, BATCH, INPUTS], DType::F32);
        let y = t.input("y", [BATCH], DType::U32);
        let loss = head.forward(rnn.forward(x).last).cross_entropy(y);
        t.tap("loss", loss);
        adam.step(loss.grad(&params).clip_by_global_norm(0.5));
    });
    let step = step.expect("the plan compiles");
    let losses = (0..steps).map(|k| {
        let x: Vec<f32> = (0..TIME * BATCH * INPUTS).map(|i| ((i * 31 + k * 17) % 101) as f32 / 50.0 - 1.0).collect();
        let y: Vec<u32> = (0..BATCH).map(|i| (i * 7 + k) as u32 % 4).collect();
        let inputs =
            [("x".to_string(), Array::new([TIME, BATCH, INPUTS], x)), ("y".to_string(), Array::new([BATCH], y))];
        cpu.run(&step, &inputs).tap("loss").clone()
    });
    let losses = losses.collect();
    (losses, cpu.states())
}

fn same(a: &[Array], b: &[Array]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_bits(a, b))
}

#[test]
fn fifty_steps_repeat_bit_for_bit_on_any_number_of_threads() {
    let (losses, states) = train(7, 1, 50);
    assert!(losses.iter().all(|loss| loss.item(0).is_finite()));
    for threads in [1, 2, 3] {
        let (again, after) = train(7, threads, 50);
        assert!(same(&losses, &again) && same(&states, &after), "{threads} threads differ");
    }
    let (other, _) = train(8, 1, 2);
    assert!(!same(&losses[..2], &other), "another seed is another model");
}

#[test]
fn recording_twice_gives_the_same_program() {
    let record = || {
        let mut store = Store::new();
        let model = wgrad_tests::Mlp::new(&mut store, DType::F32);
        let params = model.params();
        let adam = Adam::new(&mut store, &params, AdamConfig::default());
        let t = Tape::new(Arc::new(store.layout().clone()));
        adam.step(model.loss(&t).grad(&params).clip_by_global_norm(1.0));
        t.finish().to_string()
    };
    assert_eq!(record(), record());
}
