//! What holds of gradient passes over random models and random gradients: micro-batches make up the batch, what is idle
//! changes no bit of an update, every pair of passes does what the table of orders says, and threads change nothing.

use approx::abs_diff_eq;
use proptest::{collection::vec, prelude::*, sample::select, sample::subsequence};
use std::panic::{AssertUnwindSafe, catch_unwind};
use wgrad::{
    Accumulator, Agc, Array, Centralize, ClipGroups, ClipNorm, DType, Data, DynamicScale, FiniteGuard, Grads,
    LossScaler, Noise, OnGiveUp, Optimizer, Param, ParamSet, Rng, Scaled, Store, Tape, Tensor, Weighting,
};
use wgrad_nn::{
    Builder, Init, Linear as Layer, Schedule,
    optim::{AdamW, AdamWConfig, Ema, EmaConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig},
};
use wgrad_tests::{Linear, Machine, Mlp, Outputs, Tolerance, compare, proptest_config as config, same_bits};

const F64: DType = DType::F64;

/// Numbers without a pattern, in `[-scale, scale]`.
fn numbers(shape: &[usize], phase: f64, scale: f64) -> Array {
    let numel: usize = shape.iter().product();
    Array::new(shape, (0..numel).map(|i| scale * (1.9 * i as f64 + phase).sin()).collect::<Vec<f64>>())
}

/// The gradient of a perceptron's mean loss over a batch, and what accumulating its parts gives.
fn batch_and_parts(
    widths: &[usize],
    sizes: &[usize],
    seed: u64,
    dtype: DType,
    weighting: Weighting,
    scaler: LossScaler,
) -> [Vec<f64>; 2] {
    let rows: usize = sizes.iter().sum();
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, seed).with_dtype(dtype);
    let layer = |(i, w): (usize, &[usize])| Layer::new(b.at(&format!("{i}")), w[0], w[1], &Init::Normal(0.7));
    let layers: Vec<Layer> = widths.windows(2).enumerate().map(layer).collect();
    let params = store.params();
    let acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", weighting);
    let mut cpu = Machine::poisoned(1, store);
    let inputs: Vec<(String, Array)> = [("x", widths[0]), ("y", widths[widths.len() - 1])]
        .map(|(name, columns)| (name.to_string(), numbers(&[rows, columns], seed as f64, 1.5).cast(dtype)))
        .to_vec();
    let step = cpu.session.record(|t| {
        let [x, y] = [0, 1].map(|i| t.input_like(&inputs[i].0, &inputs[i].1));
        let loss = |start, len| {
            let h = layers.iter().fold(x.slice(0, start, len), |h, layer| layer.forward(h).tanh());
            let error = (h - y.slice(0, start, len)).square();
            if weighting == Weighting::Sum { error.sum() } else { error.mean() }
        };
        t.tap("batch", loss(0, rows).grad(&params).flat().tensors()[0]);
        let mut start = 0;
        for len in sizes {
            let grads = scaler.scale(loss(start, *len)).grad(&params);
            match weighting {
                Weighting::TokenWeighted => acc.add_tokens(grads, t.scalar(*len as f64, DType::U32)),
                Weighting::Mean | Weighting::Sum => acc.add(grads),
            }
            start += len;
        }
        t.tap("parts", acc.take(t).unscale(&scaler).flat().tensors()[0]);
    });
    let out = cpu.run(&step.expect("the plan compiles"), &inputs);
    ["batch", "parts"].map(|name| out.tap(name).to_f64())
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn micro_batches_of_any_sizes_make_up_the_batch(
        widths in vec(1..6usize, 2..5),
        sizes in vec(0..6usize, 1..6),
        seed in any::<u16>(),
        single in any::<bool>(),
        scale in select(vec![None, Some(1.0), Some(4096.0)]),
    ) {
        // Of nothing, twice in a row, is the same loss twice.
        prop_assume!(sizes.iter().sum::<usize>() > 0 && sizes.windows(2).all(|two| two != [0, 0]));
        let scaler = scale.map_or(LossScaler::none(), LossScaler::fixed);
        let (dtype, tolerance) = if single { (DType::F32, 1e-5) } else { (F64, 1e-12) };
        // Parts of different sizes weigh as many tokens as they have, even none; sums are sums; means need equal parts.
        let equal = vec![sizes[0].max(1); sizes.len()];
        for (sizes, weighting) in [
            (&sizes, Weighting::TokenWeighted),
            (&sizes, Weighting::Sum),
            (&equal, Weighting::Mean),
            (&equal, Weighting::TokenWeighted),
        ] {
            let [batch, parts] = batch_and_parts(&widths, sizes, seed.into(), dtype, weighting, scaler);
            prop_assert!(batch.iter().any(|g| *g != 0.0));
            compare("parts", &parts, &batch, Tolerance(tolerance)).map_err(TestCaseError::fail)?;
        }
    }
}

