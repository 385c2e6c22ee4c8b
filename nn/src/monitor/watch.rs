//! The share of updates on which a clip acts.

use std::collections::VecDeque;
use wgrad::{Lint, Pitfall, Taps};

/// The number of updates over which the share of clipped ones is taken.
const WINDOW: usize = 100;
/// Above this share nearly every update is clipped.
const OFTEN: f64 = 0.95;
/// After this number of updates without a clipped one, the clip counts as idle.
const PATIENCE: usize = 1000;
/// The tap of [`wgrad::Grads::clip_by_global_norm`], true if the clip acted.
const TAP: &str = "clip_by_global_norm/clipped";

/// Counts how often gradients are clipped, and reports a clip that acts nearly always ([`Pitfall::ClipAlwaysOrNever`]:
/// the bound, not the gradient, then sets the step's length) or never ([`Pitfall::IdleClip`]).
///
/// ```
/// use wgrad_nn::ClipWatch;
/// let mut watch = ClipWatch::default();
/// (0..100).for_each(|_| watch.push(true));
/// let lint = watch.lint().expect("every update was clipped");
/// assert!(lint.to_string().starts_with("P34 (lint): 100 of the last 100 updates were clipped"));
/// ```
#[derive(Clone, Default, Debug)]
pub struct ClipWatch {
    last: VecDeque<bool>,
    updates: usize,
    clipped: usize,
}

impl ClipWatch {
    /// Takes the taps of a run. Taps without a clip by the global norm do not count.
    pub fn observe(&mut self, taps: &Taps) {
        if let Some(clipped) = taps.scalar(TAP) {
            self.push(clipped != 0.0);
        }
    }

    /// Takes an update, clipped or not.
    pub fn push(&mut self, clipped: bool) {
        self.updates += 1;
        self.clipped += usize::from(clipped);
        self.last.push_back(clipped);
        if self.last.len() > WINDOW {
            self.last.pop_front();
        }
    }

    /// The fault of the bound: more than 95 of the last 100 updates were clipped, or none of at least 1,000.
    pub fn lint(&self) -> Option<Lint> {
        let recent = self.last.iter().filter(|clipped| **clipped).count();
        let often = self.last.len() == WINDOW && recent as f64 > OFTEN * WINDOW as f64;
        let never = self.updates >= PATIENCE && self.clipped == 0;
        let (pitfall, message) = match (often, never) {
            (true, _) => {
                let share = format!("{recent} of the last {WINDOW} updates were clipped");
                (
                    Pitfall::ClipAlwaysOrNever,
                    format!("{share}: the bound sets the length of the step; choose one near the usual norm"),
                )
            }
            (_, true) => {
                let share = format!("none of {} updates was clipped", self.updates);
                (Pitfall::IdleClip, format!("{share}; leave the clip out, or lower its bound"))
            }
            _ => return None,
        };
        Some(Lint { pitfall, severity: pitfall.severity(), message, site: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lint(updates: usize, clipped: impl Fn(usize) -> bool) -> Option<Pitfall> {
        let mut watch = ClipWatch::default();
        (0..updates).for_each(|i| watch.push(clipped(i)));
        watch.lint().map(|lint| lint.pitfall)
    }

    #[test]
    fn nearly_always_and_never_are_told() {
        assert_eq!(lint(99, |_| true), None, "too few to tell");
        assert_eq!(lint(100, |i| i >= 4), Some(Pitfall::ClipAlwaysOrNever));
        assert_eq!(lint(100, |i| i >= 5), None, "95 of 100 are not above 95 %");
        assert_eq!(lint(300, |i| i < 200), None, "only the last 100 count");
        assert_eq!(lint(999, |_| false), None);
        assert_eq!(lint(1000, |_| false), Some(Pitfall::IdleClip));
        assert_eq!(lint(5000, |i| i == 0), None);
    }
}
