//! Diagnosis: runs that are broken in one way each, and what is found, where, and with which proof; and edits by themselves.

use crate::open;
use std::{cell::Cell, rc::Rc};
use wgrad::{
    Array, CrossEntropy, DType, Noise, Optimizer, Reduction, Rng, Store, Tape, Tensor, Tuning, Weighting,
    op::{Op, Unary},
};
use wgrad_nn::{
    Activation, Builder, Dropout, Edit, Error, Fan, Init, Inputs, LossScale, Mlp, MlpConfig, NormKind, Precision,
    Recurrent, RecurrentInit, Schedule, Spot, Trainer, TrainerConfig, Transform,
    data::{Digits, Task},
    diagnosis::{Diagnosis, Opened, Setup, Study, Trace},
    omega,
    optim::{Adam, AdamConfig, AdamW, AdamWConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig},
};

type LossOf = for<'t> fn(&Mlp, Tensor<'t>, Tensor<'t>) -> Tensor<'t>;
type Touch = fn(usize, &mut Vec<f32>);

/// A run, healthy as it is.
#[derive(Clone)]
struct Case {
    model: MlpConfig,
    sgd: SgdConfig,
    /// In place of SGD.
    adam: Option<AdamWConfig>,
    trainer: TrainerConfig,
    loss: LossOf,
    /// What is done to the inputs of a step.
    touch: Touch,
    dropout: f64,
    /// Parameters whose paths begin so are not trained.
    frozen: &'static str,
}

fn cross_entropy<'t>(model: &Mlp, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
    model.forward(x, true).cross_entropy(y)
}

impl Default for Case {
    fn default() -> Self {
        Self {
            model: MlpConfig { inputs: 64, width: 40, depth: 3, outputs: 10, ..MlpConfig::default() },
            sgd: SgdConfig { lr: 0.1.into(), ..SgdConfig::default() },
            adam: None,
            trainer: TrainerConfig::default(),
            loss: cross_entropy,
            touch: |_, _| {},
            dropout: 0.0,
            frozen: "nothing",
        }
    }
}

const STEPS: usize = 240;
const BATCH: usize = 24;

impl Case {
    fn optimizer(&self, store: &mut Store, params: &wgrad::ParamSet) -> Box<dyn Optimizer> {
        match &self.adam {
            Some(config) => Box::new(AdamW::new(store, params, config.clone())),
            None => Box::new(Sgd::new(store, params, self.sgd.clone())),
        }
    }

    fn open(&self, setup: &Setup) -> Opened {
        let mut store = Store::new();
        let dropout = (self.dropout > 0.0).then(|| Dropout::new(self.dropout, Rng::new(&mut store, "dropout", 5)));
        let config = MlpConfig { dropout, ..self.model.clone() };
        let model = Mlp::new(Builder::new(&mut store, 3), &config);
        let params = store.params_where(|path| !path.starts_with(self.frozen));
        let optimizer = self.optimizer(&mut store, &params);
        let (loss, touch, accumulate) = (self.loss, self.touch, self.trainer.accumulate);
        let trainer =
            Trainer::new(&mut store, &params, optimizer, setup.of(self.trainer.clone()), move |batch: &Inputs<'_>| {
                if let Some(dropout) = dropout {
                    dropout.rng().advance(batch.tape());
                }
                loss(&model, batch.get("x"), batch.get("y")).into()
            });
        let (digits, mut step) = (Digits::embedded(1), 0usize);
        let batches = move || {
            let one = |part: usize| {
                let batch = digits.train(BATCH / accumulate, (step * accumulate + part) as u64);
                let mut rows = vec![0f32; 64 * BATCH / accumulate];
                let (time, size) = (batch["x"].shape()[0], BATCH / accumulate);
                for (at, value) in batch["x"].to_f64().into_iter().enumerate() {
                    let (t, sample, i) = (at / (size * 64 / time), at / (64 / time) % size, at % (64 / time));
                    rows[sample * 64 + t * (64 / time) + i] = value as f32;
                }
                touch(step, &mut rows);
                vec![("x".to_string(), Array::new([size, 64], rows)), ("y".to_string(), batch["y"].clone())]
            };
            let all = (0..accumulate).map(one).collect();
            step += 1;
            Ok(all)
        };
        Opened { trainer, session: open(store), batches: Box::new(batches), judge: None }
    }

    fn diagnosed(&self) -> Diagnosis {
        let mut study = Study::new(STEPS, |setup: &Setup| Ok::<_, Error>(self.open(setup)));
        let mut diagnosis = study.diagnose().expect("it runs");
        study.prove(&mut diagnosis).expect("it runs");
        diagnosis
    }
}

