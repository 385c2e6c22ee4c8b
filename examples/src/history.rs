//! The history of a run's steps, and its form in a checkpoint.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use wgrad::{Array, Data};
use wgrad_nn::checkpoint::Arrays;

/// The largest number of steps whose profile is kept: a bound on the memory and the file of a long run.
const MOST_ROWS: usize = 4096;

/// A number per layer (or time step, or parameter), for the last steps and for the step with the largest gradient norm.
/// The numbers are kept as bits of f32.
#[derive(Clone, Default, Debug, PartialEq, Deserialize)]
struct Profile {
    /// The rows of the last fifth of the steps. If these are more than [`MOST_ROWS`], only every second, fourth.. step
    /// is kept; the number of steps alone decides which. See [`kept`].
    recent: VecDeque<Vec<u32>>,
    /// The row of the step with the largest gradient norm.
    at_peak: Vec<u32>,
}

/// The steps whose profile is kept after `steps` steps: the first one, counted from 0, and the stride.
fn kept(steps: usize) -> (usize, usize) {
    // A window of twice the last tenth, so that the rows of the last tenth are always there.
    let window = (steps / 5 + 1).min(steps);
    let stride = window.div_ceil(MOST_ROWS).next_power_of_two();
    ((steps - window).next_multiple_of(stride), stride)
}

/// The number of steps whose profile is kept after `steps` steps.
fn rows(steps: usize) -> usize {
    let (first, stride) = kept(steps);
    (steps - first).div_ceil(stride)
}

impl Profile {
    /// Drops the rows that are not kept after `steps` steps. The rows present start at step `first`, with this stride.
    fn thin(&mut self, steps: usize, (mut first, stride): (usize, usize)) {
        let (to, wanted) = kept(steps);
        if stride != wanted {
            let mut at = first;
            self.recent.retain(|_| {
                let keep = at.is_multiple_of(wanted);
                at += stride;
                keep
            });
            first = first.next_multiple_of(wanted);
        }
        let gone = to.saturating_sub(first).div_ceil(wanted).min(self.recent.len());
        self.recent.drain(..gone);
    }

    /// Adds the numbers of the last of `steps` steps. `peak` marks the largest gradient norm so far.
    fn push(&mut self, values: &[f64], steps: usize, peak: bool) {
        let values = bits(values);
        if peak {
            self.at_peak.clone_from(&values);
        }
        let before = kept(steps - 1);
        if (steps - 1).is_multiple_of(before.1) {
            self.recent.push_back(values);
        }
        self.thin(steps, before);
    }

    /// The median of each number over the last `last` of `all` steps.
    fn typical(&self, all: usize, last: usize) -> Vec<f64> {
        let (first, stride) = kept(all);
        let skipped = (all - last).saturating_sub(first).div_ceil(stride);
        let recent: Vec<&Vec<u32>> = self.recent.iter().skip(skipped).collect();
        let width = recent.first().map_or(0, |row| row.len());
        let column = |at: usize| recent.iter().map(|row| f32::from_bits(row[at]) as f64).collect();
        (0..width).map(|at| median(column(at))).collect()
    }

    /// The rows as a matrix of `width` columns.
    fn flat(&self, width: usize) -> Array {
        let values: Vec<f32> = self.recent.iter().flatten().map(|bits| f32::from_bits(*bits)).collect();
        Array::new([self.recent.len(), width], values)
    }

    fn width(&self) -> usize {
        self.recent.front().map_or(0, Vec::len)
    }

    /// Checks the profile of a run of `steps` steps with `width` numbers each; the error describes the damage.
    fn check(&self, what: &str, steps: usize, width: usize) -> Result<(), String> {
        let want = rows(steps);
        if self.recent.len() != want {
            return Err(format!("{what} of {} steps, where {want} of {steps} are kept", self.recent.len()));
        }
        // The peak is empty if no step's norm has been above 0.
        let peak = Some(&self.at_peak).filter(|peak| !peak.is_empty());
        for row in self.recent.iter().chain(peak) {
            if row.len() != width {
                return Err(format!("{} numbers of {what} for a step, where this run has {width}", row.len()));
            }
            if let Some(value) = row.iter().map(|bits| f32::from_bits(*bits)).find(|value| *value < 0.0) {
                return Err(format!("{what} has {value}, and a size is never below 0"));
            }
        }
        Ok(())
    }
}

