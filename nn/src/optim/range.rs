//! Updates within the range of their type, for every finite gradient.

use wgrad::{DType, Tensor};

/// The largest finite number of a float type, and the largest whose square is finite, with some room for rounding.
fn largest(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (65_000.0, 250.0),
        DType::F64 => (1.79e308, 1.3e154),
        _ => (3.4e38, 1.8e19),
    }
}

/// Clamps elements to a magnitude; NaN stays.
#[track_caller]
fn kept(x: Tensor<'_>, most: f64) -> Tensor<'_> {
    let all = |value: f64| x.tape().full(x.shape(), value, x.dtype());
    let x = x.greater(most).select(all(most), x);
    x.less(-most).select(all(-most), x)
}

/// The gradients that moments are computed from: `g`, none of whose elements exceeds `bound`, clamped to the largest
/// magnitude whose square is finite.
///
/// A larger element would make its second moment infinite, and its parameter would never move again. Both moments use
/// the clamped gradient, so their ratio is still that of a first step along `g`.
#[track_caller]
pub(super) fn squarable(g: Tensor<'_>, bound: f64) -> Tensor<'_> {
    let (_, root) = largest(g.dtype());
    if bound <= root { g } else { kept(g, root) }
}

/// As [`squarable`], for squares that are summed over all steps: clamped to the largest magnitude whose squares no
/// number of steps makes infinite, because a sum that is 2^24 times its terms, or in f64 2^53 times, takes in no more
/// of them.
#[track_caller]
pub(super) fn summable(g: Tensor<'_>, bound: f64) -> Tensor<'_> {
    let (_, root) = largest(g.dtype());
    let most = root / if g.dtype() == DType::F64 { 2f64.powi(27) } else { 2f64.powi(13) };
    if bound <= most { g } else { kept(g, most) }
}

/// Clamps a sum of gradients, or a parameter moved by such a sum, to the largest finite number, from which training can
/// recover. No element of the gradients exceeds `bound`; a small bound makes the clamp unnecessary.
#[track_caller]
pub(super) fn finite(x: Tensor<'_>, bound: f64) -> Tensor<'_> {
    let (most, root) = largest(x.dtype());
    if bound <= root { x } else { kept(x, most) }
}