/// Requires that a run has this fault, at a place that begins so, with the proof of this remedy.
#[track_caller]
fn has(case: &Case, fault: &str, place: &str, remedy: &str) {
    let diagnosis = case.diagnosed();
    assert_eq!(diagnosis.fault(), fault, "{diagnosis}");
    let finding = &diagnosis.findings[0];
    assert!(finding.place.iter().any(|known| known.starts_with(place)), "{place}: {diagnosis}");
    assert!(finding.rule.remedies.contains(&remedy), "{remedy} is none of its rule's");
    assert_eq!(finding.remedies[0].name, remedy, "{diagnosis}");
    let proof = finding.proof.as_ref().unwrap_or_else(|| panic!("no proof: {diagnosis}"));
    assert!(proof.cured.learned > proof.unchanged.learned && proof.cured.learned > proof.unfit.learned, "{proof}");
    assert!(!finding.evidence.is_empty());
    for evidence in &finding.evidence {
        let sound = evidence.value >= evidence.low && evidence.value <= evidence.high;
        let told = ["symmetric", "growth"].iter().any(|what| evidence.what.contains(what));
        assert!(!sound || told || finding.evidence.len() > 1, "{}: {} is sound: {diagnosis}", fault, evidence.what);
    }
}

fn sgd(lr: f64) -> Case {
    Case { sgd: SgdConfig { lr: lr.into(), ..SgdConfig::default() }, ..Case::default() }
}

fn adam(config: AdamWConfig) -> Case {
    Case { adam: Some(config), ..Case::default() }
}

fn model(change: impl FnOnce(&mut MlpConfig)) -> Case {
    let mut case = Case::default();
    change(&mut case.model);
    case
}

fn trainer(config: TrainerConfig) -> Case {
    Case { trainer: config, ..Case::default() }
}

#[test]
fn sound_runs_are_healthy() {
    let odd: Touch = |step, x| {
        if step == 30 {
            x.iter_mut().for_each(|value| *value *= 3.0);
        }
    };
    let runs = [
        ("as it is", Case::default()),
        ("adam", adam(AdamWConfig { lr: 2e-3.into(), ..AdamWConfig::default() })),
        ("a clip that acts nearly always", trainer(TrainerConfig { clip_norm: Some(0.7), ..TrainerConfig::default() })),
        ("tanh", model(|m| (m.activation, m.init) = (Activation::Tanh, Init::XavierNormal { gain: 1.0 }))),
        ("a norm", model(|m| (m.norm, m.depth) = (NormKind::Layer, 6))),
        ("running statistics", model(|m| m.norm = NormKind::BATCH)),
        ("halves", trainer(TrainerConfig { precision: Precision::F16, ..TrainerConfig::default() })),
        ("micro-batches", trainer(TrainerConfig { accumulate: 3, ..TrainerConfig::default() })),
        ("dropout", Case { dropout: 0.1, ..Case::default() }),
        ("an odd batch", Case { touch: odd, ..Case::default() }),
        ("a layer frozen on purpose", Case { frozen: "layer/0", ..Case::default() }),
    ];
    for (what, case) in runs {
        let diagnosis = case.diagnosed();
        assert!(diagnosis.findings.is_empty(), "{what}: {diagnosis}");
        assert!(diagnosis.to_string().starts_with("healthy"), "{diagnosis}");
    }
}

