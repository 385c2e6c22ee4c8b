//! Rules that only the sequence of runs can break: how long a window of micro-batches is, and what may happen within it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use wgrad::{
    Accumulator, Array, DType, DynamicScale, Error, Grads, LossScaler, Noise, Optimizer, Param, ParamSet, Pitfall, Rng,
    Scaled, Session, Step, Store, Tape, Tensor, Weighting,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    checkpoint,
    optim::{Sgd, SgdConfig},
};
use wgrad_tests::{Linear, Machine, same_bits};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

fn input(g: f32) -> Vec<(String, Array)> {
    Linear::inputs(&[f32s(&[g])])
}

/// The mistake that a run is refused for.
fn refused(session: &mut Session, step: &Step, inputs: &[(String, Array)]) -> Option<Pitfall> {
    let named: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (&**name, array)).collect();
    match session.run(step, &named) {
        Ok(_) => None,
        Err(Error::Pitfall { pitfall, site: Some(site), .. }) => {
            assert!(site.file().ends_with("windows.rs"), "{site}");
            Some(pitfall)
        }
        Err(other) => panic!("{other}"),
    }
}

/// The pitfall that recording is refused for, by the message's first word.
fn refused_at_record(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it must be refused");
    let message = panic.downcast::<String>().expect("a message");
    assert!(message.contains("windows.rs"), "{message}");
    message.split(':').next().unwrap_or_default().to_string()
}

/// Windows of `length` micro-batches under a dynamic scale, if that is asked for: the programs of a training loop.
struct Loop {
    cpu: Machine,
    add: Step,
    take: Step,
    last: Step,
    rescale: Step,
}

impl Loop {
    fn new(length: Option<usize>, weighting: Weighting, skip_bad: bool) -> Self {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[0.0])]);
        let params = store.params();
        let mut acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", weighting);
        if let Some(length) = length {
            acc = acc.micro_batches(&mut store, length);
        }
        if skip_bad {
            acc = acc.skip_bad_micro_batches();
        }
        let scaler = LossScaler::dynamic(&mut store, DynamicScale { interval: 1, ..DynamicScale::default() });
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
        let mut cpu = Machine::poisoned(1, store);
        let add = cpu.session.record(|t| {
            let g = scaler.scale(model.loss(t)).grad(&params);
            match weighting {
                Weighting::TokenWeighted => acc.add_tokens(g, t.scalar(5.0, DType::U32)),
                _ => acc.add(g),
            }
        });
        let update = |g: Grads<'_, Scaled>| sgd.step(g.unscale(&scaler));
        let take = cpu.session.record(|t| update(acc.take(t)));
        let last = cpu.session.record(|t| update(acc.take_last(t)));
        let rescale = cpu.session.record(|t| scaler.update(t));
        let [add, take, last, rescale] = [add, take, last, rescale].map(|step| step.expect("compiles"));
        Self { cpu, add, take, last, rescale }
    }

    fn step(&mut self, which: char) -> Option<Pitfall> {
        let step = match which {
            'a' | 'n' => self.add.clone(),
            't' => self.take.clone(),
            'l' => self.last.clone(),
            _ => self.rescale.clone(),
        };
        let inputs = match which {
            'a' => input(1.0),
            'n' => input(f32::NAN),
            _ => vec![],
        };
        let before = self.cpu.states();
        let refused = refused(&mut self.cpu.session, &step, &inputs);
        assert!(refused.is_none() || self.cpu.states_are(&before), "what is refused changes nothing");
        refused
    }
}

