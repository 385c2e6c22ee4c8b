//! The order of passes.

use super::{
    Entry, Mistake,
    model::{Model, Recorded, record},
};
use wgrad::{
    ClipNorm, DynamicScale, LossScaler, Optimizer,
    Pitfall::{ClipBeforeUnscale, ClipHidesInfinity, MisplacedProbe, NothingToUnscale, PassAfterStep, StepPastScaler},
    Store,
};
use wgrad_nn::optim::{Sgd, SgdConfig};

const SOURCE: &str = include_str!("order.rs");
const GRADS: &str = "autograd/src/grads.rs";

pub const ENTRIES: &[Entry] = &[
    Entry {
        pitfall: PassAfterStep,
        why: "After the step there is nothing left to clip: the parameters have moved. A step takes its gradients by \
              value, so no pass can have them afterwards.",
        mistake: Mistake::ByType(GRADS, "E0382", "use of moved value"),
        right: p1_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ClipBeforeUnscale,
        why: "A threshold is in units of the true gradient. Scaled by 65536, almost every gradient is above it, and what \
              is left after unscaling is a 65536th of the bound. Scaled gradients have a type of their own, without clips.",
        mistake: Mistake::ByType(GRADS, "E0599", "no method named `clip_by_global_norm` found"),
        right: p2_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: NothingToUnscale,
        why: "The second division makes the gradient as much too small as the scale is large. Unscaled gradients have no \
              `unscale`.",
        mistake: Mistake::ByType(GRADS, "E0599", "no method named `unscale` found"),
        right: p3_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: StepPastScaler,
        why: "Parameters would move by a multiple of the gradient, and on an overflow by infinities. A step takes only \
              gradients without a scale, and `unscale` is what judges them.",
        mistake: Mistake::ByType(GRADS, "E0308", "mismatched types"),
        right: p11_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: MisplacedProbe,
        why: "What is logged is then a multiple of the gradient, or one replica's, or never above the bound. A clip taps \
              the norm that it found before clipping.",
        mistake: Mistake::Linted(p24_mistake),
        right: p24_right,
        right_of: None,
        source: SOURCE,
    },
    Entry {
        pitfall: ClipHidesInfinity,
        why: "A clip by value turns an infinity into its bound, and the check then finds nothing.",
        mistake: Mistake::Refused(p31_mistake),
        right: p31_right,
        right_of: None,
        source: SOURCE,
    },
];

fn p1_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.clip_by_global_norm(1.0));
    })
}

fn p2_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let scaled = scaler.scale(model.loss(t)).grad(&model.params);
        sgd.step(scaled.unscale(&scaler).clip_by_global_norm(1.0));
        scaler.update(t);
    })
}

fn p3_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::fixed(1024.0);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let scaled = scaler.scale(model.loss(t)).grad(&model.params);
        sgd.step(scaled.unscale(&scaler));
    })
}

fn p11_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::fixed(1024.0);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let scaled = scaler.scale(model.loss(t)).grad(&model.params);
        sgd.step(scaled.unscale(&scaler));
    })
}

fn p24_mistake(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::fixed(1024.0);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let scaled = scaler.scale(model.loss(t)).grad(&model.params);
        t.tap("grad_norm", scaled.norm());
        sgd.step(scaled.unscale(&scaler));
    })
}

fn p24_right(mut store: Store, model: &Model) -> Recorded {
    let scaler = LossScaler::fixed(1024.0);
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = scaler.scale(model.loss(t)).grad(&model.params).unscale(&scaler);
        grads.probe("grad");
        sgd.step(grads.clip_by_global_norm(1.0));
    })
}

fn p31_mistake(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params);
        sgd.step(grads.clip_by_value(0.5).check_finite());
    })
}

fn p31_right(mut store: Store, model: &Model) -> Recorded {
    let sgd = Sgd::new(&mut store, &model.params, SgdConfig::default());
    record(store, |t| {
        let grads = model.loss(t).grad(&model.params).check_finite();
        sgd.step(grads.clip_by_global_norm(ClipNorm::new(1.0)).clip_by_value(0.5));
    })
}
