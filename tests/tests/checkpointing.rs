//! Checkpoints change no bit of a gradient, whatever lies within, and nothing beyond rounding of the gradient's gradient;
//! what lies within happens once; and memory falls.

use proptest::prelude::*;
use std::{cell::Cell as Count, rc::Rc};
use wgrad::{
    Array, Cell, DType, Optimizer, Param, ParamSet, Program, Rng, Session, Store, Tape, Tensor,
    plan::{Home, Plan},
    testing::{Kind, Mode, Recipe, recipe},
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Dropout, Init, Linear, Recurrent, RecurrentInit,
    optim::{Sgd, SgdConfig},
};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, proptest_config as config, reference, same_bits};

const F32: DType = DType::F32;

/// Loss, first and second derivatives of a recipe, all of it in a checkpoint or none.
fn derivatives(recipe: &Recipe, checkpoint: bool) -> Program {
    let t = Tape::default();
    let record = || recipe.record(&t, Mode::Plain);
    let recorded = if checkpoint { t.checkpoint(record) } else { record() };
    t.tap("loss", recorded.loss);
    let first = recorded.loss.grad_wrt(&recorded.leaves);
    first.iter().flatten().for_each(|g| t.tap_each("first", *g));
    if let Some(slope) = first.iter().flatten().map(|g| (*g * 0.3).sin().sum()).reduce(|a, b| a + b) {
        slope.grad_wrt(&recorded.leaves).iter().flatten().for_each(|g| t.tap_each("second", *g));
    }
    t.finish()
}

proptest! {
    #![proptest_config(config(384))]

    /// Recipes hold checkpoints of their own: these nest.
    #[test]
    fn checkpoints_of_random_tapes_change_no_bit(recipe in recipe(12), single in any::<bool>()) {
        let recipe = if single { recipe.with_dtype(F32) } else { recipe };
        let [plain, within] = [false, true].map(|checkpoint| derivatives(&recipe, checkpoint));
        let inputs = recipe.arrays(&plain);
        let [want, have] = [&plain, &within].map(|program| reference(program, &[], &inputs).taps);
        let arrays = |taps: Vec<(String, wgrad::Shape, Vec<f64>)>| -> Vec<(String, Array)> {
            taps.into_iter().map(|(name, shape, values)| (name, Array::new(shape, values))).collect()
        };
        agree(&arrays(want), &arrays(have), Tolerance::F64).map_err(TestCaseError::fail)?;
        // A device rounds to f16 between kernels, and devices cut kernels differently.
        if recipe.steps.iter().all(|step| step.kind != Kind::CastHalf) {
            let run = |program: Program| {
                let mut cpu = Machine::poisoned(1, Store::new());
                let step = cpu.session.compile(program).expect("the plan compiles");
                cpu.run(&step, &inputs).taps
            };
            agree(&run(plain), &run(within), Tolerance::of(recipe.dtype)).map_err(TestCaseError::fail)?;
        }
    }
}

/// Loss and gradients to the bit, second derivatives to rounding: what a sweep adds up in which order depends on which
/// values of forward and backward are one node.
fn agree(want: &[(String, Array)], have: &[(String, Array)], tolerance: Tolerance) -> Result<(), String> {
    if want.len() != have.len() {
        return Err(format!("{} values instead of {}", have.len(), want.len()));
    }
    for ((name, want), (_, have)) in want.iter().zip(have) {
        if name.starts_with("second") {
            compare(name, &have.to_f64(), &want.to_f64(), tolerance)?;
        } else if !same_bits(want, have) {
            return Err(format!("{name}: {have:?} instead of {want:?}"));
        }
    }
    Ok(())
}

/// Whether a stretch is recorded in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Plain,
    Within,
    Nested,
}

fn within<R>(t: &Tape, place: Where, f: impl FnOnce() -> R) -> R {
    match place {
        Where::Plain => f(),
        Where::Within => t.checkpoint(f),
        Where::Nested => t.checkpoint(|| {
            let _ = t.scalar(0.25, F32) + 1.0;
            t.checkpoint(f)
        }),
    }
}

/// Some layers with all that has a state, a random number or a hook.
struct Net {
    layers: Vec<Linear>,
    dropout: Dropout,
    rng: Rng,
    gain: Param,
    statistics: [wgrad::StateId; 2],
    sgd: Sgd,
    params: ParamSet,
}

