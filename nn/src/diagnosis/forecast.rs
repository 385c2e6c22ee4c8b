//! Forecasts: signs that a run is about to break, while it still goes on.

use crate::{monitor::Measurement, train::Stability};
use crate::{monitor::Update, numbers::median};
use std::{collections::VecDeque, fmt};

/// The number of updates in a window. Signs compare the medians of two windows.
const WINDOW: usize = 20;
/// A median loss that rises by this share of the first loss, and by this factor over the lowest median, is a sign.
const RISE: f64 = 0.2;
const RISE_FACTOR: f64 = 1.5;
/// A gradient norm that grows to `GROWN` times the first norms is a sign; at `BROKEN` times, the run breaks.
const GROWN: f64 = 10.0;
const BROKEN: f64 = 1e3;
/// A break that is further away than this number of updates gives no warning.
const AHEAD: f64 = 100.0;
/// The range of attention scores, or the largest logit: above `WIDE` its growth is a sign, and at `WIDEST` the soft-max
/// has collapsed onto one element (Wortsman et al. 2023).
const WIDE: f64 = 100.0;
const WIDEST: f64 = 1e4;
/// The number of measurements over which the growth of scores and logits is taken.
const LOOKS: usize = 5;
/// A learning rate above this multiple of the highest stable rate is a sign. Up to the multiple, training may still
/// move to a region where its steps are stable; beyond it, no training has been seen to (Lewkowycz et al. 2020, arXiv
/// 2003.02218).
const BEYOND: f64 = 2.0;
/// The share of the old mean that the running mean of norms keeps with each update (ZClip: Kumar et al. 2025, arXiv
/// 2504.02507).
const KEEP: f64 = 0.97;

/// A sign that a run is about to break.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sign {
    /// The median loss of the last 20 updates is above `lowest` by half of `lowest`, and by a fifth of the first loss.
    RisingLoss {
        /// The lowest median so far, or the first loss if that is lower.
        lowest: f64,
        /// The present median.
        now: f64,
    },
    /// The gradient norm is above 10 times that of the first updates and will soon be above 1000 times, and the loss
    /// does not fall.
    GrowingNorm {
        /// The median of the first updates.
        first: f64,
        /// The present median.
        now: f64,
    },
    /// The range of the attention scores is above 100, and will soon be above 10,000.
    GrowingScores {
        /// The present range.
        range: f64,
    },
    /// The largest logit, in magnitude, is above 100, and will be above 10,000 soon.
    GrowingLogits {
        /// The present largest logit.
        largest: f64,
    },
    /// The loss is so sharp that the learning rate is above twice the highest stable one.
    Sharp {
        /// The learning rate.
        rate: f64,
        /// The highest stable learning rate.
        highest: f64,
    },
}

