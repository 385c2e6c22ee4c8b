//! States that one bad value must not spoil: moments of large gradients, steps along bad coefficients, averages of one's own.

use approx::{abs_diff_eq, relative_eq};
use std::sync::Arc;
use wgrad::{
    Array, ClipGroups, ClipNorm, DType, DynamicScale, Error, Grads, LossScaler, Noise, NonFinite, Optimizer, Param,
    ParamSet, Pitfall, Rng, StateId, Step, Store, Tape, Tensor,
};
use wgrad_nn::{
    Trainer, TrainerConfig,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Group, Lion, LionConfig, Muon, MuonConfig,
        MuonOthers, RmsProp, RmsPropConfig, Sgd, SgdConfig,
    },
};
use wgrad_tests::{Linear, Machine, gpu, named, same_bits};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

fn scalar(value: f32) -> Array {
    Array::new([], vec![value])
}

type Make = fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>;

/// Optimizers whose step does not grow with the gradient, and what the first step of rate 0.1 along a large one is.
fn bounded() -> Vec<(&'static str, f64, Make)> {
    vec![
        ("adam", -0.1, |store, params| {
            Box::new(Adam::new(store, params, AdamConfig { lr: 0.1.into(), ..AdamConfig::default() }))
        }),
        ("adam with decay", -0.1, |store, params| {
            let config = AdamConfig { lr: 0.1.into(), weight_decay: 0.5, ..AdamConfig::default() };
            Box::new(Adam::new(store, params, config))
        }),
        ("adamw", -0.1, |store, params| {
            let config = AdamWConfig { lr: 0.1.into(), weight_decay: 0.0, ..AdamWConfig::default() };
            Box::new(AdamW::new(store, params, config))
        }),
        ("rmsprop", -1.0, |store, params| {
            Box::new(RmsProp::new(store, params, RmsPropConfig { lr: 0.1.into(), ..RmsPropConfig::default() }))
        }),
        // The variance of one gradient: v - a^2 = 0.01 g^2 - 0.0001 g^2.
        ("rmsprop, centered", -0.1 / 0.0099f64.sqrt(), |store, params| {
            let config = RmsPropConfig { lr: 0.1.into(), centered: true, momentum: 0.5, ..RmsPropConfig::default() };
            Box::new(RmsProp::new(store, params, config))
        }),
        ("amsgrad", -0.1, |store, params| {
            let config = AdamConfig { lr: 0.1.into(), amsgrad: true, ..AdamConfig::default() };
            Box::new(Adam::new(store, params, config))
        }),
        ("adagrad", -0.1, |store, params| {
            let config = AdagradConfig { lr: 0.1.into(), weight_decay: 0.5, ..AdagradConfig::default() };
            Box::new(Adagrad::new(store, params, config))
        }),
        ("lion", -0.1, |store, params| {
            Box::new(Lion::new(store, params, LionConfig { lr: 0.1.into(), ..LionConfig::default() }))
        }),
        ("muon", -0.1, |store, params| {
            let others = MuonOthers { lr: 0.1.into(), weight_decay: 0.0, ..MuonOthers::default() };
            Box::new(Muon::new(store, params, MuonConfig { others, ..MuonConfig::default() }))
        }),
    ]
}

/// What is done to gradients before a step.
type Pipeline = for<'t> fn(Grads<'t>) -> Grads<'t>;

/// What one parameter, from 0 on, is after each step along these gradients.
fn path(machine: &mut Machine, param: Param, step: &Step, gradients: impl IntoIterator<Item = f32>) -> Vec<f64> {
    let one = |g: f32| {
        machine.session.run(step, &named(&Linear::inputs(&[f32s(&[g])]))).expect("runs");
        machine.session.wait().expect("nothing to say");
        machine.session.read_param(param).expect("readable").item(0)
    };
    gradients.into_iter().map(one).collect()
}

