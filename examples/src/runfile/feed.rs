//! The changes that a run file makes to its data, batch by batch.

use super::config::{Inputs, Labels};
use crate::{
    Result,
    run::{Data, Feed},
};
use wgrad::{Array, DType, random::fnv1a};
use wgrad_nn::{
    checkpoint::Metadata,
    data::{Batch, Task},
};

/// The value of an input that is always the same.
const SAME: f32 = 0.5;

/// Data whose batches are changed.
pub struct Treated<D> {
    /// The data before the changes.
    pub data: D,
    /// The changes.
    pub inputs: Inputs,
    /// The seed of the shuffled targets.
    pub seed: u64,
}

impl<D: Data> Data for Treated<D> {
    fn feed(self, batch: usize, seed: u64) -> Result<Box<dyn Feed>> {
        let feed = self.data.feed(batch, seed)?;
        Ok(Box::new(TreatedFeed { feed, inputs: self.inputs, seed: self.seed, made: 0 }))
    }
}

struct TreatedFeed {
    feed: Box<dyn Feed>,
    inputs: Inputs,
    seed: u64,
    /// The number of batches returned so far.
    made: usize,
}

impl Feed for TreatedFeed {
    fn next(&mut self) -> Result<Batch> {
        let batch = self.feed.next()?;
        let treated = self.inputs.training(batch, self.seed, self.made);
        self.made += 1;
        Ok(treated)
    }

    fn axis(&self) -> usize {
        self.feed.axis()
    }

    fn position(&self) -> Metadata {
        self.feed.position()
    }

    fn resume(&mut self, metadata: &Metadata, steps: usize) -> Result<()> {
        self.made = steps;
        self.feed.resume(metadata, steps)
    }
}

impl Inputs {
    /// A training batch as the model gets it at a step.
    fn training(&self, batch: Batch, seed: u64, step: usize) -> Batch {
        let [mut x, y] = self.held_out(batch).take(["x", "y"]);
        if self.outlier_at == Some(step) {
            x = map(&x, |value| value * self.outlier_scale);
        }
        if self.nan_at == Some(step) {
            let middle = x.shape().numel() / 2;
            let mut values = x.to_f64();
            values[middle] = f64::NAN;
            x = of(&x, &values);
        }
        Batch::new(x, self.labels(y, seed, step))
    }

    /// A held-out batch as the model gets it. Its inputs change as those of training do, except for the changes at a
    /// single step; its targets stay.
    pub fn held_out(&self, batch: Batch) -> Batch {
        let x = batch["x"].clone();
        let x = match (self.constant, x.dtype()) {
            (true, DType::U32) => map(&x, |_| 0.0),
            (true, _) => map(&x, |_| f64::from(SAME)),
            (false, _) => x,
        };
        let unchanged = self.scale == 1.0 && self.shift == 0.0;
        let x = if unchanged { x } else { map(&x, |value| value * self.scale + self.shift) };
        batch.with("x", x)
    }

    fn labels(&self, y: Array, seed: u64, step: usize) -> Array {
        let samples = y.shape()[0];
        let mut order: Vec<usize> = (0..samples).collect();
        match self.labels {
            Labels::True => return y,
            // A hash of the sample gives the order, without a random generator.
            Labels::Shuffled => order.sort_by_key(|sample| fnv1a(&format!("labels/{seed}/{step}/{sample}"))),
            Labels::Constant => order.fill(0),
        }
        let (values, width) = (y.to_f64(), y.shape().numel() / samples.max(1));
        let moved: Vec<f64> = order.iter().flat_map(|&at| &values[at * width..(at + 1) * width]).copied().collect();
        of(&y, &moved)
    }
}

fn of(like: &Array, values: &[f64]) -> Array {
    Array::new(like.shape().clone(), wgrad::Data::from_f64(like.dtype(), values))
}

fn map(x: &Array, f: impl Fn(f64) -> f64) -> Array {
    let values: Vec<f64> = x.to_f64().into_iter().map(f).collect();
    of(x, &values)
}

/// A task whose samples are rows of features: the inputs of all time steps side by side, f32 `[batch, time * inputs]`.
pub struct Rows(pub Box<dyn Task>);

impl Rows {
    /// The number of features per sample.
    pub fn features(&self) -> usize {
        self.0.time() * self.0.inputs()
    }

    /// About `size` held-out samples.
    pub fn held_out(&self, size: usize) -> Batch {
        rows(&self.0.held_out(size))
    }
}

impl Data for Rows {
    fn feed(self, batch: usize, _seed: u64) -> Result<Box<dyn Feed>> {
        Ok(Box::new(RowFeed { task: self.0, batch, made: 0 }))
    }
}

struct RowFeed {
    task: Box<dyn Task>,
    batch: usize,
    made: u64,
}

impl Feed for RowFeed {
    fn next(&mut self) -> Result<Batch> {
        let batch = self.task.train(self.batch, self.made);
        self.made += 1;
        Ok(rows(&batch))
    }

    fn axis(&self) -> usize {
        0
    }

