//! Names that stand for two things: inputs and taps.

use super::{Refusal, refusal, session};
use approx::assert_abs_diff_eq;
use wgrad::{Array, DType, Error, Optimizer, Store, Tape, Tensor};
use wgrad_nn::{
    Builder, Init, Linear, Trainer, TrainerConfig,
    optim::{Sgd, SgdConfig},
};

/// Requires that a refusal names two lines of this file: its own, and the first.
#[track_caller]
fn twice(f: impl FnOnce(), parts: [&str; 2], first: u32) {
    let Refusal { message, file, line } = refusal(f);
    let all = [parts[0].into(), parts[1].into(), format!("names.rs:{first}:"), format!("names.rs:{line}:")];
    assert!(file == file!() && all.iter().all(|part| message.contains(part)), "{message} at {file}:{line}");
}

#[test]
fn an_input_is_declared_once() {
    let t = Tape::default();
    t.input("x", [3], DType::F32);
    let first = line!() - 1;
    twice(|| _ = t.input("x", [3], DType::F32), ["input \"x\"", "f32[3]"], first);
    twice(|| _ = t.input_like("x", &Array::zeros([2], DType::F64)), ["input \"x\"", "f64[2]"], first);
}

#[test]
fn a_name_is_tapped_once() {
    let t = Tape::default();
    let x = t.input("x", [3], DType::F32);
    t.tap("y", x);
    let first = line!() - 1;
    twice(|| t.tap("y", x), ["tap \"y\"", "exists already"], first);
    t.tap_each("y", x);
    t.tap_each("z", x);
    let names: Vec<String> = t.finish().taps().iter().map(|tap| tap.name.clone()).collect();
    assert_eq!(names, ["y", "y#2", "z"]);
}

#[test]
fn passes_and_sweeps_that_come_twice_tap_under_names_of_their_own() {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([2], vec![3.0f32, 4.0]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let mut session = session(store);
    let step = session.record(|t| {
        let w = t.param(p).retain_grad("w");
        let clipped = |factor: f64| (w * factor).sum().grad(&params).clip_by_global_norm(1.0);
        sgd.step(clipped(3.0));
        let _ = clipped(4.0);
    });
    session.run(&step.expect("compiles"), &[]).expect("runs");
    session.wait().expect("runs");
    let taps = session.taps().expect("arrived").pop().expect("of one run");
    let first = |name: &str| taps.get(name).expect("tapped").item(0) as f32;
    let root = 2f32.sqrt();
    assert_eq!(["w", "w#2"].map(first), [3.0, 4.0]);
    let norms = ["clip_by_global_norm/norm", "clip_by_global_norm/norm#2"].map(first);
    assert_abs_diff_eq!(norms[..], [3.0 * root, 4.0 * root][..], epsilon = 1e-5);
}

#[test]
fn a_run_is_given_each_input_once_in_its_size() {
    let mut session = session(Store::new());
    let step = session.record(|t| t.tap("y", t.input("x", [2, 3], DType::F32) * 2.0)).expect("compiles");
    let line = line!() - 1;
    let at = format!("names.rs:{line}:");
    let (fits, long) = (Array::zeros([2, 3], DType::F32), Array::zeros([4, 3], DType::F32));
    let error = session.run(&step, &[("x", &fits), ("x", &long)]).expect_err("twice");
    assert!(matches!(&error, Error::InputTwice { name } if name == "x"), "{error}");
    let error = session.run(&step, &[("x", &long)]).expect_err("of another size").to_string();
    for part in ["\"x\"", "f32[2, 3]", "f32[4, 3]", "run_cached", &at] {
        assert!(error.contains(part), "{error} does not say {part}");
    }
    let error =
        session.run(&step, &[("x", &Array::zeros([2, 3], DType::U32))]).expect_err("of another type").to_string();
    assert!(error.contains("u32[2, 3]") && error.contains(&at), "{error}");
    let error = session.run(&step, &[]).expect_err("missing").to_string();
    assert!(error.contains("\"x\" is missing") && error.contains(&at), "{error}");
    session.run(&step, &[("x", &fits)]).expect("fits");
}

/// A model of one layer, trained to meet a target.
fn trained(f: impl for<'t> Fn(&wgrad_nn::Inputs<'t>, Tensor<'t>) -> Tensor<'t> + 'static) -> (Trainer, wgrad::Session) {
    let mut store = Store::new();
    let layer = Linear::new(Builder::new(&mut store, 0), 3, 4, &Init::Zeros);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let trainer = Trainer::new(&mut store, &params, sgd, TrainerConfig::default(), move |batch| {
        f(batch, layer.forward(batch.get("x"))).into()
    });
    (trainer, session(store))
}

#[test]
fn a_trainer_blames_the_line_of_the_loss_or_the_batch() {
    let (x, target) = (Array::zeros([2, 3], DType::F32), Array::zeros([2, 4], DType::F32));
    let asks = line!() + 1;
    let (mut trainer, mut session) = trained(|batch, y| y.mse(batch.get("target")));
    let refused = refusal(|| trainer.step(&mut session, &[("x", &x)]));
    assert_eq!((refused.file.as_str(), refused.line), (file!(), asks), "{}", refused.message);
    assert!(refused.message.ends_with("has no input \"target\": it has x"), "{}", refused.message);
    trainer.step(&mut session, &[("x", &x), ("target", &target)]).expect("fits");
    // It is the data that lacks something now.
    let error = trainer.step(&mut session, &[("x", &x)]).expect_err("without a target");
    assert!(
        matches!(&error, Error::MissingInput { name, site, .. } if name == "target" && site.line() == asks),
        "{error}"
    );
    trainer.step(&mut session, &[("x", &x), ("target", &target)]).expect("the trainer goes on");
    let short = Array::zeros([2], DType::F32);
    let refused = refusal(|| trainer.step(&mut session, &[("x", &x), ("target", &short)]));
    assert_eq!((refused.file.as_str(), refused.line), (file!(), asks), "{}", refused.message);
    assert!(refused.message.starts_with("mse of f32[2, 4] and f32[2]: "), "{}", refused.message);
}

#[test]
fn a_trainer_whose_loss_is_no_scalar_blames_the_step() {
    let (mut trainer, mut session) = trained(|_, y| y);
    let refused = refusal(|| trainer.step(&mut session, &[("x", &Array::zeros([2, 3], DType::F32))]));
    assert!(refused.file == file!() && refused.message.starts_with("grad of f32[2, 4]"), "{}", refused.message);
}

#[test]
fn names_of_states_are_taken_at_the_callers_line() {
    let mut store = Store::new();
    let params = [store.param("p", &Array::zeros([2], DType::F32))].into_iter().collect();
    Sgd::new(&mut store, &params, SgdConfig { momentum: 0.9, ..SgdConfig::default() });
    let refused = refusal(|| Sgd::new(&mut store, &params, SgdConfig { momentum: 0.9, ..SgdConfig::default() }));
    assert!(refused.file == file!() && refused.message.contains("declared twice"), "{}", refused.message);
}
