//! Two spirals: tell on which of two interleaved arms a point of the plane lies.

use super::{Batch, HELD_OUT, Task};
use crate::random::generator;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use std::f64::consts::PI;
use wgrad::Array;

/// The number of turns of an arm.
const TURNS: f64 = 1.5;
/// The standard deviation of a point's distance from its arm, in the unit of the longest radius.
const SPREAD: f64 = 0.01;

/// The two spirals (after Lang & Witbrock 1988). The two inputs are the coordinates of a point, roughly within the unit
/// circle; the class is its arm, one of two. Each arm makes one and a half turns; the second arm is the first, rotated
/// by half a turn. No linear model does better than chance. Samples are sequences of one time step.
#[derive(Clone, Debug)]
pub struct Spirals {
    seed: u64,
}

impl Spirals {
    /// Points drawn by this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn batch(&self, size: usize, seed: u64, step: u64) -> Batch {
        let mut random = generator(seed, self.name(), step);
        let (mut x, mut y) = (Vec::with_capacity(2 * size), Vec::with_capacity(size));
        for _ in 0..size {
            let arm: bool = random.random();
            // The root spreads points evenly along the arm.
            let radius = random.random::<f64>().sqrt();
            let angle = 2.0 * PI * TURNS * radius + if arm { PI } else { 0.0 };
            for place in [radius * angle.cos(), radius * angle.sin()] {
                let noise: f64 = StandardNormal.sample(&mut random);
                x.push((place + SPREAD * noise) as f32);
            }
            y.push(u32::from(arm));
        }
        Batch::new(Array::new([1, size, 2], x), Array::new([size], y))
    }
}

impl Task for Spirals {
    fn name(&self) -> &'static str {
        "spirals"
    }

    fn time(&self) -> usize {
        1
    }

    fn inputs(&self) -> usize {
        2
    }

    fn outputs(&self) -> usize {
        2
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
    fn a_point_lies_on_its_arm() {
        let [x, y] = Spirals::new(3).train(500, 1).take(["x", "y"]);
        let ones = y.to_f64().iter().sum::<f64>();
        assert!((200.0..300.0).contains(&ones), "{ones} of 500");
        for i in 0..500 {
            let (a, b) = (x.item(2 * i), x.item(2 * i + 1));
            let radius = a.hypot(b);
            let angle = 2.0 * PI * TURNS * radius + PI * y.item(i);
            let off = (a - radius * angle.cos()).hypot(b - radius * angle.sin());
            // An error of the radius changes the angle too: the bound allows ten of its standard deviations.
            assert!(off < 10.0 * (1.0 + 2.0 * PI * TURNS * radius) * SPREAD, "{i}: {off} off its arm");
        }
    }
}