/// A mean of means is another number where sizes differ: that is what weighting by tokens is for.
#[test]
fn a_mean_of_means_is_noticed() {
    let [batch, parts] = batch_and_parts(&[3, 2], &[5, 1], 3, F64, Weighting::Mean, LossScaler::none());
    assert!(compare("parts", &parts, &batch, Tolerance(1e-3)).is_err());
}

/// Shapes of parameters with no elements, one, few, and more than a vector register holds.
fn shapes() -> impl Strategy<Value = Vec<(Vec<usize>, bool)>> {
    let shape = select(vec![
        vec![],
        vec![0],
        vec![1],
        vec![7],
        vec![0, 3],
        vec![1, 1],
        vec![5, 3],
        vec![3, 1],
        vec![2, 3, 1, 2],
        vec![17, 9],
    ]);
    vec((shape, any::<bool>()), 1..5)
}

/// Numbers of all sizes, with zeros of both signs and numbers that are hardly any.
fn awkward(shape: &[usize], single: bool, salt: u64) -> Array {
    let element = |i: usize| {
        let n = (i as u64 + 1).wrapping_mul(salt | 1).wrapping_mul(6364136223846793005) >> 33;
        let sign = if n & 1 == 0 { 1.0 } else { -1.0 };
        let tiny = if single { 1e-40 } else { 1e-310 };
        sign * match n >> 1 & 7 {
            0 => 0.0,
            1 => tiny,
            2 => 1e-12,
            3 => 1e3,
            _ => 0.1 + (n >> 4 & 1023) as f64 / 300.0,
        }
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(element).collect();
    Array::new(shape, values).cast(if single { DType::F32 } else { F64 })
}

/// A pass with what it needs.
type Idle = for<'t> fn(&World, Grads<'t>) -> Grads<'t>;

/// A linear model, whose gradients are given, and all that passes keep.
struct World {
    params: ParamSet,
    rng: Rng,
    guard: FiniteGuard,
}

/// Each pass where it does not act.
const IDLE: [(&str, Idle); 16] = [
    ("check", |_, g| g.check_finite()),
    ("guard", |w, g| g.skip_if_not_finite(&w.guard)),
    ("reduce", |_, g| g.all_reduce_on_tape(&[])),
    ("noise", |w, g| g.add_noise(Noise::fixed(0.0), w.rng)),
    ("centralize", |w, g| g.centralize_with(&Centralize::new().exclude(&w.params))),
    ("agc", |_, g| g.agc(1e30)),
    ("agc of none", |w, g| g.agc(Agc::new(1e-3).exclude(&w.params))),
    ("agc per tensor", |_, g| g.agc_per_tensor(1e30, 1e-6, 1e-3)),
    ("clip", |_, g| g.clip_by_global_norm(1e30)),
    ("clip without bound", |_, g| g.clip_by_global_norm(f64::INFINITY)),
    ("clip at the norm", |_, g| {
        let bound = g.norm();
        g.clip_by_global_norm(ClipNorm::new(bound).eps(0.0))
    }),
    ("clip 1", |_, g| g.clip_by_global_norm(ClipNorm::new(1e30).p(1.0))),
    ("groups", |w, g| g.clip_by_group_norm(&ClipGroups::per_parameter(&w.params, 1e30))),
    ("rms", |_, g| g.clip_by_block_rms(1e30)),
    ("value", |_, g| g.clip_by_value(1e30)),
    ("scale", |w, g| g.scale_grad(&w.params, 1.0)),
];

