// The upper word of a product.
fn upper(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}
// Bits of 2 / pi, behind a word of zeros.
fn two_over_pi(i: u32) -> u32 {
    switch i {
        case 1u: { return 0xa2f9836eu; }
        case 2u: { return 0x4e441529u; }
        case 3u: { return 0xfc2757d1u; }
        case 4u: { return 0xf534ddc0u; }
        case 5u: { return 0xdb629599u; }
        case 6u: { return 0x3c439041u; }
        case 7u: { return 0xfe5163abu; }
        default: { return 0u; }
    }
}
fn bits_from(start: u32) -> u32 {
    let word = start >> 5u;
    let shift = start & 31u;
    let next = select(two_over_pi(word + 1u) >> (32u - max(shift, 1u)), 0u, shift == 0u);
    return (two_over_pi(word) << shift) | next;
}
// Quarter turns, and what is left: |x| = q pi / 2 + r with |r| <= pi / 4. Small angles by subtraction of pi / 2 in parts whose
// products with q are exact; large ones by the digits of 2 / pi that matter (Payne and Hanek 1983).
fn reduced(x: f32) -> vec2<f32> {
    let size = bitcast<u32>(x) & 0x7fffffffu;
    let a = bitcast<f32>(size);
    if (size < 0x46000000u) {
        let n = round(a * 0.63661977f);
        let r = ((a - n * 1.5703125f) - n * 4.8375129e-4f) - n * 7.5495336e-8f - n * 2.5633441e-12f;
        return vec2<f32>(f32(u32(n) & 3u), r);
    }
    let digits = (size & 0x7fffffu) | 0x800000u;
    // Digits above the first of these are whole turns.
    let start = (size >> 23u) - 120u;
    let w0 = bits_from(start);
    let w1 = bits_from(start + 32u);
    let w2 = bits_from(start + 64u);
    let middle = digits * w1;
    let low = middle + upper(digits, w2);
    let high = digits * w0 + upper(digits, w1) + select(0u, 1u, low < middle);
    let rest = (high << 2u) | (low >> 30u);
    let quarters = (high >> 30u) + (rest >> 31u);
    let r = (f32(bitcast<i32>(rest)) * 2.3283064e-10f + f32(low << 2u) * 5.4210109e-20f) * 1.57079633f;
    return vec2<f32>(f32(quarters & 3u), r);
}
fn sine_from(x: f32, quarters: u32, negative: bool) -> f32 {
    let a = reduced(x);
    let z = a.y * a.y;
    var s = 2.7557319e-6f;
    s = s * z - 1.9841270e-4f;
    s = s * z + 8.3333333e-3f;
    s = s * z - 1.6666667e-1f;
    s = s * z * a.y + a.y;
    var c = -2.7557319e-7f;
    c = c * z + 2.4801587e-5f;
    c = c * z - 1.3888889e-3f;
    c = c * z + 4.1666667e-2f;
    c = c * z - 0.5f;
    c = c * z + 1.0f;
    let q = u32(a.x) + quarters;
    let value = select(s, c, (q & 1u) == 1u);
    let flip = ((q & 2u) == 2u) != negative;
    // Of what is not finite there is none.
    let infinite = (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
    let result = bitcast<u32>(value) ^ select(0u, 0x80000000u, flip);
    return bitcast<f32>(select(result, 0x7fc00000u, infinite));
}
fn fsin(x: f32) -> f32 {
    return sine_from(x, 0u, (bitcast<u32>(x) >> 31u) == 1u);
}
fn fcos(x: f32) -> f32 {
    return sine_from(x, 1u, false);
}
