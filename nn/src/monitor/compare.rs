//! Statistics of runs' histories: a bound for the norm of gradients, and the comparison of two runs.

use crate::numbers::{deviation, mean};
use std::fmt;

/// A bound for the global norm of gradients, from a history of norms before any clip: the norm that 5 % of updates
/// exceed, rounded to one digit. `None` if no norm is finite and above 0.
///
/// ```
/// # use wgrad_nn::suggest_max_norm;
/// let norms: Vec<f64> = (0..100).map(|i| 0.5 + 1.5 * i as f64 / 99.0).collect();
/// assert_eq!(suggest_max_norm(&norms), Some(2.0));
/// ```
pub fn suggest_max_norm(norms: &[f64]) -> Option<f64> {
    let mut known: Vec<f64> = norms.iter().copied().filter(|norm| norm.is_finite() && *norm > 0.0).collect();
    known.sort_by(f64::total_cmp);
    let usual = *known.get(known.len().checked_sub(1)? * 95 / 100)?;
    let digit = 10f64.powf(usual.log10().floor());
    Some((usual / digit).round() * digit)
}

/// The number of losses over which the slope is taken.
const SLOPE: usize = 50;

/// The updates of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RunHistory<'a> {
    /// The loss of each update.
    pub losses: &'a [f64],
    /// The global norm of each gradient, before any clip.
    pub norms: &'a [f64],
}

/// A difference between two runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The mean norm of gradients is more than 10 times larger.
    LargerGradients,
    /// The mean norm of gradients is less than a tenth as large.
    SmallerGradients,
    /// The standard deviation of norms is less than half as large.
    Steadier,
    /// The standard deviation of norms is more than twice as large.
    Unsteadier,
    /// The mean of the last 10 losses is lower, or is finite only after the change.
    Better,
    /// The mean of the last 10 losses is higher, or is non-finite only after the change.
    Worse,
}

/// A run before and after a change, in numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// The mean norm of gradients, before and after.
    pub norm: [f64; 2],
    /// The standard deviation of norms.
    pub std: [f64; 2],
    /// The mean of the last 10 losses.
    pub loss: [f64; 2],
    /// The slope of the loss over the last 50 updates, by least squares: per update.
    pub slope: [f64; 2],
    /// The changes.
    pub changes: Vec<Change>,
}

fn last(values: &[f64], count: usize) -> &[f64] {
    &values[values.len().saturating_sub(count)..]
}

fn slope(losses: &[f64]) -> f64 {
    let (n, mean) = (losses.len() as f64, mean(losses));
    let middle = (n - 1.0) / 2.0;
    let (mut products, mut squares) = (0.0, 0.0);
    for (at, loss) in losses.iter().enumerate() {
        products += (at as f64 - middle) * (loss - mean);
        squares += (at as f64 - middle).powi(2);
    }
    products / squares
}

