//! Sharpness-aware minimisation: the gradient above the parameters, with loss scales, checks, buffers and the trainer.

use crate::{open, snapshot};
use approx::abs_diff_eq;
use wgrad::{Array, DType, Grads, LossScaler, Optimizer, Session, Store};
use wgrad_nn::{
    BatchNorm, Builder, Init, Linear, LossScale, Precision, Trainer, TrainerConfig,
    optim::{
        Adagrad, AdagradConfig, AdamW, AdamWConfig, Lion, LionConfig, Muon, MuonConfig, RmsProp, RmsPropConfig, Sam,
        Sgd, SgdConfig,
    },
};

const RHO: f64 = 0.3;

/// `sum sin(p) * x` over two parameters of different types, and what descent along SAM's gradient makes of them.
fn descended(sam: Sam, scale: f64, x: [f64; 2]) -> Vec<f64> {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([1], vec![0.5f32]));
    let q = store.param("q", &Array::new([1], vec![0.25f64]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
    let scaler = LossScaler::fixed(scale);
    let mut session = open(store);
    let step = session.record(|t| {
        let [x, y] = [t.input("x", [1], DType::F32), t.input("y", [1], DType::F64)];
        let grads = sam.grad(|| {
            let loss = t.param(p).sin().dot(x).cast(DType::F64) + t.param(q).sin().dot(y);
            scaler.scale(loss).grad(&params)
        });
        sgd.step(grads.unscale(&scaler));
    });
    let step = step.expect("compiles");
    assert_eq!(step.lints().len(), 0, "{:?}", step.lints());
    let inputs = [("x", Array::new([1], vec![x[0] as f32])), ("y", Array::new([1], vec![x[1]]))];
    session.run(&step, &inputs.each_ref().map(|(name, value)| (*name, value))).expect("runs");
    [p, q].map(|param| session.read_param(param).expect("readable").item(0)).to_vec()
}

#[test]
fn the_norm_is_over_all_parameters() {
    let (p, q, [x, y]) = (0.5f64, 0.25f64, [2.0, -1.5]);
    let g = [p.cos() * x, q.cos() * y];
    let norm = g[0].hypot(g[1]);
    let want = [p - (p + RHO * g[0] / norm).cos() * x, q - (q + RHO * g[1] / norm).cos() * y];
    let have = descended(Sam::new(RHO), 1.0, [x, y]);
    assert!(abs_diff_eq!(have[..], want[..], epsilon = 1e-6), "{have:?} for {want:?}");
    // The negative control: each parameter by itself would climb further.
    let alone = p - (p + RHO * g[0].signum()).cos() * x;
    assert!((have[0] - alone).abs() > 1e-2);
    assert_eq!(Sam::default(), Sam::new(0.05));
}

#[test]
fn a_loss_scale_changes_no_bit() {
    let plain = descended(Sam::new(RHO), 1.0, [2.0, -1.5]);
    for scale in [2f64.powi(-20), 2f64.powi(16), 2f64.powi(100)] {
        assert_eq!(descended(Sam::new(RHO), scale, [2.0, -1.5]), plain, "{scale}");
    }
}

#[test]
fn it_stays_where_the_gradient_is_0_and_skips_where_it_is_no_number() {
    for x in [[0.0, 0.0], [f64::NAN, 1.0], [1.0, f64::INFINITY]] {
        assert_eq!(descended(Sam::new(RHO), 1.0, x), [0.5, 0.25], "{x:?}");
    }
    // Norms beyond f32, and gradients that are nothing beside each other.
    for x in [[3e38, 1e300], [1e-30, 1e-200], [1e-30, 1e200]] {
        assert!(descended(Sam::new(RHO), 1.0, x).iter().all(|p| !p.is_nan()), "{x:?}");
    }
}

/// Only the first gradient is infinite: at 0 the root has no slope, and above it one.
#[test]
fn an_infinite_first_gradient_skips_the_step() {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([2], vec![0.0f32, 1.0]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let mut session = open(store);
    let step = session.record(|t| {
        sgd.step(Sam::new(RHO).grad(|| t.param(p).sqrt().sum().grad(&params)).check_finite());
    });
    let before = snapshot(&mut session);
    session.run(&step.expect("compiles"), &[]).expect("runs");
    assert_eq!(snapshot(&mut session), before);
}

/// A frozen parameter does not climb.
#[test]
fn only_the_parameters_asked_for_climb() {
    let mut store = Store::new();
    let [p, q] = ["p", "q"].map(|name| store.param(name, &Array::new([1], vec![0.5])));
    let params = store.params_where(|path| path == "p");
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
    let mut session = open(store);
    let step = session.record(|t| {
        sgd.step(Sam::new(RHO).grad(|| (t.param(p) * t.param(q)).sin().sum().grad(&params)));
    });
    session.run(&step.expect("compiles"), &[]).expect("runs");
    let want = 0.5 - 0.5 * ((0.5 + RHO) * 0.5f64).cos();
    let have = [p, q].map(|param| session.read_param(param).expect("readable").item(0));
    assert!(abs_diff_eq!(have[..], [want, 0.5][..], epsilon = 1e-12), "{have:?} for {want}");
}

/// Running statistics are those of the parameters themselves.
#[test]
fn buffers_keep_what_the_first_pass_makes_of_them() {
    let run = |sam: Option<Sam>| {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let linear = Linear::new(b.at("linear"), 3, 2, &Init::Normal(1.0));
        let norm = BatchNorm::new(b.at("norm"), 2);
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
        let mut session = open(store);
        let x = Array::new([4, 3], (0..12).map(|i| (i as f32).sin()).collect::<Vec<f32>>());
        let step = session.record(|t| {
            let x = t.input_like("x", &x);
            let grads = || norm.forward(linear.forward(x), true).sin().mean().grad(&params);
            sgd.step(sam.map_or_else(grads, |sam| sam.grad(grads)).clip_by_global_norm(1.0));
        });
        session.run(&step.expect("compiles"), &[("x", &x)]).expect("runs");
        snapshot(&mut session)
    };
    let (plain, climbed) = (run(None), run(Some(Sam::new(RHO))));
    for ((name, plain), (_, climbed)) in plain.iter().zip(&climbed) {
        assert_eq!(plain == climbed, !name.starts_with("params/"), "{name}");
    }
}

/// A step of each base optimizer is its step with the gradient that is above.
#[test]
fn every_optimizer_is_a_base() {
    type Make = fn(&mut Store, &wgrad::ParamSet) -> Box<dyn Optimizer>;
    let bases: [Make; 6] = [
        |store, params| Box::new(Sgd::new(store, params, SgdConfig { momentum: 0.9, ..Default::default() })),
        |store, params| Box::new(AdamW::new(store, params, AdamWConfig { amsgrad: true, ..Default::default() })),
        |store, params| Box::new(RmsProp::new(store, params, RmsPropConfig::default())),
        |store, params| Box::new(Adagrad::new(store, params, AdagradConfig::default())),
        |store, params| Box::new(Lion::new(store, params, LionConfig::default())),
        |store, params| Box::new(Muon::new(store, params, MuonConfig::default())),
    ];
    for make in bases {
        // The gradient of sum sin(p) above p, from SAM or from the host.
        let run = |climbs: bool| {
            let mut store = Store::new();
            let p = store.param("p", &Array::new([2, 2], vec![0.1, 0.2, 0.3, 0.4]));
            let params = store.params();
            let optimizer = make(&mut store, &params);
            let mut session = open(store);
            let x = Array::new([2, 2], vec![0.0; 4]);
            let step = session.record(|t| {
                let x = t.input_like("x", &x);
                let grads = || (t.param(p) + x).sin().sum().grad(&params);
                optimizer.step(if climbs { Sam::new(RHO).grad(grads) } else { grads() });
            });
            let step = step.expect("compiles");
            for _ in 0..3 {
                let values = session.read_param(p).expect("readable").to_f64();
                let norm = values.iter().map(|p| p.cos().powi(2)).sum::<f64>().sqrt();
                let above = if climbs { vec![0.0; 4] } else { values.iter().map(|p| RHO * p.cos() / norm).collect() };
                session.run(&step, &[("x", &Array::new([2, 2], above))]).expect("runs");
            }
            session.read_param(p).expect("readable").to_f64()
        };
        let (have, want) = (run(true), run(false));
        assert!(abs_diff_eq!(have[..], want[..], epsilon = 1e-10), "{have:?} for {want:?}");
    }
}

/// The parameters after some updates of a trainer, and the losses that it reports.
fn trained(config: TrainerConfig) -> (Vec<f64>, Vec<f64>) {
    let mut store = Store::new();
    let model = Linear::new(Builder::new(&mut store, 0), 3, 2, &Init::XavierUniform { gain: 1.0 });
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.2.into(), momentum: 0.9, ..SgdConfig::default() });
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x")).cross_entropy(batch.get("y")).into()
    });
    let mut session = open(store);
    for step in 0..4 {
        let x = (0..12).map(|i| ((i + 12 * step) as f32).sin()).collect::<Vec<f32>>();
        let (x, y) = (Array::new([4, 3], x), Array::new([4], vec![0u32, 1, 1, 0]));
        trainer.step(&mut session, &[("x", &x), ("y", &y)]).expect("runs");
    }
    let losses = trainer.updates(&session.taps().expect("ran")).iter().map(|update| update.loss).collect();
    assert_eq!(trainer.lints().len(), 0, "{:?}", trainer.lints());
    (values(&mut session), losses)
}

