//! Checkpoints: round trips, and files that do not fit.

use crate::{open, param, snapshot};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{collections::HashMap, fs, path::Path};
use tempfile::TempDir;
use wgrad::{Array, DType, Optimizer, Rng, Session, Store, f16};
use wgrad_nn::{
    Builder, Error, Init, Linear, SaveFile,
    checkpoint::{self, Arrays, Metadata},
    optim::{Adam, AdamConfig},
};

/// A small model in training: two layers, f32 and f64, Adam, a dropout, and states of every type.
struct Model {
    session: Session,
    step: wgrad::Step,
}

impl Model {
    /// `swapped` declares the layers in the other order; `width` is the second one's.
    fn new(seed: u64, swapped: bool, width: usize) -> Self {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, seed);
        let mut layer = |first: bool| {
            let (name, outputs) = if first { ("first", 3) } else { ("second", width) };
            Linear::new(b.at(name), 2, outputs, &Init::Normal(1.0))
        };
        let (one, two) = (layer(!swapped), layer(swapped));
        let wide = Builder::new(&mut store, seed).with_dtype(DType::F64).param("wide", [5], &Init::Normal(1.0));
        let params = store.params();
        let adam = Adam::new(&mut store, &params, AdamConfig { lr: 0.1.into(), ..Default::default() });
        let rng = Rng::new(&mut store, "dropout", seed);
        let half =
            store.state("half", &Array::new([2], vec![f16::from_f64(seed as f64 / 3.0), f16::MIN_POSITIVE_SUBNORMAL]));
        store.state("best", &Array::new([], vec![seed as f64 / 3.0]));
        store.state("flags", &Array::new([3], vec![seed == 2, true, false]));
        store.state("offsets", &Array::new([2], vec![-(seed as i32), i32::MIN]));
        let mut session = open(store);
        let step = session
            .record(|t| {
                let x = t.input("x", [4, 2], DType::F32);
                t.assign(half, t.state(half) * 1.5);
                let loss = one.forward(x).dropout(0.5, rng).square().sum() + two.forward(x).tanh().sum();
                let loss = loss.cast(DType::F64) + t.param(wide).square().sum();
                adam.step(loss.grad(&params));
                rng.advance(t);
            })
            .expect("compiles");
        Self { session, step }
    }

    fn train(&mut self, steps: usize) {
        for i in 0..steps {
            let x = Array::new([4, 2], (0..8).map(|j| ((i * 8 + j) as f32).sin()).collect::<Vec<f32>>());
            self.session.run(&self.step, &[("x", &x)]).expect("runs");
        }
    }
}

fn metadata() -> Metadata {
    Metadata::from([("step".to_string(), "3".to_string()), ("task".to_string(), "adding \"ü\"".to_string())])
}

/// A folder with a checkpoint of a model after three steps.
fn saved() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut model = Model::new(1, false, 4);
    model.train(3);
    checkpoint::save(&mut model.session, &path, &metadata()).expect("saves");
    (folder, path)
}

#[test]
fn a_resumed_run_continues_with_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut model = Model::new(1, false, 4);
    model.train(2);
    checkpoint::save(&mut model.session, &path, &Metadata::new()).expect("saves");
    model.train(1);
    checkpoint::save(&mut model.session, &path, &metadata()).expect("saves over an older file");

    let mut other = Model::new(2, false, 4);
    other.train(5);
    assert_ne!(snapshot(&mut other.session), snapshot(&mut model.session));
    assert_eq!(checkpoint::load(&mut other.session, &path).expect("loads"), metadata());
    assert_eq!(snapshot(&mut other.session), snapshot(&mut model.session));
    model.train(4);
    other.train(4);
    assert_eq!(snapshot(&mut other.session), snapshot(&mut model.session));
    let left: Vec<_> = fs::read_dir(folder.path()).expect("readable").collect();
    assert_eq!(left.len(), 1, "no temporary file is left: {left:?}");
}

