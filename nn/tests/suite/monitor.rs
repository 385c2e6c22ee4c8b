//! The monitor: each measure against its closed form, and runs that it leaves as they are.

use crate::{open, snapshot};
use approx::assert_relative_eq;
use wgrad::{Array, Collective, DType, DynamicScale, InProcess, Noise, ParamSet, Rng, Session, Store, Weighting};
use wgrad_nn::{
    Activation, Builder, Detail, Dropout, Gpt, GptConfig, GradMeasure, Histogram, Init, Linear, Loss, LossScale,
    Measurement, Mlp, MlpConfig, MonitorConfig, NormKind, Precision, Recurrent, RecurrentInit, Trainer, TrainerConfig,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
    paths,
};

const EVERY: MonitorConfig = MonitorConfig { every: 1, groups: vec![], histograms: false, detail: Detail::Full };

/// Requires of a number that it is another up to rounding in f32.
#[track_caller]
fn close(have: f64, want: f64) {
    assert_relative_eq!(have, want, epsilon = 1e-7, max_relative = 2e-6);
}

/// The measurements of some steps.
fn run(trainer: &mut Trainer, session: &mut Session, batches: &[[(&str, &Array); 2]]) -> Vec<Measurement> {
    let mut all = vec![];
    for batch in batches {
        trainer.step(session, batch).expect("it runs");
        all.extend(trainer.measurements(&session.taps().expect("it ran")));
    }
    session.wait().expect("it ran");
    all.extend(trainer.measurements(&session.taps().expect("it ran")));
    all
}

/// `y = w x + b` with the loss `sum of w_i x_i + b`, whose gradient is known: `x` of the one row, and 1.
fn linear(config: TrainerConfig, lr: f64) -> (Trainer, Session) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 0);
    let weight = b.value("head/weight", [1, 4], &[3.0, 0.0, -4.0, 0.0]);
    let bias = b.value("head/bias", [1], &[0.5]);
    let head = Linear { weight, bias: Some(bias) };
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() });
    let trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        Loss::from(head.forward(batch.get("x")).sum() * batch.get("y").sum())
    });
    (trainer, open(store))
}

#[test]
fn gradients_are_measured_as_their_formulas_say() {
    let config = TrainerConfig {
        monitor: Some(MonitorConfig { histograms: true, ..EVERY }),
        clip_norm: Some(1.0),
        ..TrainerConfig::default()
    };
    let (mut trainer, mut session) = linear(config, 0.1);
    let (x, y) = (Array::new([1, 4], vec![2.0f32, 0.0, -6.0, 0.001]), Array::new([1], vec![1.0f32]));
    let all = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]);
    let [Measurement { params, applied_norm, update, .. }] = &all[..] else { panic!("{all:?}") };
    let [weight, bias] = &params[..] else { panic!("{params:?}") };
    assert_eq!((&*weight.path, &*bias.path), ("head/weight", "head/bias"));
    let g = &weight.grad;
    let square: f64 = 4.0 + 36.0 + 1e-6;
    assert_eq!((g.elements, bias.grad.elements), (4, 1));
    close(g.norm, square.sqrt());
    close(g.mean, (2.0 - 6.0 + 0.001) / 4.0);
    close(g.mean_abs, (2.0 + 6.0 + 0.001) / 4.0);
    close(g.std, (square / 4.0 - g.mean * g.mean).sqrt());
    close(g.max, 6.0);
    assert_eq!((g.zeros, g.non_finite), (0.25, 0.0));
    close(g.param_norm, 5.0);
    let whole = (square + 1.0).sqrt();
    close(update.grad_norm, whole);
    close(*applied_norm, 1.0);
    close(g.update_norm, 0.1 * square.sqrt() / whole);
    close(g.update_ratio(), g.update_norm / 5.0);
    close(g.grad_ratio(), square.sqrt() / 5.0);
    let histogram = weight.histogram.as_ref().expect("asked for");
    // 2 is in the bin from 2^0 to 2^2, 6 from 2^2 to 2^4, and 0.001 from 2^-10 to 2^-8.
    let bin = |value: f64| Histogram::EDGES.iter().filter(|edge| value >= **edge).count();
    let mut positive = vec![0; 20];
    (positive[bin(2.0)], positive[bin(0.001)]) = (1, 1);
    let mut negative = vec![0; 20];
    negative[bin(6.0)] = 1;
    assert_eq!(*histogram, Histogram { negative, zeros: 1, positive, non_finite: 0 });
    assert_eq!((Histogram::EDGES[0], Histogram::EDGES[18]), (2f64.powi(-30), 64.0));
}

