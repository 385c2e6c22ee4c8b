//! Labelled images in memory, and batches of them.

use super::{Augment, Batch, DataError, Dataset, cifar, mnist};
use crate::error::{Error, Result};
use std::{fs, path::Path};
use wgrad::Array;

/// Labelled images of one size, a byte per pixel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Images {
    /// Channels, height and width.
    shape: [usize; 3],
    /// The largest value of a pixel.
    white: u8,
    /// The number of classes.
    classes: usize,
    /// Image after image, each `[channels, height, width]`.
    pixels: Vec<u8>,
    /// The class of each image.
    labels: Vec<u32>,
}

/// Images to train on, and others to test with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// The training images.
    pub train: Images,
    /// The test images.
    pub test: Images,
}

impl Split {
    /// Reads a folder of one of the published data sets: the binary version of CIFAR-10 (Krizhevsky 2009;
    /// `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`), or MNIST (LeCun et al. 1998;
    /// `train-images-idx3-ubyte` and so on, unpacked).
    ///
    /// # Errors
    /// [`Error::Io`] if the folder or a file is missing or cannot be read. [`Error::Format`] if a file has another
    /// format or is cut short, or if the folder has the first file of neither data set.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        fs::read_dir(folder).map_err(|source| Error::Io { action: "read", path: folder.into(), source })?;
        if folder.join(cifar::FIRST).exists() {
            return cifar::read(folder);
        }
        if folder.join(mnist::FIRST).exists() {
            return mnist::read(folder);
        }
        let why = format!("it has neither {} nor {}", cifar::FIRST, mnist::FIRST);
        Err(Error::Format { path: folder.into(), format: "a folder of CIFAR-10 (binary) or MNIST", why })
    }
}

impl Images {
    /// Images from pixels and labels.
    ///
    /// # Panics
    /// If the number of pixels does not fit the number of labels, or a label is not below `classes`.
    #[track_caller]
    pub fn new(shape: [usize; 3], white: u8, classes: usize, pixels: Vec<u8>, labels: Vec<u32>) -> Self {
        let size: usize = shape.iter().product();
        assert!(
            pixels.len() == labels.len() * size,
            "images: {} pixels for {} images of {size}",
            pixels.len(),
            labels.len()
        );
        let wrong = labels.iter().find(|label| **label as usize >= classes);
        assert!(wrong.is_none(), "images: the label {wrong:?} is none of {classes} classes");
        Self { shape, white, classes, pixels, labels }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Channels, height and width.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The class of each image.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The pixels of an image, `[channels, height, width]`.
    ///
    /// # Panics
    /// If there is no such image.
    #[track_caller]
    pub fn pixels(&self, image: usize) -> &[u8] {
        let size: usize = self.shape.iter().product();
        &self.pixels[image * size..(image + 1) * size]
    }

    /// The first `count` images, or all if there are fewer.
    #[must_use]
    pub fn take(mut self, count: usize) -> Self {
        self.labels.truncate(count);
        self.pixels.truncate(count * self.shape.iter().product::<usize>());
        self
    }

    /// Mean and standard deviation of each channel, of pixels in `[0, 1]`.
    pub fn moments(&self) -> Moments {
        let [channels, height, width] = self.shape;
        let (area, white) = (height * width, f64::from(self.white));
        let (mut sums, mut squares) = (vec![0u64; channels], vec![0u64; channels]);
        for (i, plane) in self.pixels.chunks(area.max(1)).enumerate() {
            sums[i % channels] += plane.iter().map(|&p| u64::from(p)).sum::<u64>();
            squares[i % channels] += plane.iter().map(|&p| u64::from(p).pow(2)).sum::<u64>();
        }
        let count = (self.len() * area).max(1) as f64;
        let of = |(sum, square): (u64, u64)| {
            let mean = sum as f64 / count;
            let var = (square as f64 / count - mean * mean).max(0.0);
            [mean / white, var.sqrt() / white]
        };
        Moments { channels: sums.into_iter().zip(squares).map(of).collect() }
    }
}

/// Mean and standard deviation of each channel. Those of the training images standardise the test images too.
#[derive(Clone, PartialEq, Debug)]
pub struct Moments {
    channels: Vec<[f64; 2]>,
}

impl Moments {
    /// The mean and the deviation of each channel.
    pub fn channels(&self) -> &[[f64; 2]] {
        &self.channels
    }

