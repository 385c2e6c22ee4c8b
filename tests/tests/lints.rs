//! Lints of recorded programs: which forms of a mistake they find, that they name the line, and that they leave sound
//! programs alone. `tests/red_flags` has an example of each.

use approx::abs_diff_eq;
use std::sync::Arc;
use wgrad::{
    Accumulator, Array, Attention, Cell, ClipGroups, DType, LossScaler, Optimizer, ParamSet, Pitfall, Scaled, Severity,
    Store, Tape, Tensor, Weighting,
};
use wgrad_nn::{
    Builder, Embedding, Init, Linear, LossScale, Recurrent, RecurrentInit, Schedule, Trainer, TrainerConfig, omega,
    optim::{Adam, AdamConfig, Group, RmsProp, RmsPropConfig, Sgd, SgdConfig},
};
use wgrad_tests::{Mlp, catalogue::catalogue};

/// The pitfalls of a program over a store, in order, and the lints as text.
fn lints(store: Store, record: impl FnOnce(&Tape)) -> (Vec<Pitfall>, Vec<String>) {
    let t = Tape::new(Arc::new(store.layout().clone()));
    record(&t);
    let program = t.finish();
    let found = program.lints();
    assert!(found.iter().all(|lint| lint.severity < Severity::Error), "{found:?}");
    let here = |lint: &wgrad::Lint| lint.site.is_some_and(|site| site.file().ends_with("lints.rs"));
    assert!(found.iter().all(here), "each names a line of this file: {found:?}");
    (found.iter().map(|lint| lint.pitfall).collect(), found.iter().map(ToString::to_string).collect())
}

fn found(store: Store, record: impl FnOnce(&Tape)) -> Vec<Pitfall> {
    lints(store, record).0
}

/// A perceptron, its parameters, and an optimizer of each name.
fn model(names: &[&str]) -> (Store, Mlp, ParamSet, Vec<Sgd>) {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let config = |name: &&str| SgdConfig { name: name.to_string(), ..SgdConfig::default() };
    let optimizers = names.iter().map(|name| Sgd::new(&mut store, &params, config(name))).collect();
    (store, model, params, optimizers)
}

#[test]
fn a_lint_is_one_sentence_with_its_line() {
    let (store, model, params, sgd) = model(&["sgd"]);
    let (_, text) = lints(store, |t| sgd[0].step(model.loss(t).grad(&params).check_finite().clip_by_value(1.0)));
    let (start, end) = text[0].split_once(" (tests/").expect("a place");
    assert_eq!(
        start,
        "P20 (lint): gradients are clipped by value alone, which turns them; clip by norm, which keeps the direction"
    );
    assert!(end.starts_with("tests/lints.rs:") && end.ends_with(')') && text.len() == 1, "{text:?}");
}

#[test]
fn no_operation_is_told_by_itself() {
    for row in catalogue() {
        let mut store = Store::new();
        let leaves = row.check.numbers();
        let of = |(i, x): (usize, &Array)| store.param(&format!("x{i}"), &x.clone().cast(DType::F64));
        let params: Vec<_> = leaves.iter().enumerate().map(of).collect();
        let all = store.params();
        let sgd = Sgd::new(&mut store, &all, SgdConfig::default());
        let t = Tape::new(Arc::new(store.layout().clone()));
        let indices = row.check.indices.iter().enumerate().map(|(i, x)| t.input_like(&format!("i{i}"), x));
        let x: Vec<Tensor<'_>> = params.iter().map(|param| t.param(*param)).chain(indices).collect();
        let loss = (row.f)(&x);
        if loss.dtype() != DType::F64 {
            continue;
        }
        let grads = loss.sum().grad(&all);
        if grads.present().is_empty() {
            continue;
        }
        sgd.step(grads.clip_by_global_norm(1.0));
        // What an operation gives no gradient to is no fault of the program here.
        let found: Vec<_> =
            t.finish().lints().iter().filter(|lint| lint.pitfall != Pitfall::MissingGradient).cloned().collect();
        assert_eq!(found, [], "{}", row.name);
    }
}

