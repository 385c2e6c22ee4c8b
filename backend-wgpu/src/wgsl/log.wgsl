// log of 2^k (1 + f), for 1 + f from 1 / sqrt 2 to sqrt 2, c being what is to be added to f for f to be exact: with
// s = f / (2 + f), log(1 + f) = 2 artanh s, whose odd series beyond 2 s is s R(s^2).
fn log_of(k: f32, f: f32, c: f32) -> f32 {
    let s = f / (2.0f + f);
    let z = s * s;
    var r = 2.2222222e-1f + z * 1.8181818e-1f;
    r = z * (6.6666667e-1f + z * (0.4f + z * (2.8571429e-1f + z * r)));
    let h = 0.5f * f * f;
    return (s * (h + r) + (k * 9.0580006e-6f + c) - h + f) + k * 6.9313812e-1f;
}
fn flog(x: f32) -> f32 {
    let size = bitcast<u32>(x) & 0x7fffffffu;
    // Subnormal, and perhaps taken for 0: its digits, by integer arithmetic, in units of 2^-149. No branch: FXC ends where
    // it knows that one is not taken.
    let tiny = size < 0x00800000u;
    let bits = select(bitcast<u32>(x), bitcast<u32>(f32(size)), tiny);
    let e = select(0i, -149i, tiny);
    let shifted = bits + (0x3f800000u - 0x3f3504f3u);
    let k = f32((i32(shifted) >> 23u) - 127i + e);
    let m = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u);
    var value = log_of(k, m - 1.0f, 0.0f);
    // NaN and infinity give themselves; what is negative has none.
    value = select(value, x, size >= 0x7f800000u);
    let negative = bitcast<u32>(x) > 0x80000000u;
    let special = select(0x7fc00000u, 0xff800000u, size == 0u) ^ 0u;
    return select(value, bitcast<f32>(special), size == 0u || negative);
}
fn flog1p(x: f32, none: u32) -> f32 {
    let size = bitcast<u32>(x) & 0x7fffffffu;
    let sum = opaque(1.0f + x, none);
    let shifted = bitcast<u32>(sum) + (0x3f800000u - 0x3f3504f3u);
    let k = f32((i32(shifted) >> 23u) - 127i);
    let m = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u);
    // The rounding error of the sum, relative to it.
    let lost = select(x - (sum - 1.0f), 1.0f - (sum - x), sum >= 2.0f) / sum;
    let direct = (x > -0.29f) & (x < 0.41f);
    var value = log_of(select(k, 0.0f, direct), select(m - 1.0f, x, direct), select(lost, 0.0f, direct));
    value = select(value, x, size < 0x33000000u || size >= 0x7f800000u);
    // At -1 minus infinity; below, and at minus infinity, there is none.
    let special = select(0x7fc00000u, 0xff800000u, x == -1.0f);
    return select(value, bitcast<f32>(special), x <= -1.0f);
}
