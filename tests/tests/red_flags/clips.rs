//! Clips, noise and centralization.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record, run, session},
};
use approx::abs_diff_eq;
use wgrad::{
    Agc, Array, Centralize, ClipGroups, ClipNorm, DType, Noise, NonFinite, Optimizer,
    Pitfall::{
        AgcOnOutputLayer, AgcWithoutFloor, CentralizedAway, ClipAlwaysOrNever, ClipByValueAlone, IdleClip,
        InfinityZeroesStep, NoClip, NoiseOnBatchGradient, OverflowingNorm, OverlappingClipGroups, PartialClip,
        RuleByModuleKind, ScaledAroundClip,
    },
    Rng, Store,
};
use wgrad_nn::{
    Builder, Cell, ClipWatch, Embedding, Init, Recurrent, RecurrentInit,
    optim::{Group, Sgd, SgdConfig},
};

const SOURCE: &str = include_str!("clips.rs");

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: AgcWithoutFloor,
        why: "The bound of a unit is a share of its weights' norm: 0 for weights that start at 0, as biases do, and for \
              ever. A floor lets them move.",
        mistake: Mistake::Linted(p14_mistake),
        right: p14_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: CentralizedAway,
        why: "The mean of one element is that element, and subtracting it leaves 0: such a weight never trains. Vectors \
              are never centralized, and a `min_ndim` below 2 is refused.",
        mistake: Mistake::Linted(p15_mistake),
        right: p15_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: OverlappingClipGroups,
        why: "It would be clipped twice. A set holds a parameter once, however often it is listed.",
        mistake: Mistake::Refused(p18_mistake),
        right: p18_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: RuleByModuleKind,
        why: "A rule by the number of dimensions also catches tables of embeddings, whose rows are no units of outputs.",
        mistake: Mistake::Linted(p19_mistake),
        right: p19_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ClipByValueAlone,
        why: "Each element is bounded alone, which turns the gradient towards the diagonals.",
        mistake: Mistake::Linted(p20_mistake),
        right: p20_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: AgcOnOutputLayer,
        why: "Brock et al. (2021) leave the last layer out: its gradients are large for good reason.",
        mistake: Mistake::Linted(p21_mistake),
        right: p21_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NoiseOnBatchGradient,
        why: "Noise hides an example only if the example's own gradient was bounded; that of a batch bounds none.",
        mistake: Mistake::Impossible(
            "No noise can be called private: `add_noise` takes a deviation and a generator, makes no such promise, and \
             there is no accountant. What it is good for is exploration, with a clip after it that bounds the step.",
            None,
        ),
        right: p22_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: InfinityZeroesStep,
        why: "An infinite norm makes the coefficient 0: all gradients become 0, and the infinite one NaN. The default \
              skips the step, as a check before the clip does.",
        mistake: Mistake::Linted(p32_mistake),
        right: p32_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: OverflowingNorm,
        why: "The square of 1e30 is infinite in f32, and a norm made of it clips every gradient to 0.",
        mistake: Mistake::Impossible(
            "Norms are computed in units of the largest element, and are finite wherever the true norm is; where even \
             that is not, the step is skipped.",
            Some(p33_shown),
        ),
        right: p33_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ClipAlwaysOrNever,
        why: "Then the bound, and not the gradient, sets the length of the step. A clip taps whether it acted, and a \
              `ClipWatch` counts.",
        mistake: Mistake::AtRun(p34_mistake),
        right: p34_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NoClip,
        why: "In loops and in attention, single steps can have gradients many times the usual.",
        mistake: Mistake::Linted(p35_mistake),
        right: p35_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: IdleClip,
        why: "A bound that is never reached protects from nothing that has happened.",
        mistake: Mistake::AtRun(p36_mistake),
        right: p36_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: PartialClip,
        why: "What is left out moves by as much as it likes.",
        mistake: Mistake::Linted(p42_mistake),
        right: p42_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ScaledAroundClip,
        why: "Before the clip the factor changes what all others are scaled by; after it, the bound no longer holds.",
        mistake: Mistake::Linted(p43_mistake),
        right: p43_right,
        right_of: None,
        source: SOURCE,
    },
];

fn p14_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.agc(Agc::new(0.01).eps(0.0).exclude(&model.head)));
    })
}

fn p14_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.check_finite().agc(Agc::new(0.01).exclude(&model.head)));
    })
}

fn p15_mistake(mut store: Store, model: &Model) -> Recorded {
    let gain = store.param("gain", &Array::new([3, 1], vec![1.0f32; 3]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let loss = model.loss(t) + t.param(gain).square().sum();
        sgd.step(loss.grad(&params).centralize());
    })
}

fn p15_right(mut store: Store, model: &Model) -> Recorded {
    let gain = store.param("gain", &Array::new([3, 1], vec![1.0f32; 3]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let loss = model.loss(t) + t.param(gain).square().sum();
        let weights = Centralize::new().exclude(&[gain].into_iter().collect());
        sgd.step(loss.grad(&params).check_finite().centralize_with(&weights));
    })
}

fn p18_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let groups = ClipGroups::new().group(&model.params, 1.0).group(&model.head, 0.1);
        sgd.step(model.loss(t).grad(&model.params).clip_by_group_norm(&groups));
    })
}

fn p18_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let groups = ClipGroups::new().group(&model.first, 1.0).group(&model.head, 0.1);
        sgd.step(model.loss(t).grad(&model.params).clip_by_group_norm(&groups));
    })
}

