//! The images of a run: digits that the crate carries, or a folder.

use super::config::{Config, Source};
use crate::Result;
use wgrad_nn::data::{Augment, Batch, Dataset, Digits, ImageData, Split};

/// Held-out images per batch.
const HELD_OUT: usize = 500;

/// Images to train on, and held-out ones in batches.
pub(super) struct Data {
    pub train: ImageData,
    pub held_out: Vec<Batch>,
}

impl Data {
    /// Reads them.
    ///
    /// # Errors
    /// If the folder cannot be read, or holds something else.
    pub fn read(config: &Config, seed: u64) -> Result<Self> {
        let split = match &config.source {
            Source::Digits => Digits::embedded(seed).images(),
            Source::Folder(folder) => Split::read(folder)?,
        };
        let moments = split.train.moments();
        // Photographs are varied as published; a digit seen in a mirror is another, or none.
        let [channels, height, _] = split.train.shape();
        let photographs = channels > 1;
        let augment = Some((Augment { padding: height / 8, flip: photographs }, seed));
        let test = ImageData::plain(split.test, moments.clone());
        let all: Vec<usize> = (0..test.len()).collect();
        let held_out = all.chunks(HELD_OUT).map(|samples| test.batch(samples, 0)).collect();
        Ok(Self { train: ImageData { images: split.train, moments, augment }, held_out })
    }
}
