//! The ranges of coefficients.

use std::fmt;

/// The range of a coefficient; no range contains NaN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Range {
    /// Any finite number: a factor.
    Finite,
    /// From 0 to infinity: a bound.
    NotNegative,
    /// Above 0, to infinity: a bound that is divided by.
    Positive,
    /// From 0, and finite: a rate.
    Rate,
    /// Above 0, finite, and not subnormal in f32, because the reciprocal would be infinite: a scale.
    Scale,
}

impl Range {
    /// The limits: true if the lower bound is included; the lower bound; true if infinity is included.
    pub fn bounds(self) -> (bool, f64, bool) {
        match self {
            Range::Finite => (false, f64::NEG_INFINITY, false),
            Range::NotNegative => (true, 0.0, true),
            Range::Positive => (false, 0.0, true),
            Range::Rate => (true, 0.0, false),
            Range::Scale => (true, f32::MIN_POSITIVE as f64, false),
        }
    }

    /// True if a number is within.
    pub fn has(self, x: f64) -> bool {
        let (closed, least, infinite) = self.bounds();
        (x > least || closed && x == least) && (infinite || x.is_finite())
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Range::Finite => "finite",
            Range::NotNegative => "at least 0",
            Range::Positive => "above 0",
            Range::Rate => "at least 0 and finite",
            Range::Scale => "above 0, normal and finite",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_they_say() {
        let numbers = [f64::NAN, f64::NEG_INFINITY, -1.0, -0.0, 0.0, 1e-39, 1.0, f64::INFINITY];
        let within = |range: Range| numbers.map(|x| u8::from(range.has(x)));
        assert_eq!(within(Range::Finite), [0, 0, 1, 1, 1, 1, 1, 0]);
        assert_eq!(within(Range::NotNegative), [0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(within(Range::Positive), [0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(within(Range::Rate), [0, 0, 0, 1, 1, 1, 1, 0]);
        assert_eq!(within(Range::Scale), [0, 0, 0, 0, 0, 0, 1, 0]);
    }
}