#[test]
fn rates_are_judged_by_what_updates_do() {
    has(&sgd(40.0), "rate-too-high", "optimizer/lr", "lower-rate");
    has(&sgd(3e-6), "rate-too-low", "optimizer/lr", "raise-rate");
    has(&adam(AdamWConfig { lr: 0.7.into(), ..AdamWConfig::default() }), "rate-too-high", "optimizer/lr", "lower-rate");
    let falls = Schedule::WarmupLinear { base: 0.1, steps: 0, total: 4, init: 0.1, end: 0.0 };
    let early = Case { sgd: SgdConfig { lr: falls.into(), ..SgdConfig::default() }, ..Case::default() };
    has(&early, "decays-too-early", "optimizer/lr", "longer-schedule");
    let long = Case {
        sgd: SgdConfig { lr: Schedule::warmup(0.1, 3_000_000).into(), ..SgdConfig::default() },
        ..Case::default()
    };
    has(&long, "warmup-too-long", "optimizer/lr", "shorter-warmup");
}

#[test]
fn an_optimizer_of_the_wrong_settings_is_told() {
    let momentum = SgdConfig { lr: 0.02.into(), momentum: 0.9993, ..SgdConfig::default() };
    has(&Case { sgd: momentum, ..Case::default() }, "momentum-too-high", "optimizer/momentum", "lower-momentum");
    let decays = AdamWConfig { lr: 3e-3.into(), weight_decay: 60.0, ..AdamWConfig::default() };
    has(&adam(decays), "decay-too-large", "optimizer/weight_decay", "lower-decay");
    let slow = AdamWConfig { lr: 2e-3.into(), eps: 40.0, ..AdamWConfig::default() };
    has(&adam(slow), "epsilon-too-large", "optimizer/eps", "lower-epsilon");
}

#[test]
fn passes_that_leave_nothing_of_a_gradient_or_drown_it_are_told() {
    let none = TrainerConfig::default;
    has(
        &trainer(TrainerConfig { clip_norm: Some(3e-5), ..none() }),
        "clip-too-tight",
        "trainer/clip_norm",
        "raise-clip",
    );
    has(
        &trainer(TrainerConfig { clip_value: Some(3e-8), ..none() }),
        "clip-too-tight",
        "trainer/clip_value",
        "raise-clip",
    );
    has(&trainer(TrainerConfig { agc: Some(4e-7), ..none() }), "agc-too-tight", "trainer/agc", "raise-agc");
    let noise = Some(Noise::Fixed { sigma: 2.0 });
    has(&trainer(TrainerConfig { noise, ..none() }), "noise-too-large", "trainer/noise", "lower-noise");
}

#[test]
fn halves_without_a_fitting_loss_scale_are_told() {
    let half = |loss_scale| TrainerConfig { precision: Precision::F16, loss_scale, ..TrainerConfig::default() };
    let tiny: LossOf = |model, x, y| cross_entropy(model, x, y) * 3e-8;
    let eps = AdamWConfig { lr: 2e-3.into(), eps: 1e-16, ..AdamWConfig::default() };
    let under = Case { loss: tiny, adam: Some(eps), ..trainer(half(LossScale::None)) };
    has(&under, "underflow", "trainer/loss_scale", "loss-scale");
    has(&trainer(half(LossScale::Fixed(2f64.powi(35)))), "overflow", "trainer/loss_scale", "dynamic-scale");
}

#[test]
fn first_values_are_judged_by_signal_and_gradient() {
    let small = model(|m| (m.depth, m.init) = (6, Init::Normal(0.015)));
    has(&small, "vanishing-init", "layer[0]", "init");
    has(&model(|m| (m.depth, m.init) = (6, Init::He { fan: Fan::In }.times(3.5))), "exploding-init", "layer[", "init");
    has(&model(|m| m.bias = -7.0), "dead-units", "layer[", "init");
    let flat = model(|m| (m.activation, m.init) = (Activation::Tanh, Init::Normal(2.0)));
    has(&flat, "saturated-units", "layer[", "init");
    has(&model(|m| m.init = Init::Constant(0.08)), "symmetry", "layer/", "init");
    let sigmoid =
        model(|m| (m.activation, m.depth, m.init) = (Activation::Sigmoid, 4, Init::XavierNormal { gain: 1.0 }));
    has(&sigmoid, "vanishing-activation", "layer[0]", "norm");
}

