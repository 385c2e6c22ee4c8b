//! Reductions of a block into accumulators, in an order that depends on nothing but the shape.

use crate::{
    memory::{elements::Element, half::widen},
    simd::functions::Number,
};
use pulp::{Arch, NullaryFnOnce};
use wgrad::{DType, f16, f16_from_f64, op::Reduce};

/// The elements of a group. Rows of whole groups are combined group by group in every kernel, so the bits of a sum do not depend
/// on what else a kernel computes.
pub(crate) const WIDE: usize = 128;
/// Accumulators per inner loop: enough vector registers to hide how long an addition takes.
const LANES: usize = 64;
/// Accumulators for the elements after the last whole group.
const NARROW: usize = 8;

/// An accumulator: some [`Element`]s of scratch.
pub(crate) trait Accumulator: Copy + Send + Sync {
    type Store: Element;
    fn view(store: &[Self::Store]) -> &[Self];
    fn view_mut(store: &mut [Self::Store]) -> &mut [Self];
}

macro_rules! plain {
    ($($t:ty),*) => { $(
        impl Accumulator for $t {
            type Store = $t;
            fn view(store: &[$t]) -> &[$t] {
                store
            }
            fn view_mut(store: &mut [$t]) -> &mut [$t] {
                store
            }
        }
    )* };
}
plain!(f64, f32, f16, u32, i32, bool);

/// A reduction of elements of `T`, by way of an accumulator `A`.
pub(crate) trait Monoid<T: Copy>: Sized {
    type A: Accumulator;
    const START: Self::A;
    fn add(a: Self::A, x: T) -> Self::A;
    fn merge(a: Self::A, b: Self::A) -> Self::A;
    fn finish(a: Self::A) -> T;

    /// Combines groups of neighbouring elements.
    #[inline(always)]
    fn groups(groups: &[[T; WIDE]]) -> Self::A {
        side_by_side::<T, Self, LANES>(groups.as_flattened().as_chunks().0)
    }

    /// Combines two blocks of equally many groups, each by itself.
    #[inline(always)]
    fn both([a, b]: [&[[T; WIDE]]; 2]) -> [Self::A; 2] {
        [Self::groups(a), Self::groups(b)] // No `map`: what it calls is not compiled for the processor's vectors.
    }
}

/// Sums: floats accumulate in f64, integers wrap. Of f32 in whole groups, eight at a time are summed two by two before:
/// that adds at most 3 half units in the last place of the sum of their magnitudes, and leaves less to convert.
pub(crate) struct Sum;
/// Maxima: NaN wins over everything.
pub(crate) struct Max;
/// Euclidean norms.
pub(crate) struct Norm;

macro_rules! sums {
    ($($t:ty, $acc:ty, $sum:expr;)*) => { $(
        impl Monoid<$t> for Sum {
            type A = $acc;
            const START: $acc = 0 as $acc;
            #[inline(always)]
            fn add(a: $acc, x: $t) -> $acc {
                $sum(a, x as $acc)
            }
            #[inline(always)]
            fn merge(a: $acc, b: $acc) -> $acc {
                $sum(a, b)
            }
            fn finish(a: $acc) -> $t {
                a as $t
            }
        }
    )* };
}
sums! {
    f64, f64, |a, b| a + b;
    u32, u32, u32::wrapping_add;
    i32, i32, i32::wrapping_add;
}

impl Monoid<f32> for Sum {
    type A = f64;
    const START: f64 = 0.0;
    #[inline(always)]
    fn add(a: f64, x: f32) -> f64 {
        a + f64::from(x)
    }
    #[inline(always)]
    fn merge(a: f64, b: f64) -> f64 {
        a + b
    }
    fn finish(a: f64) -> f32 {
        a as f32
    }
    #[inline(always)]
    fn groups(groups: &[[f32; WIDE]]) -> f64 {
        let mut lanes = [0.0; EIGHTH];
        for x in groups {
            add_eighths(&mut lanes, x);
        }
        merged::<f32, Self, EIGHTH>(lanes)
    }
    /// Side by side: memory answers two places at once sooner than one after the other.
    #[inline(always)]
    fn both([a, b]: [&[[f32; WIDE]]; 2]) -> [f64; 2] {
        let mut lanes = [[0.0; EIGHTH]; 2];
        for (a, b) in a.iter().zip(b) {
            add_eighths(&mut lanes[0], a);
            add_eighths(&mut lanes[1], b);
        }
        [merged::<f32, Self, EIGHTH>(lanes[0]), merged::<f32, Self, EIGHTH>(lanes[1])]
    }
}