fn values(session: &mut Session) -> Vec<f64> {
    let params: Vec<_> = session.layout().params().map(|(param, _)| param).collect();
    params.into_iter().flat_map(|param| session.read_param(param).expect("readable").to_f64()).collect()
}

#[test]
fn the_trainer_climbs_as_one_would_by_hand() {
    let sam = Some(Sam::new(RHO));
    let (have, losses) = trained(TrainerConfig { sam, clip_norm: Some(0.4), ..TrainerConfig::default() });
    let mut store = Store::new();
    let model = Linear::new(Builder::new(&mut store, 0), 3, 2, &Init::XavierUniform { gain: 1.0 });
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.2.into(), momentum: 0.9, ..SgdConfig::default() });
    let mut session = open(store);
    let step = session.record(|t| {
        let (x, y) = (t.input("x", [4, 3], DType::F32), t.input("y", [4], DType::U32));
        let loss = || model.forward(x).cross_entropy(y);
        t.tap("loss", loss());
        let grads: Grads<'_> = Sam::new(RHO).grad(|| loss().grad(&params));
        sgd.step(grads.clip_by_global_norm(0.4));
    });
    let step = step.expect("compiles");
    let mut want = vec![];
    for i in 0..4 {
        let x = (0..12).map(|j| ((j + 12 * i) as f32).sin()).collect::<Vec<f32>>();
        let (x, y) = (Array::new([4, 3], x), Array::new([4], vec![0u32, 1, 1, 0]));
        session.run(&step, &[("x", &x), ("y", &y)]).expect("runs");
        want.push(session.taps().expect("ran").pop().expect("one run").scalar("loss").expect("tapped"));
    }
    assert_eq!((have, losses), (values(&mut session), want));
    let (plain, _) = trained(TrainerConfig { clip_norm: Some(0.4), ..TrainerConfig::default() });
    assert!(!abs_diff_eq!(plain[..], values(&mut session)[..], epsilon = 1e-4), "the climb matters");
}

#[test]
fn the_trainer_climbs_with_windows_and_in_half_precision() {
    let of = |config: TrainerConfig| trained(TrainerConfig { sam: Some(Sam::new(RHO)), ..config }).0;
    let plain = of(TrainerConfig::default());
    let scaled = of(TrainerConfig { loss_scale: LossScale::Fixed(1024.0), ..TrainerConfig::default() });
    assert_eq!(scaled, plain);
    let half = of(TrainerConfig { precision: Precision::F16, ..TrainerConfig::default() });
    assert!(abs_diff_eq!(half[..], plain[..], epsilon = 2e-2), "{half:?} for {plain:?}");
    let windows = of(TrainerConfig { accumulate: 2, ..TrainerConfig::default() });
    assert!(windows.iter().all(|p| p.is_finite()) && windows != plain);
}
