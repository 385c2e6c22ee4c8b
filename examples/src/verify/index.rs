//! The index of a set of golden vectors: the vectors, their attributes, tensors and tolerances.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The schema that this version reads.
const SCHEMA: u64 = 1;

/// The contents of `index.json`. Other fields of the file are not needed to run the vectors.
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
    /// The vector's name; its tensors are named `<id>/in/x`, `<id>/cot/y`, `<id>/out/y`, `<id>/grad/x`.
    pub id: String,
    /// The kind of the vector: `op`, `pass` and others.
    pub kind: String,
    /// The operation.
    pub op: String,
    /// The type of the floats: `f64` or `f32`; `mixed` for both.
    pub dtype: String,
    /// The attributes of the operation.
    #[serde(default)]
    pub attrs: Map<String, Value>,
    /// The names, without `in/`, of the inputs whose gradients are computed.
    #[serde(default)]
    pub diff: Vec<String>,
    /// The safetensors file with the vector's tensors.
    pub file: String,
    /// The tensors that the operation gets, such as `in/x` and `cot/y`.
    pub inputs: Vec<String>,
    /// The expected tensors, such as `out/y` and `grad/x`, with their tolerances.
    pub expect: BTreeMap<String, Tolerance>,
}

/// The largest allowed distance of an element from the expected one, `e`: `atol + rtol * |e|`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Tolerance {
    /// The relative part.
    pub rtol: f64,
    /// The absolute part.
    pub atol: f64,
}

/// One trace: a sequence of actions of a training loop, and the rules that it breaks.
#[derive(Clone, Debug, Deserialize)]
pub struct Trace {
    /// The trace's name.
    pub id: String,
    /// The other fields of the trace.
    #[serde(flatten)]
    pub attrs: Map<String, Value>,
}

impl Case {
    /// True if some of the floats are f64.
    pub fn needs_f64(&self) -> bool {
        matches!(self.dtype.as_str(), "f64" | "mixed")
    }
}

impl Index {
    /// Reads the text of `index.json`.
    ///
    /// # Errors
    /// The reason that the text cannot be read.
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
    /// The reason that the text cannot be read.
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
