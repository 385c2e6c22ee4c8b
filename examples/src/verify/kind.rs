//! The kinds of vectors, and what runs each.

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
    /// What gives the results of one; `None` of traces, which have no tensors.
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

/// The kind of what the file of traces holds; the index does not list them one by one.
pub const TRACES: &str = "traces";

/// One vector, with what it needs to run.
#[derive(Clone, Copy)]
pub struct Vector<'a> {
    /// What the index says.
    pub case: &'a Case,
    /// The file with its tensors.
    pub tensors: &'a Tensors,
    /// Where it runs.
    pub place: &'a Place,
}

impl<'a> Vector<'a> {
    /// Its attributes.
    pub fn attrs(&self) -> Attributes<'a> {
        Attributes(&self.case.attrs)
    }

    /// The type of its floats.
    pub fn dtype(&self) -> DType {
        if self.case.dtype == "f64" { DType::F64 } else { DType::F32 }
    }

    /// Its inputs whose names begin so, without that: `in/` or `cot/`.
    ///
    /// # Errors
    /// If the file lacks one, or holds one that is no input here.
    pub fn inputs(&self, prefix: &str) -> Attempt<Vec<(String, Array)>> {
        let names = self.case.inputs.iter().filter_map(|input| input.strip_prefix(prefix));
        names.map(|name| Ok((name.into(), self.tensors.array(&format!("{}/{prefix}{name}", self.case.id))?))).collect()
    }

    /// A session on the device.
    ///
    /// # Errors
    /// If the device has no room for the store.
    pub fn session(&self, store: Store) -> Attempt<Session> {
        self.place.session(store).map_err(|error| Refusal::Misfit(error.to_string()))
    }

    /// Runs it. Inputs that do not fit the operation are its programmer's fault where a program is written, and panic; here
    /// they come from a file.
    ///
    /// # Errors
    /// Why it cannot be run.
    pub fn run(&self) -> Attempt<Results> {
        let kind = KINDS.iter().find(|kind| kind.name == self.case.kind);
        let run = kind.and_then(|kind| kind.run).ok_or_else(|| Refusal::Kind(self.case.kind.clone()))?;
        catch_unwind(AssertUnwindSafe(|| run(self))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the operation panicked");
            // The line where it was recorded is this program's, and not in the file.
            let text = text.lines().next().and_then(|line| line.split(" (recorded at ").next());
            Err(Refusal::Misfit(text.unwrap_or_default().into()))
        })
    }
}
