//! Random numbers as a pure function of (key, stream, counter, index): nothing has to be stored to draw them again, and
//! nothing depends on the order in which they are drawn.
//!
//! - The **key** is the seed: 64 bits, as two words.
//! - The **stream** tells uses apart that share a key: two dropouts of a model. It is part of the program.
//! - The **counter** tells runs apart: it goes up by one from run to run.
//! - The **index** is an element's row-major position.

use crate::{Array, DType, Pitfall, Shape, Store, Tape, Tensor, lints::facts::Drawn, op::Op, store::StateId};

/// Threefry-2x32 with 20 rounds: 64 bits scrambled under a 64-bit key. (Salmon, Moraes, Dror and Shaw 2011, "Parallel
/// random numbers: as easy as 1, 2, 3".)
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let (mut a, mut b) = (counter[0].wrapping_add(keys[0]), counter[1].wrapping_add(keys[1]));
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(rotation) ^ a;
        }
        a = a.wrapping_add(keys[(group + 1) % 3]);
        b = b.wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [a, b]
}

/// The key of one stream: the stream's low and high word, scrambled under the key.
pub fn stream_key(key: [u32; 2], stream: u64) -> [u32; 2] {
    threefry2x32(key, [stream as u32, (stream >> 32) as u32])
}

/// The word at an index, given the key of its stream. Each scrambling gives two neighbours: word `i` is output `i % 2`
/// of the counter pair `(i / 2, counter)`.
pub fn word(stream_key: [u32; 2], counter: u32, index: usize) -> u32 {
    threefry2x32(stream_key, [(index / 2) as u32, counter])[index % 2]
}

/// The 64-bit FNV-1a hash of a name: stable across versions and platforms, unlike the standard library's hasher.
pub fn fnv1a(name: &str) -> u64 {
    fnv1a_bytes(FNV_OFFSET, name.bytes())
}

/// The hash of no bytes.
pub(crate) const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// Extends a hash by more bytes.
pub(crate) fn fnv1a_bytes(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Tape {
    /// Random words (u32): element `i` is the word at index `i` of the given stream, for a key (`u32[2]`) and a counter
    /// (u32 scalar). [`Rng`] has all three.
    ///
    /// # Panics
    /// If the shape has more than 2^32 elements.
    #[track_caller]
    pub fn random<'t>(
        &'t self,
        key: Tensor<'t>,
        counter: Tensor<'t>,
        stream: u64,
        shape: impl Into<Shape>,
    ) -> Tensor<'t> {
        self.push(Op::Random { stream, shape: shape.into() }, &[key, counter])
    }
}

/// The end of the name of a generator's key.
pub(crate) const KEY: &str = "/key";

/// A source of random numbers in a store: a key, and a counter that the program itself moves on.
///
/// The result of a call depends on the seed, the counter, the generator's name, the scope that the call is recorded in,
/// and the number of earlier calls on this generator in that scope on that tape. It depends on nothing recorded
/// elsewhere. So two dropouts never share a mask, a layer keeps its numbers when another is added, and a checkpoint
/// recomputes the same ones. Numbers that must advance at different times need several generators: dropout advances
/// with every training run, gradient noise with every update. Bits, uniform numbers and truth values are the same on
/// every device, bit for bit.
///
/// ```
/// use wgrad::{DType, Rng, Store, Tape};
/// let mut store = Store::new();
/// let rng = Rng::new(&mut store, "dropout", 7);
/// let t = Tape::new(store.into_parts().0);
/// let noise = rng.normal(&t, [2, 3], DType::F32);
/// rng.advance(&t);
/// # let _ = noise;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rng {
    key: StateId,
    counter: StateId,
    /// True if its numbers are meant to repeat.
    repeats: bool,
}