#[test]
fn what_is_not_finite_is_counted_and_changes_nothing() {
    let monitor = Some(MonitorConfig { histograms: true, ..EVERY });
    let config = TrainerConfig { monitor, check_loss: false, ..TrainerConfig::default() };
    let (mut trainer, mut session) = linear(config, 0.1);
    let (x, y) = (Array::new([1, 4], vec![f32::NAN, 1.0, f32::INFINITY, 0.0]), Array::new([1], vec![1.0f32]));
    let all = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]);
    let [Measurement { params, update, sites, .. }] = &all[..] else { panic!("{all:?}") };
    assert!(!update.taken);
    assert_eq!((params[0].grad.non_finite, params[0].grad.zeros, params[0].grad.update_norm), (0.5, 0.25, 0.0));
    assert_eq!(params[0].histogram.as_ref().expect("asked for").non_finite, 2);
    assert_eq!((&*sites[0].path, sites[0].values.expect("in full").non_finite), ("inputs/x", 0.5));
}

#[test]
fn groups_are_their_members_together() {
    let mut store = Store::new();
    let config = MlpConfig { inputs: 3, width: 4, depth: 2, outputs: 2, ..MlpConfig::default() };
    let model = Mlp::new(Builder::new(&mut store, 1), &config);
    let params = store.params();
    let of = |pattern: &str| paths::select(store.layout(), pattern);
    let groups = vec![("hidden".to_string(), of("layer/**")), ("all".to_string(), params.clone())];
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.5.into(), ..SgdConfig::default() });
    let config = TrainerConfig { monitor: Some(MonitorConfig { groups, ..EVERY }), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let mut session = open(store);
    let (x, y) = (Array::new([2, 3], vec![0.1f32, 0.7, -0.3, 1.0, 0.2, 0.9]), Array::new([2], vec![0u32, 1]));
    let all = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]);
    let Measurement { params, groups, update, .. } = &all[0];
    let [(first, hidden), (second, whole)] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((&**first, &**second, whole.elements), ("hidden", "all", 3 * 4 + 4 + 4 * 4 + 4 + 4 * 2 + 2));
    close(whole.norm, update.grad_norm);
    let parts = params.iter().filter(|param| param.path.starts_with("layer/")).map(|param| &param.grad);
    let norm = parts.clone().map(|grad| grad.norm.powi(2)).sum::<f64>().sqrt();
    close(hidden.norm, norm);
    close(hidden.max, parts.clone().map(|grad| grad.max).fold(0.0, f64::max));
    assert_eq!(*hidden, GradMeasure::joined(parts));
    close(whole.update_norm, 0.5 * whole.norm);
}

#[test]
fn sites_are_measured_as_their_formulas_say() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 0);
    let weight = b.value("weight", [3, 1], &[1.0, -1.0, 4.0]);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        let x = batch.get("x");
        let z = x.matmul_t(x.tape().param(weight)).probe("z");
        ((z * z).sum() + batch.get("y").sum()).into()
    });
    let mut session = open(store);
    let (x, y) = (Array::new([2, 1], vec![1.0f32, 0.0]), Array::new([1], vec![0.0f32]));
    let all = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]);
    let names: Vec<&str> = all[0].sites.iter().map(|site| &*site.path).collect();
    assert_eq!(names, ["inputs/x", "inputs/y", "z"]);
    // z is [[1, -1, 4], [0, 0, 0]], and the gradient is twice that.
    let site = &all[0].sites[2];
    let z = site.values.expect("measured in full");
    close(z.rms, 3f64.sqrt());
    close(z.mean, 4.0 / 6.0);
    close(z.std, (3.0 - 4.0 / 9.0f64).sqrt());
    assert_eq!((z.max, z.non_finite), (4.0, 0.0));
    let units = site.units.expect("an activation follows");
    assert_eq!(units.zeros, 0.5);
    close(units.tanh_saturated, 1.0 / 6.0);
    close(units.sigmoid_saturated, 1.0 / 6.0);
    close(units.off, 1.0 / 3.0);
    assert_eq!(all[0].sites[0].units, None);
    let flow = site.flow.as_ref().expect("a gradient flows");
    close(flow.mean_abs, 2.0);
    close(flow.norm, 2.0 * 18f64.sqrt());
    assert_eq!((flow.zeros, flow.non_finite, flow.steps.len()), (0.5, 0.0, 0));
    assert_eq!(site.scores, None);
}

