//! What a run remembers of its steps.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Numbers of each layer (or time step, or parameter), of the last steps and of the one with the largest gradient; as bits of
/// f32.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
struct Profile {
    /// Those of the last tenth of steps or more.
    recent: VecDeque<Vec<u32>>,
    /// Those of the step of the largest gradient norm.
    at_peak: Vec<u32>,
}

impl Profile {
    /// Whether there are `width` numbers of each step.
    fn fits(&self, steps: usize, width: usize) -> bool {
        self.recent.len() <= steps
            && self.recent.is_empty() == (steps == 0)
            && self.recent.iter().all(|values| values.len() == width)
            // No step's norm has been above 0.
            && (self.at_peak.len() == width || self.at_peak.is_empty())
    }

    fn push(&mut self, values: &[f64], steps: usize, peak: bool) {
        let values = bits(values);
        if peak {
            self.at_peak.clone_from(&values);
        }
        self.recent.push_back(values);
        // Half as many again as the last tenth, so that nothing is lost when the run ends.
        while self.recent.len() > steps / 5 + 1 {
            self.recent.pop_front();
        }
    }

    /// The median of each number over the last steps.
    fn typical(&self, steps: usize) -> Vec<f64> {
        let recent: Vec<Vec<f64>> = self.recent.iter().rev().take(steps).map(|v| values(v)).collect();
        let width = recent.first().map_or(0, Vec::len);
        (0..width).map(|at| median(recent.iter().map(|values| values[at]).collect())).collect()
    }
}

/// What a run remembers of each step. It is saved with a checkpoint, bit for bit.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The bits of each step's loss, as f32.
    losses: Vec<u32>,
    /// The bits of each step's flow ratio, as f32.
    ratios: Vec<u32>,
    /// Mean |dL/dz| per layer or time step.
    flow: Profile,
    /// The norm of the gradient per weight.
    weights: Profile,
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
    /// The global gradient norm that the optimizer was given; 0 where the step was not taken.
    pub applied_norm: f64,
    /// Mean |dL/dz| per layer or time step, first to last.
    pub flow: &'a [f64],
    /// The norm of the gradient of each weight.
    pub weights: &'a [f64],
}

