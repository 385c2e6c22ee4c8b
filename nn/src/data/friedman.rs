//! Friedman's regression: a smooth function of five of ten inputs, with noise.

use super::{Batch, HELD_OUT, Task};
use crate::random::generator;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use std::f64::consts::PI;
use wgrad::Array;

/// The number of inputs; the function ignores the last five.
const INPUTS: usize = 10;
/// Mean and standard deviation of the function without noise, which standardise the targets.
const MEAN: f64 = 14.416;
const STD: f64 = 4.885;

/// Friedman's first regression (Friedman 1991, "Multivariate adaptive regression splines", section 4.3): ten inputs,
/// uniform in `[0, 1)`, and
///
/// `10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + e`
///
/// with standard normal noise `e`; less the function's mean, divided by its standard deviation. A model that always
/// predicts 0 has a squared error of 1; the noise alone contributes 0.04. Held-out targets have no noise. Samples are
/// sequences of one time step.
#[derive(Clone, Debug)]
pub struct Friedman {
    seed: u64,
}

impl Friedman {
    /// Samples drawn by this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn batch(&self, size: usize, seed: u64, step: u64) -> Batch {
        let mut random = generator(seed, self.name(), step);
        let (mut x, mut y) = (Vec::with_capacity(INPUTS * size), Vec::with_capacity(size));
        for _ in 0..size {
            let sample: [f64; INPUTS] = std::array::from_fn(|_| random.random());
            let noise: f64 = if step == HELD_OUT { 0.0 } else { StandardNormal.sample(&mut random) };
            y.push(((function(&sample) + noise - MEAN) / STD) as f32);
            x.extend(sample.map(|value| value as f32));
        }
        Batch::new(Array::new([1, size, INPUTS], x), Array::new([size, 1], y))
    }
}

fn function(x: &[f64; INPUTS]) -> f64 {
    10.0 * (PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2) + 10.0 * x[3] + 5.0 * x[4]
}

impl Task for Friedman {
    fn name(&self) -> &'static str {
        "regression"
    }

    fn time(&self) -> usize {
        1
    }

    fn inputs(&self) -> usize {
        INPUTS
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

    #[test]
    fn targets_are_standardised() {
        let [x, y] = Friedman::new(0).held_out(20_000).take(["x", "y"]);
        let values = y.to_f64();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        // Standard errors of 20,000 samples: 0.7 % of each.
        assert!(mean.abs() < 0.03 && (var - 1.0).abs() < 0.04, "{mean} and {var}");
        assert!(x.to_f64().iter().all(|v| (0.0..=1.0).contains(v)));
    }

    #[test]
    fn the_last_inputs_mean_nothing() {
        let mut sample = [0.3; INPUTS];
        let value = function(&sample);
        sample[5..].fill(0.9);
        assert_eq!(function(&sample), value);
        sample[4] = 0.5;
        assert!((function(&sample) - value - 1.0).abs() < 1e-12);
    }
}
