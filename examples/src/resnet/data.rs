//! The images of a run: the built-in digits, or a folder.

use super::config::{Config, Source};
use crate::Result;
use wgrad_nn::data::{Augment, Batch, Dataset, Digits, ImageData, Split};

/// The number of held-out images per batch.
const HELD_OUT: usize = 500;

/// The training images, and the held-out images in batches.
pub(super) struct Data {
    pub train: ImageData,
    pub held_out: Vec<Batch>,
}

impl Data {
    /// Reads the images.
    ///
    /// # Errors
    /// If the folder cannot be read, or holds neither CIFAR-10 nor MNIST.
    pub fn read(config: &Config, seed: u64) -> Result<Self> {
        let split = match &config.source {
            Source::Digits => Digits::embedded(seed).images(),
            Source::Folder(folder) => Split::read(folder)?,
        };
        let moments = split.train.moments();
        // Photographs are augmented as published. Digits are not mirrored, because a mirrored digit is another digit or
        // none.
        let [channels, height, _] = split.train.shape();
        let photographs = channels > 1;
        let augment = Some((Augment { padding: height / 8, flip: photographs }, seed));
        let test = ImageData::plain(split.test, moments.clone());
        let all: Vec<usize> = (0..test.len()).collect();
        let held_out = all.chunks(HELD_OUT).map(|samples| test.pick(samples, 0)).collect();
        Ok(Self { train: ImageData { images: split.train, moments, augment }, held_out })
    }
}
