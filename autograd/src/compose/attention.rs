//! Scaled dot-product attention.

use crate::{
    DType, Rng, Tensor,
    lints::Mark,
    op::fused::{self, Scores},
};

/// The options of [`Tensor::attention`] beside the plain formula.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'t> {
    /// True if query `i` may attend to keys 0 to `i` only.
    pub causal: bool,
    /// The factor of scores; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
    /// Broadcasts with the scores `[.., heads, queries, keys]`: bool, true where a query may attend to a key; or of the
    /// queries' or the scores' type, to be added to the scores.
    pub mask: Option<Tensor<'t>>,
    /// The probability with which each weight is dropped, and the source of random numbers.
    pub dropout: Option<(f64, Rng)>,
}

impl Attention<'_> {
    /// The factor of these queries' scores.
    fn scale_of(&self, queries: Tensor<'_>) -> f64 {
        let width = queries.shape().last().map_or(1, |&width| width.max(1));
        self.scale.unwrap_or_else(|| 1.0 / (width as f64).sqrt())
    }
}

impl<'t> Tensor<'t> {
    /// Attention (Vaswani et al. 2017): `softmax(q k^T scale + mask) v`, of queries `[.., heads, queries, width]` (this
    /// tensor), keys `[.., kv_heads, keys, width]` and values `[.., kv_heads, keys, value width]`; gives
    /// `[.., heads, queries, value width]`. Fewer heads of keys and values than of queries are shared by consecutive
    /// heads of queries (Ainslie et al. 2023).
    ///
    /// A query that may attend to nothing gives 0, and gets no gradient. For f16, scores and weights are kept in f32,
    /// and the result is rounded once. [`crate::Tape::autocast`] rounds queries, keys and values, and the result, but
    /// no score. Without a mask and dropout it is recorded as one op ([`crate::op::Op::Attention`]).
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn attention(self, keys: Tensor<'t>, values: Tensor<'t>, options: &Attention<'t>) -> Self {
        let _call = self.tape.call("attention", &[self, keys, values]);
        let (tape, dtype) = (self.tape, self.dtype());
        if options.mask.is_none() && options.dropout.is_none() {
            let half = tape.autocasts(self, keys).filter(|_| values.dtype() == dtype);
            let [q, k, v] = [self, keys, values].map(|x| half.map_or(x, |half| x.cast(half)));
            return fused::attention(Scores::new(options.causal, options.scale_of(self)), q, k, v).cast(dtype);
        }
        let weights = self.attention_scores(keys, options).weights().0;
        let weights = if let Some((p, rng)) = options.dropout { weights.dropout(p, rng) } else { weights };
        let (v, r) = (values.shape(), keys.rank());
        let fits = v.rank() == r && v[..r - 1] == keys.shape()[..r - 1] && values.dtype() == dtype;
        tape.require(fits, "attention", &[self, keys, values], || {
            format!("values of {}{v} for keys of {}{}", values.dtype(), keys.dtype(), keys.shape())
        });
        let attended = || weights.attend(values.cast(self.wide()));
        let halves = dtype == DType::F16; // They are wide here, and `autocast` must not round them.
        if halves { tape.autocast(DType::F32, attended).cast(dtype) } else { attended() }
    }

    /// The product of weights `[.., heads, queries, keys]` with values that fit.
    #[track_caller]
    pub(crate) fn attend(self, values: Tensor<'t>) -> Self {
        let (shape, r) = (self.shape(), self.rank());
        self.shared(values).matmul(values).reshape(shape.with(r - 1, values.shape()[r - 1]))
    }

    /// Heads `[.., heads, queries, _]` that share some of `[.., kv_heads, _, _]`, as rows of one matrix
    /// `[.., kv_heads, heads / kv_heads * queries, _]`.
    #[track_caller]
    pub(crate) fn shared(self, kv: Tensor<'t>) -> Self {
        let (x, kv, r) = (self.shape(), kv.shape(), self.rank());
        self.reshape([&kv[..r - 2], &[x[r - 3] / kv[r - 3].max(1) * x[r - 2], x[r - 1]]].concat())
    }

