//! Half precision: values of f16 are stored as such, and computed with in f32.
//!
//! Unlike those of the `half` crate, the conversions here take no branch and no call, so that loops over them become
//! vector instructions. The tests hold them to that crate's.

use crate::{
    contract::{Float, Matrix, Place, multiply},
    fold::{Monoid, Norm, Sum},
    lanes::{Lanes, Number, map1},
    nest::at,
};
use wgrad::{
    f16, f16_from_f64,
    op::{Binary, Unary},
};

/// The same number.
#[inline(always)]
pub(crate) fn widen(x: f16) -> f32 {
    /// What the exponent of f32 has more, at its place.
    const MORE: u32 = (127 - 15) << 23;
    const ONE: u32 = 1 << 23;
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + MORE;
    // A subnormal stands behind the leading 1 that it lacks.
    let subnormal = (f32::from_bits(normal + ONE) - f32::from_bits(MORE + ONE)).to_bits();
    let magnitude = match magnitude >> 23 {
        0 => subnormal,
        31 => normal + MORE, // Infinite, or NaN.
        _ => normal,
    };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// The nearest number, and the even one of two.
#[inline(always)]
pub(crate) fn narrow(x: f32) -> f16 {
    /// The least normal number.
    const NORMAL: u32 = (127 - 14) << 23;
    /// What is beyond every finite number.
    const BEYOND: u32 = (127 + 16) << 23;
    /// What has the least subnormal number for its last bit.
    const UNIT: f32 = f32::from_bits((127 - 24 + 23) << 23);
    let sign = x.to_bits() >> 31 << 15;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    // The addition rounds.
    let subnormal = (f32::from_bits(magnitude) + UNIT).to_bits().wrapping_sub(UNIT.to_bits());
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(NORMAL - (1 << 23)).wrapping_add(0xfff + odd) >> 13;
    let special = if x.is_nan() { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let magnitude = if magnitude < BEYOND { finite } else { special };
    f16::from_bits((magnitude | sign) as u16)
}

/// Elements that are converted at a time.
const PART: usize = 256;

/// Does with halves what `f` does with f32.
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

macro_rules! sums {
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
sums! {
    Sum { add: |a, x| a + x, finish: |a| a }
    Norm { add: |a, x| a + x * x, finish: f64::sqrt }
}

/// How much of the inner dimension of a product is converted at a time.
const DEPTH: usize = 512;

/// What the product of a part takes of f32: a stretch of each side, and the sums.
pub(crate) fn room([m, n]: [usize; 2], k: usize) -> [usize; 3] {
    let depth = DEPTH.min(k);
    [m * depth, depth * n, m * n]
}

/// A matrix in f32.
fn wide<'a>(x: Matrix<f16>, [rows, columns]: [usize; 2], to: &'a mut [f32]) -> Matrix<'a, f32> {
    let [down, across] = x.strides;
    if down == 1 && across != 1 {
        let turned = Matrix { strides: [across, down], ..x };
        let Matrix { data, start, strides: [down, across] } = wide(turned, [columns, rows], to);
        return Matrix { data, start, strides: [across, down] };
    }
    let to = &mut to[..rows * columns];
    for (row, to) in to.chunks_exact_mut(columns.max(1)).enumerate() {
        let from = at(x.start, row, down);
        match across {
            1 => map1(Lanes::Slice(&x.data[from..][..columns]), to, widen),
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = widen(x.data[at(from as isize, i, across)])),
        }
    }
    Matrix { data: to, start: 0, strides: [columns as isize, 1] }
}

impl Float for f16 {
    /// Adds up in f32, and rounds at the end.
    unsafe fn multiply(
        [m, k, n]: [usize; 3],
        lhs: Matrix<f16>,
        rhs: Matrix<f16>,
        out: Place<f16>,
        room: Option<[&mut [f32]; 3]>,
    ) {
        let [left, right, sums] = room.expect("a product of halves has room for f32");
        let total = Place { data: sums.as_mut_ptr(), len: sums.len(), start: 0, strides: [n as isize, 1] };
        for first in (0..k.max(1)).step_by(DEPTH) {
            let depth = DEPTH.min(k - first);
            let from = |x: Matrix<'_, f16>, axis: usize| x.start + first as isize * x.strides[axis];
            let lhs = wide(Matrix { start: from(lhs, 1), ..lhs }, [m, depth], left);
            let rhs = wide(Matrix { start: from(rhs, 0), ..rhs }, [depth, n], right);
            // SAFETY: the sums are borrowed mutably, apart from both sides.
            unsafe { multiply([m, depth, n], lhs, rhs, total, first > 0) };
        }
        assert!(out.holds([m, n]));
        for (row, sums) in sums[..m * n].chunks_exact(n).enumerate() {
            for (column, &sum) in sums.iter().enumerate() {
                // SAFETY: within the place, by the assertion; nobody else touches these elements, by the caller's
                // promise.
                unsafe {
                    out.data
                        .add(at(out.start + row as isize * out.strides[0], column, out.strides[1]))
                        .write(narrow(sum))
                };
            }
        }
    }

    unsafe fn outer(_: [usize; 3], _: Matrix<f16>, _: Matrix<f16>, _: Place<f16>) {
        unreachable!("sums of halves are in f32");
    }

    fn add(_: &mut [f16], _: &[f16]) {
        unreachable!("sums of halves are in f32");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: f16, b: f16) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn widening_keeps_every_half() {
        for x in (0..=u16::MAX).map(f16::from_bits) {
            let (have, want) = (widen(x), x.to_f32());
            assert!(
                have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan(),
                "{x:?}: {have:e}, not {want:e}"
            );
            assert!(same(narrow(have), x), "{x:?}");
        }
    }

    #[test]
    fn narrowing_goes_to_the_nearest() {
        let near_halves = (0..=u16::MAX).flat_map(|bits| {
            // Halfway to the next half, and just beside that.
            let x = f16::from_bits(bits).to_f32().to_bits();
            let middle = if f16::from_bits(bits).is_normal() { x | 1 << 12 } else { x };
            [middle - u32::from(middle & 0xfff > 0), middle, middle.wrapping_sub(1), middle.wrapping_add(1)]
        });
        let everywhere = (0..=u32::MAX).step_by(4099);
        for x in near_halves.chain(everywhere).map(f32::from_bits) {
            assert!(same(narrow(x), f16::from_f32(x)), "{x:e}: {:?}, not {:?}", narrow(x), f16::from_f32(x));
        }
        for units in 0..2 * 1024 {
            // Ties between subnormals.
            let x = (units as f32 + 0.5) * 2f32.powi(-24);
            for x in [x, x.next_up(), x.next_down(), -x] {
                assert!(same(narrow(x), f16::from_f32(x)), "{x:e}");
            }
        }
    }
}
