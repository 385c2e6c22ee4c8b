//! Accumulation over runs, replicas, checks that count, and noise that moves with updates.

use approx::assert_abs_diff_eq;
use wgrad::{
    Accumulator, Array, DType, FiniteGuard, LossScaler, Noise, OnGiveUp, Optimizer, ParamSet, Rng, Scaled, Store, Tape,
    Tensor, Weighting,
};
use wgrad_nn::optim::{Sgd, SgdConfig};
use wgrad_tests::{Linear, Machine, Mlp, Tolerance, compare, named, same_bits};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

/// A program that adds a micro-batch, and one that updates.
struct Window {
    cpu: Machine,
    add: wgrad::Step,
    update: wgrad::Step,
    weighted: bool,
}

impl Window {
    fn new(weighting: Weighting, skip_bad: bool, values: &[Array]) -> Self {
        let mut store = Store::new();
        let model = Linear::new(&mut store, values);
        let params = store.params();
        let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", weighting);
        let acc = if skip_bad { acc.skip_bad_micro_batches() } else { acc };
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
        let mut cpu = Machine::poisoned(1, store);
        let weighted = weighting == Weighting::TokenWeighted;
        let add = cpu.session.record(|t| match weighted {
            true => acc.add_tokens(model.grads(t), t.input("n", [], DType::U32)),
            false => acc.add(model.grads(t)),
        });
        let update = cpu.session.record(|t| {
            let grads = acc.take(t);
            for (i, param) in model.params.iter().enumerate() {
                t.tap(&format!("g{i}"), grads.get(*param).expect("present"));
            }
            let grads = grads.check_finite();
            t.tap("verdict", grads.verdict().expect("checked"));
            sgd.step(grads);
        });
        Self { cpu, add: add.unwrap(), update: update.unwrap(), weighted }
    }

    fn add(&mut self, gradients: &[Array], tokens: u32) {
        let mut inputs = Linear::inputs(gradients);
        if self.weighted {
            inputs.push(("n".into(), Array::new([], vec![tokens])));
        }
        let add = self.add.clone();
        self.cpu.run(&add, &inputs);
    }

    /// The gradient of the window, and whether the step was taken.
    fn update(&mut self) -> (Vec<f64>, bool) {
        let update = self.update.clone();
        let out = self.cpu.run(&update, &[]);
        (out.tap("g0").to_f64(), out.tap("verdict").item(0) == 1.0)
    }
}

#[test]
fn a_window_is_the_mean_of_what_is_present_however_short() {
    let zeros = [f32s(&[0.0, 0.0])];
    let mut window = Window::new(Weighting::Mean, false, &zeros);
    for gradients in [vec![[1.0, 2.0], [3.0, -2.0], [5.0, 6.0]], vec![[1.0, 2.0], [4.0, 0.0]], vec![[0.1, -7.0]]] {
        let count = gradients.len() as f32;
        let sum = gradients.iter().fold([0.0f32; 2], |sum, g| [sum[0] + g[0], sum[1] + g[1]]);
        gradients.iter().for_each(|g| window.add(&[f32s(g)], 0));
        let (g, taken) = window.update();
        assert!(taken);
        assert_eq!(g, sum.map(|v| f64::from(v / count)), "what was there before is gone");
    }
    let before = window.cpu.states();
    let (g, taken) = window.update();
    assert_eq!((g, taken), (vec![0.0, 0.0], false), "an empty window is no step");
    assert!(window.cpu.states_are(&before));
}

#[test]
fn tokens_weigh_and_none_of_them_count_for_nothing_even_of_nan() {
    let mut window = Window::new(Weighting::TokenWeighted, false, &[f32s(&[0.0, 0.0])]);
    window.add(&[f32s(&[1.0, 2.0])], 3);
    window.add(&[f32s(&[f32::NAN, f32::INFINITY])], 0);
    window.add(&[f32s(&[5.0, -2.0])], 1);
    assert_eq!(window.update(), (vec![2.0, 1.0], true));
    window.add(&[f32s(&[f32::NAN, 1.0])], 0);
    assert!(!window.update().1, "of no tokens at all there is nothing to do");
}

