//! Loading parts of a checkpoint: bodies for new heads, and parameters without their optimizer.

use crate::{open, param, snapshot, state};
use std::path::PathBuf;
use tempfile::TempDir;
use wgrad::{Array, DType, Optimizer, Rng, Session, Store};
use wgrad_nn::{
    Builder, Error, Init, Linear,
    checkpoint::{self, Metadata},
    optim::{Adam, AdamConfig},
};

/// A body and a head, Adam, a generator, and a state of its own.
struct Shape {
    seed: u64,
    /// The outputs of the head, under this name.
    head: (&'static str, usize),
    /// True if the head is declared first.
    swapped: bool,
    dtype: DType,
}

impl Default for Shape {
    fn default() -> Self {
        Self { seed: 1, head: ("head", 3), swapped: false, dtype: DType::F32 }
    }
}

/// A session, one step of which has been made.
fn model(shape: &Shape) -> Session {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, shape.seed).with_dtype(shape.dtype);
    let mut layer = |head: bool| {
        let (name, outputs) = if head { shape.head } else { ("body/linear", 4) };
        Linear::new(b.at(name), if head { 4 } else { 2 }, outputs, &Init::Normal(1.0))
    };
    let (one, two) = (layer(shape.swapped), layer(!shape.swapped));
    let (body, head) = if shape.swapped { (two, one) } else { (one, two) };
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..Default::default() });
    let rng = Rng::new(&mut store, "dropout", shape.seed);
    store.state("best", &Array::new([], vec![shape.seed as f64]));
    let mut session = open(store);
    let step = session.record(|t| {
        let loss = head.forward(body.forward(t.input("x", [5, 2], shape.dtype)).dropout(0.5, rng)).square().sum();
        adam.step(loss.grad(&params));
        rng.advance(t);
    });
    let x = Array::new([5, 2], (0..10).map(|i| f64::from(i).sin()).collect::<Vec<f64>>()).cast(shape.dtype);
    session.run(&step.expect("compiles"), &[("x", &x)]).expect("runs");
    session
}

/// A checkpoint of the default shape.
fn saved() -> (TempDir, PathBuf, Session) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut session = model(&Shape::default());
    checkpoint::save(&mut session, &path, &Metadata::from([("step".into(), "1".into())])).expect("saves");
    (folder, path, session)
}

fn value(session: &mut Session, path: &str) -> Array {
    let param = param(session, path);
    session.read_param(param).expect("reads")
}

/// Requires an error, and a session that stays as it was.
fn refused(session: &mut Session, path: &PathBuf, patterns: &[&str]) -> Error {
    let before = snapshot(session);
    let error = checkpoint::load_where(session, path, patterns).expect_err("refused");
    assert_eq!(snapshot(session), before, "the session has changed");
    assert!(error.to_string().contains(path.to_str().expect("utf-8")), "{error} does not name the file");
    error
}

#[test]
fn a_body_is_loaded_under_a_new_head() {
    let (_folder, path, mut old) = saved();
    let mut new = model(&Shape { seed: 2, head: ("classifier", 7), ..Shape::default() });
    let head = value(&mut new, "classifier/weight");
    let done = checkpoint::load_where(&mut new, &path, &["body/**", "state:dropout/*"]).expect("loads");
    assert_eq!(done.metadata, Metadata::from([("step".into(), "1".into())]));
    assert_eq!(done.loaded, ["body/linear/bias", "body/linear/weight", "state:dropout/counter", "state:dropout/key"],);
    let kept = ["classifier/bias", "classifier/weight", "state:adam/updates", "state:best"];
    assert!(kept.iter().all(|name| done.kept.iter().any(|kept| kept == name)), "{:?}", done.kept);
    let unused = ["head/bias", "head/weight", "state:adam/updates", "state:best"];
    assert!(unused.iter().all(|name| done.unused.iter().any(|unused| unused == name)), "{:?}", done.unused);
    assert!(done.kept.is_sorted() && done.unused.is_sorted());
    assert!(done.loaded.iter().all(|name| !done.kept.contains(name) && !done.unused.contains(name)));
    for name in ["body/linear/weight", "body/linear/bias"] {
        assert_eq!(value(&mut new, name), value(&mut old, name));
    }
    assert_eq!(state(&mut new, "dropout/key"), state(&mut old, "dropout/key"));
    assert_eq!(value(&mut new, "classifier/weight"), head);
    assert_eq!(state(&mut new, "best").item(0), 2.0);
    crate::assert_padding_is_zero(&mut new);
}

