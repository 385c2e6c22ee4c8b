//! A learning rate that a function of the user's own records is part of the fused program, on both devices.

use std::f64::consts::PI;
use wgrad::{Array, DType, Optimizer, Store};
use wgrad_nn::{
    Rate, Schedule,
    optim::{AdamW, AdamWConfig},
};
use wgrad_tests::{Machine, Mlp, Tolerance, compare, gpu, same_bits};

const STEPS: usize = 12;

/// From 0.01 to 0.05 in a straight line over four updates, then to 0.002 at the tenth along half a cosine.
fn by_hand() -> Rate {
    Rate::function("warm_cosine", |t| {
        let falling = (((t - 4.0) / 6.0 * PI).cos() + 1.0) * 0.024 + 0.002;
        let rest = t.less(10.0).select(falling, t.tape().scalar(0.002, t.dtype()));
        t.less(4.0).select(t / 4.0 * 0.04 + 0.01, rest)
    })
}

/// Updates of a perceptron: the rates, where they are tapped, and the states at the end.
fn trained(device: impl Fn(Store) -> Machine, lr: Rate) -> (Vec<f64>, Vec<Array>) {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig { lr, ..AdamWConfig::default() });
    let mut machine = device(store);
    let step = machine.session.record(|t| {
        let (x, y) = model.inputs(t);
        adam.step(model.loss_of(t, x, y).grad(&params).clip_by_global_norm(0.5));
    });
    let step = step.expect("the plan compiles");
    let rates = (0..STEPS)
        .flat_map(|k| machine.run(&step, &model.batch(k)).each("adamw/lr").map(|v| v.item(0)).collect::<Vec<_>>());
    let rates = rates.collect();
    (rates, machine.states())
}

#[test]
fn a_rate_of_ones_own_is_fused_into_the_step() {
    let schedule = Schedule::WarmupCosine { base: 0.05, steps: 4, total: 10, init: 0.01, end: 0.002 };
    let (rates, states) = trained(|store| Machine::poisoned(2, store), by_hand());
    let want: Vec<f64> = (0..STEPS as u32).map(|t| schedule.at(t)).collect();
    compare("rates", &rates, &want, Tolerance(1e-6)).unwrap();
    let (_, built_in) = trained(|store| Machine::poisoned(2, store), schedule.into());
    assert!(states.iter().zip(&built_in).all(|(a, b)| same_bits(a, b)), "the CPU");
    let Some(gpu) = gpu() else { return };
    let (on_gpu, of_gpu) = trained(|store| Machine::on_gpu(gpu, store), by_hand());
    compare("rates on the GPU", &on_gpu, &want, Tolerance(1e-5)).unwrap();
    for (have, want) in of_gpu.iter().zip(&states) {
        compare("states on the GPU", &have.to_f64(), &want.to_f64(), Tolerance(1e-4)).unwrap();
    }
    let (_, built_in) = trained(|store| Machine::on_gpu(gpu, store), schedule.into());
    for (have, want) in of_gpu.iter().zip(&built_in) {
        compare("the built-in schedule", &have.to_f64(), &want.to_f64(), Tolerance(1e-5)).unwrap();
    }
}