/// The history of a run's steps. A checkpoint saves it bit for bit: see [`History::save`].
#[derive(Clone, Default, Debug, PartialEq)]
pub struct History {
    /// The bits of each step's loss, as f32.
    losses: Vec<u32>,
    /// The bits of each step's flow ratio, as f32.
    ratios: Vec<u32>,
    /// Mean |dL/dz| per layer or time step.
    flow: Profile,
    /// The gradient norm of each weight.
    weights: Profile,
    /// The bits of the largest global norm before all passes, as f64.
    grad_norm_max: u64,
    /// The bits of the largest global norm after all passes, as f64.
    applied_norm_max: u64,
    /// The number of steps whose gradient was clipped.
    pub clipped: usize,
}

/// The part of a history in a checkpoint's metadata. Numbers per step are in arrays.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Summary {
    grad_norm_max: u64,
    applied_norm_max: u64,
    clipped: usize,
}

/// A history in the former format of checkpoints, which held all of it in the metadata.
#[derive(Deserialize)]
struct Former {
    losses: Vec<u32>,
    ratios: Vec<u32>,
    flow: Profile,
    weights: Profile,
    grad_norm_max: u64,
    applied_norm_max: u64,
    clipped: usize,
}

/// The names of the arrays in a checkpoint.
const LOSSES: &str = "history/losses";
const RATIOS: &str = "history/flow_ratios";
const FLOW: [&str; 2] = ["history/flow", "history/flow_at_peak"];
const WEIGHTS: [&str; 2] = ["history/weights", "history/weights_at_peak"];

/// The measurements of one step.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The loss.
    pub loss: f64,
    /// The global gradient norm before all passes.
    pub grad_norm: f64,
    /// The global norm of the gradient that the optimizer received; 0 if the step was skipped.
    pub applied_norm: f64,
    /// Mean |dL/dz| per layer or time step, first to last.
    pub flow: &'a [f64],
    /// The gradient norm of each weight.
    pub weights: &'a [f64],
}

/// The mean of the first third divided by the mean of the last third; 0 if the first third is 0, even if the last third
/// is 0 too.
pub fn flow_ratio(flow: &[f64]) -> f64 {
    let third = (flow.len() / 3).max(1).min(flow.len());
    let sum = |part: &[f64]| part.iter().sum::<f64>();
    let (first, last) = (sum(&flow[..third]), sum(&flow[flow.len() - third..]));
    if first == 0.0 { 0.0 } else { first / last }
}

/// Raises a maximum that is kept as bits; returns true if it rose. NaN counts as the largest value.
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

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|b| f32::from_bits(*b)).collect()
}

fn values(bits: &[u32]) -> Vec<f64> {
    bits.iter().map(|b| f32::from_bits(*b) as f64).collect()
}

