//! The kinds of vectors, and the functions that run them.

use super::{Attempt, Attributes, Case, Refusal, Tensors, ops, optim, passes, pipeline, scaler, schedule};
use crate::device::Place;
use std::panic::{AssertUnwindSafe, catch_unwind};
use wgrad::{Array, DType, Session, Store};

/// Results by the names of the index, such as `out/y`.
pub type Results = Vec<(String, Array)>;

/// A kind of vectors.
pub struct Kind {
    /// The name, in the index and on the command line.
    pub name: &'static str,
    /// The function that runs a vector of this kind; `None` for traces, which have no tensors.
    pub run: Option<fn(&Vector<'_>) -> Attempt<Results>>,
}

/// The kinds that a set may hold.
pub const KINDS: [Kind; 7] = [
    Kind { name: "op", run: Some(ops::run) },
    Kind { name: "pass", run: Some(passes::run) },
    Kind { name: "optim", run: Some(optim::run) },
    Kind { name: "scaler", run: Some(scaler::run) },
    Kind { name: "schedule", run: Some(schedule::run) },
    Kind { name: "pipeline", run: Some(pipeline::run) },
    Kind { name: TRACES, run: None },
];

/// The kind of the traces in the file of traces; the index does not list them one by one.
pub const TRACES: &str = "traces";

/// One vector, with its tensors and its device.
#[derive(Clone, Copy)]
pub struct Vector<'a> {
    /// The vector's entry in the index.
    pub case: &'a Case,
    /// The file with the vector's tensors.
    pub tensors: &'a Tensors,
    /// The device that runs the vector.
    pub place: &'a Place,
}

impl<'a> Vector<'a> {
    /// The vector's attributes.
    pub fn attrs(&self) -> Attributes<'a> {
        Attributes(&self.case.attrs)
    }

    /// The type of the vector's floats.
    pub fn dtype(&self) -> DType {
        if self.case.dtype == "f64" { DType::F64 } else { DType::F32 }
    }

    /// The inputs whose names begin with `prefix`, which is `in/` or `cot/`, by their names without it.
    ///
    /// # Errors
    /// If the file lacks a tensor, or its type cannot be an input.
    pub fn inputs(&self, prefix: &str) -> Attempt<Vec<(String, Array)>> {
        let names = self.case.inputs.iter().filter_map(|input| input.strip_prefix(prefix));
        names.map(|name| Ok((name.into(), self.tensors.array(&format!("{}/{prefix}{name}", self.case.id))?))).collect()
    }

    /// A session on the device.
    ///
    /// # Errors
    /// If the device has too little memory for the store.
    pub fn session(&self, store: Store) -> Attempt<Session> {
        self.place.session(store).map_err(|error| Refusal::Misfit(error.to_string()))
    }

    /// Runs the vector. wgrad panics if inputs do not fit an operation, because that is a programmer's mistake. Here
    /// the inputs come from a file, so the panic becomes a refusal.
    ///
    /// # Errors
    /// The reason that the vector cannot be run.
    pub fn run(&self) -> Attempt<Results> {
        let kind = KINDS.iter().find(|kind| kind.name == self.case.kind);
        let run = kind.and_then(|kind| kind.run).ok_or_else(|| Refusal::Kind(self.case.kind.clone()))?;
        catch_unwind(AssertUnwindSafe(|| run(self))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the operation panicked");
            // The message names the line that recorded the operation. That line is in this program and not in the file,
            // so it is cut off.
            let text = text.lines().next().and_then(|line| line.split(" (recorded at ").next());
            Err(Refusal::Misfit(text.unwrap_or_default().into()))
        })
    }
}
