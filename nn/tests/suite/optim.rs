//! Optimizers against golden vectors, and what they must leave alone.

use crate::{assert_padding_is_zero, golden, golden::Case, open, param, snapshot, state};
use approx::{abs_diff_eq, assert_relative_eq, relative_eq};
use serde_json::{Value, json};
use std::collections::HashMap;
use wgrad::{Array, DType, Optimizer, ParamSet, Session, Step, Store, Tape, Tensor};
use wgrad_nn::{
    Builder, Init, Schedule,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Lion, LionConfig, Muon, MuonConfig, MuonOthers,
        MuonScale, RmsProp, RmsPropConfig, Sam, Sgd, SgdConfig,
    },
};

/// The optimizer of a vector.
fn optimizer(case: &Case, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer> {
    match case.op() {
        "SAM" => {
            let base = case.attr("base").as_str().expect("a name");
            of_attrs(base, case.attr("base_attrs"), store, params)
        }
        op => of_attrs(op, case.attrs(), store, params),
    }
}

fn of_attrs(op: &str, attrs: &Value, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer> {
    let number = |name: &str, default: f64| attrs[name].as_f64().unwrap_or(default);
    let flag = |name: &str, default: bool| attrs[name].as_bool().unwrap_or(default);
    let betas = |attrs: &Value, default: (f64, f64)| {
        let beta = |i: usize| attrs["betas"][i].as_f64().expect("a number");
        if attrs["betas"].is_null() { default } else { (beta(0), beta(1)) }
    };
    let lr = schedule(attrs).into();
    let weight_decay = |default| number("weight_decay", default);
    match op {
        "SGD" => {
            let (momentum, dampening) = (number("momentum", 0.0), number("dampening", 0.0));
            let (nesterov, weight_decay) = (flag("nesterov", false), weight_decay(0.0));
            let config = SgdConfig { lr, momentum, dampening, nesterov, weight_decay, ..Default::default() };
            Box::new(Sgd::new(store, params, config))
        }
        "Adam" => {
            let config = AdamConfig {
                lr,
                betas: betas(attrs, (0.9, 0.999)),
                eps: number("eps", 1e-8),
                weight_decay: weight_decay(0.0),
                amsgrad: flag("amsgrad", false),
                ..Default::default()
            };
            Box::new(Adam::new(store, params, config))
        }
        "AdamW" => {
            let config = AdamWConfig {
                lr,
                betas: betas(attrs, (0.9, 0.999)),
                eps: number("eps", 1e-8),
                weight_decay: weight_decay(0.01),
                amsgrad: flag("amsgrad", false),
                ..Default::default()
            };
            Box::new(AdamW::new(store, params, config))
        }
        "RMSprop" => {
            let config = RmsPropConfig {
                lr,
                alpha: number("alpha", 0.99),
                eps: number("eps", 1e-8),
                momentum: number("momentum", 0.0),
                centered: flag("centered", false),
                weight_decay: weight_decay(0.0),
                ..Default::default()
            };
            Box::new(RmsProp::new(store, params, config))
        }
        "Adagrad" => {
            let config = AdagradConfig {
                lr,
                lr_decay: number("lr_decay", 0.0),
                initial_accumulator: number("initial_accumulator_value", 0.0),
                eps: number("eps", 1e-10),
                weight_decay: weight_decay(0.0),
                ..Default::default()
            };
            Box::new(Adagrad::new(store, params, config))
        }
        "Lion" => {
            let (betas, weight_decay) = (betas(attrs, (0.9, 0.99)), weight_decay(0.0));
            Box::new(Lion::new(store, params, LionConfig { lr, betas, weight_decay, ..Default::default() }))
        }
        "Muon" => {
            let others = &attrs["others"];
            let of_others = |name: &str| others[name].as_f64().expect("a number");
            let excluded = attrs["exclude"].as_array().expect("a list");
            let config = MuonConfig {
                lr,
                momentum: number("momentum", 0.95),
                nesterov: flag("nesterov", true),
                steps: number("ns_steps", 5.0) as usize,
                scale: match attrs["adjust_lr_fn"].as_str() {
                    Some("match_rms_adamw") => MuonScale::MatchAdamW,
                    Some("spectral_unclamped") => MuonScale::Spectral,
                    _ => MuonScale::Original,
                },
                weight_decay: weight_decay(0.1),
                exclude: store.params_where(|path| excluded.iter().any(|name| name == path)),
                others: MuonOthers {
                    lr: of_others("lr").into(),
                    betas: betas(others, (f64::NAN, f64::NAN)),
                    eps: of_others("eps"),
                    weight_decay: of_others("weight_decay"),
                },
                ..Default::default()
            };
            Box::new(Muon::new(store, params, config))
        }
        other => panic!("no optimizer {other}"),
    }
}

/// A learning rate: constant, or the warm-up that a list of rates is.
fn schedule(attrs: &Value) -> Schedule {
    let lr = attrs["lr"].as_f64().expect("a number");
    let Some(rates) = attrs["lr_per_step"].as_array() else { return lr.into() };
    let schedule = Schedule::warmup(lr, rates.len() as u32);
    for (t, rate) in rates.iter().enumerate() {
        let rate = rate.as_f64().expect("a number");
        assert_relative_eq!(schedule.at(t as u32), rate, epsilon = 0.0, max_relative = 1e-15);
    }
    schedule
}

/// A loss whose gradient with respect to each of some parameters is an input: `sum <p, g>`.
fn loss<'t>(tape: &'t Tape, present: &[(wgrad::Param, &str, &Array)]) -> Tensor<'t> {
    let term = |(param, name, g): &(wgrad::Param, &str, &Array)| (tape.param(*param) * tape.input_like(name, g)).sum();
    present.iter().map(term).reduce(|a, b| a + b).expect("a parameter is present")
}

