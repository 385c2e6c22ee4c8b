//! The live display of a run: a block of lines that stays in its place on a terminal.

use crate::cli::Common;
use console::{Term, truncate_str};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};
use wgrad_nn::{Forecast, LossWatch, Update, track::Alert};

/// The time between two drawings.
const BETWEEN: Duration = Duration::from_millis(100);
/// The number of columns of a sparkline, and the largest number of columns of the flow.
const SPARK: usize = 24;
const FLOW: usize = 48;
/// The blocks by height, and the mark of a non-finite value.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ODD: char = '×';
/// The lowest and the highest magnitude of gradients in the drawing of the flow, as powers of 10.
const FLOW_RANGE: [f64; 2] = [-10.0, 2.0];

/// An even sample of a number over a whole run.
#[derive(Clone, Debug)]
struct Spark {
    values: Vec<f64>,
    /// The number of updates per kept number.
    stride: usize,
    seen: usize,
    log: bool,
}

impl Spark {
    fn new(log: bool) -> Self {
        Self { values: vec![], stride: 1, seen: 0, log }
    }

    fn push(&mut self, value: f64) {
        if self.seen.is_multiple_of(self.stride) {
            self.values.push(value);
        }
        self.seen += 1;
        if self.values.len() > 16 * SPARK {
            self.values = self.values.iter().step_by(2).copied().collect();
            self.stride *= 2;
        }
    }

    /// A block for each column. Its height is the mean over a part of the run, scaled between the lowest and the
    /// highest column.
    fn line(&self) -> String {
        let per = self.values.len().div_ceil(SPARK).max(1);
        let at = |value: &f64| if self.log { value.log10() } else { *value };
        let mean = |part: &[f64]| part.iter().map(at).sum::<f64>() / part.len() as f64;
        let columns: Vec<f64> = self.values.chunks(per).map(mean).collect();
        let finite = || columns.iter().copied().filter(|value| value.is_finite());
        let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        columns.iter().map(|value| block(*value, low, high)).collect()
    }
}

fn block(value: f64, low: f64, high: f64) -> char {
    if !value.is_finite() {
        return ODD;
    }
    let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
    BLOCKS[((share * BLOCKS.len() as f64) as usize).min(BLOCKS.len() - 1)]
}

/// The live display of a run.
#[derive(Debug)]
pub struct Live {
    bar: ProgressBar,
    /// The number of samples per step.
    batch: usize,
    metric_name: &'static str,
    metric: f64,
    loss: Spark,
    norm: Spark,
    last: Option<Update>,
    flow: Vec<f64>,
    clipped: usize,
    updates: usize,
    watch: LossWatch,
    forecast: Forecast,
    alert: Option<(usize, Alert)>,
    drawn: Option<Instant>,
}

impl Live {
    /// A display for a run of `steps` steps, of which `made` are made already. Nothing is drawn if the display is not
    /// wanted, or if standard error is no terminal.
    pub fn new(wanted: bool, steps: usize, made: usize, batch: usize, metric_name: &'static str) -> Self {
        let target = if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let style = ProgressStyle::with_template("{wide_bar:.cyan} {pos}/{len}  {eta} left\n{msg}");
        bar.set_style(style.expect("the template is sound"));
        bar.set_position(made as u64);
        bar.reset_eta();
        Self {
            bar,
            batch,
            metric_name,
            metric: f64::NAN,
            loss: Spark::new(false),
            norm: Spark::new(true),
            last: None,
            flow: vec![],
            clipped: 0,
            updates: 0,
            watch: LossWatch::default(),
            forecast: Forecast::default(),
            alert: None,
            drawn: None,
        }
    }

    /// True if the command line allows a live display.
    pub fn is_wanted(common: &Common) -> bool {
        !common.quiet && !common.json
    }

    /// Adds an update.
    pub fn update(&mut self, step: usize, update: &Update) {
        if self.bar.is_hidden() {
            return;
        }
        self.updates += 1;
        self.clipped += usize::from(update.clipped == Some(true));
        self.loss.push(update.loss);
        self.norm.push(update.grad_norm);
        let alerts = self.watch.push(update.loss);
        let found = alerts.last().map(Alert::from).or(self.forecast.update(update).as_ref().map(Alert::from));
        self.alert = found.map(|alert| (step, alert)).or(self.alert.take());
        self.last = Some(update.clone());
    }

    /// Replaces the flow of gradients by that of a measured update: layers, or time steps, first to last.
    pub fn flow(&mut self, flow: &[f64]) {
        if !self.bar.is_hidden() {
            self.flow = flow.to_vec();
        }
    }

    /// Replaces the metric on held-out data.
    pub fn metric(&mut self, value: f64) {
        self.metric = value;
    }

