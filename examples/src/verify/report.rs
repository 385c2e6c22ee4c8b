//! What is told of a set of vectors: a line for each that fails, then how many passed; or one JSON object.

use super::{Case, compare::Comparison};
use serde::Serialize;

/// How a vector ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As expected.
    Passed,
    /// Not as expected, or not at all.
    Failed,
    /// The device does not compute in its type.
    NotForThisDevice,
}

/// What is told of one vector.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// The operation.
    pub op: String,
    /// The type of its floats.
    pub dtype: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it failed: the tensor, the worst element, what came out, what is expected, and the bound; or a sentence.
    pub why: Option<String>,
    /// Half of its elements are at most this far from what is expected, relative to the largest magnitude expected in
    /// their tensor (absolute, where that is 0).
    pub error_median: Option<f64>,
    /// The greatest such distance.
    pub error_worst: Option<f64>,
}

impl Row {
    /// A row without errors.
    pub fn new(case: &Case, outcome: Outcome, why: Option<String>) -> Self {
        let Case { id, kind, op, dtype, .. } = case.clone();
        Self { id, kind, op, dtype, outcome, why, error_median: None, error_worst: None }
    }

    /// A row of a vector that has run, from the comparisons of its tensors.
    pub fn compared(case: &Case, comparisons: &[(String, Comparison)]) -> Self {
        let mismatches = comparisons.iter().filter_map(|(tensor, found)| Some((tensor, found.mismatch.as_ref()?)));
        // The first of equals.
        let worst = mismatches.reduce(|worst, other| if other.1.is_worse_than(worst.1) { other } else { worst });
        let outcome = if worst.is_some() { Outcome::Failed } else { Outcome::Passed };
        let mut errors: Vec<f64> = comparisons.iter().flat_map(|(_, found)| found.errors.iter().copied()).collect();
        errors.sort_by(f64::total_cmp);
        Self {
            error_median: errors.get(errors.len().saturating_sub(1) / 2).copied(),
            error_worst: errors.last().copied(),
            ..Self::new(case, outcome, worst.map(|(tensor, mismatch)| format!("{tensor}{mismatch}")))
        }
    }
}

/// What is told of a run, as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The device.
    pub device: String,
    /// The kind that was asked for.
    pub kind: Option<String>,
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many the device has no type for.
    pub not_for_this_device: usize,
    /// All of them.
    pub vectors: Vec<Row>,
}

impl Summary {
    /// Counts rows.
    pub fn new(device: String, kind: Option<String>, vectors: Vec<Row>) -> Self {
        let count = |outcome| vectors.iter().filter(|row| row.outcome == outcome).count();
        let (passed, failed) = (count(Outcome::Passed), count(Outcome::Failed));
        Self { device, kind, passed, failed, not_for_this_device: count(Outcome::NotForThisDevice), vectors }
    }

    /// The last line.
    pub fn line(&self) -> String {
        let rest = match self.not_for_this_device {
            0 => String::new(),
            count => format!(", {count} not for this device"),
        };
        format!("{} passed, {} failed{rest}", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_of_a_device_only_where_it_lacks_something() {
        let case: Case = serde_json::from_str(
            r#"{"id": "a", "kind": "op", "op": "exp", "dtype": "f64", "file": "f", "inputs": [], "expect": {}}"#,
        )
        .expect("a case");
        let line = |outcomes: &[Outcome]| {
            let rows = outcomes.iter().map(|outcome| Row::new(&case, *outcome, None)).collect();
            Summary::new("gpu".into(), None, rows).line()
        };
        use Outcome::{Failed, NotForThisDevice, Passed};
        assert_eq!(line(&[Passed, Failed, Passed]), "2 passed, 1 failed");
        assert_eq!(line(&[NotForThisDevice, Passed]), "1 passed, 0 failed, 1 not for this device");
    }
}