/// The first element of a vector's trajectory that is not the expected one.
fn missed(case: &Case) -> Option<String> {
    let mut store = Store::new();
    let names = case.inputs("in/p0_");
    let handles: Vec<wgrad::Param> =
        names.iter().map(|name| store.param(name, case.tensor(&format!("in/p0_{name}")))).collect();
    let params = store.params();
    let optimizer = optimizer(case, &mut store, &params);
    let sam = (case.op() == "SAM").then(|| Sam::new(case.number("rho", f64::NAN)));
    let mut session = open(store);
    let mut programs: HashMap<Vec<&str>, Step> = HashMap::new();
    let steps = case.attr("steps").as_u64().expect("a count") as usize;
    let mut have: Vec<Vec<f64>> = vec![vec![]; names.len()];
    for t in 0..steps {
        let absent = |name: &str| {
            let list = case.attr("absent")[name].as_array();
            list.is_some_and(|list| list.iter().any(|at| at.as_u64() == Some(t as u64)))
        };
        let grads: Vec<Array> =
            names.iter().map(|name| golden::row(case.tensor(&format!("in/grad_{name}")), t)).collect();
        let all = handles.iter().zip(&names).zip(&grads).map(|((p, name), g)| (*p, *name, g));
        let present: Vec<(wgrad::Param, &str, &Array)> = all.filter(|(_, name, _)| !absent(name)).collect();
        let key = present.iter().map(|(_, name, _)| *name).collect();
        let program = programs.entry(key).or_insert_with(|| {
            let record = |t: &Tape| {
                let Some(sam) = sam else { return optimizer.step(loss(t, &present).grad(&params)) };
                let rows: Vec<(wgrad::Param, Tensor<'_>)> =
                    present.iter().map(|(param, name, g)| (*param, t.input_like(name, g))).collect();
                let terms = || rows.iter().map(|(param, row)| t.param(*param).sin().dot(*row));
                let loss = || terms().reduce(|a, b| a + b).expect("a parameter is present");
                optimizer.step(sam.grad(|| loss().grad(&params)));
            };
            session.record(record).expect("compiles")
        });
        let inputs: Vec<(&str, &Array)> = present.iter().map(|(_, name, g)| (*name, *g)).collect();
        session.run(program, &inputs).expect("runs");
        for (have, &handle) in have.iter_mut().zip(&handles) {
            have.extend(session.read_param(handle).expect("readable").to_f64());
        }
    }
    assert_eq!(session.read(optimizer.states().counter()).expect("readable").item(0), steps as f64);
    assert_padding_is_zero(&mut session);
    names.iter().zip(&have).find_map(|(name, values)| {
        let name = format!("out/param_{name}");
        case.misses(&name, &Array::new(case.tensor(&name).shape(), wgrad::Data::from_f64(case.dtype(), values)))
    })
}

#[test]
fn golden_trajectories() {
    for case in golden::cases(|kind, _| kind == "optim") {
        assert_eq!(missed(&case), None);
    }
}

/// A rule that differs in one attribute is another rule.
#[test]
fn a_wrong_rule_misses_the_golden_trajectory() {
    let changes = [
        ("adam_amsgrad", "amsgrad", json!(false)),
        ("adam_amsgrad_all", "amsgrad", json!(false)),
        ("adamw_amsgrad", "amsgrad", json!(false)),
        ("adagrad", "lr_decay", json!(0.01)),
        ("adagrad_all", "initial_accumulator_value", json!(0.0)),
        ("adagrad_all", "absent", json!({})),
        ("lion", "betas", json!([0.99, 0.9])),
        ("lion_all", "weight_decay", json!(0.0)),
        ("muon", "nesterov", json!(false)),
        ("muon", "ns_steps", json!(4)),
        ("muon", "momentum", json!(0.9)),
        ("muon", "adjust_lr_fn", json!("spectral_unclamped")),
        ("muon", "exclude", json!(["t"])),
        ("muon_all", "adjust_lr_fn", json!("original")),
        ("muon_all", "exclude", json!([])),
        ("sam", "rho", json!(0.0)),
        ("sam", "rho", json!(0.297)),
        ("sam_adamw", "base", json!("Adam")),
    ];
    for (id, name, value) in changes {
        let cases = golden::cases(|kind, _| kind == "optim");
        for dtype in ["f64", "f32"] {
            let case = cases.iter().find(|case| case.id() == format!("{id}.{dtype}")).expect("known");
            let changed = case.with(name, value.clone());
            assert!(missed(&changed).is_some(), "{id}.{dtype}: {name} {value} is not noticed");
        }
    }
}

/// The number of kinds in the zoo.
const KINDS: usize = 8;

/// One of each kind with all its states, in one store with one parameter set each.
fn zoo(store: &mut Store, params: &ParamSet) -> [Box<dyn Optimizer>; KINDS] {
    let sgd = SgdConfig { momentum: 0.9, dampening: 0.5, weight_decay: 0.1, ..Default::default() };
    let rmsprop = RmsPropConfig { momentum: 0.9, centered: true, ..Default::default() };
    let amsgrad = AdamConfig { name: "amsgrad".into(), amsgrad: true, ..Default::default() };
    let adagrad = AdagradConfig { lr_decay: 0.1, initial_accumulator: 0.1, ..Default::default() };
    let lion = LionConfig { weight_decay: 0.1, ..Default::default() };
    [
        Box::new(Sgd::new(store, params, sgd)),
        Box::new(Adam::new(store, params, AdamConfig::default())),
        Box::new(AdamW::new(store, params, AdamWConfig::default())),
        Box::new(RmsProp::new(store, params, rmsprop)),
        Box::new(Adam::new(store, params, amsgrad)),
        Box::new(Adagrad::new(store, params, adagrad)),
        Box::new(Lion::new(store, params, lion)),
        Box::new(Muon::new(store, params, MuonConfig::default())),
    ]
}

#[test]
fn a_false_verdict_changes_nothing() {
    for kind in 0..KINDS {
        let mut store = Store::new();
        let w = Builder::new(&mut store, 1).param("w", [3, 1], &Init::Normal(1.0));
        let params = store.params();
        let optimizer = &zoo(&mut store, &params)[kind];
        let mut session = open(store);
        let (good, bad) =
            (Array::new([3, 1], vec![1f32, -2.0, 0.5]), Array::new([3, 1], vec![1f32, f32::INFINITY, 0.5]));
        let step = session
            .record(|t| optimizer.step(loss(t, &[(w, "g", &good)]).grad(&params).check_finite()))
            .expect("compiles");
        session.run(&step, &[("g", &good)]).expect("runs");
        let before = snapshot(&mut session);
        session.run(&step, &[("g", &bad)]).expect("runs");
        assert_eq!(snapshot(&mut session), before, "{}", optimizer.name());
        session.run(&step, &[("g", &good)]).expect("runs");
        let after = snapshot(&mut session);
        let counter = &session.layout().state(optimizer.states().counter()).name;
        let prefix = counter.strip_suffix("updates").expect("the counter's name").to_string();
        for ((name, new), (_, old)) in after.iter().zip(&before) {
            let moves = name.starts_with(&*prefix) && !name.contains("started") || name.starts_with("params/");
            assert_eq!(moves, new != old, "{}: {name}", optimizer.name());
        }
    }
}

#[test]
fn an_absent_parameter_and_its_state_stand_still() {
    for kind in 0..KINDS {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 1);
        let (w, v) = (b.param("w", [3, 1], &Init::Normal(1.0)), b.param("v", [2], &Init::Normal(1.0)));
        let params = store.params();
        let optimizer = &zoo(&mut store, &params)[kind];
        let mut session = open(store);
        let (gw, gv) = (Array::new([3, 1], vec![1f32, -2.0, 0.5]), Array::new([2], vec![0f32, 0.0]));
        let both = session
            .record(|t| optimizer.step(loss(t, &[(w, "gw", &gw), (v, "gv", &gv)]).grad(&params)))
            .expect("compiles");
        let alone = session.record(|t| optimizer.step(loss(t, &[(w, "gw", &gw)]).grad(&params))).expect("compiles");
        let layout = session.layout().clone();
        let arena = layout.param(w).arena;
        let ranges = layout.segments(arena).ranges.clone();
        let name = optimizer.name();

        // The elements of w and of v, and of their segments, in each state of the optimizer and in the arena.
        let parts = |session: &mut Session| -> Vec<(String, Vec<f64>, Vec<f64>)> {
            let states = [vec![arena], optimizer.states().of(arena).expect("stepped").to_vec()].concat().into_iter();
            let of = |values: &[f64], segment: usize| {
                let (start, len) = ranges[segment];
                if values.len() == ranges.len() { vec![values[segment]] } else { values[start..start + len].to_vec() }
            };
            let mut read = |id| session.read(id).expect("readable").to_f64();
            states.map(|id| (layout.state(id).name.clone(), read(id))).map(|(n, x)| (n, of(&x, 0), of(&x, 1))).collect()
        };
        session.run(&both, &[("gw", &gw), ("gv", &gv)]).expect("runs");
        let before = parts(&mut session);
        session.run(&alone, &[("gw", &gw)]).expect("runs");
        let after = parts(&mut session);
        for ((state, old_w, old_v), (_, new_w, new_v)) in before.iter().zip(&after) {
            assert_eq!(old_v, new_v, "{name}: {state} of the absent parameter");
            assert_eq!(old_w != new_w, !state.contains("started"), "{name}: {state} of the present parameter");
        }
        assert_eq!(session.read(optimizer.states().counter()).expect("readable").item(0), 2.0, "{name} counts updates");

        // A gradient of zeros is not an absent one: averages decay, and Adam's corrections advance.
        session.run(&both, &[("gw", &gw), ("gv", &gv)]).expect("runs");
        let advanced = parts(&mut session);
        let moved = after.iter().zip(&advanced).any(|((_, _, old), (_, _, new))| old != new);
        assert!(moved || name == "rmsprop", "{name}: an all-zero gradient is present");
    }
}

