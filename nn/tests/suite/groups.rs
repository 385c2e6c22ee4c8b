//! Groups of parameters, rates held in a state, and averages of parameters, against loops in f64.

use crate::{assert_padding_is_zero, open, state};
use approx::{abs_diff_eq, relative_eq};
use wgrad::{Array, Optimizer, Param, ParamSet, Store, Tape, Tensor};
use wgrad_nn::{
    Schedule,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Ema, EmaConfig, Group, Lion, LionConfig, Muon,
        MuonConfig, MuonOthers, RmsProp, RmsPropConfig, Sgd, SgdConfig,
    },
};

/// The gradient of parameter `i` at step `t`.
fn gradient(i: usize, t: usize) -> f64 {
    ((i * 7 + t * 3 + 1) as f64).sin() + 0.1
}

/// The number of kinds of optimizers.
const KINDS: usize = 8;

/// One element's way under a rule with constant betas 0.9 and 0.99, eps 1e-3 and momentum 0.9.
fn path(kind: usize, (i, mut p): (usize, f64), decay: f64, lr: impl Fn(usize) -> f64, steps: usize) -> f64 {
    let (mut m, mut v, mut largest) = (0.0, 0.0, 0.0f64);
    let decoupled = [2, 6, 7].contains(&kind);
    for t in 0..steps {
        let (g, lr) = (gradient(i, t), lr(t));
        let g = if decoupled { g } else { g + decay * p };
        p *= if decoupled { 1.0 - lr * decay } else { 1.0 };
        match kind {
            0 => {
                m = 0.9 * m + g;
                p -= lr * m;
            }
            3 => {
                v = 0.99 * v + 0.01 * g * g;
                p -= lr * g / (v.sqrt() + 1e-3);
            }
            5 => {
                v += g * g;
                p -= lr * g / (v.sqrt() + 1e-3);
            }
            6 => {
                p -= lr * (0.9 * m + 0.1 * g).signum();
                m = 0.99 * m + 0.01 * g;
            }
            _ => {
                m = 0.9 * m + 0.1 * g;
                v = 0.99 * v + 0.01 * g * g;
                largest = largest.max(v);
                let corrections = [0.9f64, 0.99].map(|b| 1.0 - b.powi(t as i32 + 1));
                let divisor = if kind == 4 { largest } else { v };
                p -= lr * (m / corrections[0]) / ((divisor / corrections[1]).sqrt() + 1e-3);
            }
        }
    }
    p
}

fn optimizer(kind: usize, store: &mut Store, params: &ParamSet, groups: Vec<Group>) -> Box<dyn Optimizer> {
    let lr = Schedule::warmup(0.1, 5).into();
    let (betas, eps, weight_decay) = ((0.9, 0.99), 1e-3, 0.2);
    match kind {
        0 => {
            let base = SgdConfig { momentum: 0.9, ..SgdConfig::default() };
            Box::new(Sgd::new(store, params, SgdConfig { lr, weight_decay, groups, ..base }))
        }
        1 | 4 => {
            let base = AdamConfig { amsgrad: kind == 4, ..AdamConfig::default() };
            Box::new(Adam::new(store, params, AdamConfig { lr, betas, eps, weight_decay, groups, ..base }))
        }
        2 => {
            let base = AdamWConfig::default();
            Box::new(AdamW::new(store, params, AdamWConfig { lr, betas, eps, weight_decay, groups, ..base }))
        }
        3 => {
            let base = RmsPropConfig::default();
            Box::new(RmsProp::new(store, params, RmsPropConfig { lr, eps, weight_decay, groups, ..base }))
        }
        5 => {
            let base = AdagradConfig::default();
            Box::new(Adagrad::new(store, params, AdagradConfig { lr, eps, weight_decay, groups, ..base }))
        }
        6 => {
            let base = LionConfig::default();
            Box::new(Lion::new(store, params, LionConfig { lr, betas, weight_decay, groups, ..base }))
        }
        _ => {
            // Vectors are stepped by AdamW, with rates and decays of its own.
            let others = MuonOthers { lr, betas, eps, weight_decay };
            let base = MuonConfig { lr: 7.0.into(), weight_decay: 0.9, ..MuonConfig::default() };
            Box::new(Muon::new(store, params, MuonConfig { others, groups, ..base }))
        }
    }
}

/// `sum p_i g_i` with the gradients as inputs `g0`, `g1`, ..
fn loss<'t>(t: &'t Tape, params: &[Param]) -> Tensor<'t> {
    let term = |(i, p): (usize, &Param)| (t.param(*p) * t.input_like(&format!("g{i}"), &number(0.0))).sum();
    params.iter().enumerate().map(term).reduce(|a, b| a + b).expect("there are parameters")
}

