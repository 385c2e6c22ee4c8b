//! Alerts from the loss of a run: the loss is non-finite, spikes, is unsteady, or stands still.

use crate::numbers::{deviation, mean, median};
use std::{collections::VecDeque, fmt};

/// The number of losses that a loss is compared with, to find a spike.
const RECENT: usize = 50;
/// The fewest losses that suffice for the comparison.
const FEWEST: usize = 20;
/// The number of median deviations above the median at which a loss is a spike.
const SPIKE: f64 = 10.0;
/// The number of losses over which steadiness is judged.
const STEADY: usize = 10;
/// The change over a window, as a share of the loss, below which the loss stands still.
const STILL: f64 = 0.01;

/// An alert from a loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LossAlert {
    /// The loss is NaN or infinite.
    NonFinite {
        /// The loss.
        loss: f64,
    },
    /// The loss is above the median of the last 50 by more than 10 times their median deviation.
    Spike {
        /// The loss.
        loss: f64,
        /// The median.
        usual: f64,
    },
    /// The standard deviation of the last 10 losses is more than twice their mean.
    Unsteady {
        /// The standard deviation.
        std: f64,
        /// The mean.
        mean: f64,
    },
    /// The median of the last third of the window is within 1 % of that of the first third.
    Plateau {
        /// The median of the first third.
        first: f64,
        /// The median of the last third.
        last: f64,
    },
}

impl LossAlert {
    /// The name of the alert.
    pub fn name(&self) -> &'static str {
        match self {
            LossAlert::NonFinite { .. } => "non-finite",
            LossAlert::Spike { .. } => "spike",
            LossAlert::Unsteady { .. } => "unsteady",
            LossAlert::Plateau { .. } => "plateau",
        }
    }
}

impl fmt::Display for LossAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossAlert::NonFinite { loss } => write!(f, "the loss is {loss}"),
            LossAlert::Spike { loss, usual } => write!(f, "the loss is {loss:.4}, and was about {usual:.4}"),
            LossAlert::Unsteady { std, mean } => {
                write!(f, "the loss is unsteady: {mean:.4} on average, with a standard deviation of {std:.4}")
            }
            LossAlert::Plateau { first, last } => write!(f, "the loss stands still: {first:.4} before, {last:.4} now"),
        }
    }
}

/// Watches a loss. Each alert is given once when it begins, and again only after it has passed.
///
/// ```
/// use wgrad_nn::{LossAlert, LossWatch};
/// let mut watch = LossWatch::default();
/// for step in 0..60 {
///     assert_eq!(watch.push(2.0 / (1.0 + 0.1 * step as f64)), vec![]);
/// }
/// assert!(matches!(watch.push(3.0)[..], [LossAlert::Spike { .. }]));
/// ```
#[derive(Clone, Debug)]
pub struct LossWatch {
    window: usize,
    losses: VecDeque<f64>,
    /// The names of alerts that have begun and not passed.
    active: Vec<&'static str>,
}

impl Default for LossWatch {
    /// A watch with a window of 100 losses.
    fn default() -> Self {
        Self::new(100)
    }
}

impl LossWatch {
    /// A watch with a window of `window` losses. A loss that hardly changes over the window stands still.
    ///
    /// # Panics
    /// If the window is below 3.
    #[track_caller]
    pub fn new(window: usize) -> Self {
        assert!(window >= 3, "loss watch: a window of {window} losses has no thirds: needs at least 3");
        Self { window, losses: VecDeque::new(), active: vec![] }
    }

    /// Takes the loss of an update, and gives the alerts that begin with it.
    pub fn push(&mut self, loss: f64) -> Vec<LossAlert> {
        let spike = self.spike(loss);
        if loss.is_finite() {
            self.losses.push_back(loss);
            if self.losses.len() > self.window.max(RECENT) {
                self.losses.pop_front();
            }
        }
        let non_finite = (!loss.is_finite()).then_some(LossAlert::NonFinite { loss });
        let seen = [non_finite, spike, self.unsteady(), self.plateau()];
        let now: Vec<LossAlert> = seen.into_iter().flatten().collect();
        let begun = now.iter().filter(|alert| !self.active.contains(&alert.name())).copied().collect();
        self.active = now.iter().map(LossAlert::name).collect();
        begun
    }

    fn last(&self, count: usize) -> Option<Vec<f64>> {
        let skipped = self.losses.len().checked_sub(count)?;
        Some(self.losses.iter().skip(skipped).copied().collect())
    }

    fn spike(&self, loss: f64) -> Option<LossAlert> {
        let recent = self.last(RECENT.min(self.losses.len())).filter(|recent| recent.len() >= FEWEST)?;
        let usual = median(recent.iter().copied());
        // Losses that are all alike have no deviation: without this bound, any other loss would be a spike.
        let spread = median(recent.iter().map(|loss| (loss - usual).abs())).max(STILL * usual.abs());
        (loss.is_finite() && loss > usual + SPIKE * spread).then_some(LossAlert::Spike { loss, usual })
    }

    fn unsteady(&self) -> Option<LossAlert> {
        let last = self.last(STEADY)?;
        let (mean, std) = (mean(&last), deviation(&last));
        (std > 2.0 * mean.abs()).then_some(LossAlert::Unsteady { std, mean })
    }

    /// Compares thirds by their medians, as single losses of small batches differ by more than the loss falls in a
    /// window.
    fn plateau(&self) -> Option<LossAlert> {
        let last = self.last(self.window)?;
        let third = self.window / 3;
        let (first, last) = (median(last[..third].iter().copied()), median(last[last.len() - third..].iter().copied()));
        ((last - first).abs() <= STILL * first.abs()).then_some(LossAlert::Plateau { first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The updates at which alerts begin, with their names.
    fn alerts(window: usize, losses: impl Iterator<Item = f64>) -> Vec<(usize, &'static str)> {
        let mut watch = LossWatch::new(window);
        let at = |(step, loss)| -> Vec<_> { watch.push(loss).iter().map(|alert| (step, alert.name())).collect() };
        losses.enumerate().flat_map(at).collect()
    }

    fn noise(step: usize) -> f64 {
        (step as f64 * 12.9898).sin() * 0.1
    }

    #[test]
    fn a_loss_that_falls_gives_none() {
        assert_eq!(alerts(100, (0..400).map(|s| 2.0 * (-0.01 * s as f64).exp() * (1.0 + noise(s)))), []);
    }

    #[test]
    fn alerts_begin_once_and_may_come_again() {
        let losses = (0..90).map(|s| match s {
            40 | 41 | 60 => 50.0,
            70 | 71 => f64::NAN,
            _ => 5.0 - 0.02 * s as f64 + noise(s),
        });
        assert_eq!(alerts(1000, losses), [(40, "spike"), (60, "spike"), (70, "non-finite")]);
    }

    #[test]
    fn a_loss_that_stands_still_is_told_of_and_one_that_rises_is_not() {
        assert_eq!(alerts(30, (0..80).map(|s| 2.3 + 0.01 * noise(s))), [(29, "plateau")]);
        assert_eq!(alerts(30, (0..80).map(|s| 2.3 + 0.01 * s as f64)), []);
    }

    #[test]
    fn signs_that_alternate_are_unsteady() {
        let losses = (0..30).map(|s| if s % 2 == 0 { 3.0 } else { -2.9 });
        assert_eq!(alerts(1000, losses).first(), Some(&(9, "unsteady")));
    }

    #[test]
    fn too_few_losses_tell_nothing() {
        assert_eq!(alerts(100, [1.0, 1.0, 1.0, 100.0].into_iter()), []);
    }
}