#[test]
fn a_step_of_dampened_momentum_starts_with_the_whole_gradient() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([1], vec![0.0]));
    let params = store.params();
    let config = SgdConfig { lr: 1.0.into(), momentum: 0.5, dampening: 0.75, ..Default::default() };
    let sgd = Sgd::new(&mut store, &params, config);
    let mut session = open(store);
    let g = Array::new([1], vec![1.0]);
    let step = session.record(|t| sgd.step(loss(t, &[(w, "g", &g)]).grad(&params))).expect("compiles");
    let mut position = || {
        session.run(&step, &[("g", &g)]).expect("runs");
        session.read_param(w).expect("readable").item(0)
    };
    // b = 1, then 0.5 + 0.25, then 0.375 + 0.25.
    assert_eq!([position(), position(), position()], [-1.0, -1.75, -2.375]);
}

#[test]
fn a_constant_gradient_does_not_make_the_centered_variance_negative() {
    let mut store = Store::new();
    let w = store.param("w", &Array::zeros([64], DType::F32));
    let params = store.params();
    let config = RmsPropConfig { alpha: 0.9, centered: true, ..Default::default() };
    let rmsprop = RmsProp::new(&mut store, &params, config);
    let mut session = open(store);
    let g = Array::new([64], (1..65).map(|i| 0.37 * i as f32).collect::<Vec<f32>>());
    let step = session.record(|t| rmsprop.step(loss(t, &[(w, "g", &g)]).grad(&params))).expect("compiles");
    for _ in 0..400 {
        session.run(&step, &[("g", &g)]).expect("runs");
    }
    let values = session.read_param(w).expect("readable").to_f64();
    assert!(values.iter().all(|p| p.is_finite()), "{values:?}");
}

