//! Conversions between f16 and f32: values of f16 are stored as such, and computed with in f32.
//!
//! Unlike those of the `half` crate, they take no branch and no call, so that loops over them become vector instructions.
//! The tests hold them to that crate's.

use wgrad::f16;

/// The same number.
#[inline(always)]
pub(crate) fn widen(x: f16) -> f32 {
    /// The difference of the exponents' biases, at its place.
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
    /// The first number beyond all finite ones.
    const BEYOND: u32 = (127 + 16) << 23;
    /// The number whose last bit is the least subnormal number.
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
