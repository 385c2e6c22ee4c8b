//! A forecast: signs that a run is about to break, while it still goes on.

use crate::{Measurement, Update, numbers::median};
use std::{collections::VecDeque, fmt};

/// Updates that a sign is told by.
const WINDOW: usize = 20;
/// The share of the first loss that a median must have risen by, and its factor over the lowest, to be a rise.
const RISE: f64 = 0.2;
const RISE_FACTOR: f64 = 1.5;
/// The multiples of the first norm of gradients at which a norm that grows is a sign, and a break.
const GROWN: f64 = 10.0;
const BROKEN: f64 = 1e3;
/// A break that is more updates away than this is no reason to warn.
const AHEAD: f64 = 100.0;
/// The range of attention's scores from which on its growth is a sign, and at which attention is of one key each (Wortsman et
/// al. 2023).
const WIDE: f64 = 100.0;
const WIDEST: f64 = 1e4;
/// Measurements that growth of scores is told by.
const SCORES: usize = 5;
/// The share of itself that the running mean of norms keeps with each update (ZClip: Kumar et al. 2025, arXiv 2504.02507).
const KEEP: f64 = 0.97;

/// A sign that a run is about to break.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sign {
    /// The median loss of the last 20 updates is above the lowest such median by half of it, and by a fifth of the first loss.
    RisingLoss {
        /// The lowest median.
        lowest: f64,
        /// The present one.
        now: f64,
    },
    /// The norm of the gradient is 10 times that of the first updates, and will be 1000 times soon, and the loss does not fall.
    GrowingNorm {
        /// The median of the first updates.
        first: f64,
        /// The present median.
        now: f64,
    },
    /// The scores of attention range over more than 100, and will over 10,000 soon.
    GrowingScores {
        /// The present range.
        range: f64,
    },
}

/// A warning, before a run breaks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Warning {
    /// The update at which the sign has appeared, from 0 on.
    pub step: usize,
    /// The sign.
    pub sign: Sign,
    /// The update at which the run breaks if this goes on, where that can be told.
    pub breaks: Option<usize>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sign {
            Sign::RisingLoss { lowest, now } => write!(f, "the loss rises: {now:.3} now, and {lowest:.3} before")?,
            Sign::GrowingNorm { first, now } => {
                write!(f, "gradients grow: a norm of {now:.2e} now, and {first:.2e} at first")?
            }
            Sign::GrowingScores { range } => write!(f, "scores of attention grow: they range over {range:.0}")?,
        }
        match self.breaks {
            Some(step) => write!(f, "; at this pace the run breaks near step {step}"),
            None => Ok(()),
        }
    }
}

/// Watches a run for signs that it is about to break. Each sign is told once.
///
/// ```
/// # use wgrad::Taps;
/// # use wgrad_nn::{Forecast, Trainer};
/// # fn watch(trainer: &mut Trainer, taps: &[Taps], forecast: &mut Forecast) {
/// for update in trainer.updates(taps) {
///     if let Some(warning) = forecast.update(&update) {
///         println!("step {}: {warning}", warning.step);
///     }
/// }
/// # }
/// ```
#[derive(Clone, Default, Debug)]
pub struct Forecast {
    /// Updates seen.
    seen: usize,
    first_loss: f64,
    first_norms: Vec<f64>,
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
    /// The lowest median of losses before the present window.
    lowest: Option<f64>,
    /// The widest range of scores at each measurement, with its update.
    scores: VecDeque<(f64, f64)>,
    told: [bool; 3],
    /// The running mean and variance of norms, and the weight of those that the variance has.
    running: Option<[f64; 3]>,
    spike: f64,
}

