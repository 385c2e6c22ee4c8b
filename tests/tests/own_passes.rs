//! Gradient passes of one's own, written with `Grads::map`: two of the literature, and what holds of any.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use wgrad::{
    Accumulator, Array, DType, Flat, Grads, Optimizer, Param, ParamSet, PassKind, Pitfall, Store, Tape, Tensor,
    Unscaled, Weighting,
};
use wgrad_nn::optim::{Sgd, SgdConfig};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, gpu, research::zclip::ZClip};

const F64: DType = DType::F64;

/// ZClip on the host: the norm after the clip, and the new averages.
fn zclip(norm: f64, [steps, mean, variance]: [f64; 3]) -> (f64, [f64; 3]) {
    let deviation = variance.sqrt() + 1e-6;
    let z = (norm - mean) / deviation;
    let spike = z > ZClip::THRESHOLD && steps >= f64::from(ZClip::WARMUP);
    let clipped = if spike { mean + ZClip::THRESHOLD * ZClip::THRESHOLD / z * deviation } else { norm };
    let weight = f64::max(1.0 / (steps + 1.0), 1.0 - ZClip::DECAY);
    let new = mean + (clipped - mean) * weight;
    (clipped, [steps + 1.0, new, (1.0 - weight) * variance + weight * (clipped - mean) * (clipped - new)])
}

#[test]
fn zclip_clips_spikes_and_does_not_learn_from_what_it_skips() {
    let on_gpu = gpu().map(|gpu| (DType::F32, Some(gpu)));
    for (dtype, gpu) in [(F64, None), (DType::F32, None)].into_iter().chain(on_gpu) {
        let mut store = Store::new();
        let p = store.param("p", &Array::zeros([3], dtype));
        let params = store.params();
        let clip = ZClip::new(&mut store, dtype);
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
        let mut machine = match gpu {
            Some(gpu) => Machine::on_gpu(gpu, store),
            None => Machine::poisoned(1, store),
        };
        let step = machine.session.record(|t| {
            let loss = (t.param(p) * t.input("x", [3], dtype)).sum();
            sgd.step(clip.apply(loss.grad(&params)));
        });
        let step = step.expect("compiles");
        let kinds: Vec<PassKind> = step.passes().iter().map(|pass| pass.kind).collect();
        assert_eq!((kinds, step.passes()[0].name), (vec![PassKind::Own, PassKind::Step], "zclip"));
        let (mut known, mut at) = ([0.0; 3], [0.0; 3]);
        let mut spikes = 0;
        // A spike within the warm-up, one after it, an infinite gradient, and a spike again.
        for size in [1.0, 1.2, 5.0, 0.9, 1.1, 30.0, f64::INFINITY, 1.0, f64::NAN, 1.3, 40.0, 1.0] {
            let x = [size, -2.0 * size, 2.0 * size];
            let out = machine.run(&step, &[("x".into(), Array::new([3], x.to_vec()).cast(dtype))]);
            if size.is_finite() {
                let (clipped, new) = zclip(3.0 * size, known);
                spikes += usize::from(clipped != 3.0 * size);
                known = new;
                at = [0, 1, 2].map(|i| at[i] - x[i] * clipped / (3.0 * size));
                compare("clipped", &[out.tap("zclip/clipped").item(0)], &[clipped], Tolerance::of(dtype)).unwrap();
            }
            let read =
                [clip.steps, clip.mean, clip.variance].map(|state| machine.session.read(state).expect("reads").item(0));
            compare(&format!("averages after {size}"), &read, &known, Tolerance::of(dtype)).unwrap();
            let p = machine.session.read_param(p).expect("reads").to_f64();
            compare(&format!("parameters after {size}"), &p, &at, Tolerance::of(dtype)).unwrap();
        }
        assert_eq!(spikes, 2);
    }
}

/// The inner product over all arenas.
fn dot<'t>(a: &Flat<'t>, b: &Flat<'t>) -> Tensor<'t> {
    let products = a.parts().iter().map(|(arena, a)| a.dot(b.get(*arena).expect("the same arenas")).cast(F64));
    products.reduce(|sum, product| sum + product).expect("an arena at least")
}