#[test]
fn time_steps_and_scores_are_told_apart() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 2);
    let rnn = Recurrent::new(b.at("rnn"), wgrad::Cell::Tanh, 2, 3, &RecurrentInit::default());
    let config = GptConfig { width: 4, heads: 2, layers: 1, context: 5, hidden: 8, ..GptConfig::small(6) };
    let gpt = Gpt::new(b.at("gpt"), &config);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        (rnn.forward(batch.get("x")).last.square().mean() + gpt.loss(batch.get("y"), batch.get("y"), true)).into()
    });
    let mut session = open(store);
    let x = Array::new([4, 2, 2], (0..16).map(|i| (i as f32).sin()).collect::<Vec<_>>());
    let y = Array::new([2, 5], (0..10).map(|i| i % 6).collect::<Vec<u32>>());
    let all = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]);
    let site = |path: &str| all[0].sites.iter().find(|site| site.path == path).unwrap_or_else(|| panic!("{path}"));
    let flow = site("rnn/time/z").flow.as_ref().expect("a gradient flows");
    assert_eq!(flow.steps.len(), 4);
    close(flow.steps.iter().sum::<f64>() / 4.0, flow.mean_abs);
    let scores = site("block[0]/attention/scores").scores.expect("they are scores");
    assert!(scores.low <= scores.high && scores.entropy > 0.0, "{scores:?}");
    for path in ["block[0]/ffn/z", "block[0]/residual", "logits"] {
        assert!(site(path).flow.is_some(), "{path}");
    }
}

/// A network with everything that a step can have, on a batch of its own for each step.
fn demanding(monitor: Option<MonitorConfig>, store: &mut Store, accumulate: usize) -> Trainer {
    let dropout = Dropout::new(0.2, Rng::new(store, "dropout", 3));
    let config = MlpConfig {
        inputs: 6,
        width: 10,
        depth: 3,
        outputs: 4,
        activation: Activation::Gelu,
        norm: NormKind::BATCH,
        residual: true,
        dropout: Some(dropout),
        ..MlpConfig::default()
    };
    let model = Mlp::new(Builder::new(store, 5), &config);
    let params = store.params();
    let adamw = AdamW::new(store, &params, AdamWConfig { lr: 1e-2.into(), ..AdamWConfig::default() });
    let config = TrainerConfig {
        accumulate,
        weighting: Weighting::Mean,
        precision: Precision::F16,
        loss_scale: LossScale::Dynamic(DynamicScale { init: 1024.0, ..DynamicScale::default() }),
        noise: Some(Noise::Fixed { sigma: 1e-3 }),
        centralize: true,
        agc: Some(0.1),
        clip_norm: Some(0.5),
        ema: Some(0.9),
        monitor,
        ..TrainerConfig::default()
    };
    Trainer::new(store, &params, adamw, config, move |batch| {
        dropout.rng().advance(batch.tape());
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    })
}

fn batches(count: usize, offset: usize) -> Vec<(Array, Array)> {
    let number = |i: usize| ((i * i + 3 * i) as f64 * 0.37).sin() as f32;
    let batch = |step: usize| {
        let first = (step + offset) * 100;
        let x = Array::new([8, 6], (0..48).map(|i| number(first + i)).collect::<Vec<_>>());
        (x, Array::new([8], (0..8).map(|i| ((first + i) % 4) as u32).collect::<Vec<_>>()))
    };
    (0..count).map(batch).collect()
}

fn trained(monitor: Option<MonitorConfig>, accumulate: usize) -> (Vec<(String, Array)>, Vec<Measurement>) {
    let mut store = Store::new();
    let mut trainer = demanding(monitor, &mut store, accumulate);
    let mut session = open(store);
    let data = batches(12, 0);
    let inputs: Vec<[(&str, &Array); 2]> = data.iter().map(|(x, y)| [("x", x), ("y", y)]).collect();
    let measured = run(&mut trainer, &mut session, &inputs);
    // A hidden tap in a hook of a scaled loss would be warned of, and this one is divided by the scale.
    let lints = trainer.lints();
    assert!(lints.iter().all(|lint| lint.pitfall != wgrad::Pitfall::MisplacedProbe), "{lints:?}");
    (snapshot(&mut session), measured)
}