/// Elements that [`Sum`] adds up in f64, of a group of f32.
const EIGHTH: usize = WIDE / 8;

/// Adds a group's elements to an eighth as many.
#[inline(always)]
fn add_eighths(lanes: &mut [f64; EIGHTH], x: &[f32; WIDE]) {
    for i in 0..EIGHTH {
        let near = (x[i] + x[i + EIGHTH]) + (x[i + 2 * EIGHTH] + x[i + 3 * EIGHTH]);
        let far = (x[i + 4 * EIGHTH] + x[i + 5 * EIGHTH]) + (x[i + 6 * EIGHTH] + x[i + 7 * EIGHTH]);
        lanes[i] += f64::from(near + far);
    }
}

impl<T: Number + Accumulator> Monoid<T> for Max {
    type A = T;
    const START: T = T::LEAST;
    #[inline(always)]
    fn add(a: T, x: T) -> T {
        a.larger(x)
    }
    #[inline(always)]
    fn merge(a: T, b: T) -> T {
        a.larger(b)
    }
    fn finish(a: T) -> T {
        a
    }
    #[inline(always)]
    fn groups(groups: &[[T; WIDE]]) -> T {
        const FOURTH: usize = WIDE / 4;
        let by_steps = || side_by_side::<T, Self, LANES>(groups.as_flattened().as_chunks().0);
        if T::DTYPE == DType::F16 {
            return by_steps(); // Which are widened first: the type's own comparisons are not made for vectors.
        }
        // A separate search for NaN, in pairs, costs half as much as a comparison that lets NaN win at each step.
        let (mut lanes, mut non_finite) = ([T::LEAST; FOURTH], [0u32; FOURTH]);
        let larger = |a: T, b: T| if a < b { b } else { a };
        for x in groups {
            for i in 0..FOURTH {
                let [a, b, c, d] = [x[i], x[i + FOURTH], x[i + 2 * FOURTH], x[i + 3 * FOURTH]];
                lanes[i] = larger(lanes[i], larger(larger(a, b), larger(c, d)));
                non_finite[i] |= u32::from(a.partial_cmp(&b).is_none() | c.partial_cmp(&d).is_none());
            }
        }
        // One comparison of all: LLVM cannot select WebAssembly's instructions for a comparison of each.
        if non_finite.iter().fold(0, |all, non_finite| all | non_finite) != 0 {
            return by_steps();
        }
        let mut width = FOURTH / 2;
        while width > 0 {
            (0..width).for_each(|i| lanes[i] = larger(lanes[i], lanes[i + width]));
            width /= 2;
        }
        lanes[0]
    }
}

/// The squares of f32 neither overflow f64 nor vanish in it.
impl Monoid<f32> for Norm {
    type A = f64;
    const START: f64 = 0.0;
    #[inline(always)]
    fn add(a: f64, x: f32) -> f64 {
        // One rounding either way: the square is exact.
        (x as f64).mul_add(x as f64, a)
    }
    #[inline(always)]
    fn merge(a: f64, b: f64) -> f64 {
        a + b
    }
    fn finish(a: f64) -> f32 {
        a.sqrt() as f32
    }
}

/// `[scale, sum]`: a sum of squares, in units of the square of the largest element so far.
impl Accumulator for [f64; 2] {
    type Store = f64;
    fn view(store: &[f64]) -> &[Self] {
        store.as_chunks().0
    }
    fn view_mut(store: &mut [f64]) -> &mut [Self] {
        store.as_chunks_mut().0
    }
}