impl Net {
    fn block<'t>(&self, x: Tensor<'t>, layer: &Linear, half: bool, calls: &Rc<Count<usize>>) -> Tensor<'t> {
        let h = x.tape().autocast(if half { DType::F16 } else { F32 }, || layer.forward(x)).tanh();
        let counted = calls.clone();
        let h = h.on_grad(move |g| {
            counted.set(counted.get() + 1);
            g * 1.5
        });
        self.dropout.forward(h, true)
    }
}

fn net(store: &mut Store, width: usize, depth: usize) -> Net {
    let mut b = Builder::new(store, 7);
    let layers = (0..depth).map(|i| Linear::new(b.at(&format!("{i}")), width, width, &Init::Normal(0.5))).collect();
    let gain = b.at("norm").param("gain", [width], &Init::Ones);
    let rng = Rng::new(store, "dropout", 3);
    let statistics = ["mean", "var"].map(|name| store.state(name, &Array::zeros([width], F32)));
    let params = store.params();
    let sgd = Sgd::new(store, &params, SgdConfig { lr: 0.1.into(), momentum: 0.9, ..SgdConfig::default() });
    Net { layers, dropout: Dropout::new(0.3, rng), rng, gain, statistics, sgd, params }
}

/// Trains for some steps: what is tapped and what the states are after each.
fn train(place: Where, half: bool, calls: &Rc<Count<usize>>) -> Vec<Outputs> {
    let mut store = Store::new();
    let net = net(&mut store, 6, 3);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let x = t.input("x", [8, 6], F32);
        let mut running = None;
        let out = within(t, place, || {
            let h = net.layers[..2].iter().fold(x, |h, layer| net.block(h, layer, half, calls));
            let normed = h.batch_norm(Some(t.param(net.gain)), None, 1e-5);
            let [mean, var] = net.statistics.map(|state| t.state(state));
            running = Some(normed.running(mean, var, 0.5));
            let (mean, var) = running.expect("just made");
            t.assign(net.statistics[0], mean);
            t.assign(net.statistics[1], var);
            normed.y
        });
        let out = net.block(out, &net.layers[2], half, calls);
        let grads = out.square().mean().grad(&net.params).check_finite();
        t.tap("gradient", grads.flat().tensors()[0]);
        t.tap("mean", running.expect("recorded").0);
        let first = grads.flat().tensors()[0];
        let second = (first * first).sum().grad_wrt(&[x])[0].expect("reached");
        t.tap_each("second", second);
        net.sgd.step(grads);
        net.rng.advance(t);
    });
    let step = step.expect("the plan compiles");
    let x =
        |k: usize| Array::new([8, 6], (0..48).map(|i| ((i * 7 + k * 13) % 19) as f32 / 9.0 - 1.0).collect::<Vec<_>>());
    (0..3).map(|k| cpu.run(&step, &[("x".into(), x(k))])).collect()
}

#[test]
fn dropout_statistics_hooks_and_autocast_are_as_without_a_checkpoint() {
    for half in [false, true] {
        let calls = Rc::new(Count::new(0));
        let plain = train(Where::Plain, half, &calls);
        let each = calls.replace(0);
        assert_eq!(each, 6, "three hooks, in a sweep and in the sweep of its gradient");
        for place in [Where::Within, Where::Nested] {
            let checkpointed = train(place, half, &calls);
            assert_eq!(calls.replace(0), each, "{place:?}: hooks within run once per sweep");
            for (k, (plain, checkpointed)) in plain.iter().zip(&checkpointed).enumerate() {
                let tolerance = Tolerance(if half { 1e-2 } else { 1e-5 });
                let agree = agree(&plain.taps, &checkpointed.taps, tolerance);
                agree.unwrap_or_else(|why| panic!("{place:?}, half {half}, step {k}: {why}"));
                let states = plain.states.iter().zip(&checkpointed.states);
                assert!(states.into_iter().all(|(a, b)| same_bits(a, b)), "{place:?}, half {half}, step {k}");
            }
        }
        assert_ne!(plain[0].tap("mean"), plain[1].tap("mean"), "the statistics run");
    }
}