#[test]
fn two_optimizers_share_a_store() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let (w, v) = (b.at("a").param("w", [3], &Init::Ones), b.at("b").param("v", [2], &Init::Ones));
    let (of_a, of_b) = (store.params_where(|p| p.starts_with("a/")), store.params_where(|p| p.starts_with("b/")));
    let config = |name: &str, lr: f64| AdamConfig { name: name.into(), lr: lr.into(), ..Default::default() };
    let first = Adam::new(&mut store, &of_a, config("first", 0.1));
    let second = Adam::new(&mut store, &of_b, config("second", 0.01));
    let mut session = open(store);
    let step = session
        .record(|t| {
            let loss = t.param(w).sum() + t.param(v).sum();
            // Both gradients first: they are of the parameters before any step.
            let (a, b) = (loss.grad(&of_a), loss.grad(&of_b));
            first.step(a);
            second.step(b);
        })
        .expect("compiles");
    session.run(&step, &[]).expect("runs");
    for (path, lr) in [("a/w", 0.1), ("b/v", 0.01)] {
        let id = param(&session, path);
        let values = session.read_param(id).expect("readable").to_f64();
        assert!(values.iter().all(|p| abs_diff_eq!(1.0 - p, lr, epsilon = 1e-6)), "{path}: {values:?}");
    }
    assert_eq!(state(&mut session, "first/updates").item(0), 1.0);
    assert_padding_is_zero(&mut session);
}

