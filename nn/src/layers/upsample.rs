//! Larger images, without parameters.

use wgrad::Tensor;

/// The way in which pixels are found between those of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// The mean of the four nearest pixels, weighted by their distances along both axes.
    Bilinear,
}

/// Enlarges images `[batch, channels, height, width]` by whole factors.
///
/// ```
/// use wgrad::{DType, Tape};
/// use wgrad_nn::{Interpolation, Upsample};
/// let t = Tape::default();
/// let up = Upsample { factors: [2, 3], interpolation: Interpolation::Bilinear };
/// assert_eq!(up.forward(t.input("x", [1, 3, 8, 8], DType::F32)).shape(), [1, 3, 16, 24].into());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upsample {
    /// The factors of height and width.
    pub factors: [usize; 2],
    /// The source of the new pixels.
    pub interpolation: Interpolation,
}

impl Upsample {
    /// Maps `[batch, channels, height, width]` to `[batch, channels, height * factor, width * factor]`. Other extents:
    /// [`Tensor::resize_nearest2d`] and [`Tensor::resize_bilinear2d`].
    ///
    /// # Panics
    /// If `x` is not of that shape, or an extent or a factor is 0.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let (shape, dtype) = (x.shape(), x.dtype());
        assert!(shape.rank() == 4, "upsample of {dtype}{shape}: needs images [batch, channels, height, width]");
        let _call = x.tape().call("upsample", &[x]);
        let extents = [0, 1].map(|axis| shape[2 + axis] * self.factors[axis]);
        match self.interpolation {
            Interpolation::Nearest => x.resize_nearest2d(extents),
            Interpolation::Bilinear => x.resize_bilinear2d(extents, false),
        }
    }
}
