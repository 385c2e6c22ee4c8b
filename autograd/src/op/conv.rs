//! Convolution: its geometry, the shapes of the three ops, and the methods that record them.

use crate::{
    DType, Shape, Tensor,
    op::{Op, Typed},
};
use serde::{Deserialize, Serialize};

/// The geometry of a convolution. Each pair of numbers is one for the height and one for the width.
///
/// ```
/// use wgrad::{Conv2d, DType, Tape};
/// let t = Tape::default();
/// let (x, w) = (t.input("x", [8, 3, 32, 32], DType::F32), t.input("w", [16, 3, 3, 3], DType::F32));
/// let y = x.conv2d(w, Conv2d { stride: [2, 2], padding: [1, 1], ..Conv2d::default() });
/// assert_eq!(y.shape(), [8, 16, 16, 16].into());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Conv2d {
    /// The distance between neighbouring positions of the kernel.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub padding: [usize; 2],
    /// The distance between neighbouring elements of the kernel.
    pub dilation: [usize; 2],
    /// The channels are split into this many groups, each with weights of its own. As many groups as channels make it
    /// depthwise.
    pub groups: usize,
}

impl Default for Conv2d {
    /// Stride and dilation 1, no padding, one group.
    fn default() -> Self {
        Self { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 }
    }
}

/// The names of the dimensions of images and weights, for messages.
const AXES: [&str; 2] = ["height", "width"];

impl Conv2d {
    /// A square kernel's geometry with padding that keeps the extents at stride 1: `(kernel - 1) / 2`, for an odd
    /// kernel.
    pub fn same(kernel: usize) -> Self {
        Self { padding: [(kernel - 1) / 2; 2], ..Self::default() }
    }

    /// The number of positions that a kernel of this extent has along an axis of this extent.
    fn positions(&self, axis: usize, extent: usize, kernel: usize) -> Result<usize, String> {
        let name = AXES[axis];
        if self.stride[axis] == 0 || self.dilation[axis] == 0 || kernel == 0 {
            return Err(format!("stride, dilation and kernel are at least 1, also in {name}"));
        }
        let reach = (kernel - 1).checked_mul(self.dilation[axis]).and_then(|reach| reach.checked_add(1));
        let padded = self.padding[axis].checked_mul(2).and_then(|padding| padding.checked_add(extent));
        match (reach, padded) {
            (Some(reach), Some(padded)) if reach <= padded => Ok((padded - reach) / self.stride[axis] + 1),
            _ => Err(format!("the kernel is larger than the padded image in {name}: {kernel} over {extent}")),
        }
    }

    /// The shape of the result.
    pub(crate) fn output(&self, x: &Shape, w: &Shape) -> Result<Shape, String> {
        if x.rank() != 4 || w.rank() != 4 {
            return Err("needs images [batch, channels, height, width] and weights [out, channels, kh, kw]".into());
        }
        if self.groups == 0 || x[1] != w[1] * self.groups || !w[0].is_multiple_of(self.groups) {
            return Err(format!(
                "{} groups of weights {w} do not fit {} channels: needs [out, channels / groups, kh, kw], with out a multiple of groups",
                self.groups, x[1]
            ));
        }
        Ok([x[0], w[0], self.positions(0, x[2], w[2])?, self.positions(1, x[3], w[3])?].into())
    }

    /// The cotangent of images like `x`.
    #[track_caller]
    pub(crate) fn input_grad<'t>(&self, g: Tensor<'t>, w: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
        let shape = x.shape();
        g.tape.push(Op::ConvInputGrad(*self, [shape[2], shape[3]]), &[g, w])
    }

    /// The cotangent of weights like `w`.
    #[track_caller]
    pub(crate) fn weight_grad<'t>(&self, g: Tensor<'t>, x: Tensor<'t>, w: Tensor<'t>) -> Tensor<'t> {
        let shape = w.shape();
        g.tape.push(Op::ConvWeightGrad(*self, [shape[2], shape[3]]), &[g, x])
    }

    /// The attributes that differ from the default, for printed tapes.
    pub(crate) fn attributes(&self) -> String {
        let default = Self::default();
        let pair = |name: &str, [a, b]: [usize; 2], usual: [usize; 2]| match ([a, b] == usual, a == b) {
            (true, _) => String::new(),
            (_, true) => format!(" {name} {a}"),
            _ => format!(" {name} {a}x{b}"),
        };
        let groups = if self.groups == 1 { String::new() } else { format!(" groups {}", self.groups) };
        pair("stride", self.stride, default.stride)
            + &pair("padding", self.padding, default.padding)
            + &pair("dilation", self.dilation, default.dilation)
            + &groups
    }
}

/// The shape and type of the result of a convolution, or of one of its gradients.
pub(crate) fn infer(op: &Op, x: &[Typed]) -> Result<Typed, String> {
    let (a, b) = (&x[0].0, &x[1].0);
    if x[0].1 != x[1].1 || !x[0].1.is_float() {
        return Err(format!("needs floats of one type, not {} and {}", x[0].1, x[1].1));
    }
    if a.rank() != 4 || b.rank() != 4 {
        return Err("needs two inputs of four dimensions".into());
    }
    let fits = |conv: &Conv2d, image: &Shape, weight: &Shape| {
        let want = conv.output(image, weight)?;
        if want == *a { Ok(()) } else { Err(format!("the cotangent must be {want}, not {a}")) }
    };
    let shape = match op {
        Op::Conv2d(conv) => conv.output(a, b)?,
        Op::ConvInputGrad(conv, [height, width]) => {
            let image = Shape::from([a[0], b[1] * conv.groups, *height, *width]);
            fits(conv, &image, b)?;
            image
        }
        Op::ConvWeightGrad(conv, [kh, kw]) => {
            let weight = Shape::from([a[1], b[1] / conv.groups.max(1), *kh, *kw]);
            fits(conv, b, &weight)?;
            weight
        }
        _ => unreachable!("no convolution"),
    };
    Ok((shape, x[0].1))
}