impl Rng {
    /// Declares the states `<name>/key` (`u32[2]`: the seed's low and high word) and `<name>/counter` (u32, from 0).
    /// They are saved and restored as all states are, so that a resumed run goes on with the numbers that it would have
    /// had. Ranks that train together need seeds of their own for dropout, such as `seed + rank`, and one seed for
    /// gradient noise.
    ///
    /// # Panics
    /// If the names are taken.
    #[track_caller]
    pub fn new(store: &mut Store, name: &str, seed: u64) -> Self {
        let key = Array::new([2], vec![seed as u32, (seed >> 32) as u32]);
        let key = store.state(&format!("{name}{KEY}"), &key);
        let counter = store.state(&format!("{name}/counter"), &Array::zeros([], DType::U32));
        Self { key, counter, repeats: false }
    }

    /// The same generator, whose numbers are meant to repeat: one mask for all runs, or for all ranks. Without this a
    /// lint tells of a training program that draws and does not [`Rng::advance`] ([`Pitfall::RepeatedDraws`]), of
    /// numbers that another program draws too ([`Pitfall::SharedDraws`]), and of ranks that draw the same
    /// ([`Pitfall::SameDrawsOnRanks`]).
    #[must_use]
    pub fn repeating(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// Advances the counter by one (it wraps after 2^32 steps). A training program does so once per run: without it,
    /// each run draws the same numbers. Draws recorded afterwards on the same tape are those of the next run.
    ///
    /// # Panics
    /// If gradient noise is drawn from it on this tape: the optimizer's step advances such a generator, unless the step
    /// is skipped ([`Pitfall::AdvanceOnSkippedStep`]).
    #[track_caller]
    pub fn advance(self, tape: &Tape) {
        tape.inner.borrow_mut().chance.advanced.push(self.counter);
        self.check_noise(tape);
        tape.assign(self.counter, tape.state(self.counter) + 1.0);
    }

    /// Advances the counter past a value at which gradient noise was drawn, if the verdict (bool scalar) allows the
    /// step. Several optimizers may step with the same noise: the counter still advances by one.
    #[track_caller]
    pub(crate) fn move_past(self, drawn: Tensor<'_>, verdict: Option<Tensor<'_>>) {
        let (tape, next) = (drawn.tape(), drawn + 1.0);
        tape.assign(self.counter, verdict.map_or(next, |taken| taken.select(next, self.counter(tape))));
    }

    /// Notes that gradient noise is drawn from this generator.
    #[track_caller]
    pub(crate) fn draws_noise(self, tape: &Tape) {
        {
            let inner = &mut *tape.inner.borrow_mut();
            inner.chance.noise.push(self.counter);
            inner.chance.shared.push(self.key);
        }
        self.check_noise(tape);
    }

    /// Refuses a counter of gradient noise that advances even if the step is skipped.
    #[track_caller]
    fn check_noise(self, tape: &Tape) {
        let both = {
            let inner = tape.inner.borrow();
            inner.chance.noise.contains(&self.counter) && inner.chance.advanced.contains(&self.counter)
        };
        if both {
            tape.refuse(Pitfall::AdvanceOnSkippedStep);
        }
    }

    /// The counter's latest value on a tape (u32 scalar).
    #[track_caller]
    pub fn counter(self, tape: &Tape) -> Tensor<'_> {
        tape.state(self.counter)
    }

    /// Advances the counter by one if a condition (bool scalar) holds: see [`Rng::advance`].
    #[track_caller]
    pub fn advance_if(self, condition: Tensor<'_>) {
        let (tape, now) = (condition.tape(), self.counter(condition.tape()));
        tape.assign(self.counter, condition.select(now + 1.0, now));
    }

