//! p-norms of flat vectors, which overflow only if the norm itself does.

use crate::{
    Tensor,
    op::{Reduce, Segments},
};
use std::sync::Arc;

/// The elements of a vector that are taken together.
#[derive(Clone, Copy)]
pub(super) enum Over<'a> {
    /// All of them: the result is a scalar.
    All,
    /// Those of each segment: the result has one element per segment.
    Each(&'a Arc<Segments>),
}

impl Over<'_> {
    #[track_caller]
    fn reduce<'t>(self, kind: Reduce, x: Tensor<'t>) -> Tensor<'t> {
        match (self, kind) {
            (Over::All, Reduce::Sum) => x.sum(),
            (Over::All, Reduce::Max) => x.max(),
            (Over::All, Reduce::Norm) => x.norm(),
            (Over::Each(segments), Reduce::Sum) => x.segment_sum(segments),
            (Over::Each(segments), Reduce::Max) => x.segment_max(segments),
            (Over::Each(segments), Reduce::Norm) => x.segment_norm(segments),
        }
    }

    /// True if one of the results is over no elements.
    fn has_empty(self, x: Tensor<'_>) -> bool {
        match self {
            Over::All => x.numel() == 0,
            Over::Each(segments) => segments.ranges.iter().any(|(_, len)| *len == 0),
        }
    }

    /// Repeats results over the elements that they were computed from; 1 elsewhere.
    #[track_caller]
    fn spread<'t>(self, y: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
        match self {
            Over::All => y.broadcast_to(x.shape()),
            Over::Each(segments) => {
                let inside = y.ones_like().segment_broadcast(segments).equals(1.0);
                inside.select(y.segment_broadcast(segments), x.ones_like())
            }
        }
    }
}

/// `(sum |x|^p)^(1/p)`, for p above 0; for infinite p the largest magnitude. 0 over nothing; NaN if an element is NaN,
/// else infinite if one is. The gradient at 0 is 0.
#[track_caller]
pub(super) fn norm<'t>(x: Tensor<'t>, p: f64, over: Over<'_>) -> Tensor<'t> {
    if p == 2.0 {
        return over.reduce(Reduce::Norm, x);
    }
    if p == 1.0 {
        return over.reduce(Reduce::Sum, x.abs());
    }
    let mut largest = over.reduce(Reduce::Max, x.abs());
    if over.has_empty(x) {
        largest = largest.equals(f64::NEG_INFINITY).select(largest.zeros_like(), largest);
    }
    if p == f64::INFINITY {
        return largest;
    }
    // Computed in units of the largest magnitude, which is a constant to gradients: the formula is homogeneous, so that
    // this changes no derivative of any order. Both powers may have an infinite slope at 0: their inputs are replaced
    // there.
    let unit = largest.detach();
    let unit = unit.is_finite().and(unit.not_equals(0.0)).select(unit, unit.ones_like());
    let sum = over.reduce(Reduce::Sum, power(x.abs() / over.spread(unit, x), p));
    power(sum, 1.0 / p) * unit
}

/// `x^p` for x of at least 0, with gradient 0 at 0.
#[track_caller]
fn power<'t>(x: Tensor<'t>, p: f64) -> Tensor<'t> {
    let zero = x.equals(0.0);
    zero.select(x.zeros_like(), zero.select(x.ones_like(), x).pow(p))
}
