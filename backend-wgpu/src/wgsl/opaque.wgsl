// The same number, which compilers cannot know: `none` is 0. Else they might take what is divided by itself for 1, or find that
// what rounding has lost is nothing.
fn opaque(x: f32, none: u32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ none);
}
