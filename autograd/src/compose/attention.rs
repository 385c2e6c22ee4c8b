//! Scaled dot-product attention.

use crate::{DType, Rng, Tensor, lints::Mark};

/// What [`Tensor::attention`] does besides the plain formula.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'t> {
    /// Whether query `i` may attend to keys 0 to `i` only.
    pub causal: bool,
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    pub scale: Option<f64>,
    /// Broadcasts with the scores `[.., heads, queries, keys]`: bool, true where a query may attend to a key; or of the
    /// scores' type, to be added to them.
    pub mask: Option<Tensor<'t>>,
    /// The probability with which each weight is dropped, and where the random numbers come from.
    pub dropout: Option<(f64, Rng)>,
}

impl<'t> Tensor<'t> {
    /// Attention (Vaswani et al. 2017): `softmax(q k^T scale + mask) v`, of queries `[.., heads, queries, width]` (this
    /// tensor), keys `[.., kv_heads, keys, width]` and values `[.., kv_heads, keys, value width]`; gives
    /// `[.., heads, queries, value width]`. Fewer heads of keys and values than of queries are shared by consecutive
    /// heads of queries (Ainslie et al. 2023).
    ///
    /// A query that may attend to nothing gives 0, and gets no gradient.
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn attention(self, keys: Tensor<'t>, values: Tensor<'t>, options: &Attention<'t>) -> Self {
        self.tape.at_caller(|| {
            let weights = self.attention_weights(keys, options);
            let weights = options.dropout.map_or(weights, |(p, rng)| weights.dropout(p, rng));
            let (w, v) = (weights.shape(), values.shape());
            let r = w.rank();
            assert!(
                v.rank() == r && v[..r - 1] == keys.shape()[..r - 1],
                "attention: values of {}{v} for keys of {}{}{}",
                values.dtype(),
                keys.dtype(),
                keys.shape(),
                self.tape.recorded_at()
            );
            // Heads that share keys and values are rows of one product.
            let shared = |x: Tensor<'t>, width: usize| {
                x.reshape([&v[..r - 2], &[w[r - 3] / v[r - 3].max(1) * w[r - 2], width]].concat())
            };
            shared(weights, w[r - 1]).matmul(values).reshape(w.with(r - 1, v[r - 1]))
        })
    }

    /// The weights of [`Tensor::attention`] before any are dropped: `[.., heads, queries, keys]`. Each row adds up to 1, or
    /// is 0 where its query may attend to nothing. Of halves, exponentials and sums are kept in f32.
    ///
    /// # Panics
    /// As [`Tensor::attention`].
    #[track_caller]
    pub fn attention_weights(self, keys: Tensor<'t>, options: &Attention<'t>) -> Self {
        let scores = self.attention_scores(keys, options);
        let last = scores.rank() - 1;
        let (e, _) = scores.cast(scores.wide()).shifted_exp(&[last]);
        let sum = e.sum_axes(&[last]);
        let sum = sum.equals(0.0).select(sum.ones_like(), sum);
        (e * sum.recip().unreduce(&[last], &scores.shape())).cast(scores.dtype())
    }

    /// The scores of [`Tensor::attention`]: `q k^T scale + mask`, minus infinity where a query may not attend.
    ///
    /// # Panics
    /// As [`Tensor::attention`].
    #[track_caller]
    pub fn attention_scores(self, keys: Tensor<'t>, options: &Attention<'t>) -> Self {
        self.tape.at_caller(|| {
        let (tape, q, k) = (self.tape, self.shape(), keys.shape());
        let r = q.rank();
        let fits = r >= 3
            && k.rank() == r
            && q[..r - 3] == k[..r - 3]
            && (q[r - 3] == k[r - 3] || k[r - 3] > 0 && q[r - 3].is_multiple_of(k[r - 3]))
            && q[r - 1] == k[r - 1];
        assert!(
            fits && self.dtype() == keys.dtype(),
            "attention of {}{q} to {}{k}: needs queries [.., heads, queries, width] and keys [.., kv_heads, keys, width] \
             of one type, with heads a multiple of kv_heads{}",
            self.dtype(),
            keys.dtype(),
            tape.recorded_at()
        );
        let scale = options.scale.unwrap_or_else(|| 1.0 / (q[r - 1].max(1) as f64).sqrt());
        let (queries, count) = (q[r - 2], k[r - 2]);
        let folded = [&k[..r - 2], &[q[r - 3] / k[r - 3].max(1) * queries, q[r - 1]]].concat();
        let shape = q.with(r - 1, count);
        let mut scores = (self * scale).reshape(folded).matmul_t(keys).reshape(&shape);
        let never = tape.full(&shape, f64::NEG_INFINITY, self.dtype());
        if options.causal {
            let later = tape.iota(queries).unsqueeze(1).less(tape.iota(count));
            scores = later.select(never, scores);
        }
        tape.mark(scores, Mark::Attention);
        let Some(mask) = options.mask else { return scores };
        assert!(
            mask.shape().broadcast(&shape).is_some_and(|both| both == shape),
            "attention: a mask of {}{} for scores of {shape}{}",
            mask.dtype(),
            mask.shape(),
            tape.recorded_at()
        );
        if mask.dtype() == DType::Bool { mask.select(scores, never) } else { scores + mask }
        })
    }
}
