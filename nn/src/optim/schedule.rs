//! Learning rates, and the strength of gradient noise, as functions of the number of updates made.

use std::{
    f64::consts::PI,
    fmt,
    ops::{Add, Div, Mul, Sub},
};
use wgrad::{DType, Tensor};

/// The learning rate `lr[t]` of update `t`, where `t = 0` is the first and only successful updates count; or another
/// number that changes with the updates.
///
/// No length may exceed the total; a length of 0 means none. A curve that is not among these is a function of one's own:
/// [`Rate::function`](super::Rate::function).
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Schedule {
    /// `base`.
    Constant(f64),
    /// `base * min(1, (t + offset) / steps)`. With offset 0 the first rate is 0.
    Warmup {
        /// The rate afterwards.
        base: f64,
        /// The number of updates of the warm-up.
        steps: u32,
        /// Added to `t`; usually 1.
        offset: u32,
    },
    /// `base * (factor + (1 - factor) * min(t, steps) / steps)`: PyTorch's `LinearLR`.
    WarmupFactor {
        /// The rate afterwards.
        base: f64,
        /// The number of updates of the warm-up.
        steps: u32,
        /// The first rate's share of the base.
        factor: f64,
    },
    /// Rises from `init` to `base` in `steps` updates, then falls in a straight line to `end` at `total`, and stays
    /// there.
    WarmupLinear {
        /// The highest rate.
        base: f64,
        /// The number of updates of the rise.
        steps: u32,
        /// The update at which the fall ends.
        total: u32,
        /// The first rate.
        init: f64,
        /// The last rate.
        end: f64,
    },
    /// Rises from `init` to `base` in `steps` updates, then falls along half a cosine to `end` at `total` (Loshchilov &
    /// Hutter 2017), and stays there.
    WarmupCosine {
        /// The highest rate.
        base: f64,
        /// The number of updates of the rise.
        steps: u32,
        /// The update at which the fall ends.
        total: u32,
        /// The first rate.
        init: f64,
        /// The last rate.
        end: f64,
    },
    /// `sqrt(eta / (1 + t)^gamma)`: the standard deviation of gradient noise (Neelakantan et al. 2015, with `gamma`
    /// 0.55).
    Annealed {
        /// The first variance.
        eta: f64,
        /// The speed at which the variance falls.
        gamma: f64,
    },
}

impl Schedule {
    /// [`Schedule::Warmup`] with offset 1: `lr[0] = base / steps`, `lr[steps - 1] = base`.
    pub fn warmup(base: f64, steps: u32) -> Self {
        Schedule::Warmup { base, steps, offset: 1 }
    }