/// The mean of the first third over the mean of the last third; 0 where nothing reaches the first, be it that nothing leaves
/// the last.
pub fn flow_ratio(flow: &[f64]) -> f64 {
    let third = (flow.len() / 3).max(1).min(flow.len());
    let sum = |part: &[f64]| part.iter().sum::<f64>();
    let (first, last) = (sum(&flow[..third]), sum(&flow[flow.len() - third..]));
    if first == 0.0 { 0.0 } else { first / last }
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
    /// Reads what a checkpoint says, where each step has this many numbers of its flow and of its weights. `None` if it is no
    /// history, or one that contradicts itself.
    pub fn restore(text: &str, flow: usize, weights: usize) -> Option<Self> {
        let history: Self = serde_json::from_str(text).ok()?;
        let steps = history.len();
        let fits = history.ratios.len() == steps
            && history.clipped <= steps
            && history.flow.fits(steps, flow)
            && history.weights.fits(steps, weights);
        fits.then_some(history)
    }

    /// Adds a step.
    pub fn push(&mut self, step: Observed<'_>) {
        self.losses.push((step.loss as f32).to_bits());
        self.ratios.push((flow_ratio(step.flow) as f32).to_bits());
        let (steps, peak) = (self.len(), raise(&mut self.grad_norm_max, step.grad_norm));
        self.flow.push(step.flow, steps, peak);
        self.weights.push(step.weights, steps, peak);
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

    /// How many steps make the last tenth.
    fn tenth(&self) -> usize {
        self.len().div_ceil(10)
    }

    /// Mean and standard deviation of the loss over the last tenth of steps.
    pub fn recent_loss(&self) -> (f64, f64) {
        let recent = values(&self.losses[self.len() - self.tenth()..]);
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
        median(values(&self.ratios[self.len() - self.tenth()..]))
    }

    /// The median of mean |dL/dz| over the last tenth of steps, per layer or time step.
    pub fn typical_flow(&self) -> Vec<f64> {
        self.flow.typical(self.tenth())
    }

    /// Mean |dL/dz| at the step of the largest gradient norm.
    pub fn flow_at_peak(&self) -> Vec<f64> {
        values(&self.flow.at_peak)
    }

    /// The median norm of the gradient over the last tenth of steps, per weight.
    pub fn typical_weights(&self) -> Vec<f64> {
        self.weights.typical(self.tenth())
    }

    /// The norm of the gradient per weight, at the step of the largest gradient norm.
    pub fn weights_at_peak(&self) -> Vec<f64> {
        values(&self.weights.at_peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed<'a>(flow: &'a [f64], weights: &'a [f64]) -> Observed<'a> {
        Observed { loss: 1.0, grad_norm: 0.3, applied_norm: 0.1, flow, weights }
    }

    #[test]
    fn a_nan_norm_is_not_forgotten() {
        let mut history = History::default();
        for grad_norm in [1.0, f64::NAN, 2.0] {
            history.push(Observed { grad_norm, ..observed(&[1.0], &[]) });
        }
        assert!(history.grad_norm_max().is_nan());
    }

    #[test]
    fn history_survives_json_bit_for_bit() {
        let mut history = History::default();
        for step in 0..37 {
            let flow = [0.1 * step as f64, f64::INFINITY, 3.0];
            history.push(Observed { loss: 1.0 / (step as f64 - 5.0), ..observed(&flow, &[2.0]) });
        }
        let text = serde_json::to_string(&history).expect("serializes");
        assert_eq!(History::restore(&text, 3, 1).expect("it fits"), history);
    }

    #[test]
    fn a_history_that_contradicts_itself_is_not_restored() {
        let mut history = History::default();
        let text = serde_json::to_string(&history).expect("serializes");
        assert_eq!(History::restore(&text, 2, 1), Some(history.clone()));
        for _ in 0..10 {
            history.push(observed(&[1.0, 2.0], &[3.0]));
        }
        let good = serde_json::to_value(&history).expect("serializes");
        assert!(History::restore(&good.to_string(), 2, 1).is_some());
        assert!(History::restore(&good.to_string(), 3, 1).is_none(), "the flow of another network");
        assert!(History::restore(&good.to_string(), 2, 2).is_none(), "the weights of another network");
        for (field, of, value) in [
            ("ratios", None, serde_json::json!([0])),
            ("flow", Some("recent"), serde_json::json!([])),
            ("flow", Some("recent"), serde_json::json!([[0, 0], [0]])),
            ("flow", Some("recent"), serde_json::json!(vec![[0, 0]; 11])),
            ("flow", Some("at_peak"), serde_json::json!([0])),
            ("weights", Some("recent"), serde_json::json!([[0, 0]])),
            ("clipped", None, serde_json::json!(usize::MAX)),
        ] {
            let mut bad = good.clone();
            match of {
                Some(part) => bad[field][part] = value,
                None => bad[field] = value,
            }
            assert!(History::restore(&bad.to_string(), 2, 1).is_none(), "{bad}");
        }
    }

    #[test]
    fn medians_and_peaks_are_by_number() {
        let mut history = History::default();
        for step in 0..30 {
            let (norm, at) = (if step == 3 { 9.0 } else { 1.0 }, step as f64);
            history.push(Observed { grad_norm: norm, ..observed(&[at, 1.0], &[10.0 * at]) });
        }
        assert_eq!((history.typical_flow(), history.flow_at_peak()), (vec![28.0, 1.0], vec![3.0, 1.0]));
        assert_eq!((history.typical_weights(), history.weights_at_peak()), (vec![280.0], vec![30.0]));
    }
}