/// A warning, before a run breaks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Warning {
    /// The update at which the sign has appeared, from 0 on.
    pub step: usize,
    /// The sign.
    pub sign: Sign,
    /// The update at which the run breaks at this pace, if the pace is known.
    pub breaks: Option<usize>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sign {
            Sign::RisingLoss { lowest, now } => write!(f, "the loss rises: {now:.3} now, and {lowest:.3} before")?,
            Sign::GrowingNorm { first, now } => {
                write!(f, "gradients grow: a norm of {now:.2e} now, and {first:.2e} at first")?
            }
            Sign::GrowingScores { range } => {
                write!(f, "attention scores grow: their range (largest minus smallest) is {range:.0}")?
            }
            Sign::GrowingLogits { largest } => write!(f, "logits grow: the largest is {largest:.0}")?,
            Sign::Sharp { rate, highest } => write!(
                f,
                "the loss is too sharp: the learning rate is {rate:.2e}, above {highest:.2e}, the highest stable rate"
            )?,
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
    /// The number of updates seen.
    seen: usize,
    first_loss: f64,
    first_norms: Vec<f64>,
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
    /// The lowest of the first loss and of the medians of the windows before the present one.
    lowest: Option<f64>,
    scores: Looks,
    logits: Looks,
    told: [bool; 5],
    /// The running mean and variance of norms, and the weight of all norms that the variance holds.
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
            self.first_loss = loss;
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

    /// Takes a measurement of the last update, and gives the sign that appears with it.
    pub fn measurement(&mut self, measured: &Measurement) -> Option<Warning> {
        let step = self.seen.saturating_sub(1);
        let ranges = measured.sites.iter().filter_map(|site| site.scores).map(|scores| scores.high - scores.low);
        self.scores.push(step, ranges);
        let of_logits = measured.sites.iter().filter(|site| site.path.rsplit('/').next() == Some("logits"));
        self.logits.push(step, of_logits.filter_map(|site| site.values).map(|values| values.max));
        let scores = self.scores.growth().map(|(range, away)| (Sign::GrowingScores { range }, away));
        let logits = self.logits.growth().map(|(largest, away)| (Sign::GrowingLogits { largest }, away));
        self.tell(step, 2, scores).or_else(|| self.tell(step, 3, logits))
    }

    /// Takes the result of [`crate::Landscape::stability`] after the last update, and gives the sign that appears with
    /// it. A loss up to twice as sharp as the rate allows is no sign: training may still move to where the loss is
    /// flatter.
    pub fn stability(&mut self, found: &Stability) -> Option<Warning> {
        let Stability { rate, highest, .. } = *found;
        let is_sharp = highest > 0.0 && rate > BEYOND * highest;
        self.tell(self.seen.saturating_sub(1), 4, is_sharp.then_some((Sign::Sharp { rate, highest }, None)))
    }

    /// The number of standard deviations by which the last norm is above the running mean of those before it. ZClip
    /// clips steps with more than 2.5.
    pub fn spike_score(&self) -> f64 {
        self.spike
    }

    fn score(&mut self, norm: f64) {
        let [mean, variance, weight] = self.running.unwrap_or([norm, 0.0, 0.0]);
        // The variance starts at 0, so it is divided by the weight of its norms. The mean starts at the first norm
        // itself.
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
        // A run that gets worse from its start on has had its lowest loss there.
        let lowest = self.lowest.unwrap_or(self.first_loss).min(before);
        self.lowest = Some(lowest);
        let rises = now > lowest + RISE * self.first_loss.abs() && now > RISE_FACTOR * lowest;
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
}

/// The largest score range or logit of each of the last measurements, with the number of its update.
#[derive(Clone, Default, Debug)]
struct Looks(VecDeque<(f64, f64)>);

impl Looks {
    fn push(&mut self, step: usize, all: impl Iterator<Item = f64>) {
        let largest = all.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if largest > 0.0 {
            self.0.push_back((step as f64, largest));
            if self.0.len() > LOOKS {
                self.0.pop_front();
            }
        }
    }

    /// The last value, and the number of updates until it reaches [`WIDEST`]; `None` if that is not soon.
    fn growth(&self) -> Option<(f64, Option<f64>)> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let pace = (last.1 / first.1).log10() / (last.0 - first.0);
        let away = (WIDEST / last.1).log10() / pace;
        let soon = self.0.len() == LOOKS && pace > 0.0 && away < AHEAD && last.1 > WIDE;
        soon.then_some((last.1, Some(away.max(0.0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        monitor::{ScoreMeasure, SiteMeasure, ValueMeasure},
        train::Eigenvalue,
    };

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
    fn a_loss_that_rises_from_its_start_is_told_of_as_soon_as_there_are_two_windows() {
        // No window of it is as low as its first loss.
        let found = warnings((0..300).map(|s| (2.0 + 0.05 * s as f64 * noise(s), 1.0)));
        assert!(
            matches!(found[..], [Warning { step: 39, sign: Sign::RisingLoss { lowest: 2.0, .. }, .. }]),
            "{found:?}"
        );
        // A loss may be negative, such as a log-likelihood: only the size of its rise counts.
        let found = warnings((0..300).map(|s| (-2.0 + 0.05 * s as f64 * noise(s), 1.0)));
        assert!(matches!(found[..], [Warning { sign: Sign::RisingLoss { lowest: -2.0, .. }, .. }]), "{found:?}");
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

    /// The warnings of a run that is measured every five updates, and whose value at one site doubles between
    /// measurements.
    fn growing(path: &str, of: fn(f64) -> (Option<ScoreMeasure>, Option<ValueMeasure>)) -> Vec<Warning> {
        let mut forecast = Forecast::default();
        let mut found = vec![];
        for step in 0..100usize {
            forecast.update(&update(1.0, 1.0));
            if step % 5 == 0 {
                let (scores, values) = of(2f64.powf(step as f64 / 5.0));
                let measured = Measurement {
                    update: update(1.0, 1.0),
                    applied_norm: 1.0,
                    params: vec![],
                    groups: vec![],
                    sites: vec![SiteMeasure { path: path.into(), values, units: None, scores, flow: None }],
                };
                found.extend(forecast.measurement(&measured));
            }
        }
        found
    }

    #[test]
    fn scores_and_logits_that_grow_are_told_of() {
        let scores = growing("attention/scores", |high| (Some(ScoreMeasure { low: 0.0, high, entropy: 1.0 }), None));
        // 2^7 is the first above 100, and 2^13.3 is 10,000.
        assert_eq!(scores, [Warning { step: 35, sign: Sign::GrowingScores { range: 128.0 }, breaks: Some(67) }]);
        let of_values = |max| (None, Some(ValueMeasure { rms: 1.0, mean: 0.0, std: 1.0, max, non_finite: 0.0 }));
        let logits = growing("head/logits", of_values);
        assert_eq!(logits, [Warning { step: 35, sign: Sign::GrowingLogits { largest: 128.0 }, breaks: Some(67) }]);
        assert!(logits[0].to_string().starts_with("logits grow: the largest is 128; at this pace"), "{}", logits[0]);
        assert_eq!(growing("layer/z", of_values), []);
    }

    #[test]
    fn a_loss_that_is_too_sharp_for_its_rate_is_told_of_once() {
        let mut forecast = Forecast::default();
        let found = |rate, value: f64| {
            let sharpness = Eigenvalue { value, residual: 0.0, products: 9 };
            Stability { sharpness, rate, highest: 2.0 / value }
        };
        forecast.update(&update(1.0, 1.0));
        // At the edge of stability a loss is a little sharper than its rate allows. A loss with negative curvature is
        // not sharp.
        for (rate, value) in [(0.1, 1.0), (0.1, 25.0), (0.1, -25.0), (0.1, 0.0)] {
            assert_eq!(forecast.stability(&found(rate, value)), None);
        }
        forecast.update(&update(1.0, 1.0));
        let warning = forecast.stability(&found(0.1, 50.0)).expect("it is too sharp");
        assert_eq!((warning.step, warning.sign), (1, Sign::Sharp { rate: 0.1, highest: 0.04 }));
        assert!(
            warning.to_string().contains("the learning rate is 1.00e-1, above 4.00e-2, the highest stable rate"),
            "{warning}"
        );
        assert_eq!(forecast.stability(&found(0.1, 50.0)), None);
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