/// PCGrad (Yu et al. 2020, arXiv 2001.06782) of two losses: where their gradients conflict, each is projected onto the
/// normal plane of the other, as that was, and the sum of both is taken.
fn pcgrad<'t>(losses: [Tensor<'t>; 2], params: &ParamSet) -> Grads<'t> {
    let [a, b] = losses.map(|loss| loss.grad(params));
    // The sum has all parameters that either loss reaches.
    (losses[0] + losses[1]).grad(params).map("pcgrad", |_| {
        let (a, b) = (a.flat(), b.flat());
        let product = dot(a, b).minimum(0);
        let project = |x: &Flat<'t>, y: &Flat<'t>| {
            let share = product / dot(y, y).maximum(1e-30);
            x.map(|arena, x| x - y.get(arena).expect("the same arenas") * share.cast(x.dtype()))
        };
        let (a, b) = (project(a, b), project(b, a));
        a.map(|arena, a| a + b.get(arena).expect("the same arenas"))
    })
}

#[test]
fn pcgrad_projects_gradients_that_conflict_and_no_others() {
    for (second, conflict) in [([-1.0, 0.5, -2.0], true), ([1.0, 0.5, 2.0], false)] {
        let mut store = Store::new();
        let shared = store.param("shared", &Array::new([3], vec![0.5, -1.0, 2.0]));
        let narrow = store.param("narrow", &Array::new([1], vec![3.0f32]));
        let heads = ["first", "second"].map(|path| store.param(path, &Array::new([2], vec![1.0, -1.0])));
        let params = store.params();
        let mut machine = Machine::poisoned(1, store);
        let record = |t: &Tape| {
            let weights = [t.table(&[2.0, 1.0, 3.0], F64), t.table(&second, F64)];
            let loss = |i: usize| {
                let own = (t.param(heads[i]) * (i as f64 + 0.5)).sum();
                (t.param(shared) * weights[i]).sum() + own + (t.param(narrow) * (1 - 3 * i as i32)).sum().cast(F64)
            };
            let losses = [loss(0), loss(1)];
            let g = pcgrad(losses, &params);
            assert_eq!(g.present(), &params);
            for (name, param) in [("shared", shared), ("narrow", narrow), ("first", heads[0]), ("second", heads[1])] {
                t.tap(name, g.get(param).expect("present"));
            }
        };
        let step = machine.session.record(record).expect("compiles");
        let out = machine.run(&step, &[]);
        // All elements of both gradients, in the order of the taps.
        let a = [2.0, 1.0, 3.0, 1.0, 0.5, 0.5, 0.0, 0.0];
        let b = [second[0], second[1], second[2], -2.0, 0.0, 0.0, 1.5, 1.5];
        let dot = |x: &[f64; 8], y: &[f64; 8]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let product = dot(&a, &b);
        assert_eq!(product < 0.0, conflict);
        let share = |y: &[f64; 8]| product.min(0.0) / dot(y, y);
        let want: Vec<f64> = (0..8).map(|i| a[i] - share(&b) * b[i] + b[i] - share(&a) * a[i]).collect();
        let have: Vec<f64> =
            ["shared", "narrow", "first", "second"].iter().flat_map(|name| out.tap(name).to_f64()).collect();
        // One parameter is of f32.
        compare("gradients", &have, &want, Tolerance(1e-6)).unwrap();
        if !conflict {
            assert_eq!(have, (0..8).map(|i| a[i] + b[i]).collect::<Vec<f64>>(), "no bit of the sum is changed");
        }
    }
}

