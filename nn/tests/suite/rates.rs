//! Learning rates that functions of the user's own record.

use crate::{open, param, snapshot};
use approx::relative_eq;
use std::f64::consts::PI;
use wgrad::{Array, DType, Optimizer, Session, StateId, Step, Store, Tape, Tuning};
use wgrad_nn::{
    Capsule, Rate, Schedule,
    checkpoint::{self, Metadata},
    optim::{Adam, AdamConfig, Group, Sgd, SgdConfig},
};

const STEPS: usize = 5;
const TOTAL: usize = 20;
const BUILT_IN: Schedule =
    Schedule::WarmupCosine { base: 0.3, steps: STEPS as u32, total: TOTAL as u32, init: 0.1, end: 0.01 };

/// [`BUILT_IN`], by hand: from 0.1 to 0.3 in a straight line, then to 0.01 along half a cosine.
fn by_hand() -> Rate {
    let (base, init, end) = (0.3, 0.1, 0.01);
    Rate::function("warm_cosine", move |t| {
        let rising = t / STEPS as f64 * (base - init) + init;
        let angle = (t - STEPS as f64) / (TOTAL - STEPS) as f64 * PI;
        let falling = (angle.cos() + 1.0) * (0.5 * (base - end)) + end;
        let rest = t.less(TOTAL as f64).select(falling, t.tape().scalar(end, t.dtype()));
        t.less(STEPS as f64).select(rising, rest)
    })
}

/// A model of two parameters with Adam. The second parameter is in a group with a rate of its own.
fn adam(dtype: DType, lr: Rate, of_group: Rate) -> (Session, Step) {
    let mut store = Store::new();
    let start = |values: &[f64]| Array::new([values.len()], wgrad::Data::from_f64(dtype, values));
    let (a, b) = (store.param("a", &start(&[1.0, -2.0])), store.param("b", &start(&[0.5])));
    let params = store.params();
    let groups = vec![Group { params: [b].into_iter().collect(), lr: Some(of_group), weight_decay: None }];
    let config = AdamConfig { lr, groups, ..AdamConfig::default() };
    let adam = Adam::new(&mut store, &params, config);
    let mut session = open(store);
    let step = session.record(|t| {
        let loss = (t.param(a) - 3.0).square().sum() + (t.param(b) - 3.0).square().sum();
        adam.step(loss.grad(&params));
    });
    (session, step.expect("compiles"))
}

fn run(session: &mut Session, step: &Step, times: usize) -> Vec<(String, Array)> {
    for _ in 0..times {
        session.run(step, &[]).expect("runs");
    }
    session.wait().expect("they have run");
    snapshot(session)
}

#[test]
fn a_schedule_by_hand_is_the_built_in_one() {
    for dtype in [DType::F32, DType::F64] {
        let (mut mine, my_step) = adam(dtype, by_hand(), by_hand());
        let (mut built_in, step) = adam(dtype, BUILT_IN.into(), BUILT_IN.into());
        for at in 0..TOTAL + 3 {
            assert_eq!(run(&mut mine, &my_step, 1), run(&mut built_in, &step, 1), "{dtype}, update {at}");
        }
    }
}

/// SGD on a parameter whose gradient is 1, and the parameter's changes.
struct Plain {
    session: Session,
    step: Step,
    at: f64,
}

impl Plain {
    fn new(lr: impl FnOnce(&mut Store) -> Rate) -> Self {
        Self::tuned(lr, &[])
    }

    fn tuned(lr: impl FnOnce(&mut Store) -> Rate, tunings: &[Tuning]) -> Self {
        let mut store = Store::new();
        let p = store.param("p", &Array::new([1], vec![0.0]));
        let (lr, params) = (lr(&mut store), store.params());
        let mut sgd = Sgd::new(&mut store, &params, SgdConfig { lr, ..SgdConfig::default() });
        for tuning in tunings {
            assert!(sgd.tune(*tuning), "{tuning:?}");
        }
        let mut session = open(store);
        let step = session.record(|t| sgd.step(t.param(p).sum().grad(&params))).expect("compiles");
        Self { session, step, at: 0.0 }
    }

    /// The rate of the next update, by the parameter's change.
    fn rate(&mut self) -> f64 {
        self.session.run(&self.step, &[]).expect("runs");
        let p = param(&self.session, "p");
        let now = self.session.read_param(p).expect("readable").item(0);
        std::mem::replace(&mut self.at, now) - now
    }
}

#[test]
fn a_rate_is_the_function_of_the_updates_made() {
    let mut plain = Plain::new(|_| Rate::function("halving", |t| (t * 0.5f64.ln()).exp() * 0.1));
    for updates in 0..8 {
        let (have, want) = (plain.rate(), 0.1 * 0.5f64.powi(updates));
        assert!(relative_eq!(have, want, max_relative = 1e-9), "{updates}: {have} for {want}");
    }
    // The rate is tapped, as every rate that a run judges.
    let taps = plain.session.taps().expect("ran").pop().expect("the last run");
    let tapped = taps.scalar("sgd/lr").expect("tapped");
    assert!(relative_eq!(tapped, 0.1 * 0.5f64.powi(7), max_relative = 1e-9), "{tapped}");
}