/// A first step is a function of the gradient's sign, however large it is, and the next ones go on.
#[test]
fn a_large_gradient_stops_no_parameter() {
    let pipelines: [(&str, Pipeline); 3] = [
        ("checked", |g| g.check_finite()),
        ("clipped by infinity", |g| g.clip_by_global_norm(ClipNorm::new(f64::INFINITY))),
        ("unchecked", |g| g),
    ];
    for (name, first, make) in bounded() {
        for (what, pipeline) in pipelines {
            for size in [1.0f32, 1e10, 1e19, -1e20, 1e25, -3e38] {
                let mut store = Store::new();
                let model = Linear::new(&mut store, &[f32s(&[0.0])]);
                let params = store.params();
                let optimizer = make(&mut store, &params);
                let mut cpu = Machine::poisoned(1, store);
                let step = cpu.session.record(|t| optimizer.step(pipeline(model.grads(t)))).expect("compiles");
                let of = format!("{name}, {what}, {size:e}");
                let sign = f64::from(size.signum());
                let path = path(&mut cpu, model.params[0], &step, [size].into_iter().chain([1.0; 100]));
                let close = |have: f64, want: f64| relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-4);
                assert!(close(path[0], first * sign), "{of}: {} for {first}", path[0]);
                assert!(path.iter().all(|p| p.is_finite()), "{of}");
                // PyTorch 2.15 in f32, for 1e20, whose moments it still holds.
                if name == "adam" && size > 1e9 {
                    assert!(close(path[100], -0.6005), "{of}: {}", path[100]);
                }
            }
        }
    }
}

/// As many large ones as one likes: every step is that of a constant gradient.
#[test]
fn large_gradients_in_a_row_are_one_constant_gradient() {
    for name in ["cpu", "gpu"] {
        for (optimizer, _, make) in bounded() {
            let of_size = |size: f32| {
                let mut store = Store::new();
                let model = Linear::new(&mut store, &[f32s(&[0.0])]);
                let params = store.params();
                let optimizer = make(&mut store, &params);
                let mut machine = match (name, gpu()) {
                    ("gpu", Some(gpu)) => Machine::on_gpu(gpu, store),
                    _ => Machine::poisoned(1, store),
                };
                let record = |t: &Tape| optimizer.step(model.grads(t).check_finite());
                let step = machine.session.record(record).expect("compiles");
                path(&mut machine, model.params[0], &step, [size; 40])
            };
            let [small, large] = [1e6, 3e38].map(of_size);
            // What decays is nothing beside either.
            let close = relative_eq!(small[..], large[..], epsilon = 0.0, max_relative = 1e-4);
            assert!(close, "{optimizer} on {name}: {large:?} for {small:?}");
        }
    }
}

/// What a sum makes infinite would stay so: momentum, a step, a parameter.
#[test]
fn descent_comes_back_from_the_largest_gradients() {
    for (momentum, nesterov, dampening) in [(0.0, false, 0.0), (0.9, false, 0.0), (0.9, true, 0.0), (0.9, false, 0.5)] {
        for lr in [0.1, 10.0] {
            let mut store = Store::new();
            let model = Linear::new(&mut store, &[f32s(&[0.0])]);
            let params = store.params();
            let config = SgdConfig { lr: lr.into(), momentum, nesterov, dampening, ..SgdConfig::default() };
            let sgd = Sgd::new(&mut store, &params, config);
            let mut cpu = Machine::poisoned(1, store);
            let step = cpu.session.record(|t| sgd.step(model.grads(t).check_finite())).expect("compiles");
            let there = path(&mut cpu, model.params[0], &step, [3e38; 30]);
            assert!(there.iter().all(|p| p.is_finite() && *p < -1e37), "{momentum} {nesterov} {lr}: {there:?}");
            let back = path(&mut cpu, model.params[0], &step, [-3e38; 60]);
            assert!(back.iter().all(|p| p.is_finite()) && back[59] > there[29], "{momentum} {nesterov} {lr}: {back:?}");
        }
    }
}

/// The number of nodes of an update: what a clip by a number has bounded is squared as it is.
#[test]
fn a_clip_by_a_number_makes_squares_safe_for_nothing() {
    let nodes = |pipeline: Pipeline| {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.0])]);
        let params = store.params();
        let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
        let t = Tape::new(Arc::new(store.layout().clone()));
        adamw.step(pipeline(model.grads(&t)));
        t.finish().passes().iter().find(|pass| pass.kind == wgrad::PassKind::Step).map(|pass| pass.nodes.len())
    };
    let clipped = nodes(|g| g.clip_by_global_norm(1.0));
    assert_eq!(clipped, nodes(|g| g.check_finite().clip_by_value(0.5)));
    let open: [Pipeline; 4] = [
        |g| g.check_finite(),
        |g| g.clip_by_global_norm(1e30),
        |g| g.clip_by_global_norm(ClipNorm::new(1.0).non_finite(NonFinite::Propagate)),
        // Scaled afterwards, it may be anything again.
        |g| {
            let params = g.present().clone();
            g.clip_by_global_norm(1.0).scale_grad(&params, 1e30)
        },
    ];
    for pipeline in open {
        assert!(clipped < nodes(pipeline));
    }
}