/// The gradients and the states of two updates with some idle passes, without those that passes keep.
fn updated(parameters: &[(Vec<usize>, bool)], idle: &[usize], optimizer: u8, unscale: bool, salt: u64) -> Vec<Array> {
    let mut store = Store::new();
    let of = |salt: u64| -> Vec<Array> {
        parameters.iter().enumerate().map(|(i, (shape, single))| awkward(shape, *single, salt + i as u64)).collect()
    };
    let model = Linear::new(&mut store, &of(salt));
    let params = store.params();
    let lr = Schedule::warmup(0.1, 3).into();
    let optimizer: Box<dyn Optimizer> = match optimizer {
        0 => Box::new(Sgd::new(&mut store, &params, SgdConfig { lr, momentum: 0.9, ..SgdConfig::default() })),
        1 => Box::new(AdamW::new(&mut store, &params, AdamWConfig { lr, ..AdamWConfig::default() })),
        _ => Box::new(RmsProp::new(&mut store, &params, RmsPropConfig { lr, ..RmsPropConfig::default() })),
    };
    let ema = Ema::new(&mut store, &params, EmaConfig::default());
    let kept = store.layout().states().count();
    let rng = Rng::new(&mut store, "noise", 1);
    let guard = FiniteGuard::new(&mut store, "guard", None, OnGiveUp::Error);
    let world = World { params, rng, guard };
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let grads = match unscale {
            true => {
                let scaler = LossScaler::fixed(1.0);
                scaler.scale(model.loss(t)).grad(&world.params).unscale(&scaler)
            }
            false => model.grads(t),
        };
        let grads = idle.iter().fold(grads, |grads, pass| IDLE[*pass].1(&world, grads));
        grads.flat().tensors().iter().for_each(|g| t.tap_each("flat", *g));
        optimizer.step(grads);
        ema.update(t, &*optimizer);
    });
    let step = step.expect("the plan compiles");
    let mut seen = vec![];
    for run in [11, 12] {
        let out = cpu.run(&step, &Linear::inputs(&of(salt ^ run)));
        seen.extend(out.taps.into_iter().filter(|(name, _)| name.starts_with("flat")).map(|(_, g)| g));
        seen.extend(out.states.into_iter().take(kept));
    }
    seen
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn idle_passes_change_no_bit_of_an_update(
        parameters in shapes(),
        idle in subsequence((0..IDLE.len()).collect::<Vec<_>>(), 1..5),
        optimizer in 0..3u8,
        unscale in any::<bool>(),
        salt in any::<u32>(),
    ) {
        let names: Vec<&str> = idle.iter().map(|pass| IDLE[*pass].0).collect();
        let with = updated(&parameters, &idle, optimizer, unscale, salt.into());
        let without = updated(&parameters, &[], optimizer, false, salt.into());
        for (with, without) in with.iter().zip(&without) {
            prop_assert!(same_bits(with, without), "{:?}: {:?} and {:?}", names, with, without);
        }
    }
}

/// An active pass does change an update: the comparison above can fail.
#[test]
fn one_active_pass_among_them_is_noticed() {
    let with = |bound: f64| {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[awkward(&[5, 3], true, 1)]);
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| sgd.step(model.grads(t).clip_by_global_norm(bound)));
        cpu.run(&step.expect("the plan compiles"), &Linear::inputs(&[awkward(&[5, 3], true, 2)]));
        cpu.states()
    };
    assert!(!same_bits(&with(1e30)[0], &with(1.0)[0]));
}

/// What becomes of a pair of passes while it is recorded.
fn refused(record: impl FnOnce()) -> Option<String> {
    let message = catch_unwind(AssertUnwindSafe(record)).err()?.downcast::<String>().expect("a text");
    assert!(message.contains("pass_properties.rs:"), "{message}");
    Some(message.split(':').next().unwrap_or_default().into())
}

/// The passes of the table of orders, where they act.
const ACTIVE: [(&str, Idle); 12] = [
    ("check", |_, g| g.check_finite()),
    ("guard", |w, g| g.skip_if_not_finite(&w.guard)),
    ("reduce", |_, g| {
        let other = g.clone();
        g.all_reduce_on_tape(&[other])
    }),
    ("noise", |w, g| g.add_noise(Noise::fixed(0.1), w.rng)),
    ("centralize", |_, g| g.centralize()),
    ("agc", |_, g| g.agc(0.1)),
    ("agc per tensor", |_, g| g.agc_per_tensor(0.1, 1e-6, 1e-3)),
    ("clip", |_, g| g.clip_by_global_norm(0.5)),
    ("groups", |w, g| g.clip_by_group_norm(&ClipGroups::per_parameter(&w.params, 0.3))),
    ("rms", |_, g| g.clip_by_block_rms(0.2)),
    ("value", |_, g| g.clip_by_value(0.2)),
    ("scale", |w, g| g.scale_grad(&w.params, 0.5)),
];

