//! Random numbers that are a pure function of a seed, a name and a counter, so that nothing depends on the order in
//! which they are drawn, and a resumed run needs no generator state.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use wgrad::random::fnv1a;

/// The generator of one (seed, name, counter): ChaCha8 keyed by the seed and the name's hash, on stream `counter`.
pub(crate) fn generator(seed: u64, name: &str, counter: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&fnv1a(name).to_le_bytes());
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(counter);
    generator
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn seed_name_and_counter_each_matter() {
        let first = |seed, name, counter| generator(seed, name, counter).next_u64();
        let base = first(1, "a", 0);
        assert_eq!(base, first(1, "a", 0));
        for other in [first(2, "a", 0), first(1, "b", 0), first(1, "a", 1)] {
            assert_ne!(base, other);
        }
    }
}