#[test]
fn models_and_pipelines_in_order_have_no_lints() {
    for cell in [Cell::Tanh, Cell::Sigmoid, Cell::Irnn, Cell::Lstm, Cell::Gru] {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let table = Embedding::new(b.at("table"), 9, 3, &Init::Normal(1.0));
        let rnn = Recurrent::new(b.at("rnn"), cell, 3, 4, &RecurrentInit::of(cell));
        let head = Linear::new(b.at("head"), 4, 2, &Init::Normal(0.1));
        let params = store.params();
        let lr = Schedule::warmup(1e-3, 10).into();
        let adam = Adam::new(&mut store, &params, AdamConfig { lr, ..AdamConfig::default() });
        let scaler = LossScaler::fixed(1024.0);
        let window: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
        let gated = matches!(cell, Cell::Lstm | Cell::Gru);
        let none = found(store, |t| {
            let (x, y) = (t.input("x", [6, 5], DType::U32), t.input("y", [5], DType::U32));
            let loss = |unrolled: bool| {
                let words = table.forward(x);
                let outputs = if unrolled { rnn.unrolled(words) } else { rnn.forward(words) };
                let loss = head.forward(outputs.last).cross_entropy(y);
                if unrolled && !gated { loss + omega(loss, &rnn, &outputs) } else { loss }
            };
            for unrolled in [false, true] {
                window.add(scaler.scale(loss(unrolled)).grad(&params));
            }
            let grads = window.take(t).unscale(&scaler);
            grads.probe("grad");
            adam.step(
                grads
                    .centralize_with(&wgrad::Centralize::new().exclude(&[table.weight].into_iter().collect()))
                    .clip_by_global_norm(1.0),
            );
        });
        assert_eq!(none, [], "{cell:?}");
    }
}

#[test]
fn loops_and_attention_are_clipped_whatever_they_are_written_in() {
    let mut store = Store::new();
    let rnn = Recurrent::new(Builder::new(&mut store, 0).at("rnn"), Cell::Gru, 3, 4, &RecurrentInit::default());
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let unrolled = found(store, |t| {
        let last = rnn.unrolled(t.input("x", [6, 5, 3], DType::F32)).last;
        sgd.step(last.square().mean().grad(&params).check_finite());
    });
    assert_eq!(unrolled, [Pitfall::NoClip]);
    let attention = |clipped: bool| {
        let mut store = Store::new();
        let w = store.param("w", &Array::new([2, 3, 4], vec![0.5f32; 24]));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        found(store, |t| {
            let w = t.param(w);
            let grads = w.attention(w, w, &Attention::default()).square().mean().grad(&params);
            sgd.step(if clipped { grads.clip_by_global_norm(1.0) } else { grads.check_finite() });
        })
    };
    assert_eq!(attention(false), [Pitfall::NoClip]);
    assert_eq!(attention(true), []);
}

#[test]
fn what_is_shown_of_unfinished_gradients_is_told() {
    let scaler = LossScaler::fixed(8.0);
    let (store, model, params, sgd) = self::model(&["sgd"]);
    let (_, text) = lints(store, |t| {
        t.on_param_grad(model.params[0], |g| {
            g.tape().tap("seen", g.norm());
            g
        });
        let scaled = scaler.scale(model.loss(t)).grad(&params);
        scaled.probe("scaled");
        t.tap("largest", scaled.p_norm(f64::INFINITY));
        let grads = scaled.unscale(&scaler);
        t.tap("norm", grads.norm());
        sgd[0].step(grads);
    });
    let told: Vec<bool> = ["\"seen\"", "probe \"scaled\" is of gradients that still carry", "\"largest\""]
        .map(|word| text.iter().any(|t| t.contains(word)))
        .into();
    assert!(told == [true; 3] && text.len() == 3, "{text:#?}");

    let (mut store, model, params, sgd) = self::model(&["sgd"]);
    let window: Accumulator = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
    let (_, text) = lints(store, |t| {
        let grads = model.loss(t).grad(&params);
        t.tap("part", grads.norm());
        window.add(grads);
        let whole = window.take(t);
        t.tap("whole", whole.norm());
        sgd[0].step(whole.clip_by_global_norm(1.0));
    });
    assert!(text.len() == 1 && text[0].contains("\"part\" is of gradients that are of one micro-batch"), "{text:?}");

    let (store, model, params, sgd) = self::model(&["sgd"]);
    let (_, text) = lints(store, |t| {
        let [here, there] = [1.0, 2.0].map(|scale| (model.loss(t) * scale).grad(&params));
        t.tap("local", here.segment_norms());
        let whole = here.all_reduce_on_tape(&[there]);
        t.tap("whole", whole.segment_norms());
        let clipped = whole.clip_by_global_norm(1.0);
        t.tap("applied", clipped.norm());
        clipped.probe("clipped");
        sgd[0].step(clipped);
    });
    let told = text.iter().any(|t| t.contains("\"local\" is of gradients that are of one replica"));
    assert!(
        told && text.len() == 2
            && text.iter().any(|t| t.contains("probe \"clipped\" is of gradients that have been clipped")),
        "{text:#?}"
    );
}