fn number(value: f64) -> Array {
    Array::new([1], vec![value])
}

#[test]
fn each_group_has_its_own_rate_and_decay() {
    for kind in 0..KINDS {
        let mut store = Store::new();
        let starts = [1.0, -0.5, 2.0, 0.7];
        let params = [0, 1, 2, 3].map(|i| store.param(&format!("p{i}"), &number(starts[i])));
        let rate = store.state("rate", &Array::new([], vec![0.0]));
        let only = |i: usize| [params[i]].into_iter().collect::<ParamSet>();
        let groups = vec![
            Group::without_decay(only(1)),
            Group { params: only(2), lr: Some(0.01.into()), weight_decay: None },
            Group { params: only(3), lr: Some(rate.into()), weight_decay: Some(0.5) },
        ];
        let all = store.params();
        let optimizer = optimizer(kind, &mut store, &all, groups);
        let mut session = open(store);
        let step = session.record(|t| optimizer.step(loss(t, &params).grad(&all))).expect("compiles");
        let warmup = |t: usize| 0.1 * ((t + 1) as f64 / 5.0).min(1.0);
        let written = |t: usize| 0.02 + 0.01 * t as f64;
        for t in 0..8 {
            session.write(rate, &Array::new([], vec![written(t)])).expect("writable");
            let inputs = [0, 1, 2, 3].map(|i| (format!("g{i}"), number(gradient(i, t))));
            session.run(&step, &inputs.each_ref().map(|(name, g)| (name.as_str(), g))).expect("runs");
        }
        let want = [
            path(kind, (0, starts[0]), 0.2, warmup, 8),
            path(kind, (1, starts[1]), 0.0, warmup, 8),
            path(kind, (2, starts[2]), 0.2, |_| 0.01, 8),
            path(kind, (3, starts[3]), 0.5, written, 8),
        ];
        for (i, want) in want.into_iter().enumerate() {
            let have = session.read_param(params[i]).expect("readable").item(0);
            assert!(
                abs_diff_eq!(have, want, epsilon = 1e-12),
                "{}, parameter {i}: {have} for {want}",
                optimizer.name()
            );
        }
        assert_padding_is_zero(&mut session);
    }
}

#[test]
fn the_gradient_reaches_a_rate_that_is_a_state() {
    for kind in 0..KINDS {
        // (p after two updates)^2 by the learning rate.
        let run = |rate: f64| {
            let mut store = Store::new();
            let p = store.param("p", &number(1.5));
            let lr = store.state("rate", &Array::new([], vec![rate]));
            let params = store.params();
            let group = Group { params: params.clone(), lr: Some(lr.into()), weight_decay: None };
            let optimizer = optimizer(kind, &mut store, &params, vec![group]);
            let mut session = open(store);
            let step = session.record(|t| {
                let mut values = t.arenas(&params);
                let loss = || t.param(p).sin().sum();
                let mut states = optimizer.current(t, &values);
                for _ in 0..2 {
                    let grads = t.with_params(&values, || loss().grad(&params));
                    (values, states) = optimizer.update(&values, &grads, &states);
                }
                let after = t.with_params(&values, || t.param(p).square().sum());
                t.tap("loss", after);
                t.tap("slope", after.grad_wrt(&[t.state(lr)])[0].expect("reached"));
            });
            session.run(&step.expect("compiles"), &[]).expect("runs");
            let taps = session.taps().expect("ran").pop().expect("one run");
            (taps.scalar("loss").expect("tapped"), taps.scalar("slope").expect("tapped"))
        };
        let h = 1e-6;
        let (slope, difference) = (run(0.03).1, (run(0.03 + h).0 - run(0.03 - h).0) / (2.0 * h));
        assert!(
            relative_eq!(slope, difference, epsilon = 1e-7, max_relative = 1e-7),
            "{kind}: {slope} for {difference}"
        );
    }
}

