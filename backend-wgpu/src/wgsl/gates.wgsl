// The sigmoid, the normal distribution and what they gate, with their digits near 0, too. An exponential amplifies the rounding of its argument by
// the argument: what rounding took from a square, a product or a sum is carried along.
fn fsigmoid(x: f32) -> f32 {
    let e = fexp(-abs(x));
    return select(1.0f, e, x < 0.0f) / (1.0f + e);
}
// The leading digits of a number: products of two such are exact.
fn upper_digits(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}
// e^x f, where e^x alone may be less than a normal number.
fn fexp_times(x: f32, f: f32) -> f32 {
    let s = exp_split(within(x, -300.0f, 90.0f));
    let n = i32(select(s.x, 0.0f, is_nan_e(x)));
    let h = max(n >> 1u, -126i);
    let rest = max(n - h, -126i);
    return ((exp_rest(s.y) + 1.0f) * f) * power_of_2(h) * power_of_2(rest);
}
// e^(-x^2 / 2) f, for x from 0 to 15.
fn bell(x: f32, f: f32) -> f32 {
    let high = upper_digits(x);
    return fexp_times(-0.5f * high * high, (exp_rest(-0.5f * (x - high) * (x + high)) + 1.0f) * f);
}
fn fnormal_pdf(x: f32) -> f32 {
    return bell(within(abs(x), 0.0f, 15.0f), 0.39894228f);
}
// For t from 0 to 15, e^(t^2 / 2) times the normal distribution's function at -t: the Chebyshev interpolation in
// (t - 3.5) / (t + 3.5).
fn tail_ratio(t: f32) -> f32 {
    let s = (t - 3.5f) / (t + 3.5f);
    var r = -2.06517794e-5f;
    r = r * s - 5.15106329e-5f;
    r = r * s + 1.34123441e-4f;
    r = r * s + 3.89813222e-4f;
    r = r * s - 1.3817383e-3f;
    r = r * s - 1.56137553e-3f;
    r = r * s + 1.9065664e-2f;
    r = r * s - 6.16394264e-2f;
    r = r * s + 1.25855251e-1f;
    r = r * s - 1.87139699e-1f;
    return r * s + 1.06345154e-1f;
}
fn fnormal_cdf(x: f32) -> f32 {
    let t = within(abs(x), 0.0f, 15.0f);
    let tail = bell(t, tail_ratio(t));
    return select(1.0f - tail, tail, x < 0.0f);
}
// x sigmoid(v + low), for x of the sign of v.
fn gated(x: f32, v: f32, low: f32) -> f32 {
    let e = fexp(-abs(v));
    let other = select(e, 1.0f, v < 0.0f) / (1.0f + e);
    let kept = (x / (1.0f + e)) * (1.0f + low * other);
    if (v < 0.0f) {
        return fexp_times(v, kept);
    }
    return kept;
}
// The slope of x sigmoid(v + low), p being that of v.
fn gated_slope(x: f32, v: f32, low: f32, p: f32) -> f32 {
    let e = fexp(-abs(v));
    let other = select(e, 1.0f, v < 0.0f) / (1.0f + e);
    let kept = ((x * p * other + 1.0f) / (1.0f + e)) * (1.0f + low * other);
    if (v < 0.0f) {
        return fexp_times(v, kept);
    }
    return kept;
}
// Far left x is kept finite, as there is no number that is 0 times infinity.
fn at_least(x: f32, low: f32) -> f32 {
    return select(x, low, x < low);
}
fn fsilu(x: f32) -> f32 {
    let t = at_least(x, -200.0f);
    return gated(t, t, 0.0f);
}
fn fsilu_slope(x: f32) -> f32 {
    let t = within(x, -200.0f, 200.0f);
    return gated_slope(t, t, 0.0f, 1.0f);
}
fn fgelu(x: f32) -> f32 {
    let t = within(abs(x), 0.0f, 15.0f);
    let r = tail_ratio(t);
    if (x < 0.0f) {
        return bell(t, -t * r);
    }
    return x * (1.0f - bell(t, r));
}
fn fgelu_slope(x: f32) -> f32 {
    let t = within(abs(x), 0.0f, 15.0f);
    let tail = bell(t, t * 0.39894228f - tail_ratio(t));
    return select(1.0f + tail, -tail, x < 0.0f);
}
// x (a + b x^2), with a = 2 sqrt(2 / pi) and b = 0.044715 a, each in two parts; and what rounding took from it.
fn cubic(t: f32, none: u32) -> vec2<f32> {
    let high = upper_digits(t);
    let low = t - high;
    let square = high * high;
    let square_high = upper_digits(square);
    let square_low = (square - square_high) + low * (t + high);
    let term = square_high * 0.07135009765625f;
    let factor = opaque(term + 1.595703125f, none);
    let other = opaque(factor - term, none);
    let lost = (term - opaque(factor - other, none)) + (1.595703125f - other);
    let rest = lost + (square_low * 0.07135009765625f + ((square_high + square_low) * 4.71861635e-6f + 6.59966057e-5f));
    let factor_high = upper_digits(factor);
    let factor_low = (factor - factor_high) + rest;
    let product = high * factor_high;
    let product_low = high * factor_low + low * (factor_high + factor_low);
    let v = opaque(product + product_low, none);
    return vec2<f32>(v, (product - v) + product_low);
}
fn fgelu_tanh(x: f32, none: u32) -> f32 {
    let v = cubic(within(x, -15.0f, 15.0f), none);
    return gated(at_least(x, -15.0f), v.x, v.y);
}
fn fgelu_tanh_slope(x: f32, none: u32) -> f32 {
    let t = within(x, -15.0f, 15.0f);
    let v = cubic(t, none);
    return gated_slope(t, v.x, v.y, t * t * 2.14064449e-1f + 1.59576917f);
}
