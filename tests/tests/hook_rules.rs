//! The ten rules of gradient hooks: a test for each.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{Arc, Mutex},
};
use wgrad::{Accumulator, Array, DType, Param, ParamSet, Step, Store, Tape, Tensor, Weighting};
use wgrad_tests::{Machine, Outputs, Tolerance, compare};

const F64: DType = DType::F64;

/// What a function taps, for input `x`.
fn taps(x: &[f64], record: impl for<'t> FnOnce(&'t Tape, Tensor<'t>)) -> Outputs {
    let t = Tape::default();
    record(&t, t.input("x", [x.len()], F64));
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(t.finish()).expect("the plan compiles");
    cpu.run(&step, &[("x".into(), Array::new([x.len()], x.to_vec()))])
}

/// What a recording panics with.
fn refused(record: impl for<'t> FnOnce(&'t Tape, Tensor<'t>)) -> String {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let t = Tape::default();
        record(&t, t.input("x", [2], F64));
    }));
    *caught.expect_err("it is refused").downcast::<String>().expect("a text")
}

fn unused(_: Tensor<'_>) {}

fn gradient<'t>(loss: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
    loss.grad_wrt(&[x])[0].expect("reached")
}

#[test]
fn rule_1_only_what_a_gradient_can_flow_to_has_hooks() {
    let told = |text: String, words: &[&str]| {
        assert!(words.iter().all(|word| text.contains(word)) && text.contains("hook_rules.rs:"), "{text}");
    };
    told(refused(|_, x| unused(x.detach().on_grad(|g| g))), &["on_grad", "detached", "f64[2]"]);
    told(refused(|t, _| unused((t.scalar(1.0, F64) + 2.0).on_grad(|g| g))), &["on_grad", "constants alone"]);
    told(refused(|t, _| unused(t.iota(3).cast(F64).sin().on_grad(|g| g))), &["constants alone"]);
    told(refused(|_, x| unused(x.less(1.0).cast(F64).on_grad(|g| g))), &["constants alone"]);
    told(refused(|_, x| unused(x.less(1.0).select(x.detach(), x.zeros_like()).on_grad(|g| g))), &["detached"]);
    told(refused(|_, x| unused(x.argmax(0).on_grad(|g| g))), &["on_grad", "u32 has no gradient"]);
    told(refused(|_, x| unused(x.detach().retain_grad("x"))), &["retain_grad", "detached"]);
    // Half of it is enough; and so is what passes through a rule of one's own.
    let out = taps(&[1.0, 2.0], |t, x| {
        let half = (x.detach() + x.sin()).on_grad(|g| g * 2.0);
        let custom = t.custom_vjp(&[x], |x| vec![x[0] * 1.0], |v| vec![v.cotangents[0]])[0].on_grad(|g| g * 3.0);
        t.tap("half", gradient(half.sum(), x));
        t.tap("custom", gradient(custom.sum(), x));
        // Given back as it was: the gradient is what it would be without a hook.
        t.tap("kept", gradient(x.sin().on_grad(|g| g).sum(), x));
        t.tap("plain", gradient(x.sin().sum(), x));
    });
    assert_eq!(out.tap("half").to_f64(), [1.0f64, 2.0].map(|x| 2.0 * x.cos()));
    assert_eq!(out.tap("custom").to_f64(), [3.0, 3.0]);
    assert_eq!(out.tap("kept"), out.tap("plain"));
}

#[test]
fn rule_2_a_hook_is_given_the_total_once_per_sweep() {
    let calls = Rc::new(RefCell::new(0));
    let counted = calls.clone();
    let out = taps(&[2.0, 3.0], move |t, x| {
        let h = (x * 1.0).on_grad(move |g| {
            *counted.borrow_mut() += 1;
            g
        });
        // Uses before and after, through slices, reductions and products.
        let loss = (h * h).sum() + h.slice(0, 1, 1).sum() * 5.0 + h.max();
        t.tap("dx", gradient(loss, x));
        assert_eq!(*calls.borrow(), 1);
        t.tap("ddx", gradient(gradient(loss, x).sum(), x));
        assert_eq!(*calls.borrow(), 3, "a sweep for the gradient, and one for that of the gradient");
    });
    assert_eq!(out.tap("dx").to_f64(), [4.0, 6.0 + 5.0 + 1.0]);
    assert_eq!(out.tap("ddx").to_f64(), [2.0, 2.0]);
}