#[test]
fn batches_that_do_harm_are_told() {
    let nan: Touch = |step, x| {
        if step == 37 {
            x[5] = f32::NAN;
        }
    };
    has(&Case { touch: nan, ..Case::default() }, "nan-input", "inputs/x", "skip-step");
    let diagnosis = Case { touch: nan, ..Case::default() }.diagnosed();
    assert_eq!((diagnosis.findings[0].since, diagnosis.steps), (37, 38), "{diagnosis}");
    let far: Touch = |step, x| {
        if step == 25 {
            x.iter_mut().for_each(|value| *value *= 3e4);
        }
    };
    has(&Case { touch: far, ..Case::default() }, "outlier-batch", "inputs/x", "skip-step");
    let large: Touch = |_, x| x.iter_mut().for_each(|value| *value *= 180.0);
    has(&Case { touch: large, ..Case::default() }, "input-scale", "inputs/x", "scale-inputs");
    let same: Touch = |_, x| x.fill(0.3);
    let diagnosis = Case { touch: same, ..Case::default() }.diagnosed();
    assert_eq!(diagnosis.fault(), "input-constant", "{diagnosis}");
    assert!(diagnosis.findings[0].proof.is_none(), "no replay can show it");
}

#[test]
fn faults_of_the_program_are_read_from_the_tape() {
    has(&model(|m| (m.depth, m.detach_after) = (4, Some(2))), "cut", "layer[2]", "attach");
    let twice: LossOf = |model, x, y| model.forward(x, true).softmax(1).cross_entropy(y);
    has(&Case { loss: twice, ..sgd(0.02) }, "double-softmax", "logits", "logits");
    let sum: LossOf = |model, x, y| {
        model
            .forward(x, true)
            .cross_entropy_with(y, &CrossEntropy { reduction: Reduction::Sum, ..CrossEntropy::default() })
    };
    has(&Case { loss: sum, ..sgd(0.4) }, "sum-not-mean", "loss", "mean");
    let added = TrainerConfig { accumulate: 12, weighting: Weighting::Sum, ..TrainerConfig::default() };
    has(&Case { trainer: added, ..sgd(0.2) }, "sum-not-mean", "accumulate", "mean");
    let root: LossOf = |model, x, y| {
        let bias = x.tape().param(model.head.bias.expect("it has one"));
        cross_entropy(model, x, y) + bias.square().sum().sqrt()
    };
    has(&Case { loss: root, ..Case::default() }, "unguarded", "nn/tests/suite/diagnosis.rs", "guard");
    has(&Case { dropout: 0.98, ..Case::default() }, "dropout-too-high", "dropout", "lower-dropout");
    let frozen = Case { frozen: "layer", ..model(|m| m.init = Init::Normal(0.1)) };
    has(&frozen, "frozen", "layer/0", "unfreeze");
    let stale = model(|m| m.norm = NormKind::Batch { momentum: 1e-5 }).diagnosed();
    assert_eq!(stale.fault(), "batch-statistics", "{stale}");
}

#[test]
fn a_run_that_does_not_repeat_proves_nothing() {
    let case = sgd(40.0);
    let opened = Rc::new(Cell::new(0));
    let mut study = Study::new(STEPS, |setup: &Setup| {
        opened.set(opened.get() + 1);
        let mut run = case.open(setup);
        // Each time the batches begin elsewhere.
        for _ in 1..opened.get() {
            (run.batches)()?;
        }
        Ok::<_, Error>(run)
    });
    let mut diagnosis = study.diagnose().expect("it runs");
    study.prove(&mut diagnosis).expect("it runs");
    assert_eq!(diagnosis.fault(), "rate-too-high");
    assert!(diagnosis.findings[0].proof.is_none(), "{diagnosis}");
}

