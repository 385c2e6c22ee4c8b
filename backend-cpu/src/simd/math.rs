//! Transcendental functions of f32 that the compiler turns into vector instructions: no branches, no tables, no calls.
//!
//! `exp`, `expm1` and `tanh` split `x = n ln 2 + r` with |r| <= ln 2 / 2 and compute `e^r = 1 + r + r^2 P(r)`, where P makes
//! the largest relative error of that the least: 2^-28. The others compute in f64, where short series leave nothing to lose.
//! Additions, multiplications, and both with one rounding, in a fixed order: the same bits on any machine.
//!
//! The tests state and check the accuracy, in units in the last place, against f64 over the whole range.

use super::gates;

/// The exponent in the bits of 2^0.
const BIAS: u32 = 127;

/// Adding and subtracting this rounds to an integer, which then also stands in the low bits of the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// ln 2 in two parts; the first has so few bits that its product with n is exact.
const HIGH: f32 = 0.693_359_4;
const LOW: f32 = -2.121_944_4e-4;

/// Bits the lowest nine of which are `n`, and `r`, for `x = n ln 2 + r`.
#[inline(always)]
fn split(x: f32) -> (u32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    (shifted.to_bits(), (-n).mul_add(LOW, (-n).mul_add(HIGH, x)))
}

/// P(r), its coefficients from the highest power down.
#[inline(always)]
fn series(r: f32) -> f32 {
    let mut sum: f32 = 0.001_381_454;
    for coefficient in [0.008_368_745, 0.041_668_39, 0.166_665_21, 0.499_999_93] {
        sum = sum.mul_add(r, coefficient);
    }
    sum
}

/// As [`split`], with `e^r - 1` for r.
#[inline(always)]
fn split_expm1(x: f32) -> (u32, f32) {
    let (bits, r) = split(x);
    (bits, (r * r).mul_add(series(r), r))
}

/// As [`split`], with `e^r` for r.
#[inline(always)]
fn split_exp(x: f32) -> (u32, f32) {
    let (bits, r) = split(x);
    (bits, series(r).mul_add(r, 1.0).mul_add(r, 1.0))
}

/// `x * 2^n`, of bits the lowest nine of which are `n`, for positive x and results within the normal range.
#[inline(always)]
fn scaled(x: f32, bits: u32) -> f32 {
    f32::from_bits(x.to_bits().wrapping_add(bits << 23))
}

/// 2^n, of bits the lowest nine of which are `n`, as two powers of half the exponent each: 2^n alone may lie outside the
/// range of f32 where its product with something does not.
#[inline(always)]
fn powers(bits: u32) -> [f32; 2] {
    let half = (bits << 22) & (0x1ff << 23);
    [half, (bits << 23).wrapping_sub(half)].map(|exponent| f32::from_bits(exponent.wrapping_add(BIAS << 23)))
}

/// `x` kept within bounds; NaN stays NaN.
#[inline(always)]
fn within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `e^x` to 1 unit in the last place, subnormal results included.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite whatever x is.
    let (bits, value) = split_exp(within(x, -105.0, 90.0));
    // By two powers of half the exponent each, since 2^n alone may lie outside the range of f32 where the result does not.
    let half = (bits << 22) & (0x1ff << 23);
    let power = f32::from_bits((bits << 23).wrapping_sub(half).wrapping_add(BIAS << 23));
    f32::from_bits(value.to_bits().wrapping_add(half)) * power
}

/// [`exp`] of each of some numbers. As most of them are of moderate size, it is looked at once whether all are.
#[inline(always)]
pub(crate) fn exps<const N: usize>(x: [f32; N]) -> [f32; N] {
    let mut y = [0.0; N];
    if x.iter().fold(true, |all, x| all & (x.abs() < 87.0)) {
        for i in 0..N {
            let (bits, value) = split_exp(x[i]);
            y[i] = scaled(value, bits);
        }
    } else {
        for i in 0..N {
            y[i] = exp(x[i]);
        }
    }
    y
}

/// `e^x - 1` to 3 units in the last place.
#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    // Beyond these the result is -1 or infinite whatever x is.
    let (bits, rest) = split_expm1(within(x, -20.0, 89.0));
    // Half of it first: `2^n` alone may lie outside the range of f32 where the result does not.
    let scale = scaled(0.5, bits);
    let value = 2.0 * scale.mul_add(rest, scale - 0.5);
    (if scale == 0.5 { rest } else { value }).copysign(x)
}