    /// Records the rate as a scalar, given how many updates have been made (u32 scalar).
    #[track_caller]
    pub fn lr<'t>(&self, updates: Tensor<'t>, dtype: DType) -> Tensor<'t> {
        self.formula(updates.cast(dtype))
    }

    /// The rate of update `t`, on the host.
    ///
    /// ```
    /// use wgrad_nn::Schedule;
    /// assert_eq!(Schedule::warmup(0.1, 10).at(4), 0.05);
    /// ```
    pub fn at(&self, t: u32) -> f64 {
        self.formula(t as f64)
    }

    /// The same schedule, with all rates multiplied by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        match self {
            Schedule::Constant(base) => Schedule::Constant(base * factor),
            Schedule::Warmup { base, steps, offset } => Schedule::Warmup { base: base * factor, steps, offset },
            Schedule::WarmupFactor { base, steps, factor: first } => {
                Schedule::WarmupFactor { base: base * factor, steps, factor: first }
            }
            Schedule::WarmupLinear { base, steps, total, init, end } => {
                Schedule::WarmupLinear { base: base * factor, steps, total, init: init * factor, end: end * factor }
            }
            Schedule::WarmupCosine { base, steps, total, init, end } => {
                Schedule::WarmupCosine { base: base * factor, steps, total, init: init * factor, end: end * factor }
            }
            Schedule::Annealed { eta, gamma } => Schedule::Annealed { eta: eta * factor * factor, gamma },
        }
    }

    /// The same schedule, but with a rise to its highest rate over `rise` updates. A fall still ends at the same
    /// update, unless the rise takes longer.
    #[must_use]
    pub fn with_warmup(self, rise: u32) -> Self {
        let (init, length) = (self.highest() / f64::from(rise.max(1)), |total: u32| total.max(rise));
        match self {
            Schedule::Constant(base) | Schedule::Warmup { base, .. } | Schedule::WarmupFactor { base, .. } => {
                if rise == 0 { Schedule::Constant(base) } else { Schedule::warmup(base, rise) }
            }
            Schedule::WarmupLinear { base, total, end, .. } => {
                Schedule::WarmupLinear { base, steps: rise, total: length(total), init, end }
            }
            Schedule::WarmupCosine { base, total, end, .. } => {
                Schedule::WarmupCosine { base, steps: rise, total: length(total), init, end }
            }
            Schedule::Annealed { .. } => self,
        }
    }

    /// The same schedule, but staying at its highest rate once it is reached.
    #[must_use]
    pub fn held(self) -> Self {
        match self {
            Schedule::WarmupLinear { base, steps, .. } | Schedule::WarmupCosine { base, steps, .. } => {
                Schedule::Constant(base).with_warmup(steps)
            }
            Schedule::Annealed { eta, .. } => Schedule::Constant(eta.sqrt()),
            other => other,
        }
    }

    /// The highest rate.
    pub fn highest(&self) -> f64 {
        match *self {
            Schedule::Constant(base)
            | Schedule::Warmup { base, .. }
            | Schedule::WarmupFactor { base, .. }
            | Schedule::WarmupLinear { base, .. }
            | Schedule::WarmupCosine { base, .. } => base,
            Schedule::Annealed { eta, .. } => eta.sqrt(),
        }
    }

    /// One formula for the host and for the tape.
    #[track_caller]
    pub(super) fn formula<N: Number>(&self, t: N) -> N {
        // A length of 0 never takes its branch; 1 keeps even the branch not taken finite.
        let length = |from: u32, to: u32| (to.saturating_sub(from)).max(1) as f64;
        match *self {
            Schedule::Constant(base) => t.constant(base),
            Schedule::Warmup { base, steps, offset } => {
                let n = t + offset as f64;
                n.before(steps, n / length(0, steps) * base, t.constant(base))
            }
            Schedule::WarmupFactor { base, steps, factor } => {
                let rising = (t / length(0, steps) * (1.0 - factor) + factor) * base;
                t.before(steps, rising, t.constant(base))
            }
            Schedule::WarmupLinear { base, steps, total, init, end } => {
                let rising = t / length(0, steps) * (base - init) + init;
                let falling = (t * -1.0 + total as f64) / length(steps, total) * (base - end) + end;
                t.before(steps, rising, t.before(total, falling, t.constant(end)))
            }
            Schedule::WarmupCosine { base, steps, total, init, end } => {
                let rising = t / length(0, steps) * (base - init) + init;
                let angle = (t - steps as f64) / length(steps, total) * PI;
                let falling = (angle.cos() + 1.0) * (0.5 * (base - end)) + end;
                t.before(steps, rising, t.before(total, falling, t.constant(end)))
            }
            Schedule::Annealed { eta, gamma } => (t + 1.0).powf(-0.5 * gamma) * eta.sqrt(),
        }
    }

    /// Refuses invalid rates and lengths.
    #[track_caller]
    pub(crate) fn check(&self) {
        let (rates, steps, total) = match *self {
            Schedule::Constant(base) => (vec![base], 0, 0),
            Schedule::Warmup { base, steps, .. } => (vec![base], steps, steps),
            Schedule::WarmupFactor { base, steps, factor } => (vec![base, factor], steps, steps),
            Schedule::WarmupLinear { base, steps, total, init, end } => (vec![base, init, end], steps, total),
            Schedule::WarmupCosine { base, steps, total, init, end } => (vec![base, init, end], steps, total),
            Schedule::Annealed { eta, gamma } => (vec![eta, gamma], 0, 0),
        };
        let sound = rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0);
        assert!(sound, "learning rate {self}: rates must be finite and not negative");
        assert!(steps <= total, "learning rate {self}: the warm-up is longer than the whole");
    }
}

