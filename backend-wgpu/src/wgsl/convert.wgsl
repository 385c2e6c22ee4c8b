// True if a value is neither NaN nor infinite: by its bits, since compilers may take for granted that it is.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn is_nonzero(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}
// The larger; NaN if either is. Here and elsewhere `|` and `&` stand between comparisons of floats: of what is on the left of
// `||` FXC takes the opposite, and for it that of a < b is a >= b.
fn larger(a: f32, b: f32) -> f32 {
    return select(b, a, ((a >= b) | is_nan(a)) & !is_nan(b));
}
// Towards 0, within the type's range; 0 for NaN.
fn to_u32(x: f32) -> u32 {
    let inside = u32(select(0.0, min(x, 4294967040.0), x >= 1.0));
    return select(inside, 0xffffffffu, x >= 4294967296.0);
}
fn to_i32(x: f32) -> i32 {
    let inside = i32(select(0.0, clamp(x, -2147483648.0, 2147483520.0), abs(x) >= 1.0));
    return select(inside, 0x7fffffffi, x >= 2147483648.0);
}
// By 0 it is 0; and the least integer by -1 is itself.
fn quotient_u32(a: u32, b: u32) -> u32 {
    return select(a / max(b, 1u), 0u, b == 0u);
}
fn quotient_i32(a: i32, b: i32) -> i32 {
    let negative = b == -1i;
    let q = a / select(b, 1i, b == 0i || negative);
    return select(select(q, -q, negative), 0i, b == 0i);
}
// The bits of the nearest f16, ties to even. 65520 and more become infinite; subnormal numbers are kept.
// In integers, since WGSL leaves rounding, overflow and subnormals of its own conversions to the driver.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    // Normal: 13 bits fewer, and 112 less in the exponent.
    var half = (size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u;
    half = select(half, 0x7c00u, size >= 0x477ff000u);
    if (size < 0x38800000u) {
        // Subnormal: a multiple of 2^-24. Below 2^-25 it is 0; there is no shift by more than 24.
        let e = size >> 23u;
        let shift = min(126u - e, 24u);
        let digits = (size & 0x7fffffu) | 0x800000u;
        let below = (1u << (shift - 1u)) - 1u;
        half = select((digits + below + ((digits >> shift) & 1u)) >> shift, 0u, e < 102u);
    }
    half = select(half, 0x7e00u | ((size >> 13u) & 0x1ffu), size > 0x7f800000u);
    return ((bits >> 16u) & 0x8000u) | half;
}
// The value of a half, whose bits are the lower 16.
fn from_half(word: u32) -> f32 {
    let size = word & 0x7fffu;
    let wide = (size << 13u) + select(0x38000000u, 0x70000000u, size >= 0x7c00u);
    let subnormal = bitcast<u32>(f32(size) * 5.9604645e-8f);
    return bitcast<f32>(((word & 0x8000u) << 16u) | select(wide, subnormal, size < 0x400u));
}
// The nearest half, as f32.
fn round_half(x: f32) -> f32 {
    return from_half(half_bits(x));
}
