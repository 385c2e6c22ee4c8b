//! Pooling of images `[batch, channels, height, width]`: the maximum or the mean of each window.

use crate::{DType, Tensor};

/// The windows of a pooling. Each pair of numbers is one for the height and one for the width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool2d {
    /// The window's extents.
    pub kernel: [usize; 2],
    /// The distance between neighbouring windows.
    pub stride: [usize; 2],
    /// The reach of windows beyond each side; at most half of a window.
    pub padding: [usize; 2],
}

impl Pool2d {
    /// Square windows side by side.
    pub fn square(kernel: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2] }
    }
}

impl<'t> Tensor<'t> {
    /// For each element of a window, in row-major order, a tensor that holds this element of every window, in the type
    /// `dtype`.
    #[track_caller]
    fn windows(self, pool: &Pool2d, padding: f64, dtype: DType, what: &str) -> Vec<Self> {
        let (shape, tape) = (self.shape(), self.tape);
        let Pool2d { kernel, stride, padding: [ph, pw] } = *pool;
        let fits = |d: usize| {
            let padded = shape[2 + d] + 2 * pool.padding[d];
            shape[2 + d] > 0
                && kernel[d] > 0
                && stride[d] > 0
                && kernel[d] <= padded
                && 2 * pool.padding[d] <= kernel[d]
        };
        tape.require(shape.rank() == 4 && fits(0) && fits(1), what, &[self], || {
            format!(
                "needs images [batch, channels, height, width] and windows that fit them, with a padding of half a window \
                 at most, not {pool:?}"
            )
        });
        let padded = self.cast(dtype).pad_with(2, ph, ph, padding).pad_with(3, pw, pw, padding);
        let count = |d: usize| (padded.shape()[2 + d] - kernel[d]) / stride[d] + 1;
        let (rows, columns) = (count(0), count(1));
        let mut windows = Vec::with_capacity(kernel[0] * kernel[1]);
        for i in 0..kernel[0] {
            let row = padded.slice_step(2, i, rows, stride[0] as isize);
            for j in 0..kernel[1] {
                windows.push(row.slice_step(3, j, columns, stride[1] as isize));
            }
        }
        windows
    }

    /// The maximum of each window; NaN if any element is. The first of equal maxima, in row-major order, gets the
    /// gradient. The padding is minus infinity.
    ///
    /// # Panics
    /// If the shape is not that of images, or the windows do not fit them.
    #[track_caller]
    pub fn max_pool2d(self, pool: &Pool2d) -> Self {
        let _call = self.tape.call("max_pool2d", &[self]);
        let windows = self.windows(pool, f64::NEG_INFINITY, self.dtype(), "max_pool2d");
        let mut max = windows[0];
        for &x in &windows[1..] {
            max = max.less(x).or(x.not_equals(x)).select(x, max);
        }
        max
    }

    /// The mean of each window. The padding is 0, and counts in the mean if `count_include_pad`. For f16, sums and
    /// their gradients are computed in f32.
    ///
    /// # Panics
    /// As [`Tensor::max_pool2d`]; and if the elements are not floats: integers have no mean of their type.
    #[track_caller]
    pub fn avg_pool2d(self, pool: &Pool2d, count_include_pad: bool) -> Self {
        let _call = self.tape.call("avg_pool2d", &[self]);
        self.tape.require(self.dtype().is_float(), "avg_pool2d", &[self], || "cast it to floats first".into());
        let windows = self.windows(pool, 0.0, self.wide(), "avg_pool2d");
        let mut sum = windows[0];
        for &x in &windows[1..] {
            sum = sum + x;
        }
        if count_include_pad || pool.padding == [0, 0] {
            return (sum / (pool.kernel[0] * pool.kernel[1]) as f64).cast(self.dtype());
        }
        // The number of elements of each window that lie in the image: a column times a row.
        let (shape, positions) = (self.shape(), sum.shape());
        let inside = |d: usize| {
            let count = |i: usize| {
                let (start, end) = (i * pool.stride[d], i * pool.stride[d] + pool.kernel[d]);
                let (low, high) = (pool.padding[d], pool.padding[d] + shape[2 + d]);
                (end.min(high).saturating_sub(start.max(low))) as f64
            };
            let counts: Vec<f64> = (0..positions[2 + d]).map(count).collect();
            self.tape.table(&counts, sum.dtype())
        };
        (sum / (inside(0).unsqueeze(1) * inside(1))).cast(self.dtype())
    }

    /// The mean of each channel: `[batch, channels, ..]` gives `[batch, channels]`.
    ///
    /// # Panics
    /// If there are no such dimensions.
    #[track_caller]
    pub fn global_avg_pool(self) -> Self {
        let _call = self.tape.call("global_avg_pool", &[self]);
        let rank = self.rank();
        self.tape.require(rank >= 2, "global_avg_pool", &[self], || "needs [batch, channels, ..]".into());
        self.mean_axes(&(2..rank).collect::<Vec<_>>())
    }
}
