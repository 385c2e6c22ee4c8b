//! Derivatives by differences.

use super::{Gradcheck, GradcheckError, decisions::Observed, value};
use crate::Taps;

/// A derivative by differences, and a bound of its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numeric {
    pub derivative: f64,
    pub error: f64,
    /// The effect of the values' rounding on the derivative.
    pub rounding: f64,
}

/// The result of a comparison.
pub(super) enum Verdict {
    Right,
    Wrong { tolerance: f64 },
}

/// The greatest multiple of the tolerance that the error of a difference excuses.
const EXCUSED: f64 = 100.0;

/// The derivative at 0 of a function of one number, and a bound of its error: two central differences, extrapolated.
pub fn central_difference(f: impl Fn(f64) -> f64, h: f64) -> (f64, f64) {
    extrapolated([-h, -h / 2.0, h / 2.0, h].map(f), h)
}

/// The same from the values at `-h`, `-h / 2`, `h / 2` and `h`.
fn extrapolated([a, b, c, d]: [f64; 4], h: f64) -> (f64, f64) {
    let (coarse, fine) = ((d - a) / (2.0 * h), (c - b) / h);
    ((4.0 * fine - coarse) / 3.0, (fine - coarse).abs())
}

impl Gradcheck {
    /// The derivative of an observed program's value along a movement; `None` if a kink lies within the smallest reach.
    pub(super) fn numeric(
        &self,
        observed: &Observed,
        base: &Taps,
        mut at: impl FnMut(f64) -> Result<Taps, GradcheckError>,
    ) -> Result<Option<Numeric>, GradcheckError> {
        let mut found = None;
        for h in [1.0, 0.1, 0.01].map(|part| part * self.eps) {
            let points = [at(-h)?, at(-h / 2.0)?, at(h / 2.0)?, at(h)?];
            let [a, b, c, d] = &points;
            if observed.switches(&[base, a, b, c, d]) {
                continue;
            }
            let values = [a, b, c, d].map(value);
            let (derivative, error) = extrapolated(values, h);
            let rounding = 4.0 * f64::EPSILON * values.iter().fold(0.0f64, |m, v| m.max(v.abs())) / h;
            let numeric = Numeric { derivative, error: error + 10.0 * rounding, rounding };
            // A smaller distance is better only if curvature limits the larger one.
            let better = found.is_none_or(|best: Numeric| numeric.error < best.error || !best.error.is_finite());
            found = if better { Some(numeric) } else { found };
            if 0.1 * error <= self.tolerance(numeric) {
                break;
            }
        }
        Ok(found)
    }

    fn tolerance(&self, numeric: Numeric) -> f64 {
        self.atol + self.rtol * numeric.derivative.abs()
    }

    /// True if the values are so large beside the slope that their rounding hides it.
    pub(super) fn is_coarse(&self, numeric: Numeric) -> bool {
        numeric.rounding > EXCUSED * self.tolerance(numeric)
    }

    /// True if a recorded derivative agrees. The error of a difference excuses a hundred tolerances at most.
    pub(super) fn judge(&self, analytic: f64, numeric: Numeric) -> Verdict {
        let plain = self.tolerance(numeric);
        let tolerance = plain + (0.1 * numeric.error).min(EXCUSED * plain);
        let right = (analytic - numeric.derivative).abs() <= tolerance;
        if right { Verdict::Right } else { Verdict::Wrong { tolerance } }
    }
}

/// A direction in which every element moves: magnitudes from 0.5 to 1 of either sign, so that none is missed.
pub(super) fn direction(seed: u64, path: &[u64], numel: usize) -> Vec<f64> {
    let mut state = path.iter().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |state, part| split_mix(state ^ split_mix(*part)));
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = split_mix(state);
        let size = 0.5 + 0.5 * (bits >> 11) as f64 * 2f64.powi(-53);
        if bits & 1 == 0 { size } else { -size }
    };
    (0..numel).map(|_| next()).collect()
}

/// The mixer of SplitMix64 (Steele, Lea & Flood 2014).
fn split_mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    #[test]
    fn extrapolation_takes_out_the_third_derivative() {
        let (have, error) = central_difference(|h| (1.0 + h).powi(3), 1e-2);
        assert_abs_diff_eq!(have, 3.0, epsilon = 1e-12);
        // The finer of the two is off by a third of this.
        assert_abs_diff_eq!(error, 7.5e-5, epsilon = 1e-9);
    }

    #[test]
    fn directions_move_every_element_and_differ() {
        let (a, b) = (direction(1, &[0, 0], 100), direction(1, &[0, 1], 100));
        assert!(a.iter().all(|v| (0.5..=1.0).contains(&v.abs())));
        assert!(a.iter().any(|v| *v < 0.0) && a.iter().any(|v| *v > 0.0));
        assert_ne!(a, b);
        assert_eq!(a, direction(1, &[0, 0], 100));
        assert_ne!(a, direction(2, &[0, 0], 100));
    }
}