impl Forecast {
    /// Takes an update, and gives the sign that appears with it.
    pub fn update(&mut self, update: &Update) -> Option<Warning> {
        let (loss, norm) = (update.loss, update.grad_norm);
        let step = self.seen;
        self.seen += 1;
        if !loss.is_finite() || !norm.is_finite() {
            return None;
        }
        self.score(norm);
        if self.losses.is_empty() {
            self.first_loss = loss.abs();
        }
        if self.first_norms.len() < 5 {
            self.first_norms.push(norm);
        }
        self.losses.push_back(loss);
        self.norms.push_back(norm);
        if self.losses.len() > 2 * WINDOW {
            self.losses.pop_front();
            self.norms.pop_front();
        }
        let seen = [self.rise(), self.growth()];
        self.tell(step, 0, seen[0]).or_else(|| self.tell(step, 1, seen[1]))
    }

    /// Takes a measurement of the update that was taken last, and gives the sign that appears with it.
    pub fn measurement(&mut self, measured: &Measurement) -> Option<Warning> {
        let step = self.seen.saturating_sub(1);
        let ranges = measured.sites.iter().filter_map(|site| site.scores).map(|scores| scores.high - scores.low);
        let widest = ranges.filter(|range| range.is_finite()).fold(0.0, f64::max);
        if widest > 0.0 {
            self.scores.push_back((step as f64, widest));
            if self.scores.len() > SCORES {
                self.scores.pop_front();
            }
        }
        let seen = self.widening();
        self.tell(step, 2, seen)
    }

    /// The number of standard deviations by which the last norm is above the running mean of those before it. ZClip clips
    /// steps with more than 2.5.
    pub fn spike_score(&self) -> f64 {
        self.spike
    }

    fn score(&mut self, norm: f64) {
        let [mean, variance, weight] = self.running.unwrap_or([norm, 0.0, 0.0]);
        // The first mean is no number apart: a variance of few norms is divided by what they weigh.
        self.spike = if variance > 0.0 { (norm - mean) / (variance / weight).sqrt() } else { 0.0 };
        let weigh = |old: f64, new: f64| KEEP * old + (1.0 - KEEP) * new;
        self.running = Some([weigh(mean, norm), weigh(variance, (norm - mean).powi(2)), weigh(weight, 1.0)]);
    }

    fn tell(&mut self, step: usize, which: usize, seen: Option<(Sign, Option<f64>)>) -> Option<Warning> {
        let (sign, away) = seen.filter(|_| !self.told[which])?;
        self.told[which] = true;
        Some(Warning { step, sign, breaks: away.map(|away| step + away.ceil() as usize) })
    }

    /// The medians of the last window and of the one before it.
    fn medians(of: &VecDeque<f64>) -> Option<[f64; 2]> {
        let part = |skipped: usize| median(of.iter().skip(skipped).take(WINDOW).copied());
        (of.len() == 2 * WINDOW).then(|| [part(0), part(WINDOW)])
    }

    fn rise(&mut self) -> Option<(Sign, Option<f64>)> {
        let [before, now] = Self::medians(&self.losses)?;
        let lowest = self.lowest.map_or(before, |known| known.min(before));
        self.lowest = Some(lowest);
        let rises = now > lowest + RISE * self.first_loss && now > RISE_FACTOR * lowest;
        rises.then_some((Sign::RisingLoss { lowest, now }, None))
    }

    fn growth(&self) -> Option<(Sign, Option<f64>)> {
        let [losses, norms] = [Self::medians(&self.losses)?, Self::medians(&self.norms)?];
        let (first, now) = (median(self.first_norms.iter().copied()), norms[1]);
        let pace = (now / norms[0]).log10() / WINDOW as f64;
        let away = (BROKEN * first / now).log10() / pace;
        let soon = pace > 0.0 && away < AHEAD && now > GROWN * first;
        (soon && losses[1] >= losses[0]).then_some((Sign::GrowingNorm { first, now }, Some(away.max(0.0))))
    }

