fn is_nan_e(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
// Keeps x within bounds; NaN stays NaN, whatever comparisons with it come out as.
fn within(x: f32, low: f32, high: f32) -> f32 {
    return select(clamp(x, low, high), x, is_nan_e(x));
}
fn with_sign(x: f32, sign: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
// 2^n for n from -126 to 127.
fn power_of_2(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127i) << 23u);
}
// e^r - 1 for |r| <= ln 2 / 2: the Taylor series.
fn exp_rest(r: f32) -> f32 {
    var s = 1.9841270e-4f;
    s = s * r + 1.3888889e-3f;
    s = s * r + 8.3333333e-3f;
    s = s * r + 4.1666667e-2f;
    s = s * r + 1.6666667e-1f;
    s = s * r + 0.5f;
    return (r * r) * s + r;
}
// x = n ln 2 + r. The first part of ln 2 has so few bits that its product with n is exact.
fn exp_split(x: f32) -> vec2<f32> {
    let n = round(x * 1.44269504f);
    return vec2<f32>(n, (x - n * 0.693359375f) + n * 2.12194440e-4f);
}
fn fexp(x: f32) -> f32 {
    let s = exp_split(within(x, -105.0f, 90.0f));
    // In two steps: 2^n alone may lie outside of the range where the result does not.
    let n = i32(select(s.x, 0.0f, is_nan_e(x)));
    let h = n >> 1u;
    return (exp_rest(s.y) + 1.0f) * power_of_2(h) * power_of_2(n - h);
}
fn fexpm1(x: f32) -> f32 {
    let s = exp_split(within(x, -20.0f, 89.0f));
    let n = i32(select(s.x, 0.0f, is_nan_e(x)));
    let rest = exp_rest(s.y);
    let scale = power_of_2(n - 1i);
    let value = 2.0f * (scale * rest + (scale - 0.5f));
    return with_sign(select(value, rest, n == 0i), x);
}
fn ftanh(x: f32) -> f32 {
    let s = exp_split(within(2.0f * x, -20.0f, 20.0f));
    let n = i32(select(s.x, 0.0f, is_nan_e(x)));
    let scale = power_of_2(n);
    let e = scale * exp_rest(s.y) + (scale - 1.0f);
    return with_sign(e / (e + 2.0f), x);
}