/// Two parameters with padding, of which a loss reaches the first; and the optimizer of both.
fn two() -> (Store, [Param; 2], Sgd) {
    let mut store = Store::new();
    let params = ["reached", "still"].map(|path| store.param(path, &Array::new([2], vec![1.0, 2.0])));
    let all = store.params();
    let sgd = Sgd::new(&mut store, &all, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
    (store, params, sgd)
}

fn run(store: Store, record: impl FnOnce(&Tape)) -> Outputs {
    let mut machine = Machine::poisoned(1, store);
    let step = machine.session.record(record).expect("compiles");
    machine.run(&step, &[])
}

/// A pass gives what it likes for absent parameters and for padding: nothing of it arrives.
#[test]
fn a_pass_changes_present_gradients_only() {
    let (store, [reached, still], sgd) = two();
    let params = store.params();
    let out = run(store, |t| {
        let g = t.param(reached).square().sum().grad(&params).map("add", |flat| flat.map(|_, g| g + 0.5));
        assert!(g.get(still).is_none() && g.absent().contains(still));
        t.tap("flat", g.flat().tensors()[0]);
        sgd.step(g);
    });
    let mut want = vec![0.0; out.tap("flat").shape().numel()];
    want[..2].copy_from_slice(&[2.5, 4.5]);
    assert_eq!(out.tap("flat").to_f64(), want);
    let mut arena = vec![0.0; want.len()];
    arena[..2].copy_from_slice(&[-1.5, -2.5]);
    arena[128..130].copy_from_slice(&[1.0, 2.0]);
    assert_eq!(out.states[0].to_f64(), arena);
}

/// A pass that gives back what it is given changes no bit, and a full arena needs no mask.
#[test]
fn an_idle_pass_is_not_there() {
    let mut store = Store::new();
    let p = store.param("p", &Array::zeros([128], F64));
    let params = store.params();
    run(store, |t| {
        let g = t.param(p).exp().sum().grad(&params);
        let before = g.flat().tensors()[0].id();
        assert_eq!(g.map("idle", Flat::clone).flat().tensors()[0].id(), before);
        t.tap("p", t.param(p));
    });
}

/// Gradients flow through a pass to the numbers that it uses.
#[test]
fn a_pass_is_differentiable() {
    let (store, [reached, _], _) = two();
    let params = store.params();
    let out = run(store, |t| {
        let factor = t.scalar(3.0, F64).barrier();
        let g = t.param(reached).square().sum().grad(&params).map("scale", |flat| flat.map(|_, g| g * factor));
        let result = g.get(reached).expect("present").square().sum();
        t.tap("slope", result.grad_wrt(&[factor])[0].expect("reached"));
    });
    // The square of 3 (2, 4): its slope is 2 * 3 * (4 + 16).
    assert_eq!(out.tap("slope").item(0), 120.0);
}

/// The message of the panic that `f` must end in, which names a line of this file.
fn panics(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("refused");
    let text = panic.downcast_ref::<String>().expect("text").clone();
    assert!(text.contains("own_passes.rs"), "{text}");
    text
}

/// The message of the panic that recording over two parameters must end in.
fn refused(record: impl FnOnce(&Tape, [Param; 2], &ParamSet)) -> String {
    let (store, two, _) = two();
    let (params, t) = (store.params(), Tape::new(Arc::new(store.layout().clone())));
    panics(|| record(&t, two, &params))
}

#[test]
fn vectors_that_are_no_gradients_are_refused() {
    let with = |f: &dyn for<'t> Fn(&Flat<'t>) -> Flat<'t>| {
        refused(|t, [p, _], params| drop(t.param(p).sum().grad(params).map("mine", |flat| f(flat))))
    };
    let narrow = with(&|flat| flat.map(|_, g| g.cast(DType::F32)));
    assert!(
        narrow.starts_with("mine: the pass returns f32[256] for \"params/f64\", whose gradient is f64[256]"),
        "{narrow}"
    );
    let short = with(&|flat| flat.map(|_, g| g.slice(0, 0, 4)));
    assert!(short.contains("f64[4]"), "{short}");
    let none = with(&|_| Flat::new(vec![]));
    assert!(none.contains("returns 0 vectors, and was given 1"), "{none}");
}

#[test]
fn the_rules_take_a_pass_for_a_clip() {
    fn map(g: Grads<'_>) -> Grads<'_> {
        g.map("mine", |flat| flat.map(|_, g| g * 2))
    }
    let mut store = Store::new();
    let p = store.param("p", &Array::zeros([2], F64));
    let params = store.params();
    let acc: Accumulator<Unscaled> = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let t = Tape::new(Arc::new(store.layout().clone()));
    let early = panics(|| acc.add(t.param(p).sum().grad(&params).map("mine", Flat::clone)));
    assert!(early.contains(&Pitfall::PassOnPartialWindow.to_string()), "{early}");
    let absent = refused(|t, [p, still], _| drop(map(t.param(p).sum().grad(&[still].into_iter().collect()))));
    assert!(absent.contains(&Pitfall::PassBeforeBackward.to_string()), "{absent}");
    // A check after it comes too late.
    let late = refused(|t, [p, _], params| drop(map(t.param(p).sum().grad(params)).check_finite()));
    assert!(late.contains(&Pitfall::ClipBeforeFiniteCheck.to_string()), "{late}");
    // A clip by value after it is not alone.
    let (store, [p, _], sgd) = two();
    let params = store.params();
    let lints = |record: &dyn Fn(Grads<'_>)| {
        let t = Tape::new(Arc::new(store.layout().clone()));
        record(t.param(p).square().sum().grad(&params));
        t.finish().lints().iter().map(|lint| lint.pitfall).collect::<Vec<_>>()
    };
    assert!(lints(&|g| sgd.step(g.clip_by_value(1.0))).contains(&Pitfall::ClipByValueAlone), "the control");
    assert!(!lints(&|g| sgd.step(map(g).clip_by_value(1.0))).contains(&Pitfall::ClipByValueAlone));
}