#[test]
fn rule_3_hooks_run_in_the_order_of_registration_wherever_they_are_registered() {
    let out = taps(&[1.0, 1.0], |t, x| {
        let first = x.sin().on_grad(|g| g + 1.0);
        let other = first.cos();
        let both = first.on_grad(|g| g * 10.0);
        t.tap("one", gradient(other.sum(), x));
        t.tap("two", gradient((both * 2.0).sum(), x));
    });
    let (sin, cos) = 1f64.sin_cos();
    compare("one", &out.tap("one").to_f64(), &[(1.0 - sin.sin()) * cos; 2], Tolerance::F64).unwrap();
    compare("two", &out.tap("two").to_f64(), &[(2.0 + 1.0) * 10.0 * cos; 2], Tolerance::F64).unwrap();
}

#[test]
fn rule_4_what_takes_a_gradients_place_has_its_shape_and_type() {
    for (what, text) in [
        ("f64[2] became f64[]", refused(|_, x| unused(gradient(x.sin().on_grad(|g| g.sum()).sum(), x)))),
        ("f64[2] became f32[2]", refused(|_, x| unused(gradient(x.sin().on_grad(|g| g.cast(DType::F32)).sum(), x)))),
    ] {
        assert!(
            text.contains("keep shape and type") && text.contains(what) && text.contains("hook_rules.rs:"),
            "{text}"
        );
    }
}

#[test]
fn rule_5_a_retained_gradient_is_what_all_hooks_have_made_of_it() {
    let out = taps(&[0.5, -1.0], |t, x| {
        let h = x.sin().on_grad(|g| g * 2.0).retain_grad("h/gradient").on_grad(|g| g + 1.0).on_grad(|g| g * 3.0);
        let unused = x.cos().retain_grad("never");
        let _ = unused * 2.0;
        let plain = x.tanh().retain_grad("plain");
        t.tap("dx", gradient((h * h + plain).sum(), x));
    });
    let h = [0.5f64.sin(), (-1.0f64).sin()];
    compare("h", &out.tap("h/gradient").to_f64(), &h.map(|h| (2.0 * h * 2.0 + 1.0) * 3.0), Tolerance::F64).unwrap();
    assert_eq!(out.tap("plain").to_f64(), [1.0, 1.0]);
    assert!(out.taps.iter().all(|(name, _)| name != "never"), "what has no gradient has none to show");
}

/// One parameter `w` and one more, micro-batches `a w^2` that are added up, and what is taken.
struct Windows {
    cpu: Machine,
    w: Param,
    other: Param,
    params: ParamSet,
    acc: Option<Accumulator>,
}

impl Windows {
    fn new(weighting: Weighting, hooks: impl FnOnce(Accumulator, Param, Param) -> Accumulator) -> Self {
        let mut store = Store::new();
        let w = store.param("w", &Array::new([2], vec![1.0f64, -2.0]));
        let other = store.param("other", &Array::new([3], vec![1.0f64, 2.0, 3.0]));
        let params = store.params();
        let acc = hooks(Accumulator::new(&mut store, &params, "acc", weighting), w, other);
        Self { cpu: Machine::poisoned(1, store), w, other, params, acc: Some(acc) }
    }

    /// Records micro-batches of `a w^2`, some with the other parameter too, and an update.
    fn record(&mut self, a: &[f64], with_other: &[usize], hook: impl Fn(&Tape)) -> Step {
        let Self { cpu, w, other, params, acc } = self;
        let acc = acc.as_ref().expect("there is one");
        let step = cpu.session.record(|t| {
            hook(t);
            for (k, a) in a.iter().enumerate() {
                let w = t.param(*w);
                let mut loss = (w * w * *a).sum();
                if with_other.contains(&k) {
                    loss += t.param(*other).sum();
                }
                acc.add(loss.grad(params));
            }
            let grads = acc.take(t);
            t.tap("w", grads.get(*w).expect("present"));
            if let Some(g) = grads.get(*other) {
                t.tap("other", g);
            }
        });
        step.expect("the plan compiles")
    }
}

