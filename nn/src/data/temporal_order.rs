//! The temporal order problem: tell which of two symbols came first, and which second.

use super::{Batch, HELD_OUT, Task};
use crate::random::generator;
use rand::RngExt;
use std::ops::Range;
use wgrad::Array;

const SYMBOLS: usize = 6;
/// Symbols 0 and 1 are the marks, A and B; the others distract.
const MARKS: u32 = 2;

/// Temporal order (Hochreiter & Schmidhuber 1997, task 6a; lengths as in Pascanu et al. 2013).
///
/// Sequences of the distractors c, d, e, f, except for two marks, each A or B, at random places in `[T/10, 2T/10)` and
/// `[5T/10, 6T/10)`. Six inputs, one-hot, in the order A, B, c, d, e, f; four classes: AA, AB, BA, BB.
#[derive(Clone, Debug)]
pub struct TemporalOrder {
    time: usize,
    seed: u64,
}

impl TemporalOrder {
    /// Sequences of `time` steps.
    ///
    /// # Panics
    /// If there are fewer than 10 steps, which leaves no room for the marks.
    #[track_caller]
    pub fn new(time: usize, seed: u64) -> Self {
        assert!(time >= 10, "temporal order of {time} steps: needs at least 10");
        Self { time, seed }
    }

    /// The steps at which the first and the second mark may lie.
    fn places(&self) -> [Range<usize>; 2] {
        [self.time / 10..2 * self.time / 10, 5 * self.time / 10..6 * self.time / 10]
    }

    fn batch(&self, size: usize, seed: u64, step: u64) -> Batch {
        let mut random = generator(seed, self.name(), step);
        let mut x = vec![0f32; self.time * size * SYMBOLS];
        let mut y = vec![0u32; size];
        for (sample, class) in y.iter_mut().enumerate() {
            let mut symbols: Vec<u32> = (0..self.time).map(|_| random.random_range(MARKS..SYMBOLS as u32)).collect();
            for range in self.places() {
                let mark = random.random_range(0..MARKS);
                symbols[random.random_range(range)] = mark;
                *class = *class * MARKS + mark;
            }
            for (t, symbol) in symbols.into_iter().enumerate() {
                x[(t * size + sample) * SYMBOLS + symbol as usize] = 1.0;
            }
        }
        Batch::new(Array::new([self.time, size, SYMBOLS], x), Array::new([size], y))
    }
}

impl Task for TemporalOrder {
    fn name(&self) -> &'static str {
        "temporal-order"
    }

    fn time(&self) -> usize {
        self.time
    }

    fn inputs(&self) -> usize {
        SYMBOLS
    }

    fn outputs(&self) -> usize {
        4
    }

    fn train(&self, size: usize, step: u64) -> Batch {
        self.batch(size, self.seed, step)
    }

    fn held_out(&self, size: usize) -> Batch {
        self.batch(size, 0, HELD_OUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_in_their_ranges_and_make_the_class() {
        for time in [10, 20, 57] {
            let task = TemporalOrder::new(time, 4);
            let [x, y] = task.train(400, 0).take(["x", "y"]);
            let (x, y) = (x.to_f64(), y.to_f64());
            let mut counts = [0; 4];
            let mut seen = vec![0; time];
            for sample in 0..400 {
                let symbol = |t: usize| {
                    let row = &x[(t * 400 + sample) * 6..][..6];
                    assert_eq!(row.iter().sum::<f64>(), 1.0, "one-hot");
                    row.iter().position(|v| *v == 1.0).expect("one-hot")
                };
                let marks: Vec<(usize, usize)> = (0..time).map(|t| (t, symbol(t))).filter(|(_, s)| *s < 2).collect();
                let [(first, a), (second, b)] = marks[..] else { panic!("{marks:?}") };
                assert!(first >= time / 10 && first < 2 * time / 10, "{first} of {time}");
                assert!(second >= time / 2 && second < 6 * time / 10, "{second} of {time}");
                assert_eq!(y[sample] as usize, 2 * a + b);
                counts[2 * a + b] += 1;
                seen[first] += 1;
                seen[second] += 1;
            }
            assert!(counts.iter().all(|c| *c > 60), "classes are balanced: {counts:?}");
            let reached = task.places().into_iter().flatten().all(|t| seen[t] > 0);
            assert!(reached, "every place is used: {seen:?}");
        }
    }

    #[test]
    #[should_panic(expected = "needs at least 10")]
    fn too_short_panics() {
        TemporalOrder::new(9, 0);
    }
}
