//! Rules: which signal, beyond which bound, speaks for which fault, and what cures it.

mod data;
mod model;
mod program;
mod table;
mod training;

pub use table::RULES;

use super::signs::Signs;
use crate::train::Edit;

/// A number that speaks for a fault, beside the range in which it is sound.
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// The number's name.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The least that is sound.
    pub low: f64,
    /// The most that is sound.
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
    /// Its name, one of the words of the specification.
    pub name: &'static str,
    /// The change, as advice to a person.
    pub advice: String,
    /// The edits of a replay; none where a replay cannot show it.
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
    /// The update from which on it shows.
    pub since: usize,
    /// The numbers.
    pub evidence: Vec<Evidence>,
    /// Its remedies, the best first.
    pub remedies: Vec<Remedy>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The fault, one of the words of the specification.
    pub fault: &'static str,
    /// The number that the rule compares.
    pub signal: &'static str,
    /// The bound beyond which it speaks.
    pub bound: &'static str,
    /// The source of the bound.
    pub source: &'static str,
    /// The cure, by name.
    pub remedies: &'static [&'static str],
    /// The rule itself.
    pub(super) find: fn(&Signs<'_>) -> Option<Found>,
}
