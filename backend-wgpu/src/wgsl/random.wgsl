// Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
fn threefry_4(x: vec2<u32>, r: vec4<u32>) -> vec2<u32> {
    var a = x.x;
    var b = x.y;
    a = a + b; b = ((b << r.x) | (b >> (32u - r.x))) ^ a;
    a = a + b; b = ((b << r.y) | (b >> (32u - r.y))) ^ a;
    a = a + b; b = ((b << r.z) | (b >> (32u - r.z))) ^ a;
    a = a + b; b = ((b << r.w) | (b >> (32u - r.w))) ^ a;
    return vec2<u32>(a, b);
}
fn threefry(k: vec2<u32>, c: vec2<u32>) -> vec2<u32> {
    let even = vec4<u32>(13u, 15u, 26u, 6u);
    let odd = vec4<u32>(17u, 29u, 16u, 24u);
    let k2 = 0x1bd11bdau ^ k.x ^ k.y;
    var x = threefry_4(c + k, even) + vec2<u32>(k.y, k2 + 1u);
    x = threefry_4(x, odd) + vec2<u32>(k2, k.x + 2u);
    x = threefry_4(x, even) + vec2<u32>(k.x, k.y + 3u);
    x = threefry_4(x, odd) + vec2<u32>(k.y, k2 + 4u);
    return threefry_4(x, even) + vec2<u32>(k2, k.x + 5u);
}
fn stream_key(a: u32, b: u32, low: u32, high: u32) -> vec2<u32> {
    return threefry(vec2<u32>(a, b), vec2<u32>(low, high));
}
fn word(key: vec2<u32>, counter: u32, i: u32) -> u32 {
    let pair = threefry(key, vec2<u32>(i >> 1u, counter));
    return select(pair.y, pair.x, (i & 1u) == 0u);
}
