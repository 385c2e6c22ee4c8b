//! Replicas that train together.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record, record_for, run, session, world},
};
use wgrad::{
    Accumulator, Array, Collective, Noise, Optimizer,
    Pitfall::{
        ClipBeforeAllReduce, LocalVerdict, MissingGradient, NoiseOfOneReplica, RepeatedAllReduce, ReplicaDrift,
        SameDrawsOnRanks, StepBeforeAllReduce,
    },
    Rng, Store, Weighting,
};
use wgrad_nn::optim::{Sgd, SgdConfig};

const SOURCE: &str = include_str!("replicas.rs");

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: ClipBeforeAllReduce,
        why: "A mean of clips is not the clip of the mean, and a rank whose data are unusual decides alone. Where that is \
              meant, `local_clip()` says so.",
        mistake: Mistake::Refused(p8_mistake),
        right: p8_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: RepeatedAllReduce,
        why: "The mean over ranks is linear, so the numbers are right, at as many times the traffic as there are \
              micro-batches.",
        mistake: Mistake::Linted(p9_mistake),
        right: p9_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: LocalVerdict,
        why: "One rank skips the step that the others take, and from then on they train different parameters.",
        mistake: Mistake::Impossible(
            "A check of gradients is a finding of all ranks, whichever of them it is recorded on and on whichever side of \
             the all-reduce: `check_finite`, `skip_if_not_finite` and `unscale` exchange it. `tests/tests/replicas.rs` \
             has a NaN on one rank skip the step on all.",
            None,
        ),
        right: p16_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NoiseOfOneReplica,
        why: "The mean over R ranks divides the variance of independent noise by R. Generators with different seeds on \
              different ranks are refused by the first run.",
        mistake: Mistake::Linted(p17_mistake),
        right: p17_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: MissingGradient,
        why: "What has no gradient does not move, and is forgotten easily: that is a warning. If ranks have gradients of \
              different parameters, they would exchange what does not belong together, and the run is refused on all.",
        mistake: Mistake::Linted(p23_mistake),
        right: p23_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ReplicaDrift,
        why: "Whatever the reason, the ranks no longer train one model.",
        mistake: Mistake::AtRun(p45_mistake),
        right: p8_right,
        right_of: Some(ClipBeforeAllReduce),
        source: SOURCE,
    },
    Entry {
        pitfall: StepBeforeAllReduce,
        why: "Every rank follows its own gradient.",
        mistake: Mistake::Refused(p49_mistake),
        right: p8_right,
        right_of: Some(ClipBeforeAllReduce),
        source: SOURCE,
    },
    Entry {
        pitfall: SameDrawsOnRanks,
        why: "All ranks drop the same units, or draw the same noise for different data: the mean over R of them is no better than \
              one. The first run compares them; its step tells, and so does `Session::lints()`.",
        mistake: Mistake::AtRun(p55_mistake),
        right: p55_right,
        right_of: None,
        source: SOURCE,
    },
];

fn p8_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0).all_reduce());
    })
}

fn p8_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        sgd.step(model.loss(t).grad(&model.params).all_reduce().clip_by_global_norm(1.0));
    })
}

fn p9_mistake(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    record_for(2, store, |t| {
        window.add(model.loss(t).grad(&model.params).all_reduce());
    })
}

fn p9_right(mut store: Store, model: &Model) -> Recorded {
    let window: Accumulator = Accumulator::new(&mut store, &model.params, "window", Weighting::Mean);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        window.add(model.loss(t).grad(&model.params));
        sgd.step(window.take(t).all_reduce().check_finite());
    })
}

fn p16_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite().all_reduce());
    })
}

fn p17_mistake(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        let noisy = model.loss(t).grad(&model.params).add_noise(Noise::fixed(0.01), rng);
        sgd.step(noisy.all_reduce());
    })
}

fn p17_right(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        let grads = model.loss(t).grad(&model.params).all_reduce();
        sgd.step(grads.check_finite().add_noise(Noise::fixed(0.01), rng));
    })
}

fn p23_mistake(mut store: Store, model: &Model) -> Recorded {
    let unused = store.param("unused", &Array::new([3], vec![1.0f32; 3]));
    let params = store.params();
    assert!(params.contains(unused));
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&params));
    })
}

fn p23_right(mut store: Store, model: &Model) -> Recorded {
    store.param("unused", &Array::new([3], vec![1.0f32; 3]));
    let params = store.params_where(|path| path != "unused");
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&params).check_finite());
    })
}

fn p45_mistake(_: Store, _: &Model) -> String {
    let errors = world(2, |rank, store, model| {
        let other_values = rank.rank() == 1;
        let mut session = session(store).with_collective(rank);
        let bias = model.first.iter().last().expect("a bias");
        if other_values {
            session.write_param(bias, &Array::zeros([5], wgrad::DType::F32)).expect("it fits");
        }
        session.check_replicas().expect_err("they differ").to_string()
    });
    errors[0].clone()
}

fn p49_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        sgd.step(model.loss(t).grad(&model.params));
    })
}

fn p55_mistake(_: Store, _: &Model) -> String {
    let told = world(2, |rank, mut store, model| {
        let rng = Rng::new(&mut store, "dropout", 7);
        let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
        let mut session = session(store).with_collective(rank);
        let step = session.record(|t| {
            let loss = model.outputs(t).dropout(0.5, rng).square().mean();
            sgd.step(loss.grad(&model.params).all_reduce().check_finite());
            rng.advance(t);
        });
        let step = step.expect("compiles");
        run(&mut session, &step).expect("runs");
        step.lints()[0].to_string()
    });
    told[0].clone()
}

fn p55_right(mut store: Store, model: &Model) -> Recorded {
    let rank = 0; // of the session: `Collective::rank`
    let rng = Rng::new(&mut store, "dropout", 7 + rank);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record_for(2, store, |t| {
        let loss = model.outputs(t).dropout(0.5, rng).square().mean();
        sgd.step(loss.grad(&model.params).all_reduce().check_finite());
        rng.advance(t);
    })
}

/// The other half of P23.
#[test]
fn ranks_with_other_gradients_are_refused_by_the_run() {
    let errors = world(2, |rank, mut store, model| {
        let own = if rank.rank() == 0 { &model.first } else { &model.head };
        let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
        let mut session = session(store).with_collective(rank);
        let step = session.record(|t| sgd.step(model.loss(t).grad(own).all_reduce())).expect("compiles");
        run(&mut session, &step).expect_err("they differ").to_string()
    });
    assert!(errors.iter().all(|error| error.starts_with("P23: ")), "{errors:?}");
}