/// The hyperbolic tangent to 3 units in the last place, by way of `e^2x - 1`, which keeps small results exact.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Beyond this the result rounds to 1.
    let (bits, rest) = split_expm1(within(2.0 * x, -20.0, 20.0));
    let scale = scaled(1.0, bits);
    let minus_one = scale.mul_add(rest, scale - 1.0);
    (minus_one / (minus_one + 2.0)).copysign(x)
}

/// Adding and subtracting this rounds to an integer, in f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

/// The nearest integer to `x`, for |x| < 2^31: as a number, and as bits.
#[inline(always)]
fn nearest(x: f64) -> (f64, i32) {
    let shifted = x + ROUND_F64;
    (shifted - ROUND_F64, shifted.to_bits() as i32)
}

/// A polynomial, its coefficients from the highest power down.
#[inline(always)]
fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut sum = coefficients[0];
    for &coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, coefficient);
    }
    sum
}

/// The logarithm of a positive, finite number: of `2^e m` with m from `1 / sqrt 2` to `sqrt 2`, `log m` being
/// `2 artanh s` with `s = (m - 1) / (m + 1)`.
#[inline(always)]
fn ln(x: f32) -> f64 {
    let subnormal = x < f32::MIN_POSITIVE;
    let bits = (if subnormal { x * 16_777_216.0 } else { x }).to_bits() as i32;
    let e = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32) as f64;
    scaled_ln(if subnormal { e - 24 } else { e }, m)
}

/// The logarithm of `2^e m`, for m from `1 / sqrt 2` to `sqrt 2`.
#[inline(always)]
fn scaled_ln(e: i32, m: f64) -> f64 {
    let s = (m - 1.0) / (m + 1.0);
    let odd = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    e as f64 * std::f64::consts::LN_2 + 2.0 * s * polynomial(s * s, odd)
}

/// `log(1 + x)` to 1 unit in the last place.
#[inline(always)]
pub(crate) fn log1p(x: f32) -> f32 {
    // Exact for what is not negligible beside 1 in f32.
    let sum = 1.0 + x as f64;
    let bits = sum.to_bits() as i64;
    let e = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(e << 52) as u64);
    let value = scaled_ln(e as i32, m) as f32;
    let value = if x < f32::INFINITY { value } else { x };
    let value = if x == -1.0 { f32::NEG_INFINITY } else { value };
    let value = if x.abs() < 2.9e-8 { x } else { value };
    if x < -1.0 { f32::NAN } else { value }
}

/// The natural logarithm to 1 unit in the last place.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let value = ln(x) as f32;
    let value = if x < f32::INFINITY { value } else { x };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    if x < 0.0 { f32::NAN } else { value }
}

/// `e^x` in f64, to 2^-37 of itself.
#[inline(always)]
fn exp_f64(x: f64) -> f64 {
    // Beyond these the result is 0 or infinite in f32 whatever x is.
    let x = if x < -200.0 { -200.0 } else { x };
    let x = if x > 200.0 { 200.0 } else { x };
    let (n, bits) = nearest(x * std::f64::consts::LOG2_E);
    let r = (-n).mul_add(std::f64::consts::LN_2, x);
    let taylor = [1.0 / 362_880.0, 1.0 / 40_320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let scale = f64::from_bits((bits.wrapping_add(1023) as u32 as u64) << 52);
    ((r * r).mul_add(polynomial(r, taylor), r) + 1.0) * scale
}

/// The sigmoid of x and of -x, in f64.
#[inline(always)]
fn sigmoids(x: f64) -> (f64, f64) {
    let e = exp_f64(-x.abs());
    let (large, small) = (1.0 / (1.0 + e), e / (1.0 + e));
    if x < 0.0 { (small, large) } else { (large, small) }
}

/// `1 / (1 + e^-x)` to 1 unit in the last place.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let x = x as f64;
    let e = exp_f64(-x.abs());
    ((if x < 0.0 { e } else { 1.0 }) / (1.0 + e)) as f32
}