#[test]
fn sums_are_sums() {
    let mut window = Window::new(Weighting::Sum, false, &[f32s(&[0.0])]);
    [1.0, 2.0, 4.0].iter().for_each(|g| window.add(&[f32s(&[*g])], 0));
    assert_eq!(window.update(), (vec![7.0], true));
}

#[test]
fn a_bad_micro_batch_spoils_its_window_or_is_left_out() {
    for (skip_bad, want) in [(false, false), (true, true)] {
        let mut window = Window::new(Weighting::Mean, skip_bad, &[f32s(&[0.0])]);
        [1.0, f32::INFINITY, 4.0].iter().for_each(|g| window.add(&[f32s(&[*g])], 0));
        let (g, taken) = window.update();
        assert_eq!(taken, want);
        assert!(!skip_bad || g == [2.5], "{g:?}: the mean of two");
        window.add(&[f32s(&[3.0])], 0);
        assert_eq!(window.update(), (vec![3.0], true), "nothing of it is left in the next window");
    }
}

#[test]
fn micro_batches_make_up_the_batch() {
    for dtype in [DType::F64, DType::F32] {
        let mut store = Store::new();
        let model = Mlp::new(&mut store, dtype);
        let params = model.params();
        let acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", Weighting::TokenWeighted);
        let scaler = LossScaler::fixed(1024.0);
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let flat = |grads: wgrad::Grads<'_>, name: &str| t.tap(name, grads.flat().tensors()[0]);
            let (x, y) = model.inputs(t);
            flat(model.loss_of(t, x, y).grad(&params), "batch");
            for (start, len) in [(0, 3), (3, 1), (4, 3)] {
                let loss = model.loss_of(t, x.slice(0, start, len), y.slice(0, start, len));
                acc.add_tokens(scaler.scale(loss).grad(&params), t.scalar(len as f64, DType::U32));
            }
            flat(acc.take(t).unscale(&scaler), "parts");
        });
        let out = cpu.run(&step.unwrap(), &model.batch(0));
        let tolerance = if dtype == DType::F64 { Tolerance(1e-14) } else { Tolerance(1e-6) };
        assert!(out.tap("batch").to_f64().iter().any(|g| g.abs() > 1e-3));
        compare("parts", &out.tap("parts").to_f64(), &out.tap("batch").to_f64(), tolerance).unwrap();
    }
}

#[test]
fn what_is_absent_from_all_micro_batches_is_absent() {
    let mut store = Store::new();
    let params: Vec<_> = (0..3).map(|i| store.param(&format!("p{i}"), &f32s(&[1.0]))).collect();
    let all: ParamSet = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &all, "acc", Weighting::Mean);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        acc.add((t.param(params[0]) * 2.0).sum().grad(&all));
        acc.add((t.param(params[0]) * 4.0 + t.param(params[1])).sum().grad(&all));
        let grads = acc.take(t);
        assert!(grads.get(params[2]).is_none() && grads.absent().contains(params[2]));
        params[..2].iter().for_each(|p| t.tap_each("g", grads.get(*p).unwrap()));
    });
    let out = cpu.run(&step.unwrap(), &[]);
    let g: Vec<f64> = out.taps.iter().map(|(_, g)| g.item(0)).collect();
    assert_eq!(g, [3.0, 0.5], "where it is absent it counts as zero");
}

#[test]
fn taking_before_adding_is_refused() {
    let mut store = Store::new();
    store.param("p", &f32s(&[1.0]));
    let params = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(acc.take(&tape))));
    let message = caught.expect_err("it must panic").downcast::<String>().expect("a message");
    assert!(message.contains("record `add` before `take`"), "{message}");
}

