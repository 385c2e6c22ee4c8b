//! The values of an arena that a loss reads: parameters, slices, whole arenas, with hooks and checkpoints.

use super::*;

#[test]
fn a_gradient_by_two_values_of_a_parameter_is_refused_with_their_lines() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(a), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let read = line!() + 1;
    let old = t.param(a).sin().sum();
    let stepped = line!() + 1;
    sgd.step((t.param(a) * t.param(b)).sum().grad(&only(a)));
    let again = line!() + 1;
    let new = t.param(a).cos().sum();
    let message = refused(|| (old + new).grad(&store.params()));
    for line in [read, stepped, again] {
        assert!(message.contains(&format!("reads.rs:{line}:")), "{message} without line {line}");
    }
    assert!(message.contains("\"a\"") && !message.contains("P13"), "{message}");
    // Each alone is right, and so is the gradient by what has not changed.
    tap_all(&t, "old", &old.grad(&only(a)));
    tap_all(&t, "new", &(old.detach() + new).grad(&only(a)));
    assert_eq!((old + new + t.param(b).sum()).grad(&only(b)).present(), &only(b));
    let out = taps(store, t.finish());
    assert_eq!(out.tap("old a").to_f64(), [0.5f64.cos(), 1.5f64.cos()]);
    let stepped = [0.5 - 0.1 * 2.0, -1.5 - 0.1 * 0.25];
    compare("new", &out.tap("new a").to_f64(), &stepped.map(|x: f64| -x.sin()), Tolerance::F64).unwrap();
}

#[test]
fn a_user_who_writes_the_arena_changes_every_parameter() {
    let (store, a, b) = pair();
    let arena = store.layout().param(a).arena;
    let t = Tape::new(Arc::new(store.layout().clone()));
    let old = t.param(b).sin().sum();
    let grads = t.param(a).square().sum().grad(&only(a));
    let given = line!() + 1;
    t.assign(arena, t.state(arena) - grads.flat().tensors()[0] * 0.1);
    // The loss has read b before the step, and a after it.
    let mixed = old * t.param(a).sum();
    tap_all(&t, "mixed", &mixed.grad(&store.params()));
    let message = refused(|| (mixed + t.param(b).sum()).grad(&only(b)));
    assert!(message.contains(&format!("the change at tests/tests/versions/reads.rs:{given}:")), "{message}");
    let out = taps(store, t.finish());
    let sum = 0.5 * 0.8 - 1.5 * 0.8;
    compare("b", &out.tap("mixed b").to_f64(), &[2f64.cos() * sum, 0.25f64.cos() * sum], Tolerance::F64).unwrap();
    let sines = 2f64.sin() + 0.25f64.sin();
    compare("a", &out.tap("mixed a").to_f64(), &[sines; 2], Tolerance::F64).unwrap();
}

#[test]
fn a_loss_that_reaches_none_of_the_parameters_is_still_refused_as_that() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let loss = t.param(a).sum();
    sgd.step((t.param(a) * t.param(b)).sum().grad(&only(b)));
    assert!(refused(|| sgd.step(loss.grad(&only(b)))).contains(&Pitfall::PassBeforeBackward.code()));
}

#[test]
fn a_parameters_hook_sees_the_sum_of_what_flows_to_all_reads() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let calls = Rc::new(Cell::new(0));
    let t = Tape::new(Arc::new(store.layout().clone()));
    let counted = calls.clone();
    t.on_param_grad(a, move |g| {
        counted.set(counted.get() + 1);
        g * g
    });
    let old = t.param(a).sin().sum();
    (0..2).for_each(|_| sgd.step(t.param(b).square().sum().grad(&only(b))));
    let new = t.param(a).exp().sum();
    let loss = old + new;
    tap_all(&t, "by set", &loss.grad(&store.params()));
    assert_eq!(calls.get(), 1);
    t.tap("by tensor", loss.grad_wrt(&[t.param(a)])[0].expect("reached"));
    assert_eq!(calls.get(), 2);
    let out = taps(store, t.finish());
    let want = [0.5f64, -1.5].map(|x| (x.cos() + x.exp()).powi(2));
    compare("by set", &out.tap("by set a").to_f64(), &want, Tolerance::F64).unwrap();
    compare("by tensor", &out.tap("by tensor").to_f64(), &want, Tolerance::F64).unwrap();
}