#[test]
fn a_measured_run_leaves_the_same_bits() {
    for accumulate in [1, 2] {
        let (plain, nothing) = trained(None, accumulate);
        assert!(nothing.is_empty());
        for every in [1, 3] {
            let config = MonitorConfig { every, histograms: true, ..EVERY };
            let (watched, measured) = trained(Some(config), accumulate);
            let updates: usize = 12 / accumulate;
            assert_eq!(measured.len(), updates.div_ceil(every), "every {every} of {updates}");
            assert!(measured.iter().all(|measured| measured.sites.len() >= 5 && measured.params.len() > 10));
            assert!(measured.iter().all(|measured| measured.update.taken), "{measured:?}");
            for ((name, plain), (_, watched)) in plain.iter().zip(&watched) {
                let bits = |array: &Array| array.to_f64().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert!(bits(plain) == bits(watched), "{name}, accumulate {accumulate}, every {every}");
            }
        }
    }
}

#[test]
fn flow_alone_is_the_same_as_in_full() {
    let of = |detail| trained(Some(MonitorConfig { detail, ..EVERY }), 1);
    let ((states, full), (same, flow)) = (of(Detail::Full), of(Detail::Flow));
    assert_eq!(states, same);
    for (full, flow) in full.iter().zip(&flow) {
        assert!(flow.params.is_empty() && flow.sites.iter().all(|site| site.values.is_none()));
        let z = |all: &Measurement| -> Vec<_> {
            let of = all.sites.iter().filter(|site| site.path.ends_with("/z"));
            of.map(|site| (site.path.clone(), site.flow.clone())).collect()
        };
        assert_eq!((z(full), full.applied_norm.to_bits()), (z(flow), flow.applied_norm.to_bits()));
        assert_eq!(flow.sites.len(), 3);
    }
}

#[test]
fn the_loss_scale_is_divided_out() {
    let flow = |precision: Precision, loss_scale: LossScale| {
        let mut store = Store::new();
        let config =
            MlpConfig { inputs: 6, width: 8, depth: 2, outputs: 4, init: Init::Normal(0.3), ..MlpConfig::default() };
        let model = Mlp::new(Builder::new(&mut store, 5), &config);
        let params: ParamSet = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let config = TrainerConfig { precision, loss_scale, monitor: Some(EVERY), ..TrainerConfig::default() };
        let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
            model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
        });
        let data = batches(1, 0);
        let mut session = open(store);
        let all = run(&mut trainer, &mut session, &[[("x", &data[0].0), ("y", &data[0].1)]]);
        let site = all[0].sites.iter().find(|site| site.path == "layer[0]/z").expect("it is probed");
        (site.flow.clone().expect("a gradient flows"), all[0].params[1].grad.clone())
    };
    let (plain, scaled) = (flow(Precision::F32, LossScale::None), flow(Precision::F32, LossScale::Fixed(1024.0)));
    assert_eq!(plain, scaled, "a power of 2 changes no bit");
    let half = flow(Precision::F16, LossScale::Auto);
    assert_relative_eq!(half.0.mean_abs, plain.0.mean_abs, max_relative = 0.02);
    assert_relative_eq!(half.1.norm, plain.1.norm, max_relative = 0.02);
}

#[test]
fn frozen_and_unreached_parameters_are_left_out() {
    let mut store = Store::new();
    let config = MlpConfig { inputs: 6, outputs: 4, depth: 2, ..MlpConfig::default() };
    let model = Mlp::new(Builder::new(&mut store, 5), &config);
    Linear::new(Builder::new(&mut store, 5).at("unused"), 2, 2, &Init::Ones);
    let params = paths::freeze(store.layout(), &store.params(), "layer/0/*");
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let data = batches(1, 0);
    let all = run(&mut trainer, &mut open(store), &[[("x", &data[0].0), ("y", &data[0].1)]]);
    let paths: Vec<&str> = all[0].params.iter().map(|param| &*param.path).collect();
    assert_eq!(paths, ["layer/1/bias", "layer/1/weight", "head/bias", "head/weight"]);
}