/// Of all pairs of passes, a check after what can hide an infinity is refused, and a mean over replicas of what has been
/// clipped in each; all others run, and what bounds last has its bound.
#[test]
fn every_pair_of_passes_runs_or_is_refused_as_the_table_says() {
    let hides = ["agc", "agc per tensor", "clip", "groups", "rms", "value"];
    for (first, a) in ACTIVE {
        for (second, b) in ACTIVE {
            let mut store = Store::new();
            let values = [numbers(&[3, 4], 0.2, 0.9), numbers(&[3], 0.7, 0.9)];
            let model = Linear::new(&mut store, &values);
            let params = store.params();
            let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
            let rng = Rng::new(&mut store, "noise", 1);
            let guard = FiniteGuard::new(&mut store, "guard", None, OnGiveUp::Error);
            let world = World { params, rng, guard };
            let mut cpu = Machine::poisoned(1, store);
            let tape = Tape::new(cpu.session.layout().clone());
            let code = refused(|| {
                let grads = b(&world, a(&world, model.grads(&tape)));
                tape.tap("norm", grads.norm());
                grads.flat().tensors().iter().for_each(|g| tape.tap("flat", *g));
                sgd.step(grads);
            });
            let told = match second {
                // What a clip by value hides, no check can find at all.
                "check" | "guard" if first == "value" => Some("P31".to_string()),
                "check" | "guard" if hides.contains(&first) => Some("P30".to_string()),
                "reduce" if hides.contains(&first) => Some("P8".to_string()),
                _ => None,
            };
            assert_eq!(code, told, "{first}, then {second}");
            if told.is_some() {
                continue;
            }
            let step = cpu.session.compile(tape.finish()).expect("the plan compiles");
            let gradients = [numbers(&[3, 4], 1.2, 1.1), numbers(&[3], 2.7, 1.1)];
            let out = cpu.run(&step, &Linear::inputs(&gradients));
            let flat = out.tap("flat").to_f64();
            assert!(out.states.iter().flat_map(Array::to_f64).all(f64::is_finite), "{first}, then {second}");
            let largest = flat.iter().fold(0.0, |a: f64, g| a.max(g.abs()));
            let bounded = match second {
                "clip" => out.tap("norm").item(0) <= 0.5,
                "value" => largest <= 0.2,
                // A projection keeps the bound of the clip before it.
                "centralize" if first == "clip" => out.tap("norm").item(0) <= 0.5 + 1e-15,
                _ => true,
            };
            assert!(bounded, "{first}, then {second}: {flat:?}");
            if second == "centralize" {
                let sums: Vec<f64> = flat[..12].chunks(4).map(|row| row.iter().sum()).collect();
                let mean_free = abs_diff_eq!(sums[..], [0.0; 3][..], epsilon = 1e-14);
                assert!(mean_free, "{first}, then {second}: rows have no mean");
            }
        }
    }
}

/// What is refused unless it is meant runs where it is.
#[test]
fn clips_of_each_replica_are_reduced_where_that_is_said() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[numbers(&[3, 4], 0.2, 0.9)]);
    let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let clipped = || (model.loss(&tape) * 2.0).grad(&store.params()).clip_by_global_norm(0.5);
    assert_eq!(refused(|| drop(clipped().all_reduce_on_tape(&[clipped()]))), Some("P8".to_string()));
    assert_eq!(refused(|| drop(clipped().local_clip().all_reduce_on_tape(&[clipped().local_clip()]))), None);
}

