//! Strategies for shapes and for numbers: small, odd, of extent 1, empty.

use crate::{Array, DType, Data, Shape};
use proptest::prelude::*;

/// Extents worth testing. Odd ones leave remainders in every blocked loop; empty ones are rare, since all results of an
/// empty value are empty, too.
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
        // Drop dimensions, outermost first, until the rest is small enough. The other extents of an empty shape must be
        // small, too.
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

/// Shapes of two factors of a matrix product: `[.., m, k]` and `[.., k, n]`, with leading dimensions that broadcast.
pub fn matmul_shapes() -> impl Strategy<Value = (Shape, Shape)> {
    let batch = (shape_up_to(2, 6), any::<[u8; 4]>());
    (batch, extent(), extent(), extent()).prop_map(|((batch, [ones_a, drop_a, ones_b, drop_b]), m, k, n)| {
        let a = narrowed(&batch, ones_a, drop_a);
        let b = narrowed(&batch, ones_b & !ones_a, drop_b);
        ([&a[..], &[m, k]].concat().into(), [&b[..], &[k, n]].concat().into())
    })
}

/// The exponents that tell float types apart: of the largest power of 2, the smallest normal number, and the smallest
/// number; and the digits of the mantissa.
fn limits(dtype: DType) -> (i32, i32, i32, i32) {
    match dtype {
        DType::F64 => (1023, -1022, -1074, 52),
        DType::F32 => (127, -126, -149, 23),
        DType::F16 => (15, -14, -24, 10),
        _ => panic!("special floats: {dtype} has none"),
    }
}

/// 2 to a power, subnormal ones included, which `powi` may lose.
fn power_of_2(exponent: i32) -> f64 {
    if exponent >= -1022 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    } else {
        f64::from_bits(1 << (exponent + 1074))
    }
}

/// Floats that a kernel may treat differently from others, exact in a float type: NaN, both infinities, both zeros,
/// subnormal numbers, the smallest normal and the largest number of either sign, and ordinary ones in between. They
/// shrink towards ordinary ones.
///
/// # Panics
/// If the type is not a float.
pub fn special_floats(dtype: DType) -> impl Strategy<Value = f64> {
    let (largest, normal, smallest, digits) = limits(dtype);
    let largest = power_of_2(largest) * (2.0 - power_of_2(-digits));
    let subnormal = (1..1u32 << digits.min(23)).prop_map(move |n| f64::from(n) * power_of_2(smallest));
    let magnitude = prop_oneof![
        6 => away_from_zero().prop_map(f64::abs),
        1 => Just(0.0),
        1 => Just(power_of_2(normal)),
        1 => Just(largest),
        1 => subnormal,
        1 => Just(f64::INFINITY),
        1 => Just(f64::NAN),
    ];
    (magnitude, any::<bool>()).prop_map(move |(x, negative)| {
        let exact = Data::from_f64(dtype, &[if negative { -x } else { x }]);
        exact.to_f64()[0]
    })
}

/// An array of a shape and float type, its elements special: see [`special_floats`].
///
/// # Panics
/// If the type is not a float.
pub fn special_array(shape: Shape, dtype: DType) -> impl Strategy<Value = Array> {
    let numel = shape.numel();
    proptest::collection::vec(special_floats(dtype), numel)
        .prop_map(move |values| Array::new(&shape, Data::from_f64(dtype, &values)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Tape;
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    use std::collections::BTreeMap;

    /// Samples of a strategy.
    pub(in crate::testing) fn samples<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
        let mut runner = TestRunner::deterministic();
        (0..count).map(|_| strategy.new_tree(&mut runner).expect("nothing is rejected").current()).collect()
    }

    #[test]
    fn special_floats_are_of_every_class_and_exact() {
        let f16_class = |x: f64| match x.abs() {
            x if x.is_nan() => "nan",
            x if x.is_infinite() => "infinite",
            0.0 => "zero",
            65504.0 => "largest",
            x if x == 2f64.powi(-14) => "smallest normal",
            x if x < 2f64.powi(-14) => "subnormal",
            _ => "ordinary",
        };
        let f32_class = |x: f64| match (x as f32).abs() {
            x if x.is_nan() => "nan",
            x if x.is_infinite() => "infinite",
            0.0 => "zero",
            f32::MAX => "largest",
            f32::MIN_POSITIVE => "smallest normal",
            x if x < f32::MIN_POSITIVE => "subnormal",
            _ => "ordinary",
        };
        let f64_class = |x: f64| match x.abs() {
            x if x.is_nan() => "nan",
            x if x.is_infinite() => "infinite",
            0.0 => "zero",
            f64::MAX => "largest",
            f64::MIN_POSITIVE => "smallest normal",
            x if x < f64::MIN_POSITIVE => "subnormal",
            _ => "ordinary",
        };
        let classes: [(DType, &dyn Fn(f64) -> &'static str); 3] =
            [(DType::F16, &f16_class), (DType::F32, &f32_class), (DType::F64, &f64_class)];
        for (dtype, class) in classes {
            let mut seen: BTreeMap<(&str, bool), usize> = BTreeMap::new();
            for x in samples(&special_floats(dtype), 2000) {
                *seen.entry((class(x), x.is_sign_negative() && !x.is_nan())).or_default() += 1;
                let kept = Data::from_f64(dtype, &[x]).to_f64()[0];
                assert!(kept.to_bits() == x.to_bits() || x.is_nan(), "{dtype}: {x}");
            }
            assert_eq!(seen.len(), 13, "{dtype}: six classes of either sign, and NaN: {seen:?}");
            assert!(seen.values().all(|n| *n > 30), "{dtype}: {seen:?}");
        }
    }

    #[test]
    fn special_arrays_have_their_shape_and_type() {
        let arrays = shape().prop_flat_map(|s| (Just(s.clone()), special_array(s, DType::F32)));
        let mut finite = [0, 0];
        for (shape, array) in samples(&arrays, 200) {
            assert_eq!((array.shape(), array.dtype()), (&shape, DType::F32));
            array.to_f64().iter().for_each(|x| finite[x.is_finite() as usize] += 1);
        }
        assert!(finite.iter().all(|n| *n > 100), "{finite:?}");
    }

    #[test]
    fn shapes_broadcast_and_multiply() {
        let (mut batched, mut spread) = (0, 0);
        for (a, b) in samples(&broadcastable(), 500) {
            let both = a.broadcast(&b).expect("they broadcast");
            spread += (both != a && both != b) as usize;
        }
        for (a, b) in samples(&matmul_shapes(), 500) {
            let t = Tape::default();
            let product = t.input("a", &a, DType::F64).matmul(t.input("b", &b, DType::F64)).shape();
            assert_eq!(product[product.rank() - 2..], [a[a.rank() - 2], b[b.rank() - 1]]);
            batched += (a.rank() > 2 && b.rank() != a.rank()) as usize;
        }
        assert!(spread > 20 && batched > 20, "{spread} {batched}");
    }
}
