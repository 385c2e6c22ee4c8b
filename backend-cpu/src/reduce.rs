//! Reductions, in an order that depends on nothing but the shape, so that any number of threads gives the same bits.

use crate::{map::split, nest::Nest};
use rayon::prelude::*;

/// Elements per partial result of one long reduction.
const BLOCK: usize = 16 * 1024;
/// Accumulators per inner loop: enough for one vector register of the widest machine.
const LANES: usize = 16;
/// Columns that are reduced side by side.
const COLUMNS: usize = 256;

/// How a reduction combines elements of `T`, by way of an accumulator `A`.
pub(crate) trait Monoid<T>: Sync {
    type A: Copy + Send + Sync;
    const START: Self::A;
    fn add(a: Self::A, x: T) -> Self::A;
    fn merge(a: Self::A, b: Self::A) -> Self::A;
    fn finish(a: Self::A) -> T;
}

/// Sums: floats accumulate in f64, integers wrap.
pub(crate) struct Sum;
/// Maxima: NaN wins over everything.
pub(crate) struct Max;

macro_rules! monoids {
    ($($t:ty, $acc:ty, $least:expr, $sum:expr;)*) => { $(
        impl Monoid<$t> for Sum {
            type A = $acc;
            const START: $acc = 0 as $acc;
            fn add(a: $acc, x: $t) -> $acc {
                $sum(a, x as $acc)
            }
            fn merge(a: $acc, b: $acc) -> $acc {
                $sum(a, b)
            }
            fn finish(a: $acc) -> $t {
                a as $t
            }
        }
        impl Monoid<$t> for Max {
            type A = $t;
            const START: $t = $least;
            fn add(a: $t, x: $t) -> $t {
                Larger::larger(a, x)
            }
            fn merge(a: $t, b: $t) -> $t {
                Larger::larger(a, b)
            }
            fn finish(a: $t) -> $t {
                a
            }
        }
    )* };
}
monoids! {
    f64, f64, f64::NEG_INFINITY, |a, b| a + b;
    f32, f64, f32::NEG_INFINITY, |a, b| a + b;
    u32, u32, u32::MIN, u32::wrapping_add;
    i32, i32, i32::MIN, i32::wrapping_add;
}

/// Euclidean norms.
pub(crate) struct Norm;

/// The squares of f32 neither overflow f64 nor vanish in it.
impl Monoid<f32> for Norm {
    type A = f64;
    const START: f64 = 0.0;
    fn add(a: f64, x: f32) -> f64 {
        a + x as f64 * x as f64
    }
    fn merge(a: f64, b: f64) -> f64 {
        a + b
    }
    fn finish(a: f64) -> f32 {
        a.sqrt() as f32
    }
}

/// A sum of squares, in units of the square of the largest element so far.
#[derive(Clone, Copy)]
pub(crate) struct Squares {
    scale: f64,
    sum: f64,
}

impl Monoid<f64> for Norm {
    type A = Squares;
    const START: Squares = Squares { scale: 0.0, sum: 0.0 };
    fn add(a: Squares, x: f64) -> Squares {
        <Self as Monoid<f64>>::merge(a, Squares { scale: x.abs(), sum: 1.0 })
    }
    fn merge(a: Squares, b: Squares) -> Squares {
        let scale = a.scale.larger(b.scale);
        if scale == 0.0 || !scale.is_finite() {
            return Squares { scale, sum: 1.0 };
        }
        let square = |v: f64| v * v;
        Squares { scale, sum: a.sum * square(a.scale / scale) + b.sum * square(b.scale / scale) }
    }
    fn finish(a: Squares) -> f64 {
        a.scale * a.sum.sqrt()
    }
}

impl Monoid<bool> for Max {
    type A = bool;
    const START: bool = false;
    fn add(a: bool, x: bool) -> bool {
        a | x
    }
    fn merge(a: bool, b: bool) -> bool {
        a | b
    }
    fn finish(a: bool) -> bool {
        a
    }
}

/// The larger of two values; NaN if either is.
pub(crate) trait Larger: Copy {
    fn larger(self, other: Self) -> Self;
}

macro_rules! larger {
    ($($t:ty: $a:ident $b:ident => $e:expr;)*) => { $(
        impl Larger for $t {
            fn larger(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $e
            }
        }
    )* };
}
larger! {
    f64: a b => if a >= b || a.is_nan() { a } else { b };
    f32: a b => if a >= b || a.is_nan() { a } else { b };
    u32: a b => a.max(b);
    i32: a b => a.max(b);
    bool: a b => a | b;
}

/// The loops of a reduction: over the results, and over what each one combines.
#[derive(Clone, Debug)]
pub(crate) struct ReduceNest {
    kept: Nest<1>,
    reduced: Nest<1>,
    /// Whether neighbouring results are reduced side by side, because their inputs are neighbours.
    columns: bool,
}

