//! Elementwise kernels: one loop each, written so that the compiler vectorises the contiguous and repeated cases.

use crate::nest::Nest;
use rayon::prelude::*;

/// Below this many weighted elements a kernel runs on the calling thread: about 20 us of work.
const SERIAL: usize = 32 * 1024;

/// Runs `f` on stretches of `out`, given each one's first point; on several threads where there is enough to do.
/// `cost` weighs one element, an addition being 1. The split does not change any element's value.
pub(crate) fn split<T: Send>(out: &mut [T], cost: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let threads = rayon::current_num_threads();
    if threads == 1 || out.len() * cost < SERIAL {
        return f(0, out);
    }
    let chunk = out.len().div_ceil(threads).next_multiple_of(64);
    out.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| f(i * chunk, part));
}

pub(crate) fn map1<A: Copy + Sync, O: Send>(
    nest: &Nest<1>,
    a: &[A],
    out: &mut [O],
    cost: usize,
    f: impl Fn(A) -> O + Sync,
) {
    split(out, cost, |start, out| {
        nest.visit(start..start + out.len(), |point, len, [ia]| {
            let out = &mut out[point - start..][..len];
            match nest.strides {
                [1] => out.iter_mut().zip(&a[ia..][..len]).for_each(|(o, &a)| *o = f(a)),
                [0] => out.iter_mut().for_each(|o| *o = f(a[ia])),
                [sa] => out.iter_mut().enumerate().for_each(|(i, o)| *o = f(a[at(ia, i, sa)])),
            }
        });
    });
}

pub(crate) fn map2<A: Copy + Sync, O: Send>(
    nest: &Nest<2>,
    a: &[A],
    b: &[A],
    out: &mut [O],
    cost: usize,
    f: impl Fn(A, A) -> O + Sync,
) {
    split(out, cost, |start, out| {
        nest.visit(start..start + out.len(), |point, len, [ia, ib]| {
            let out = &mut out[point - start..][..len];
            match nest.strides {
                [1, 1] => {
                    let pairs = a[ia..][..len].iter().zip(&b[ib..][..len]);
                    out.iter_mut().zip(pairs).for_each(|(o, (&a, &b))| *o = f(a, b));
                }
                [1, 0] => {
                    let b = b[ib];
                    out.iter_mut().zip(&a[ia..][..len]).for_each(|(o, &a)| *o = f(a, b));
                }
                [0, 1] => {
                    let a = a[ia];
                    out.iter_mut().zip(&b[ib..][..len]).for_each(|(o, &b)| *o = f(a, b));
                }
                [sa, sb] => {
                    let each = |(i, o): (usize, &mut O)| *o = f(a[at(ia, i, sa)], b[at(ib, i, sb)]);
                    out.iter_mut().enumerate().for_each(each);
                }
            }
        });
    });
}

/// `condition ? a : b`.
pub(crate) fn select<T: Copy + Send + Sync>(nest: &Nest<3>, condition: &[bool], a: &[T], b: &[T], out: &mut [T]) {
    split(out, 1, |start, out| {
        nest.visit(start..start + out.len(), |point, len, [ic, ia, ib]| {
            let out = &mut out[point - start..][..len];
            match nest.strides {
                // One condition for the whole run: a copy of one side.
                [0, 1, 1] => out.copy_from_slice(if condition[ic] { &a[ia..][..len] } else { &b[ib..][..len] }),
                [sc, sa, sb] => {
                    for (i, o) in out.iter_mut().enumerate() {
                        *o = if condition[at(ic, i, sc)] { a[at(ia, i, sa)] } else { b[at(ib, i, sb)] };
                    }
                }
            }
        });
    });
}

/// The position of element `i` of a run that starts at `base`.
pub(crate) fn at(base: usize, i: usize, stride: isize) -> usize {
    (base as isize + i as isize * stride) as usize
}
