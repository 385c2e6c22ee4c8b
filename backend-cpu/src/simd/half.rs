//! Elementwise functions of f16: computed in f32, a part of a block at a time.

use super::{
    functions::Number,
    lanes::{Lanes, map1},
};
use crate::memory::half::{narrow, widen};
use wgrad::{
    f16,
    op::{Binary, Unary},
};

/// Elements that are converted at a time.
const PART: usize = 256;

/// Does with f16 what `f` does with f32.
fn wider<const N: usize>(x: [Lanes<f16>; N], out: &mut [f16], f: impl Fn([Lanes<f32>; N], &mut [f32])) {
    let width = out.len() / x.iter().map(|x| x.lines(out.len())).max().unwrap_or(1);
    for (line, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
        wider_line(x.map(|x| x.line(line, width)), out, &f);
    }
}

fn wider_line<const N: usize>(x: [Lanes<f16>; N], out: &mut [f16], f: impl Fn([Lanes<f32>; N], &mut [f32])) {
    let (mut parts, mut results) = ([[0.0; PART]; N], [0.0; PART]);
    for (i, out) in out.chunks_mut(PART).enumerate() {
        let mut parts = parts.iter_mut();
        let x = x.map(|x| match (x, parts.next()) {
            (Lanes::Slice(x), Some(part)) => {
                let part = &mut part[..out.len()];
                map1(Lanes::Slice(&x[i * PART..][..out.len()]), part, widen);
                Lanes::Slice(&*part)
            }
            (Lanes::Slice(_), None) => unreachable!("there are as many"),
            (Lanes::Lines(_) | Lanes::Tile(_), _) => unreachable!("a line's values are a slice, or one for all of it"),
            (Lanes::Splat(x), _) => Lanes::Splat(widen(x)),
        });
        let results = &mut results[..out.len()];
        f(x, results);
        map1(Lanes::Slice(results), out, narrow);
    }
}

impl Number for f16 {
    fn unary(op: Unary, a: Lanes<f16>, out: &mut [f16]) {
        wider([a], out, |[a], out| f32::unary(op, a, out));
    }
    fn binary(op: Binary, a: Lanes<f16>, b: Lanes<f16>, out: &mut [f16]) {
        wider([a, b], out, |[a, b], out| f32::binary(op, a, b, out));
    }
    fn is_finite(a: Lanes<f16>, out: &mut [bool]) {
        map1(a, out, |x| widen(x).is_finite());
    }
    #[inline(always)]
    fn larger(self, other: f16) -> f16 {
        let (a, b) = (widen(self), widen(other));
        if a >= b || a.is_nan() { self } else { other }
    }
    const LEAST: f16 = f16::NEG_INFINITY;
}