    fn position(&self) -> Metadata {
        Metadata::new()
    }

    fn resume(&mut self, _metadata: &Metadata, steps: usize) -> Result<()> {
        self.made = steps as u64;
        Ok(())
    }
}

/// Transposes inputs from `[time, batch, inputs]` to `[batch, time * inputs]`.
fn rows(task: &Batch) -> Batch {
    let (x, y) = (&task["x"], &task["y"]);
    let [time, batch, inputs] = x.shape()[..] else { panic!("a task's inputs of {}", x.shape()) };
    let values = x.to_f64();
    let row = |sample: usize| (0..time).flat_map(move |t| (0..inputs).map(move |i| (t * batch + sample) * inputs + i));
    let turned: Vec<f32> = (0..batch).flat_map(row).map(|at| values[at] as f32).collect();
    Batch::new(Array::new([batch, time * inputs], turned), y.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgrad_nn::data::{Adding, Digits};

    const PLAIN: Inputs = Inputs {
        scale: 1.0,
        shift: 0.0,
        constant: false,
        labels: Labels::True,
        nan_at: None,
        outlier_at: None,
        outlier_scale: 10.0,
    };

    fn feed(inputs: Inputs) -> Box<dyn Feed> {
        let data = Rows(Box::new(Digits::embedded(3)));
        Treated { data, inputs, seed: 3 }.feed(8, 3).expect("there are batches")
    }

    fn batches(inputs: Inputs, count: usize) -> Vec<Batch> {
        let mut feed = feed(inputs);
        (0..count).map(|_| feed.next().expect("no end")).collect()
    }

    #[test]
    fn rows_are_what_a_task_gives_in_time() {
        let task = Adding::new(4, 1);
        let batch = task.train(3, 0);
        let turned = rows(&batch);
        assert_eq!(**turned["x"].shape(), [3, 8]);
        for (sample, t, i) in [(0, 0, 0), (2, 3, 1), (1, 2, 0)] {
            assert_eq!(turned["x"].item(sample * 8 + t * 2 + i), batch["x"].item((t * 3 + sample) * 2 + i));
        }
        assert_eq!(Rows(Box::new(task)).features(), 8);
    }

    #[test]
    fn only_the_step_that_is_named_is_touched() {
        let plain = batches(PLAIN, 4);
        let odd = batches(Inputs { nan_at: Some(1), outlier_at: Some(2), ..PLAIN }, 4);
        assert_eq!((&plain[0], &plain[3]), (&odd[0], &odd[3]));
        let nans = odd[1]["x"].to_f64().iter().filter(|value| value.is_nan()).count();
        assert_eq!(nans, 1);
        let tenfold: Vec<f64> = plain[2]["x"].to_f64().iter().map(|value| value * 10.0).collect();
        assert_eq!(odd[2]["x"].to_f64(), tenfold);
        assert!(plain.iter().zip(&odd).all(|(plain, odd)| plain["y"] == odd["y"]));
    }

    #[test]
    fn inputs_are_scaled_shifted_and_constant() {
        let plain = batches(PLAIN, 1);
        let scaled = batches(Inputs { scale: 2.0, shift: 1.0, ..PLAIN }, 1);
        let want: Vec<f64> = plain[0]["x"].to_f64().iter().map(|value| value * 2.0 + 1.0).collect();
        assert_eq!(scaled[0]["x"].to_f64(), want);
        let same = batches(Inputs { constant: true, ..PLAIN }, 1);
        assert!(same[0]["x"].to_f64().iter().all(|value| *value == 0.5));
    }

    #[test]
    fn shuffled_targets_are_those_of_the_batch_in_another_order_each_time() {
        let (plain, shuffled) = (batches(PLAIN, 2), batches(Inputs { labels: Labels::Shuffled, ..PLAIN }, 2));
        for (plain, shuffled) in plain.iter().zip(&shuffled) {
            assert_eq!(plain["x"], shuffled["x"]);
            let sorted = |y: &Array| {
                let mut classes = y.to_f64();
                classes.sort_by(f64::total_cmp);
                classes
            };
            assert_ne!(plain["y"], shuffled["y"]);
            assert_eq!(sorted(&plain["y"]), sorted(&shuffled["y"]));
        }
        let constant = batches(Inputs { labels: Labels::Constant, ..PLAIN }, 1);
        assert!(constant[0]["y"].to_f64().iter().all(|class| *class == plain[0]["y"].item(0)));
    }

    #[test]
    fn a_resumed_feed_goes_on_where_it_was() {
        let inputs = Inputs { nan_at: Some(2), labels: Labels::Shuffled, ..PLAIN };
        let all = batches(inputs.clone(), 4);
        let mut resumed = feed(inputs);
        resumed.resume(&Metadata::new(), 2).expect("a position");
        let next = resumed.next().expect("no end");
        assert_eq!((&next["y"], next["x"].to_f64()[0]), (&all[2]["y"], all[2]["x"].to_f64()[0]));
        assert_eq!(resumed.next().expect("no end"), all[3]);
    }
}
