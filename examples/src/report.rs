//! The measures that a run is judged by, and the judgement.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What became of a run: the first of these that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The loss or a parameter is NaN or infinite.
    NonFinite,
    /// The loss ended above ten times its first value, or a gradient of norm above 100 was applied.
    Exploding,
    /// Gradients of the first third of layers (time steps) are below a hundredth of the last third's, and the target
    /// was missed.
    Vanishing,
    /// Over the last tenth of steps the loss spreads more than its mean.
    Unstable,
    /// The target was missed.
    Stalled,
    /// None of these.
    Healthy,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::NonFinite => "non-finite",
            Verdict::Exploding => "exploding",
            Verdict::Vanishing => "vanishing",
            Verdict::Unstable => "unstable",
            Verdict::Stalled => "stalled",
            Verdict::Healthy => "healthy",
        })
    }
}

/// A gradient of a larger norm than this counts as explosion when it is applied.
const EXPLODING_NORM: f64 = 100.0;
/// A loss that ends above this many times its first value has diverged.
const DIVERGED: f64 = 10.0;
/// A flow ratio below this counts as vanishing.
const VANISHING_RATIO: f64 = 0.01;

/// How a metric is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metric {
    /// Its name in the report.
    pub name: &'static str,
    /// What the healthy configuration reaches with a margin.
    pub target: f64,
    /// Whether more is better.
    pub rising: bool,
}

impl Metric {
    /// Whether a value is as good as a bound; NaN never is.
    pub fn reaches(&self, value: f64, bound: f64) -> bool {
        if self.rising { value >= bound } else { value <= bound }
    }
}

/// What a run remembers of each step. It is saved with a checkpoint, bit for bit.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The bits of each step's loss, as f32.
    losses: Vec<u32>,
    /// The bits of each step's flow ratio, as f32.
    ratios: Vec<u32>,
    /// The bits of each step's mean |dL/dz| per layer or time step, as f32, for the last tenth of steps or more.
    flows: std::collections::VecDeque<Vec<u32>>,
    /// The same at the step of the largest gradient norm.
    flow_at_peak: Vec<u32>,
    /// The bits of the largest global norm before all passes, as f64.
    grad_norm_max: u64,
    /// The bits of the largest global norm after all passes, as f64.
    applied_norm_max: u64,
    /// How many steps were clipped.
    pub clipped: usize,
}

/// What one step has shown.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The loss.
    pub loss: f64,
    /// The global gradient norm before all passes.
    pub grad_norm: f64,
    /// The global gradient norm that the optimizer was given.
    pub applied_norm: f64,
    /// Mean |dL/dz| per layer or time step, first to last.
    pub flow: &'a [f64],
}

/// The mean of the first third over the mean of the last third.
pub fn flow_ratio(flow: &[f64]) -> f64 {
    let third = (flow.len() / 3).max(1);
    let sum = |part: &[f64]| part.iter().sum::<f64>();
    sum(&flow[..third]) / sum(&flow[flow.len() - third..])
}

/// Raises a maximum, kept as bits, and says whether it rose. NaN counts as largest.
fn raise(max: &mut u64, value: f64) -> bool {
    let known = f64::from_bits(*max);
    let rises = !known.is_nan() && (value.is_nan() || value > known);
    if rises {
        *max = value.to_bits();
    }
    rises
}

fn bits(values: &[f64]) -> Vec<u32> {
    values.iter().map(|v| (*v as f32).to_bits()).collect()
}

fn values(bits: &[u32]) -> Vec<f64> {
    bits.iter().map(|b| f32::from_bits(*b) as f64).collect()
}