impl<'t> Tensor<'t> {
    /// The convolution of images `[batch, channels, height, width]` with weights `[out, channels / groups, kh, kw]`:
    /// `y[n, o, i, j] = sum over c, a, b of x[n, c, i s + a d - p, j s + b d - p] w[o, c, a, b]`, where x is 0 outside.
    /// (As usual in this field, it is a cross-correlation: the kernel is not flipped.)
    ///
    /// # Panics
    /// If the shapes or types do not fit each other, or the kernel is larger than the padded image.
    #[track_caller]
    pub fn conv2d(self, weight: Tensor<'t>, conv: Conv2d) -> Self {
        let _call = self.tape.call("conv2d", &[self, weight]);
        if let Some(half) = self.tape.autocasts(self, weight) {
            return self.cast(half).conv2d(weight.cast(half), conv).cast(DType::F32);
        }
        self.tape.push(Op::Conv2d(conv), &[self, weight])
    }

    /// The convolution of signals `[batch, channels, length]` with weights `[out, channels / groups, kernel]`.
    ///
    /// # Panics
    /// As [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv1d(self, weight: Tensor<'t>, stride: usize, padding: usize, dilation: usize, groups: usize) -> Self {
        let _call = self.tape.call("conv1d", &[self, weight]);
        let (x, w) = (self.shape(), weight.shape());
        self.tape.require(x.rank() == 3 && w.rank() == 3, "conv1d", &[self, weight], || {
            "needs signals [batch, channels, length] and weights [out, channels, kernel]".into()
        });
        let conv = Conv2d { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
        let y = self.reshape([x[0], x[1], 1, x[2]]).conv2d(weight.reshape([w[0], w[1], 1, w[2]]), conv);
        let shape = y.shape();
        y.reshape([shape[0], shape[1], shape[3]])
    }

    /// The transposed convolution of `[batch, channels, height, width]` with weights `[channels, out / groups, kh, kw]`:
    /// the gradient that [`Tensor::conv2d`] of the same geometry sends to its images, so that it enlarges by the stride.
    /// The height of the result is `(height - 1) stride - 2 padding + dilation (kh - 1) + 1 + output_padding`, and the
    /// same for the width. `output_padding` chooses among the heights that a convolution would map to this one.
    ///
    /// # Panics
    /// If the shapes or types do not fit each other, or an output padding is not below the stride.
    #[track_caller]
    pub fn conv_transpose2d(self, weight: Tensor<'t>, conv: Conv2d, output_padding: [usize; 2]) -> Self {
        let _call = self.tape.call("conv_transpose2d", &[self, weight]);
        if let Some(half) = self.tape.autocasts(self, weight) {
            return self.cast(half).conv_transpose2d(weight.cast(half), conv, output_padding).cast(DType::F32);
        }
        let (x, w) = (self.shape(), weight.shape());
        self.tape.require(x.rank() == 4 && w.rank() == 4, "conv_transpose2d", &[self, weight], || {
            "needs [batch, channels, height, width] and weights [channels, out / groups, kh, kw]".into()
        });
        let extent = |axis: usize| -> Option<usize> {
            let (len, kernel) = (x[2 + axis].checked_sub(1)?, w[2 + axis].checked_sub(1)?);
            let reach = conv.dilation[axis].checked_mul(kernel)?.checked_add(1 + output_padding[axis])?;
            let whole = len.checked_mul(conv.stride[axis])?.checked_add(reach)?;
            let extent = whole.checked_sub(conv.padding[axis].checked_mul(2)?)?;
            (output_padding[axis] < conv.stride[axis]).then_some(extent)
        };
        let extents = extent(0).zip(extent(1));
        self.tape.require(extents.is_some(), "conv_transpose2d", &[self, weight], || {
            "needs images and a kernel that are not empty, a padding that leaves some of the result, and an output \
             padding below the stride"
                .into()
        });
        let (height, width) = extents.expect("required above");
        self.tape.push(Op::ConvInputGrad(conv, [height, width]), &[self, weight])
    }

    /// The transposed convolution of signals `[batch, channels, length]` with weights `[channels, out / groups, kernel]`:
    /// see [`Tensor::conv_transpose2d`].
    ///
    /// # Panics
    /// As [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose1d(
        self,
        weight: Tensor<'t>,
        stride: usize,
        padding: usize,
        output_padding: usize,
        dilation: usize,
        groups: usize,
    ) -> Self {
        let _call = self.tape.call("conv_transpose1d", &[self, weight]);
        let (x, w) = (self.shape(), weight.shape());
        self.tape.require(x.rank() == 3 && w.rank() == 3, "conv_transpose1d", &[self, weight], || {
            "needs signals [batch, channels, length] and weights [channels, out / groups, kernel]".into()
        });
        let rows = weight.reshape([w[0], w[1], 1, w[2]]);
        let conv = Conv2d { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups };
        self.unsqueeze(2).conv_transpose2d(rows, conv, [0, output_padding]).squeeze(2)
    }
}