#[test]
fn other_programs_can_read_the_file() {
    let (_folder, path) = saved();
    let bytes = fs::read(&path).expect("readable");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let facts = |name: &str| file.tensor(name).map(|view| (view.dtype(), view.shape().to_vec())).expect("there");
    assert_eq!(facts("first/weight"), (Dtype::F32, vec![3, 2]));
    assert_eq!(facts("wide"), (Dtype::F64, vec![5]));
    assert_eq!(facts("state:adam/updates"), (Dtype::U32, vec![]));
    assert_eq!(facts("state:flags"), (Dtype::BOOL, vec![3]));
    assert_eq!(facts("state:half"), (Dtype::F16, vec![2]));
    assert_eq!(facts("state:dropout/key"), (Dtype::U32, vec![2]));
    assert_eq!(facts("state:dropout/counter"), (Dtype::U32, vec![]));
    assert_eq!(facts("state:best"), (Dtype::F64, vec![]));
    assert!(file.names().iter().all(|name| !name.contains("params/")), "arenas are stored as parameters");
}

#[test]
fn the_same_content_makes_the_same_bytes() {
    let (_folder, path) = saved();
    let first = fs::read(&path).expect("readable");
    for _ in 0..5 {
        let (_folder, path) = saved();
        assert!(fs::read(&path).expect("readable") == first);
    }
    // Tensors begin where their elements may, and a file as the crate orders it is read too.
    assert_eq!(u64::from_le_bytes(first[..8].try_into().expect("eight bytes")) % 8, 0);
    rewrite(&path, |_, _| {});
    let mut model = Model::new(1, false, 4);
    checkpoint::load(&mut model.session, &path).expect("the format is the same");
    checkpoint::save(&mut model.session, &path, &metadata()).expect("saves");
    assert!(fs::read(&path).expect("readable") == first);
}

#[test]
fn arrays_of_the_caller_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let mut model = Model::new(1, false, 4);
    let arrays = Arrays::from([
        ("losses".to_string(), Array::new([3], vec![1.5f32, f32::INFINITY, -0.0])),
        ("wide".to_string(), Array::new([0, 4], Vec::<f64>::new())),
        ("flags".to_string(), Array::new([], vec![true])),
    ]);
    let file = SaveFile::open(&path).expect("free");
    checkpoint::save_to(&file, &mut model.session, &metadata(), &arrays).expect("saves");
    let loaded = checkpoint::load_with_arrays(&mut model.session, &path).expect("loads");
    assert_eq!(loaded, (metadata(), arrays));
    assert_eq!(checkpoint::load(&mut model.session, &path).expect("without them"), metadata());
    let error = checkpoint::save(&mut model.session, &path, &metadata()).expect_err("the file is held");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(file);
    rewrite(&path, |t, _| find(t, "extra:losses").1 = Dtype::I32);
    rewrite(&path, |t, _| t.push(("extra:bytes".into(), Dtype::I8, vec![1], vec![0])));
    refused(&path, &mut model, "the tensor \"extra:bytes\" is of type i8, which cannot be loaded");
}

#[test]
fn metadata_that_has_no_room_in_the_header_is_an_error() {
    let (_folder, path) = saved();
    let before = fs::read(&path).expect("readable");
    let long = Metadata::from([("text".to_string(), "a".repeat(100_000_000))]);
    let error = checkpoint::save(&mut Model::new(1, false, 4).session, &path, &long).expect_err("too long");
    assert!(matches!(error, Error::Header { bytes: 100_000_001.., most: 100_000_000, .. }), "{error}");
    assert!(fs::read(&path).expect("readable") == before);
}

/// Rewrites a file with other tensors or metadata.
type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;
fn rewrite(path: &Path, change: impl FnOnce(&mut Tensors, &mut HashMap<String, String>)) {
    let bytes = fs::read(path).expect("readable");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let mut metadata = header.metadata().clone().unwrap_or_default();
    let mut tensors: Tensors = file
        .iter()
        .map(|(name, view)| (name.to_string(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut tensors, &mut metadata);
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("bytes fit the shape"))
    });
    let info = (!metadata.is_empty()).then_some(metadata);
    fs::write(path, safetensors::serialize(views, info).expect("serializes")).expect("writable");
}

