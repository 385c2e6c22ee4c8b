//! Random variations of images: a shift by cropping from a padded image, and a mirror image.

use crate::random::generator;
use rand::RngExt;

/// The variation of training images (He et al. 2016, section 4.2). The draws depend on the seed, the epoch and the
/// image alone: not on the batch that it is in, nor on threads.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Augment {
    /// Black pixels added on each side, from which a window of the image's own size is cut at random; 4 for CIFAR-10.
    pub padding: usize,
    /// True if each image is mirrored with probability 1/2.
    pub flip: bool,
}

/// The variation of one image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Drawn {
    /// The place where the window begins in the padded image.
    row: usize,
    column: usize,
    mirrored: bool,
}

impl Augment {
    /// The draws for an image of a seed and an epoch.
    fn draw(&self, (seed, epoch, image): (u64, u64, usize)) -> Drawn {
        let mut random = generator(seed, &format!("augment/{image}"), epoch);
        let mut shift = || random.random_range(0..=2 * self.padding);
        let (row, column) = (shift(), shift());
        Drawn { row, column, mirrored: self.flip && random.random() }
    }

    /// A variation of an image `[channels, height, width]`.
    pub(super) fn apply(&self, pixels: &[u8], [_, height, width]: [usize; 3], of: (u64, u64, usize)) -> Vec<u8> {
        self.cut(pixels, [height, width], self.draw(of))
    }

    fn cut(&self, pixels: &[u8], [height, width]: [usize; 2], drawn: Drawn) -> Vec<u8> {
        let inside = |at: usize, extent: usize| at.checked_sub(self.padding).filter(|at| *at < extent);
        let mut out = Vec::with_capacity(pixels.len());
        for plane in pixels.chunks((height * width).max(1)) {
            for row in 0..height {
                for column in 0..width {
                    let column = if drawn.mirrored { width - 1 - column } else { column };
                    let at = inside(row + drawn.row, height).zip(inside(column + drawn.column, width));
                    out.push(at.map_or(0, |(row, column)| plane[row * width + column]));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [u8; 6] = [1, 2, 3, 4, 5, 6];

    fn cut(row: usize, column: usize, mirrored: bool) -> Vec<u8> {
        Augment { padding: 1, flip: true }.cut(&IMAGE, [2, 3], Drawn { row, column, mirrored })
    }

    #[test]
    fn windows_of_a_padded_image() {
        assert_eq!(cut(1, 1, false), IMAGE, "in the middle is the image itself");
        assert_eq!(cut(0, 1, false), [0, 0, 0, 1, 2, 3]);
        assert_eq!(cut(2, 2, false), [5, 6, 0, 0, 0, 0]);
        assert_eq!(cut(1, 1, true), [3, 2, 1, 6, 5, 4]);
        assert_eq!(cut(1, 0, true), [2, 1, 0, 5, 4, 0], "the window is mirrored");
    }

    #[test]
    fn every_shift_and_both_sides_are_drawn_evenly() {
        let augment = Augment { padding: 1, flip: true };
        let mut counts = [0; 18];
        for image in 0..9000 {
            let Drawn { row, column, mirrored } = augment.draw((3, 5, image));
            counts[(row * 3 + column) * 2 + usize::from(mirrored)] += 1;
        }
        // 500 expected, with a deviation of 22.
        assert!(counts.iter().all(|count| (390..610).contains(count)), "{counts:?}");
    }

    #[test]
    fn seed_epoch_and_image_each_matter() {
        let augment = Augment { padding: 1000, flip: true };
        let first = augment.draw((1, 2, 3));
        assert_eq!(first, augment.draw((1, 2, 3)));
        for other in [(2, 2, 3), (1, 3, 3), (1, 2, 4)] {
            assert_ne!(first, augment.draw(other));
        }
    }

    #[test]
    fn without_padding_and_flip_nothing_changes() {
        assert_eq!(Augment::default().apply(&IMAGE, [1, 2, 3], (1, 2, 3)), IMAGE);
    }
}
