//! The index of a set of golden vectors: which there are, what each needs and what it may miss by.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The schema that is read.
const SCHEMA: u64 = 1;

/// `index.json`. Fields that are not named here are of no concern to who runs the vectors.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    schema: u64,
    /// The file of the traces, if the set has any.
    #[serde(default)]
    pub traces: Option<String>,
    /// The vectors.
    pub cases: Vec<Case>,
}

/// One golden vector.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Its name; its tensors are named `<id>/in/x`, `<id>/cot/y`, `<id>/out/y`, `<id>/grad/x`.
    pub id: String,
    /// What is tested: `op`, `pass` and others.
    pub kind: String,
    /// The operation.
    pub op: String,
    /// The type of its floats: `f64` or `f32`; `mixed` if it has both.
    pub dtype: String,
    /// What the operation is given besides tensors.
    #[serde(default)]
    pub attrs: Map<String, Value>,
    /// The inputs that a gradient is taken of, without `in/`.
    #[serde(default)]
    pub diff: Vec<String>,
    /// The safetensors file with its tensors.
    pub file: String,
    /// The tensors that it is given, such as `in/x` and `cot/y`.
    pub inputs: Vec<String>,
    /// The tensors that are expected, such as `out/y` and `grad/x`.
    pub expect: BTreeMap<String, Tolerance>,
}

/// How far an element may be from the expected one, `e`: by `atol + rtol * |e|`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Tolerance {
    /// The relative part.
    pub rtol: f64,
    /// The absolute part.
    pub atol: f64,
}

/// One trace: a sequence of steps of a training loop, and which rules it breaks.
#[derive(Clone, Debug, Deserialize)]
pub struct Trace {
    /// Its name.
    pub id: String,
    /// The rest of it.
    #[serde(flatten)]
    pub attrs: Map<String, Value>,
}

impl Case {
    /// Whether some of its floats are f64.
    pub fn needs_f64(&self) -> bool {
        matches!(self.dtype.as_str(), "f64" | "mixed")
    }
}

impl Index {
    /// Reads the text of `index.json`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let index: Index = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if index.schema != SCHEMA {
            return Err(format!("it is of schema {}, and this version reads schema {SCHEMA}", index.schema));
        }
        Ok(index)
    }
}

impl Trace {
    /// Reads the text of the file of traces.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Vec<Self>, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let case = r#"{"id":"a","kind":"op","op":"exp","dtype":"f32","file":"f","inputs":["in/x"],"attrs":{"n":[1,null]},
            "expect":{"out/y":{"rtol":1e-6,"atol":0}},"note":"more"}"#;
        let whole = format!(r#"{{"schema":1,"traces":"t","cases":[{case}],"more":{{}}}}"#).into_bytes();
        let index = Index::parse(&whole).expect("an index");
        assert_eq!((index.cases[0].expect["out/y"].rtol, index.traces.as_deref()), (1e-6, Some("t")));
        for len in 0..whole.len() {
            assert!(Index::parse(&whole[..len]).is_err(), "{len} bytes");
        }
        for at in 0..whole.len() {
            for byte in [0, b'0', b'e', b'}', b'"', b'[', 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                drop((Index::parse(&bytes), Trace::parse(&bytes)));
            }
        }
        let nested = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(Index::parse(&nested).is_err() && Trace::parse(&nested).is_err());
    }
}
