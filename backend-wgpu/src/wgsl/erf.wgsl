// Near 0 it is x P(x^2), where P is the Chebyshev interpolation of erf(sqrt u) / sqrt u for u from 0 to 1; from there to 4
// 1 - e^Q(x - 2.5), with Q that of log(1 - erf x). From 4 on it rounds to 1.
fn ferf(x: f32) -> f32 {
    let size = within(abs(x), 0.0f, 4.0f);
    let u = size * size;
    var s = 1.0595274e-6f;
    s = s * u - 1.3911700e-5f;
    s = s * u + 1.1956947e-4f;
    s = s * u - 8.5426704e-4f;
    s = s * u + 5.2237851e-3f;
    s = s * u - 2.6866134e-2f;
    s = s * u + 1.1283791e-1f;
    s = s * u - 3.7612638e-1f;
    s = s * u + 1.1283792e0f;
    let t = size - 2.5f;
    var q = 1.6140616e-6f;
    q = q * t - 1.3309390e-5f;
    q = q * t + 7.7394427e-5f;
    q = q * t - 4.2014456e-4f;
    q = q * t + 2.1651604e-3f;
    q = q * t - 1.0858517e-2f;
    q = q * t - 9.4389361e-1f;
    q = q * t - 5.3526807e0f;
    q = q * t - 7.8068151e0f;
    let far = select(1.0f - fexp(q), 1.0f, size >= 4.0f);
    return with_sign(select(far, size * s, (size < 1.0f) | is_nan_e(x)), x);
}
