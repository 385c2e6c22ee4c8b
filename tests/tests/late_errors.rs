//! Errors that only values can show: the device skips the step at once, and the error arrives with a later call.

use wgrad::{
    Accumulator, Array, ClipGroups, ClipNorm, DType, Error, FiniteGuard, Grads, InProcess, LossScaler, NonFinite,
    OnGiveUp, Optimizer, ParamSet, Pitfall, Store, Weighting,
};
use wgrad_nn::optim::{AdamW, AdamWConfig};
use wgrad_tests::{Linear, Machine, named};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

/// What is done to the gradients of a model.
type Pipeline = for<'t> fn(Grads<'t>, &FiniteGuard, &ParamSet) -> Grads<'t>;

/// A model whose gradient is given, and one program.
struct Run {
    cpu: Machine,
    step: wgrad::Step,
}

impl Run {
    fn new(pipeline: Pipeline) -> Self {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.5, 0.25])]);
        let params = store.params();
        let guard = FiniteGuard::new(&mut store, "guard", Some(1), OnGiveUp::default());
        let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| adam.step(pipeline(model.grads(t), &guard, &params)));
        Self { cpu, step: step.expect("compiles") }
    }

    fn run(&mut self, value: f32) -> wgrad::Result<u64> {
        self.cpu.session.run(&self.step, &named(&Linear::inputs(&[f32s(&[value, 1.0])])))
    }
}

/// The run and the text of a late error.
fn late<T: std::fmt::Debug>(result: wgrad::Result<T>) -> (u64, String, Option<Pitfall>) {
    let error = result.expect_err("something is wrong");
    let text = error.to_string();
    match error {
        Error::Late { run, pitfall, site, .. } => {
            assert!(text.ends_with(&format!("(recorded at {site})")), "{text}");
            (run, text, pitfall)
        }
        other => panic!("{other}"),
    }
}

const PIPELINES: [(&str, Pipeline); 4] = [
    ("clip_by_global_norm: the norm is not finite", |g, _, _| g.clip_by_global_norm(1.0)),
    ("clip_by_group_norm: the norm is not finite", |g, _, params| {
        g.clip_by_group_norm(&ClipGroups::new().group(params, 1.0).non_finite(NonFinite::Error))
    }),
    ("P37: the loss is not finite", |g, _, _| g.check_loss()),
    ("P37: the loss is not finite", |g, _, _| g.check_loss().clip_by_global_norm(1.0)),
];

#[test]
fn the_step_is_skipped_at_once_and_the_next_call_says_so_once() {
    for (what, pipeline) in PIPELINES {
        type Call = fn(&mut Run) -> wgrad::Result<()>;
        let calls: [Call; 3] =
            [|run| run.run(1.0).map(drop), |run| run.cpu.session.taps().map(drop), |run| run.cpu.session.wait()];
        for call in calls {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut run = Run::new(pipeline);
                assert_eq!(run.run(1.0).expect("all is well"), 0);
                let before = run.cpu.states();
                assert_eq!(run.run(bad).expect("it is not known yet"), 1);
                assert!(run.cpu.states_are(&before), "{what}: parameters and counters stay");
                let (late_run, text, pitfall) = late(call(&mut run));
                assert_eq!((late_run, text.starts_with(&format!("run 1: {what}"))), (1, true), "{text}");
                assert_eq!(pitfall, what.starts_with("P37").then_some(Pitfall::NonFiniteLoss));
                assert!(text.contains("late_errors.rs") || text.contains("model.rs"), "{text}");
                assert!(run.cpu.states_are(&before), "{what}: nothing was run");
                // It has been said: the session goes on, and nothing was lost.
                assert_eq!(run.run(1.0).expect("it goes on"), 2);
                assert!(!run.cpu.states_are(&before));
                let runs: Vec<u64> = run.cpu.session.taps().expect("fine").iter().map(|taps| taps.run).collect();
                assert_eq!(runs, [0, 1, 2]);
            }
        }
    }
}

#[test]
fn each_run_is_told_of_in_order() {
    let mut run = Run::new(|g, _, _| g.clip_by_global_norm(1.0));
    run.run(f32::NAN).expect("not known yet");
    assert_eq!(late(run.run(f32::NAN)).0, 0);
    run.run(f32::NAN).expect("not known yet");
    assert_eq!(late(run.cpu.session.wait()).0, 1);
    run.cpu.session.wait().expect("said");
    run.run(1.0).expect("it goes on");
    run.cpu.session.wait().expect("all is well");
}

#[test]
fn a_policy_can_be_silent_and_is_after_a_check() {
    let silent: [Pipeline; 3] = [
        |g, _, _| g.clip_by_global_norm(ClipNorm::new(1.0).non_finite(NonFinite::Skip)),
        |g, _, _| g.check_finite().clip_by_global_norm(1.0),
        |g, _, params| g.check_finite().clip_by_group_norm(&ClipGroups::new().group(params, 1.0)),
    ];
    for pipeline in silent {
        let mut run = Run::new(pipeline);
        run.run(1.0).expect("runs");
        let before = run.cpu.states();
        run.run(f32::NAN).expect("runs");
        run.cpu.session.wait().expect("nothing to say");
        assert!(run.cpu.states_are(&before));
    }
    let mut run =
        Run::new(|g, _, _| g.check_finite().clip_by_global_norm(ClipNorm::new(1.0).non_finite(NonFinite::Error)));
    run.run(f32::NAN).expect("not known yet");
    late(run.cpu.session.wait());
}