/// Adds `a` or with NaN `n`, takes `t`, takes the last `l`, updates the scale `s`; the number that the last is refused for.
#[test]
fn sessions_count_windows_over_runs() {
    for (length, legal) in [
        (Some(2), "aataat"),
        (Some(2), "aatsaats"),
        (Some(2), "aatal"),
        (Some(2), "aatl"),
        (Some(1), "atat"),
        (Some(3), "aaatsal"),
        (Some(2), "ants"),
        (None, "aaataatts"),
        (None, "salts"),
    ] {
        for (weighting, skip_bad) in
            [(Weighting::Mean, false), (Weighting::Mean, true), (Weighting::TokenWeighted, false)]
        {
            let mut run = Loop::new(length, weighting, skip_bad);
            for which in legal.chars() {
                assert_eq!(run.step(which), None, "{length:?} {legal} at {which}");
            }
        }
    }
    for (length, runs, number) in [
        (Some(2), "aaa", 50),
        (Some(2), "t", 50),
        (Some(2), "aatat", 50),
        (Some(2), "aatalaaa", 50),
        (Some(2), "as", 12),
        (Some(2), "aas", 12),
        (None, "aatas", 12),
    ] {
        let mut run = Loop::new(length, Weighting::Mean, false);
        let (before, last) = runs.split_at(runs.len() - 1);
        for which in before.chars() {
            assert_eq!(run.step(which), None, "{length:?} {runs} at {which}");
        }
        let refused = run.step(last.chars().next().expect("one"));
        assert_eq!(refused.map(Pitfall::number), Some(number), "{length:?} {runs}");
        // What was refused has not happened.
        assert_eq!(run.step('l'), None, "{runs}");
        assert_eq!(run.step('s'), None, "{runs}");
    }
}

#[test]
fn a_refusal_says_what_where_and_how_to_cure_it() {
    let mut run = Loop::new(Some(4), Weighting::Mean, false);
    assert_eq!(run.step('a'), None);
    let take = run.take.clone();
    let message = run.cpu.session.run(&take, &[]).expect_err("too early").to_string();
    assert!(
        message.starts_with(&format!("{} (accumulator \"acc\", recorded at ", Pitfall::ViolatedWindow)),
        "{message}"
    );
}

/// A run that fails for another reason has not happened either.
#[test]
fn a_run_that_fails_does_not_count() {
    let mut store = Store::new();
    let p = store.param("p", &f32s(&[0.0, 1.0]));
    let params = store.params();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean).micro_batches(&mut store, 1);
    let mut cpu = Machine::poisoned(1, store);
    let add = cpu.session.record(|t| {
        let index = t.input("i", [1], DType::U32);
        acc.add(t.param(p).gather(index, 0).sum().grad(&params));
    });
    let add = add.expect("compiles");
    let index = |i: u32| [("i".to_string(), Array::new([1], vec![i]))];
    let run = |cpu: &mut Machine, i: u32| cpu.session.run(&add, &[("i", &index(i)[0].1)]);
    assert!(matches!(run(&mut cpu, 7), Err(Error::IndexOutOfRange { .. })));
    assert!(run(&mut cpu, 0).is_ok());
    assert!(matches!(run(&mut cpu, 0), Err(Error::Pitfall { pitfall: Pitfall::ViolatedWindow, .. })));
}

/// The count is a state: it is saved and restored with the others.
#[test]
fn a_session_that_is_resumed_within_a_window_knows_where_it_is() {
    let path = std::env::temp_dir().join(format!("wgrad-windows-{}.safetensors", std::process::id()));
    for weighting in [Weighting::Mean, Weighting::TokenWeighted] {
        let mut first = Loop::new(Some(3), weighting, false);
        for which in "aaatsaa".chars() {
            assert_eq!(first.step(which), None);
        }
        checkpoint::save(&mut first.cpu.session, &path, &checkpoint::Metadata::new()).expect("saved");
        for (runs, number) in [("at", None), ("l", None), ("t", Some(50)), ("aa", Some(50)), ("s", Some(12))] {
            // In a session that is new, and in one that was elsewhere.
            for before in ["", "a"] {
                let mut second = Loop::new(Some(3), weighting, false);
                before.chars().for_each(|which| assert_eq!(second.step(which), None));
                checkpoint::load(&mut second.cpu.session, &path).expect("loaded");
                let refused: Vec<u32> =
                    runs.chars().filter_map(|which| second.step(which)).map(Pitfall::number).collect();
                assert_eq!(refused.first().copied(), number, "{weighting:?} {runs}");
            }
        }
        assert_eq!(first.step('a'), None, "the session that was saved goes on");
        let mut second = Loop::new(Some(3), weighting, false);
        checkpoint::load(&mut second.cpu.session, &path).expect("loaded");
        "at".chars().for_each(|which| assert_eq!(second.step(which), None));
        assert_eq!(first.step('t'), None);
        let (a, b) = (first.cpu.states(), second.cpu.states());
        assert!(a.iter().zip(&b).all(|(a, b)| same_bits(a, b)), "{weighting:?}: the same bits");
    }
    std::fs::remove_file(path).expect("it is there");
}