/// The running mean follows its formula once a step, checkpoint or not.
#[test]
fn statistics_within_a_checkpoint_are_updated_once() {
    for place in [Where::Plain, Where::Within, Where::Nested] {
        let mut store = Store::new();
        let w = store.param("w", &Array::new([2], vec![1.0f64, -2.0]));
        let statistics = ["mean", "var"].map(|name| store.state(name, &Array::zeros([2], DType::F64)));
        let params = store.params();
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let x = t.input("x", [2, 2], DType::F64);
            let y = within(t, place, || {
                let normed = (x * 2.0).batch_norm(Some(t.param(w)), None, 0.0);
                let (mean, var) = normed.running(t.state(statistics[0]), t.state(statistics[1]), 0.5);
                t.assign(statistics[0], mean);
                t.assign(statistics[1], var);
                normed.y
            });
            t.tap("g", y.square().sum().grad(&params).get(w).expect("present"));
        });
        let step = step.expect("the plan compiles");
        let inputs = [("x".to_string(), Array::new([2, 2], vec![0.0, 1.0, 2.0, 5.0]))];
        for want in [[1.0, 3.0], [1.5, 4.5], [1.75, 5.25]] {
            let out = cpu.run(&step, &inputs);
            let mean = cpu.session.read(statistics[0]).expect("readable").to_f64();
            assert_eq!(mean, want, "{place:?}");
            assert!(out.tap("g").to_f64().iter().all(|g| g.abs() > 1.0));
        }
    }
}

#[test]
fn a_recurrent_layer_in_a_checkpoint_keeps_its_bits() {
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let run = |place: Where| {
            let mut store = Store::new();
            let net = Recurrent::new(Builder::new(&mut store, 3).at("rnn"), cell, 4, 5, &RecurrentInit::of(cell));
            let params = store.params();
            let mut cpu = Machine::poisoned(1, store);
            let step = cpu.session.record(|t| {
                let x = t.input("x", [6, 3, 4], F32);
                let h = within(t, place, || net.forward(x * 0.5).stacked().sin());
                let first = h.square().sum().grad(&params).flat().tensors()[0];
                t.tap("first", first);
                t.tap_each("second", (first * first).sum().grad_wrt(&[x])[0].expect("reached"));
            });
            let x = Array::new([6, 3, 4], (0..72).map(|i| ((i * 5) % 13) as f32 / 6.0 - 1.0).collect::<Vec<_>>());
            cpu.run(&step.expect("the plan compiles"), &[("x".into(), x)])
        };
        let plain = run(Where::Plain);
        assert!(plain.tap("second").to_f64().iter().any(|g| g.abs() > 1e-3));
        for place in [Where::Within, Where::Nested] {
            let agree = agree(&plain.taps, &run(place).taps, Tolerance(1e-5));
            agree.unwrap_or_else(|why| panic!("{cell:?}, {place:?}: {why}"));
        }
    }
}

/// The bytes that a plan needs beside inputs and states.
fn transient(plan: &Plan) -> usize {
    let slots = plan.slots.iter().filter(|slot| slot.home == Home::Transient);
    slots.map(|slot| slot.len * slot.dtype.size()).sum()
}

/// The bytes that a step over a deep perceptron needs, with so many layers to a checkpoint.
fn deep(segment: Option<usize>) -> usize {
    const DEPTH: usize = 16;
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let layers: Vec<Linear> =
        (0..DEPTH).map(|i| Linear::new(b.at(&format!("{i}")), 16, 16, &Init::Normal(0.3))).collect();
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let session = Session::new(Box::new(CpuBackend::new(1).expect("the thread starts")), store).expect("it fits");
    let t = Tape::new(session.layout().clone());
    let x = t.input("x", [512, 16], F32);
    let run = |x, layers: &[Linear]| layers.iter().fold(x, |h, layer| layer.forward(h).tanh());
    let out = match segment {
        Some(segment) => layers.chunks(segment).fold(x, |h, layers| t.checkpoint(|| run(h, layers))),
        None => run(x, &layers),
    };
    sgd.step(out.square().mean().grad(&params));
    transient(&session.plan(&t.finish()).1)
}

#[test]
fn a_deep_network_needs_less_memory() {
    let (plain, root, pairs) = (deep(None), deep(Some(4)), deep(Some(2)));
    println!("{plain} bytes without, {root} with four layers to a checkpoint, {pairs} with two");
    // Sixteen activations are kept without; with four to a checkpoint three, and at most four that are recomputed.
    assert!(root * 10 < plain * 7 && pairs < plain, "{plain}, {root}, {pairs}");
}
