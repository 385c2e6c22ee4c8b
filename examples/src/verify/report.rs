//! The report on a set of vectors: a line for each failure, then the counts; or one JSON object.

use super::{Case, compare::Comparison};
use serde::Serialize;

/// The outcome of a vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The results are as expected.
    Passed,
    /// The results are not as expected, or the vector could not be run.
    Failed,
    /// The device does not compute in the vector's type.
    NotForThisDevice,
}

/// The report on one vector.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The vector's name.
    pub id: String,
    /// The vector's kind.
    pub kind: String,
    /// The operation.
    pub op: String,
    /// The type of the vector's floats.
    pub dtype: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The failure: the tensor, the worst element, its actual and expected value, and the bound; or a sentence.
    pub why: Option<String>,
    /// The median distance of the elements from their expected values, relative to the largest expected magnitude of
    /// the tensor (absolute if that is 0).
    pub error_median: Option<f64>,
    /// The largest such distance.
    pub error_worst: Option<f64>,
}

impl Row {
    /// A row without errors.
    pub fn new(case: &Case, outcome: Outcome, why: Option<String>) -> Self {
        let Case { id, kind, op, dtype, .. } = case.clone();
        Self { id, kind, op, dtype, outcome, why, error_median: None, error_worst: None }
    }

    /// The row of a vector that has run, from the comparisons of its tensors.
    pub fn compared(case: &Case, comparisons: &[(String, Comparison)]) -> Self {
        let mismatches = comparisons.iter().filter_map(|(tensor, found)| Some((tensor, found.mismatch.as_ref()?)));
        // The first of several equally bad mismatches is shown.
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

/// The report on a run, as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The device.
    pub device: String,
    /// The kind that `--kind` asks for.
    pub kind: Option<String>,
    /// The number of vectors that passed.
    pub passed: usize,
    /// The number of vectors that failed.
    pub failed: usize,
    /// The number of vectors whose type the device does not compute in.
    pub not_for_this_device: usize,
    /// The rows of all vectors.
    pub vectors: Vec<Row>,
}

impl Summary {
    /// Counts the outcomes of the rows.
    pub fn new(device: String, kind: Option<String>, vectors: Vec<Row>) -> Self {
        let count = |outcome| vectors.iter().filter(|row| row.outcome == outcome).count();
        let (passed, failed) = (count(Outcome::Passed), count(Outcome::Failed));
        Self { device, kind, passed, failed, not_for_this_device: count(Outcome::NotForThisDevice), vectors }
    }

    /// The last line of the output, with the counts.
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