#[test]
fn replicas_are_reduced_to_their_mean_and_a_nan_reaches_all() {
    let mut store = Store::new();
    let param = store.param("p", &f32s(&[0.0, 0.0]));
    let params = store.params();
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let rank = |r: usize| t.param(param).dot(t.input(&format!("g{r}"), [2], DType::F32)).grad(&params);
        let grads = rank(0).check_finite().all_reduce_on_tape(&[rank(1), rank(2).check_finite()]);
        t.tap("mean", grads.get(param).unwrap());
        t.tap("verdict", grads.verdict().unwrap());
    });
    let step = step.unwrap();
    let out = cpu.run(&step, &Linear::inputs(&[f32s(&[1.0, 2.0]), f32s(&[3.0, 0.0]), f32s(&[-1.0, 1.0])]));
    assert_eq!((out.tap("mean").to_f64(), out.tap("verdict").item(0)), (vec![1.0, 1.0], 1.0));
    let out = cpu.run(&step, &Linear::inputs(&[f32s(&[1.0, 2.0]), f32s(&[3.0, 0.0]), f32s(&[f32::NAN, 1.0])]));
    assert!(out.tap("mean").item(0).is_nan());
    assert_eq!(out.tap("verdict").item(0), 0.0);
}

#[test]
fn noise_moves_on_with_steps_that_are_taken_and_spares_what_is_absent() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[0.0; 300]), f32s(&[0.0])]);
    let frozen = store.param("frozen", &f32s(&[0.5]));
    let params = store.params();
    let rng = Rng::new(&mut store, "noise", 3);
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let grads = model.loss(t).grad(&params).check_finite().add_noise(Noise::annealed(0.3), rng);
        t.tap("flat", grads.flat().tensors()[0]);
        t.tap("g", grads.get(model.params[0]).unwrap());
        assert!(grads.get(frozen).is_none());
        sgd.step(grads);
    });
    let step = step.unwrap();
    let mut noise = |bad: f32| {
        let out = cpu.run(&step, &Linear::inputs(&[f32s(&[0.0; 300]), f32s(&[bad])]));
        (out.tap("g").to_f64(), out.tap("add_noise/sigma").item(0), out.tap("flat").to_f64())
    };
    let (skipped, sigma, _) = noise(f32::NAN);
    let (first, again, flat) = noise(0.0);
    assert_eq!((&skipped, sigma), (&first, again), "a step that is not taken draws its numbers again");
    let (second, later, _) = noise(0.0);
    assert_ne!(first, second);
    let deviations = [0.3f64, 0.3 / 2f64.powf(0.55)].map(f64::sqrt);
    assert_abs_diff_eq!([sigma, later][..], deviations[..], epsilon = 1e-6);
    let deviation = (first.iter().map(|z| z * z).sum::<f64>() / 300.0).sqrt() / sigma;
    assert_abs_diff_eq!(deviation, 1.0, epsilon = 4.5 / 600f64.sqrt());
    assert!(flat[300..384].iter().all(|g| *g == 0.0) && flat[385..].iter().all(|g| *g == 0.0), "padding stays zero");
}

