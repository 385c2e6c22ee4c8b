//! Attention of one sequence to another.

use super::{AttentionConfig, Builder, Dropout, Init, Linear, RmsNorm, attention::normed};
use wgrad::{Attention, DType, Tensor};

/// Attention from one sequence to another, as from a decoder to what an encoder has read (Vaswani et al. 2017, section
/// 3.2.3): queries come from the one, keys and values from the other, the source, which may have a width of its own.
///
/// ```
/// use wgrad::{DType, Store, Tape};
/// use wgrad_nn::{AttentionConfig, Builder, CrossAttention, Init};
/// let mut store = Store::new();
/// let config = AttentionConfig { width: 8, heads: 2, causal: false, ..AttentionConfig::default() };
/// let (mut b, init) = (Builder::new(&mut store, 0), Init::Normal(0.02));
/// let attention = CrossAttention::new(b.at("cross"), &config, 12, &init, &init);
/// let t = Tape::new(store.into_parts().0);
/// let (x, source) = (t.input("x", [4, 5, 8], DType::F32), t.input("source", [4, 9, 12], DType::F32));
/// // True where the source is no padding.
/// let present = t.input("present", [4, 9], DType::Bool);
/// assert_eq!(attention.forward(x, source, Some(present), false).shape(), [4, 5, 8].into());
/// ```
#[derive(Clone, Debug)]
pub struct CrossAttention {
    /// The queries, `[width, width]`.
    pub q: Linear,
    /// Keys and values, one after another: `[2 width, source width]`, or `[2 kv_heads width / heads, source width]`
    /// where heads share keys and values.
    pub kv: Linear,
    /// The projection of the heads' results, `[width, width]`.
    pub proj: Linear,
    /// The normalisations of queries and of keys, each over a head's width.
    pub qk_norm: Option<[RmsNorm; 2]>,
    /// The settings.
    pub config: AttentionConfig,
    /// The width of the source.
    pub source_width: usize,
}

impl CrossAttention {
    /// Declares `q` and `kv` with the first weights `init`, `proj` with its own, and biases of zeros; `q_norm` and
    /// `k_norm` if `config` asks for them.
    ///
    /// # Panics
    /// If the heads do not divide the width, the heads of keys do not divide the heads, or the temperature is not
    /// positive; if the settings are causal or have rotary positions: the positions of two sequences do not compare.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &AttentionConfig, source_width: usize, init: &Init, proj: &Init) -> Self {
        config.check("cross_attention");
        assert!(
            !config.causal && config.rotary.is_none(),
            "cross_attention: the positions of two sequences do not compare: set `causal` to false and `rotary` to None"
        );
        let (width, qk_norm) = (config.width, config.norms(&mut b));
        let q = Linear::new(b.at("q"), width, width, init);
        let kv = Linear::new(b.at("kv"), source_width, 2 * config.kv_width(), init);
        let proj = Linear::new(b.at("proj"), width, width, proj);
        Self { q, kv, proj, qk_norm, config: *config, source_width }
    }

    /// Maps `x`, `[batch, time, width]`, to the same shape, given the source, `[batch, source time, source width]`, and
    /// a bool `[batch, source time]` that is true where the source may be attended to; without one it may everywhere.
    /// The heads' results are 0 for a sample whose source has nothing to attend to.
    ///
    /// Queries, keys and scores are probed as those of [`super::MultiHeadAttention::forward`], as
    /// `cross_attention/queries` and so on.
    ///
    /// # Panics
    /// If `x`, `source` or `present` has another shape or type.
    #[track_caller]
    pub fn forward<'t>(
        &self,
        x: Tensor<'t>,
        source: Tensor<'t>,
        present: Option<Tensor<'t>>,
        training: bool,
    ) -> Tensor<'t> {
        let (shape, from, config) = (x.shape(), source.shape(), &self.config);
        let (width, source_width) = (config.width, self.source_width);
        let fits = shape.rank() == 3 && from.rank() == 3 && shape[0] == from[0];
        assert!(
            fits && shape[2] == width && from[2] == source_width,
            "cross_attention of {}{shape} and {}{from}: needs [batch, time, {width}] and [batch, source time, \
             {source_width}]",
            x.dtype(),
            source.dtype()
        );
        if let Some(present) = present {
            assert!(
                present.dtype() == DType::Bool && present.shape()[..] == from[..2],
                "cross_attention of {}{shape} and {}{from}: needs a mask bool[{}, {}], not {}{}",
                x.dtype(),
                source.dtype(),
                from[0],
                from[1],
                present.dtype(),
                present.shape()
            );
        }
        let _call = x.tape().call("cross_attention", &[x, source]);
        let _scope = x.tape().enter("cross_attention");
        let (kv, kv_heads) = (self.kv.forward(source), config.shared_heads());
        let q = normed(self.qk_norm.as_ref(), 0, config.split(self.q.forward(x), 0, config.heads)).probe("queries");
        let k = normed(self.qk_norm.as_ref(), 1, config.split(kv, 0, kv_heads)).probe("keys");
        let mask = present.map(|present| present.reshape([from[0], 1, 1, from[1]]));
        let options = Attention { mask, ..config.options(training) };
        q.attention_scores(k, &options).probe("scores");
        let v = config.split(kv, config.kv_width(), kv_heads);
        let y = q.attention(k, v, &options).swap_axes(1, 2).reshape(shape);
        Dropout::optional(config.dropout, self.proj.forward(y), training)
    }
}