#[test]
fn who_watches_may_stop_and_keeps_what_is_known() {
    let case = Case::default();
    let mut study = Study::new(STEPS, |setup: &Setup| Ok::<_, Error>(case.open(setup)));
    let diagnosis = study.diagnose_watched(&mut |trace| trace.updates.len() <= 20).expect("it runs");
    assert!(diagnosis.stopped);
    assert_eq!(diagnosis.steps, 21);
    let case = sgd(3e-6);
    let mut study = Study::new(STEPS, |setup: &Setup| Ok::<_, Error>(case.open(setup)));
    let mut diagnosis = study.diagnose().expect("it runs");
    let mut told = vec![];
    let mut watch = |remedy: &str, trace: &Trace| {
        told.push(remedy.to_string());
        remedy == "repeat" || trace.batches.len() <= 3
    };
    study.prove_within(&mut diagnosis, STEPS, &mut watch).expect("it runs");
    assert_eq!(diagnosis.fault(), "rate-too-low");
    assert!(diagnosis.findings[0].proof.is_none());
    assert_eq!(told.last().map(String::as_str), Some("raise-rate"));
}

#[test]
fn a_run_with_no_edits_is_the_run() {
    let case = Case::default();
    let losses = |setup: &Setup| {
        let mut opened = case.open(setup);
        let mut all = vec![];
        for _ in 0..12 {
            let micro = (opened.batches)().expect("there are batches");
            let named: Vec<(&str, &Array)> = micro[0].iter().map(|(name, array)| (name.as_str(), array)).collect();
            opened.trainer.step(&mut opened.session, &named).expect("it runs");
        }
        opened.session.wait().expect("it ran");
        let taps = opened.session.taps().expect("it ran");
        all.extend(opened.trainer.updates(&taps).into_iter().map(|update| update.loss.to_bits()));
        all
    };
    let plain = losses(&Setup::default());
    assert_eq!(plain, losses(&Setup { edits: vec![Edit::Skip(99)], ..Setup::default() }));
    assert_ne!(plain, losses(&Setup { edits: vec![Edit::Tune(Tuning::Rate(0.5))], ..Setup::default() }));
    assert_ne!(plain, losses(&Setup { edits: vec![Edit::Loss(0.5)], ..Setup::default() }));
}

#[test]
fn a_handler_sees_each_operation_at_its_line_and_scope_and_none_of_its_own() {
    let t = Tape::default();
    let x = t.input("x", [2], DType::F64);
    let y = t.with_rewrite(
        |op, x| {
            let tape = x[0].tape();
            let wanted = *op == Op::Unary(Unary::Exp) && tape.scope_path() == "inner";
            // What it records itself is recorded as it is.
            wanted.then(|| (x[0].exp() + 1.0).log())
        },
        || x.exp() + t.scoped("inner", || x.exp()),
    );
    let z = x.exp();
    t.tap("y", y);
    t.tap("z", z);
    let program = t.finish();
    let count = |unary: Unary| program.nodes().iter().filter(|node| node.op == Op::Unary(unary)).count();
    // One exponential outside, which is also that of z; one within the handler is the same again.
    assert_eq!((count(Unary::Exp), count(Unary::Log)), (1, 1));
    let log = program.nodes().iter().find(|node| node.op == Op::Unary(Unary::Log)).expect("it is there");
    assert!(log.site.file().ends_with("diagnosis.rs"), "{}", log.site);
}