#[test]
fn a_guard_counts_and_stops_or_accepts() {
    for (policy, last) in [(OnGiveUp::Error, false), (OnGiveUp::Accept, true)] {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[1.0])]);
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let guard = FiniteGuard::new(&mut store, "guard", Some(1), policy);
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| sgd.step(model.grads(t).skip_if_not_finite(&guard)));
        let step = step.unwrap();
        let mut run = |g: f32| {
            let out = cpu.run(&step, &Linear::inputs(&[f32s(&[g])]));
            let read = |name: &str| out.tap(&format!("skip_if_not_finite/{name}")).item(0);
            (read("count"), read("gave_up") == 1.0)
        };
        let seen: Vec<(f64, bool)> = [1.0, f32::NAN, 1.0, f32::NAN].map(&mut run).to_vec();
        assert_eq!(seen, [(0.0, false), (1.0, false), (0.0, false), (1.0, false)]);
        let before = cpu.session.read_param(model.params[0]).unwrap();
        assert!(before.item(0).is_finite());
        cpu.session.run(&step, &named(&Linear::inputs(&[f32s(&[f32::NAN])]))).unwrap();
        let told = cpu.session.taps();
        assert_eq!(told.is_err(), policy == OnGiveUp::Error);
        let taps = told.or_else(|_| cpu.session.taps()).unwrap();
        assert_eq!(taps[0].scalar("skip_if_not_finite/gave_up"), Some(1.0));
        let after = cpu.session.read_param(model.params[0]).unwrap();
        assert_eq!(!same_bits(&before, &after), last, "{policy:?}");
        assert_eq!(cpu.session.read(guard.total()).unwrap().item(0), 3.0);
        assert_eq!(cpu.session.read(guard.last_finite()).unwrap().item(0), 0.0);
    }
}

/// Gradients flow through an accumulator within a program.
#[test]
fn accumulation_is_linear_to_the_gradient() {
    let mut store = Store::new();
    let param = store.param("p", &Array::new([2], vec![0.3, -0.8]));
    let params = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let p = t.param(param);
        let square = |k: f64| (p * p * k).sum().grad(&params);
        acc.add(square(1.0));
        acc.add(square(4.0));
        let g: Tensor<'_> = acc.take(t).get(param).unwrap();
        // g = (2 p + 8 p) / 2 = 5 p
        t.tap("g", g);
        t.tap("dg", g.sum().grad_wrt(&[p])[0].unwrap());
    });
    let out = cpu.run(&step.unwrap(), &[]);
    compare("g", &out.tap("g").to_f64(), &[1.5, -4.0], Tolerance(1e-15)).unwrap();
    compare("dg", &out.tap("dg").to_f64(), &[5.0, 5.0], Tolerance(1e-15)).unwrap();
}

#[test]
fn a_micro_batch_with_a_false_verdict_skips_its_window_or_is_left_out_of_it() {
    let taken = |skip_bad: bool, tokens: [u32; 3], good: [bool; 3]| {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.0])]);
        let params = store.params();
        let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::TokenWeighted);
        let acc = if skip_bad { acc.skip_bad_micro_batches() } else { acc };
        let mut cpu = Machine::poisoned(1, store);
        let add = cpu.session.record(|t| {
            let grads = model.grads(t).skip_unless(t.input("good", [], DType::Bool));
            acc.add_tokens(grads, t.input("n", [], DType::U32));
        });
        let update = cpu.session.record(|t| {
            let grads = acc.take(t);
            t.tap("verdict", grads.verdict().unwrap());
            t.tap("mean", grads.get(model.params[0]).unwrap());
        });
        let (add, update) = (add.unwrap(), update.unwrap());
        // A window of good ones first: nothing of the one before stays.
        let mut window = |good: [bool; 3]| {
            for ((g, n), good) in [1.0, 4.0, 16.0].into_iter().zip(tokens).zip(good) {
                let mut inputs = Linear::inputs(&[f32s(&[g])]);
                inputs.push(("good".into(), Array::new([], vec![good])));
                inputs.push(("n".into(), Array::new([], vec![n])));
                cpu.run(&add, &inputs);
            }
            let out = cpu.run(&update, &[]);
            (out.tap("verdict").item(0) == 1.0, out.tap("mean").item(0))
        };
        let bad = window(good);
        assert!(window([true; 3]).0, "the next window is a new one");
        bad
    };
    assert_eq!(taken(false, [1; 3], [true; 3]), (true, 7.0));
    assert!(!taken(false, [1; 3], [true, false, true]).0);
    assert_eq!(taken(true, [1; 3], [true, false, true]), (true, 8.5));
    assert_eq!(taken(false, [1, 0, 1], [true, false, true]), (true, 8.5), "one without tokens has nothing to say");
}
