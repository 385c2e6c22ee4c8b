//! A loss that reads parameters before and after a step: its gradient has all of its parts, or is refused with the lines
//! that contradict each other.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};
use wgrad::{
    Accumulator, Array, DType, Flat, Grads, Optimizer, Param, ParamSet, Pitfall, Program, Store, Tape, Tensor,
    Unscaled, Weighting,
};
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Adam, AdamConfig, Ema, EmaConfig, Sgd, SgdConfig},
};
use wgrad_tests::{Machine, Outputs, Tolerance, compare};

/// Two networks whose parameters share an arena.
struct Gan {
    store: Store,
    g: Linear,
    d: Linear,
    gp: ParamSet,
    dp: ParamSet,
}

impl Gan {
    fn new() -> Self {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0).with_dtype(DType::F64);
        let g = Linear::new(b.at("g"), 3, 3, &Init::Normal(0.5));
        let d = Linear::new(b.at("d"), 3, 1, &Init::Normal(0.5));
        let [gp, dp] = ["g/", "d/"].map(|net| store.params_where(|path| path.starts_with(net)));
        Self { store, g, d, gp, dp }
    }

    fn fake<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        self.g.forward(t.shared_input("z", [4, 3], DType::F64)).tanh()
    }

    /// That of the generator.
    fn loss<'t>(&self, fake: Tensor<'t>) -> Tensor<'t> {
        fake.tape().param(self.g.weight).square().sum() * 0.1 - self.d.forward(fake).mean()
    }

    fn adam(&mut self, name: &str, params: &ParamSet) -> Adam {
        Adam::new(&mut self.store, params, AdamConfig { name: name.into(), lr: 0.05.into(), ..AdamConfig::default() })
    }

    fn sgd(&mut self, params: &ParamSet) -> Sgd {
        Sgd::new(&mut self.store, params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() })
    }

    fn tape(&self) -> Tape {
        Tape::new(Arc::new(self.store.layout().clone()))
    }
}

fn noise(run: usize) -> Vec<(String, Array)> {
    let values = (0..12).map(|i| ((i * 7 + run * 5) as f64 * 0.9).sin()).collect::<Vec<f64>>();
    vec![("z".into(), Array::new([4, 3], values))]
}

/// Runs programs in turn, a few times, on what they all change.
fn parameters(store: Store, programs: Vec<Program>, runs: usize) -> Vec<f64> {
    let params = store.params();
    let mut machine = Machine::poisoned(1, store);
    let steps: Vec<_> = programs
        .into_iter()
        .map(|program| {
            let reads_noise = !program.inputs().is_empty();
            (machine.session.compile(program).expect("compiles"), reads_noise)
        })
        .collect();
    for run in 0..runs {
        for (step, reads_noise) in &steps {
            machine.run(step, &if *reads_noise { noise(run) } else { vec![] });
        }
    }
    params.iter().flat_map(|param| machine.session.read_param(param).expect("reads").to_f64()).collect()
}

/// The taps of one run.
fn taps(store: Store, program: Program) -> Outputs {
    let mut machine = Machine::poisoned(1, store);
    let inputs = if program.inputs().is_empty() { vec![] } else { noise(0) };
    let step = machine.session.compile(program).expect("compiles");
    machine.run(&step, &inputs)
}

fn tap_all(t: &Tape, name: &str, grads: &Grads<'_>) {
    grads.present().iter().for_each(|param| {
        let g = grads.get(param).expect("present");
        t.tap(&format!("{name} {}", t.layout().param(param).path), g);
    });
}

/// Requires taps of two names to have the same values.
fn same(out: &Outputs, a: &str, b: &str) {
    let of = |name: &str| {
        let own =
            out.taps.iter().filter_map(|(tap, array)| Some((tap.strip_prefix(name)?.to_string(), array.to_f64())));
        own.collect::<Vec<_>>()
    };
    let (have, want) = (of(a), of(b));
    assert!(!want.is_empty() && have.len() == want.len(), "{a}: {have:?} instead of {want:?}");
    for ((path, have), (other, want)) in have.into_iter().zip(want) {
        assert_eq!(path, other);
        compare(&format!("{a}{path}"), &have, &want, Tolerance::F64).unwrap();
    }
}