#[test]
fn optimizers_are_tuned_before_anything_is_recorded() {
    let mut store = Store::new();
    let weight = Builder::new(&mut store, 0).param("w", [3, 2], &Init::Ones);
    let params = store.params();
    let falls = Schedule::WarmupCosine { base: 0.4, steps: 10, total: 100, init: 0.0, end: 0.0 };
    let of = |name: &str| (name.to_string(), falls.into());
    let (sgd, momentum, adam, adamw, rms) = (of("sgd"), of("heavy"), of("adam"), of("adamw"), of("rms"));
    let heavy = SgdConfig { name: momentum.0, lr: momentum.1, momentum: 0.5, ..SgdConfig::default() };
    let mut all: Vec<(Box<dyn Optimizer>, bool, bool)> = vec![
        (
            Box::new(Sgd::new(&mut store, &params, SgdConfig { name: sgd.0, lr: sgd.1, ..SgdConfig::default() })),
            false,
            false,
        ),
        (Box::new(Sgd::new(&mut store, &params, heavy)), true, false),
        (
            Box::new(Adam::new(&mut store, &params, AdamConfig { name: adam.0, lr: adam.1, ..AdamConfig::default() })),
            true,
            true,
        ),
        (
            Box::new(AdamW::new(
                &mut store,
                &params,
                AdamWConfig { name: adamw.0, lr: adamw.1, ..AdamWConfig::default() },
            )),
            true,
            true,
        ),
        (
            Box::new(RmsProp::new(
                &mut store,
                &params,
                RmsPropConfig { name: rms.0, lr: rms.1, ..RmsPropConfig::default() },
            )),
            false,
            true,
        ),
    ];
    for (optimizer, has_momentum, has_eps) in &mut all {
        let name = optimizer.name();
        let printed = |optimizer: &dyn Optimizer| format!("{:?}", optimizer.parameters());
        assert_eq!(optimizer.rate(10), Some(0.4), "{name}");
        assert!(optimizer.tune(Tuning::Rate(0.5)) && optimizer.tune(Tuning::Decay(0.125)), "{name}");
        assert_eq!((optimizer.rate(10), optimizer.rate(100)), (Some(0.2), Some(0.0)), "{name}");
        assert!(optimizer.tune(Tuning::Hold) && optimizer.tune(Tuning::Warmup(40)), "{name}");
        assert_eq!((optimizer.rate(19), optimizer.rate(5000)), (Some(0.1), Some(0.2)), "{name}");
        assert_eq!(optimizer.tune(Tuning::Momentum(0.75)), *has_momentum, "{name}");
        assert_eq!(optimizer.tune(Tuning::Epsilon(0.03125)), *has_eps, "{name}");
        let text = printed(&**optimizer);
        assert!(text.contains("0.125") && text.contains("0.75") == *has_momentum, "{text}");
        assert_eq!(text.contains("0.03125"), *has_eps, "{text}");
        let again = optimizer.over(&mut store, &params).expect("they all can");
        assert!(printed(&*again) == text && again.states().params().contains(weight), "{name}");
    }
}

#[test]
fn sites_are_changed_by_formula() {
    let of = |how: Transform, activation: Activation, x: [f32; 2]| -> Vec<f64> {
        let mut store = Store::new();
        let config = MlpConfig { inputs: 2, width: 2, depth: 2, outputs: 2, activation, ..MlpConfig::default() };
        let model = Mlp::new(Builder::new(&mut store, 0), &MlpConfig { init: Init::Identity { gain: 1.0 }, ..config });
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let edits = vec![Edit::Sites(vec!["layer[0]/z".into(), "layer[1]/z".into()], how)];
        let trainer =
            Trainer::new(&mut store, &params, sgd, TrainerConfig { edits, ..TrainerConfig::default() }, move |batch| {
                let y = model.forward(batch.get("x"), true);
                batch.tape().tap("y", y);
                y.square().mean().into()
            });
        let tape = Tape::new(store.layout().clone().into());
        let x = Array::new([1, 2], x.to_vec());
        trainer.record_micro_batch(&tape, &[("x", &x)]);
        let mut session = open(store);
        let step = session.compile(tape.finish()).expect("it compiles");
        session.run(&step, &[("x", &x)]).expect("it runs");
        session.wait().expect("it ran");
        session.taps().expect("it ran")[0].get("y").expect("tapped").to_f64()
    };
    let near = |have: &[f64], want: &[f64]| have.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-3);
    let plain = |how| of(how, Activation::Identity, [3.0, 4.0]);
    assert!(near(&plain(Transform::Times(2.0)), &[12.0, 16.0]));
    // The second layer's input is the first's, and is added to it.
    assert!(near(&plain(Transform::Shortcut), &[6.0, 8.0]));
    assert!(near(&plain(Transform::Normalise), &[-1.0, 1.0]));
    let rms = (12.5f64).sqrt();
    assert!(near(&plain(Transform::Unit), &[3.0 / rms, 4.0 / rms]));
    assert!(near(&plain(Transform::Log), &[3f64.ln().ln(), 4f64.ln().ln()]));
    for saturating in [Activation::Tanh, Activation::Sigmoid] {
        assert!(near(&of(Transform::Rectify, saturating, [-3.0, 4.0]), &[0.0, 4.0]));
    }
    // Two layers leak a hundredth each.
    assert!(near(&of(Transform::Leak, Activation::Relu, [-30000.0, 4.0]), &[-3.0, 4.0]));
    // There is nothing to replace.
    assert!(near(&plain(Transform::Rectify), &[3.0, 4.0]) && near(&plain(Transform::Leak), &[3.0, 4.0]));
}

