//! Handwritten digits, read pixel by pixel, or as images.

use super::{Batch, Images, Split, Task};
use crate::{
    error::{Error, Result},
    random::generator,
};
use rand::seq::SliceRandom;
use wgrad::Array;

const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;
/// The largest pixel value.
const WHITE: u32 = 16;
/// One in this number of samples is held out, of each class.
const HELD_OUT_PERIOD: usize = 5;

/// The UCI optical digits (E. Alpaydin & C. Kaynak 1998; CC BY 4.0): 1,797 images of 8x8, as sequences of 64 pixels in
/// `[0, 1]`, row by row; ten classes.
///
/// The last of every five samples of a class, in the order of the file, is held out, so both parts have all classes in
/// proportion. The other samples are shuffled anew for each epoch, by the seed; a batch may span two epochs.
#[derive(Clone, Debug)]
pub struct Digits {
    train: Vec<Image>,
    held_out: Vec<Image>,
    seed: u64,
}

/// Pixels in `[0, 1]`, and the class.
type Image = ([f32; PIXELS], u32);

impl Digits {
    /// The data that this crate carries.
    pub fn embedded(seed: u64) -> Self {
        Self::parse(include_str!("../../data/digits.csv"), seed).expect("the embedded table is tested")
    }

    /// Parses a text of one image per line: 64 pixels from 0 to 16 and the class, separated by commas.
    ///
    /// # Errors
    /// [`Error::Table`] if a line cannot be parsed, or there is no image to train on.
    pub fn parse(text: &str, seed: u64) -> Result<Self> {
        let mut digits = Self { train: vec![], held_out: vec![], seed };
        let mut seen = [0; CLASSES];
        for (index, line) in text.lines().enumerate() {
            let image = parse_line(line).map_err(|why| Error::Table { line: index + 1, why })?;
            let seen = &mut seen[image.1 as usize];
            *seen += 1;
            let part = if *seen % HELD_OUT_PERIOD == 0 { &mut digits.held_out } else { &mut digits.train };
            part.push(image);
        }
        if digits.train.is_empty() {
            return Err(Error::Table { line: 1, why: "there is no image".into() });
        }
        Ok(digits)
    }

    /// The number of training images: one epoch.
    pub fn epoch(&self) -> usize {
        self.train.len()
    }

    /// The digits as images of one channel, 8x8; the held-out samples are the test images.
    pub fn images(&self) -> Split {
        let of = |part: &[Image]| {
            let byte = |pixel: &f32| (pixel * WHITE as f32) as u8;
            let pixels = part.iter().flat_map(|(pixels, _)| pixels.iter().map(byte)).collect();
            let labels = part.iter().map(|(_, class)| *class).collect();
            Images::new([1, SIDE, SIDE], WHITE as u8, CLASSES, pixels, labels)
        };
        Split { train: of(&self.train), test: of(&self.held_out) }
    }

    /// The order of the training images in an epoch.
    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.train.len()).collect();
        order.shuffle(&mut generator(self.seed, self.name(), epoch));
        order
    }
}

fn parse_line(line: &str) -> std::result::Result<Image, String> {
    let number = |field: &str| field.trim().parse::<u32>().map_err(|_| format!("{field:?} is not a number"));
    let values = line.split(',').map(number).collect::<std::result::Result<Vec<u32>, String>>()?;
    let Some((&class, pixels)) = values.split_last().filter(|(_, pixels)| pixels.len() == PIXELS) else {
        return Err(format!("the line has {} fields; 64 pixels and a class are expected", values.len()));
    };
    if let Some(pixel) = pixels.iter().find(|pixel| **pixel > WHITE) {
        return Err(format!("the pixel {pixel} is above {WHITE}"));
    }
    if class as usize >= CLASSES {
        return Err(format!("the class {class} is not a digit"));
    }
    Ok((std::array::from_fn(|i| pixels[i] as f32 / WHITE as f32), class))
}

/// Images as a batch of sequences.
fn batch(images: &[&Image]) -> Batch {
    let x = (0..PIXELS).flat_map(|t| images.iter().map(move |(pixels, _)| pixels[t])).collect::<Vec<f32>>();
    let y = images.iter().map(|(_, class)| *class).collect::<Vec<u32>>();
    Batch::new(Array::new([PIXELS, images.len(), 1], x), Array::new([images.len()], y))
}