/// The same to 3 units in the last place, in f32 alone.
#[inline(always)]
pub(crate) fn quick_sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// The density of the normal distribution to 1 unit in the last place.
#[inline(always)]
pub(crate) fn normal_pdf(x: f32) -> f32 {
    let x = x as f64;
    (exp_f64(-0.5 * (x * x)) * gates::FRAC_1_SQRT_2PI) as f32
}

/// For t from 0 to 15, `e^(t^2 / 2)` times the normal distribution's function at -t, to 2^-32 of itself: the Chebyshev
/// interpolation in `(t - 3.5) / (t + 3.5)`.
#[inline(always)]
fn tail_ratio(t: f64) -> f64 {
    let p = [
        2.921108990077461e-06,
        6.3593184594659405e-06,
        -1.960863557712232e-05,
        -5.719762796657896e-05,
        0.00013149884005624174,
        0.000391543693261306,
        -0.0013807489041990882,
        -0.0015615777077323948,
        0.019065537630603705,
        -0.061639420233952774,
        0.12585525513167023,
        -0.1871396986495392,
        0.10634515363305282,
    ];
    polynomial((t - 3.5) / (t + 3.5), p)
}

/// The function of the normal distribution in f64.
#[inline(always)]
fn normal_cdf_f64(x: f32) -> f64 {
    let t = within(x.abs(), 0.0, 15.0) as f64;
    let tail = exp_f64(-0.5 * (t * t)) * tail_ratio(t);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The function of the normal distribution to 1 unit in the last place.
#[inline(always)]
pub(crate) fn normal_cdf(x: f32) -> f32 {
    normal_cdf_f64(x) as f32
}

/// `x sigmoid(x)` to 1 unit in the last place.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    let x = within(x, -200.0, f32::INFINITY) as f64;
    let e = exp_f64(-x.abs());
    ((if x < 0.0 { x * e } else { x }) / (1.0 + e)) as f32
}

/// The slope of [`silu`] to 1 unit in the last place, but for what lies next to its root.
#[inline(always)]
pub(crate) fn silu_slope(x: f32) -> f32 {
    let x = within(x, -200.0, 200.0) as f64;
    let (gate, rest) = sigmoids(x);
    (gate * (x * rest + 1.0)) as f32
}

/// `x normal_cdf(x)` to 1 unit in the last place.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let x = within(x, -15.0, f32::INFINITY);
    (x as f64 * normal_cdf_f64(x)) as f32
}

/// The slope of [`gelu`], likewise.
#[inline(always)]
pub(crate) fn gelu_slope(x: f32) -> f32 {
    let t = within(x.abs(), 0.0, 15.0) as f64;
    let tail = exp_f64(-0.5 * (t * t)) * (t * gates::FRAC_1_SQRT_2PI - tail_ratio(t));
    (if x < 0.0 { -tail } else { 1.0 + tail }) as f32
}

/// `e^-v` for the argument `v = |x| (A + B x^2)` of the sigmoid in GELU's approximation, |x| being up to 11, as a number
/// and two powers of two that it is yet to be multiplied with. In f32 alone: what rounding took from v, which the
/// exponential amplifies by v, is carried along.
#[inline(always)]
fn gelu_exp(x: f32) -> (f32, [f32; 2]) {
    // A in two parts, of which the first has so few digits that its distance from `A + B x^2` is exact; and B in two.
    const A: [f32; 2] = [1.595_703_1, 6.599_66e-5];
    const B: [f32; 2] = [0.071_354_814, 2.398_832_4e-9];
    let t = -x.abs();
    let square = t * t;
    let factor = square.mul_add(B[0], A[0]);
    let lost = square.mul_add(B[0], A[0] - factor) + square.mul_add(B[1], A[1]);
    let lost = t.mul_add(t, -square).mul_add(B[0], lost);
    let shifted = (t * factor).mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LOW, t.mul_add(factor, -n * HIGH));
    let r = t.mul_add(lost, r);
    (series(r).mul_add(r, 1.0).mul_add(r, 1.0), powers(shifted.to_bits()))
}

/// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2` to 4 units in the last place.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let x = within(x, -11.0, f32::INFINITY);
    let (value, [one, other]) = gelu_exp(within(x, -11.0, 11.0));
    let kept = x / (value * one).mul_add(other, 1.0);
    if x < 0.0 { kept * value * one * other } else { kept }
}

