//! The dynamic loss scale: its cycle, what a skipped step leaves alone, and what is refused.

use approx::assert_abs_diff_eq;
use wgrad::{
    Array, DType, DynamicScale, Grads, LossScaler, Optimizer, ParamSet, Pitfall, Scaled, StateId, Store, Tape,
};
use wgrad_nn::{
    Schedule,
    optim::{Adam, AdamConfig, Ema, EmaConfig, Sgd, SgdConfig},
};
use wgrad_tests::{Linear, Machine, same_bits};

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

fn settings() -> DynamicScale {
    DynamicScale { init: 64.0, growth: 4.0, backoff: 0.25, interval: 3, min_scale: 2.0, ..DynamicScale::default() }
}

/// The cycle as the paper and PyTorch have it, with a floor: the scale and the tracker after each update.
fn cycle(settings: &DynamicScale, finite: &[bool]) -> Vec<(f32, i32)> {
    let (mut scale, mut tracker) = (settings.init as f32, 0);
    let mut after = vec![];
    for finite in finite {
        if *finite {
            tracker += 1;
            if tracker == settings.interval as i32 {
                tracker = 0;
                let grown = scale * settings.growth as f32;
                scale = if grown.is_finite() { grown } else { scale };
            }
        } else {
            tracker = 0;
            scale = (scale * settings.backoff as f32).max(settings.min_scale as f32);
        }
        after.push((scale, tracker));
    }
    after
}

fn read(cpu: &mut Machine, state: StateId) -> f64 {
    cpu.session.read(state).expect("readable").item(0)
}

#[test]
fn the_whole_cycle_is_on_the_device() {
    let growing = DynamicScale { init: 2f64.powi(120), growth: 3.0, interval: 1, ..settings() };
    let sinking = DynamicScale { init: 2f64.powi(-100), backoff: 0.125, min_scale: 0.0, ..settings() };
    let pattern = |n: u32| (0..60).map(|i| (i * i + i / 7) % n != 0).collect::<Vec<bool>>();
    // Further down it is no normal number, which is an error of the run.
    let cases =
        [(settings(), pattern(5)), (settings(), pattern(2)), (growing, vec![true; 20]), (sinking, vec![false; 8])];
    for (settings, finite) in cases {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[1.0, -2.0])]);
        let params = store.params();
        let scaler = LossScaler::dynamic(&mut store, settings.clone());
        let (scale, tracker) = scaler.states().expect("it is dynamic");
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let grads = scaler.scale(model.loss(t)).grad(&params).unscale(&scaler);
            t.tap("verdict", grads.verdict().expect("given"));
            scaler.update(t);
        });
        let step = step.expect("the plan compiles");
        for (i, (want, finite)) in cycle(&settings, &finite).into_iter().zip(&finite).enumerate() {
            let g = f32s(&[0.0, if *finite { 0.0 } else { f32::NAN }]);
            assert_eq!(cpu.run(&step, &Linear::inputs(&[g])).tap("verdict").item(0) == 1.0, *finite);
            let have = (read(&mut cpu, scale), read(&mut cpu, tracker));
            assert_eq!(have, (want.0.into(), want.1.into()), "after update {i} of {settings:?}");
        }
    }
}

#[test]
fn the_scale_is_divided_out_exactly() {
    let gradients = |scaler: Option<f64>| {
        let mut store = Store::new();
        let model = wgrad_tests::Mlp::new(&mut store, DType::F32);
        let scaler = scaler.map_or(LossScaler::none(), |init| {
            LossScaler::dynamic(&mut store, DynamicScale { init, ..DynamicScale::default() })
        });
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let grads = scaler.scale(model.loss(t)).grad(&model.params());
            t.tap("scaled", grads.flat().tensors()[0]);
            t.tap("flat", grads.unscale(&scaler).flat().tensors()[0]);
        });
        let out = cpu.run(&step.expect("the plan compiles"), &model.batch(0));
        (out.tap("scaled").clone(), out.tap("flat").clone())
    };
    let (_, plain) = gradients(None);
    let (scaled, unscaled) = gradients(Some(4096.0));
    assert!(plain.to_f64().iter().any(|g| *g != 0.0));
    assert!(same_bits(&plain, &unscaled));
    assert_eq!(scaled.to_f64(), plain.to_f64().iter().map(|g| g * 4096.0).collect::<Vec<f64>>());
    let (_, odd) = gradients(Some(1000.0));
    let largest = plain.to_f64().into_iter().fold(0.0, |largest: f64, g| largest.max(g.abs()));
    assert_abs_diff_eq!(plain.to_f64()[..], odd.to_f64()[..], epsilon = 1e-6 * largest);
    assert!(!same_bits(&plain, &odd));
}

