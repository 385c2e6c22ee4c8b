//! Optimizers, schedules and the loss scale.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record, run_on, session, state},
};
use wgrad::{
    Array, DType, DynamicScale, LossScaler, Noise, Optimizer,
    Pitfall::{
        AdamWithL2, AdvanceOnSkippedStep, ClipBeforeFiniteCheck, PassBeforeBackward, ScalerBeforeStep,
        ScheduleWithoutStep, StateOfSkippedStep, UncheckedStep, WarmupFromZero,
    },
    Rng, Store,
};
use wgrad_nn::{
    Schedule,
    optim::{Adam, AdamConfig, AdamW, AdamWConfig, Ema, EmaConfig, Sgd, SgdConfig},
};

const SOURCE: &str = include_str!("optimizers.rs");

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: PassBeforeBackward,
        why: "There is nothing to clip or to step with yet. Gradients exist only as what a loss's `grad` has given; if \
              the loss reaches no parameter, there are none.",
        mistake: Mistake::Refused(p13_mistake),
        right: p13_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: AdamWithL2,
        why: "L2 in the gradient is divided by the root of the second moment like the rest of it: weights with large \
              gradients decay less.",
        mistake: Mistake::Linted(p26_mistake),
        right: p26_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: WarmupFromZero,
        why: "The first update moves nothing, and still fills the optimizer's moments.",
        mistake: Mistake::Linted(p27_mistake),
        right: p27_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ScheduleWithoutStep,
        why: "A schedule that ticks per micro-batch is over K times too early.",
        mistake: Mistake::Impossible(
            "A schedule is a function of the optimizer's count of updates, and is recorded with the step. Nobody ticks it. (A rate that is a state, \
             `Rate::State`, is whatever the host or the tape has written there.)",
            Some(p28_shown),
        ),
        right: p28_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: AdvanceOnSkippedStep,
        why: "What counts updates must stand still where none was made. Counts and moments are gated by the verdict with \
              the step; so is an average of parameters; and the generator of noise, which only a step may move.",
        mistake: Mistake::Refused(p29_mistake),
        right: p29_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ClipBeforeFiniteCheck,
        why: "A clip makes 0 and NaN of an infinity, and a later check judges what the clip has left.",
        mistake: Mistake::Refused(p30_mistake),
        right: p30_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ScalerBeforeStep,
        why: "The second optimizer's gradients were divided by a scale that is no longer in force, and its verdict comes \
              too late to count.",
        mistake: Mistake::Refused(p39_mistake),
        right: p39_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: StateOfSkippedStep,
        why: "The step is skipped, and the average has taken in the NaN that it was skipped for: it is NaN from then on. \
              What the step follows, a state of one's own follows too if it is assigned with it. (One that is to move in \
              spite of a skipped step takes what is finite, by `select`; running statistics of modules are settled by \
              `wgrad_nn::Buffers`.)",
        mistake: Mistake::Linted(p51_mistake),
        right: p51_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: UncheckedStep,
        why: "Nothing keeps a NaN from the parameters, and nobody says so. A check skips the step; a clip by the norm checks \
              too.",
        mistake: Mistake::Linted(p52_mistake),
        right: p52_right,
        right_of: None,
        source: SOURCE,
    },
];

fn p13_mistake(store: Store, model: &Model) -> Recorded {
    record(store, |t| {
        let constant = t.scalar(1.0, wgrad::DType::F32);
        let _ = constant.grad(&model.params).clip_by_global_norm(1.0);
    })
}

fn p13_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p26_mistake(mut store: Store, model: &Model) -> Recorded {
    let config = AdamConfig { weight_decay: 0.01, ..AdamConfig::default() };
    let adam = Adam::new(&mut store, &model.params, config);
    record(store, |t| {
        adam.step(model.loss(t).grad(&model.params));
    })
}

fn p26_right(mut store: Store, model: &Model) -> Recorded {
    let config = AdamWConfig { weight_decay: 0.01, ..AdamWConfig::default() };
    let adam = AdamW::new(&mut store, &model.params, config);
    record(store, |t| {
        adam.step(model.loss(t).grad(&model.params).check_finite());
    })
}

fn p27_mistake(mut store: Store, model: &Model) -> Recorded {
    let warmup = Schedule::Warmup { base: 0.1, steps: 100, offset: 0 };
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig { lr: warmup.into(), ..SgdConfig::default() });
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params));
    })
}

fn p27_right(mut store: Store, model: &Model) -> Recorded {
    let warmup = Schedule::warmup(0.1, 100);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig { lr: warmup.into(), ..SgdConfig::default() });
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite());
    })
}

fn p28_right(mut store: Store, model: &Model) -> Recorded {
    let cosine = Schedule::WarmupCosine { base: 0.1, steps: 10, total: 100, init: 0.01, end: 0.0 };
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig { lr: cosine.into(), ..SgdConfig::default() });
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite());
    })
}

fn p29_mistake(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        sgd.step(grads.add_noise(Noise::fixed(0.01), rng));
        rng.advance(t);
    })
}

fn p29_right(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let ema = Ema::new(&mut store, &model.params, EmaConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        sgd.step(grads.add_noise(Noise::fixed(0.01), rng));
        ema.update(t, &sgd);
    })
}

fn p30_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.clip_by_global_norm(1.0).check_finite());
    })
}

fn p30_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.check_finite().clip_by_global_norm(1.0));
    })
}

fn p39_mistake(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let named = |name: &str| SgdConfig { name: name.into(), ..SgdConfig::default() };
    let first = Sgd::new(&mut store, &model.first, named("first"));
    let head = Sgd::new(&mut store, &model.head, named("head"));
    record(store, |t| {
        let loss = scaler.scale(model.loss(t));
        let [a, b] = [&model.first, &model.head].map(|params| loss.grad(params).unscale(&scaler));
        first.step(a);
        scaler.update(t);
        head.step(b);
    })
}

fn p39_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let named = |name: &str| SgdConfig { name: name.into(), ..SgdConfig::default() };
    let first = Sgd::new(&mut store, &model.first, named("first"));
    let head = Sgd::new(&mut store, &model.head, named("head"));
    record(store, |t| {
        let loss = scaler.scale(model.loss(t));
        let [a, b] = [&model.first, &model.head].map(|params| loss.grad(params).unscale(&scaler));
        first.step(a);
        head.step(b);
        scaler.update(t);
    })
}

fn p51_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let usual = store.state("usual norm", &Array::zeros([], DType::F32));
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        t.assign(usual, t.state(usual) * 0.9 + grads.norm() * 0.1);
        sgd.step(grads);
    })
}

fn p51_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let usual = store.state("usual norm", &Array::zeros([], DType::F32));
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        let mean = t.state(usual) * 0.9 + grads.norm() * 0.1;
        sgd.step(grads.assign(usual, mean));
    })
}

fn p52_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params));
    })
}

fn p52_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite());
    })
}

/// The count that the schedule is a function of moves with updates, and not with runs.
fn p28_shown() {
    let recorded = super::record(p28_right);
    let mut session = session(recorded.store);
    let step = session.compile(recorded.program).expect("compiles");
    for (value, updates) in [(0.5, 1.0), (f32::NAN, 1.0), (0.5, 2.0)] {
        run_on(&mut session, &step, value);
        assert_eq!(state(&mut session, "sgd/updates"), [updates], "after {value}");
    }
}