/// The slope of [`gelu_tanh`] to 5 units in the last place, but for what lies next to its root.
#[inline(always)]
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    let x = within(x, -11.0, 11.0);
    let (value, [one, other]) = gelu_exp(x);
    let e = value * one * other;
    // With g and h for the sigmoid of v and of -v, it is `g (1 + x (A + 3 B x^2) h)`.
    let square = x * x;
    let b = (3.0 * gates::B) as f32;
    let factor = square.mul_add(b, x.mul_add(x, -square).mul_add(b, gates::A as f32));
    let kept = (if x < 0.0 { x } else { x * e }).mul_add(factor, 1.0 + e) / e.mul_add(e + 2.0, 1.0);
    if x < 0.0 { kept * value * one * other } else { kept }
}

/// `a^b` to 1 unit in the last place, with the special values of IEEE 754.
#[inline(always)]
pub(crate) fn pow(a: f32, b: f32) -> f32 {
    let size = a.abs();
    let logarithm = if size < f32::INFINITY { ln(size) } else { size as f64 };
    let logarithm = if size == 0.0 { f64::NEG_INFINITY } else { logarithm };
    // `1^inf` is 1.
    let exponent = if size == 1.0 { 0.0 } else { b as f64 * logarithm };
    let value = exp_f64(exponent) as f32;
    let odd = b.trunc() == b && (b * 0.5).trunc() != b * 0.5;
    let value = if a.is_sign_negative() & odd { -value } else { value };
    let value = if (a < 0.0) & (b.trunc() != b) & (size < f32::INFINITY) { f32::NAN } else { value };
    if (b == 0.0) | (a == 1.0) { 1.0 } else { value }
}

/// The error function to 1 unit in the last place: `x P(x^2)`, where P is the Chebyshev interpolation of degree 18 of
/// `erf(sqrt u) / sqrt u` for u from 0 to 16; its relative error is below 2^-30. From 4 on the result rounds to 1.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let x = within(x, -4.0, 4.0) as f64;
    // Powers of `x^2 / 8 - 1`.
    let p = [
        9.735197909321869e-05,
        -0.0002467088070261525,
        0.00015834115879442834,
        -0.00032430265662242164,
        0.0014380180721218494,
        -0.0029118388688402774,
        0.004746829561284471,
        -0.008382074258669547,
        0.01439756810819759,
        -0.022563597642511368,
        0.03304758582917788,
        -0.04574400174810789,
        0.0598889354364851,
        -0.07473053609598901,
        0.09020883405042546,
        -0.10771028937951685,
        0.13167512178015608,
        -0.17657623587307955,
        0.35353099561883317,
    ];
    (x * polynomial(x * x * 0.125 - 1.0, p)) as f32
}

/// The largest magnitude for which [`sine`] is right.
const TURNS: f32 = 1_048_576.0;

/// The sine of `x` and `quarters` quarter turns, to 1 unit in the last place for |x| up to [`TURNS`].
#[inline(always)]
fn sine(x: f32, quarters: i32) -> f32 {
    // pi / 2 in three parts. The first two have so few bits that their products with n are exact.
    const PARTS: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
    let x = x as f64;
    let (n, bits) = nearest(x * std::f64::consts::FRAC_2_PI);
    let r = PARTS.iter().fold(x, |r, part| (-n).mul_add(*part, r));
    let z = r * r;
    let sin = [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0];
    let cos = [1.0 / 479_001_600.0, -1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0];
    let (sin, cos) = (r * polynomial(z, sin), polynomial(z, cos));
    let quadrant = bits.wrapping_add(quarters);
    let value = if quadrant & 1 == 0 { sin } else { cos };
    (if quadrant & 2 == 0 { value } else { -value }) as f32
}

/// True if an angle is so large that [`sin`] and [`cos`] are wrong.
#[inline(always)]
pub(crate) fn is_large(x: f32) -> bool {
    x.abs() > TURNS
}

/// The sine of an angle that is not large, to 1 unit in the last place.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    sine(x, 0)
}