/// Records on a fresh tape over a model of two parameters, with two accumulators.
fn identity(
    gradients: &[Array],
    f: impl for<'t> FnOnce(&'t Tape, &Linear, &ParamSet, &Accumulators) -> [Tensor<'t>; 2],
) -> [Array; 2] {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[numbers(&[3, 4], 0.2, 0.9), numbers(&[3], 0.7, 0.9)]);
    let params = store.params();
    let mut plain = |name: &str| Accumulator::new(&mut store, &params, name, Weighting::Mean);
    let plain = [plain("a"), plain("b")];
    let scaled = Accumulator::new(&mut store, &params, "scaled", Weighting::Mean);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let [one, other] = f(t, &model, &params, &Accumulators { plain, scaled });
        t.tap("one", one);
        t.tap("other", other);
    });
    let step = step.expect("the plan compiles");
    let inputs = gradients.iter().enumerate().map(|(i, g)| (format!("micro{i}"), g.clone()));
    let inputs: Vec<(String, Array)> = inputs.filter(|(n, _)| step.inputs().iter().any(|i| i.name == *n)).collect();
    let out: Outputs = cpu.run(&step, &inputs);
    ["one", "other"].map(|name| out.tap(name).clone())
}

struct Accumulators {
    plain: [Accumulator; 2],
    scaled: Accumulator<Scaled>,
}

/// A loss whose gradient by the weight is this input.
fn loss<'t>(t: &'t Tape, model: &Linear, k: usize) -> Tensor<'t> {
    let [weight, bias]: [Param; 2] = model.params[..].try_into().expect("two parameters");
    let g = t.shared_input(&format!("micro{k}"), [3, 4], F64);
    t.param(weight).dot(g) + t.param(bias).dot(g.sum_axes(&[1]))
}

fn flat<'t, S>(grads: &Grads<'t, S>) -> Tensor<'t> {
    grads.flat().tensors()[0]
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn orders_that_the_table_calls_equal_are(values in vec(vec(-3.0..3.0f64, 12), 4), power in 0..20i32) {
        let gradients: Vec<Array> = values.into_iter().map(|values| Array::new([3, 4], values)).collect();
        let close = |what: &str, [one, other]: &[Array; 2]| {
            prop_assert!(one.to_f64().iter().any(|g| *g != 0.0));
            compare(what, &one.to_f64(), &other.to_f64(), Tolerance(1e-14)).map_err(TestCaseError::fail)
        };
        // Accumulate and all-reduce: both are sums. Micro-batches 0 and 1 of one replica, 2 and 3 of the other.
        close("reduce", &identity(&gradients, |t, model, params, acc| {
            let grad = |k: usize| (loss(t, model, k) * 1.0).grad(params);
            for k in [0, 1] {
                acc.plain[0].add(grad(k));
                acc.plain[1].add(grad(k + 2));
            }
            let last = acc.plain[0].take(t).all_reduce_on_tape(&[acc.plain[1].take(t)]);
            let first = |k: usize| flat(&grad(k).all_reduce_on_tape(&[grad(k + 2)]));
            [flat(&last), (first(0) + first(1)) / 2.0]
        }))?;
        // Unscaling by a power of two: before or after either, to the bit.
        let scaler = LossScaler::fixed(2f64.powi(power));
        let exact = |what: &str, [one, other]: [Array; 2]| {
            prop_assert!(same_bits(&one, &other), "{}: {:?} and {:?}", what, one, other);
            Ok(())
        };
        exact("unscale and accumulate", identity(&gradients, |t, model, params, acc| {
            for k in 0..3 {
                let scaled = || scaler.scale(loss(t, model, k)).grad(params);
                acc.plain[0].add(scaled().unscale(&scaler));
                acc.scaled.add(scaled());
            }
            [flat(&acc.plain[0].take(t)), flat(&acc.scaled.take(t).unscale(&scaler))]
        }))?;
        exact("unscale and reduce", identity(&gradients, |t, model, params, _| {
            let scaled = |k: usize| scaler.scale(loss(t, model, k)).grad(params);
            let after = scaled(0).all_reduce_on_tape(&[scaled(1)]).unscale(&scaler);
            [flat(&after), flat(&scaled(0).unscale(&scaler).all_reduce_on_tape(&[scaled(1).unscale(&scaler)]))]
        }))?;
        // Centralization is linear, and a projection.
        close("centralize and reduce", &identity(&gradients, |t, model, params, _| {
            let grad = |k: usize| loss(t, model, k).grad(params);
            let before = grad(0).centralize().all_reduce_on_tape(&[grad(1).centralize()]);
            [flat(&before), flat(&grad(0).all_reduce_on_tape(&[grad(1)]).centralize())]
        }))?;
        close("centralize twice", &identity(&gradients, |t, model, params, _| {
            let once = loss(t, model, 0).grad(params).centralize();
            [flat(&once), flat(&once.clone().centralize())]
        }))?;
        exact("clip by value twice", identity(&gradients, |t, model, params, _| {
            let once = loss(t, model, 0).grad(params).clip_by_value(0.7);
            [flat(&once), flat(&once.clone().clip_by_value(0.7))]
        }))?;
    }
}