    /// Draws the block after `steps` steps, unless it was drawn less than [`BETWEEN`] ago.
    pub fn show(&mut self, steps: usize) {
        if self.bar.is_hidden() || self.drawn.is_some_and(|at| at.elapsed() < BETWEEN) {
            return;
        }
        self.drawn = Some(Instant::now());
        let width = usize::from(Term::stderr().size().1);
        self.bar.set_position(steps as u64);
        self.bar.set_message(self.lines(width, self.bar.per_sec()).join("\n"));
    }

    /// Shows the progress of a replay with a remedy: `steps` of `length` steps, and the remedy's name.
    pub fn replay(&mut self, name: &str, steps: usize, length: usize) {
        if self.bar.is_hidden() || self.drawn.is_some_and(|at| at.elapsed() < BETWEEN) {
            return;
        }
        self.drawn = Some(Instant::now());
        self.bar.set_length(length as u64);
        self.bar.set_position(steps as u64);
        self.bar.set_message(format!("The same steps again: {name}"));
    }

    /// Removes the block, so that the results can be printed.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// The lines below the bar, cut to the width of the terminal.
    fn lines(&self, width: usize, steps_per_second: f64) -> Vec<String> {
        let Some(last) = &self.last else { return vec![] };
        let (loss, norm) = (self.loss.line(), self.norm.line());
        let metric =
            if self.metric.is_nan() { String::new() } else { format!("  {} {:.3}", self.metric_name, self.metric) };
        let rate = steps_per_second * self.batch as f64;
        let clipped = match last.clipped {
            Some(_) => format!("  clipped {:.0} %", 100.0 * self.clipped as f64 / self.updates.max(1) as f64),
            None => String::new(),
        };
        let mut lines = vec![
            format!("loss {:>10.4}  {loss:<SPARK$}{metric}  {rate:.0} samples/s", last.loss),
            format!("norm {:>10.2e}  {norm:<SPARK$}{clipped}", last.grad_norm),
        ];
        if let [first, .., end] = self.flow[..] {
            let per = self.flow.len().div_ceil(FLOW);
            let [low, high] = FLOW_RANGE;
            let column = |part: &[f64]| {
                let mean = part.iter().sum::<f64>() / part.len() as f64;
                if mean == 0.0 { ' ' } else { block(mean.log10(), low, high) }
            };
            let blocks: String = self.flow.chunks(per).map(column).collect();
            lines.push(format!("flow {first:>10.1e}  {blocks}  {end:.1e}, first to last layer"));
        }
        if let Some((step, alert)) = &self.alert {
            lines.push(format!("! step {step}: {}", alert.message));
        }
        lines.iter().map(|line| truncate_str(line, width, "…").into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(loss: f64, grad_norm: f64) -> Update {
        Update { run: 0, loss, grad_norm, clipped: Some(grad_norm > 1.0), taken: true, loss_scale: 1.0, profile: None }
    }

    #[test]
    fn a_sparkline_goes_over_the_whole_run_and_marks_what_is_not_finite() {
        let mut spark = Spark::new(false);
        (0..8).for_each(|step| spark.push(f64::from(step)));
        assert_eq!(spark.line(), "▁▂▃▄▅▆▇█");
        (8..100_000).for_each(|step| spark.push(f64::from(step)));
        let line = spark.line();
        assert!(line.starts_with('▁') && line.ends_with('█') && (12..=SPARK).contains(&line.chars().count()), "{line}");
        assert!(spark.values.len() <= 16 * SPARK);
        let mut log = Spark::new(true);
        [1e-4, 1.0, f64::NAN, 1e4].into_iter().for_each(|value| log.push(value));
        assert_eq!(log.line(), "▁▅×█");
    }

    #[test]
    fn a_block_fits_its_terminal_and_tells_what_goes_on() {
        let mut live = Live::new(false, 100, 0, 10, "accuracy");
        assert!(live.lines(80, 1.0).is_empty(), "nothing is known");
        live.last = Some(update(0.5, 2.0));
        (live.updates, live.clipped, live.flow) = (4, 1, vec![1e-8, 0.0, 1e-2]);
        live.metric(0.75);
        live.loss.push(0.5);
        live.norm.push(2.0);
        live.alert = Some((3, Alert { kind: "spike".into(), message: "the loss is 9, and was about 1".into() }));
        let lines = live.lines(120, 3.0);
        assert!(
            lines[0].starts_with("loss     0.5000  ▁") && lines[0].ends_with("accuracy 0.750  30 samples/s"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("norm     2.00e0  ▁") && lines[1].ends_with("clipped 25 %"), "{lines:?}");
        assert_eq!(lines[2], "flow     1.0e-8  ▂ ▆  1.0e-2, first to last layer");
        assert_eq!(lines[3], "! step 3: the loss is 9, and was about 1");
        let narrow = live.lines(30, 3.0);
        assert!(narrow.iter().all(|line| line.chars().count() <= 30), "{narrow:?}");
    }
}
