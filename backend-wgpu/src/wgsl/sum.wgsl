// A sum and one more summand; the second part of a sum is what rounding has taken from the first (Knuth 1969, "The Art of
// Computer Programming", volume 2, 4.2.2). What is not finite has lost nothing that can be told.
fn plus(a: vec2<f32>, x: f32, none: u32) -> vec2<f32> {
    let sum = opaque(a.x + x, none);
    let added = opaque(sum - a.x, none);
    let lost = opaque(a.x - opaque(sum - added, none), none) + opaque(x - added, none);
    return vec2<f32>(sum, select(0.0f, a.y + lost, is_finite(sum)));
}