impl From<f64> for Schedule {
    fn from(base: f64) -> Self {
        Schedule::Constant(base)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant(base) => write!(f, "{base}"),
            Schedule::Warmup { base, steps, offset } => write!(f, "warmup({base}, steps {steps}, offset {offset})"),
            Schedule::WarmupFactor { base, steps, factor } => {
                write!(f, "warmup_factor({base}, steps {steps}, factor {factor})")
            }
            Schedule::WarmupLinear { base, steps, total, init, end } => {
                write!(f, "warmup_linear({base}, steps {steps}, total {total}, from {init}, to {end})")
            }
            Schedule::WarmupCosine { base, steps, total, init, end } => {
                write!(f, "warmup_cosine({base}, steps {steps}, total {total}, from {init}, to {end})")
            }
            Schedule::Annealed { eta, gamma } => write!(f, "annealed({eta}, gamma {gamma})"),
        }
    }
}

/// The arithmetic that the formulas need, of `f64` and of a tensor.
pub(super) trait Number:
    Copy + Add<f64, Output = Self> + Sub<f64, Output = Self> + Mul<f64, Output = Self> + Div<f64, Output = Self>
{
    fn constant(self, value: f64) -> Self;
    fn cos(self) -> Self;
    fn powf(self, exponent: f64) -> Self;
    /// `self < limit ? then : otherwise`.
    fn before(self, limit: u32, then: Self, otherwise: Self) -> Self;
}

impl Number for f64 {
    fn constant(self, value: f64) -> Self {
        value
    }
    fn cos(self) -> Self {
        f64::cos(self)
    }
    fn powf(self, exponent: f64) -> Self {
        f64::powf(self, exponent)
    }
    fn before(self, limit: u32, then: Self, otherwise: Self) -> Self {
        if self < limit as f64 { then } else { otherwise }
    }
}

impl Number for Tensor<'_> {
    #[track_caller]
    fn constant(self, value: f64) -> Self {
        self.tape().scalar(value, self.dtype())
    }
    #[track_caller]
    fn cos(self) -> Self {
        Tensor::cos(self)
    }
    #[track_caller]
    fn powf(self, exponent: f64) -> Self {
        self.pow(exponent)
    }
    #[track_caller]
    fn before(self, limit: u32, then: Self, otherwise: Self) -> Self {
        self.less(limit as f64).select(then, otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::abs_diff_eq;

    #[test]
    fn lengths_of_zero_and_of_the_whole_are_legal() {
        let cosine = |steps, total| Schedule::WarmupCosine { base: 2.0, steps, total, init: 0.5, end: 0.25 };
        let linear = |steps, total| Schedule::WarmupLinear { base: 2.0, steps, total, init: 0.0, end: 0.0 };
        for (schedule, want) in [
            (Schedule::Warmup { base: 2.0, steps: 0, offset: 0 }, [2.0, 2.0, 2.0]),
            (Schedule::WarmupFactor { base: 2.0, steps: 0, factor: 0.1 }, [2.0, 2.0, 2.0]),
            (linear(0, 2), [2.0, 1.0, 0.0]),
            (linear(2, 2), [0.0, 1.0, 0.0]),
            (linear(0, 0), [0.0, 0.0, 0.0]),
            (cosine(0, 2), [2.0, 1.125, 0.25]),
            (cosine(2, 2), [0.5, 1.25, 0.25]),
            (cosine(0, 0), [0.25, 0.25, 0.25]),
        ] {
            schedule.check();
            let have = [0, 1, 2].map(|t| schedule.at(t));
            assert!(abs_diff_eq!(have[..], want[..], epsilon = 1e-15), "{schedule}: {have:?}");
        }
    }

    #[test]
    fn the_cosine_stays_down() {
        let schedule = Schedule::WarmupCosine { base: 1.0, steps: 5, total: 20, init: 0.0, end: 0.1 };
        assert_eq!(schedule.at(5), 1.0);
        assert_eq!([20, 21, 35, 1000].map(|t| schedule.at(t)), [0.1; 4]);
    }

    #[test]
    #[should_panic(expected = "rates must be finite and not negative")]
    fn a_negative_rate_panics() {
        Schedule::from(-0.1).check();
    }

    #[test]
    #[should_panic(expected = "the warm-up is longer than the whole")]
    fn a_warm_up_beyond_the_whole_panics() {
        Schedule::WarmupLinear { base: 1.0, steps: 3, total: 2, init: 0.0, end: 0.0 }.check();
    }
}
