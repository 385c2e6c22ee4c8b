//! Strategies for shapes and for numbers: small, odd, of extent 1, empty.

use crate::{Array, DType, Data, Shape};
use proptest::prelude::*;

/// Extents worth testing. Odd ones leave remainders in every blocked loop; empty ones are rare, since whatever they
/// touch is empty too.
fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![6 => Just(2usize), 5 => Just(1), 6 => Just(3), 3 => Just(5), 1 => Just(4), 1 => Just(7), 1 => Just(0)]
}

/// A shape of rank 0 to 4 with at most 60 elements.
pub fn shape() -> impl Strategy<Value = Shape> {
    shape_up_to(4, 60)
}

/// A shape of at most the given rank and number of elements.
pub fn shape_up_to(rank: usize, numel: usize) -> impl Strategy<Value = Shape> {
    proptest::collection::vec(extent(), 0..=rank).prop_map(move |mut dims| {
        // Drop dimensions, outermost first, until the rest is small enough. An empty shape may not be large otherwise.
        while dims.iter().map(|&n| n.max(1)).product::<usize>() > numel {
            dims.remove(0);
        }
        dims.into()
    })
}

/// Two shapes that broadcast: each has some dimensions of a common shape replaced by 1, or leading ones left out.
pub fn broadcastable() -> impl Strategy<Value = (Shape, Shape)> {
    (shape(), any::<(u8, u8)>(), any::<(u8, u8)>()).prop_map(|(both, (ones_a, drop_a), (ones_b, drop_b))| {
        (narrowed(&both, ones_a, drop_a), narrowed(&both, ones_b & !ones_a, drop_b))
    })
}

/// `shape` with the dimensions in the bit set `ones` replaced by 1, and one in four times without its leading ones.
pub(super) fn narrowed(shape: &Shape, ones: u8, drop: u8) -> Shape {
    let dims: Vec<usize> = shape.iter().enumerate().map(|(d, &n)| if ones >> d & 1 == 1 { 1 } else { n }).collect();
    let dropped = if drop.is_multiple_of(4) { drop as usize / 4 % (dims.len() + 1) } else { 0 };
    dims[dropped..].into()
}

/// A number of magnitude 0.1 to 2 and either sign: clear of the kinks that functions have at 0. It has few digits, and
/// so shrinks in few steps.
pub fn away_from_zero() -> impl Strategy<Value = f64> {
    (any::<bool>(), 10..200u32)
        .prop_map(|(negative, size)| if negative { -f64::from(size) } else { size.into() } / 100.0)
}

/// An array of a shape and float type, its elements away from zero.
pub fn array(shape: Shape, dtype: DType) -> impl Strategy<Value = Array> {
    let numel = shape.numel();
    proptest::collection::vec(away_from_zero(), numel)
        .prop_map(move |values| Array::new(&shape, Data::from_f64(dtype, &values)))
}
