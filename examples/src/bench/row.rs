//! One result: a line of JSON in the format of the other frameworks' runners, or a row of a table.

use super::measure::{Losses, Timing};
use crate::{output, say};
use serde::Serialize;

/// One result.
#[derive(Serialize, Debug)]
pub struct Row {
    framework: &'static str,
    version: &'static str,
    backend: String,
    workload: &'static str,
    median_ms: f64,
    p10: f64,
    p90: f64,
    rss_mb: Option<f64>,
    rss_base_mb: Option<f64>,
    loss_first: Option<f64>,
    loss_last: Option<f64>,
    iters: usize,
    threads: usize,
    #[serde(skip_serializing_if = "is_one")]
    ranks: usize,
    first_step_ms: f64,
    note: String,
}

/// The conditions under which a result was measured.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// The backend: `cpu`, or `wgpu:` and the adapter's name.
    pub backend: String,
    /// The number of CPU threads, of each rank.
    pub threads: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The peak resident memory of the process before the model was made, in MiB.
    pub rss_base: Option<f64>,
    /// A remark for the reader of the result.
    pub note: String,
}

impl Row {
    /// A result by its name.
    pub fn new(workload: &'static str, timing: &Timing, losses: Losses, at: Circumstances) -> Self {
        let round = |value: f64, digits: i32| (value * 10f64.powi(digits)).round() / 10f64.powi(digits);
        Self {
            framework: "wgrad",
            version: env!("CARGO_PKG_VERSION"),
            backend: at.backend,
            workload,
            median_ms: round(timing.median, 4),
            p10: round(timing.p10, 4),
            p90: round(timing.p90, 4),
            rss_mb: timing.rss.map(|rss| round(rss, 1)),
            rss_base_mb: at.rss_base.map(|rss| round(rss, 1)),
            loss_first: losses.0,
            loss_last: losses.1,
            iters: timing.iters,
            threads: at.threads,
            ranks: at.ranks,
            first_step_ms: round(timing.first_step, 1),
            note: at.note,
        }
    }

    /// Prints the object on a line of its own.
    pub fn json(&self) {
        output::json(self);
    }

    /// Prints the row of the table that [`heading`] begins.
    pub fn text(&self) {
        let (first, last) = (shown(self.loss_first), shown(self.loss_last));
        say!(
            "{:<14} {:>10.3} {:>10.3} {:>10.3} {:>14} {:>14}",
            self.workload,
            self.median_ms,
            self.p10,
            self.p90,
            first,
            last
        );
    }
}

fn is_one(ranks: &usize) -> bool {
    *ranks == 1
}

/// A loss with at least six significant digits, or `-`.
fn shown(loss: Option<f64>) -> String {
    match loss {
        None => "-".into(),
        Some(loss) if (1e-1..1e5).contains(&loss.abs()) => format!("{loss:.6}"),
        Some(loss) => format!("{loss:.6e}"),
    }
}

/// Prints the heading of the table.
pub fn heading() {
    say!("{:<14} {:>10} {:>10} {:>10} {:>14} {:>14}", "ms", "median", "p10", "p90", "loss_first", "loss_last");
}