/// The middle value of those that are not NaN; NaN if there is none.
fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|v| !v.is_nan());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl History {
    /// Reads what a checkpoint says, where each step's flow has this many values. `None` if it is no history, or one
    /// that contradicts itself.
    pub fn restore(text: &str, flow: usize) -> Option<Self> {
        let history: Self = serde_json::from_str(text).ok()?;
        let steps = history.len();
        let fits = history.ratios.len() == steps
            && history.clipped <= steps
            && history.flows.len() <= steps
            && history.flows.is_empty() == (steps == 0)
            && history.flows.iter().all(|values| values.len() == flow)
            // No step's norm has been above 0.
            && (history.flow_at_peak.len() == flow || history.flow_at_peak.is_empty());
        fits.then_some(history)
    }

    /// Adds a step.
    pub fn push(&mut self, step: Observed<'_>) {
        self.losses.push((step.loss as f32).to_bits());
        self.ratios.push((flow_ratio(step.flow) as f32).to_bits());
        self.flows.push_back(bits(step.flow));
        // Half as many again as the last tenth, so that nothing is lost when the run ends.
        while self.flows.len() > self.losses.len() / 5 + 1 {
            self.flows.pop_front();
        }
        if raise(&mut self.grad_norm_max, step.grad_norm) {
            self.flow_at_peak = bits(step.flow);
        }
        raise(&mut self.applied_norm_max, step.applied_norm);
        self.clipped += (step.applied_norm < step.grad_norm) as usize;
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.losses.len()
    }

    /// Whether no step has been made.
    pub fn is_empty(&self) -> bool {
        self.losses.is_empty()
    }

    /// The largest global norm before all passes.
    pub fn grad_norm_max(&self) -> f64 {
        f64::from_bits(self.grad_norm_max)
    }

    /// The largest global norm after all passes.
    pub fn applied_norm_max(&self) -> f64 {
        f64::from_bits(self.applied_norm_max)
    }

    /// The last step's loss.
    pub fn last_loss(&self) -> Option<f64> {
        self.losses.last().map(|bits| f32::from_bits(*bits) as f64)
    }

    /// Every step's loss.
    pub fn losses(&self) -> Vec<f64> {
        values(&self.losses)
    }

    fn last_tenth<T>(&self, of: &[T]) -> usize {
        of.len() - self.len().div_ceil(10).min(of.len())
    }

    /// Mean and standard deviation of the loss over the last tenth of steps.
    pub fn recent_loss(&self) -> (f64, f64) {
        let recent = values(&self.losses[self.last_tenth(&self.losses)..]);
        let n = recent.len() as f64;
        let mean = recent.iter().sum::<f64>() / n;
        let variance = recent.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    /// Whether the loss spreads no more than its mean over the last tenth of steps.
    pub fn settled(&self) -> bool {
        let (mean, deviation) = self.recent_loss();
        deviation <= mean
    }

    /// The median flow ratio over the last tenth of steps.
    pub fn flow_ratio(&self) -> f64 {
        median(values(&self.ratios[self.last_tenth(&self.ratios)..]))
    }

    /// The median of mean |dL/dz| over the last tenth of steps, per layer or time step.
    pub fn typical_flow(&self) -> Vec<f64> {
        let recent: Vec<Vec<f64>> = self.flows.iter().rev().take(self.len().div_ceil(10)).map(|f| values(f)).collect();
        let width = recent.first().map_or(0, Vec::len);
        (0..width).map(|t| median(recent.iter().map(|flow| flow[t]).collect())).collect()
    }

    /// Mean |dL/dz| at the step of the largest gradient norm.
    pub fn flow_at_peak(&self) -> Vec<f64> {
        values(&self.flow_at_peak)
    }
}

/// What is known of a run besides its history.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The metric.
    pub metric: Metric,
    /// Its value on held-out data.
    pub value: f64,
    /// Whether every parameter is finite.
    pub finite_params: bool,
    /// Milliseconds per training step, the median.
    pub ms_per_step: f64,
}

/// A run's report: the JSON object of `spec`, one field after another.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The example.
    pub example: &'static str,
    /// The case.
    pub case: String,
    /// The cure.
    pub fix: String,
    /// The device.
    pub device: String,
    /// The seed.
    pub seed: u64,
    /// The steps made.
    pub steps: usize,
    /// The loss of the first step.
    pub loss_first: f64,
    /// The loss of the last step; null where it is not finite, as for every number here.
    pub loss_last: f64,
    /// The metric on held-out data.
    pub metric: f64,
    /// Its name.
    pub metric_name: &'static str,
    /// What the healthy configuration reaches with a margin.
    pub target: f64,
    /// Whether this run reached it.
    pub reached: bool,
    /// Whether the loss or a parameter turned non-finite, or the loss ended above ten times its first value.
    pub diverged: bool,
    /// The largest global norm before all passes.
    pub grad_norm_max: f64,
    /// The largest global norm after all passes.
    pub applied_norm_max: f64,
    /// Mean |dL/dz| of the first third of layers over the last third, the median over the last tenth of steps.
    pub flow_ratio: f64,
    /// The judgement.
    pub verdict: Verdict,
    /// Milliseconds per training step, the median.
    pub ms_per_step: f64,
}

/// What a run was asked to be.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The example.
    pub example: &'static str,
    /// The case.
    pub case: String,
    /// The cure.
    pub fix: String,
    /// The device.
    pub device: String,
    /// The seed.
    pub seed: u64,
}