/// A store with a parameter, and an optimizer for it.
fn one() -> (Store, Param, ParamSet, Sgd) {
    let mut store = Store::new();
    let p = store.param("p", &f32s(&[1.0, -2.0]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    (store, p, params, sgd)
}

fn square<'t>(t: &'t Tape, p: Param) -> Tensor<'t> {
    t.param(p).square().sum()
}

fn tape(store: &Store) -> Tape {
    Tape::new(std::sync::Arc::new(store.layout().clone()))
}

#[test]
fn clipped_micro_batches_are_not_accumulated_unless_that_is_meant() {
    type Pass = for<'t> fn(Grads<'t>) -> Grads<'t>;
    let passes: [(&str, Pass); 5] = [
        ("clip", |g| g.clip_by_global_norm(1.0)),
        ("agc", |g| g.agc(0.1)),
        ("value", |g| g.clip_by_value(0.1)),
        ("block", |g| g.clip_by_block_rms(0.1)),
        ("checked", |g| g.check_finite().clip_by_global_norm(1.0)),
    ];
    for (name, pass) in passes {
        let (mut store, p, params, _) = one();
        let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
        let t = tape(&store);
        let g = || square(&t, p).grad(&params);
        assert_eq!(refused_at_record(|| acc.add(pass(g()))), "P7", "{name}");
        acc.add(pass(g().per_micro_batch()));
        // Of windows of one there are no parts.
        let (mut store, p, params, _) = one();
        let one: Accumulator =
            Accumulator::new(&mut store, &params, "acc", Weighting::Mean).micro_batches(&mut store, 1);
        let t = tape(&store);
        one.add(pass(square(&t, p).grad(&params)));
        // What is linear is the same before and after.
        one.add((square(&t, p) * 3.0).grad(&params).check_finite().centralize());
    }
}

#[test]
fn one_loss_is_accumulated_once() {
    let (mut store, p, params, _) = one();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let other: Accumulator = Accumulator::new(&mut store, &params, "other", Weighting::Mean);
    let t = tape(&store);
    let loss = square(&t, p);
    acc.add(loss.grad(&params));
    other.add(loss.grad(&params));
    acc.add((loss * 2.0).grad(&params));
    assert_eq!(refused_at_record(|| acc.add(loss.grad(&params))), "P40");
    let scaler = LossScaler::fixed(8.0);
    let (mut store, p, params, _) = one();
    let acc: Accumulator<Scaled> = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
    let t = tape(&store);
    let scaled = scaler.scale(square(&t, p));
    acc.add(scaled.grad(&params));
    assert_eq!(refused_at_record(|| acc.add(scaled.grad(&params))), "P40");
}

#[test]
fn nothing_is_done_to_gradients_of_which_none_is_present() {
    let (store, _, params, sgd) = one();
    let t = tape(&store);
    let x = t.input("x", [], DType::F32);
    let g = || x.grad(&params);
    assert_eq!(refused_at_record(|| sgd.step(g())), "P13");
    assert_eq!(refused_at_record(|| drop(g().clip_by_global_norm(1.0))), "P13");
    sgd.step(g().even_if_absent().clip_by_global_norm(1.0));
}

