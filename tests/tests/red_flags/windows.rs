//! Micro-batches and windows.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record, run, run_on, session, state},
};
use wgrad::{
    Accumulator, CrossEntropy, DType, DynamicScale, LossScaler, Optimizer,
    Pitfall::{
        BackwardTwice, BatchNormWithAccumulation, KeptAfterSkip, PassOnPartialWindow, ScaleChangesInsideWindow,
        ShortWindow, StaleGradients, UndividedSum, UnequalMicroBatches, ViolatedWindow, ZeroInsideWindow,
    },
    Scaled, Store, Weighting,
};
use wgrad_nn::optim::{Sgd, SgdConfig};

const SOURCE: &str = include_str!("windows.rs");
const ACCUMULATE: &str = "autograd/src/passes/accumulate.rs";

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: UndividedSum,
        why: "The gradient of K micro-batches, each of a mean loss, is then K times too large. An accumulator is told how \
              to weight; one that is told to sum is a warning.",
        mistake: Mistake::ByType(ACCUMULATE, "E0061", "this function takes 4 arguments but 3 arguments were supplied"),
        right: p4_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ShortWindow,
        why: "The last window of an epoch often has fewer micro-batches, and its step would be smaller for no reason.",
        mistake: Mistake::Impossible(
            "An accumulator divides by the number of micro-batches, or of tokens, that it holds: it counts them itself, \
             and nobody can give it another number. (`Weighting::Sum` divides by nothing, and is a warning: P4.)",
            Some(p5_shown),
        ),
        right: p5_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ZeroInsideWindow,
        why: "What the window has collected is lost.",
        mistake: Mistake::Impossible(
            "Nobody zeroes gradients. Those of one program are values, not buffers that are added to; those of a window \
             are in an accumulator, which `take` empties; there is no other call for it.",
            Some(p10_shown),
        ),
        right: p6_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: PassOnPartialWindow,
        why: "A mean of clipped gradients is another thing than the clipped mean: each micro-batch alone is noisier, and \
              longer, than the whole. Where that is meant, `per_micro_batch()` says so.",
        mistake: Mistake::Refused(p7_mistake),
        right: p7_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: StaleGradients,
        why: "Gradients of two updates add up.",
        mistake: Mistake::Impossible(
            "Each `loss.grad` gives new gradients, and `take` leaves the accumulator empty: there is nothing to forget.",
            Some(p10_shown),
        ),
        right: p6_right,
        right_of: Some(ZeroInsideWindow),
        source: SOURCE,
    },
    Entry {
        pitfall: ScaleChangesInsideWindow,
        why: "Micro-batches under different scales are added up as if they had one. A session counts micro-batches over \
              its runs, and refuses the run.",
        mistake: Mistake::AtRun(p12_mistake),
        right: p12_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: BackwardTwice,
        why: "One loss counts twice in the window.",
        mistake: Mistake::Refused(p40_mistake),
        right: p6_right,
        right_of: Some(ZeroInsideWindow),
        source: SOURCE,
    },
    Entry {
        pitfall: BatchNormWithAccumulation,
        why: "Batch normalisation takes mean and variance of what it is given: of a micro-batch. Accumulation does not \
              make these the statistics of the whole batch.",
        mistake: Mistake::Linted(p44_mistake),
        right: p44_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: UnequalMicroBatches,
        why: "Where targets are ignored (padding, say), each micro-batch is a mean over another number of tokens, and \
              the mean of such means gives the tokens of short ones more weight.",
        mistake: Mistake::Linted(p46_mistake),
        right: p46_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: KeptAfterSkip,
        why: "The gradients that made the step be skipped would spoil the next window too.",
        mistake: Mistake::Impossible(
            "`take` empties the accumulator before anybody knows whether the step is taken or skipped.",
            Some(p47_shown),
        ),
        right: p12_right,
        right_of: Some(ScaleChangesInsideWindow),
        source: SOURCE,
    },
    Entry {
        pitfall: ViolatedWindow,
        why: "A step with half of the window, or a window with a micro-batch too many, is not the batch that was meant. \
              A session counts; `take_last` is for data that has ended.",
        mistake: Mistake::AtRun(p50_mistake),
        right: p6_right,
        right_of: Some(ZeroInsideWindow),
        source: SOURCE,
    },
];

fn p4_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        window.add(model.loss(t).grad(&model.params));
        sgd.step(window.take(t).check_finite());
    })
}

fn p5_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let window = window.micro_batches(&mut store, 4);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        window.add(model.loss(t).grad(&model.params));
        // The data has ended: the mean is over those that are in.
        sgd.step(window.take_last(t).check_finite());
    })
}