#[test]
fn gradients_flow_through_an_update() {
    // loss2 = sum (w - u(x))^2 with the gradient x of w as an input, some of it 0, where Adam's root has no slope.
    let x = Array::new([3, 1], vec![0.5, 0.0, -2.0]);
    for kind in 0..KINDS {
        let mut store = Store::new();
        let w = store.param("w", &Array::new([3, 1], vec![1.0, 2.0, 3.0]));
        let params = store.params();
        let optimizer = &zoo(&mut store, &params)[kind];
        let mut session = open(store);
        let record = |t: &Tape, tap: bool| -> () {
            let given = t.input_like("x", &x);
            let g = (t.param(w) * given).sum().grad(&params);
            let current = g.flat().map(|arena, _| t.state(arena));
            let (new, _) = optimizer.update(&current, &g, &optimizer.current(t, g.flat()));
            let after = t.with_params(&new, || t.param(w).square().sum());
            t.tap("loss", after);
            if tap {
                let dx = after.grad_wrt(&[given])[0];
                // A sign has no slope.
                assert_eq!(dx.is_some(), optimizer.name() != "lion", "{}", optimizer.name());
                t.tap("dx", dx.unwrap_or(given.zeros_like()));
            }
        };
        let step = session.record(|t| record(t, true)).expect("compiles");
        let mut run = |x: &Array| {
            session.run(&step, &[("x", x)]).expect("runs");
            session.taps().expect("ran").pop().expect("one run")
        };
        let dx = run(&x).get("dx").expect("tapped").to_f64();
        let nudged = |i: usize, by: f64| {
            let mut values = x.to_f64();
            values[i] += by;
            Array::new([3, 1], values)
        };
        for i in [0, 2] {
            let h = 1e-5;
            let at = |taps: wgrad::Taps| taps.scalar("loss").expect("tapped");
            let slope = (at(run(&nudged(i, h))) - at(run(&nudged(i, -h)))) / (2.0 * h);
            assert!(
                relative_eq!(dx[i], slope, epsilon = 1e-6, max_relative = 1e-6),
                "{}: {} for {slope}",
                optimizer.name(),
                dx[i]
            );
        }
        assert!(dx[1].is_finite(), "{}: {dx:?}", optimizer.name());
    }
}

