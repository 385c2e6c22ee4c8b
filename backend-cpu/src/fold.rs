//! Reductions of a block into accumulators, in an order that depends on nothing but the shape.

use crate::{lanes::Number, memory::Element};
use pulp::{Arch, NullaryFnOnce};
use wgrad::{DType, f16, op::Reduce};

/// Accumulators per inner loop: enough vector registers to hide how long an addition takes.
const WIDE: usize = 64;
/// Accumulators for what is left over.
const NARROW: usize = 8;

/// What accumulates: some [`Element`]s of scratch.
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

/// How a reduction combines elements of `T`, by way of an accumulator `A`.
pub(crate) trait Monoid<T> {
    type A: Accumulator;
    const START: Self::A;
    fn add(a: Self::A, x: T) -> Self::A;
    fn merge(a: Self::A, b: Self::A) -> Self::A;
    fn finish(a: Self::A) -> T;
}

/// Sums: floats accumulate in f64, integers wrap.
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
    f32, f64, |a, b| a + b;
    u32, u32, u32::wrapping_add;
    i32, i32, i32::wrapping_add;
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
        use crate::fold::{Max, Norm, Sum};
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

/// What a reduction's accumulators are made of.
pub(crate) type Store<T, M> = <<M as Monoid<T>>::A as Accumulator>::Store;

/// The accumulators in a piece of scratch.
pub(crate) fn start<T, M: Monoid<T>>(acc: &mut [Store<T, M>]) {
    M::A::view_mut(acc).fill(M::START);
}

/// Merges accumulators into others.
pub(crate) fn merge<T, M: Monoid<T>>(acc: &mut [Store<T, M>], other: &[Store<T, M>]) {
    M::A::view_mut(acc).iter_mut().zip(M::A::view(other)).for_each(|(a, &b)| *a = M::merge(*a, b));
}

/// The results.
pub(crate) fn finish<T, M: Monoid<T>>(acc: &[Store<T, M>], out: &mut [T]) {
    out.iter_mut().zip(M::A::view(acc)).for_each(|(o, &a)| *o = M::finish(a));
}

struct Rows<'a, T, M: Monoid<T>>(&'a [T], usize, &'a mut [M::A]);

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
pub(crate) fn run<T: Copy, M: Monoid<T>>(mut acc: M::A, x: &[T]) -> M::A {
    let (wide, tail) = x.as_chunks::<WIDE>();
    if !wide.is_empty() {
        acc = M::merge(acc, side_by_side::<T, M, WIDE>(wide));
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

/// Combines all elements of a row into an accumulator.
pub(crate) fn row<T: Copy, M: Monoid<T>>(x: &[T], acc: &mut M::A) {
    Arch::new().dispatch(Rows::<T, M>(x, x.len().max(1), std::slice::from_mut(acc)));
}

struct Columns<'a, T, M: Monoid<T>>(&'a [T], &'a mut [M::A]);

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