#[test]
fn tensors_that_are_reads_of_one_value_have_one_gradient_unless_both_are_named() {
    let (mut store, a, b) = pair();
    let arena = store.layout().param(a).arena;
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let first = t.param(a);
    sgd.step(t.param(b).square().sum().grad(&only(b)));
    let second = t.param(a);
    let loss = first.sin().sum() + second.exp().sum();
    for (name, read) in [("first", first), ("second", second)] {
        t.tap(name, loss.grad_wrt(&[read])[0].expect("reached"));
    }
    for (name, part) in ["first part", "second part"].into_iter().zip(loss.grad_wrt(&[first, second])) {
        t.tap(name, part.expect("reached"));
    }
    let later = loss.grad_wrt(&[t.state(arena)])[0].expect("reached");
    t.tap("later", later.slice(0, 0, 2));
    let out = taps(store, t.finish());
    let [sine, exponential] = [f64::cos, f64::exp].map(|f| [0.5f64, -1.5].map(f));
    let both: Vec<f64> = sine.iter().zip(exponential).map(|(a, b)| a + b).collect();
    for (name, want) in [
        ("first", &both[..]),
        ("second", &both),
        ("first part", &sine),
        ("second part", &exponential),
        ("later", &exponential),
    ] {
        compare(name, &out.tap(name).to_f64(), want, Tolerance::F64).unwrap();
    }
}

#[test]
fn whole_arenas_and_other_slices_of_them_are_reads_too() {
    let (mut store, a, b) = pair();
    let (all, arena) = (store.params(), store.layout().param(a).arena);
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    tap_all(&t, "part", &t.state(arena).slice(0, 0, 130).square().sum().grad(&all));
    tap_all(&t, "flat", &t.state(arena).slice(0, 0, 2).square().sum().grad(&all));
    let decay = t.state(arena).square().sum();
    sgd.step(t.param(b).square().sum().grad(&only(b)));
    tap_all(&t, "both", &(decay + t.param(a).square().sum()).grad(&only(a)));
    assert!(refused(|| (decay + t.param(b).sum()).grad(&all)).contains("\"b\""));
    let out = taps(store, t.finish());
    assert_eq!(out.tap("part a").to_f64(), [1.0, -3.0]);
    assert_eq!(out.tap("part b").to_f64(), [4.0, 0.5]);
    assert_eq!(out.tap("flat a").to_f64(), [1.0, -3.0]);
    assert_eq!(out.tap("both a").to_f64(), [2.0, -6.0]);
}

#[test]
fn arenas_that_are_read_whole_between_reads_of_a_parameter_count_once() {
    let (mut store, a, b) = pair();
    let arena = store.layout().param(a).arena;
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || sgd.step(t.param(b).square().sum().grad(&only(b)));
    let whole = || t.state(arena).square().sum();
    let first = whole() + t.param(a).sin().sum();
    step();
    let second = first + t.param(a).exp().sum();
    tap_all(&t, "two", &second.grad(&only(a)));
    let third = second + whole();
    tap_all(&t, "three", &third.grad(&only(a)));
    step();
    tap_all(&t, "four", &(third + t.param(a).tanh().sum()).grad(&only(a)));
    let out = taps(store, t.finish());
    let two = |x: f64| 2.0 * x + x.cos() + x.exp();
    taps_of_a(&out, "two a", two);
    taps_of_a(&out, "three a", |x| two(x) + 2.0 * x);
    taps_of_a(&out, "four a", |x| two(x) + 2.0 * x + slope_of_tanh(x));
}

/// A hook has to do with what is read after it has been registered, and with nothing else.
#[test]
fn reads_with_and_without_a_hook_are_reads_of_one_value() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || sgd.step(t.param(b).square().sum().grad(&only(b)));
    let before = t.arenas(&all);
    step();
    let plain = t.param(a);
    let loss = plain.exp().sum();
    t.on_param_grad(a, |g| g * 2.0);
    // The earlier value is read later, and the later one again.
    let loss = loss + t.with_params(&before, || t.param(a).sin().sum()) + t.param(a).tanh().sum();
    step();
    let loss = loss + t.param(a).cos().sum();
    tap_all(&t, "by set", &loss.grad(&all));
    t.tap("by plain", loss.grad_wrt(&[plain])[0].expect("reached"));
    t.tap("by hooked", loss.grad_wrt(&[t.param(a)])[0].expect("reached"));
    let out = taps(store, t.finish());
    let hooked = |x: f64| 2.0 * (x.cos() + slope_of_tanh(x) - x.sin());
    taps_of_a(&out, "by set a", |x| x.exp() + hooked(x));
    taps_of_a(&out, "by plain", |x| x.exp() + hooked(x));
    taps_of_a(&out, "by hooked", hooked);
}