#[test]
fn a_skipped_step_moves_the_scale_and_nothing_else() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[1.0, -2.0, 0.5])]);
        let params = store.params();
        let lr = Schedule::warmup(0.1, 10).into();
        let adam = Adam::new(&mut store, &params, AdamConfig { lr, ..AdamConfig::default() });
        let ema = Ema::new(&mut store, &params, EmaConfig { decay: 0.5, ..EmaConfig::default() });
        let scaler = LossScaler::dynamic(&mut store, settings());
        let (scale, _) = scaler.states().expect("it is dynamic");
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            adam.step(scaler.scale(model.loss(t)).grad(&params).unscale(&scaler).clip_by_global_norm(1.0));
            ema.update(t, &adam);
            scaler.update(t);
        });
        let step = step.expect("the plan compiles");
        let run = |cpu: &mut Machine, x: f32| drop(cpu.run(&step, &Linear::inputs(&[f32s(&[0.3, x, -0.2])])));
        run(&mut cpu, 0.1);
        let before = cpu.states();
        run(&mut cpu, bad);
        assert_eq!(read(&mut cpu, scale), 16.0, "{bad}: it backs off");
        let after = cpu.states();
        let moved: Vec<String> = {
            let names = cpu.session.layout().states().map(|(_, decl)| decl.name.clone());
            let differ = names.zip(before.iter().zip(&after)).filter(|(_, (a, b))| !same_bits(a, b));
            differ.map(|(name, _)| name).collect()
        };
        assert_eq!(moved, ["loss_scale/scale", "loss_scale/growth_tracker"], "{bad}");
        run(&mut cpu, 0.1);
        assert!(cpu.states().iter().flat_map(Array::to_f64).all(f64::is_finite), "training goes on");
        assert_eq!(read(&mut cpu, adam.states().counter()), 2.0);
    }
}

/// Two models and optimizers under one scale, and how the scale moves if the gradients of one are not finite.
fn two_optimizers(spoilt: [bool; 2]) -> (f64, [f64; 2]) {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0]), f32s(&[2.0])]);
    let sets = model.params.iter().map(|p| [*p].into_iter().collect::<ParamSet>()).collect::<Vec<_>>();
    let sgd = [0, 1].map(|i| {
        let name = format!("sgd{i}");
        Sgd::new(&mut store, &sets[i], SgdConfig { name, ..SgdConfig::default() })
    });
    let scaler = LossScaler::dynamic(&mut store, settings());
    let (scale, _) = scaler.states().expect("it is dynamic");
    let mut cpu = Machine::poisoned(1, store);
    // One program for each optimizer, and one for the scale: the verdicts outlive the programs that gave them.
    let steps = [0, 1].map(|i| {
        let record = |t: &Tape| sgd[i].step(scaler.scale(model.loss(t)).grad(&sets[i]).unscale(&scaler));
        cpu.session.record(record).expect("the plan compiles")
    });
    let update = cpu.session.record(|t| scaler.update(t)).expect("the plan compiles");
    let gradients = spoilt.map(|spoilt| f32s(&[if spoilt { f32::INFINITY } else { 1.0 }]));
    for step in &steps {
        cpu.run(step, &Linear::inputs(&gradients));
    }
    cpu.run(&update, &[]);
    (read(&mut cpu, scale), [0, 1].map(|i| read(&mut cpu, sgd[i].states().counter())))
}