/// The median of the values that are not NaN; NaN if there are none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|v| !v.is_nan());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl History {
    /// The history for a checkpoint: a short text for its metadata, and arrays.
    pub fn save(&self) -> (String, Arrays) {
        let Self { grad_norm_max, applied_norm_max, clipped, .. } = *self;
        let summary = Summary { grad_norm_max, applied_norm_max, clipped };
        let row = |bits: &[u32]| Array::new([bits.len()], floats(bits));
        let mut arrays = Arrays::from([(LOSSES.into(), row(&self.losses)), (RATIOS.into(), row(&self.ratios))]);
        for ([recent, at_peak], profile) in [(FLOW, &self.flow), (WEIGHTS, &self.weights)] {
            arrays.insert(recent.into(), profile.flat(profile.width()));
            arrays.insert(at_peak.into(), row(&profile.at_peak));
        }
        (serde_json::to_string(&summary).expect("integers serialize"), arrays)
    }

    /// Restores the history from a checkpoint, in the present format or the former one. `flow` and `weights` are the
    /// numbers per step.
    ///
    /// # Errors
    /// The damage, as the end of a sentence: "it has ..".
    pub fn restore(text: &str, arrays: &Arrays, flow: usize, weights: usize) -> Result<Self, String> {
        let history = if arrays.keys().any(|name| name.starts_with("history/")) {
            Self::of_arrays(text, arrays)?
        } else {
            Self::of_text(text)?
        };
        history.check(flow, weights)?;
        Ok(history)
    }

    fn of_arrays(text: &str, arrays: &Arrays) -> Result<Self, String> {
        let summary: Summary =
            serde_json::from_str(text).map_err(|error| format!("no summary that reads ({error})"))?;
        let Summary { grad_norm_max, applied_norm_max, clipped } = summary;
        let floats = |name: &str, rank: usize| {
            let array = arrays.get(name).ok_or_else(|| format!("no {name:?}"))?;
            match array.data() {
                Data::F32(values) if array.shape().rank() == rank => Ok((array.shape(), values)),
                _ => {
                    let (dtype, shape) = (array.dtype(), array.shape());
                    Err(format!("{name:?} as {dtype}{shape}, where f32 in {rank} dimensions is kept"))
                }
            }
        };
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        let row = |name: &str| Ok::<_, String>(bits(floats(name, 1)?.1));
        let profile = |[recent, at_peak]: [&str; 2]| {
            let (shape, values) = floats(recent, 2)?;
            let row_of = |at: usize| bits(&values[at * shape[1]..][..shape[1]]);
            // Rows of width 0 take no bytes in a file, so a small file could claim any number of them.
            if shape[0] > MOST_ROWS {
                return Err(format!("{recent:?} of {} steps, where {MOST_ROWS} are kept at most", shape[0]));
            }
            Ok(Profile { recent: (0..shape[0]).map(row_of).collect(), at_peak: row(at_peak)? })
        };
        let (losses, ratios, flow, weights) = (row(LOSSES)?, row(RATIOS)?, profile(FLOW)?, profile(WEIGHTS)?);
        Ok(Self { losses, ratios, flow, weights, grad_norm_max, applied_norm_max, clipped })
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let former: Former = serde_json::from_str(text).map_err(|error| format!("none that reads ({error})"))?;
        let Former { losses, ratios, mut flow, mut weights, grad_norm_max, applied_norm_max, clipped } = former;
        let steps = losses.len();
        for profile in [&mut flow, &mut weights] {
            let rows = profile.recent.len();
            if rows != (steps / 5 + 1).min(steps) {
                return Err(format!("a profile of {rows} of {steps} steps"));
            }
            profile.thin(steps, (steps - rows, 1));
        }
        Ok(Self { losses, ratios, flow, weights, grad_norm_max, applied_norm_max, clipped })
    }

    /// Checks that steps can have made this history; the error describes the damage.
    fn check(&self, flow: usize, weights: usize) -> Result<(), String> {
        let steps = self.len();
        let (ratios, clipped) = (self.ratios.len(), self.clipped);
        if ratios != steps {
            return Err(format!("{steps} losses and {ratios} flow ratios"));
        }
        if clipped > steps {
            return Err(format!("{clipped} clipped steps among {steps}"));
        }
        let float = |bits: &u32| f32::from_bits(*bits);
        // A run ends at a non-finite loss, so only the last loss may be non-finite.
        let before = &self.losses[..steps.saturating_sub(1)];
        if let Some(at) = before.iter().position(|bits| !float(bits).is_finite()) {
            return Err(format!("the loss {} at step {}, and {steps} steps", float(&before[at]), at + 1));
        }
        if let Some(ratio) = self.ratios.iter().map(float).find(|ratio| *ratio < 0.0) {
            return Err(format!("the flow ratio {ratio}, and a ratio of sizes is never below 0"));
        }
        if let Some(norm) = [self.grad_norm_max(), self.applied_norm_max()].into_iter().find(|norm| *norm < 0.0) {
            return Err(format!("the norm {norm}, and a norm is never below 0"));
        }
        self.flow.check("the flow", steps, flow)?;
        self.weights.check("the weights", steps, weights)
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

    /// True if no step has been made.
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

    /// The loss of each step.
    pub fn losses(&self) -> Vec<f64> {
        values(&self.losses)
    }

    /// The number of steps in the last tenth.
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

    /// True if the standard deviation of the loss over the last tenth of steps is at most its mean.
    pub fn settled(&self) -> bool {
        let (mean, deviation) = self.recent_loss();
        deviation <= mean
    }

    /// The median flow ratio over the last tenth of steps.
    pub fn flow_ratio(&self) -> f64 {
        median(values(&self.ratios[self.len() - self.tenth()..]))
    }

    /// The median of mean |dL/dz| over the last tenth of steps, per layer or time step. If the last tenth has more than
    /// about two thousand steps, the median is over an even sample of them.
    pub fn typical_flow(&self) -> Vec<f64> {
        self.flow.typical(self.len(), self.tenth())
    }

    /// Mean |dL/dz| at the step of the largest gradient norm.
    pub fn flow_at_peak(&self) -> Vec<f64> {
        values(&self.flow.at_peak)
    }

    /// The median gradient norm of each weight over the last tenth of steps, or over the same sample of them.
    pub fn typical_weights(&self) -> Vec<f64> {
        self.weights.typical(self.len(), self.tenth())
    }

    /// The gradient norm of each weight at the step of the largest global norm.
    pub fn weights_at_peak(&self) -> Vec<f64> {
        values(&self.weights.at_peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

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

    /// A history of `steps` steps with falling losses, two numbers of flow and one weight.
    fn made(steps: usize) -> History {
        let mut history = History::default();
        for step in 0..steps {
            let (flow, loss) = ([0.1 * step as f64, f64::INFINITY], 1.0 / (step as f64 + 5.0));
            history.push(Observed { loss, ..observed(&flow, &[step as f64]) });
        }
        history
    }

    #[test]
    fn a_history_survives_bit_for_bit() {
        let not_a_number = f32::from_bits(0x7fc0_1234);
        for steps in [0, 1, 37] {
            let mut history = made(steps);
            history.push(Observed { loss: not_a_number.into(), ..observed(&[not_a_number.into(), 0.0], &[2.0]) });
            let (text, arrays) = history.save();
            assert_eq!(History::restore(&text, &arrays, 2, 1), Ok(history));
        }
        let (text, arrays) = History::default().save();
        assert_eq!(History::restore(&text, &arrays, 2, 1), Ok(History::default()));
    }

    /// A history in the former format, from a checkpoint: three steps, the last with a loss of NaN.
    const FORMER: &str = concat!(
        r#"{"losses":[1077936128,1073741824,2143289344],"ratios":[1056964608,1056964608,1056964608],"#,
        r#""flow":{"recent":[[1056964608,1065353216]],"at_peak":[1056964608,1065353216]},"#,
        r#""weights":{"recent":[[1077936128]],"at_peak":[1077936128]},"#,
        r#""grad_norm_max":4611686018427387904,"applied_norm_max":4607182418800017408,"clipped":3}"#
    );

    #[test]
    fn a_history_of_the_former_form_is_restored() {
        let mut history = History::default();
        for loss in [3.0, 2.0, f64::NAN] {
            history.push(Observed { loss, grad_norm: 2.0, applied_norm: 1.0, flow: &[0.5, 1.0], weights: &[3.0] });
        }
        assert_eq!(History::restore(FORMER, &Arrays::new(), 2, 1), Ok(history));
        for (from, to) in [
            ("1077936128,1073741824,2143289344", "1077936128,2143289344,1073741824"),
            ("[[1056964608,1065353216]]", "[[1056964608,1065353216],[1056964608,1065353216]]"),
            ("[[1077936128]]", "[[]]"),
            (r#""clipped":3"#, r#""clipped":4"#),
            (r#","clipped":3"#, ""),
        ] {
            assert!(FORMER.contains(from));
            assert!(History::restore(&FORMER.replace(from, to), &Arrays::new(), 2, 1).is_err(), "{to}");
        }
    }

    #[test]
    fn a_damaged_history_says_what_is_wrong() {
        let (text, arrays) = made(10).save();
        assert!(History::restore(&text, &arrays, 2, 1).is_ok());
        let refused = |text: &str, arrays: &Arrays, (flow, weights), why: &str| {
            let error = History::restore(text, arrays, flow, weights).expect_err(why);
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        };
        refused(&text, &arrays, (3, 1), "2 numbers of the flow for a step, where this run has 3");
        refused(&text, &arrays, (2, 2), "1 numbers of the weights for a step, where this run has 2");
        refused(&text.replace(":0}", ":11}").replace(":10}", ":11}"), &arrays, (2, 1), "11 clipped steps among 10");
        refused("{}", &arrays, (2, 1), "no summary that reads");
        let nan_at = |at: usize| (0..10).map(|i| if i == at { f32::NAN } else { 1.0 }).collect::<Vec<f32>>();
        for (name, array, why) in [
            (LOSSES, Some(Array::new([10], nan_at(3))), "the loss NaN at step 4, and 10 steps"),
            (LOSSES, Some(Array::new([9], vec![1f32; 9])), "9 losses and 10 flow ratios"),
            (LOSSES, Some(Array::new([10], vec![1f64; 10])), "as f64[10], where f32 in 1 dimensions"),
            (LOSSES, Some(Array::new([10, 1], vec![1f32; 10])), "as f32[10, 1], where f32 in 1 dimensions"),
            (RATIOS, Some(Array::new([10], vec![-1f32; 10])), "the flow ratio -1"),
            (RATIOS, None, "no \"history/flow_ratios\""),
            (FLOW[0], Some(Array::new([2, 2], vec![1f32; 4])), "the flow of 2 steps, where 3 of 10 are kept"),
            (FLOW[0], Some(Array::new([3, 2], vec![-1f32; 6])), "the flow has -1"),
            (FLOW[1], Some(Array::new([1], vec![1f32])), "1 numbers of the flow for a step"),
            (WEIGHTS[0], Some(Array::new([1 << 40, 0], Vec::<f32>::new())), "4096 are kept at most"),
        ] {
            let mut bad = arrays.clone();
            match array {
                Some(array) => bad.insert(name.into(), array),
                None => bad.remove(name),
            };
            refused(&text, &bad, (2, 1), why);
        }
        let last = Array::new([10], nan_at(9));
        let ended = [arrays, Arrays::from([(LOSSES.to_string(), last)])].into_iter().flatten().collect();
        assert!(History::restore(&text, &ended, 2, 1).is_ok(), "a run may end at such a loss");
    }

    #[test]
    fn a_long_history_keeps_an_even_sample_of_its_profile() {
        let steps = 100_000;
        let history = made(steps);
        let kept: Vec<f32> = history.weights.recent.iter().map(|row| f32::from_bits(row[0])).collect();
        assert!(kept.len() > MOST_ROWS / 2 && kept.len() <= MOST_ROWS, "{}", kept.len());
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == 8.0), "{kept:?}");
        assert!(kept[0] - 79_999.0 < 8.0 && 100_000.0 - kept[kept.len() - 1] <= 8.0, "{kept:?}");
        let middle = history.typical_weights()[0];
        assert_abs_diff_eq!(middle, 95_000.0, epsilon = 8.0);
        let (text, arrays) = history.save();
        assert_eq!(History::restore(&text, &arrays, 2, 1), Ok(history));
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