impl Report {
    /// Judges a run.
    pub fn new(identity: Identity, history: &History, ending: &Ending) -> Self {
        let losses = history.losses();
        let (loss_first, loss_last) = (losses[0], losses[losses.len() - 1]);
        let non_finite = !ending.finite_params || losses.iter().any(|loss| !loss.is_finite());
        let diverged = non_finite || loss_last > DIVERGED * loss_first;
        let reached = ending.metric.reaches(ending.value, ending.metric.target);
        let flow_ratio = history.flow_ratio();
        // The first that holds, in the order of the specification.
        let rules = [
            (non_finite, Verdict::NonFinite),
            (diverged || history.applied_norm_max() > EXPLODING_NORM, Verdict::Exploding),
            (flow_ratio < VANISHING_RATIO && !reached, Verdict::Vanishing),
            (!history.settled(), Verdict::Unstable),
            (!reached, Verdict::Stalled),
        ];
        let verdict = rules.into_iter().find(|(holds, _)| *holds).map_or(Verdict::Healthy, |(_, verdict)| verdict);
        let Identity { example, case, fix, device, seed } = identity;
        Self {
            example,
            case,
            fix,
            device,
            seed,
            steps: history.len(),
            loss_first,
            loss_last,
            metric: ending.value,
            metric_name: ending.metric.name,
            target: ending.metric.target,
            reached,
            diverged,
            grad_norm_max: history.grad_norm_max(),
            applied_norm_max: history.applied_norm_max(),
            flow_ratio,
            verdict,
            ms_per_step: ending.ms_per_step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(losses: &[f64], norm: f64, flow: &[f64], value: f64) -> Report {
        let mut history = History::default();
        for &loss in losses {
            history.push(Observed { loss, grad_norm: norm, applied_norm: norm, flow });
        }
        let metric = Metric { name: "accuracy", target: 0.9, rising: true };
        let ending = Ending { metric, value, finite_params: true, ms_per_step: 1.0 };
        let (case, fix, device) = ("healthy".into(), "none".into(), "cpu".into());
        Report::new(Identity { example: "rnn", case, fix, device, seed: 0 }, &history, &ending)
    }

    #[test]
    fn the_first_rule_that_holds_decides() {
        let even = [1.0; 6];
        let vanishing = [1e-4, 1e-4, 1.0, 1.0, 1.0, 1.0];
        let falling: Vec<f64> = (0..40).map(|i| 2.0 - i as f64 * 0.04).collect();
        let mut spiky = falling.clone();
        spiky[38] = 9.0;
        for (losses, norm, flow, value, want) in [
            (&falling, 1.0, &even, 0.95, Verdict::Healthy),
            (&falling, 1.0, &even, 0.5, Verdict::Stalled),
            (&spiky, 1.0, &even, 0.95, Verdict::Unstable),
            (&falling, 1.0, &vanishing, 0.5, Verdict::Vanishing),
            (&falling, 1.0, &vanishing, 0.95, Verdict::Healthy),
            (&falling, 101.0, &vanishing, 0.95, Verdict::Exploding),
            (&vec![1.0, 1.0, 11.0], 1.0, &even, 0.95, Verdict::Exploding),
            (&vec![1.0, f64::NAN, 1.0], 1.0, &even, 0.95, Verdict::NonFinite),
            (&falling, f64::NAN, &even, 0.95, Verdict::Healthy),
        ] {
            let report = report(losses, norm, flow, value);
            assert_eq!(report.verdict, want, "{report:?}");
        }
    }

    #[test]
    fn a_nan_norm_is_not_forgotten() {
        let mut history = History::default();
        for norm in [1.0, f64::NAN, 2.0] {
            history.push(Observed { loss: 1.0, grad_norm: norm, applied_norm: 1.0, flow: &[1.0] });
        }
        assert!(history.grad_norm_max().is_nan());
    }

    #[test]
    fn history_survives_json_bit_for_bit() {
        let mut history = History::default();
        for step in 0..37 {
            let flow = [0.1 * step as f64, f64::INFINITY, 3.0];
            history.push(Observed { loss: 1.0 / (step as f64 - 5.0), grad_norm: 0.3, applied_norm: 0.1, flow: &flow });
        }
        let text = serde_json::to_string(&history).expect("serializes");
        assert_eq!(History::restore(&text, 3).expect("it fits"), history);
    }

    #[test]
    fn a_history_that_contradicts_itself_is_not_restored() {
        let mut history = History::default();
        assert_eq!(History::restore(&serde_json::to_string(&history).expect("serializes"), 2), Some(history.clone()));
        for _ in 0..10 {
            history.push(Observed { loss: 1.0, grad_norm: 0.3, applied_norm: 0.1, flow: &[1.0, 2.0] });
        }
        let good = serde_json::to_value(&history).expect("serializes");
        assert!(History::restore(&good.to_string(), 2).is_some());
        assert!(History::restore(&good.to_string(), 3).is_none(), "the flow of another network");
        for (field, value) in [
            ("ratios", serde_json::json!([0])),
            ("flows", serde_json::json!([])),
            ("flows", serde_json::json!([[0, 0], [0]])),
            ("flows", serde_json::json!(vec![[0, 0]; 11])),
            ("flow_at_peak", serde_json::json!([0])),
            ("clipped", serde_json::json!(usize::MAX)),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(History::restore(&bad.to_string(), 2).is_none(), "{bad}");
        }
    }
}
