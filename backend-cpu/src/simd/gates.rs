//! Functions of f64 that neither the standard library nor `libm` has, relative to which small results keep their digits.
//!
//! An exponential amplifies the rounding error of its argument by the argument: where that is a square, a product or a sum, the
//! rounding error is carried along. And an exponential may leave the range of normal numbers where its product with another
//! number does not: it is then computed `e^512` times larger, and scaled back last.

use std::f64::consts::FRAC_1_SQRT_2;

/// `1 / sqrt(pi)`.
const FRAC_1_SQRT_PI: f64 = 0.564_189_583_547_756_3;
/// `1 / sqrt(2 pi)`.
pub(crate) const FRAC_1_SQRT_2PI: f64 = 0.398_942_280_401_432_7;
/// `2 sqrt(2 / pi)`, and that times 0.044715: twice the argument of GELU's tanh is `x (A + B x^2)`.
pub(crate) const A: f64 = 1.595_769_121_605_730_8;
pub(crate) const B: f64 = 0.071_354_816_272_600_25;
/// The rests of [`A`] and [`B`].
const AB_LOW: [f64; 2] = [-9.969_308_809_110_92e-17, -6.175_149_918_155_315e-19];

/// Beyond these the sigmoid, and the normal distribution's function, are 0 or 1.
const SIGMOID_FAR: f64 = 800.0;
const NORMAL_FAR: f64 = 40.0;

/// `x` kept between a number and its negative; NaN stays NaN.
fn within(x: f64, far: f64) -> f64 {
    let x = if x < -far { -far } else { x };
    if x > far { far } else { x }
}

/// `e^x` as a number and a factor.
fn exp_scaled(x: f64) -> (f64, f64) {
    // Exact: the sum loses nothing.
    if x < -600.0 { ((x + 512.0).exp(), (-512f64).exp()) } else { (x.exp(), 1.0) }
}

/// The sigmoid likewise.
fn sigmoid_scaled(x: f64) -> (f64, f64) {
    if x < -600.0 { exp_scaled(x) } else { (sigmoid(x), 1.0) }
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// The density of the normal distribution, `e^(-x^2 / 2) / sqrt(2 pi)`, as a number and a factor.
fn density(x: f64) -> (f64, f64) {
    let x = within(x, NORMAL_FAR);
    // So few digits that the square is exact.
    let high = f64::from_bits(x.to_bits() & !0x7ff_ffff);
    let (e, scale) = exp_scaled(-0.5 * high * high);
    (e * (-0.5 * (x - high) * (x + high)).exp() * FRAC_1_SQRT_2PI, scale)
}

/// The density of the normal distribution, `e^(-x^2 / 2) / sqrt(2 pi)`.
pub(crate) fn normal_pdf(x: f64) -> f64 {
    let (density, scale) = density(x);
    density * scale
}

/// The function of the normal distribution, `erfc(-x / sqrt 2) / 2`.
pub(crate) fn normal_cdf(x: f64) -> f64 {
    /// The rest of [`FRAC_1_SQRT_2`].
    const LOW: f64 = -4.833_646_656_726_457e-17;
    let x = within(x, NORMAL_FAR);
    let u = -x * FRAC_1_SQRT_2;
    let lost = (-x).mul_add(FRAC_1_SQRT_2, -u) - x * LOW;
    0.5 * libm::erfc(u) - lost * FRAC_1_SQRT_PI * (-u * u).exp()
}

/// Far left, `-x normal_cdf(x) / normal_pdf(x)`: the asymptotic series.
fn mills(x: f64) -> f64 {
    let z = 1.0 / (x * x);
    [10_395.0, -945.0, 105.0, -15.0, 3.0, -1.0, 1.0].into_iter().fold(0.0, |sum, term| sum * z + term)
}

/// `x (A + B x^2)`, and its rounding error.
fn cubic(x: f64) -> (f64, f64) {
    let square = x * x;
    let square_lost = x.mul_add(x, -square);
    let term = B * square;
    let term_lost = B.mul_add(square, -term) + (B * square_lost + AB_LOW[1] * square);
    let factor = A + term;
    let taken = factor - A;
    let factor_lost = (A - (factor - taken)) + (term - taken) + (term_lost + AB_LOW[0]);
    let value = x * factor;
    (value, x.mul_add(factor, -value) + x * factor_lost)
}

/// `x sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    let x = if x < -SIGMOID_FAR { -SIGMOID_FAR } else { x };
    let (gate, scale) = sigmoid_scaled(x);
    x * gate * scale
}

/// The slope of [`silu`].
pub(crate) fn silu_slope(x: f64) -> f64 {
    let x = within(x, SIGMOID_FAR);
    let (gate, scale) = sigmoid_scaled(x);
    gate * (x * sigmoid(-x) + 1.0) * scale
}

/// `x normal_cdf(x)`.
pub(crate) fn gelu(x: f64) -> f64 {
    let x = if x < -NORMAL_FAR { -NORMAL_FAR } else { x };
    if x < -36.0 { -normal_pdf(x) * mills(x) } else { x * normal_cdf(x) }
}

/// The slope of [`gelu`].
pub(crate) fn gelu_slope(x: f64) -> f64 {
    let x = within(x, NORMAL_FAR);
    let (density, scale) = density(x);
    if x < -36.0 { density * (x - mills(x) / x) * scale } else { normal_cdf(x) + x * density * scale }
}

/// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, which is `x sigmoid(x (A + B x^2))`.
pub(crate) fn gelu_tanh(x: f64) -> f64 {
    let x = if x < -NORMAL_FAR { -NORMAL_FAR } else { x };
    let (inner, lost) = cubic(within(x, NORMAL_FAR));
    let (gate, scale) = sigmoid_scaled(inner);
    x * (gate + gate * (lost * sigmoid(-inner))) * scale
}

/// The slope of [`gelu_tanh`].
pub(crate) fn gelu_tanh_slope(x: f64) -> f64 {
    let x = within(x, NORMAL_FAR);
    let (inner, lost) = cubic(x);
    let ((gate, scale), rest) = (sigmoid_scaled(inner), sigmoid(-inner));
    (gate + gate * (lost * rest)) * (x * (x * x).mul_add(3.0 * B, A) * rest + 1.0) * scale
}