    /// The weights of [`Tensor::attention`] before any are dropped: `[.., heads, queries, keys]`. Each row adds up to
    /// 1, or is 0 where its query may attend to nothing. For f16, all intermediate values are f32.
    ///
    /// # Panics
    /// As [`Tensor::attention`].
    #[track_caller]
    pub fn attention_weights(self, keys: Tensor<'t>, options: &Attention<'t>) -> Self {
        let _call = self.tape.call("attention_weights", &[self, keys]);
        self.attention_scores(keys, options).weights().0.cast(self.dtype())
    }

    /// The weights that follow from scores, and the logarithm of the sum of each row's exponentials, which is infinite
    /// for a query that may attend to nothing.
    #[track_caller]
    pub(crate) fn weights(self) -> (Self, Self) {
        let last = self.rank() - 1;
        let (e, _, shift) = self.shifted_exp(&[last]);
        let sum = e.sum_axes(&[last]);
        let nothing = sum.equals(0.0);
        let sum = nothing.select(sum.ones_like(), sum);
        let weights = e * sum.recip().unreduce(&[last], &self.shape());
        let infinite = self.tape.full(sum.shape(), f64::INFINITY, sum.dtype());
        (weights, nothing.select(infinite, sum.log() + shift))
    }

    /// The scores of [`Tensor::attention`]: `q k^T scale + mask`, minus infinity where a query may not attend. Scores
    /// of f16 are f32, because f16 ends at 65504; [`crate::Tape::autocast`] rounds queries and keys, but not the
    /// scores.
    ///
    /// # Panics
    /// As [`Tensor::attention`].
    #[track_caller]
    pub fn attention_scores(self, keys: Tensor<'t>, options: &Attention<'t>) -> Self {
        let _call = self.tape.call("attention_scores", &[self, keys]);
        let (tape, q, k) = (self.tape, self.shape(), keys.shape());
        let r = q.rank();
        let fits = r >= 3
            && k.rank() == r
            && q[..r - 3] == k[..r - 3]
            && (q[r - 3] == k[r - 3] || k[r - 3] > 0 && q[r - 3].is_multiple_of(k[r - 3]))
            && q[r - 1] == k[r - 1];
        tape.require(fits && self.dtype() == keys.dtype(), "attention_scores", &[self, keys], || {
            "needs queries [.., heads, queries, width] and keys [.., kv_heads, keys, width] of one type, with heads a \
             multiple of kv_heads"
                .into()
        });
        let (queries, count) = (q[r - 2], k[r - 2]);
        let shape = q.with(r - 1, count);
        let half = tape.autocasts(self, keys);
        let [wide, k] = [self, keys].map(|x| half.map_or(x, |half| x.cast(half)).cast(self.wide()));
        let mut scores =
            tape.autocast(DType::F32, || (wide * options.scale_of(self)).shared(k).matmul_t(k)).reshape(&shape);
        let never = tape.full(&shape, f64::NEG_INFINITY, scores.dtype());
        if options.causal {
            let later = tape.iota(queries).unsqueeze(1).less(tape.iota(count));
            scores = later.select(never, scores);
        }
        tape.mark(scores, Mark::Attention);
        let Some(mask) = options.mask else { return scores };
        let masks = mask.shape().broadcast(&shape).is_some_and(|both| both == shape);
        tape.require(masks, "attention_scores", &[self, keys], || {
            format!("a mask of {}{} for scores of {shape}", mask.dtype(), mask.shape())
        });
        match mask.dtype() {
            DType::Bool => mask.select(scores, never),
            of if of == self.dtype() => scores + mask.cast(scores.dtype()),
            _ => scores + mask,
        }
    }
}
