//! The golden vectors: cases, their tensors, and comparison within their tolerances.

use approx::abs_diff_eq;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::{collections::HashMap, fs, path::PathBuf, sync::OnceLock};
use wgrad::{Array, Data, Shape};

/// One case of the index.
pub struct Case(Value);

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "tests", "golden"].iter().collect()
}

/// All tensors of all files, by name.
fn tensors() -> &'static HashMap<String, Array> {
    static TENSORS: OnceLock<HashMap<String, Array>> = OnceLock::new();
    TENSORS.get_or_init(|| {
        let files = ["optim.safetensors", "optimizers.safetensors", "ops_rnn.safetensors", "schedules.safetensors"];
        let read = |file: &str| fs::read(folder().join(file)).expect("a golden file");
        files.iter().flat_map(|file| decode(&read(file))).collect()
    })
}

fn decode(bytes: &[u8]) -> Vec<(String, Array)> {
    let file = SafeTensors::deserialize(bytes).expect("safetensors");
    let array = |view: safetensors::tensor::TensorView<'_>| {
        let bytes = view.data();
        let data: Data = match view.dtype() {
            Dtype::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect::<Vec<_>>().into(),
            Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>().into(),
            other => panic!("no golden tensor is {other:?}"),
        };
        Array::new(view.shape(), data)
    };
    file.iter().map(|(name, view)| (name.to_string(), array(view))).collect()
}

/// The cases that a predicate on their kind and op accepts; at least one.
pub fn cases(accept: impl Fn(&str, &str) -> bool) -> Vec<Case> {
    let text = fs::read_to_string(folder().join("index.json")).expect("the index");
    let index: Value = serde_json::from_str(&text).expect("json");
    let all = index["cases"].as_array().expect("a list").iter().cloned();
    let cases: Vec<Case> = all.map(Case).filter(|c| accept(c.text("kind"), c.op())).collect();
    assert!(!cases.is_empty(), "no case is accepted");
    cases
}

impl Case {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().expect("text")
    }

    pub fn id(&self) -> &str {
        self.text("id")
    }

    pub fn op(&self) -> &str {
        self.text("op")
    }

    pub fn dtype(&self) -> wgrad::DType {
        crate::dtype(self.text("dtype"))
    }

    pub fn attr(&self, name: &str) -> &Value {
        &self.0["attrs"][name]
    }

    /// All attributes.
    pub fn attrs(&self) -> &Value {
        &self.0["attrs"]
    }

    /// The same case with another attribute.
    pub fn with(&self, name: &str, value: Value) -> Self {
        let mut changed = Self(self.0.clone());
        changed.0["attrs"][name] = value;
        changed
    }

    /// The rest of the names of inputs that begin with `prefix`.
    pub fn inputs(&self, prefix: &str) -> Vec<&str> {
        let names = self.0["inputs"].as_array().expect("a list").iter().map(|name| name.as_str().expect("text"));
        names.filter_map(|name| name.strip_prefix(prefix)).collect()
    }

    /// A number among the attributes, or what stands for its absence.
    pub fn number(&self, name: &str, default: f64) -> f64 {
        self.attr(name).as_f64().unwrap_or(default)
    }

    pub fn find(&self, name: &str) -> Option<&'static Array> {
        tensors().get(&format!("{}/{name}", self.id()))
    }

    #[track_caller]
    pub fn tensor(&self, name: &str) -> &'static Array {
        self.find(name).unwrap_or_else(|| panic!("{} has no {name}", self.id()))
    }

    /// The names of the expected tensors.
    pub fn expected(&self) -> Vec<String> {
        self.0["expect"].as_object().expect("a table").keys().cloned().collect()
    }

    /// Compares a value with the expected one.
    #[track_caller]
    pub fn check(&self, name: &str, have: &Array) {
        if let Some(miss) = self.misses(name, have) {
            panic!("{miss}");
        }
    }

    /// The first element that is not the expected one.
    #[track_caller]
    pub fn misses(&self, name: &str, have: &Array) -> Option<String> {
        let want = self.tensor(name);
        assert_eq!((have.shape(), have.dtype()), (want.shape(), want.dtype()), "{}/{name}", self.id());
        let tolerance = |kind: &str| self.0["expect"][name][kind].as_f64().expect("a tolerance");
        let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
        let pairs = have.to_f64().into_iter().zip(want.to_f64());
        pairs.enumerate().find_map(|(i, (have, want))| {
            let fits = abs_diff_eq!(have, want, epsilon = atol + rtol * want.abs());
            (!fits).then(|| format!("{}/{name}[{i}]: {have} for {want}", self.id()))
        })
    }
}

/// Row `t` of an array along its first axis.
pub fn row(array: &Array, t: usize) -> Array {
    let shape = Shape::from(&array.shape()[1..]);
    let len = shape.numel();
    Array::new(shape, array.data().slice(t * len..(t + 1) * len))
}
