//! Random bits that are a function of key, stream, counter and position: Threefry-2x32 with 20 rounds (Salmon et al.,
//! "Parallel random numbers: as easy as 1, 2, 3", 2011).

use crate::simd::lanes::{Lanes, map1};

/// The block cipher.
#[inline(always)]
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let [mut x, mut y] = [counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1])];
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x = x.wrapping_add(y);
            y = y.rotate_left(rotation) ^ x;
        }
        x = x.wrapping_add(keys[(group + 1) % 3]);
        y = y.wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [x, y]
}

/// Word `i` of a stream, for a key and a counter.
#[inline(always)]
fn word(key: [u32; 2], counter: u32, i: u32) -> u32 {
    let pair = threefry(key, [i >> 1, counter]);
    if i & 1 == 0 { pair[0] } else { pair[1] }
}

/// The key of a stream.
#[inline(always)]
fn stream_key(key: [u32; 2], stream: u64) -> [u32; 2] {
    threefry(key, [stream as u32, (stream >> 32) as u32])
}

/// Replaces positions by the words at them, for a key's two words and a counter.
pub(crate) fn words(stream: u64, key: [Lanes<u32>; 3], out: &mut [u32]) {
    if let [Lanes::Splat(a), Lanes::Splat(b), Lanes::Splat(counter)] = key {
        let key = stream_key([a, b], stream);
        return in_place(out, |i| word(key, counter, i));
    }
    let len = out.len();
    let at = |lanes: Lanes<u32>, i: usize| match lanes {
        Lanes::Slice(x) => x[i],
        Lanes::Lines(x) => x[i * x.len() / len],
        Lanes::Tile(x) => x[i % x.len()],
        Lanes::Splat(x) => x,
    };
    for (i, out) in out.iter_mut().enumerate() {
        let [a, b, counter] = key.map(|lanes| at(lanes, i));
        *out = word(stream_key([a, b], stream), counter, *out);
    }
}

/// `out[i] = f(out[i])`, in vector instructions.
fn in_place(out: &mut [u32], f: impl Fn(u32) -> u32) {
    let mut part = [0; 64];
    for out in out.chunks_mut(part.len()) {
        let from = &mut part[..out.len()];
        from.copy_from_slice(out);
        map1(Lanes::Slice(from), out, &f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        for (key, counter, expected) in [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
        ] {
            assert_eq!(threefry(key, counter), expected);
        }
    }

    #[test]
    fn words_come_in_pairs() {
        let stream = 0x1234_5678_9abc_def0;
        let key = threefry([7, 8], [0x9abc_def0, 0x1234_5678]);
        let mut out: Vec<u32> = (5..105).collect();
        words(stream, [7, 8, 3].map(Lanes::Splat), &mut out);
        for (i, word) in (5u32..).zip(out) {
            assert_eq!(word, threefry(key, [i / 2, 3])[i as usize % 2]);
        }
    }
}