/// The message of the panic that `f` must end in.
fn refused<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("this must be refused");
    panic.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn what_was_read_before_another_networks_step_counts_as_what_is_read_after_it() {
    let mut gan = Gan::new();
    let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
    let sgd = gan.sgd(&dp);
    let t = gan.tape();
    let before = gan.fake(&t);
    sgd.step(gan.d.forward(before.detach()).square().mean().grad(&dp));
    let early = gan.loss(before).grad(&gp);
    assert!(early.absent().is_empty());
    tap_all(&t, "early", &early);
    tap_all(&t, "late", &gan.loss(gan.fake(&t)).grad(&gp));
    // Without what is read after the step, the gradient is that of what was read before.
    tap_all(&t, "only early", &gan.d.forward(before).mean().grad(&gp));
    tap_all(&t, "only late", &gan.d.forward(gan.fake(&t)).mean().grad(&gp));
    let out = taps(gan.store, t.finish());
    same(&out, "early", "late");
    same(&out, "only early", "only late");
    assert!(out.tap("early g/weight").to_f64().iter().any(|g| g.abs() > 1e-3));
}

/// Radford et al. 2016, in the order of PyTorch's tutorial: the fakes are made once.
#[test]
fn a_gan_in_one_program_trains_as_in_two() {
    let parts = || {
        let mut gan = Gan::new();
        let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
        let adams = [gan.adam("adam g", &gp), gan.adam("adam d", &dp)];
        (gan, adams)
    };
    let first = |gan: &Gan, d: &Adam, fake: Tensor<'_>| {
        d.step(gan.d.forward(fake.detach()).softplus().mean().grad(&gan.dp));
    };
    let second = |gan: &Gan, g: &Adam, fake: Tensor<'_>| {
        g.step((-gan.d.forward(fake)).softplus().mean().grad(&gan.gp));
    };
    let (gan, [g, d]) = parts();
    let t = gan.tape();
    let fake = gan.fake(&t);
    first(&gan, &d, fake);
    second(&gan, &g, fake);
    let together = parameters(gan.store, vec![t.finish()], 3);
    let (gan, [g, d]) = parts();
    let (a, b) = (gan.tape(), gan.tape());
    first(&gan, &d, gan.fake(&a));
    second(&gan, &g, gan.fake(&b));
    let start = parameters(Gan::new().store, vec![], 0);
    let apart = parameters(gan.store, vec![a.finish(), b.finish()], 3);
    assert!(start.iter().zip(&apart).all(|(a, b)| a != b), "everything is trained");
    compare("parameters", &together, &apart, Tolerance::F64).unwrap();
}

/// Gulrajani et al. 2017: several steps of the critic, each with a penalty of its slope, for one of the generator.
#[test]
fn critics_that_step_several_times_leave_the_generators_gradient_whole() {
    let critic = |gan: &Gan, adam: &Adam, fake: Tensor<'_>, k: usize| {
        let between = fake.detach() * (0.2 + 0.1 * k as f64);
        let slope = gan.d.forward(between).tanh().sum().grad_wrt(&[between])[0].expect("reached");
        let penalty = (slope.norm_axes(&[1]) - 1.0).square().mean();
        adam.step((gan.d.forward(fake.detach()).tanh().mean() + penalty).grad(&gan.dp));
    };
    let generator = |gan: &Gan, adam: &Adam, fake: Tensor<'_>| {
        let decay = t_norm(gan, fake.tape());
        adam.step((decay - gan.d.forward(fake).tanh().mean()).grad(&gan.gp));
    };
    let parts = || {
        let mut gan = Gan::new();
        let (gp, dp) = (gan.gp.clone(), gan.dp.clone());
        let adams = [gan.adam("adam g", &gp), gan.adam("adam d", &dp)];
        (gan, adams)
    };
    let (gan, [g, d]) = parts();
    let t = gan.tape();
    let fake = gan.fake(&t);
    (0..3).for_each(|k| critic(&gan, &d, fake, k));
    generator(&gan, &g, fake);
    let together = parameters(gan.store, vec![t.finish()], 2);
    let (gan, [g, d]) = parts();
    let mut programs: Vec<Program> = (0..3)
        .map(|k| {
            let t = gan.tape();
            critic(&gan, &d, gan.fake(&t), k);
            t.finish()
        })
        .collect();
    let t = gan.tape();
    generator(&gan, &g, gan.fake(&t));
    programs.push(t.finish());
    compare("parameters", &together, &parameters(gan.store, programs, 2), Tolerance::F64).unwrap();
}

fn t_norm<'t>(gan: &Gan, t: &'t Tape) -> Tensor<'t> {
    gan.gp.iter().map(|param| t.param(param).square().sum()).reduce(|a, b| a + b).expect("parameters") * 0.1
}

/// Two vectors of one arena.
fn pair() -> (Store, Param, Param) {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2], vec![0.5f64, -1.5]));
    let b = store.param("b", &Array::new([2], vec![2.0f64, 0.25]));
    (store, a, b)
}

fn only(param: Param) -> ParamSet {
    [param].into_iter().collect()
}

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
        assert!(message.contains(&format!("versions.rs:{line}:")), "{message} without line {line}");
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
    // What is read of b was read before; a, after.
    let mixed = old * t.param(a).sum();
    tap_all(&t, "mixed", &mixed.grad(&store.params()));
    let message = refused(|| (mixed + t.param(b).sum()).grad(&only(b)));
    assert!(message.contains(&format!("given at tests/tests/versions.rs:{given}:")), "{message}");
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

