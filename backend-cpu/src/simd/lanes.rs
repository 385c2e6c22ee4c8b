//! Loops over a block: compiled for the vector instructions that the machine has, with the same bits on each.

use crate::memory::elements::Element;
use pulp::{Arch, NullaryFnOnce};

/// The values that an instruction uses: one per element of the block, one per line of it, a line that all lines are
/// equal to, or one for all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lanes<'a, T> {
    Slice(&'a [T]),
    Lines(&'a [T]),
    Tile(&'a [T]),
    Splat(T),
}

impl<T: Copy> Lanes<'_, T> {
    /// The number of lines that a block of `len` elements has, as far as this operand is concerned.
    #[inline(always)]
    pub fn lines(&self, len: usize) -> usize {
        match self {
            Self::Lines(x) => x.len(),
            Self::Tile(x) => len / x.len(),
            _ => 1,
        }
    }

    /// The values that one line of the block uses.
    #[inline(always)]
    pub fn line(&self, line: usize, width: usize) -> Self {
        match *self {
            Self::Slice(x) => Self::Slice(&x[line * width..][..width]),
            Self::Lines(x) => Self::Splat(x[line]),
            Self::Tile(x) => Self::Slice(x),
            splat => splat,
        }
    }
}

struct Map1<'a, A, O, F>(&'a [A], &'a mut [O], F);

impl<A: Copy, O, F: Fn(A) -> O> NullaryFnOnce for Map1<'_, A, O, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(a, out, f) = self;
        out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a));
    }
}

struct Map2<'a, A, O, F>(Lanes<'a, A>, Lanes<'a, A>, &'a mut [O], F);

impl<A: Copy, O: Copy, F: Fn(A, A) -> O> NullaryFnOnce for Map2<'_, A, O, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(a, b, out, f) = self;
        let width = out.len() / a.lines(out.len()).max(b.lines(out.len()));
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            match (a.line(r, width), b.line(r, width)) {
                (Lanes::Slice(a), Lanes::Slice(b)) => {
                    out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (&a, &b))| *o = f(a, b));
                }
                (Lanes::Slice(a), Lanes::Splat(b)) => out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a, b)),
                (Lanes::Splat(a), Lanes::Slice(b)) => out.iter_mut().zip(b).for_each(|(o, &b)| *o = f(a, b)),
                (Lanes::Splat(a), Lanes::Splat(b)) => out.fill(f(a, b)),
                _ => unreachable!("a line uses a slice or one value"),
            }
        }
    }
}

struct Pick<'a, T>(Lanes<'a, bool>, Lanes<'a, T>, Lanes<'a, T>, &'a mut [T]);

impl<T: Copy> NullaryFnOnce for Pick<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(condition, a, b, out) = self;
        let pick = |c: bool, a: T, b: T| if c { a } else { b };
        let [c, d, e] = [condition.lines(out.len()), a.lines(out.len()), b.lines(out.len())];
        let width = out.len() / c.max(d).max(e);
        for (r, out) in out.chunks_exact_mut(width).enumerate() {
            let condition = match condition.line(r, width) {
                Lanes::Slice(condition) => condition,
                Lanes::Splat(true) => {
                    copy(a.line(r, width), out);
                    continue;
                }
                _ => {
                    copy(b.line(r, width), out);
                    continue;
                }
            };
            let out = out.iter_mut().zip(condition);
            match (a.line(r, width), b.line(r, width)) {
                (Lanes::Slice(a), Lanes::Slice(b)) => {
                    out.zip(a.iter().zip(b)).for_each(|((o, &c), (&a, &b))| *o = pick(c, a, b));
                }
                (Lanes::Slice(a), Lanes::Splat(b)) => out.zip(a).for_each(|((o, &c), &a)| *o = pick(c, a, b)),
                (Lanes::Splat(a), Lanes::Slice(b)) => out.zip(b).for_each(|((o, &c), &b)| *o = pick(c, a, b)),
                (Lanes::Splat(a), Lanes::Splat(b)) => out.for_each(|(o, &c)| *o = pick(c, a, b)),
                _ => unreachable!("a line uses a slice or one value"),
            }
        }
    }
}

/// `out[i] = f(a[i])`.
pub(crate) fn map1<A: Copy, O: Copy>(a: Lanes<A>, out: &mut [O], f: impl Fn(A) -> O) {
    map1_by(a, out, &f);
}

fn map1_by<A: Copy, O: Copy, F: Fn(A) -> O>(a: Lanes<A>, out: &mut [O], f: &F) {
    match a {
        Lanes::Slice(a) => Arch::new().dispatch(Map1(a, out, f)),
        Lanes::Splat(a) => out.fill(f(a)),
        Lanes::Lines(x) => {
            let width = out.len() / x.len();
            out.chunks_exact_mut(width).zip(x).for_each(|(out, &x)| out.fill(f(x)));
        }
        Lanes::Tile(x) => out.chunks_exact_mut(x.len()).for_each(|out| map1_by(Lanes::Slice(x), out, f)),
    }
}

/// `out[i] = f(a[i], b[i])`.
pub(crate) fn map2<A: Copy, O: Copy>(a: Lanes<A>, b: Lanes<A>, out: &mut [O], f: impl Fn(A, A) -> O) {
    Arch::new().dispatch(Map2(a, b, out, f));
}

/// Copies, or repeats.
pub(crate) fn copy<T: Copy>(a: Lanes<T>, out: &mut [T]) {
    match a {
        Lanes::Slice(a) => out.copy_from_slice(a),
        Lanes::Tile(a) => out.chunks_exact_mut(a.len()).for_each(|out| out.copy_from_slice(a)),
        a => map1(a, out, |a| a),
    }
}

/// `out[i] = condition[i] ? a[i] : b[i]`.
pub(crate) fn select<T: Copy>(condition: Lanes<bool>, a: Lanes<T>, b: Lanes<T>, out: &mut [T]) {
    Arch::new().dispatch(Pick(condition, a, b, out));
}

/// Conversion between numbers, by way of f64, which holds every value of every type.
pub(crate) fn cast<A: Element, O: Element>(a: Lanes<A>, out: &mut [O]) {
    map1(a, out, |a| O::from_f64(a.into_f64()));
}