    /// Random words (u32), each bit 0 or 1 with probability 1/2.
    ///
    /// # Panics
    /// If the shape has more than 2^32 elements.
    #[track_caller]
    pub fn bits<'t>(self, tape: &'t Tape, shape: impl Into<Shape>) -> Tensor<'t> {
        let declared = &tape.layout.state(self.key).name;
        let stream = tape.new_stream(declared.strip_suffix(KEY).unwrap_or(declared));
        let bits = tape.random(tape.state(self.key), tape.state(self.counter), stream, shape);
        if !self.repeats {
            let (key, counter, node, site) = (self.key, self.counter, bits.id, tape.site());
            tape.inner.borrow_mut().facts.drawn.push(Drawn { key, counter, stream, node, site });
        }
        bits
    }

    /// Uniform numbers in [0, 1): the word's upper 11 (f16), 24 (f32) or 32 bits (f64), as a fraction.
    ///
    /// # Panics
    /// If the type is not a float, or as [`Rng::bits`].
    #[track_caller]
    pub fn uniform<'t>(self, tape: &'t Tape, shape: impl Into<Shape>, dtype: DType) -> Tensor<'t> {
        let kept = match dtype {
            DType::F16 => 11,
            DType::F32 => 24,
            DType::F64 => 32,
            _ => panic!("{}", tape.refusal("uniform", &[], &format!("needs a float type, not {dtype}"))),
        };
        let bits = self.bits(tape, shape);
        // A shift, by a division that truncates; the quotient has no more digits than the type.
        let upper = if kept == 32 { bits } else { bits / 2f64.powi(32 - kept) };
        upper.cast(dtype) * 2f64.powi(-kept)
    }

    /// Numbers of the standard normal distribution: `sqrt(-2 ln(1 - u)) cos(2 pi v)` of two uniform numbers each (Box
    /// and Muller 1958). None is larger than 5.8 in magnitude in f32, 6.7 in f64; f16 is rounded from f32.
    ///
    /// # Panics
    /// If the type is not a float, or as [`Rng::bits`].
    #[track_caller]
    pub fn normal<'t>(self, tape: &'t Tape, shape: impl Into<Shape>, dtype: DType) -> Tensor<'t> {
        let _call = tape.call("normal", &[]);
        tape.require(dtype.is_float(), "normal", &[], || format!("needs a float type, not {dtype}"));
        let (shape, wide) = (shape.into(), if dtype == DType::F16 { DType::F32 } else { dtype });
        let (u, v) = (self.uniform(tape, &shape, wide), self.uniform(tape, shape, wide));
        // 1 - u is exact, and never 0.
        let radius = ((1.0 - u).log() * -2.0).sqrt();
        (radius * (v * std::f64::consts::TAU).cos()).cast(dtype)
    }

    /// Whole numbers (u32) from 0 to `below - 1`. Their probabilities differ by at most `2^-32`.
    ///
    /// # Panics
    /// If `below` is 0, or as [`Rng::bits`].
    #[track_caller]
    pub fn integers<'t>(self, tape: &'t Tape, below: u32, shape: impl Into<Shape>) -> Tensor<'t> {
        let _call = tape.call("integers", &[]);
        tape.require(below > 0, "integers", &[], || "no number is below 0".into());
        let (bits, below) = (self.bits(tape, shape), f64::from(below));
        bits - (bits / below) * below
    }

    /// The numbers (u32) from 0 to `len - 1` in random order. Two random words are equal with a probability of `2^-32`;
    /// such a pair keeps its order.
    ///
    /// # Panics
    /// As [`Rng::bits`].
    #[track_caller]
    pub fn permutation<'t>(self, tape: &'t Tape, len: usize) -> Tensor<'t> {
        let _call = tape.call("permutation", &[]);
        self.bits(tape, [len]).argsort(0, false)
    }

    /// Truth values (bool) that are true with probability `p`, rounded to a multiple of 2^-31.
    ///
    /// # Panics
    /// If `p` is not between 0 and 1, or as [`Rng::bits`].
    #[track_caller]
    pub fn bernoulli<'t>(self, tape: &'t Tape, p: f64, shape: impl Into<Shape>) -> Tensor<'t> {
        let _call = tape.call("bernoulli", &[]);
        tape.require((0.0..=1.0).contains(&p), "bernoulli", &[], || format!("{p} is not a probability"));
        // 31 bits only, so that u32 holds the threshold of p = 1.
        (self.bits(tape, shape) / 2.0).less((p * 2f64.powi(31)).round())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::abs_diff_eq;

    #[test]
    fn threefry_gives_the_known_answers_of_random123() {
        for (key, counter, want) in [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
        ] {
            assert_eq!(threefry2x32(key, counter), want, "{key:x?} {counter:x?}");
        }
    }

    #[test]
    fn words_come_in_pairs_of_a_counter() {
        let key = stream_key([1, 2], 0x0000_0004_0000_0003);
        assert_eq!(key, threefry2x32([1, 2], [3, 4]));
        assert_eq!([word(key, 9, 10), word(key, 9, 11)], threefry2x32(key, [5, 9]));
    }

    #[test]
    fn fnv1a_matches_its_published_vectors() {
        assert_eq!(fnv1a(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    /// The sample of the statistics below: three streams of three seeds, at two counters.
    fn samples() -> Vec<Vec<u32>> {
        let of = |seed: u32, stream: u64, counter: u32| {
            let key = stream_key([seed, 0], stream);
            (0..1 << 16).map(|i| word(key, counter, i)).collect()
        };
        let all = (0..3).flat_map(|seed| (0..3).map(move |stream| (seed, fnv1a(&format!("net/layer{stream}:0")))));
        all.flat_map(|(seed, stream)| [0, 1].map(|counter| of(seed, stream, counter))).collect()
    }

    /// Mean and variance of a sample, uniform on [0, 1).
    fn moments(sample: &[f64]) -> (f64, f64) {
        let mean = sample.iter().sum::<f64>() / sample.len() as f64;
        (mean, sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / sample.len() as f64)
    }

    /// The correlation coefficient of uniform samples, in its standard deviations.
    fn correlation(a: &[f64], b: &[f64]) -> f64 {
        let n = a.len().min(b.len());
        let sum: f64 = a.iter().zip(b).map(|(a, b)| (a - 0.5) * (b - 0.5) * 12.0).sum();
        sum / (n as f64).sqrt()
    }

    #[test]
    fn words_pass_for_independent_uniform_numbers() {
        let samples = samples();
        let unit: Vec<Vec<f64>> =
            samples.iter().map(|s| s.iter().map(|&w| w as f64 / 2f64.powi(32)).collect()).collect();
        for (words, sample) in samples.iter().zip(&unit) {
            let n = sample.len() as f64;
            let (mean, variance) = moments(sample);
            // 4.5 standard deviations: of the mean 1 / sqrt(12 n), of the variance 1 / sqrt(180 n).
            assert!(abs_diff_eq!(mean, 0.5, epsilon = 4.5 / (12.0 * n).sqrt()), "mean {mean}");
            assert!(abs_diff_eq!(variance, 1.0 / 12.0, epsilon = 4.5 / (180.0 * n).sqrt()), "variance {variance}");
            for lag in [1, 2, 64] {
                let along = correlation(sample, &sample[lag..]);
                assert!(along.abs() < 4.5, "correlation at distance {lag}: {along} deviations");
            }
            for byte in 0..4 {
                let mut counts = [0.0f64; 256];
                words.iter().for_each(|w| counts[(w >> (8 * byte) & 255) as usize] += 1.0);
                let chi_square: f64 = counts.iter().map(|c| (c - n / 256.0).powi(2) / (n / 256.0)).sum();
                // 255 degrees of freedom: mean 255, standard deviation 22.6.
                assert!((170.0..=360.0).contains(&chi_square), "byte {byte}: chi-square {chi_square}");
            }
        }
        for (i, a) in unit.iter().enumerate() {
            for b in &unit[..i] {
                let across = correlation(a, b);
                assert!(across.abs() < 4.5, "correlation across seeds, streams and counters: {across} deviations");
            }
        }
    }
}
