//! Rotary positions: queries and keys that are turned by their positions.

use wgrad::{DType, Tensor};

/// The elements of a head that turn together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RotaryPairs {
    /// `2 i` and `2 i + 1`, as first published, and in GPT-J.
    #[default]
    Neighbours,
    /// `i` and `i + width / 2`, as in GPT-NeoX and in the published weights of Llama for `transformers`.
    Halves,
}

/// Rotary positions (Su et al. 2021, "RoFormer", arXiv 2104.09864): the pair `i` of a query or a key at position `p`
/// turns by the angle `p base^(-2 i / width)`. A rotation keeps its norm, and the product of a query and a key depends
/// on the difference of their positions alone.
///
/// It has no parameters. [`crate::AttentionConfig::rotary`] applies it within an attention; for queries and keys of
/// your own, which may begin at any position:
///
/// ```
/// use wgrad::{Attention, DType, Tape};
/// use wgrad_nn::Rotary;
/// let (t, rotary) = (Tape::default(), Rotary::default());
/// let [q, k, v] = ["q", "k", "v"].map(|name| t.input(name, [2, 4, 5, 8], DType::F32));
/// let y = rotary.forward(q).attention(rotary.forward(k), v, &Attention::default());
/// // One token more, at a position that each run is told.
/// let offset = t.input("offset", [], DType::U32);
/// let next = rotary.forward_at(t.input("next", [2, 4, 1, 8], DType::F32), t.iota(1) + offset);
/// assert_eq!((y.shape(), next.shape()), ([2, 4, 5, 8].into(), [2, 4, 1, 8].into()));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rotary {
    /// The base of the angles; above 1. A larger one tells positions apart over longer sequences.
    pub base: f64,
    /// The elements of a head that turn together.
    pub pairs: RotaryPairs,
}

impl Default for Rotary {
    /// A base of 10,000, and neighbours as pairs, as first published.
    fn default() -> Self {
        Self { base: 10_000.0, pairs: RotaryPairs::Neighbours }
    }
}

impl Rotary {
    /// Turns queries or keys `[.., time, width]`, whose positions are 0, 1, and so on.
    ///
    /// # Panics
    /// As [`Rotary::forward_at`].
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        self.check(x);
        let _call = x.tape().call("rotary", &[x]);
        self.turned(x, x.tape().iota(x.shape()[x.rank() - 2]))
    }

    /// Turns queries or keys `[.., time, width]` at the given positions, u32 `[time]`.
    ///
    /// Angles are computed in f32 for f32 and f16: at position `p` they are right to about `p 2^-24`.
    ///
    /// # Panics
    /// If `x` is not of floats in rows of an even width, or there is not one position for each row; if the base is not
    /// above 1.
    #[track_caller]
    pub fn forward_at<'t>(&self, x: Tensor<'t>, positions: Tensor<'t>) -> Tensor<'t> {
        self.check(x);
        let time = x.shape()[x.rank() - 2];
        assert!(
            *positions.shape() == [time] && positions.dtype() == DType::U32,
            "rotary of {}{}: needs positions u32[{time}], not {}{}",
            x.dtype(),
            x.shape(),
            positions.dtype(),
            positions.shape()
        );
        let _call = x.tape().call("rotary", &[x, positions]);
        self.turned(x, positions)
    }

    #[track_caller]
    fn check(&self, x: Tensor<'_>) {
        let (shape, dtype, base) = (x.shape(), x.dtype(), self.base);
        let fits = shape.rank() >= 2 && shape[shape.rank() - 1].is_multiple_of(2) && dtype.is_float();
        assert!(fits, "rotary of {dtype}{shape}: needs floats [.., time, width] of an even width");
        assert!(base > 1.0 && base.is_finite(), "rotary: base is {base}, and must be above 1");
    }

    /// Turns what has been checked.
    #[track_caller]
    fn turned<'t>(&self, x: Tensor<'t>, positions: Tensor<'t>) -> Tensor<'t> {
        let (tape, shape, dtype) = (x.tape(), x.shape(), x.dtype());
        let (wide, width, r) =
            (if dtype == DType::F16 { DType::F32 } else { dtype }, shape[shape.rank() - 1], shape.rank());
        let frequency = |i: usize| self.base.powf(-2.0 * i as f64 / width as f64);
        let frequencies = tape.table(&(0..width / 2).map(frequency).collect::<Vec<f64>>(), wide);
        let angles = positions.cast(wide).unsqueeze(1) * frequencies;
        let (cos, sin) = (angles.cos(), angles.sin());
        // A head as pairs: the axis of each pair's two elements, and the shape with that axis.
        let (axis, pairs) = match self.pairs {
            RotaryPairs::Neighbours => (r, [width / 2, 2]),
            RotaryPairs::Halves => (r - 1, [2, width / 2]),
        };
        let paired = x.cast(wide).reshape([&shape[..r - 1], &pairs].concat());
        let (a, b) = (paired.index(axis, 0), paired.index(axis, 1));
        let turned = [a * cos - b * sin, a * sin + b * cos].map(|part| part.unsqueeze(axis));
        Tensor::concat(&turned, axis).reshape(shape).cast(dtype)
    }
}