#[test]
fn rule_6_a_leaf_hook_sees_each_gradient_and_a_post_accumulate_hook_the_sum() {
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let mut windows = Windows::new(Weighting::Sum, |acc, w, _| {
        acc.on_accumulated(w, move |sum| {
            let mut calls = counted.lock().expect("nobody panics");
            sum.tape().tap(&format!("sum{calls}"), sum);
            *calls += 1;
            sum
        })
        .on_accumulated(w, |sum| sum.clamp(-9.0, 9.0))
    });
    let w = windows.w;
    let step = windows.record(&[1.0, 2.0, 0.5], &[1], |t| {
        t.on_param_grad(w, |g| {
            g.tape().tap_each("seen", g);
            g
        });
    });
    let out = windows.cpu.run(&step, &[]);
    // Gradients are 2 a w: [2, -4], [4, -8], [1, -2].
    let seen: Vec<Vec<f64>> = out.each("seen").map(Array::to_f64).collect();
    assert_eq!(seen, [[2.0, -4.0], [4.0, -8.0], [1.0, -2.0]]);
    assert_eq!(out.tap("sum0").to_f64(), [2.0, -4.0]);
    assert_eq!(out.tap("sum1").to_f64(), [6.0, -12.0]);
    assert_eq!(out.tap("sum2").to_f64(), [7.0, -11.0], "the sum goes on from what the hooks have made of it");
    assert_eq!(out.tap("w").to_f64(), [7.0, -9.0]);
    assert_eq!(out.tap("other").to_f64(), [1.0; 3], "what lies beside it in the arena is as it was");
    assert_eq!(*calls.lock().unwrap(), 3);
}

#[test]
fn rule_6_a_post_accumulate_hook_spares_what_is_left_out() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([2], vec![1.0f64, 1.0]));
    let params = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean)
        .skip_bad_micro_batches()
        .on_accumulated(w, |sum| sum * 10.0);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        for k in 0..3 {
            acc.add((t.param(w) * t.input(&format!("g{k}"), [2], F64)).sum().grad(&params));
        }
        t.tap("w", acc.take(t).get(w).expect("present"));
    });
    let input = |k: usize, g: [f64; 2]| (format!("g{k}"), Array::new([2], g.to_vec()));
    let inputs = [input(0, [1.0, 2.0]), input(1, [f64::NAN, 1.0]), input(2, [3.0, 0.0])];
    let out = cpu.run(&step.expect("the plan compiles"), &inputs);
    assert_eq!(out.tap("w").to_f64(), [(10.0 + 3.0) * 10.0 / 2.0, 20.0 * 10.0 / 2.0]);
}

#[test]
fn rule_6_misuse_of_a_post_accumulate_hook_is_refused() {
    let text = |wrong: fn(Accumulator, Param) -> Accumulator, foreign: bool| {
        let caught = catch_unwind(|| {
            let mut store = Store::new();
            let w = store.param("w", &Array::new([2], vec![1.0f64, 1.0]));
            let params = store.params();
            let other = store.param("other", &Array::new([2], vec![1.0f64, 1.0]));
            let acc = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
            let acc = wrong(acc, if foreign { other } else { w });
            let t = Tape::new(Arc::new(store.layout().clone()));
            acc.add(t.param(w).sum().grad(&params));
        });
        *caught.expect_err("it is refused").downcast::<String>().expect("a text")
    };
    let foreign = text(|acc, param| acc.on_accumulated(param, |sum| sum), true);
    assert!(foreign.contains("not among the parameters accumulated"), "{foreign}");
    let narrower = text(|acc, param| acc.on_accumulated(param, |sum| sum.slice(0, 0, 1)), false);
    assert!(narrower.contains("f64[2] became f64[1]") && narrower.contains("hook_rules.rs:"), "{narrower}");
}

