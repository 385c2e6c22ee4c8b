//! Where a run's batches come from.

use crate::Result;
use wgrad::Array;
use wgrad_nn::{
    checkpoint::Metadata,
    data::{Batch, Dataset, Loader, LoaderConfig, Position, Task},
};

/// Batches one after another.
pub trait Feed {
    /// The next batch.
    ///
    /// # Errors
    /// If it cannot be had.
    fn next(&mut self) -> Result<Batch>;

    /// The dimension of the inputs that samples lie along; of targets it is the first.
    fn axis(&self) -> usize;

    /// What a checkpoint keeps of the place that has been reached.
    fn position(&self) -> Metadata;

    /// Goes on after so many steps, with what [`Feed::position`] has kept; from the beginning where that is nothing.
    ///
    /// # Errors
    /// If the position is none.
    fn resume(&mut self, metadata: &Metadata, steps: usize) -> Result<()>;
}

/// What batches can be had of.
pub trait Data {
    /// Batches of a size, in an order that the seed decides.
    ///
    /// # Errors
    /// If there is no batch.
    fn feed(self, batch: usize, seed: u64) -> Result<Box<dyn Feed>>;
}

impl<D: Dataset + Clone> Data for D {
    fn feed(self, batch: usize, seed: u64) -> Result<Box<dyn Feed>> {
        let config = LoaderConfig { batch, keep_last: false, seed, ..LoaderConfig::default() };
        let open = move |position| Loader::new(self.clone(), config, position);
        let loader = open(Position::default())?;
        Ok(Box::new(Loaded { loader, open }))
    }
}

/// Batches that a thread prepares ahead.
struct Loaded<O> {
    loader: Loader,
    /// Opens the loader at another position.
    open: O,
}

/// The entry of a checkpoint for a loader's position.
const POSITION: &str = "position";

impl<O: Fn(Position) -> wgrad_nn::Result<Loader>> Feed for Loaded<O> {
    fn next(&mut self) -> Result<Batch> {
        Ok(self.loader.next().expect("a loader has no end"))
    }

    fn axis(&self) -> usize {
        0
    }

    fn position(&self) -> Metadata {
        [(POSITION.to_string(), self.loader.position().to_string())].into()
    }

    fn resume(&mut self, metadata: &Metadata, _steps: usize) -> Result<()> {
        let position = metadata.get(POSITION).map(|text| text.parse()).transpose()?.unwrap_or_default();
        self.loader = (self.open)(position)?;
        Ok(())
    }
}

/// A task, whose batches are a function of the step.
pub struct Tasks(pub Box<dyn Task>);

impl Data for Tasks {
    fn feed(self, batch: usize, _seed: u64) -> Result<Box<dyn Feed>> {
        Ok(Box::new(Drawn { task: self.0, batch, made: 0 }))
    }
}

/// Batches drawn by step.
struct Drawn {
    task: Box<dyn Task>,
    batch: usize,
    made: u64,
}

impl Feed for Drawn {
    fn next(&mut self) -> Result<Batch> {
        let batch = self.task.train(self.batch, self.made);
        self.made += 1;
        Ok(batch)
    }

    /// Sequences are `[time, batch, inputs]`.
    fn axis(&self) -> usize {
        1
    }

    fn position(&self) -> Metadata {
        Metadata::new()
    }

    fn resume(&mut self, _metadata: &Metadata, steps: usize) -> Result<()> {
        self.made = steps as u64;
        Ok(())
    }
}

/// A batch's parts of equal size, cut along a dimension of the inputs and the first of the targets.
///
/// # Panics
/// If there are not as many samples in each.
pub fn split(batch: &Batch, axis: usize, count: usize) -> Vec<Batch> {
    let (x, y) = (cut(&batch.x, axis, count), cut(&batch.y, 0, count));
    x.into_iter().zip(y).map(|(x, y)| Batch { x, y }).collect()
}

fn cut(array: &Array, axis: usize, count: usize) -> Vec<Array> {
    if count == 1 {
        return vec![array.clone()];
    }
    let shape = array.shape();
    assert!(shape[axis].is_multiple_of(count), "{count} parts of {shape} along dimension {axis}");
    let part = shape.with(axis, shape[axis] / count);
    let (outer, inner): (usize, usize) = (shape[..axis].iter().product(), part[axis..].iter().product());
    let values = array.to_f64();
    let of = |at: usize| {
        let rows = (0..outer).flat_map(|row| &values[(row * count + at) * inner..][..inner]);
        Array::new(part.clone(), wgrad::Data::from_f64(array.dtype(), &rows.copied().collect::<Vec<_>>()))
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_samples_side_by_side() {
        let x = Array::new([2, 4, 1], (0..8).map(|v| v as f32).collect::<Vec<_>>());
        let y = Array::new([4], vec![0u32, 1, 2, 3]);
        let parts = split(&Batch { x: x.clone(), y: y.clone() }, 1, 2);
        assert_eq!(parts[1].x, Array::new([2, 2, 1], vec![2f32, 3.0, 6.0, 7.0]));
        assert_eq!(parts[1].y, Array::new([2], vec![2u32, 3]));
        assert_eq!(split(&Batch { x: x.clone(), y: y.clone() }, 1, 1), [Batch { x, y }]);
    }
}