fn p19_mistake(mut store: Store, model: &Model) -> Recorded {
    let table = Embedding::new(Builder::new(&mut store, 0).at("table"), 5, 4, &Init::Normal(1.0));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let words = table.forward(t.input("words", [7], DType::U32));
        let loss = model.loss(t) + words.square().mean();
        sgd.step(loss.grad(&params).centralize());
    })
}

fn p19_right(mut store: Store, model: &Model) -> Recorded {
    let table = Embedding::new(Builder::new(&mut store, 0).at("table"), 5, 4, &Init::Normal(1.0));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let words = table.forward(t.input("words", [7], DType::U32));
        let loss = model.loss(t) + words.square().mean();
        let weights = Centralize::new().exclude(&[table.weight].into_iter().collect());
        sgd.step(loss.grad(&params).check_finite().centralize_with(&weights));
    })
}

fn p20_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_value(0.5));
    })
}

fn p20_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p21_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).agc(0.01));
    })
}

fn p21_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.check_finite().agc(Agc::new(0.01).exclude(&model.head)));
    })
}

fn p22_right(mut store: Store, model: &Model) -> Recorded {
    let rng = Rng::new(&mut store, "noise", 7);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        sgd.step(grads.add_noise(Noise::annealed(0.01), rng).clip_by_global_norm(1.0));
    })
}

fn p32_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let as_in_pytorch = ClipNorm::new(1.0).non_finite(NonFinite::Propagate);
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(as_in_pytorch));
    })
}

fn p32_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite().clip_by_global_norm(1.0));
    })
}

fn p33_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let large = model.loss(t) * 1e30;
        sgd.step(large.grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p34_mistake(_: Store, _: &Model) -> String {
    let mut watch = ClipWatch::default();
    for _update in 0..100 {
        // In training: `watch.observe(&taps)`, with what the step has tapped.
        watch.push(true);
    }
    watch.lint().expect("every update was clipped").to_string()
}

fn p34_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        // The tap clip_by_global_norm/norm has the norm before clipping: choose the bound near its usual value.
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p35_mistake(mut store: Store, _: &Model) -> Recorded {
    let rnn = Recurrent::new(Builder::new(&mut store, 0).at("rnn"), Cell::Tanh, 3, 5, &RecurrentInit::default());
    let params = store.params_where(|path| path.starts_with("rnn"));
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let x = t.input("x", [10, 2, 3], DType::F32);
        sgd.step(rnn.forward(x).last.square().mean().grad(&params));
    })
}

fn p35_right(mut store: Store, _: &Model) -> Recorded {
    let rnn = Recurrent::new(Builder::new(&mut store, 0).at("rnn"), Cell::Tanh, 3, 5, &RecurrentInit::default());
    let params = store.params_where(|path| path.starts_with("rnn"));
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    record(store, |t| {
        let x = t.input("x", [10, 2, 3], DType::F32);
        sgd.step(rnn.forward(x).last.square().mean().grad(&params).clip_by_global_norm(1.0));
    })
}

fn p36_mistake(_: Store, _: &Model) -> String {
    let mut watch = ClipWatch::default();
    for _update in 0..1000 {
        watch.push(false);
    }
    watch.lint().expect("no update was clipped").to_string()
}

pub fn p36_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        // A check is what protects from infinities.
        sgd.step(model.loss(t).grad(&model.params).check_finite());
    })
}

fn p42_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let some = ClipGroups::new().group(&model.first, 1.0).keep_rest();
        sgd.step(model.loss(t).grad(&model.params).clip_by_group_norm(&some));
    })
}

fn p42_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

fn p43_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).scale_grad(&model.head, 0.1);
        sgd.step(grads.clip_by_global_norm(1.0));
    })
}

fn p43_right(mut store: Store, model: &Model) -> Recorded {
    let slower = Group { params: model.head.clone(), lr: Some(1e-4.into()), weight_decay: None };
    let config = SgdConfig { lr: 1e-3.into(), groups: vec![slower], ..SgdConfig::default() };
    let sgd = Sgd::new(&mut store, &model.params, config);
    record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).clip_by_global_norm(1.0));
    })
}

/// The norm of gradients of 1e30 is what it should be, and one that cannot be is no reason for a step.
fn p33_shown() {
    for (factor, finite) in [(1e30, true), (1e38, false)] {
        let mut store = Store::new();
        let p = store.param("p", &Array::new([16], vec![1.0f32; 16]));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
        let mut session = session(store);
        let step = session
            .record(|t| sgd.step((t.param(p) * factor).sum().grad(&params).check_finite().clip_by_global_norm(1.0)));
        run(&mut session, &step.expect("compiles")).expect("runs");
        let norm = session.taps().expect("delivered")[0].scalar("clip_by_global_norm/norm").expect("tapped");
        let moved = 1.0 - session.read_param(p).expect("readable").item(0);
        let expected = if finite { 0.25 } else { 0.0 };
        assert!(
            norm.is_finite() == finite && abs_diff_eq!(moved, expected, epsilon = 1e-6),
            "{factor}: {norm}, {moved}"
        );
    }
}

/// The other half of P15, and of P14 and P21.
#[test]
fn other_forms_are_told_too() {
    let message = super::panics(|| Centralize::new().min_ndim(1));
    assert!(message.contains("min_ndim is 1") && message.contains("P15: "), "{message}");
    let mut store = Store::new();
    let model = Model::new(&mut store);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    let recorded = record(store, |t| {
        sgd.step(model.loss(t).grad(&model.params).check_finite().agc_per_tensor(0.01, 1e-6, 0.0));
    });
    let found: Vec<_> = recorded.program.lints().iter().map(|lint| lint.pitfall).collect();
    assert_eq!(found, [AgcWithoutFloor, AgcOnOutputLayer]);
}