/// What takes a coefficient that is a tensor, and which values of it are out of its range.
struct Taken {
    name: &'static str,
    bad: &'static [f32],
    good: &'static [f32],
    pass: for<'t> fn(Grads<'t>, Tensor<'t>, &ParamSet) -> Grads<'t>,
}

const BELOW_0: &[f32] = &[-1.0, -1e-30, f32::NEG_INFINITY, f32::NAN];
const NOT_FINITE: &[f32] = &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

const TAKEN: [Taken; 7] = [
    Taken {
        name: "clip_by_global_norm: max_norm",
        bad: BELOW_0,
        good: &[0.0, 1.0, f32::INFINITY],
        pass: |g, x, _| g.clip_by_global_norm(ClipNorm::new(x)),
    },
    Taken {
        name: "clip_by_group_norm: max_norm",
        bad: BELOW_0,
        good: &[0.0, 1.0, f32::INFINITY],
        pass: |g, x, params| g.clip_by_group_norm(&ClipGroups::per_parameter(params, x)),
    },
    Taken {
        name: "clip_by_block_rms: threshold",
        bad: &[-1.0, 0.0, f32::NAN],
        good: &[1.0, f32::INFINITY],
        pass: |g, x, _| g.check_finite().clip_by_block_rms(x),
    },
    Taken {
        name: "agc: clipping",
        bad: BELOW_0,
        good: &[0.0, 0.1, f32::INFINITY],
        pass: |g, x, _| g.check_finite().agc(x),
    },
    Taken {
        name: "agc_per_tensor: clip_factor",
        bad: BELOW_0,
        good: &[0.0, 0.1, f32::INFINITY],
        pass: |g, x, _| g.check_finite().agc_per_tensor(x, 1e-6, 1e-3),
    },
    Taken {
        name: "scale_grad: factor",
        bad: NOT_FINITE,
        good: &[0.0, -1.0, 2.0],
        pass: |g, x, params| g.check_finite().scale_grad(params, x),
    },
    Taken {
        name: "scale_grad: factor",
        bad: NOT_FINITE,
        good: &[1.0],
        // One that nobody checks either: the coefficient alone is the verdict.
        pass: |g, x, params| g.scale_grad(params, x),
    },
];

#[test]
fn a_bad_coefficient_skips_the_step_and_is_an_error_of_the_run() {
    for Taken { name, bad, good, pass } in TAKEN {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25]), Array::new([1, 2], vec![1.0f32, 2.0])]);
        let params = store.params();
        let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let x = t.input("coefficient", [], DType::F32);
            adam.step(pass(model.grads(t), x, &params));
        });
        let step = step.expect("compiles");
        let run = |cpu: &mut Machine, value: f32| {
            let mut inputs = Linear::inputs(&[f32s(&[3.0, -2.0]), Array::new([1, 2], vec![1.0f32, 0.5])]);
            inputs.push(("coefficient".into(), scalar(value)));
            cpu.session.run(&step, &named(&inputs)).expect("not known yet");
            (cpu.states(), cpu.session.wait())
        };
        let (mut before, _) = run(&mut cpu, good[0]);
        for value in bad {
            let (after, told) = run(&mut cpu, *value);
            assert!(before.iter().zip(&after).all(|(a, b)| same_bits(a, b)), "{name} {value}: nothing moves");
            let told = told.expect_err("the run says so");
            assert!(matches!(told, Error::Late { .. }), "{told:?}");
            let text = told.to_string();
            assert!(text.contains(&format!("{name} is {value:?}, and must be ")), "{text}");
            assert!(text.contains("poisoned_states.rs"), "{text}");
        }
        for value in good {
            let (after, told) = run(&mut cpu, *value);
            told.expect("it is in order");
            assert!(after.iter().all(|state| state.to_f64().iter().all(|x| x.is_finite())), "{name} {value}");
            assert!(!before.iter().zip(&after).all(|(a, b)| same_bits(a, b)), "{name} {value}: the step is taken");
            before = after;
        }
    }
}