/// Requires taps to be a function of `a` of [`pair`].
fn taps_of_a(out: &Outputs, name: &str, f: impl Fn(f64) -> f64) {
    compare(name, &out.tap(name).to_f64(), &[0.5, -1.5].map(f), Tolerance::F64).unwrap();
}

fn slope_of_tanh(x: f64) -> f64 {
    1.0 - x.tanh().powi(2)
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

/// Finn et al. 2017: the gradient through an update of the parameters, which are read before it and after it.
#[test]
fn gradients_through_an_update_have_what_was_read_before_it() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let [inner, other] = [("inner", a), ("other", b)].map(|(name, param)| {
        let config = SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() };
        Sgd::new(&mut store, &only(param), config)
    });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let early = t.param(a).sin().sum() + t.param(b).tanh().sum();
    let grads = (t.param(a) * t.param(a) * t.param(a)).sum().grad(&only(a));
    let (adapted, _) = inner.update(&t.arenas(&all), &grads, &inner.current(&t, grads.flat()));
    let loss = early + t.with_params(&adapted, || (t.param(a).exp() + t.param(b).exp()).sum());
    tap_all(&t, "g", &loss.grad(&all));
    // After a step of the other parameter, of this one alone.
    other.step(t.param(b).square().sum().grad(&only(b)));
    tap_all(&t, "later", &(loss + t.param(a).cos().sum()).grad(&only(a)));
    let out = taps(store, t.finish());
    let through = |x: f64| x.cos() + (x - 0.3 * x * x).exp() * (1.0 - 0.6 * x);
    taps_of_a(&out, "g a", through);
    taps_of_a(&out, "later a", |x| through(x) - x.sin());
    let want = [2.0, 0.25].map(|x: f64| slope_of_tanh(x) + x.exp());
    compare("g b", &out.tap("g b").to_f64(), &want, Tolerance::F64).unwrap();
}

