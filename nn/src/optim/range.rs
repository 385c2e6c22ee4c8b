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

/// Elements beyond a magnitude become of that magnitude; NaN stays.
#[track_caller]
fn kept(x: Tensor<'_>, most: f64) -> Tensor<'_> {
    let all = |value: f64| x.tape().full(x.shape(), value, x.dtype());
    let x = x.greater(most).select(all(most), x);
    x.less(-most).select(all(-most), x)
}

/// The gradients that moments are made of: `g`, of which no element exceeds `bound`, but no larger in magnitude than what has
/// a square within the type.
///
/// A larger one would make its second moment infinite, and the parameter would never move again. As both moments are made of
/// this, their ratio is that of a first step along `g` all the same.
#[track_caller]
pub(super) fn squarable(g: Tensor<'_>, bound: f64) -> Tensor<'_> {
    let (_, root) = largest(g.dtype());
    if bound <= root { g } else { kept(g, root) }
}

/// A sum of gradients, of which no element exceeds `bound`, or what such a sum moves: an infinity becomes the largest finite
/// number, from which there is a way back.
#[track_caller]
pub(super) fn finite(x: Tensor<'_>, bound: f64) -> Tensor<'_> {
    let (most, root) = largest(x.dtype());
    if bound <= root { x } else { kept(x, most) }
}
