//! Pooling of images `[batch, channels, height, width]` and of signals `[batch, channels, length]`: the maximum or the
//! mean of each window.

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

    /// The windows of signals, as images of height 1.
    fn of_signals(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel: [1, kernel], stride: [1, stride], padding: [0, padding] }
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
            sum += x;
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

    /// The maximum of each window of signals `[batch, channels, length]`: see [`Tensor::max_pool2d`].
    ///
    /// # Panics
    /// As [`Tensor::max_pool2d`].
    #[track_caller]
    pub fn max_pool1d(self, kernel: usize, stride: usize, padding: usize) -> Self {
        let _call = self.tape.call("max_pool1d", &[self]);
        self.as_image("max_pool1d").max_pool2d(&Pool2d::of_signals(kernel, stride, padding)).squeeze(2)
    }

    /// The mean of each window of signals `[batch, channels, length]`: see [`Tensor::avg_pool2d`].
    ///
    /// # Panics
    /// As [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn avg_pool1d(self, kernel: usize, stride: usize, padding: usize, count_include_pad: bool) -> Self {
        let _call = self.tape.call("avg_pool1d", &[self]);
        let pool = Pool2d::of_signals(kernel, stride, padding);
        self.as_image("avg_pool1d").avg_pool2d(&pool, count_include_pad).squeeze(2)
    }

    #[track_caller]
    fn as_image(self, what: &str) -> Self {
        self.tape.require(self.rank() == 3, what, &[self], || "needs signals [batch, channels, length]".into());
        self.unsqueeze(2)
    }

    /// The mean of each of `rows x columns` windows that cover images `[batch, channels, height, width]`: window i of n
    /// reaches from `floor(i len / n)` to `ceil((i + 1) len / n)`, so that neighbours overlap where n does not divide
    /// the extent. For f16, sums are computed in f32.
    ///
    /// # Panics
    /// If the shape is not that of images, an extent is 0, or the elements are not floats.
    #[track_caller]
    pub fn adaptive_avg_pool2d(self, windows: [usize; 2]) -> Self {
        let _call = self.tape.call("adaptive_avg_pool2d", &[self]);
        self.tape.require(self.dtype().is_float(), "adaptive_avg_pool2d", &[self], || "cast it to floats first".into());
        let wide = self.cast(self.wide());
        wide.adaptive("adaptive_avg_pool2d", windows, |x, axis| x.mean_axes(&[axis])).cast(self.dtype())
    }

    /// The maximum of each of `rows x columns` windows that cover images: see [`Tensor::adaptive_avg_pool2d`] for the
    /// windows. Equal maxima of a window share the gradient.
    ///
    /// # Panics
    /// If the shape is not that of images, or an extent is 0.
    #[track_caller]
    pub fn adaptive_max_pool2d(self, windows: [usize; 2]) -> Self {
        let _call = self.tape.call("adaptive_max_pool2d", &[self]);
        self.adaptive("adaptive_max_pool2d", windows, |x, axis| x.max_axes(&[axis]))
    }

    /// Reduces the windows of an adaptive pooling, along the height and then along the width.
    #[track_caller]
    fn adaptive(self, what: &str, windows: [usize; 2], reduce: impl Fn(Self, usize) -> Self) -> Self {
        let shape = self.shape();
        let fits = shape.rank() == 4 && shape[2..].iter().chain(&windows).all(|extent| *extent > 0);
        self.tape.require(fits, what, &[self], || {
            format!("needs images [batch, channels, height, width] and windows that are not empty, not {windows:?}")
        });
        let mut x = self;
        for (axis, windows) in [(2, windows[0]), (3, windows[1])] {
            let len = shape[axis];
            x = if len.is_multiple_of(windows) {
                let split = [&x.shape()[..axis], &[windows, len / windows], &x.shape()[axis + 1..]].concat();
                reduce(x.reshape(split), axis + 1)
            } else {
                let window = |i: usize| {
                    let (start, end) = (i * len / windows, ((i + 1) * len).div_ceil(windows));
                    reduce(x.slice(axis, start, end - start), axis).unsqueeze(axis)
                };
                Tensor::concat(&(0..windows).map(window).collect::<Vec<_>>(), axis)
            };
        }
        x
    }
}
