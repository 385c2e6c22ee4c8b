//! The comparison of results with expected values, element by element.

use super::Tolerance;
use std::fmt;
use wgrad::{Array, DType, Shape};

/// The expected value of a result.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The types that a result may have.
    pub dtypes: &'static [DType],
    /// The name of the type in the file.
    pub stored: String,
    /// The shape.
    pub shape: Shape,
    /// The elements, row-major.
    pub values: Vec<f64>,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The mismatch, if there is one: another shape or type, or the element that is furthest beyond its bound.
    pub mismatch: Option<Mismatch>,
    /// The distance of each finite pair of elements, divided by the largest finite magnitude of the expected values if
    /// that is not 0.
    pub errors: Vec<f64>,
}

/// A mismatch between a result and its expected value.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The result is missing.
    Missing,
    /// The result has another shape or type.
    Form {
        /// The actual value.
        have: String,
        /// The expected value.
        want: String,
    },
    /// An element is beyond its bound.
    Element {
        /// The element's index along each axis.
        index: Vec<usize>,
        /// The actual value.
        have: f64,
        /// The expected value.
        want: f64,
        /// The largest allowed distance from `want`.
        bound: f64,
        /// The number of elements beyond their bounds, and the number of all elements.
        beyond: (usize, usize),
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Missing => write!(f, ": the operation has no such result"),
            Mismatch::Form { have, want } => write!(f, ": have {have}, want {want}"),
            Mismatch::Element { index, have, want, bound, beyond: (beyond, of) } => {
                write!(f, "{index:?}: have {have:e}, want {want:e}, bound {bound:.1e} ({beyond} of {of} beyond)")
            }
        }
    }
}

impl Mismatch {
    /// The severity, to find the worst of several mismatches.
    fn excess(&self) -> f64 {
        match self {
            Mismatch::Missing | Mismatch::Form { .. } => f64::INFINITY,
            Mismatch::Element { have, want, bound, .. } => excess(*have, *want, *bound),
        }
    }

    /// True if this mismatch is worse than another.
    pub fn is_worse_than(&self, other: &Mismatch) -> bool {
        self.excess() > other.excess()
    }
}

/// The largest allowed distance from `want`. It is 0 if `want` is NaN or infinite.
fn bound(want: f64, tolerance: Tolerance) -> f64 {
    if want.is_finite() { tolerance.atol + tolerance.rtol * want.abs() } else { 0.0 }
}

/// The distance in multiples of the bound: above 1, the element is wrong. NaN equals only NaN, and an infinity only
/// itself.
fn excess(have: f64, want: f64, bound: f64) -> f64 {
    if have == want || (have.is_nan() && want.is_nan()) {
        0.0
    } else if !have.is_finite() || !want.is_finite() || bound <= 0.0 {
        f64::INFINITY
    } else {
        (have - want).abs() / bound
    }
}

/// Compares a result with its expected value: `|have - want| <= atol + rtol * |want|` for each element.
pub fn compare(have: &Array, want: &Expected, tolerance: Tolerance) -> Comparison {
    if *have.shape() != want.shape || !want.dtypes.contains(&have.dtype()) {
        let (have, want) = (format!("{}{}", have.dtype(), have.shape()), format!("{}{}", want.stored, want.shape));
        return Comparison { mismatch: Some(Mismatch::Form { have, want }), errors: vec![] };
    }
    let have = have.to_f64();
    let pairs = || have.iter().copied().zip(want.values.iter().copied());
    let excesses: Vec<f64> = pairs().map(|(have, want)| excess(have, want, bound(want, tolerance))).collect();
    let worst = (0..excesses.len()).max_by(|&a, &b| excesses[a].total_cmp(&excesses[b]).then(b.cmp(&a)));
    let mismatch = worst.filter(|&worst| excesses[worst] > 1.0).map(|worst| Mismatch::Element {
        index: unravelled(worst, &want.shape),
        have: have[worst],
        want: want.values[worst],
        bound: bound(want.values[worst], tolerance),
        beyond: (excesses.iter().filter(|excess| **excess > 1.0).count(), excesses.len()),
    });
    let finite = || pairs().filter(|(have, want)| have.is_finite() && want.is_finite());
    let largest = finite().map(|(_, want)| want.abs()).fold(0.0, f64::max);
    let scale = if largest > 0.0 { largest } else { 1.0 };
    Comparison { mismatch, errors: finite().map(|(have, want)| (have - want).abs() / scale).collect() }
}