impl Task for Digits {
    fn name(&self) -> &'static str {
        "digits"
    }

    fn time(&self) -> usize {
        PIXELS
    }

    fn inputs(&self) -> usize {
        1
    }

    fn outputs(&self) -> usize {
        CLASSES
    }

    fn train(&self, size: usize, step: u64) -> Batch {
        let len = self.train.len() as u64;
        let first = step * size as u64;
        let mut images = Vec::with_capacity(size);
        for epoch in first / len..=(first + size as u64).saturating_sub(1) / len {
            let order = self.order(epoch);
            let begin = first.max(epoch * len) - epoch * len;
            let end = (first + size as u64).min((epoch + 1) * len) - epoch * len;
            images.extend(order[begin as usize..end as usize].iter().map(|&i| &self.train[i]));
        }
        batch(&images)
    }

    fn held_out(&self, _size: usize) -> Batch {
        batch(&self.held_out.iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_is_held_out_with_all_classes_in_proportion() {
        let digits = Digits::embedded(1);
        assert_eq!(digits.train.len() + digits.held_out.len(), 1797);
        for class in 0..10 {
            let count = |part: &[Image]| part.iter().filter(|(_, c)| *c == class).count();
            let (train, held_out) = (count(&digits.train), count(&digits.held_out));
            assert_eq!(held_out, (train + held_out) / 5, "class {class}");
        }
    }

    #[test]
    fn the_first_image_reads_as_the_file_has_it() {
        let digits = Digits::embedded(1);
        let (pixels, class) = &digits.train[0];
        assert_eq!(*class, 0);
        assert_eq!(pixels[..5].iter().map(|p| p * 16.0).collect::<Vec<_>>(), [0.0, 0.0, 5.0, 13.0, 9.0]);
    }

    #[test]
    fn images_have_the_same_pixels() {
        let digits = Digits::embedded(1);
        let split = digits.images();
        assert_eq!((split.train.len(), split.test.len()), (digits.epoch(), digits.held_out.len()));
        assert_eq!(split.train.shape(), [1, 8, 8]);
        for (image, (pixels, class)) in digits.held_out.iter().enumerate() {
            assert_eq!(split.test.labels()[image], *class);
            assert!(split.test.pixels(image).iter().zip(pixels).all(|(byte, pixel)| f32::from(*byte) == pixel * 16.0));
        }
    }

    #[test]
    fn an_epoch_has_every_image_once_and_epochs_differ() {
        let digits = Digits::embedded(3);
        let mut first = digits.order(0);
        assert_ne!(first, digits.order(1));
        first.sort_unstable();
        assert!(first.into_iter().eq(0..digits.epoch()));
    }

    #[test]
    fn batches_run_on_across_epochs() {
        let digits = Digits::embedded(3);
        let size = digits.epoch() - 10;
        let (whole, second) = (digits.train(digits.epoch(), 0), digits.train(size, 1));
        // The second batch begins with the last ten images of epoch 0 and goes on with epoch 1.
        let classes: Vec<f64> = whole["y"].to_f64()[size..].to_vec();
        assert_eq!(second["y"].to_f64()[..10], classes[..]);
        let next = digits.train(digits.epoch(), 1)["y"].to_f64();
        assert_eq!(second["y"].to_f64()[10..], next[..size - 10]);
        assert_eq!(digits.train(0, 7)["x"].shape().numel(), 0);
    }

    #[test]
    fn pixels_follow_time() {
        let digits = Digits::embedded(3);
        let [x] = digits.held_out(0).take(["x"]);
        let n = digits.held_out.len();
        for (sample, (pixels, _)) in digits.held_out.iter().enumerate() {
            assert!((0..64).all(|t| x.item(t * n + sample) == pixels[t] as f64));
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let good = include_str!("../../data/digits.csv").lines().next().expect("not empty");
        let error = |text: &str| Digits::parse(text, 0).expect_err("not an image").to_string();
        assert_eq!(
            error(&format!("{good}\n1,2,3")),
            "line 2 of the table: the line has 3 fields; 64 pixels and a class are expected"
        );
        assert_eq!(error(&good.replacen("0,0", "17,0", 1)), "line 1 of the table: the pixel 17 is above 16");
        assert_eq!(error(&good.replacen('0', "x", 1)), "line 1 of the table: \"x\" is not a number");
        assert_eq!(
            error(&format!("{},12", &good[..good.len() - 2])),
            "line 1 of the table: the class 12 is not a digit"
        );
        assert_eq!(error(""), "line 1 of the table: there is no image");
    }
}