#[test]
fn a_function_may_read_states() {
    let mut scale = None;
    let mut plain = Plain::new(|store| {
        let state = store.state("plateau/factor", &Array::new([], vec![1.0]));
        scale = Some(state);
        Rate::function("on_plateau", move |t| t.tape().state(state) * 0.5)
    });
    let scale: StateId = scale.expect("declared");
    assert_eq!(plain.rate(), 0.5);
    plain.session.write(scale, &Array::new([], vec![0.25])).expect("written");
    assert_eq!(plain.rate(), 0.125);
}

#[test]
fn a_run_resumes_within_the_curve() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let (mut whole, step) = adam(DType::F32, by_hand(), BUILT_IN.times(0.5).into());
    run(&mut whole, &step, 8);
    checkpoint::save(&mut whole, &path, &Metadata::new()).expect("saves");
    let want = run(&mut whole, &step, 9);
    let (mut resumed, step) = adam(DType::F32, by_hand(), BUILT_IN.times(0.5).into());
    checkpoint::load(&mut resumed, &path).expect("loads");
    assert_eq!(run(&mut resumed, &step, 9), want);
}

/// A stored program has the curve in it: nothing of the function is needed to run it.
#[test]
fn a_stored_program_has_the_curve() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("capsule");
    let (mut session, step) = adam(DType::F32, by_hand(), by_hand());
    run(&mut session, &step, 7);
    Capsule::of(&mut session, &step, &[]).expect("readable").save(&path).expect("saves");
    let backend = wgrad_cpu::CpuBackend::poisoned(2).expect("two threads start");
    let (mut replayed, again) = Capsule::load(&path).expect("loads").open(Box::new(backend)).expect("opens");
    assert_eq!(run(&mut replayed, &again, 5), run(&mut session, &step, 5));
}

#[test]
fn a_program_prints_the_function() {
    let (_, step) = adam(DType::F32, by_hand(), 0.1.into());
    let pass = step.passes().iter().find(|pass| pass.name == "adam").expect("recorded");
    assert_eq!(pass.parameters[0], ("lr", "warm_cosine".to_string()));
    let text = step.to_string();
    let scope = text.split("\n\n").find(|part| part.starts_with("warm_cosine")).expect("a scope of its own");
    assert!(scope.contains("cos"), "{scope}");
}

#[test]
fn a_rate_out_of_range_skips_the_step_and_is_reported() {
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        let record = move |_: &mut Store| {
            Rate::function("bad", move |t| t.equals(2.0).select(t.tape().scalar(bad, t.dtype()), t.ones_like()))
        };
        let mut plain = Plain::new(record);
        assert_eq!([plain.rate(), plain.rate()], [1.0, 1.0]);
        plain.session.run(&plain.step, &[]).expect("it is judged later");
        let error = plain.session.wait().expect_err("it is out of range").to_string();
        assert!(error.contains("sgd: lr"), "{error}");
        assert_eq!(plain.rate(), 0.0, "the step was skipped, and so is the next: the count stands still");
    }
}

#[test]
fn a_function_is_tuned_by_a_factor_and_a_rise() {
    let falling = |_: &mut Store| Rate::function("falling", |t| (t * 0.25 + 1.0).recip());
    let want = |t: usize| 1.0 / (1.0 + 0.25 * t as f64);
    let mut tuned = Plain::tuned(falling, &[Tuning::Rate(0.5), Tuning::Warmup(4)]);
    for t in 0..6 {
        let (have, want) = (tuned.rate(), 0.5 * want(t) * ((t + 1) as f64 / 4.0).min(1.0));
        assert!(relative_eq!(have, want, max_relative = 1e-12), "{t}: {have} for {want}");
    }
    let mut store = Store::new();
    store.param("p", &Array::zeros([1], DType::F32));
    let (params, lr) = (store.params(), falling(&mut Store::new()));
    let mut sgd = Sgd::new(&mut store, &params, SgdConfig { lr, ..SgdConfig::default() });
    assert!(!sgd.tune(Tuning::Hold), "only a run knows the peak");
    assert!(sgd.tune(Tuning::Rate(0.5)) && sgd.parameters()[0] == ("lr", "falling * 0.5".to_string()));
    assert_eq!(sgd.rate(0), None);
}

fn step_with(lr: Rate) {
    let mut store = Store::new();
    let p = store.param("p", &Array::zeros([3], DType::F32));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr, ..SgdConfig::default() });
    let tape = Tape::new(store.into_parts().0);
    sgd.step(tape.param(p).sum().grad(&params));
}

#[test]
#[should_panic(expected = "learning rate wide: the function returned f32[2], and must return a float scalar")]
fn a_rate_is_a_scalar() {
    step_with(Rate::function("wide", |t| t.broadcast_to([2])));
}

#[test]
#[should_panic(expected = "learning rate count: the function returned u32[], and must return a float scalar")]
fn a_rate_is_a_float() {
    step_with(Rate::function("count", |t| t.cast(DType::U32)));
}

#[test]
fn a_rate_is_equal_to_its_clones_alone() {
    let rate = by_hand();
    assert_eq!(rate, rate.clone());
    assert_ne!(rate, by_hand());
    assert_eq!(rate.to_string(), "warm_cosine");
}