/// The index along each axis of a row-major position.
fn unravelled(position: usize, shape: &[usize]) -> Vec<usize> {
    let mut left = position;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let along = left % extent;
            left /= extent;
            along
        })
        .collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;

    const LOOSE: Tolerance = Tolerance { rtol: 0.1, atol: 0.01 };
    const EXACT: Tolerance = Tolerance { rtol: 0.0, atol: 0.0 };

    fn against(have: &[f64], want: &[f64], tolerance: Tolerance) -> Comparison {
        let (dtypes, stored) = (&[DType::F64][..], "f64".to_string());
        let want = Expected { dtypes, stored, shape: [want.len()].into(), values: want.to_vec() };
        compare(&Array::new([have.len()], have.to_vec()), &want, tolerance)
    }

    #[test]
    fn elements_pass_within_the_bound_and_where_nothing_else_would_do() {
        for (have, want, tolerance) in [
            (1.1, 1.0, LOOSE),
            (-1.0, -1.1, LOOSE),
            (0.01, 0.0, LOOSE),
            (NAN, NAN, EXACT),
            (INF, INF, LOOSE),
            (-INF, -INF, EXACT),
            (-0.0, 0.0, EXACT),
        ] {
            assert_eq!(against(&[have], &[want], tolerance).mismatch, None, "{have} for {want}");
        }
        for (have, want, tolerance) in [
            (1.12, 1.0, LOOSE),
            (0.011, 0.0, LOOSE),
            (1.0, -1.0, LOOSE),
            (NAN, 0.0, LOOSE),
            (0.0, NAN, LOOSE),
            (INF, -INF, LOOSE),
            (INF, 1e300, LOOSE),
            (1e300, INF, LOOSE),
            (1.0 + f64::EPSILON, 1.0, EXACT),
            (5e-324, 0.0, EXACT),
        ] {
            assert!(against(&[have], &[want], tolerance).mismatch.is_some(), "{have} for {want}");
        }
    }

    #[test]
    fn the_worst_element_is_told_and_errors_are_relative_to_the_largest() {
        let found = against(&[1.0, 5.0, 4.0, 2.3], &[1.0, 4.0, 4.0, 2.0], LOOSE);
        let text = found.mismatch.expect("two are wrong").to_string();
        assert_eq!(text, "[1]: have 5e0, want 4e0, bound 4.1e-1 (2 of 4 beyond)");
        let errors: Vec<f64> = found.errors.iter().map(|e| (e * 1e6).round()).collect();
        assert_eq!(errors, [0.0, 250_000.0, 0.0, 75_000.0]);
        let found = against(&[NAN, 3.0], &[1.0, 0.0], LOOSE);
        assert_eq!(found.errors, [3.0]);
        assert!(found.mismatch.expect("both are wrong").to_string().starts_with("[0]: have NaN, want 1e0"));
    }

    #[test]
    fn shapes_and_types_are_met_exactly() {
        assert_eq!(
            against(&[1.0, 2.0], &[1.0], LOOSE).mismatch.expect("another shape").to_string(),
            ": have f64[2], want f64[1]"
        );
        let want = Expected { dtypes: &[DType::F32], stored: "f32".into(), shape: [1].into(), values: vec![1.0] };
        let found = compare(&Array::new([1], vec![1.0f64]), &want, LOOSE);
        assert_eq!(found.mismatch.expect("another type").to_string(), ": have f64[1], want f32[1]");
        assert_eq!(unravelled(23, &[2, 3, 4]), [1, 2, 3]);
        assert_eq!(unravelled(0, &[]), [] as [usize; 0]);
    }
}