#[test]
fn half_precision_is_stepped_with_only_after_a_check() {
    let run = |check: fn(Grads<'_>) -> Grads<'_>, half: bool, accumulated: bool| {
        let mut store = Store::new();
        let w = store.param("w", &Array::new([2, 2], vec![0.5f32; 4]));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
        let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
        let t = tape(&store);
        let product = || t.param(w).matmul(t.param(w)).sum();
        let loss = if half { t.autocast(DType::F16, product) } else { product() };
        let grads = loss.grad(&params);
        if !accumulated {
            return sgd.step(check(grads));
        }
        acc.add(grads);
        let t = tape(&store);
        sgd.step(check(acc.take(&t)));
    };
    for accumulated in [false, true] {
        assert_eq!(refused_at_record(|| run(|g| g, true, accumulated)), "P30");
        assert_eq!(refused_at_record(|| run(|g| g.clip_by_value(1.0), true, accumulated)), "P30");
        run(|g| g.check_finite().clip_by_value(1.0), true, accumulated);
        run(|g| g.clip_by_global_norm(1.0), true, accumulated);
        run(|g| g, false, accumulated);
    }
}

#[test]
fn the_scale_is_updated_after_every_step() {
    let (mut store, p, params, sgd) = one();
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let t = tape(&store);
    let g = || scaler.scale(square(&t, p)).grad(&params).unscale(&scaler);
    let (first, second) = (g(), g());
    sgd.step(first);
    scaler.update(&t);
    assert_eq!(refused_at_record(|| sgd.step(second)), "P39");
    let t = tape(&store);
    let g = || scaler.scale(square(&t, p)).grad(&params).unscale(&scaler);
    sgd.step(g());
    scaler.update(&t);
    sgd.step(g());
}

#[test]
fn noise_moves_with_steps_and_nothing_else() {
    for first in [true, false] {
        let (mut store, p, params, sgd) = one();
        let rng = Rng::new(&mut store, "noise", 1);
        let t = tape(&store);
        let noisy = || square(&t, p).grad(&params).check_finite().add_noise(Noise::fixed(1.0), rng);
        if first {
            rng.advance(&t);
            assert_eq!(refused_at_record(|| drop(noisy())), "P29");
        } else {
            let g = noisy();
            assert_eq!(refused_at_record(|| rng.advance(&t)), "P29");
            sgd.step(g);
        }
    }
}

/// The unscaled gradients of micro-batches may be added up, as long as the scale stays.
#[test]
fn unscaled_micro_batches_freeze_the_scale_too() {
    let (mut store, p, params, sgd) = one();
    let acc: Accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean).micro_batches(&mut store, 2);
    let scaler = LossScaler::dynamic(&mut store, DynamicScale { interval: 1, ..DynamicScale::default() });
    let mut session = Session::new(Box::new(CpuBackend::new(1).expect("a thread")), store).expect("room");
    let add = session.record(|t| acc.add(scaler.scale(square(t, p)).grad(&params).unscale(&scaler)));
    let update = session.record(|t| {
        sgd.step(acc.take(t).clip_by_global_norm(1.0));
        scaler.update(t);
    });
    let [add, update] = [add, update].map(|step| step.expect("compiles"));
    let runs = [&add, &update, &add, &update, &add, &add, &update];
    let numbers: Vec<Option<u32>> =
        runs.iter().map(|step| refused(&mut session, step, &[]).map(Pitfall::number)).collect();
    assert_eq!(numbers, [None, Some(50), None, None, None, None, None]);
    let rescale = session.record(|t| scaler.update(t)).expect("compiles");
    assert_eq!(refused(&mut session, &rescale, &[]), None);
    assert_eq!(refused(&mut session, &add, &[]), None);
    assert_eq!(refused(&mut session, &rescale, &[]), Some(Pitfall::ScaleChangesInsideWindow));
}

/// Optimizers that step with copies of the same gradients draw the same noise, and make one update: where one of them may
/// not step, it is the other's.
#[test]
fn noise_for_two_optimizers_moves_once() {
    for (first, second, want) in [(true, true, 1.0), (true, false, 1.0), (false, true, 1.0), (false, false, 0.0)] {
        let mut store = Store::new();
        let [a, b] = ["a", "b"].map(|name| store.param(name, &f32s(&[1.0, 2.0])));
        let params = store.params();
        let [one, two] = [a, b].map(|param| {
            let own: ParamSet = [param].into_iter().collect();
            Sgd::new(&mut store, &own, SgdConfig { name: format!("sgd{param:?}"), ..SgdConfig::default() })
        });
        let rng = Rng::new(&mut store, "noise", 1);
        let mut session = Session::new(Box::new(CpuBackend::new(1).unwrap()), store).unwrap();
        let step = session.record(|t| {
            let loss = (t.param(a).square() + t.param(b).square()).sum();
            let g = loss.grad(&params).add_noise(Noise::annealed(0.1), rng);
            let taken = |taken: bool| t.scalar(f64::from(taken), DType::Bool);
            one.step(g.clone().skip_unless(taken(first)));
            two.step(g.skip_unless(taken(second)));
            t.tap("updates", rng.counter(t));
        });
        session.run(&step.unwrap(), &[]).unwrap();
        session.wait().unwrap();
        assert_eq!(session.taps().unwrap()[0].scalar("updates"), Some(want), "{first} {second}");
    }
}