/// The cosine of an angle that is not large, to 1 unit in the last place.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    sine(x, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{functions::Number, lanes::Lanes};
    use wgrad::op::Unary;

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
    fn worst(step: usize, f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64) -> (f64, f32) {
        let positive = (0..=f32::INFINITY.to_bits()).step_by(step).map(f32::from_bits);
        let all = positive.flat_map(|x| [x, -x]).chain([f32::INFINITY, f32::NEG_INFINITY]);
        all.map(|x| (ulps(f(x), truth(x as f64)), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a })
    }

    #[test]
    fn exp_is_within_one_unit_in_the_last_place() {
        let (error, x) = worst(997, exp, f64::exp);
        assert!(error <= 1.0, "{error} at {x:e}");
    }

    #[test]
    fn several_exps_are_those_of_each() {
        let same = |x: [f32; 4]| assert_eq!(exps(x).map(f32::to_bits), x.map(|x| exp(x).to_bits()), "{x:?}");
        // Up to where several are computed another way, and beyond.
        (0..=90_000).for_each(|i| {
            let x = i as f32 * 0.001;
            same([x, -x, 0.5 * x, -0.0]);
        });
        let edge = 87.0f32;
        for x in [edge, edge.next_down(), edge.next_up(), 104.0, f32::MAX, f32::INFINITY] {
            same([1.0, x, 0.0, -1.0]);
            same([1.0, -x, 0.0, -1.0]);
        }
        let [nan, one, ..] = exps([f32::NAN, 0.0, 1.0, 2.0]);
        assert!(nan.is_nan() && one == 1.0);
    }

    #[test]
    fn tanh_is_within_three_units_in_the_last_place() {
        let (error, x) = worst(997, tanh, f64::tanh);
        assert!(error <= 3.0, "{error} at {x:e}");
    }

    #[test]
    fn log_is_within_one_unit_in_the_last_place() {
        let (error, x) = worst(997, log, f64::ln);
        assert!(error <= 1.0, "{error} at {x:e}");
    }

    #[test]
    fn expm1_is_within_three_units_in_the_last_place() {
        let (error, x) = worst(997, expm1, f64::exp_m1);
        assert!(error <= 3.0, "{error} at {x:e}");
        let (error, x) = worst_between(-25.0, 90.0, expm1, f64::exp_m1);
        assert!(error <= 3.0, "{error} at {x:e}");
    }

    #[test]
    fn log1p_is_within_one_unit_in_the_last_place() {
        let (error, x) = worst(997, log1p, f64::ln_1p);
        assert!(error <= 1.0, "{error} at {x:e}");
        let (error, x) = worst_between(-1.0, 3.0, log1p, f64::ln_1p);
        assert!(error <= 1.0, "{error} at {x:e}");
    }

    /// The largest error over numbers evenly spread between two.
    fn worst_between(low: f64, high: f64, f: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64) -> (f64, f32) {
        let at = |i: u32| (low + (high - low) * i as f64 / 1e6) as f32;
        (0..=1_000_000)
            .map(at)
            .map(|x| (ulps(f(x), truth(x as f64)), x))
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    }

    #[test]
    fn erf_is_within_one_unit_in_the_last_place() {
        let (error, x) = worst(997, erf, libm::erf);
        assert!(error <= 1.0, "{error} at {x:e}");
    }

    #[test]
    fn gates_are_within_one_unit_in_the_last_place() {
        type Pair = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
        let gates: [Pair; 9] = [
            ("sigmoid", sigmoid, gates::sigmoid),
            ("normal_cdf", normal_cdf, gates::normal_cdf),
            ("normal_pdf", normal_pdf, gates::normal_pdf),
            ("silu", silu, gates::silu),
            ("gelu", gelu, gates::gelu),
            ("gelu_tanh", gelu_tanh, gates::gelu_tanh),
            ("silu_slope", silu_slope, gates::silu_slope),
            ("gelu_slope", gelu_slope, gates::gelu_slope),
            ("gelu_tanh_slope", gelu_tanh_slope, gates::gelu_tanh_slope),
        ];
        for (name, f, truth) in gates {
            // The slopes of activations have roots between -0.7 and -1.3.
            let ranges = [(-120.0, -2.0), (-0.5, 120.0), (-15.0, -2.0), (-0.5, 15.0)];
            let bound = match name {
                "gelu_tanh" => 4.0,
                "gelu_tanh_slope" => 5.0,
                _ => 0.51,
            };
            for (low, high) in ranges {
                let (error, x) = worst_between(low, high, f, truth);
                assert!(error <= bound, "{name}: {error} at {x:e}");
            }
            assert!(f(f32::NAN).is_nan(), "{name}");
            let ends =
                |f: &dyn Fn(f64) -> f64| [f64::MIN, -1e30, 1e30, f64::MAX, f64::INFINITY, f64::NEG_INFINITY].map(f);
            assert_eq!(
                ends(&|x| f(x as f32) as f64).map(f64::to_bits),
                ends(&|x| truth(x as f32 as f64) as f32 as f64).map(f64::to_bits),
                "{name}"
            );
        }
        let (error, x) = worst(997, quick_sigmoid, gates::sigmoid);
        assert!(error <= 3.0, "{error} at {x:e}");
        let (error, x) = worst_between(-120.0, 120.0, quick_sigmoid, gates::sigmoid);
        assert!(error <= 3.0, "{error} at {x:e}");
    }

    #[test]
    fn sin_and_cos_are_within_one_unit_in_the_last_place() {
        let one = |op| {
            move |x: f32| {
                let mut out = [0.0; 2];
                f32::unary(op, Lanes::Slice(&[x, 0.5]), &mut out);
                out[0]
            }
        };
        let (error, x) = worst(997, one(Unary::Sin), f64::sin);
        assert!(error <= 1.0, "{error} at {x:e}");
        let (error, x) = worst(997, one(Unary::Cos), f64::cos);
        assert!(error <= 1.0, "{error} at {x:e}");
    }

    #[test]
    fn pow_is_within_one_unit_in_the_last_place() {
        for b in [0.5, -0.5, 2.0, 3.0, -1.0, 0.1, 0.999, -2.7, 17.0, 1e-4, -1e-4, 100.5, 0.0] {
            let (error, x) = worst(9973, |a| pow(a, b), |a| a.powf(b as f64));
            assert!(error <= 1.0, "{error} at {x:e}^{b}");
        }
        for a in [0.3, 1.0000001, 0.9999999, 1.5, 10.0, 1e-30, 1e30, 2.0] {
            let (error, x) = worst(9973, |b| pow(a, b), |b| (a as f64).powf(b));
            assert!(error <= 1.0, "{error} at {a}^{x:e}");
        }
        let special = [0.0, 1.0, 2.0, 3.0, 0.5, 2.5, 1e9, 16_777_215.0, f32::INFINITY, f32::NAN];
        let special = special.into_iter().flat_map(|x| [x, -x]);
        for (a, b) in special.clone().flat_map(|a| special.clone().map(move |b| (a, b))) {
            let (have, want) = (pow(a, b), (a as f64).powf(b as f64));
            let same_sign = have.is_nan() || have.is_sign_negative() == want.is_sign_negative();
            assert!(same_sign && ulps(have, want) <= 1.0, "{a}^{b}: {have}, not {want}");
        }
    }

    #[test]
    fn special_values() {
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan() && log(f32::NEG_INFINITY).is_nan());
        assert_eq!([log(0.0), log(-0.0), log(1.0)], [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0]);
        assert_eq!(log(f32::INFINITY), f32::INFINITY);
        assert_eq!([erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(4.0), erf(3.95)], [1.0, -1.0, 1.0, 1.0]);
        assert!(log1p(-1.5).is_nan() && log1p(f32::NAN).is_nan() && expm1(f32::NAN).is_nan());
        assert_eq!([log1p(-1.0), log1p(f32::INFINITY)], [f32::NEG_INFINITY, f32::INFINITY]);
        assert_eq!([expm1(f32::NEG_INFINITY), expm1(f32::INFINITY), expm1(0.0)], [-1.0, f32::INFINITY, 0.0]);
        assert!(log1p(-0.0).is_sign_negative() && expm1(-0.0).is_sign_negative());
        assert!(erf(f32::NAN).is_nan() && erf(-0.0).is_sign_negative());
        let mut out = [0.0; 3];
        f32::unary(Unary::Sin, Lanes::Slice(&[-0.0, f32::INFINITY, f32::NAN]), &mut out);
        assert!(out[0].to_bits() == (-0.0f32).to_bits() && out[1].is_nan() && out[2].is_nan());
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY), exp(0.0)), (f32::INFINITY, 0.0, 1.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh(-0.0).is_sign_negative() && tanh(0.0).is_sign_positive());
        assert!((-50..50).all(|i| tanh(i as f32 * 0.37).abs() <= 1.0), "never beyond 1");
    }
}