impl ReduceNest {
    pub fn new(extents: &[usize], offset: usize, strides: &[isize], axes: &[usize]) -> Self {
        let part = |reduced: bool, offset: usize| {
            let dims = || (0..extents.len()).filter(|d| axes.contains(d) == reduced);
            let (n, s): (Vec<usize>, Vec<isize>) = dims().map(|d| (extents[d], strides[d])).unzip();
            Nest::new(&n, [offset], [&s])
        };
        let (kept, reduced) = (part(false, offset), part(true, 0));
        let columns = kept.strides == [1] && kept.len() > 1 && (reduced.strides != [1] || reduced.len() == 1);
        Self { kept, reduced, columns }
    }
}

pub(crate) fn reduce<T: Copy + Send + Sync, M: Monoid<T>>(nest: &ReduceNest, x: &[T], out: &mut [T]) {
    let each = nest.reduced.len();
    if nest.columns {
        return split(out, each, |start, out| {
            nest.kept.visit(start..start + out.len(), |point, len, [base]| {
                for (c, out) in out[point - start..][..len].chunks_mut(COLUMNS).enumerate() {
                    let mut sums = [M::START; COLUMNS];
                    nest.reduced.visit(0..each, |_, rows, [row]| {
                        for r in 0..rows {
                            let row = crate::map::at(row, r, nest.reduced.strides[0]);
                            let first = forth(base, row) + c * COLUMNS;
                            let xs = &x[first..][..out.len()];
                            sums.iter_mut().zip(xs).for_each(|(sum, &x)| *sum = M::add(*sum, x));
                        }
                    });
                    out.iter_mut().zip(sums).for_each(|(o, sum)| *o = M::finish(sum));
                }
            });
        });
    }
    // Each result is the merge of partial results over blocks of fixed size, in order.
    let partial = |base: usize, block: usize| {
        let range = block * BLOCK..each.min((block + 1) * BLOCK);
        let mut total = M::START;
        nest.reduced.visit(range, |_, len, [i]| {
            total = M::merge(total, run::<T, M>(x, forth(base, i), len, nest.reduced.strides[0]));
        });
        total
    };
    let blocks = each.div_ceil(BLOCK);
    let whole = |base: usize| (0..blocks).map(|b| partial(base, b)).fold(M::START, M::merge);
    if out.len() == 1 && blocks > 1 && rayon::current_num_threads() > 1 {
        let mut base = 0;
        nest.kept.visit(0..1, |_, _, [b]| base = b);
        let partials: Vec<M::A> = (0..blocks).into_par_iter().map(|b| partial(base, b)).collect();
        out[0] = M::finish(partials.into_iter().fold(M::START, M::merge));
        return;
    }
    split(out, each, |start, out| {
        nest.kept.visit(start..start + out.len(), |point, len, [base]| {
            for (i, o) in out[point - start..][..len].iter_mut().enumerate() {
                *o = M::finish(whole(crate::map::at(base, i, nest.kept.strides[0])));
            }
        });
    });
}

/// Where a walk that began at `base` has got to. Its distance is negative, in two's complement, where it walks backwards.
fn forth(base: usize, distance: usize) -> usize {
    base.wrapping_add(distance)
}

/// Combines one run of evenly spaced elements.
fn run<T: Copy, M: Monoid<T>>(x: &[T], base: usize, len: usize, stride: isize) -> M::A {
    if stride != 1 {
        return (0..len).fold(M::START, |a, i| M::add(a, x[crate::map::at(base, i, stride)]));
    }
    let mut lanes = [M::START; LANES];
    let chunks = x[base..][..len].chunks_exact(LANES);
    let tail = chunks.remainder().iter().fold(M::START, |a, &x| M::add(a, x));
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = M::add(*lane, x));
    }
    lanes.into_iter().fold(tail, M::merge)
}

/// The index of the first largest element along an axis, for each result.
pub(crate) fn argmax<T: Larger + PartialOrd + Send + Sync>(
    kept: &Nest<1>,
    extent: usize,
    stride: isize,
    x: &[T],
    out: &mut [u32],
) {
    split(out, extent, |start, out| {
        kept.visit(start..start + out.len(), |point, len, [base]| {
            for (i, o) in out[point - start..][..len].iter_mut().enumerate() {
                let value = |j: usize| x[crate::map::at(crate::map::at(base, i, kept.strides[0]), j, stride)];
                // `a != a` is how NaN shows itself in any ordered type.
                let nan = |a: T| a.partial_cmp(&a).is_none();
                let beats = |a: T, b: T| a > b || (nan(a) && !nan(b));
                *o = (1..extent).fold(0, |best, j| if beats(value(j), value(best)) { j } else { best }) as u32;
            }
        });
    });
}