/// The same numbers, recorded: refused at once.
#[test]
fn a_bad_number_is_refused_while_it_is_recorded() {
    let refused = |pass: &dyn Fn(Grads<'_>, &ParamSet)| {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
        let params = store.params();
        let t = Tape::new(Arc::new(store.layout().clone()));
        let g = model.grads(&t);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pass(g, &params))).expect_err("refused");
        panic.downcast_ref::<String>().expect("text").clone()
    };
    let text = refused(&|g, params| drop(g.scale_grad(params, f64::NAN)));
    assert!(text.starts_with("scale_grad: factor is NaN, and must be finite (recorded at "), "{text}");
    let text = refused(&|g, _| drop(g.clip_by_block_rms(0.0)));
    assert!(text.starts_with("clip_by_block_rms: threshold is 0, and must be above 0"), "{text}");
    let text = refused(&|g, _| drop(g.clip_by_global_norm(-1.0)));
    assert!(text.starts_with("clip_by_global_norm: max_norm is -1, and must be at least 0"), "{text}");
    assert!(text.contains("poisoned_states.rs"), "{text}");
}

/// A run of one program whose rate, or scale, is whatever a state holds.
fn with_state(
    bad: f32,
    good: f32,
    make: impl Fn(&mut Store, &ParamSet) -> (StateId, Box<dyn Fn(Grads<'_>)>),
    says: &str,
) {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
    let params = store.params();
    let (state, step) = make(&mut store, &params);
    let mut cpu = Machine::poisoned(1, store);
    let program = cpu.session.record(|t| step(model.grads(t))).expect("compiles");
    let inputs = Linear::inputs(&[f32s(&[3.0, -2.0])]);
    cpu.session.write(state, &scalar(bad)).expect("written");
    let before = cpu.states();
    cpu.session.run(&program, &named(&inputs)).expect("not known yet");
    assert!(before.iter().zip(&cpu.states()).all(|(a, b)| same_bits(a, b)), "{says}: nothing moves");
    let text = cpu.session.wait().expect_err("the run says so").to_string();
    assert!(text.contains(says), "{text} for {says}");
    cpu.session.write(state, &scalar(good)).expect("written");
    let before = cpu.states();
    cpu.session.run(&program, &named(&inputs)).expect("runs");
    cpu.session.wait().expect("all is well");
    assert!(!before.iter().zip(&cpu.states()).all(|(a, b)| same_bits(a, b)), "{says}: the step is taken");
}

#[test]
fn a_bad_learning_rate_skips_the_step() {
    for bad in [-0.1f32, f32::NAN, f32::INFINITY] {
        for checked in [false, true] {
            let make = |store: &mut Store, params: &ParamSet| {
                let lr = store.state("lr", &scalar(0.1));
                let sgd = Sgd::new(store, params, SgdConfig { lr: lr.into(), ..SgdConfig::default() });
                let step: Box<dyn Fn(Grads<'_>)> =
                    Box::new(move |g| sgd.step(if checked { g.check_finite() } else { g }));
                (lr, step)
            };
            with_state(bad, 0.1, make, &format!("sgd: lr is {bad:?}, and must be at least 0 and finite"));
        }
        let of_a_group = |store: &mut Store, params: &ParamSet| {
            let lr = store.state("lr", &scalar(0.1));
            let groups = vec![Group { params: params.clone(), lr: Some(lr.into()), weight_decay: None }];
            let adamw = AdamW::new(store, params, AdamWConfig { groups, ..AdamWConfig::default() });
            let step: Box<dyn Fn(Grads<'_>)> = Box::new(move |g| adamw.step(g.check_finite()));
            (lr, step)
        };
        with_state(bad, 0.0, of_a_group, &format!("adamw: lr is {bad:?}, and must be at least 0 and finite"));
    }
}

/// A trainer's update says that it was not taken.
#[test]
fn a_trainer_knows_of_a_bad_learning_rate() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
    let params = store.params();
    let lr = store.state("lr", &scalar(0.1));
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() });
    let param = model.params[0];
    let config = TrainerConfig { clip_norm: Some(1.0), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        (batch.tape().param(param) * batch.get("g")).sum().into()
    });
    let mut cpu = Machine::poisoned(1, store);
    let g = f32s(&[3.0, -2.0]);
    for (rate, taken) in [(0.1, true), (f32::NAN, false), (0.1, true)] {
        cpu.session.write(lr, &scalar(rate)).expect("written");
        trainer.step(&mut cpu.session, &[("g", &g)]).expect("runs");
        assert_eq!(cpu.session.wait().is_ok(), taken);
        let updates = trainer.updates(&cpu.session.taps().expect("said before"));
        assert_eq!(updates.iter().map(|update| update.taken).collect::<Vec<_>>(), [taken]);
    }
}