#[test]
fn rule_7_a_gradient_that_is_not_accumulated_runs_no_post_accumulate_hook() {
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let mut windows = Windows::new(Weighting::Sum, |acc, w, _| {
        acc.on_accumulated(w, move |sum| {
            *counted.lock().expect("nobody panics") += 1;
            sum
        })
    });
    let (w, seen) = (windows.w, Rc::new(RefCell::new(0)));
    let counted = seen.clone();
    let step = windows.cpu.session.record(|t| {
        t.on_param_grad(w, move |g| {
            *counted.borrow_mut() += 1;
            g * 2.0
        });
        let x = t.param(w);
        t.tap("dw", (x * x).sum().grad(&[w].into_iter().collect()).get(w).expect("present"));
    });
    let out = windows.cpu.run(&step.expect("the plan compiles"), &[]);
    assert_eq!((*seen.borrow(), *calls.lock().unwrap()), (1, 0));
    assert_eq!(out.tap("dw").to_f64(), [4.0, -8.0]);
}

#[test]
fn rule_8_tied_parameters_have_one_call_and_unused_ones_none() {
    let calls = Arc::new(Mutex::new(vec![]));
    let (of_w, of_other) = (calls.clone(), calls.clone());
    let mut windows = Windows::new(Weighting::Mean, |acc, w, other| {
        let note = |calls: Arc<Mutex<Vec<&'static str>>>, what| {
            move |sum: Tensor<'_>| calls.lock().expect("nobody panics").push((what, sum.numel()).0)
        };
        let (of_w, of_other) = (note(of_w, "w"), note(of_other, "other"));
        acc.on_accumulated(w, move |sum| {
            of_w(sum);
            sum
        })
        .on_accumulated(other, move |sum| {
            of_other(sum);
            sum
        })
    });
    // `w` is used twice in each loss; the other in the third alone.
    let step = windows.record(&[1.0, 2.0, 3.0], &[2], |_| ());
    assert_eq!(*calls.lock().unwrap(), ["w", "w", "w", "other"]);
    let out = windows.cpu.run(&step, &[]);
    assert_eq!(out.tap("w").to_f64(), [4.0, -8.0]);
}

#[test]
fn rule_9_hooks_are_differentiated_and_a_constant_ends_the_way() {
    let out = taps(&[0.7, -0.2], |t, x| {
        let dx = gradient(x.sin().on_grad(|g| g).cos().sum(), x);
        t.tap("plain", gradient(dx.sum(), x));
        t.tap("cut", gradient((x.sin() * 3.0).on_grad(|g| g.ones_like() * 0.5).sum(), x));
    });
    let t = Tape::default();
    let (x, s) = (t.input("x", [2], F64), t.input("s", [], F64));
    let by_s = |hooked: Tensor<'_>| gradient(hooked.sum() * s, x).sum().grad_wrt(&[s])[0].is_some();
    assert!(by_s(x.sin().on_grad(|g| g * 0.5)), "the gradient depends on what it was multiplied by");
    assert!(!by_s(x.sin().on_grad(|g| g.ones_like() * 0.5)), "nothing of what comes before passes a constant");
    compare("cut", &out.tap("cut").to_f64(), &[0.7f64, -0.2].map(|x| 1.5 * x.cos()), Tolerance::F64).unwrap();
    let second = |x: f64| -(x.sin().cos() * x.cos().powi(2)) + x.sin().sin() * x.sin();
    compare("plain", &out.tap("plain").to_f64(), &[0.7, -0.2].map(second), Tolerance::F64).unwrap();
}

#[test]
fn rule_10_hooks_see_what_is_scaled_and_partial() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([1], vec![3.0f64]));
    let params = store.params();
    let scaler = wgrad::LossScaler::fixed(64.0);
    let acc: Accumulator<wgrad::Scaled> =
        Accumulator::new(&mut store, &params, "acc", Weighting::Mean).on_accumulated(w, |sum| {
            sum.tape().tap_each("sum", sum);
            sum
        });
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        t.on_param_grad(w, |g| {
            g.tape().tap_each("leaf", g);
            g
        });
        for k in [1.0, 2.0] {
            acc.add(scaler.scale((t.param(w) * k).sum()).grad(&params));
        }
        t.tap("taken", acc.take(t).unscale(&scaler).get(w).expect("present"));
    });
    let out = cpu.run(&step.expect("the plan compiles"), &[]);
    let all = |name: &str| -> Vec<f64> { out.each(name).map(|v| v.item(0)).collect() };
    assert_eq!((all("leaf"), all("sum"), all("taken")), (vec![64.0, 128.0], vec![64.0, 192.0], vec![1.5]));
}