#[test]
fn slices_of_several_values_of_an_arena_are_told_apart() {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2, 1], vec![0.5f64, -1.5]));
    let b = store.param("b", &Array::new([1], vec![1.0f64]));
    let arena = store.layout().param(a).arena;
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let slice = || t.state(arena).slice(0, 0, 2);
    let (early, old) = (t.param(a).sin().sum(), slice());
    sgd.step(t.param(b).square().sum().grad(&only(b)));
    let (late, new) = (t.param(a).exp().sum(), slice());
    let loss = early + late;
    for (name, part) in ["old", "new"].into_iter().zip(loss.grad_wrt(&[old, new])) {
        t.tap(name, part.expect("reached"));
    }
    t.tap("both", loss.grad_wrt(&[new])[0].expect("reached"));
    let out = taps(store, t.finish());
    taps_of_a(&out, "old", f64::cos);
    taps_of_a(&out, "new", f64::exp);
    taps_of_a(&out, "both", |x| x.cos() + x.exp());
}

#[test]
fn what_checkpoints_read_before_and_after_a_step_counts() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let early = t.checkpoint(|| (t.param(a).sin() * t.param(a)).sum());
    sgd.step(t.param(b).square().sum().grad(&only(b)));
    let late = t.checkpoint(|| (t.param(a).exp() * t.param(a)).sum());
    tap_all(&t, "g", &(early + late).grad(&only(a)));
    let out = taps(store, t.finish());
    taps_of_a(&out, "g a", |x| x.sin() + x * x.cos() + x.exp() * (1.0 + x));
}

#[test]
fn parameters_without_elements_have_a_gradient_each() {
    let mut store = Store::new();
    let params: ParamSet =
        ["a", "b", "c"].iter().map(|name| store.param(name, &Array::new([0, 2], Vec::<f64>::new()))).collect();
    let scalar = store.param("d", &Array::new([], vec![1.0f64]));
    let t = Tape::new(Arc::new(store.layout().clone()));
    let loss = params.iter().map(|param| t.param(param).sum()).fold(t.param(scalar).sin(), |a, b| a + b);
    assert!(loss.grad(&store.params()).absent().is_empty());
}

#[test]
fn within_other_values_what_an_update_leaves_alone_is_what_it_was() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let all = store.params();
    let t = Tape::new(Arc::new(store.layout().clone()));
    let early = t.param(a).sin().sum();
    let grads = t.param(b).square().sum().grad(&only(b));
    let (updated, _) = sgd.update(&t.arenas(&all), &grads, &sgd.current(&t, grads.flat()));
    t.with_params(&updated, || {
        tap_all(&t, "early", &(early * t.param(b).sum()).grad(&all));
        tap_all(&t, "both", &(early + t.param(a).exp().sum()).grad(&all));
        let of_b = t.param(b).exp().sum();
        assert!(refused(|| (of_b + grads.flat().tensors()[0].sum()).grad(&all)).contains("\"b\""));
    });
    let out = taps(store, t.finish());
    let stepped = [2.0 * 0.8, 0.25 * 0.8];
    let want = [0.5f64, -1.5].map(|x| x.cos() * (stepped[0] + stepped[1]));
    compare("early a", &out.tap("early a").to_f64(), &want, Tolerance::F64).unwrap();
    let sines = 0.5f64.sin() - 1.5f64.sin();
    compare("early b", &out.tap("early b").to_f64(), &[sines; 2], Tolerance::F64).unwrap();
    let want = [0.5f64, -1.5].map(|x| x.cos() + x.exp());
    compare("both a", &out.tap("both a").to_f64(), &want, Tolerance::F64).unwrap();
}
