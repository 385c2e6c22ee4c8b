//! The summary of a recorded run.

use crate::{Result, history::flow_ratio};
use serde::Serialize;
use std::path::{Path, PathBuf};
use wgrad_nn::track::{End, Run};

/// The summary of a recorded run.
#[derive(Serialize, Debug)]
pub struct Summary {
    /// The folder or file of the run.
    pub run: String,
    /// The command that made it.
    pub command: Option<String>,
    /// The end of the run.
    pub end: &'static str,
    /// The number of updates made.
    pub updates: usize,
    /// The first loss.
    pub loss_first: Option<f64>,
    /// The median loss over the last tenth of updates.
    pub loss_last: Option<f64>,
    /// The name of the metric.
    pub metric_name: String,
    /// The last value of the metric.
    pub metric: Option<f64>,
    /// The largest finite norm of the gradient, before clipping.
    pub norm_max: Option<f64>,
    /// The share of updates that were clipped; `None` for a run that does not clip.
    pub clipped: Option<f64>,
    /// The number of skipped updates.
    pub skipped: usize,
    /// Mean |dL/dz| of the first third of layers or time steps divided by that of the last third, in the last
    /// measurement.
    pub flow_ratio: Option<f64>,
    /// The first line of the diagnosis.
    pub finding: Option<String>,
}

/// The file of metrics for a path: the path itself, or `metrics.jsonl` in a report's folder.
pub fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("metrics.jsonl") } else { path.into() }
}

/// Reads a run.
///
/// # Errors
/// As [`Run::read`].
pub fn read(path: &Path) -> Result<Run> {
    Ok(Run::read(file(path))?)
}

impl Summary {
    /// The summary of a run that was read from `path`.
    pub fn new(path: &Path, run: &Run) -> Self {
        let losses: Vec<f64> = run.updates.iter().map(|(_, update)| update.loss).collect();
        let last = losses[losses.len() - losses.len().div_ceil(10)..].to_vec();
        let clips: Vec<bool> = run.updates.iter().filter_map(|(_, update)| update.clipped).collect();
        let norms = run.updates.iter().map(|(_, update)| update.grad_norm).filter(|norm| norm.is_finite());
        let clipped = clips.iter().filter(|clipped| **clipped).count() as f64 / clips.len() as f64;
        Self {
            run: path.display().to_string(),
            command: run.setting("command").map(ToString::to_string),
            end: run.end.map_or("no end", End::name),
            updates: losses.len(),
            loss_first: losses.first().copied(),
            loss_last: (!losses.is_empty()).then(|| crate::history::median(last)),
            metric_name: run.metric.clone(),
            metric: run.judged(),
            norm_max: norms.reduce(f64::max),
            clipped: (!clips.is_empty()).then_some(clipped),
            skipped: run.updates.iter().filter(|(_, update)| !update.taken).count(),
            flow_ratio: run.flow.last().filter(|(_, flow)| flow.len() > 1).map(|(_, flow)| flow_ratio(flow)),
            finding: run.finding.as_ref().and_then(|text| text.lines().next()).map(String::from),
        }
    }
}

/// A number with about four significant digits; an empty text for `None`.
pub fn digits(value: Option<f64>) -> String {
    let Some(value) = value else { return String::new() };
    if value == 0.0 {
        return "0".into();
    }
    if (1e-2..1e5).contains(&value.abs()) || !value.is_finite() {
        let whole = value.abs().max(1.0).log10().floor().max(0.0);
        let places = if whole.is_finite() { 3 - (whole as usize).min(3) } else { 0 };
        return format!("{value:.places$}");
    }
    format!("{value:.2e}")
}

/// Text of rows whose columns are as wide as their cells need.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::digits;

    #[test]
    fn numbers_have_four_digits() {
        let of = |value: f64| digits(Some(value));
        assert_eq!([of(0.0), of(1.0), of(12.346), of(1234.6), of(54321.0)], ["0", "1.000", "12.35", "1235", "54321"]);
        assert_eq!([of(0.012), of(0.0012), of(-2.5), of(1e9)], ["0.012", "1.20e-3", "-2.500", "1.00e9"]);
        assert_eq!([of(f64::NAN), of(f64::INFINITY), digits(None)], ["NaN", "inf", ""]);
    }
}