/// Gradients of a loss scaled by 0 are 0, and pass every check; divided by it, they are NaN.
#[test]
fn a_bad_loss_scale_skips_the_step() {
    for bad in [0.0f32, -8.0, 1e-39, f32::NAN, f32::INFINITY] {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
        let params = store.params();
        let scaler = LossScaler::dynamic(&mut store, DynamicScale { min_scale: 0.0, ..DynamicScale::default() });
        let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| adamw.step(scaler.scale(model.loss(t)).grad(&params).unscale(&scaler)));
        let step = step.expect("compiles");
        let mut run = |scale: f32| {
            cpu.session.write(scaler.states().expect("it is dynamic").0, &scalar(scale)).expect("written");
            cpu.session.run(&step, &named(&Linear::inputs(&[f32s(&[3.0, -2.0])]))).expect("not known yet");
            (cpu.session.read_param(model.params[0]).expect("readable"), cpu.session.wait())
        };
        let (after, told) = run(bad);
        assert!(same_bits(&after, &f32s(&[0.5, 0.25])), "{bad}: {after:?}");
        let text = told.expect_err("the run says so").to_string();
        assert!(text.contains("unscale: the loss scale is not above 0, normal and finite"), "{text}");
        let (after, told) = run(8.0);
        told.expect("it is in order");
        assert!(!same_bits(&after, &f32s(&[0.5, 0.25])));
    }
}

/// An average of one's own that is assigned with the step: what the verdict comes to be about later counts too.
#[test]
fn a_state_that_is_assigned_with_the_step_follows_it() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
    let params = store.params();
    let mean = store.state("mean", &scalar(0.0));
    let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let bound = t.input("bound", [], DType::F32);
        let g = model.grads(t).check_finite();
        let new = t.state(mean) * 0.5 + g.norm() * 0.5;
        adamw.step(g.assign(mean, new).clip_by_global_norm(bound));
        t.tap("mean", t.state(mean));
    });
    let step = step.expect("compiles");
    assert_eq!(step.lints(), []);
    let mut run = |g: f32, bound: f32| {
        let mut inputs = Linear::inputs(&[f32s(&[g, 0.0])]);
        inputs.push(("bound".into(), scalar(bound)));
        cpu.session.run(&step, &named(&inputs)).expect("runs");
        let told = cpu.session.wait().is_err();
        let tapped = cpu.session.taps().expect("said before")[0].scalar("mean").expect("tapped");
        let held = cpu.session.read(mean).expect("readable").item(0);
        assert!(tapped == held || tapped.is_nan() && held.is_nan());
        (held, told)
    };
    assert_eq!(run(4.0, 1.0), (2.0, false));
    assert_eq!(run(f32::NAN, 1.0), (2.0, false));
    assert_eq!(run(4.0, f32::NAN), (2.0, true));
    assert_eq!(run(2.0, 1.0), (2.0, false));
    assert_eq!(run(4.0, 1.0), (3.0, false));
}

