//! Transcendental functions of f32 that the compiler turns into vector instructions: no branches, no tables, no calls.
//!
//! Both split `x = n ln 2 + r` with |r| <= ln 2 / 2 and expand `e^r - 1` in its Taylor series up to `r^7`, whose
//! remainder is below 2^-25 of it. Plain multiplications and additions, in a fixed order: the same bits on any machine.
//! The tests state and check the accuracy, in units in the last place, against f64 over the whole range.

/// Adding and subtracting this rounds to an integer, which then also stands in the low bits of the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `n` and `e^r - 1` for `x = n ln 2 + r`.
#[inline(always)]
fn split(x: f32) -> (i32, f32) {
    // ln 2 in two parts; the first has so few bits that its product with n is exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * HIGH) - n * LOW;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        series = series * r + coefficient;
    }
    (shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32, r + r * r * series)
}

/// `2^n` for n from -126 to 127.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `x` kept within bounds; NaN stays NaN.
#[inline(always)]
fn within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `e^x` to 2 units in the last place, subnormal results included.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite whatever x is.
    let (n, rest) = split(within(x, -105.0, 90.0));
    // In two steps, since 2^n alone may lie outside the range of f32 where the result does not.
    let half = n >> 1;
    (rest + 1.0) * power(half) * power(n.wrapping_sub(half))
}

/// The hyperbolic tangent to 3 units in the last place, by way of `e^2x - 1`, which keeps small results exact.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Beyond this the result rounds to 1.
    let (n, rest) = split(within(2.0 * x, -20.0, 20.0));
    let scale = power(n);
    let minus_one = (scale - 1.0) + scale * rest;
    (minus_one / (minus_one + 2.0)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance from the true value in units of the last place of the result.
    fn ulps(have: f32, want: f64) -> f64 {
        let nearest = want as f32;
        if have == nearest || have.is_nan() && want.is_nan() {
            return 0.0;
        }
        let unit = (nearest.abs().next_up() as f64 - nearest.abs() as f64).max(f32::from_bits(1) as f64);
        (have as f64 - want).abs() / unit
    }

    /// The largest error over floats of both signs, evenly spread over all exponents.
    fn worst(f: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
        let positive = (0..=f32::INFINITY.to_bits()).step_by(997).map(f32::from_bits);
        let all = positive.flat_map(|x| [x, -x]).chain([f32::INFINITY, f32::NEG_INFINITY]);
        all.map(|x| (ulps(f(x), truth(x as f64)), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a })
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let (error, x) = worst(exp, f64::exp);
        assert!(error <= 2.0, "{error} at {x:e}");
    }

    #[test]
    fn tanh_is_within_three_units_in_the_last_place() {
        let (error, x) = worst(tanh, f64::tanh);
        assert!(error <= 3.0, "{error} at {x:e}");
    }

    #[test]
    fn special_values() {
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY), exp(0.0)), (f32::INFINITY, 0.0, 1.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh(-0.0).is_sign_negative() && tanh(0.0).is_sign_positive());
        assert!((-50..50).all(|i| tanh(i as f32 * 0.37).abs() <= 1.0), "never beyond 1");
    }
}