#[test]
fn everything_is_loaded_by_one_pattern() {
    let (_folder, path, mut old) = saved();
    let mut new = model(&Shape { seed: 2, ..Shape::default() });
    let done = checkpoint::load_where(&mut new, &path, &["**"]).expect("loads");
    assert_eq!(snapshot(&mut new), snapshot(&mut old));
    assert!(done.kept.is_empty() && done.unused.is_empty());
}

/// A tensor that the file lacks keeps its first value, if the pattern matches any other.
#[test]
fn new_states_keep_their_values() {
    let (_folder, path, mut old) = saved();
    let mut store = Store::new();
    let linear = Linear::new(Builder::new(&mut store, 5).at("body/linear"), 2, 4, &Init::Normal(1.0));
    let extra = store.param("body/extra", &Array::new([2], vec![1.5f32, 2.5]));
    let mut new = open(store);
    let done = checkpoint::load_where(&mut new, &path, &["**"]).expect("loads");
    assert_eq!(
        (done.loaded, done.kept),
        (vec!["body/linear/bias".into(), "body/linear/weight".into()], vec!["body/extra".to_string()])
    );
    assert_eq!(new.read_param(extra).expect("reads").to_f64(), [1.5, 2.5]);
    assert_eq!(new.read_param(linear.weight).expect("reads"), value(&mut old, "body/linear/weight"));
}

#[test]
fn a_pattern_that_loads_nothing_is_an_error() {
    let (_folder, path, _) = saved();
    let mut new = model(&Shape { seed: 2, head: ("classifier", 7), ..Shape::default() });
    for (pattern, in_file, in_program) in [("boby/**", 0, 0), ("head/*", 2, 0), ("classifier/*", 0, 2), ("best", 0, 0)]
    {
        let error = refused(&mut new, &path, &["body/**", pattern]);
        let Error::NoMatch { pattern: named, in_file: file, in_program: program, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((named.as_str(), *file, *program), (pattern, in_file, in_program));
        assert!(error.to_string().contains(&format!("{pattern:?}")), "{error}");
    }
    // No pattern asks for nothing, and gets it.
    assert!(checkpoint::load_where(&mut new, &path, &[]).expect("loads").loaded.is_empty());
}

#[test]
fn other_shapes_and_types_are_errors() {
    let (_folder, path, _) = saved();
    let mut wide = model(&Shape { seed: 2, head: ("head", 7), ..Shape::default() });
    let error = refused(&mut wide, &path, &["body/**", "head/weight"]);
    assert!(matches!(&error, Error::Mismatch { tensor, .. } if tensor == "head/weight"), "{error}");
    assert!(error.to_string().contains("f32[3, 4]") && error.to_string().contains("f32[7, 4]"), "{error}");
    let mut double = model(&Shape { seed: 2, dtype: DType::F64, ..Shape::default() });
    let error = refused(&mut double, &path, &["body/**"]);
    assert!(matches!(&error, Error::Mismatch { want, have, .. } if want.starts_with("f64") && have.starts_with("f32")));
}

/// Moments lie in the order of the parameters: in another order they would belong to others, though their lengths fit.
#[test]
fn moments_of_other_parameters_are_errors() {
    let (_folder, path, mut old) = saved();
    let mut swapped = model(&Shape { seed: 2, swapped: true, ..Shape::default() });
    let error = refused(&mut swapped, &path, &["**"]);
    assert!(matches!(&error, Error::OtherParams { tensor, .. } if tensor.starts_with("state:adam/")), "{error}");
    // Parameters and single counters know their places.
    let done =
        checkpoint::load_where(&mut swapped, &path, &["body/**", "head/**", "state:adam/updates"]).expect("loads");
    assert_eq!(done.loaded.len(), 5);
    assert_eq!(value(&mut swapped, "head/weight"), value(&mut old, "head/weight"));
    let mut renamed = model(&Shape { seed: 2, head: ("top", 3), ..Shape::default() });
    let error = refused(&mut renamed, &path, &["state:adam/**"]);
    assert!(matches!(&error, Error::OtherParams { .. }), "{error}");
}

#[test]
fn files_that_are_no_checkpoints_are_errors() {
    let (folder, path, mut session) = saved();
    let error = refused(&mut session, &folder.path().join("none"), &["**"]);
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let bytes = std::fs::read(&path).expect("readable");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("writable");
    let error = refused(&mut session, &path, &["**"]);
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}