#[test]
fn ranks_measure_the_gradient_of_all() {
    let collectives = InProcess::world(2);
    let threads: Vec<_> = collectives
        .into_iter()
        .enumerate()
        .map(|(rank, collective)| {
            std::thread::spawn(move || {
                let (mut trainer, session) =
                    linear(TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() }, 0.1);
                let collective: Box<dyn Collective> = Box::new(collective);
                let mut session = session.with_collective(collective);
                let x = Array::new([1, 4], vec![rank as f32, 2.0, 0.0, 0.0]);
                let y = Array::new([1], vec![1.0f32]);
                run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]])[0].params[0].grad.clone()
            })
        })
        .collect();
    let all: Vec<GradMeasure> = threads.into_iter().map(|thread| thread.join().expect("it ran")).collect();
    assert_eq!(all[0], all[1]);
    close(all[0].norm, (0.25 + 4.0f64).sqrt());
}

#[test]
#[should_panic(expected = "trainer: monitor.every is 0")]
fn never_is_no_interval() {
    linear(TrainerConfig { monitor: Some(MonitorConfig { every: 0, ..EVERY }), ..TrainerConfig::default() }, 0.1);
}

#[test]
fn types_of_any_width_are_measured() {
    let mut store = Store::new();
    let config = MlpConfig { inputs: 2, outputs: 1, ..MlpConfig::default() };
    let model = Mlp::new(Builder::new(&mut store, 5).with_dtype(DType::F64), &config);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).mse(batch.get("y")).into()
    });
    let (x, y) = (Array::new([2, 2], vec![1.0f64, 2.0, 3.0, 4.0]), Array::new([2, 1], vec![0.5f64, 1.0]));
    let all = run(&mut trainer, &mut open(store), &[[("x", &x), ("y", &y)]]);
    let whole = GradMeasure::joined(all[0].params.iter().map(|param| &param.grad));
    close(whole.norm, all[0].update.grad_norm);
}

#[test]
fn parts_of_a_model_are_set_side_by_side() {
    let mut store = Store::new();
    let config = MlpConfig { inputs: 3, width: 4, depth: 2, outputs: 2, ..MlpConfig::default() };
    let [vision, text] = ["vision", "text"].map(|name| Mlp::new(Builder::new(&mut store, 1).at(name), &config));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { monitor: Some(EVERY), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        let (x, y) = (batch.get("x"), batch.get("y"));
        let own = {
            let _scope = x.tape().enter("vision");
            vision.forward(x, true).cross_entropy(y)
        };
        let _scope = x.tape().enter("text");
        (text.forward(x, true).cross_entropy(y) + own * 100.0).into()
    });
    let mut session = open(store);
    let (x, y) = (Array::new([2, 3], vec![0.1f32, 0.7, -0.3, 1.0, 0.2, 0.9]), Array::new([2], vec![0u32, 1]));
    let measured = run(&mut trainer, &mut session, &[[("x", &x), ("y", &y)]]).remove(0);
    let norm = |part: &str| {
        let own = measured.params.iter().filter(|param| param.path.starts_with(part));
        own.map(|param| param.grad.norm.powi(2)).sum::<f64>().sqrt()
    };
    let balance = measured.balance("vision", "text").expect("both have gradients");
    close(balance.norms[0], norm("vision/"));
    close(balance.ratio(), norm("vision/") / norm("text/"));
    assert!(!balance.is_sound() && balance.ratio() > 10.0, "{balance:?}");
    assert!(measured.balance("vision", "vision").expect("it has gradients").is_sound());
    // A path is a whole part.
    assert_eq!(measured.balance("vis", "text"), None);

    let sites: Vec<&str> = measured.sites.iter().map(|site| &*site.path).collect();
    let site = measured.boundary("vision/layer[0]/z").unwrap_or_else(|| panic!("one of {sites:?}"));
    assert!(site.flow > 10.0 * site.usual && site.is_reached(), "{site:?}");
    assert_eq!(measured.boundary("nowhere"), None);
    let closed = wgrad_nn::Boundary { flow: 1e-9 * site.usual, usual: site.usual };
    assert!(!closed.is_reached() && !wgrad_nn::Boundary { flow: 0.0, usual: 0.0 }.is_reached());

    let categories = measured.categories();
    let square = |category| categories.iter().find(|(own, _)| *own == category).map(|(_, norm)| norm.powi(2));
    let output = square(wgrad_nn::Category::Output).expect("each has a head");
    let other = square(wgrad_nn::Category::Other).expect("each has layers");
    close((output + other).sqrt(), measured.update.grad_norm);
}
