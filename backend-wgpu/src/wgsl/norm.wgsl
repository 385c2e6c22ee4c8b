// Sums of squares of small, middling and large numbers, each scaled so that none overflows or vanishes.
fn norm_of(x: f32) -> vec3<f32> {
    // By bits, since comparisons with NaN may come out either way: it counts as middling.
    let size = bitcast<u32>(x) & 0x7fffffffu;
    let small = size < 0x21800000u;
    let large = size > 0x5d800000u && size <= 0x7f800000u;
    let t = x * select(select(1.0f, 8.2718061e-25f, large), 1.2089258e24f, small);
    let q = t * t;
    return vec3<f32>(select(0.0f, q, small), select(q, 0.0f, small || large), select(0.0f, q, large));
}
fn norm_end(a: vec3<f32>) -> f32 {
    // Scaled after the root is taken: the square of the scale is no f32.
    if (a.z > 0.0f) {
        let rest = sqrt(a.y) * 8.2718061e-25f;
        return sqrt(a.z + rest * rest) * 1.2089258e24f;
    }
    if (a.y == 0.0f) {
        return sqrt(a.x) * 8.2718061e-25f;
    }
    let rest = sqrt(a.x) * 8.2718061e-25f;
    return sqrt(a.y + rest * rest);
}
