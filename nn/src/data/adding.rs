//! The adding problem: the sum of two marked numbers of a sequence.

use super::{Batch, HELD_OUT, Task};
use crate::random::generator;
use rand::RngExt;
use wgrad::Array;

/// The adding problem (Hochreiter & Schmidhuber 1997, task 4; in the form of Le et al. 2015).
///
/// Two inputs per step: a number, uniform in `[0, 1)`, and a mark, 1 at one random place of each half and 0 elsewhere.
/// The target is the sum of the two marked numbers, f32 `[batch, 1]`. Its mean is 1 and its variance is 1/6, so a model
/// that always predicts 1 has a squared error of 1/6.
#[derive(Clone, Debug)]
pub struct Adding {
    time: usize,
    seed: u64,
}

impl Adding {
    /// Sequences of `time` steps.
    ///
    /// # Panics
    /// If there are fewer than 2 steps.
    #[track_caller]
    pub fn new(time: usize, seed: u64) -> Self {
        assert!(time >= 2, "adding of {time} steps: needs at least 2");
        Self { time, seed }
    }

    fn batch(&self, size: usize, seed: u64, step: u64) -> Batch {
        let mut random = generator(seed, self.name(), step);
        let mut x = vec![0f32; self.time * size * 2];
        let mut y = vec![0f32; size];
        for (sample, sum) in y.iter_mut().enumerate() {
            let at = |t: usize| (t * size + sample) * 2;
            (0..self.time).for_each(|t| x[at(t)] = random.random());
            for half in [0..self.time / 2, self.time / 2..self.time] {
                let marked = at(random.random_range(half));
                x[marked + 1] = 1.0;
                *sum += x[marked];
            }
        }
        Batch::new(Array::new([self.time, size, 2], x), Array::new([size, 1], y))
    }
}

impl Task for Adding {
    fn name(&self) -> &'static str {
        "adding"
    }

    fn time(&self) -> usize {
        self.time
    }

    fn inputs(&self) -> usize {
        2
    }

    fn outputs(&self) -> usize {
        1
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
    use approx::assert_abs_diff_eq;

    #[test]
    fn one_mark_in_each_half_and_the_target_is_their_sum() {
        for time in [2, 11, 30] {
            let [x, y] = Adding::new(time, 9).train(300, 2).take(["x", "y"]);
            for sample in 0..300 {
                let at = |t: usize, channel: usize| x.item((t * 300 + sample) * 2 + channel);
                let marked: Vec<usize> = (0..time).filter(|&t| at(t, 1) == 1.0).collect();
                assert!((0..time).all(|t| at(t, 1) == 0.0 || at(t, 1) == 1.0));
                let [first, second] = marked[..] else { panic!("{marked:?}") };
                assert!(first < time / 2 && second >= time / 2, "{first} and {second} of {time}");
                assert_abs_diff_eq!(y.item(sample), at(first, 0) + at(second, 0), epsilon = 1e-6);
                assert!((0..time).all(|t| (0.0..1.0).contains(&at(t, 0))));
            }
        }
    }

    #[test]
    fn the_target_has_variance_one_sixth() {
        let y = Adding::new(20, 0).held_out(20_000)["y"].to_f64();
        let mse = y.iter().map(|y| (y - 1.0).powi(2)).sum::<f64>() / y.len() as f64;
        assert_abs_diff_eq!(mse * 6.0, 1.0, epsilon = 0.03);
    }
}
