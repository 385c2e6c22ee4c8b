//! Data as pure functions, so that a resumed run needs no generator state: tasks give batches by seed and step, data
//! sets by samples and epoch, which a [`Loader`] chooses by seed and position.

mod adding;
mod augment;
mod batch;
mod cifar;
mod digits;
mod friedman;
mod images;
mod loader;
mod mnist;
mod spirals;
mod temporal_order;
mod text;

pub use crate::error::DataError;
pub use adding::Adding;
pub use augment::Augment;
pub use batch::Batch;
pub use digits::Digits;
pub use friedman::Friedman;
pub use images::{ImageData, Images, Moments, Split};
pub use loader::{Dataset, Loader, LoaderConfig, Position};
pub use spirals::Spirals;
pub use temporal_order::TemporalOrder;
pub use text::{Text, Vocabulary};

/// A task over sequences of one length.
pub trait Task {
    /// The task's name, as the command line has it.
    fn name(&self) -> &'static str;

    /// The number of time steps.
    fn time(&self) -> usize;

    /// The number of inputs per time step.
    fn inputs(&self) -> usize;

    /// The number of classes, or of values to predict.
    fn outputs(&self) -> usize;

    /// `size` training samples: the same for the same seed, step and size. The inputs `x` are sequences, f32
    /// `[time, batch, inputs]`; the targets `y` are classes, u32 `[batch]`, or values, f32 `[batch, outputs]`.
    fn train(&self, size: usize, step: u64) -> Batch;

    /// Samples that no training batch contains, or is likely to contain. A generated task gives `size` samples, a
    /// finite data set all that it holds out. They do not depend on the seed.
    fn held_out(&self, size: usize) -> Batch;
}

/// The step that draws the held-out samples of generated tasks. Training steps count from 0 and never reach it.
const HELD_OUT: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_pure_functions_of_seed_and_step() {
        let tasks = |seed| -> [Box<dyn Task>; 5] {
            [
                Box::new(TemporalOrder::new(20, seed)),
                Box::new(Adding::new(20, seed)),
                Box::new(Digits::embedded(seed)),
                Box::new(Spirals::new(seed)),
                Box::new(Friedman::new(seed)),
            ]
        };
        for ((task, same), other) in tasks(1).into_iter().zip(tasks(1)).zip(tasks(2)) {
            let name = task.name();
            let batch = task.train(8, 5);
            task.train(8, 6);
            assert_eq!(batch, task.train(8, 5), "{name}: no hidden state");
            assert_eq!(batch, same.train(8, 5), "{name}: the seed decides");
            assert_ne!(batch, task.train(8, 6), "{name}: steps differ");
            assert_ne!(batch, other.train(8, 5), "{name}: seeds differ");
            assert_eq!(task.held_out(50), other.held_out(50), "{name}: held-out samples are fixed");
            assert_eq!(**batch["x"].shape(), [task.time(), 8, task.inputs()], "{name}");
            assert_eq!(batch["y"].shape()[0], 8, "{name}");
        }
    }
}