impl Monoid<f64> for Norm {
    type A = [f64; 2];
    const START: [f64; 2] = [0.0, 0.0];
    #[inline(always)]
    fn add(a: [f64; 2], x: f64) -> [f64; 2] {
        <Self as Monoid<f64>>::merge(a, [x.abs(), 1.0])
    }
    #[inline(always)]
    fn merge(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
        let scale = a[0].larger(b[0]);
        if scale == 0.0 || !scale.is_finite() {
            return [scale, 1.0];
        }
        let square = |v: f64| v * v;
        [scale, a[1] * square(a[0] / scale) + b[1] * square(b[0] / scale)]
    }
    fn finish(a: [f64; 2]) -> f64 {
        a[0] * a[1].sqrt()
    }
}

macro_rules! half_sums {
    ($($m:ty { add: $add:expr, finish: $finish:expr })*) => { $(
        impl Monoid<f16> for $m {
            type A = f64;
            const START: f64 = 0.0;
            #[inline(always)]
            fn add(a: f64, x: f16) -> f64 {
                $add(a, widen(x) as f64)
            }
            #[inline(always)]
            fn merge(a: f64, b: f64) -> f64 {
                a + b
            }
            fn finish(a: f64) -> f16 {
                f16_from_f64($finish(a))
            }
        }
    )* };
}
half_sums! {
    Sum { add: |a, x| a + x, finish: |a| a }
    Norm { add: |a, x| a + x * x, finish: f64::sqrt }
}

/// The type and number of scratch elements that one accumulator of a reduction takes.
pub(crate) fn accumulator(kind: Reduce, dtype: DType) -> (DType, usize) {
    match (kind, dtype) {
        (Reduce::Norm, DType::F64) => (DType::F64, 2),
        (Reduce::Sum | Reduce::Norm, DType::F32 | DType::F16) => (DType::F64, 1),
        _ => (dtype, 1),
    }
}

/// Runs `$body` with `$t` naming the element type and `$m` the monoid of a reduction.
macro_rules! with_monoid {
    ($kind:expr, $dtype:expr, $t:ident, $m:ident => $body:expr) => {{
        use crate::loops::reduce::{Max, Norm, Sum};
        use wgrad::{DType, op::Reduce};
        macro_rules! run {
            ($type:ty, $monoid:ty) => {{
                type $t = $type;
                type $m = $monoid;
                $body
            }};
        }
        match ($kind, $dtype) {
            (Reduce::Sum, DType::F64) => run!(f64, Sum),
            (Reduce::Sum, DType::F32) => run!(f32, Sum),
            (Reduce::Sum, DType::F16) => run!(wgrad::f16, Sum),
            (Reduce::Sum, DType::U32) => run!(u32, Sum),
            (Reduce::Sum, DType::I32) => run!(i32, Sum),
            (Reduce::Max, DType::F64) => run!(f64, Max),
            (Reduce::Max, DType::F32) => run!(f32, Max),
            (Reduce::Max, DType::F16) => run!(wgrad::f16, Max),
            (Reduce::Max, DType::U32) => run!(u32, Max),
            (Reduce::Max, DType::I32) => run!(i32, Max),
            (Reduce::Max, DType::Bool) => run!(bool, Max),
            (Reduce::Norm, DType::F64) => run!(f64, Norm),
            (Reduce::Norm, DType::F32) => run!(f32, Norm),
            (Reduce::Norm, DType::F16) => run!(wgrad::f16, Norm),
            (kind, dtype) => unreachable!("{kind:?} of {dtype}"),
        }
    }};
}
pub(crate) use with_monoid;

/// The elements of a reduction's accumulators.
pub(crate) type Store<T, M> = <<M as Monoid<T>>::A as Accumulator>::Store;

/// The accumulators in a piece of scratch.
pub(crate) fn start<T: Copy, M: Monoid<T>>(acc: &mut [Store<T, M>]) {
    M::A::view_mut(acc).fill(M::START);
}