/// Compares a run before a change, such as a remedy, with a run after it. A history of norms with a NaN gives no change
/// of norms.
///
/// # Panics
/// If a history has fewer than 2 updates.
#[track_caller]
pub fn compare(before: RunHistory<'_>, after: RunHistory<'_>) -> Comparison {
    let both = [before, after];
    for of in both {
        let (losses, norms) = (of.losses.len(), of.norms.len());
        assert!(losses.min(norms) >= 2, "compare: {losses} losses and {norms} norms: needs at least 2");
    }
    let norm = both.map(|of| mean(of.norms));
    let spread = both.map(|of| deviation(of.norms));
    let loss = both.map(|of| mean(last(of.losses, 10)));
    let slope = both.map(|of| slope(last(of.losses, SLOPE)));
    let better = loss[1] < loss[0] || (slope[1] < slope[0] && !loss[0].is_finite());
    let better = better || (loss[1].is_finite() && !loss[0].is_finite());
    let worse = loss[1] > loss[0] || (loss[0].is_finite() && !loss[1].is_finite());
    let rules = [
        (norm[1] > 10.0 * norm[0], Change::LargerGradients),
        (norm[1] < norm[0] / 10.0, Change::SmallerGradients),
        (spread[1] < spread[0] / 2.0, Change::Steadier),
        (spread[1] > 2.0 * spread[0], Change::Unsteadier),
        (better, Change::Better),
        (!better && worse, Change::Worse),
    ];
    let changes = rules.into_iter().filter_map(|(holds, change)| holds.then_some(change)).collect();
    Comparison { norm, std: spread, loss, slope, changes }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::LargerGradients => "gradients are more than 10 times larger",
            Change::SmallerGradients => "gradients are less than a tenth as large",
            Change::Steadier => "gradients are steadier",
            Change::Unsteadier => "gradients are less steady",
            Change::Better => "the loss is lower",
            Change::Worse => "the loss is higher",
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |[before, after]: [f64; 2]| format!("{before:>12.4e} {after:>12.4e}");
        writeln!(f, "{:<34} {:>12} {:>12}", "", "before", "after")?;
        writeln!(f, "{:<34} {}", "mean norm of gradients", row(self.norm))?;
        writeln!(f, "{:<34} {}", "standard deviation of norms", row(self.std))?;
        writeln!(f, "{:<34} {}", "mean of the last 10 losses", row(self.loss))?;
        write!(f, "{:<34} {}", "slope of the last 50 losses", row(self.slope))?;
        self.changes.iter().try_for_each(|change| write!(f, "\n- {change}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_usual_norms() {
        let ramp =
            |low: f64, high: f64| -> Vec<f64> { (0..200).map(|i| low + (high - low) * i as f64 / 199.0).collect() };
        assert_eq!(suggest_max_norm(&ramp(5.0, 10.0)), Some(10.0));
        assert_eq!(suggest_max_norm(&ramp(0.001, 0.004)), Some(0.004));
        // A few spikes and non-finite norms do not move the bound.
        let mut spiky = ramp(0.5, 2.0);
        spiky.extend([1e6, f64::NAN, f64::INFINITY, 0.0]);
        assert_eq!(suggest_max_norm(&spiky), Some(2.0));
        assert_eq!(suggest_max_norm(&[f64::NAN, 0.0]), None);
        assert_eq!(suggest_max_norm(&[]), None);
    }

    #[test]
    fn a_line_has_its_slope() {
        let line: Vec<f64> = (0..50).map(|i| 3.0 - 0.25 * i as f64).collect();
        assert!((slope(&line) + 0.25).abs() < 1e-12);
    }

    #[test]
    fn what_has_changed_is_told() {
        let falling: Vec<f64> = (0..60).map(|i| 3.0 - 0.04 * i as f64).collect();
        let flat = vec![3.0; 60];
        let wild: Vec<f64> = (0..60).map(|i| if i % 2 == 0 { 1.0 } else { 199.0 }).collect();
        let calm: Vec<f64> = (0..60).map(|i| 1.0 + 0.01 * (i % 3) as f64).collect();
        let (sick, cured) = (RunHistory { losses: &flat, norms: &wild }, RunHistory { losses: &falling, norms: &calm });
        assert_eq!(compare(sick, cured).changes, [Change::SmallerGradients, Change::Steadier, Change::Better]);
        assert_eq!(compare(cured, sick).changes, [Change::LargerGradients, Change::Unsteadier, Change::Worse]);
        assert_eq!(compare(sick, sick).changes, []);
        let dead = vec![f64::NAN; 60];
        let dead = RunHistory { losses: &dead, norms: &calm };
        assert_eq!(compare(dead, cured).changes, [Change::Better]);
        assert_eq!(compare(cured, dead).changes, [Change::Worse]);
        assert_eq!(compare(dead, dead).changes, []);
        let text = compare(sick, cured).to_string();
        assert!(text.contains("before") && text.ends_with("- the loss is lower"), "{text}");
    }
}