/// Where the table says that an order matters, it does.
#[test]
fn orders_that_the_table_calls_different_are() {
    let gradients: Vec<Array> = (0..4).map(|k| numbers(&[3, 4], f64::from(k), 2.0)).collect();
    let far = |what: &str, [one, other]: [Array; 2]| {
        let apart = compare(what, &one.to_f64(), &other.to_f64(), Tolerance(1e-3));
        assert!(apart.is_err(), "{what}: {one:?} and {other:?}");
    };
    let value = identity(&gradients, |t, model, params, _| {
        let grad = || loss(t, model, 0).grad(params);
        [flat(&grad().clip_by_value(0.3).centralize()), flat(&grad().centralize().clip_by_value(0.3))]
    });
    far("value clip and centralize", value);
    let norm = identity(&gradients, |t, model, params, _| {
        let grad = || loss(t, model, 0).grad(params);
        [flat(&grad().agc(0.1).clip_by_global_norm(0.1)), flat(&grad().clip_by_global_norm(0.1).agc(0.1))]
    });
    far("agc and clip", norm);
}

/// The state after some updates with every pass, on a device.
fn whole(mut cpu: Machine, model: &Mlp, parts: &Parts) -> Vec<Array> {
    let Parts { params, scaler, adam, ema, rng, guard, acc } = parts;
    let add = cpu.session.record(|t| acc.add(scaler.scale(model.loss(t)).grad(params))).expect("the plan compiles");
    let update = cpu.session.record(|t| {
        let grads = acc.take(t).unscale(scaler).skip_if_not_finite(guard).add_noise(Noise::annealed(0.01), *rng);
        adam.step(grads.centralize().agc(0.1).clip_by_global_norm(0.5).clip_by_value(0.2));
        ema.update(t, adam);
        scaler.update(t);
    });
    let update = update.expect("the plan compiles");
    for window in 0..3 {
        (0..2).for_each(|k| drop(cpu.run(&add, &model.batch(2 * window + k))));
        cpu.run(&update, &[]);
    }
    cpu.states()
}

struct Parts {
    params: ParamSet,
    scaler: LossScaler,
    adam: AdamW,
    ema: Ema,
    rng: Rng,
    guard: FiniteGuard,
    acc: Accumulator<Scaled>,
}

#[test]
fn whole_updates_give_the_same_bits_on_any_number_of_threads() {
    let run = |device: fn(usize, Store) -> Machine, threads: usize| {
        let mut store = Store::new();
        let model = Mlp::new(&mut store, DType::F32);
        store.param("large", &numbers(&[300, 70], 0.3, 0.5).cast(DType::F32));
        let params = model.params();
        let parts = Parts {
            scaler: LossScaler::dynamic(&mut store, DynamicScale { interval: 1, ..DynamicScale::default() }),
            adam: AdamW::new(&mut store, &params, AdamWConfig::default()),
            ema: Ema::new(&mut store, &params, EmaConfig::default()),
            rng: Rng::new(&mut store, "noise", 1),
            guard: FiniteGuard::new(&mut store, "guard", None, OnGiveUp::Error),
            acc: Accumulator::new(&mut store, &params, "acc", Weighting::Mean),
            params,
        };
        whole(device(threads, store), &model, &parts)
    };
    for device in [Machine::new, Machine::poisoned, Machine::splitting] {
        let first = run(device, 1);
        assert!(matches!(first[0].data(), Data::F32(_)));
        for threads in [1, 2, 3] {
            let again = run(device, threads);
            assert!(first.iter().zip(&again).all(|(a, b)| same_bits(a, b)), "{threads} threads differ");
        }
    }
}