    /// A pixel in `[0, 1]`, less the channel's mean, divided by its deviation; a constant channel is divided by 1.
    fn standardized(&self, channel: usize, pixel: f64) -> f32 {
        let [mean, deviation] = self.channels[channel];
        ((pixel - mean) / if deviation > 0.0 { deviation } else { 1.0 }) as f32
    }
}

/// Images as a data set: standardised, and varied at random if `augment` is set.
#[derive(Clone, Debug)]
pub struct ImageData {
    /// The images.
    pub images: Images,
    /// The mean and deviation that standardise them.
    pub moments: Moments,
    /// The random variation of the images, and the seed of its draws.
    pub augment: Option<(Augment, u64)>,
}

impl ImageData {
    /// The images as they are, standardised.
    pub fn plain(images: Images, moments: Moments) -> Self {
        Self { images, moments, augment: None }
    }
    /// Some images, f32 `[batch, channels, height, width]`, as `x`, and their classes, u32 `[batch]`, as `y`.
    ///
    /// # Panics
    /// If a sample is beyond the end.
    pub fn pick(&self, samples: &[usize], epoch: u64) -> Batch {
        let Self { images, moments, augment } = self;
        let [channels, height, width] = images.shape;
        let mut x = Vec::with_capacity(samples.len() * channels * height * width);
        for &sample in samples {
            let pixels = match augment {
                Some((augment, seed)) => augment.apply(images.pixels(sample), images.shape, (*seed, epoch, sample)),
                None => images.pixels(sample).to_vec(),
            };
            for (i, &pixel) in pixels.iter().enumerate() {
                let pixel = f64::from(pixel) / f64::from(images.white);
                x.push(moments.standardized(i / (height * width), pixel));
            }
        }
        let y: Vec<u32> = samples.iter().map(|&sample| images.labels[sample]).collect();
        Batch::new(Array::new([samples.len(), channels, height, width], x), Array::new([samples.len()], y))
    }
}

impl Dataset for ImageData {
    fn len(&self) -> usize {
        self.images.len()
    }

    /// As [`ImageData::pick`].
    fn batch(&self, samples: &[usize], epoch: u64) -> std::result::Result<Batch, DataError> {
        Ok(self.pick(samples, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> Images {
        Images::new([2, 1, 2], 10, 3, vec![0, 10, 5, 5, 10, 0, 5, 5], vec![2, 0])
    }

    #[test]
    fn moments_are_those_of_each_channel() {
        assert_eq!(images().moments().channels(), [[0.5, 0.5], [0.5, 0.0]]);
    }

    #[test]
    fn batches_are_standardised_and_in_the_order_asked_for() {
        let data = ImageData::plain(images(), images().moments());
        let [x, y] = data.pick(&[1, 0, 1], 7).take(["x", "y"]);
        assert_eq!((x.shape().to_vec(), y.to_f64()), (vec![3, 2, 1, 2], vec![0.0, 2.0, 0.0]));
        assert_eq!(x.to_f64()[..8], [1.0, -1.0, 0.0, 0.0, -1.0, 1.0, 0.0, 0.0]);
        assert_eq!(data.pick(&[1], 0)["x"], data.pick(&[1], 1)["x"]);
    }

    #[test]
    fn the_first_few_can_be_taken() {
        assert_eq!(images().take(1).labels(), [2]);
        assert_eq!(images().take(9), images());
        assert_eq!(images().take(1).pixels(0), [0, 10, 5, 5]);
    }

    #[test]
    #[should_panic(expected = "8 pixels for 1 images of 4")]
    fn pixels_and_labels_belong_together() {
        Images::new([2, 1, 2], 10, 3, vec![0; 8], vec![0]);
    }
}