/// Merges accumulators into others.
pub(crate) fn merge<T: Copy, M: Monoid<T>>(acc: &mut [Store<T, M>], other: &[Store<T, M>]) {
    M::A::view_mut(acc).iter_mut().zip(M::A::view(other)).for_each(|(a, &b)| *a = M::merge(*a, b));
}

/// The results.
pub(crate) fn finish<T: Copy, M: Monoid<T>>(acc: &[Store<T, M>], out: &mut [T]) {
    out.iter_mut().zip(M::A::view(acc)).for_each(|(o, &a)| *o = M::finish(a));
}

struct Rows<'a, T: Copy, M: Monoid<T>>(&'a [T], usize, &'a mut [M::A]);

impl<T: Copy, M: Monoid<T>> NullaryFnOnce for Rows<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(x, columns, acc) = self;
        for (acc, row) in acc.iter_mut().zip(x.chunks_exact(columns)) {
            *acc = run::<T, M>(*acc, row);
        }
    }
}

/// Combines neighbouring elements of a row into its accumulator.
#[inline(always)]
pub(crate) fn run<T: Copy, M: Monoid<T>>(acc: M::A, x: &[T]) -> M::A {
    let (groups, rest) = x.as_chunks::<WIDE>();
    if rest.is_empty() && !groups.is_empty() { M::merge(acc, M::groups(groups)) } else { part::<T, M>(acc, x) }
}

/// As [`run`], for a part of a row that does not consist of whole groups.
#[inline(always)]
pub(crate) fn part<T: Copy, M: Monoid<T>>(mut acc: M::A, x: &[T]) -> M::A {
    let (wide, tail) = x.as_chunks::<LANES>();
    if !wide.is_empty() {
        acc = M::merge(acc, side_by_side::<T, M, LANES>(wide));
    }
    let (narrow, tail) = tail.as_chunks::<NARROW>();
    if !narrow.is_empty() {
        acc = M::merge(acc, side_by_side::<T, M, NARROW>(narrow));
    }
    tail.iter().fold(acc, |a, &x| M::add(a, x))
}

/// Combines groups of elements, each position in the group by itself, and then the positions two by two.
#[inline(always)]
fn side_by_side<T: Copy, M: Monoid<T>, const N: usize>(groups: &[[T; N]]) -> M::A {
    let mut lanes = [M::START; N];
    for group in groups {
        (0..N).for_each(|i| lanes[i] = M::add(lanes[i], group[i]));
    }
    merged::<T, M, N>(lanes)
}

/// Merges accumulators two by two.
#[inline(always)]
fn merged<T: Copy, M: Monoid<T>, const N: usize>(mut lanes: [M::A; N]) -> M::A {
    let mut width = N / 2;
    while width > 0 {
        (0..width).for_each(|i| lanes[i] = M::merge(lanes[i], lanes[i + width]));
        width /= 2;
    }
    lanes[0]
}

/// Combines each row of a block `[acc.len(), columns]` into its accumulator.
pub(crate) fn rows<T: Copy, M: Monoid<T>>(x: &[T], columns: usize, acc: &mut [Store<T, M>]) {
    Arch::new().dispatch(Rows::<T, M>(x, columns, M::A::view_mut(acc)));
}

struct Blocks<'a, T: Copy, M: Monoid<T>>(&'a [T], usize, &'a mut M::A);

impl<T: Copy, M: Monoid<T>> NullaryFnOnce for Blocks<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(x, block, acc) = self;
        let mut pairs = x.chunks_exact(2 * block);
        for pair in &mut pairs {
            let (a, b) = pair.split_at(block);
            if let ((a, []), (b, [])) = (a.as_chunks::<WIDE>(), b.as_chunks::<WIDE>()) {
                let [a, b] = M::both([a, b]);
                *acc = M::merge(M::merge(*acc, a), b);
            } else {
                *acc = run::<T, M>(run::<T, M>(*acc, a), b);
            }
        }
        for x in pairs.remainder().chunks(block) {
            *acc = run::<T, M>(*acc, x);
        }
    }
}

