//! Rules: each compares a signal with a bound, names the fault that the signal indicates, and has remedies.

mod data;
mod model;
mod program;
mod table;
mod training;

pub use table::RULES;

use super::signs::Signs;
use crate::train::Edit;

/// A number that indicates a fault, with the range in which it is sound.
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// The number's name.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The lower end of the sound range.
    pub low: f64,
    /// The upper end of the sound range.
    pub high: f64,
}

impl Evidence {
    /// A number with its sound range.
    pub fn new(what: impl Into<String>, value: f64, low: f64, high: f64) -> Self {
        Self { what: what.into(), value, low, high }
    }
}

/// A remedy of a fault.
#[derive(Clone, PartialEq, Debug)]
pub struct Remedy {
    /// The remedy's name, such as `lower-rate`.
    pub name: &'static str,
    /// The change, as advice to a person.
    pub advice: String,
    /// The edits of a replay with the remedy; none if no replay can show it.
    pub edits: Vec<Edit>,
}

impl Remedy {
    /// A remedy by name.
    pub fn new(name: &'static str, advice: impl Into<String>, edits: Vec<Edit>) -> Self {
        Self { name, advice: advice.into(), edits }
    }
}

/// A rule's finding.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Paths of parameters or sites, or source lines.
    pub place: Vec<String>,
    /// The first update at which the fault shows.
    pub since: usize,
    /// The numbers that indicate the fault.
    pub evidence: Vec<Evidence>,
    /// The remedies, the best first.
    pub remedies: Vec<Remedy>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The fault's name, such as `rate-too-high`.
    pub fault: &'static str,
    /// The number that the rule compares.
    pub signal: &'static str,
    /// The bound beyond which the signal indicates the fault.
    pub bound: &'static str,
    /// The source of the bound.
    pub source: &'static str,
    /// The names of the remedies.
    pub remedies: &'static [&'static str],
    /// The rule itself.
    pub(super) find: fn(&Signs<'_>) -> Option<Found>,
}
