//! Numbers, and looking at them.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record, run, session},
};
use wgrad::{
    Array, CrossEntropy, DType, Optimizer,
    Pitfall::{
        AbsoluteThreshold, ChangedRecomputation, NonFiniteGradient, NonFiniteLoss, RepeatedDraws, SharedDraws,
        SpreadOfOneElement,
    },
    Rng, Store, Tensor,
};
use wgrad_nn::optim::{Sgd, SgdConfig};

const SOURCE: &str = include_str!("numbers.rs");

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: ChangedRecomputation,
        why: "A second forward pass that draws other numbers, or updates running statistics again, has another gradient.",
        mistake: Mistake::Impossible(
            "A reverse sweep records the checkpointed nodes again, with the same random stream and counter, so that every \
             value is the same bit for bit; states are assigned by the caller, once. `tests/tests/checkpointing.rs` \
             compares gradients with and without.",
            Some(p25_shown),
        ),
        right: p25_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NonFiniteLoss,
        why: "A mean over no target is NaN, and its gradient 0: no check of gradients finds it, and what was lost is looked \
              for in the gradients. `check_loss()` skips the step, and the session names the line of the loss.",
        mistake: Mistake::AtRun(p37_mistake),
        right: p37_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NonFiniteGradient,
        why: "`sqrt(x * x)` is 0 at 0 and its slope 1 / 0; the loss looks healthy, and the gradient is NaN.",
        mistake: Mistake::Linted(p38_mistake),
        right: p38_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: SpreadOfOneElement,
        why: "The variance of one number, divided by n - 1, is 0 / 0. `probe` shows norms, which every gradient has.",
        mistake: Mistake::Linted(p41_mistake),
        right: p41_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: AbsoluteThreshold,
        why: "A norm of 1e-6 is small for one layer and large for another. What compares is the ratio of a gradient to the \
              parameter that it changes.",
        mistake: Mistake::Unseen(
            "What the host compares a tapped number with is its own. `probe` taps what compares: each parameter's \
             `ratios`, the norm of its gradient over its own, to be held against one another and against what they were.",
        ),
        right: p48_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: RepeatedDraws,
        why: "The numbers are a function of seed and count. Without a count that moves, dropout trains one thinned network, and \
              a diffusion model sees each image with one noise. Where that is meant, `repeating()` says so.",
        mistake: Mistake::Linted(p53_mistake),
        right: p53_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: SharedDraws,
        why: "Both programs draw at the same count, and so the same numbers: what was looked at is then trained on. The count \
              may move in both, or each may have a generator of its own. `Session::lints()` tells it, and so does the \
              program that was recorded last.",
        mistake: Mistake::AtRun(p54_mistake),
        right: p54_right,
        right_of: None,
        source: SOURCE,
    },
];

fn p25_right(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "dropout", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let outputs = t.checkpoint(|| model.outputs(t).tanh().dropout(0.5, rng));
        sgd.step(outputs.square().mean().grad(&model.params).check_finite());
        rng.advance(t);
    })
}

fn p37_mistake(mut store: Store, model: &Model) -> String {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let mut session = session(store);
    let step = session.record(|t| {
        let padding = t.full([7], 0.0, DType::U32);
        let padded = CrossEntropy { ignore_index: Some(0), ..CrossEntropy::default() };
        let loss = model.outputs(t).cross_entropy_with(padding, &padded);
        sgd.step(loss.grad(&model.params).check_loss());
    });
    let step = step.expect("compiles");
    run(&mut session, &step).and_then(|_| session.wait()).expect_err("the loss is NaN").to_string()
}

fn p37_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_loss().check_finite());
    })
}

fn p38_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let distance = model.outputs(t).square().sqrt();
        sgd.step(distance.mean().grad(&model.params));
    })
}

fn p38_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let distance = model.outputs(t).abs();
        sgd.step(distance.mean().grad(&model.params).check_finite());
    })
}

fn p41_mistake(mut store: Store, model: &Model) -> Recorded {
    let scale = store.param("scale", &Array::new([1], vec![1.0f32]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let grads = (model.loss(t) * t.param(scale).sum()).grad(&params);
        let gradient = grads.get(scale).expect("the loss depends on it");
        t.tap("scale/std", gradient.var_axes_with(&[0], 1.0).guarded_sqrt());
        sgd.step(grads);
    })
}

fn p41_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        grads.probe("grad");
        sgd.step(grads.check_finite());
    })
}

fn p48_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        // Taps grad/norm, grad/norms and grad/ratios.
        grads.probe("grad");
        sgd.step(grads.clip_by_global_norm(1.0));
    })
}

fn p53_mistake(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "dropout", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let loss = model.outputs(t).dropout(0.5, rng).square().mean();
        sgd.step(loss.grad(&model.params).check_finite());
    })
}