#[test]
fn the_scale_backs_off_if_any_optimizer_found_something() {
    assert_eq!(two_optimizers([false, false]), (64.0, [1.0, 1.0]));
    assert_eq!(two_optimizers([true, false]), (16.0, [0.0, 1.0]));
    assert_eq!(two_optimizers([false, true]), (16.0, [1.0, 0.0]));
    assert_eq!(two_optimizers([true, true]), (16.0, [0.0, 0.0]));
}

#[test]
fn an_update_without_a_verdict_changes_nothing() {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0])]);
    let params = store.params();
    let scaler = LossScaler::dynamic(&mut store, settings());
    let (_, tracker) = scaler.states().expect("it is dynamic");
    let mut cpu = Machine::poisoned(1, store);
    let unscale = cpu.session.record(|t| {
        let grads = scaler.scale(model.loss(t)).grad(&params).unscale(&scaler);
        t.tap("verdict", grads.verdict().expect("given"));
    });
    let unscale = unscale.expect("the plan compiles");
    let update = cpu.session.record(|t| scaler.update(t)).expect("the plan compiles");
    let start = cpu.states();
    cpu.run(&update, &[]);
    assert!(cpu.states_are(&start), "nothing is known yet");
    cpu.run(&unscale, &Linear::inputs(&[f32s(&[1.0])]));
    cpu.run(&update, &[]);
    assert_eq!(read(&mut cpu, tracker), 1.0);
    cpu.run(&update, &[]);
    assert_eq!(read(&mut cpu, tracker), 1.0, "one verdict counts once");
}

/// What a recording panics with.
fn refused(record: impl FnOnce(&Tape, Grads<'_, Scaled>, LossScaler)) -> String {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0])]);
    let params = store.params();
    let scaler = LossScaler::dynamic(&mut store, settings());
    let tape = Tape::new(store.into_parts().0);
    let recorded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        record(&tape, scaler.scale(model.loss(&tape)).grad(&params), scaler);
    }));
    *recorded.expect_err("it is refused").downcast::<String>().expect("a text")
}

#[test]
fn mistakes_are_refused_while_recording() {
    let told = |text: String, pitfall: Pitfall| {
        assert!(text.contains(&pitfall.to_string()) && text.contains("scaler.rs:"), "{text}");
    };
    told(
        refused(|t, grads, scaler| {
            scaler.update(t);
            drop(grads.unscale(&scaler));
        }),
        Pitfall::ScaleChangesInsideWindow,
    );
    told(
        refused(|_, grads, scaler| drop(grads.unscale(&scaler).clip_by_global_norm(1.0).check_finite())),
        Pitfall::ClipBeforeFiniteCheck,
    );
    let text = refused(|_, grads, _| drop(grads.unscale(&LossScaler::fixed(64.0))));
    assert!(text.contains("scaled by state") && text.contains("this scaler has 64"), "{text}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let panics = |settings: DynamicScale| {
        let made = std::panic::catch_unwind(|| LossScaler::dynamic(&mut Store::new(), settings));
        *made.expect_err("it is refused").downcast::<String>().expect("a text")
    };
    for (settings, about) in [
        (DynamicScale { init: 0.0, ..settings() }, "init is 0"),
        (DynamicScale { init: 1e39, ..settings() }, "init is 1"),
        (DynamicScale { growth: 0.5, ..settings() }, "growth is 0.5"),
        (DynamicScale { growth: f64::INFINITY, ..settings() }, "growth is inf"),
        (DynamicScale { backoff: 0.0, ..settings() }, "backoff is 0"),
        (DynamicScale { backoff: 1.5, ..settings() }, "backoff is 1.5"),
        (DynamicScale { interval: 0, ..settings() }, "interval is 0"),
        (DynamicScale { min_scale: 65.0, ..settings() }, "min_scale is 65"),
        (DynamicScale { min_scale: -1.0, ..settings() }, "min_scale is -1"),
    ] {
        let text = panics(settings);
        assert!(text.contains(about), "{about}: {text}");
    }
}
