//! Strategies for views: the ways in which a tensor can lie within a larger one.

use crate::{Shape, Tensor};
use proptest::{collection::vec, prelude::*};

/// No leaf has more elements, unless the view itself has.
const MAX_LEAF: usize = 1024;

/// The layout of a tensor of one shape within a leaf of another: movements, applied in order. Plain data, so that a
/// failing case prints, and shrinks to fewer movements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    leaf: Shape,
    shape: Shape,
    movements: Vec<Movement>,
}

/// One movement.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Movement {
    Permute(Vec<usize>),
    Slice { axis: usize, start: usize, len: usize, step: isize },
    Broadcast(Shape),
    Reshape(Shape),
}

/// The kind of a movement.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Slice,
    Permute,
    Reshape,
    Broadcast,
}

impl View {
    /// The shape of the leaf that the view is of.
    pub fn leaf_shape(&self) -> &Shape {
        &self.leaf
    }

    /// The shape of the view.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Records the view of a leaf.
    ///
    /// # Panics
    /// If the tensor is not of [`View::leaf_shape`].
    #[track_caller]
    pub fn apply<'t>(&self, leaf: Tensor<'t>) -> Tensor<'t> {
        assert!(leaf.shape() == self.leaf, "view of {leaf:?}: the leaf must be {}", self.leaf);
        let mut x = leaf;
        for movement in &self.movements {
            x = match movement {
                Movement::Permute(order) => x.permute(order),
                Movement::Slice { axis, start, len, step } => x.slice_step(*axis, *start, *len, *step),
                Movement::Broadcast(to) => x.broadcast_to(to),
                Movement::Reshape(to) => x.reshape(to),
            };
        }
        x
    }

    /// This view with one more movement at the start, which makes the old leaf a view of a new one. `None` if the
    /// movement does not apply.
    fn before(&self, kind: Kind, n: [u8; 4]) -> Option<Self> {
        let now = &self.leaf;
        let [n0, n1, n2, n3] = n.map(usize::from);
        let axis = || (now.rank() > 0).then(|| n0 % now.rank());
        let (leaf, movement) = match kind {
            Kind::Permute => {
                let mut left: Vec<usize> = (0..now.rank()).collect();
                let order: Vec<usize> = (0..now.rank()).map(|i| left.remove((n0 >> (2 * i)) % left.len())).collect();
                let leaf = order.iter().zip(now.iter()).fold(now.clone(), |leaf, (&from, &n)| leaf.with(from, n));
                (leaf, Movement::Permute(order))
            }
            Kind::Slice => {
                let (axis, len) = (axis()?, now[axis()?]);
                let (before, after, stride) = (n1 % 3, n2 % 3, 1 + n3 / 2 % 3);
                let span = len.checked_sub(1).map_or(0, |last| last * stride + 1);
                let backwards = n3 % 2 == 1;
                let start = if backwards { (before + span).saturating_sub(1) } else { before };
                let step = if backwards { -(stride as isize) } else { stride as isize };
                (now.with(axis, before + span + after), Movement::Slice { axis, start, len, step })
            }
            Kind::Broadcast => {
                let leaf = match n1 % 2 {
                    0 => now.with(axis()?, 1),
                    _ => now[1 + axis()?..].into(),
                };
                (leaf, Movement::Broadcast(now.clone()))
            }
            Kind::Reshape => {
                let numel = now.numel();
                let divisors: Vec<usize> = (1..=numel).filter(|d| numel.is_multiple_of(*d)).collect();
                let rows = divisors.get(n1 % divisors.len().max(1)).copied().unwrap_or(3);
                let leaf: Shape = match n0 % 3 {
                    0 => [numel].into(),
                    1 => [rows, numel / rows].into(),
                    _ => [&now[..], &[1]].concat().into(),
                };
                (leaf, Movement::Reshape(now.clone()))
            }
        };
        if leaf.numel() > MAX_LEAF.max(self.shape.numel()) {
            return None;
        }
        let movements = [&[movement], &self.movements[..]].concat();
        Some(Self { leaf, shape: self.shape.clone(), movements })
    }
}

fn of_kinds(shape: Shape, kinds: &'static [Kind]) -> impl Strategy<Value = View> {
    vec((proptest::sample::select(kinds), any::<[u8; 4]>()), 0..5).prop_map(move |movements| {
        let whole = View { leaf: shape.clone(), shape: shape.clone(), movements: vec![] };
        movements.into_iter().fold(whole, |view, (kind, n)| view.before(kind, n).unwrap_or(view))
    })
}

/// A view of this shape, by up to four movements: dimensions in another order, slices with steps and backwards,
/// broadcasts, reshapes.
pub fn view(shape: Shape) -> impl Strategy<Value = View> {
    of_kinds(shape, &[Kind::Slice, Kind::Permute, Kind::Reshape, Kind::Broadcast])
}

/// A view of this shape in which every element is a different one of the leaf, at constant strides: slices and
/// dimensions in another order.
pub fn strided_view(shape: Shape) -> impl Strategy<Value = View> {
    of_kinds(shape, &[Kind::Slice, Kind::Permute])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, Tape,
        testing::shapes::{shape, tests::samples},
    };

    #[test]
    fn views_have_the_shape_that_was_asked_for_and_every_kind_of_movement() {
        let (mut seen, mut backwards, mut dropped) = ([0; 4], 0, 0);
        for (shape, view) in samples(&shape().prop_flat_map(|s| (Just(s.clone()), view(s))), 2000) {
            let tape = Tape::default();
            let y = view.apply(tape.input("leaf", view.leaf_shape(), DType::F64));
            assert_eq!((y.shape(), view.shape()), (shape.clone(), &shape), "{view:?}");
            for movement in &view.movements {
                let (kind, reversed, fewer) = match movement {
                    Movement::Permute(_) => (0, false, false),
                    Movement::Slice { step, .. } => (1, *step < 0, false),
                    Movement::Broadcast(_) => (2, false, view.leaf.rank() < shape.rank()),
                    Movement::Reshape(_) => (3, false, false),
                };
                seen[kind] += 1;
                backwards += reversed as usize;
                dropped += fewer as usize;
            }
        }
        assert!(seen.iter().all(|n| *n > 300) && backwards > 100 && dropped > 50, "{seen:?} {backwards} {dropped}");
    }

    #[test]
    fn strided_views_repeat_and_flatten_nothing() {
        for (shape, view) in samples(&shape().prop_flat_map(|s| (Just(s.clone()), strided_view(s))), 500) {
            let tape = Tape::default();
            assert_eq!(view.apply(tape.input("leaf", view.leaf_shape(), DType::F64)).shape(), shape);
            let strided = |m: &Movement| matches!(m, Movement::Permute(_) | Movement::Slice { .. });
            assert!(view.movements.iter().all(strided) && view.leaf.numel() >= shape.numel(), "{view:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the leaf must be [2, 3]")]
    fn a_leaf_of_another_shape_is_refused() {
        let view = View { leaf: [2, 3].into(), shape: [2, 3].into(), movements: vec![] };
        let tape = Tape::default();
        let _ = view.apply(tape.input("leaf", [3, 2], DType::F64));
    }
}