fn p53_right(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "dropout", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let loss = model.outputs(t).dropout(0.5, rng).square().mean();
        sgd.step(loss.grad(&model.params).check_finite());
        rng.advance(t);
    })
}

fn p54_mistake(mut store: Store, model: &Model) -> String {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let mut session = session(store);
    let seen = session.eval(&[], |t| rng.normal(t, [7, 3], DType::F32));
    let step = session.record(|t| {
        let noisy = model.outputs(t) + rng.normal(t, [7, 3], DType::F32);
        sgd.step(noisy.square().mean().grad(&model.params).check_finite());
        rng.advance(t);
    });
    assert!(seen.is_ok() && step.is_ok());
    session.lints()[0].to_string()
}

fn p54_right(mut store: Store, model: &Model) -> Recorded {
    // `session.eval(&[], |t| look.normal(t, [7, 3], DType::F32))` draws from a generator of its own.
    let [rng, look] = ["noise", "look"].map(|name| Rng::new(&mut store, name, 7));
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    assert_ne!(rng, look);
    record(store, |t| {
        let noisy = model.outputs(t) + rng.normal(t, [7, 3], DType::F32);
        sgd.step(noisy.square().mean().grad(&model.params).check_finite());
        rng.advance(t);
    })
}

/// With and without a checkpoint, dropout and batch statistics included: the same bits.
fn p25_shown() {
    let gradient = |checkpointed: bool| {
        let mut store = Store::new();
        let model = Model::new(&mut store);
        let rng = Rng::new(&mut store, "dropout", 7);
        let recorded = record(store, |t| {
            let inner = || model.outputs(t).batch_norm(None, None, 1e-5).y.tanh().dropout(0.5, rng);
            let outputs = if checkpointed { t.checkpoint(inner) } else { inner() };
            t.tap("gradient", outputs.square().mean().grad(&model.params).flat().tensors()[0]);
        });
        let mut session = session(recorded.store);
        let step = session.compile(recorded.program).expect("compiles");
        run(&mut session, &step).expect("runs");
        let taps = session.taps().expect("delivered");
        taps[0].get("gradient").expect("tapped").clone()
    };
    let (plain, checkpointed) = (gradient(false), gradient(true));
    assert!(plain.to_f64().iter().any(|g| *g != 0.0) && plain == checkpointed);
}

/// Every form that P38 is about, with what is to be written instead.
#[test]
fn forms_with_infinite_slopes_are_told_and_sound_ones_are_not() {
    type Form = for<'t> fn(Tensor<'t>) -> Tensor<'t>;
    let wrong: [(&str, Form); 10] = [
        ("sqrt(x * x)", |x| x.square().sqrt()),
        ("sqrt(x^2)", |x| x.pow(2.0).sqrt()),
        ("sqrt(sum(x * x))", |x| x.square().sum_axes(&[1]).sqrt()),
        ("sqrt(mean(x * x))", |x| x.square().mean_axes(&[1]).sqrt()),
        ("sqrt(clamp(x * x))", |x| x.square().clamp(0.0, f64::INFINITY).sqrt()),
        ("sqrt(var(x))", |x| x.var_axes(&[1]).sqrt()),
        ("log(softmax(x))", |x| x.softmax(1).log()),
        ("x / |x|", |x| x / x.abs()),
        ("x / norm(x)", |x| x / x.norm()),
        ("1 / x^2", |x| x.square().recip()),
    ];
    let right: [(&str, Form); 10] = [
        ("abs(x)", |x| x.abs()),
        ("norm(x)", |x| x.norm_axes(&[1])),
        ("sqrt(x * x + eps)", |x| (x.square() + 1e-8).sqrt()),
        ("guarded_sqrt(x * x)", |x| x.square().guarded_sqrt()),
        ("log_softmax(x)", |x| x.log_softmax(1)),
        ("logsumexp(x)", |x| x.logsumexp(1)),
        ("x / (norm(x) + eps)", |x| x / (x.norm() + 1e-6)),
        ("layer_norm(x)", |x| x.layer_norm(1, None, None, 1e-5)),
        ("softmax(x)", |x| x.softmax(1)),
        ("x / exp(x)", |x| x / x.exp()),
    ];
    let found = |form: Form| {
        let mut store = Store::new();
        let model = Model::new(&mut store);
        let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
        let recorded = record(store, |t| sgd.step(form(model.outputs(t)).mean().grad(&model.params).check_finite()));
        recorded.program.lints().iter().map(|lint| lint.pitfall).collect::<Vec<_>>()
    };
    for (name, form) in wrong {
        assert_eq!(found(form), [NonFiniteGradient], "{name}");
    }
    for (name, form) in right {
        assert_eq!(found(form), [], "{name}");
    }
}