fn p6_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let window = window.micro_batches(&mut store, 2);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        window.add(model.loss(t).grad(&model.params));
        window.add(model.other_loss(t).grad(&model.params));
        sgd.step(window.take(t).check_finite());
    })
}

fn p7_mistake(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record(store, |t| {
        window.add(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p7_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        window.add(model.loss(t).grad(&model.params));
        sgd.step(window.take(t).clip_by_global_norm(1.0));
    })
}

fn p12_mistake(mut store: Store, model: &Model) -> String {
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let window: Accumulator<Scaled> = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let window = window.micro_batches(&mut store, 2);
    let mut session = session(store);
    let add = session.record(|t| window.add(scaler.scale(model.loss(t)).grad(&model.params))).expect("compiles");
    let update = session.record(|t| scaler.update(t)).expect("compiles");
    run(&mut session, &add).expect("the first micro-batch");
    run(&mut session, &update).expect_err("the window is open").to_string()
}

fn p12_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let window: Accumulator<Scaled> = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        window.add(scaler.scale(model.loss(t)).grad(&model.params));
        sgd.step(window.take(t).unscale(&scaler));
        scaler.update(t);
    })
}

fn p40_mistake(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record(store, |t| {
        let loss = model.loss(t);
        window.add(loss.grad(&model.params));
        window.add(loss.grad(&model.params));
    })
}

fn p44_mistake(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record(store, |t| {
        let loss = model.outputs(t).batch_norm(None, None, 1e-5).y.square().mean();
        window.add(loss.grad(&model.params));
    })
}

fn p44_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record(store, |t| {
        let loss = model.outputs(t).layer_norm(1, None, None, 1e-5).square().mean();
        window.add(loss.grad(&model.params));
    })
}

fn p46_mistake(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record(store, |t| {
        let targets = t.input("targets", [7], DType::U32);
        let padded = CrossEntropy { ignore_index: Some(0), ..CrossEntropy::default() };
        window.add(model.outputs(t).cross_entropy_with(targets, &padded).grad(&model.params));
    })
}

fn p46_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::TokenWeighted);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let targets = t.input("targets", [7], DType::U32);
        let padded = CrossEntropy { ignore_index: Some(0), ..CrossEntropy::default() };
        let tokens = targets.not_equals(0.0).cast(DType::U32).sum();
        window.add_tokens(model.outputs(t).cross_entropy_with(targets, &padded).grad(&model.params), tokens);
        sgd.step(window.take(t).check_finite());
    })
}

fn p50_mistake(mut store: Store, model: &Model) -> String {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let window = window.micro_batches(&mut store, 2);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let mut session = session(store);
    let add = session.record(|t| window.add(model.loss(t).grad(&model.params))).expect("compiles");
    let update = session.record(|t| sgd.step(window.take(t))).expect("compiles");
    run(&mut session, &add).expect("the first micro-batch");
    run(&mut session, &update).expect_err("the second is missing").to_string()
}

/// One micro-batch of four: the update is that of its gradient.
fn p5_shown() {
    let trained = |short: bool| {
        let mut store = Store::new();
        let model = Model::new(&mut store);
        let recorded = if short { p5_right(store, &model) } else { super::clips::p36_right(store, &model) };
        let mut session = session(recorded.store);
        let step = session.compile(recorded.program).expect("compiles");
        run(&mut session, &step).expect("runs");
        state(&mut session, "params/f32")
    };
    assert_eq!(trained(true), trained(false));
}

/// An update leaves nothing behind.
fn p10_shown() {
    empties(p6_right, 0.5);
}

/// Nor does one that is skipped.
fn p47_shown() {
    empties(p12_right, f32::INFINITY);
}

fn empties(snippet: super::Snippet, value: f32) {
    let recorded = super::record(snippet);
    let mut session = session(recorded.store);
    let before = state(&mut session, "params/f32");
    let step = session.compile(recorded.program).expect("compiles");
    run_on(&mut session, &step, value);
    assert_eq!(state(&mut session, "params/f32") == before, !value.is_finite(), "the step is taken, or not");
    for name in ["window/sum/f32", "window/weight"] {
        assert!(state(&mut session, name).iter().all(|v| *v == 0.0), "{name}");
    }
}

/// That a sum is told, too: the first half of P4 is for the compiler.
#[test]
fn a_sum_is_a_warning() {
    let mut store = Store::new();
    let model = Model::new(&mut store);
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Sum);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let recorded = record(store, |t| {
        window.add(model.loss(t).grad(&model.params));
        sgd.step(window.take(t).check_finite());
    });
    let lints: Vec<String> = recorded.program.lints().iter().map(ToString::to_string).collect();
    assert!(lints.len() == 1 && lints[0].starts_with("P4 (warning): what is taken is the sum"), "{lints:?}");
}