#[test]
fn windows_add_up_what_micro_batches_read_between_steps() {
    let (mut store, a, b) = pair();
    let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let window = Accumulator::<Unscaled>::new(&mut store, &only(a), "window", Weighting::Mean);
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || sgd.step(t.param(b).square().sum().grad(&only(b)));
    let first = t.param(a).sin().sum();
    step();
    window.add((first + t.param(a).exp().sum()).grad(&only(a)));
    step();
    window.add((first + t.param(a).tanh().sum()).grad(&only(a)));
    tap_all(&t, "mean", &window.take(&t));
    let out = taps(store, t.finish());
    taps_of_a(&out, "mean a", |x| x.cos() + (x.exp() + slope_of_tanh(x)) / 2.0);
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

/// A step is no part of what is differentiated, whichever arena it steps.
#[test]
fn no_gradient_flows_through_a_step() {
    let record = |dtype: DType| {
        let mut store = Store::new();
        let a = store.param("a", &Array::new([2], vec![0.5f64, -1.5]));
        let b = store.param("b", &Array::new([2], vec![2.0f64, 0.25]).cast(dtype));
        let sgd = Sgd::new(&mut store, &only(b), SgdConfig { lr: 0.5.into(), ..SgdConfig::default() });
        let t = Tape::new(Arc::new(store.layout().clone()));
        let joint = || (t.param(a) * t.param(b).cast(DType::F64)).sin().sum();
        let early = joint();
        sgd.step(early.grad(&only(b)));
        let grads = (joint() * early).grad(&only(a));
        assert!(refused(|| (joint() * early).grad(&only(b))).contains("\"b\""));
        t.tap("g", grads.get(a).expect("reached"));
        taps(store, t.finish()).tap("g").to_f64()
    };
    compare("g", &record(DType::F32), &record(DType::F64), Tolerance(1e-6)).unwrap();
    let loss = |a: [f64; 2], b: [f64; 2]| a.iter().zip(b).map(|(a, b)| (a * b).sin()).sum::<f64>();
    let by_a = |a: [f64; 2], b: [f64; 2]| [0, 1].map(|i| (a[i] * b[i]).cos() * b[i]);
    let (a, b) = ([0.5f64, -1.5], [2.0f64, 0.25]);
    let stepped = [0, 1].map(|i| b[i] - 0.5 * (a[i] * b[i]).cos() * a[i]);
    let want = [0, 1].map(|i| by_a(a, b)[i] * loss(a, stepped) + by_a(a, stepped)[i] * loss(a, b));
    compare("g", &record(DType::F64), &want, Tolerance::F64).unwrap();
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

/// Foret et al. 2021: the gradient at values that are given and taken back, by assignment or for a while.
#[test]
fn sharpness_aware_steps_are_the_same_by_assignment_and_within_other_values() {
    let step = |assigned: bool| {
        let mut gan = Gan::new();
        let all = gan.store.params();
        let sgd = gan.sgd(&all);
        let t = gan.tape();
        let loss = || gan.d.forward(gan.fake(&t)).square().mean();
        let grads = loss().grad(&all);
        let (here, scale) = (t.arenas(&all), grads.norm().recip() * 0.3);
        let there = here.map(|arena, x| x + grads.flat().get(arena).expect("an arena") * scale);
        let give = |values: &Flat<'_>| values.parts().iter().for_each(|(arena, x)| t.assign(*arena, *x));
        if assigned {
            give(&there);
            let grads = loss().grad(&all);
            give(&here);
            sgd.step(grads);
        } else {
            sgd.step(t.with_params(&there, || loss().grad(&all)));
        }
        parameters(gan.store, vec![t.finish()], 2)
    };
    let (assigned, within) = (step(true), step(false));
    assert_eq!(assigned, within);
    assert_ne!(assigned, parameters(Gan::new().store, vec![], 0));
}

/// Tarvainen & Valpola 2017: what a teacher's average has seen of the student is no part of the student's gradient.
#[test]
fn an_average_of_the_parameters_hands_no_gradient_on() {
    let parts = || {
        let mut gan = Gan::new();
        let all = gan.store.params();
        let sgd = gan.sgd(&all);
        let ema = Ema::new(&mut gan.store, &all, EmaConfig { decay: 0.5, ..EmaConfig::default() });
        (gan, all, sgd, ema)
    };
    let record = |t: &Tape, (gan, all, sgd, ema): &(Gan, ParamSet, Sgd, Ema)| {
        let student = gan.d.forward(gan.fake(t));
        let teacher = t.with_params(&ema.averages(t), || gan.d.forward(gan.fake(t) + 0.1));
        sgd.step(((student - teacher).square().mean() + student.mean()).grad(all));
        ema.update(t, sgd);
    };
    let once = parts();
    let t = once.0.tape();
    (0..3).for_each(|_| record(&t, &once));
    let together = parameters(once.0.store, vec![t.finish()], 1);
    let each = parts();
    let programs = (0..3).map(|_| {
        let t = each.0.tape();
        record(&t, &each);
        t.finish()
    });
    let programs = programs.collect();
    compare("parameters", &together, &parameters(each.0.store, programs, 1), Tolerance::F64).unwrap();
}

/// A clip that is relative to the parameters takes them as the loss has read them.
#[test]
fn passes_that_look_at_parameters_see_what_the_loss_has_read() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let [first, second] = [("first", a), ("second", b)].map(|(name, param)| {
        let config = SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() };
        Sgd::new(&mut store, &only(param), config)
    });
    let t = Tape::new(Arc::new(store.layout().clone()));
    let step = || {
        first.step(t.param(a).square().sum().grad(&only(a)));
        second.step(t.param(b).square().sum().grad(&only(b)));
    };
    // No value of the arena holds both: a is that of the first, b of the last.
    let old = t.param(a).sum();
    step();
    step();
    let grads = ((old + t.param(b).sum()) * 100.0).grad(&all);
    tap_all(&t, "clipped", &grads.agc(0.5));
    let out = taps(store, t.finish());
    // A vector is one unit, and all elements of its gradient are equal: half its norm, spread over two.
    for (name, read) in [("a", [0.5f64, -1.5]), ("b", [2.0 * 0.64, 0.25 * 0.64])] {
        let bound = read[0].hypot(read[1]) / 8f64.sqrt();
        compare(name, &out.tap(&format!("clipped {name}")).to_f64(), &[bound; 2], Tolerance::F64).unwrap();
    }
}

#[test]
fn a_loss_is_differentiated_for_two_sets_and_both_optimizers_may_share_parameters() {
    let (mut store, a, b) = pair();
    let all = store.params();
    let mut sgd = |name: &str, params: &ParamSet| {
        Sgd::new(&mut store, params, SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() })
    };
    let (first, second) = (sgd("first", &all), sgd("second", &only(b)));
    let t = Tape::new(Arc::new(store.layout().clone()));
    let loss = (t.param(a) * t.param(b)).sum();
    let (g, h) = (loss.grad(&all), loss.grad(&only(b)));
    first.step(g);
    second.step(h);
    let have = parameters(store, vec![t.finish()], 1);
    let want = [0.5 - 0.1 * 2.0, -1.5 - 0.1 * 0.25, 2.0 - 0.2 * 0.5, 0.25 + 0.2 * 1.5];
    compare("parameters", &have, &want, Tolerance::F64).unwrap();
}
