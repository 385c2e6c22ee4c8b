//! Images in another height and width: each pixel of the result is a copy of the nearest one, or a mean of four.

use crate::{DType, Tensor};

impl<'t> Tensor<'t> {
    /// Images `[batch, channels, height, width]` in another height and width: pixel i of n is a copy of pixel
    /// `floor(i len / n)`.
    ///
    /// # Panics
    /// If the shape is not that of images, or an extent is 0.
    #[track_caller]
    pub fn resize_nearest2d(self, extents: [usize; 2]) -> Self {
        let _call = self.tape.call("resize_nearest2d", &[self]);
        self.check_resize("resize_nearest2d", extents);
        let mut x = self;
        for (axis, to) in [(2, extents[0]), (3, extents[1])] {
            let from = x.shape()[axis];
            x = if to == from { x } else { x.picked(axis, (0..to).map(|i| i * from / to)) };
        }
        x
    }

    /// Images `[batch, channels, height, width]` in another height and width, by linear interpolation along both.
    /// Pixel i of n lies at `(i + 1/2) len / n - 1/2`, or at `i (len - 1) / (n - 1)` if `align_corners`; beyond the
    /// centres of the outer pixels, these are repeated. For f16, it is computed in f32.
    ///
    /// # Panics
    /// If the shape is not that of images, an extent is 0, or the elements are not floats.
    #[track_caller]
    pub fn resize_bilinear2d(self, extents: [usize; 2], align_corners: bool) -> Self {
        let _call = self.tape.call("resize_bilinear2d", &[self]);
        self.check_resize("resize_bilinear2d", extents);
        self.tape.require(self.dtype().is_float(), "resize_bilinear2d", &[self], || "needs floats".into());
        let mut x = self.cast(self.wide());
        for (axis, to) in [(2, extents[0]), (3, extents[1])] {
            let from = x.shape()[axis];
            if to == from {
                continue;
            }
            let place = |i: usize| match (align_corners, to) {
                (true, 1) => 0.0,
                (true, _) => i as f64 * (from - 1) as f64 / (to - 1) as f64,
                (false, _) => ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0),
            };
            let below: Vec<usize> = (0..to).map(|i| (place(i) as usize).min(from - 1)).collect();
            let rest = |i: usize| if below[i] + 1 < from { place(i) - below[i] as f64 } else { 0.0 };
            let share: Vec<f64> = (0..to).map(rest).collect();
            // A pixel without a share is not read, so that it may be infinite.
            let above: Vec<usize> = (0..to).map(|i| below[i] + usize::from(share[i] > 0.0)).collect();
            if above == below {
                x = x.picked(axis, below.into_iter());
                continue;
            }
            let (below, above) = (x.picked(axis, below.into_iter()), x.picked(axis, above.into_iter()));
            let dims: Vec<usize> = (0..4).map(|d| if d == axis { to } else { 1 }).collect();
            let share = self.tape.table(&share, x.dtype()).reshape(dims);
            x = below * (1.0 - share) + above * share;
        }
        x.cast(self.dtype())
    }

    /// The positions of an axis that are known when the program is recorded.
    #[track_caller]
    fn picked(self, axis: usize, positions: impl Iterator<Item = usize>) -> Self {
        let positions: Vec<f64> = positions.map(|at| at as f64).collect();
        self.index_select(axis, self.tape.table(&positions, DType::U32))
    }

    #[track_caller]
    fn check_resize(self, what: &str, extents: [usize; 2]) {
        let shape = self.shape();
        let fits = shape.rank() == 4 && shape[2..].iter().chain(&extents).all(|extent| *extent > 0);
        self.tape.require(fits, what, &[self], || {
            format!("needs images [batch, channels, height, width] and extents that are not 0, not {extents:?}")
        });
    }
}