#[test]
fn settings_are_printed() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([1], vec![0.0]));
    let params = store.params();
    let lr = Schedule::warmup(0.1, 10);
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: lr.into(), ..Default::default() });
    let tape = Tape::new(store.into_parts().0);
    adam.step(tape.param(w).sum().grad(&params));
    let program = tape.finish();
    let pass = program.passes().iter().find(|pass| pass.name == "adam").expect("recorded");
    assert_eq!(pass.parameters[0], ("lr", "warmup(0.1, steps 10, offset 1)".to_string()));
    assert_eq!(pass.parameters[1], ("betas", "(0.9, 0.999)".to_string()));
}

/// Builds an optimizer over one parameter.
fn build<O>(new: impl FnOnce(&mut Store, &ParamSet) -> O) -> O {
    let mut store = Store::new();
    store.param("w", &Array::zeros([1], DType::F32));
    let params = store.params();
    new(&mut store, &params)
}

#[test]
#[should_panic(expected = "nesterov needs momentum above 0 and dampening 0, not 0 and 0")]
fn nesterov_needs_momentum() {
    build(|s, p| Sgd::new(s, p, SgdConfig { nesterov: true, ..Default::default() }));
}

#[test]
#[should_panic(expected = "sgd: momentum is -0.1, and must be finite and not negative")]
fn momentum_is_not_negative() {
    build(|s, p| Sgd::new(s, p, SgdConfig { momentum: -0.1, ..Default::default() }));
}

#[test]
#[should_panic(expected = "adamw: betas.1 is 1, and must be in [0, 1)")]
fn betas_are_below_one() {
    build(|s, p| AdamW::new(s, p, AdamWConfig { betas: (0.9, 1.0), ..Default::default() }));
}

#[test]
#[should_panic(expected = "adagrad: initial_accumulator is -1, and must be finite and not negative")]
fn a_sum_of_squares_starts_at_0_or_above() {
    build(|s, p| Adagrad::new(s, p, AdagradConfig { initial_accumulator: -1.0, ..Default::default() }));
}

#[test]
#[should_panic(expected = "adagrad: lr_decay is NaN, and must be finite and not negative")]
fn a_decay_of_the_rate_is_a_number() {
    build(|s, p| Adagrad::new(s, p, AdagradConfig { lr_decay: f64::NAN, ..Default::default() }));
}

#[test]
#[should_panic(expected = "lion: betas.0 is 1, and must be in [0, 1)")]
fn lions_betas_are_below_one() {
    build(|s, p| Lion::new(s, p, LionConfig { betas: (1.0, 0.9), ..Default::default() }));
}

#[test]
#[should_panic(expected = "muon: steps is 0, and must be from 1 to 99")]
fn muon_makes_steps() {
    build(|s, p| Muon::new(s, p, MuonConfig { steps: 0, ..Default::default() }));
}

#[test]
#[should_panic(expected = "muon: others: eps is 0, and must be positive in f32")]
fn muons_others_are_checked() {
    let others = MuonOthers { eps: 0.0, ..Default::default() };
    build(|s, p| Muon::new(s, p, MuonConfig { others, ..Default::default() }));
}

#[test]
#[should_panic(expected = "sam: rho is -0.1, and must be finite and not negative")]
fn sam_climbs() {
    Sam::new(-0.1);
}

#[test]
#[should_panic(expected = "rmsprop: eps is 0, and must be positive in f32")]
fn eps_is_positive() {
    build(|s, p| RmsProp::new(s, p, RmsPropConfig { eps: 0.0, ..Default::default() }));
}

#[test]
#[should_panic(expected = "learning rate NaN: rates must be finite")]
fn a_rate_is_a_number() {
    build(|s, p| Sgd::new(s, p, SgdConfig { lr: f64::NAN.into(), ..Default::default() }));
}

#[test]
#[should_panic(expected = "state \"adam/m/f32\" is declared twice")]
fn names_are_unique() {
    build(|s, p| {
        Adam::new(s, p, AdamConfig::default());
        Adam::new(s, p, AdamConfig::default())
    });
}