/// A group of Muon's may hold matrices and others: a setting that is missing is that of each kind.
#[test]
fn a_group_of_muon_parts_into_matrices_and_others() {
    let mut store = Store::new();
    let names = ["plain/w", "plain/b", "rate/w", "rate/b", "decay/w", "decay/b"];
    let params = names.map(|name| {
        let shape: &[usize] = if name.ends_with('w') { &[1, 1] } else { &[1] };
        store.param(name, &Array::new(shape, vec![1.0]))
    });
    let of = |prefix: &str| store.params_where(|path| path.starts_with(prefix));
    let groups = vec![
        Group { params: of("rate/"), lr: Some(0.01.into()), weight_decay: None },
        Group { params: of("decay/"), lr: None, weight_decay: Some(0.5) },
    ];
    let others = MuonOthers { lr: 0.1.into(), betas: (0.0, 0.0), eps: 1e-12, weight_decay: 0.2 };
    let config = MuonConfig { lr: 0.3.into(), weight_decay: 0.4, others, groups, ..MuonConfig::default() };
    let all = store.params();
    let muon = Muon::new(&mut store, &all, config);
    let mut session = open(store);
    let record =
        |t: &Tape| muon.step(params.iter().map(|p| t.param(*p).sum()).reduce(|a, b| a + b).expect("some").grad(&all));
    let step = session.record(record).expect("compiles");
    session.run(&step, &[]).expect("runs");
    // Five Newton-Schulz steps from 1; both kinds step by their rate.
    let x = (0..5).fold(1.0, |x: f64, _| 3.4445 * x - 4.7750 * x.powi(3) + 2.0315 * x.powi(5));
    let want = |lr: f64, decay: f64, step: f64| 1.0 - lr * decay - lr * step;
    let wants = [
        want(0.3, 0.4, x),
        want(0.1, 0.2, 1.0),
        want(0.01, 0.4, x),
        want(0.01, 0.2, 1.0),
        want(0.3, 0.5, x),
        want(0.1, 0.5, 1.0),
    ];
    for ((name, param), want) in names.iter().zip(params).zip(wants) {
        let have = session.read_param(param).expect("readable").item(0);
        assert!(abs_diff_eq!(have, want, epsilon = 1e-10), "{name}: {have} for {want}");
    }
    assert_padding_is_zero(&mut session);
}

#[test]
fn an_average_follows_the_updates_and_not_the_skipped_ones() {
    let mut store = Store::new();
    let p = store.param("p", &number(1.0));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let ema = Ema::new(&mut store, &params, EmaConfig { decay: 0.75, ..EmaConfig::default() });
    let mut session = open(store);
    let step = session.record(|t| {
        sgd.step(loss(t, &[p]).grad(&params).check_finite());
        ema.update(t, &sgd);
        t.tap("average", t.with_params(&ema.averages(t), || t.param(p).sum()));
    });
    let step = step.expect("compiles");
    let (mut value, mut average) = (1.0, 0.0);
    for (i, g) in [f64::NAN, 1.0, 2.0, f64::INFINITY, f64::NAN, -3.0].into_iter().enumerate() {
        session.run(&step, &[("g0", &number(g))]).expect("runs");
        if g.is_finite() {
            value -= 0.1 * g;
            average = if i == 1 { value } else { 0.75 * average + 0.25 * value };
        }
        let have = session.taps().expect("ran").pop().expect("one run").scalar("average").expect("tapped");
        assert!(abs_diff_eq!(have, average, epsilon = 1e-15), "step {i}: {have} for {average}");
    }
    assert_eq!(state(&mut session, "ema/seen").item(0), 3.0);
    assert_padding_is_zero(&mut session);
}

fn build(groups: impl FnOnce(&[Param]) -> Vec<Group>) {
    let mut store = Store::new();
    let params = [0, 1, 2].map(|i| store.param(&format!("p{i}"), &number(0.0)));
    let groups = groups(&params);
    let stepped = store.params_where(|path| path != "p2");
    Sgd::new(&mut store, &stepped, SgdConfig { groups, ..SgdConfig::default() });
}

#[test]
#[should_panic(expected = "is in two groups")]
fn groups_do_not_overlap() {
    build(|p| {
        vec![
            Group::without_decay([p[0], p[1]].into_iter().collect()),
            Group::without_decay([p[1]].into_iter().collect()),
        ]
    });
}

#[test]
#[should_panic(expected = "sgd: group 0 has a parameter that it does not step")]
fn groups_are_of_stepped_parameters() {
    build(|p| vec![Group::without_decay([p[2]].into_iter().collect())]);
}

#[test]
#[should_panic(expected = "sgd: weight_decay is -1, and must be finite and not negative")]
fn a_groups_decay_is_not_negative() {
    build(|p| vec![Group { params: [p[0]].into_iter().collect(), lr: None, weight_decay: Some(-1.0) }]);
}

#[test]
#[should_panic(expected = "ema: decay is 1, and must be in [0, 1)")]
fn an_average_moves() {
    let mut store = Store::new();
    store.param("p", &number(0.0));
    let params = store.params();
    Ema::new(&mut store, &params, EmaConfig { decay: 1.0, ..EmaConfig::default() });
}
