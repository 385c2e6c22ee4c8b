//! Rounding to f16, in one place: the reference, host data and device code must agree with this function.

use ::half::f16;

/// The f16 nearest to `value`: ties go to the even one, magnitudes from 65520 on to infinity, subnormals are kept.
///
/// It rounds once. `half::f16::from_f64` does not: it takes a value just beside a tie for the tie itself. Here the
/// value is first truncated to f32, with the last bit set if anything was cut off (rounding to odd). That keeps it on
/// its side of every tie between f16 numbers; f32 has the two spare bits that this needs (Boldo and Melquiond 2008,
/// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
pub fn f16_from_f64(value: f64) -> f16 {
    let near = value as f32;
    let wide = near as f64;
    if wide == value || value.is_nan() {
        return f16::from_f32(near);
    }
    // Bits of one sign are ordered as magnitudes: one less is the next number towards zero.
    let cut = if wide.abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f16::from_f32(f32::from_bits(cut | 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The magnitude of an f16's bits, from the definition of the format. Infinity counts as 2^16, as in rounding.
    fn magnitude(bits: u16) -> f64 {
        let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64);
        if exponent == 0 { fraction * 2f64.powi(-24) } else { (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15) }
    }

    /// The nearest f16, by search.
    fn nearest(value: f64) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let value = value.abs();
        let (mut low, mut high) = (0u16, 0x7c00);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if magnitude(middle) <= value { low = middle } else { high = middle }
        }
        let (below, above) = (value - magnitude(low), magnitude(high) - value);
        let up = above < below || (above == below && low % 2 == 1);
        sign | if up { high } else { low }
    }

    #[test]
    fn every_half_converts_to_itself() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let (single, double) = (f16::from_f32(half.to_f32()), f16_from_f64(half.to_f64()));
            if half.is_nan() {
                assert!(single.is_nan() && double.is_nan(), "{bits:#x}");
            } else {
                assert_eq!((single.to_bits(), double.to_bits()), (bits, bits));
                if half.is_finite() {
                    assert_eq!(half.to_f64().abs(), magnitude(bits & 0x7fff));
                }
            }
        }
    }

    #[test]
    fn all_neighbourhoods_of_ties_round_to_nearest() {
        for bits in 0..0x7c00u16 {
            let (low, high) = (magnitude(bits), magnitude(bits + 1));
            let tie = (low + high) / 2.0;
            let single = tie as f32;
            assert_eq!(single as f64, tie, "f32 holds every tie");
            let beside = |v: f32| [f32::from_bits(v.to_bits() - 1), v, f32::from_bits(v.to_bits() + 1)];
            for v in beside(single).into_iter().chain([(low * 0.75 + high * 0.25) as f32]) {
                assert_eq!(f16::from_f32(v).to_bits(), nearest(v as f64), "{v:e}");
                assert_eq!(f16_from_f64(-v as f64).to_bits(), nearest(-v as f64), "{v:e}");
            }
            // A number that f32 cannot tell from the tie.
            for v in [f64::from_bits(tie.to_bits() - 1), f64::from_bits(tie.to_bits() + 1)] {
                assert_eq!(f16_from_f64(v).to_bits(), nearest(v), "{v:e}");
            }
        }
    }

    #[test]
    fn a_dense_sample_of_f32_rounds_to_nearest() {
        for bits in (0..0x7f80_0000u32).step_by(4099) {
            let v = f32::from_bits(bits);
            let want = if v >= 65520.0 { 0x7c00 } else { nearest(v as f64) };
            assert_eq!(f16::from_f32(v).to_bits(), want, "{v:e}");
            assert_eq!(f16_from_f64(v as f64).to_bits(), want, "{v:e}");
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        for (value, want) in [
            (65504.0, 65504.0),
            (65519.99, 65504.0),
            (65520.0 - 1e-9, 65504.0),
            (65520.0, f64::INFINITY),
            (-1e300, f64::NEG_INFINITY),
            (f64::INFINITY, f64::INFINITY),
            (2f64.powi(-24), 2f64.powi(-24)),
            (2f64.powi(-25), 0.0),
            (2f64.powi(-25) * (1.0 + f64::EPSILON), 2f64.powi(-24)),
            (1e-300, 0.0),
        ] {
            assert_eq!(f16_from_f64(value).to_f64(), want, "{value:e}");
        }
        assert!(f16_from_f64(-1e-300).is_sign_negative() && f16_from_f64(-0.0).is_sign_negative());
    }
}