/// Combines all elements of a row into its accumulator, block by block.
pub(crate) fn blocks<T: Copy, M: Monoid<T>>(x: &[T], block: usize, acc: &mut [Store<T, M>]) {
    Arch::new().dispatch(Blocks::<T, M>(x, block, &mut M::A::view_mut(acc)[0]));
}

/// Combines all elements of a row into an accumulator.
pub(crate) fn row<T: Copy, M: Monoid<T>>(x: &[T], acc: &mut M::A) {
    Arch::new().dispatch(Rows::<T, M>(x, x.len().max(1), std::slice::from_mut(acc)));
}

struct Columns<'a, T: Copy, M: Monoid<T>>(&'a [T], &'a mut [M::A]);

impl<T: Copy, M: Monoid<T>> NullaryFnOnce for Columns<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(x, acc) = self;
        for row in x.chunks_exact(acc.len()) {
            acc.iter_mut().zip(row).for_each(|(a, &x)| *a = M::add(*a, x));
        }
    }
}

/// Combines each column of a block `[.., acc.len()]` into its accumulator.
pub(crate) fn columns<T: Copy, M: Monoid<T>>(x: &[T], acc: &mut [Store<T, M>]) {
    Arch::new().dispatch(Columns::<T, M>(x, M::A::view_mut(acc)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::{abs_diff_eq, assert_abs_diff_eq};

    #[test]
    fn sums_of_rows_count_every_element_once() {
        for len in (0..400).chain([1024, 1000, 16384]) {
            // Of both signs, and none like another.
            let x: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 20011) as f32 / 1000.0 - 4.0).collect();
            let mut acc = 0.25;
            row::<f32, Sum>(&x, &mut acc);
            let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
            let magnitudes: f64 = x.iter().map(|&x| f64::from(x.abs())).sum();
            let off = 3.0 * f64::from(f32::EPSILON) / 2.0 * magnitudes;
            assert!(abs_diff_eq!(acc - 0.25, sum, epsilon = off), "{len} elements: {acc} instead of {sum}");
        }
    }

    #[test]
    fn two_blocks_at_once_are_summed_as_one_after_the_other() {
        for (len, block) in
            [(0, 256), (256, 256), (512, 256), (1024, 256), (1300, 256), (2048, 256), (1000, 100), (7, 1)]
        {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 20011) as f32 / 1000.0 - 4.0).collect();
            let (mut one, mut both) = ([0.25], [0.25]);
            x.chunks(block).for_each(|x| rows::<f32, Sum>(x, x.len(), &mut one));
            blocks::<f32, Sum>(&x, block, &mut both);
            assert_eq!(one, both, "{len} elements by {block}");
        }
    }

    #[test]
    fn maxima_of_rows_find_every_element_and_nan() {
        for len in [1, 64, 127, 128, 129, 256, 384, 1024] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 20011) as f32 / -1000.0).collect();
            let maximum = |x: &[f32]| {
                let mut acc = f32::NEG_INFINITY;
                row::<f32, Max>(x, &mut acc);
                acc
            };
            for i in 0..len {
                for put in [1.0, f32::INFINITY] {
                    let mut x = x.clone();
                    x[i] = put;
                    assert_eq!(maximum(&x), put, "at {i} of {len}");
                    x[i] = f32::NAN;
                    x[len / 2] = if i == len / 2 { f32::NAN } else { f32::INFINITY };
                    assert!(maximum(&x).is_nan(), "NaN at {i} of {len}");
                }
            }
        }
    }

    #[test]
    fn sums_of_small_numbers_next_to_large_ones_are_accumulated_in_f64() {
        let mut x = vec![1.0f32; 1 << 14];
        x[0] = 1e9;
        let mut acc = 0.0;
        row::<f32, Sum>(&x, &mut acc);
        // In f32 alone, none of the ones would change the sum. Those that are summed up with the large number first may not.
        assert_abs_diff_eq!(acc, 1e9 + 16383.0, epsilon = 32.0);
    }
}
