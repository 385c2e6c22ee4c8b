//! Files of bf16, which only other programs write: every value is widened exactly, where its type holds it.

use crate::{open, snapshot};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;
use wgrad::{Array, DType, Data, Session, StateId, Store};
use wgrad_nn::{
    Error, SaveFile,
    checkpoint::{self, Arrays, Metadata},
};

/// All patterns of 16 bits: signed zeros, subnormal numbers, infinities and every NaN are among them.
const ALL: usize = 1 << 16;

fn every() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

/// The bits of the f32 that a bf16 stands for, by the definition of its fields.
fn widened(bits: u16) -> u32 {
    u32::from(bits) << 16
}

/// A session with a parameter `w` of every pattern's length, and a state of a type. No parameter is f16.
fn session(dtype: DType) -> (Session, StateId) {
    let mut store = Store::new();
    store.param("w", &Array::zeros([ALL], if dtype == DType::F64 { dtype } else { DType::F32 }));
    let mean = store.state("mean", &Array::zeros([2], dtype));
    (open(store), mean)
}

fn weight(session: &mut Session) -> Data {
    let param = crate::param(session, "w");
    session.read_param(param).expect("readable").data().clone()
}

/// A file of tensors.
type Tensors<'a> = Vec<(&'a str, Dtype, Vec<usize>, Vec<u8>)>;

fn write(path: &Path, tensors: Tensors<'_>, metadata: Option<Metadata>) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("bytes fit the shape"))
    });
    let metadata = metadata.map(|text| text.into_iter().collect());
    fs::write(path, safetensors::serialize(views, metadata).expect("serializes")).expect("writable");
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

/// A checkpoint of the session, as a program leaves it that has stored its floats in bf16.
fn checkpoint_in_bf16(dtype: DType) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("half.safetensors");
    let arrays = Arrays::from([("curve".to_string(), Array::zeros([3], DType::F32))]);
    let file = SaveFile::open(&path).expect("free");
    let metadata = Metadata::from([("step".to_string(), "7".to_string())]);
    checkpoint::save_to(&file, &mut session(dtype).0, &metadata, &arrays).expect("saves");
    drop(file);
    let bytes = fs::read(&path).expect("readable");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let stored = header.metadata().clone().expect("metadata").into_iter().collect();
    let tensors = vec![
        ("w", Dtype::BF16, vec![ALL], every()),
        ("state:mean", Dtype::BF16, vec![2], halves(&[1.5, -0.0078125])),
        ("extra:curve", Dtype::BF16, vec![3], halves(&[0.5, f32::INFINITY, -2.0])),
    ];
    write(&path, tensors, Some(stored));
    (folder, path)
}

#[test]
fn a_checkpoint_in_bf16_is_widened_bit_by_bit() {
    let (_folder, path) = checkpoint_in_bf16(DType::F32);
    for part in [false, true] {
        let (mut session, mean) = session(DType::F32);
        if part {
            let done = checkpoint::load_where(&mut session, &path, &["w", "state:mean"]).expect("loads");
            assert_eq!((done.loaded, done.unused), (vec!["state:mean".into(), "w".into()], vec!["extra:curve".into()]));
        } else {
            let (metadata, arrays) = checkpoint::load_with_arrays(&mut session, &path).expect("loads");
            assert_eq!(metadata["step"], "7");
            assert_eq!(arrays["curve"], Array::new([3], vec![0.5f32, f32::INFINITY, -2.0]));
        }
        let Data::F32(values) = weight(&mut session) else { panic!("f32 stays f32") };
        for (bits, value) in (0..=u16::MAX).zip(values) {
            assert_eq!(value.to_bits(), widened(bits), "{bits:#06x}");
        }
        assert_eq!(session.read(mean).expect("readable"), Array::new([2], vec![1.5f32, -0.0078125]));
    }
}

#[test]
fn bf16_is_exact_in_f64_too() {
    let (_folder, path) = checkpoint_in_bf16(DType::F64);
    let (mut session, _) = session(DType::F64);
    checkpoint::load(&mut session, &path).expect("loads");
    for (bits, value) in (0..=u16::MAX).zip(weight(&mut session).to_f64()) {
        let want = f64::from(f32::from_bits(widened(bits)));
        assert!(value.to_bits() == want.to_bits() || value.is_nan() && want.is_nan(), "{bits:#06x}: {value}");
    }
}

#[test]
fn a_checkpoint_in_bf16_does_not_fit_f16() {
    let (_folder, path) = checkpoint_in_bf16(DType::F16);
    let (mut session, _) = session(DType::F16);
    let before = snapshot(&mut session);
    let say = "the tensor \"state:mean\" is bf16[2], and this program needs f16[2]";
    let errors = [
        checkpoint::load(&mut session, &path).expect_err("refused"),
        checkpoint::load_where(&mut session, &path, &["state:mean"]).expect_err("refused"),
    ];
    for error in errors {
        assert!(matches!(error, Error::Mismatch { .. }) && error.to_string().ends_with(say), "{error}");
    }
    assert_eq!(snapshot(&mut session), before, "the session has changed");
}

#[test]
fn foreign_parameters_in_bf16_are_converted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("foreign.safetensors");
    write(&path, vec![("layer.weight", Dtype::BF16, vec![ALL], every())], None);
    for dtype in [DType::F32, DType::F64] {
        let (mut session, _) = session(dtype);
        let left_out = checkpoint::load_params(&mut session, &path, |_| Some("w".into())).expect("loads");
        assert!(left_out.is_empty());
        for (bits, value) in (0..=u16::MAX).zip(weight(&mut session).to_f64()) {
            let want = f64::from(f32::from_bits(widened(bits)));
            let same = value.to_bits() == want.to_bits() || value.is_nan() && want.is_nan();
            assert!(same, "{bits:#06x} in {dtype}: {value} for {want}");
        }
        if let Data::F32(values) = weight(&mut session) {
            assert!(
                (0..=u16::MAX).zip(values).all(|(bits, value)| value.to_bits() == widened(bits)),
                "payloads of NaN"
            );
        }
    }
}

#[test]
fn a_type_that_cannot_be_loaded_is_named_with_its_tensor_and_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("quantized.safetensors");
    for (dtype, name, size) in [(Dtype::F8_E4M3, "f8_e4m3", 1), (Dtype::I64, "i64", 8), (Dtype::U8, "u8", 1)] {
        write(&path, vec![("w", dtype, vec![ALL], vec![0; ALL * size])], None);
        let (mut session, _) = session(DType::F32);
        let error = checkpoint::load_params(&mut session, &path, |_| Some("w".into())).expect_err("refused");
        assert!(matches!(&error, Error::Type { dtype, .. } if dtype == name), "{error:?}");
        let say = format!("{}: the tensor \"w\" is of type {name}, which cannot be loaded", path.display());
        assert!(error.to_string().starts_with(&say), "{error}");
    }
}
