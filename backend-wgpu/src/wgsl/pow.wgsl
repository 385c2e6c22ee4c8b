// The leading digits of a number: products of two such are exact.
fn leading(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}
// a^b with the special values of IEEE 754: 2 to the power of b log2 |a|, the logarithm as a sum of two numbers.
fn fpow(a: f32, b: f32) -> f32 {
    let size = bitcast<u32>(a) & 0x7fffffffu;
    // Without a branch, as in flog.
    let tiny = size < 0x00800000u;
    let bits = select(size, bitcast<u32>(f32(size)), tiny);
    let k = select(0i, -149i, tiny);
    let shifted = bits + (0x3f800000u - 0x3f3504f3u);
    let e = f32((i32(shifted) >> 23u) - 127i + k);
    let f = bitcast<f32>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    // log(1 + f) = 2 artanh s.
    let s = f / (2.0f + f);
    let sh = leading(s);
    let fh = leading(f);
    let sl = (((f - 2.0f * sh) - sh * fh) - sh * (f - fh)) / (2.0f + f);
    let z = s * s;
    var series = 2.2222222e-1f + z * 1.8181818e-1f;
    series = 6.6666667e-1f + z * (0.4f + z * (2.8571429e-1f + z * series));
    let l = 2.0f * sl + s * z * series;
    // Times 1 / ln 2, whose first part is 1.4423828125.
    let h = 2.0f * sh;
    let high = h * 1.4423828125f;
    let low = h * 3.1222839e-4f + l * 1.44269504f;
    let whole = leading(e + high + low);
    let rest = ((e - whole) + high) + low;
    // Beyond this the power is 0, 1 or infinite.
    let y = clamp(b, -8589934592.0f, 8589934592.0f);
    let yh = leading(y);
    let eh = yh * whole;
    let el = (y - yh) * whole + y * rest;
    let n = round(clamp(eh + el, -200.0f, 200.0f));
    let r = clamp((eh - n) + el, -0.6f, 0.6f);
    let i = i32(n);
    let half = i >> 1u;
    var value = (exp_rest(r * 0.69314718f) + 1.0f) * power_of_2(half) * power_of_2(i - half);
    // 0 and infinity.
    let infinity = bitcast<f32>(0x7f800000u | (size & 0u));
    if (size == 0u || size == 0x7f800000u) {
        value = select(0.0f, infinity, (size == 0u) == (b < 0.0f));
    }
    let whole_b = floor(b) == b;
    let odd = whole_b & (abs(b) < 16777216.0f) & (floor(b * 0.5f) != b * 0.5f);
    let negative = (bitcast<u32>(a) >> 31u) == 1u;
    value = select(value, -value, negative && odd);
    let none = (negative && size != 0u && size < 0x7f800000u && whole_b == false) || size > 0x7f800000u || is_nan_e(b);
    value = select(value, bitcast<f32>(0x7fc00000u | (size & 0u)), none);
    return select(value, 1.0f, (bitcast<u32>(b) & 0x7fffffffu) == 0u || bitcast<u32>(a) == 0x3f800000u);
}