fn find<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut (String, Dtype, Vec<usize>, Vec<u8>) {
    tensors.iter_mut().find(|(n, ..)| n == name).expect("there")
}

/// Asserts that a file is refused by a fresh model with this message, and that the model stays as it was.
#[track_caller]
fn refused(path: &Path, model: &mut Model, message: &str) -> Error {
    let before = snapshot(&mut model.session);
    let error = checkpoint::load(&mut model.session, path).expect_err("refused");
    let text = error.to_string();
    assert!(text.contains(message), "{text:?} does not say {message:?}");
    let named = !path.exists() || text.contains(path.to_str().expect("utf-8"));
    assert!(named, "{text:?} does not name the file");
    assert_eq!(snapshot(&mut model.session), before, "the session has changed");
    error
}

#[test]
fn a_cut_file_is_refused_at_every_length() {
    let (_folder, path) = saved();
    let whole = fs::read(&path).expect("readable");
    let mut model = Model::new(2, false, 4);
    for len in (0..whole.len()).step_by(131).chain([7, 8, whole.len() - 1]) {
        fs::write(&path, &whole[..len]).expect("writable");
        let error = refused(&path, &mut model, "is not a safetensors file, or it was cut short");
        assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
    }
    fs::write(&path, b"PK\x03\x04 this is some other file, of the kind that a browser downloads").expect("writable");
    refused(&path, &mut model, "is not a safetensors file");
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    type Change = fn(&mut Tensors, &mut HashMap<String, String>);
    let changes: [(Change, &str); 8] = [
        (|_, m| m.clear(), "is a safetensors file, but not a checkpoint of wgrad"),
        (|_, m| drop(m.insert("wgrad.format".into(), "2".into())), "format \"2\"; this version reads format \"1\""),
        (|_, m| drop(m.remove("wgrad.order")), "its wgrad.order is not a list of names"),
        (|t, _| t.retain(|(n, ..)| n != "first/bias"), "has no tensor \"first/bias\""),
        (|t, _| t.retain(|(n, ..)| n != "state:adam/updates"), "has no tensor \"state:adam/updates\""),
        (
            |t, _| t.push(("third/bias".into(), Dtype::U8, vec![1], vec![0])),
            "has a tensor \"third/bias\", which this program does not know",
        ),
        (
            |t, _| find(t, "second/weight").2 = vec![2, 4],
            "the tensor \"second/weight\" is f32[2, 4], and this program needs f32[4, 2]",
        ),
        (
            |t, _| find(t, "state:adam/updates").1 = Dtype::I32,
            "the tensor \"state:adam/updates\" is i32[], and this program needs u32[]",
        ),
    ];
    let mut model = Model::new(2, false, 4);
    for (change, message) in changes {
        let (_folder, path) = saved();
        rewrite(&path, change);
        refused(&path, &mut model, message);
    }
    let (_folder, path) = saved();
    refused(&path, &mut Model::new(2, false, 6), "is f32[4], and this program needs f32[6]");
    refused(&path, &mut Model::new(2, true, 4), "were declared in another order");
    let gone = path.with_file_name("gone.safetensors");
    assert!(matches!(refused(&gone, &mut model, "cannot read"), Error::Io { action: "read", .. }));
    checkpoint::load(&mut model.session, &path).expect("the file itself is sound");
}

#[test]
fn what_cannot_be_written_says_so() {
    let (folder, _) = saved();
    let mut model = Model::new(2, false, 4);
    let path = folder.path().join("no/such/folder/model.safetensors");
    let error = checkpoint::save(&mut model.session, &path, &Metadata::new()).expect_err("no folder");
    assert!(matches!(error, Error::Io { action: "write", .. }), "{error:?}");
}

#[test]
#[should_panic(expected = "is reserved for the format")]
fn the_formats_keys_are_reserved() {
    let reserved = Metadata::from([("wgrad.format".to_string(), String::new())]);
    let _ = checkpoint::save(&mut Model::new(1, false, 4).session, "unwritten", &reserved);
}