/// The lints of a program over a state of one's own, and a generator.
fn lints(record: impl Fn(&Tape, Grads<'_>, StateId, &Sgd)) -> Vec<Pitfall> {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
    let params = store.params();
    let own = store.state("own", &scalar(0.0));
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let t = Tape::new(Arc::new(store.layout().clone()));
    record(&t, model.grads(&t), own, &sgd);
    let program = t.finish();
    for lint in program.lints() {
        assert!(lint.site.expect("a line").file().ends_with("poisoned_states.rs"), "{lint}");
        assert!(lint.pitfall != Pitfall::StateOfSkippedStep || lint.message.contains("state \"own\""), "{lint}");
    }
    program.lints().iter().map(|lint| lint.pitfall).collect()
}

#[test]
fn states_beside_a_verdict_are_told_of_if_they_can_be_spoilt() {
    type Own = for<'t> fn(&'t Tape, &Grads<'t>, Tensor<'t>) -> Tensor<'t>;
    let spoilt: [(&str, Own); 7] = [
        ("average of the norm", |_, g, old| old * 0.9 + g.norm() * 0.1),
        ("of the input", |t, _, old| old + t.shared_input("g0", [2], DType::F32).mean()),
        ("detached", |_, g, old| (old + g.norm().detach()).detach()),
        ("largest", |_, g, old| old.maximum(g.norm())),
        ("kept within bounds", |_, g, old| old + g.norm().clamp(0.0, 1.0)),
        ("every other run", |_, g, old| {
            let t = old.tape();
            t.input("often", [], DType::Bool).select(old + g.norm(), old)
        }),
        ("of the cosine with what was", |_, g, old| (g.flat().tensors()[0] * old).sum()),
    ];
    let sound: [(&str, Own); 9] = [
        ("a count of runs", |_, _, old| old + 1.0),
        ("what was last seen", |_, g, _| g.norm()),
        ("by the verdict", |_, g, old| g.verdict().expect("checked").select(old + g.norm(), old)),
        ("where it is finite", |_, g, old| g.norm().is_finite().select(old + g.norm(), old)),
        ("the smallest, by comparison", |_, g, old| g.norm().less(old).select(g.norm(), old)),
        ("how often", |_, g, old| old + g.norm().greater(1.0).cast(DType::F32)),
        ("an average of what the step has made", |t, g, old| {
            let (arena, _) = g.flat().parts()[0];
            old * 0.9 + t.state(arena).sum() * 0.1
        }),
        ("of no gradient", |t, _, old| old * 0.5 + t.input("n", [], DType::U32).cast(DType::F32)),
        ("a rate that falls", |_, _, old| old * 0.99),
    ];
    for (name, own) in spoilt {
        let record = |t: &Tape, g: Grads<'_>, state, sgd: &Sgd| {
            let g = g.check_finite();
            t.assign(state, own(t, &g, t.state(state)));
            sgd.step(g);
        };
        assert_eq!(lints(record), [Pitfall::StateOfSkippedStep], "{name}");
        // Without a verdict there is nothing to follow; nor without a step.
        let record = |t: &Tape, g: Grads<'_>, state, sgd: &Sgd| {
            t.assign(state, own(t, &g, t.state(state)));
            sgd.step(g);
        };
        assert_eq!(lints(record), [Pitfall::UncheckedStep], "{name}");
        let record = |t: &Tape, g: Grads<'_>, state, _: &Sgd| {
            let g = g.check_finite();
            t.assign(state, own(t, &g, t.state(state)));
        };
        assert_eq!(lints(record), [], "{name}");
        // With the step it is in order.
        let record = |t: &Tape, g: Grads<'_>, state, sgd: &Sgd| {
            let g = g.check_finite();
            let new = own(t, &g, t.state(state));
            sgd.step(g.assign(state, new));
        };
        assert_eq!(lints(record), [], "{name}");
    }
    for (name, own) in sound {
        let record = |t: &Tape, g: Grads<'_>, state, sgd: &Sgd| {
            let g = g.check_finite();
            sgd.step(g.clone());
            t.assign(state, own(t, &g, t.state(state)));
        };
        assert_eq!(lints(record), [], "{name}");
    }
}

#[test]
fn a_step_without_any_check_is_told_of() {
    assert_eq!(lints(|_, g, _, sgd| sgd.step(g)), [Pitfall::UncheckedStep]);
    assert_eq!(
        lints(|_, g, _, sgd| sgd.step(g.check_loss())),
        [Pitfall::UncheckedStep],
        "a loss tells nothing of a gradient"
    );
    let sound: [Pipeline; 5] = [
        |g| g.check_finite(),
        |g| g.clip_by_global_norm(1.0),
        |g| {
            let sound = g.norm().less(100.0);
            g.skip_unless(sound)
        },
        |g| {
            let sound = g.norm().detach().is_finite();
            g.skip_unless(sound)
        },
        |g| g.check_finite().centralize(),
    ];
    for pipeline in sound {
        assert_eq!(lints(|_, g, _, sgd| sgd.step(pipeline(g))), []);
    }
    let of_something_else = |t: &Tape, g: Grads<'_>, _, sgd: &Sgd| {
        sgd.step(g.skip_unless(t.input("go", [], DType::Bool)));
    };
    assert_eq!(lints(of_something_else), [Pitfall::UncheckedStep]);
}

/// What noise adds to is bounded no more.
#[test]
fn noise_after_a_clip_is_squared_safely() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.0])]);
    let params = store.params();
    let rng = Rng::new(&mut store, "noise", 3);
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..AdamConfig::default() });
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        adam.step(model.grads(t).clip_by_global_norm(1.0).add_noise(Noise::fixed(1e30), rng));
    });
    let path = path(&mut cpu, model.params[0], &step.expect("compiles"), [1.0; 3]);
    assert!(path.iter().all(|p| p.is_finite()) && abs_diff_eq!(path[0].abs(), 0.1, epsilon = 1e-6), "{path:?}");
}