    fn widening(&self) -> Option<(Sign, Option<f64>)> {
        let (first, last) = (self.scores.front()?, self.scores.back()?);
        let pace = (last.1 / first.1).log10() / (last.0 - first.0);
        let away = (WIDEST / last.1).log10() / pace;
        let soon = self.scores.len() == SCORES && pace > 0.0 && away < AHEAD && last.1 > WIDE;
        soon.then_some((Sign::GrowingScores { range: last.1 }, Some(away.max(0.0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ScoreMeasure, SiteMeasure};

    fn update(loss: f64, grad_norm: f64) -> Update {
        Update { run: 0, loss, grad_norm, clipped: None, taken: true, loss_scale: 1.0, profile: None }
    }

    fn warnings(run: impl Iterator<Item = (f64, f64)>) -> Vec<Warning> {
        let mut forecast = Forecast::default();
        run.filter_map(|(loss, norm)| forecast.update(&update(loss, norm))).collect()
    }

    fn noise(step: usize) -> f64 {
        1.0 + 0.3 * (step as f64 * 12.9898).sin()
    }

    #[test]
    fn a_run_that_learns_gives_no_warning() {
        let run = (0..500).map(|s| (2.0 * (-0.01 * s as f64).exp() * noise(s), 1.0 + 5.0 * noise(s)));
        assert_eq!(warnings(run), []);
        // A few spikes are not the median.
        let spiky = (0..500).map(|s| if s % 50 < 3 { (30.0, 1e5) } else { (2.0 / (1.0 + s as f64) * noise(s), 1.0) });
        assert_eq!(warnings(spiky), []);
    }

    #[test]
    fn a_loss_that_rises_again_is_told_of_once() {
        let run = (0..300).map(|s| (if s < 100 { 2.0 - 0.015 * s as f64 } else { 0.5 + 0.02 * (s - 100) as f64 }, 1.0));
        let found = warnings(run);
        assert_eq!(found.len(), 1);
        assert!(matches!(found[0].sign, Sign::RisingLoss { .. }) && (125..160).contains(&found[0].step), "{found:?}");
    }

    #[test]
    fn gradients_that_grow_are_told_of_with_the_step_at_which_they_break_the_run() {
        let run = (0..200).map(|s| (2.0, 10f64.powf(s as f64 / 50.0)));
        let found = warnings(run);
        assert_eq!(found.len(), 1);
        let Warning { step, sign, breaks } = found[0];
        // A thousand times the first norm is reached at step 150.
        assert!(matches!(sign, Sign::GrowingNorm { .. }) && step < 100, "{found:?}");
        assert!(breaks.is_some_and(|at| (140..175).contains(&at)), "{found:?}");
        let text = found[0].to_string();
        assert!(text.starts_with("gradients grow: a norm of") && text.contains("breaks near step 1"), "{text}");
    }

    #[test]
    fn scores_that_grow_are_told_of() {
        let mut forecast = Forecast::default();
        let mut found = vec![];
        for step in 0..100usize {
            forecast.update(&update(1.0, 1.0));
            if step % 5 == 0 {
                let high = 2f64.powf(step as f64 / 5.0);
                let scores = Some(ScoreMeasure { low: 0.0, high, entropy: 1.0 });
                let site =
                    SiteMeasure { path: "attention/scores".into(), values: None, units: None, scores, flow: None };
                let measured = Measurement {
                    update: update(1.0, 1.0),
                    applied_norm: 1.0,
                    params: vec![],
                    groups: vec![],
                    sites: vec![site],
                };
                found.extend(forecast.measurement(&measured));
            }
        }
        // 2^7 is the first above 100, and 2^13.3 is 10,000.
        assert_eq!(found, [Warning { step: 35, sign: Sign::GrowingScores { range: 128.0 }, breaks: Some(67) }]);
    }

    #[test]
    fn a_norm_that_jumps_has_a_high_score() {
        let mut forecast = Forecast::default();
        for step in 0..100 {
            forecast.update(&update(1.0, noise(step)));
            assert!(forecast.spike_score().abs() < 2.5 || step < 10, "{}", forecast.spike_score());
        }
        forecast.update(&update(1.0, 10.0));
        assert!(forecast.spike_score() > 2.5, "{}", forecast.spike_score());
    }
}