/// A foreign file: PyTorch's names, the types swapped.
fn foreign(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("foreign.safetensors");
    let f64s = |n: usize| (0..n).flat_map(|i| (0.1 * i as f64).to_le_bytes()).collect::<Vec<u8>>();
    let f32s = |n: usize| (0..n).flat_map(|i| (-0.5 * i as f32).to_le_bytes()).collect::<Vec<u8>>();
    let f16s = |n: usize| (0..n).flat_map(|i| f16::from_f64(-0.25 * i as f64).to_le_bytes()).collect::<Vec<u8>>();
    let tensors: Tensors = vec![
        ("fc1.weight".into(), Dtype::F64, vec![3, 2], f64s(6)),
        ("fc1.bias".into(), Dtype::F64, vec![3], f64s(3)),
        ("fc2.weight".into(), Dtype::F32, vec![4, 2], f32s(8)),
        ("fc2.bias".into(), Dtype::F32, vec![4], f32s(4)),
        ("wide".into(), Dtype::F16, vec![5], f16s(5)),
        ("epoch".into(), Dtype::I64, vec![], vec![0; 8]),
    ];
    let views = tensors.iter().map(|(n, d, s, b)| (n, TensorView::new(*d, s.clone(), b).expect("bytes fit the shape")));
    fs::write(&path, safetensors::serialize(views, None).expect("serializes")).expect("writable");
    path
}

fn map(name: &str) -> Option<String> {
    (name != "epoch").then(|| name.replace("fc1.", "first/").replace("fc2.", "second/"))
}

#[test]
fn foreign_parameters_are_renamed_and_converted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = foreign(folder.path());
    let mut model = Model::new(2, false, 4);
    model.train(1);
    let before = snapshot(&mut model.session);
    assert_eq!(checkpoint::load_params(&mut model.session, &path, map).expect("loads"), ["epoch"]);
    let mut read = |path: &str| {
        let id = param(&model.session, path);
        model.session.read_param(id).expect("readable")
    };
    assert_eq!(read("first/bias"), Array::new([3], vec![0f32, 0.1, 0.2]));
    assert_eq!(read("second/bias"), Array::new([4], vec![0f32, -0.5, -1.0, -1.5]));
    assert_eq!(read("wide"), Array::new([5], vec![0.0, -0.25, -0.5, -0.75, -1.0]));
    for ((name, new), (_, old)) in snapshot(&mut model.session).iter().zip(&before) {
        assert_eq!(new != old, name.starts_with("params/"), "{name}");
    }
    crate::assert_padding_is_zero(&mut model.session);
}

#[test]
fn foreign_files_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = foreign(folder.path());
    let mut model = Model::new(2, false, 4);
    let before = snapshot(&mut model.session);
    let mut refused = |name_map: &dyn Fn(&str) -> Option<String>, message: &str| {
        let error = checkpoint::load_params(&mut model.session, &path, name_map).expect_err("refused").to_string();
        assert!(error.contains(message), "{error:?} does not say {message:?}");
        assert_eq!(snapshot(&mut model.session), before, "the session has changed");
    };
    refused(&|name| map(name).filter(|n| n != "wide"), "has no tensor \"wide\"");
    refused(&|name| Some(name.into()), "has a tensor \"epoch\"");
    let twice = |name: &str| map(name).map(|n| n.replace("second/bias", "first/bias"));
    refused(&twice, "\"fc1.bias\" and \"fc2.bias\" are both mapped to the parameter \"first/bias\"");
    let swapped = |name: &str| map(&name.replace("fc1.w", "fc3.w").replace("fc2.w", "fc1.w").replace("fc3.w", "fc2.w"));
    refused(&swapped, "the tensor \"fc1.weight\" is f64[3, 2], and this program needs f32[4, 2]");
    refused(
        &|name| if name == "epoch" { Some("wide".into()) } else { None },
        "the tensor \"epoch\" is of type i64, which cannot be loaded",
    );
}