#[test]
fn a_recurrence_is_regularized_as_if_the_loss_had_it() {
    // The weights that a run of three updates leaves, and its first loss.
    let run = |cell: wgrad::Cell, edits: Vec<Edit>, written: bool| {
        let mut store = Store::new();
        let init = RecurrentInit { hidden: Init::Orthogonal { gain: 0.5 }, ..RecurrentInit::of(cell) };
        let layer = Recurrent::new(Builder::new(&mut store, 0), cell, 2, 3, &init);
        let (params, weight) = (store.params(), layer.weight_hh);
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let config = TrainerConfig { edits, ..TrainerConfig::default() };
        let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
            let x = batch.get("x");
            let outputs = if written { layer.unrolled(x) } else { layer.forward(x) };
            let loss = outputs.last.square().mean();
            match written {
                true => (loss + omega(loss, &layer, &outputs) * 0.5).into(),
                false => loss.into(),
            }
        });
        let mut session = open(store);
        let x = Array::new([4, 2, 2], (0..16).map(|i| (i as f32).sin()).collect::<Vec<_>>());
        (0..3).for_each(|_| _ = trainer.step(&mut session, &[("x", &x)]).expect("it runs"));
        session.wait().expect("it ran");
        let loss = trainer.updates(&session.taps().expect("it ran"))[0].loss;
        (session.read_param(weight).expect("it ran").to_f64(), loss)
    };
    for cell in [wgrad::Cell::Tanh, wgrad::Cell::Sigmoid, wgrad::Cell::Irnn] {
        let (plain, loss) = run(cell, vec![], false);
        let (written, with_more) = run(cell, vec![], true);
        let (edited, told) = run(cell, vec![Edit::Omega(0.5)], false);
        assert!(edited.iter().zip(&written).all(|(a, b)| (a - b).abs() < 1e-6), "{edited:?} {written:?}");
        assert!(edited.iter().zip(&plain).any(|(a, b)| (a - b).abs() > 1e-4), "{edited:?} {plain:?}");
        // The loss that is told of has no more in it.
        assert!((told - loss).abs() < 1e-6 && (with_more - loss).abs() > 1e-4, "{told} {loss} {with_more}");
    }
    let gated = |edits| run(wgrad::Cell::Lstm, edits, false);
    assert_eq!(gated(vec![Edit::Omega(0.5)]), gated(vec![]));
}

#[test]
fn an_edit_that_names_what_is_not_there_changes_nothing() {
    let case = Case::default();
    let site = Tape::default().site();
    let nowhere = Spot { op: Op::Detach, site, scope: "nowhere".into() };
    let edits = vec![Edit::Operations(vec![nowhere]), Edit::Sites(vec!["nowhere/z".into()], Transform::Log)];
    let mut study = Study::new(6, |setup: &Setup| {
        Ok::<_, Error>(case.open(&Setup { edits: [setup.edits.clone(), edits.clone()].concat(), ..setup.clone() }))
    });
    let edited = study.diagnose().expect("it runs");
    let mut study = Study::new(6, |setup: &Setup| Ok::<_, Error>(case.open(setup)));
    assert_eq!(study.diagnose().expect("it runs").loss_last.to_bits(), edited.loss_last.to_bits());
}

#[test]
fn losses_of_unequal_weight_are_told_with_the_part_that_they_reach() {
    let heavy: LossOf = |model, x, y| {
        let logits = model.forward(x, true);
        logits.cross_entropy(y) + (logits - 1.0).square().mean() * 90.0
    };
    let diagnosis = Case { loss: heavy, ..sgd(1e-3) }.diagnosed();
    assert_eq!(diagnosis.fault(), "imbalance", "{diagnosis}");
    let light: LossOf = |model, x, y| {
        let logits = model.forward(x, true);
        logits.cross_entropy(y) + logits.square().mean() * 1e-3
    };
    let diagnosis = Case { loss: light, ..Case::default() }.diagnosed();
    assert!(diagnosis.findings.is_empty(), "{diagnosis}");
}