#[test]
fn a_step_without_the_clip_that_others_have_is_told() {
    let (store, model, params, sgd) = self::model(&["a", "b"]);
    let (_, text) = lints(store, |t| {
        sgd[0].step(model.loss(t).grad(&params).clip_by_global_norm(1.0));
        sgd[1].step(model.loss(t).grad(&params).check_finite());
    });
    assert!(
        text.len() == 1 && text[0].starts_with("P42 (lint): first/weight, first/bias, second/weight is"),
        "{text:?}"
    );
    let (store, model, params, sgd) = self::model(&["a"]);
    let all = ClipGroups::per_parameter(&params, 1.0);
    assert_eq!(found(store, |t| sgd[0].step(model.loss(t).grad(&params).clip_by_group_norm(&all))), []);
}

#[test]
fn optimizers_know_their_own_pitfalls() {
    let late = || Schedule::WarmupLinear { base: 0.1, steps: 10, total: 20, init: 0.0, end: 0.0 };
    for (lr, decay, expected) in [
        (0.1.into(), 0.0, vec![]),
        (late().into(), 0.0, vec![Pitfall::WarmupFromZero]),
        (0.1.into(), 0.1, vec![Pitfall::AdamWithL2]),
        (late().into(), 0.1, vec![Pitfall::AdamWithL2, Pitfall::WarmupFromZero]),
    ] {
        let (mut store, model, params, _) = self::model(&[]);
        let groups = vec![Group { params: params.clone(), lr: None, weight_decay: Some(decay) }];
        let adam = Adam::new(&mut store, &params, AdamConfig { lr, groups, ..AdamConfig::default() });
        assert_eq!(found(store, |t| adam.step(model.loss(t).grad(&params).check_finite())), expected);
    }
    // L2 is what it says, in the others.
    let (mut store, model, params, _) = self::model(&[]);
    let config = RmsPropConfig { weight_decay: 0.1, ..RmsPropConfig::default() };
    let rmsprop = RmsProp::new(&mut store, &params, config);
    assert_eq!(found(store, |t| rmsprop.step(model.loss(t).grad(&params).check_finite())), []);
}

#[test]
fn a_probe_shows_norms_and_ratios() {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2], vec![3.0f32, 4.0]));
    let zero = store.param("zero", &Array::new([2], vec![0.0f32; 2]));
    let params = store.params();
    let mut machine = wgrad_tests::Machine::poisoned(1, store);
    let step = machine.session.record(|t| {
        let loss = t.param(a).sum() * 2.0 + t.param(zero).sum();
        loss.grad(&params).probe("g");
    });
    let out = machine.run(&step.expect("compiles"), &[]);
    let close = |name: &str, want: &[f64]| {
        let have = out.tap(name).to_f64();
        assert!(abs_diff_eq!(have[..], *want, epsilon = 1e-6), "{name}: {have:?}");
    };
    close("g/norm", &[10f64.sqrt()]);
    close("g/norms", &[8f64.sqrt(), 2f64.sqrt()]);
    close("g/ratios", &[8f64.sqrt() / 5.0, 0.0]);
}

#[test]
fn a_trainer_tells_what_it_has_recorded() {
    for (accumulate, clip_norm, expected) in [
        (1, Some(1.0), vec![]),
        (4, Some(1.0), vec![]),
        (1, None, vec![Pitfall::NoClip]),
        (2, None, vec![Pitfall::NoClip]),
    ] {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let rnn = Recurrent::new(b.at("rnn"), Cell::Lstm, 3, 4, &RecurrentInit::default());
        let head = Linear::new(b.at("head"), 4, 2, &Init::Normal(0.1));
        let params = store.params();
        let adam = Adam::new(&mut store, &params, AdamConfig::default());
        let everything = TrainerConfig {
            accumulate,
            clip_norm,
            noise: Some(wgrad::Noise::fixed(1e-3)),
            centralize: true,
            ema: Some(0.9),
            loss_scale: LossScale::Fixed(1024.0),
            ..TrainerConfig::default()
        };
        let mut trainer = Trainer::new(&mut store, &params, adam, everything, move |batch| {
            head.forward(rnn.forward(batch.get("x")).last).cross_entropy(batch.get("y")).into()
        });
        let mut session = wgrad_tests::Machine::new(1, store).session;
        let (x, y) = (Array::zeros([6, 5, 3], DType::F32), Array::zeros([5], DType::U32));
        for _ in 0..accumulate {
            trainer.step(&mut session, &[("x", &x), ("y", &y)]).expect("runs");
        }
        let found: Vec<Pitfall> = trainer.lints().iter().map(|lint| lint.pitfall).collect();
        assert_eq!(found, expected, "{accumulate} {clip_norm:?}: {:?}", trainer.lints());
    }
}
