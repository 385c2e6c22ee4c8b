//! The report of a run: its metrics, and the verdict on it.

use crate::history::History;
use serde::Serialize;
use std::fmt;

/// The verdict on a run: the first of these that holds.
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
    /// Over the last tenth of steps, the standard deviation of the loss is above its mean.
    Unstable,
    /// The target was missed.
    Stalled,
    /// None of the other verdicts holds.
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

/// A metric, its target, and its direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metric {
    /// The metric's name in the report.
    pub name: &'static str,
    /// The target, which the healthy configuration reaches with a margin.
    pub target: f64,
    /// True if a larger value is better.
    pub rising: bool,
}

impl Metric {
    /// True if a value is at least as good as a bound. NaN never is.
    pub fn reaches(&self, value: f64, bound: f64) -> bool {
        if self.rising { value >= bound } else { value <= bound }
    }
}

/// The facts about a run that its history does not have.
#[derive(Clone, Debug)]
pub struct Ending {
    /// The metric.
    pub metric: Metric,
    /// The metric's value on held-out data.
    pub value: f64,
    /// True if every parameter is finite.
    pub finite_params: bool,
    /// The median time of a training step, in milliseconds.
    pub ms_per_step: f64,
}

/// A run's report, whose fields are the JSON object that `--json` prints.
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
    /// The number of steps made.
    pub steps: usize,
    /// The loss of the first step.
    pub loss_first: f64,
    /// The loss of the last step. JSON has null for each non-finite number of the report.
    pub loss_last: f64,
    /// The metric on held-out data.
    pub metric: f64,
    /// The metric's name.
    pub metric_name: &'static str,
    /// The target, which the healthy configuration reaches with a margin.
    pub target: f64,
    /// True if the run reached the target.
    pub reached: bool,
    /// True if the loss or a parameter became non-finite, or the loss ended above ten times its first value.
    pub diverged: bool,
    /// The largest global norm before all passes.
    pub grad_norm_max: f64,
    /// The largest global norm after all passes.
    pub applied_norm_max: f64,
    /// Mean |dL/dz| of the first third of layers divided by that of the last third: the median over the last tenth of
    /// steps.
    pub flow_ratio: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// The median time of a training step, in milliseconds.
    pub ms_per_step: f64,
}

/// The settings that identify a run.
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
        // The order decides: the first rule that holds gives the verdict.
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
    use crate::history::Observed;

    fn report(losses: &[f64], norm: f64, flow: &[f64], value: f64) -> Report {
        let mut history = History::default();
        for &loss in losses {
            history.push(Observed { loss, grad_norm: norm, applied_norm: norm, flow, weights: &[] });
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
}