#[test]
fn a_guard_gives_up() {
    let mut run = Run::new(|g, guard, _| g.skip_if_not_finite(guard));
    for value in [1.0, f32::NAN, 1.0, f32::NAN] {
        run.run(value).expect("one in a row is nothing");
    }
    run.cpu.session.wait().expect("one in a row is nothing");
    run.run(f32::NAN).expect("not known yet");
    let (number, text, pitfall) = late(run.run(1.0));
    assert_eq!((number, pitfall), (4, None));
    assert!(text.contains("more than 1 updates in a row were not finite"), "{text}");
    // Who goes on all the same may.
    run.run(1.0).expect("it goes on");
    run.cpu.session.wait().expect("the row has ended");
}

/// What finite gradients do not show: the mean over no targets is NaN, and its gradient zero.
#[test]
fn a_loss_without_targets_is_blamed_on_the_loss() {
    let mut store = Store::new();
    let p = store.param("p", &f32s(&[0.5, 0.25]));
    let params = store.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
    let scaler = LossScaler::fixed(65536.0);
    let acc = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let mut cpu = Machine::poisoned(1, store);
    let mut line = 0;
    let mut step = |checked: bool, accumulated: bool| {
        cpu.session.record(|t| {
            let mask = t.input("mask", [2], DType::F32);
            let count = mask.sum();
            line = line!() + 1;
            let loss = (t.param(p).square() * mask).sum() / count;
            let g = scaler.scale(loss).grad(&params);
            let g = if checked { g.check_loss() } else { g };
            if accumulated {
                acc.add(g);
                adam.step(acc.take(t).unscale(&scaler));
            } else {
                adam.step(g.unscale(&scaler));
            }
        })
    };
    let steps = [step(true, false), step(true, true)].map(|step| step.expect("compiles"));
    for step in steps {
        let mask = |values: [f32; 2]| f32s(&values);
        cpu.session.run(&step, &[("mask", &mask([1.0, 0.0]))]).expect("runs");
        cpu.session.wait().expect("all is well");
        let before = cpu.states();
        cpu.session.run(&step, &[("mask", &mask([0.0, 0.0]))]).expect("not known yet");
        assert!(cpu.states_are(&before), "the step was skipped");
        let (_, text, pitfall) = late(cpu.session.taps());
        assert_eq!(pitfall, Some(Pitfall::NonFiniteLoss));
        assert!(text.contains(&format!("late_errors.rs:{line}:")), "{text}: line {line}");
    }
}

/// A loss that is finite, and infinite once it is scaled, is no fault of the loss: the scale backs off.
#[test]
fn a_scaled_loss_that_overflows_is_not_blamed() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0e34])]);
    let params = store.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
    let scaler = LossScaler::fixed(65536.0);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let scaled = scaler.scale(model.loss(t));
        adam.step(scaled.grad(&params).check_loss().unscale(&scaler));
    });
    let step = step.expect("compiles");
    cpu.session.run(&step, &named(&Linear::inputs(&[f32s(&[2.0])]))).expect("runs");
    cpu.session.wait().expect("the loss itself is finite");
}

/// The loss of one rank: the step is skipped on all, and that rank is told.
#[test]
fn a_loss_of_one_rank_skips_the_step_of_all() {
    for reduced_first in [false, true] {
        std::thread::scope(|scope| {
            for rank in InProcess::world(2) {
                scope.spawn(move || {
                    let r = wgrad::Collective::rank(&rank);
                    let mut store = Store::new();
                    let model = Linear::new(&mut store, &[f32s(&[0.0])]);
                    let params = store.params();
                    let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
                    let mut cpu = Machine::poisoned(1, store).as_rank(rank);
                    let step = cpu.session.record(|t| {
                        // Not finite, with a finite gradient.
                        let g = (model.loss(t) + t.input("offset", [], DType::F32)).grad(&params);
                        adam.step(if reduced_first {
                            g.all_reduce().check_loss()
                        } else {
                            g.check_loss().all_reduce()
                        });
                    });
                    let step = step.expect("compiles");
                    let mut run = |offset: f32| {
                        let mut inputs = Linear::inputs(&[f32s(&[1.0])]);
                        inputs.push(("offset".into(), Array::new([], vec![offset])));
                        cpu.session.run(&step, &named(&inputs)).expect("runs");
                        let states = cpu.states();
                        (states, cpu.session.wait().is_err())
                    };
                    let (before, _) = run(0.0);
                    let (after, told) = run(if r == 1 { f32::INFINITY } else { 0.0 });
                    assert!(before.iter().zip(&after).all(|(a, b)| wgrad_tests::same_bits(a, b)));
                    assert_eq!(told, r == 1);
                    let (after, told) = run(0.0);
                    assert!(!told && !wgrad_tests::same_bits(&before[0], &after[0]));
                });
            }
        });
    }
}

#[test]
#[should_panic(expected = "check_loss: accumulated gradients come from several losses")]
fn accumulated_gradients_have_no_loss_of_their_own() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.0])]);
    let params = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let t = wgrad::Tape::new(std::sync::Arc::new(store.layout().clone()));
    acc.add(model.grads(&t));
    drop(acc.take(&t).check_loss());
}
