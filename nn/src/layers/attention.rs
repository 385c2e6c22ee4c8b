//! Self-attention with several heads.

use super::{Builder, Dropout, Init, KvCache, Linear, RmsNorm, Rotary, kv_cache::Past};
use wgrad::{Attention, Tensor};

/// Settings of a [`MultiHeadAttention`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionConfig {
    /// The width of the inputs and of the outputs.
    pub width: usize,
    /// The number of heads that share the width.
    pub heads: usize,
    /// The number of heads of keys and values, each shared by `heads / kv_heads` consecutive heads of queries
    /// (Ainslie et al. 2023, "GQA", arXiv 2305.13245); 1 is multi-query attention (Shazeer 2019). If `None`, each head
    /// has keys and values of its own.
    pub kv_heads: Option<usize>,
    /// True if a position attends only to itself and to earlier positions.
    pub causal: bool,
    /// True if queries and keys are normalised before their product, which bounds the scores (Henry et al. 2020,
    /// "Query-key normalization"; here by [`RmsNorm`], whose weights are learnt).
    pub qk_norm: bool,
    /// The rotation of queries and keys by their positions, after their normalisation.
    pub rotary: Option<Rotary>,
    /// The divisor of scores, besides the root of a head's width; positive.
    pub temperature: f64,
    /// The dropout of the attention weights and of the output.
    pub dropout: Option<Dropout>,
}

impl Default for AttentionConfig {
    /// Causal, with one head of width 1 to be overridden, keys and values of each head's own, no normalisation, no
    /// rotation, temperature 1 and no dropout.
    fn default() -> Self {
        Self {
            width: 1,
            heads: 1,
            kv_heads: None,
            causal: true,
            qk_norm: false,
            rotary: None,
            temperature: 1.0,
            dropout: None,
        }
    }
}

impl AttentionConfig {
    /// The width of a head.
    pub(super) fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// The number of heads of keys and values.
    pub(super) fn shared_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// The width of all heads of keys, and of all heads of values.
    pub(super) fn kv_width(&self) -> usize {
        self.shared_heads() * self.head_width()
    }

    /// Refuses settings that contradict each other.
    #[track_caller]
    pub(super) fn check(&self, name: &str) {
        let Self { width, heads, temperature, .. } = *self;
        assert!(heads > 0 && width.is_multiple_of(heads), "{name}: {heads} heads of a width of {width}");
        let shared = self.shared_heads();
        assert!(
            shared > 0 && heads.is_multiple_of(shared),
            "{name}: {heads} heads of queries share {shared} heads of keys"
        );
        let head = self.head_width();
        assert!(
            self.rotary.is_none() || head.is_multiple_of(2),
            "{name}: rotary positions turn pairs, and heads have a width of {head}"
        );
        assert!(
            temperature > 0.0 && temperature.is_finite(),
            "{name}: temperature is {temperature}, and must be positive"
        );
    }

    /// Declares `q_norm` and `k_norm` if the settings ask for them.
    #[track_caller]
    pub(super) fn norms(&self, b: &mut Builder<'_>) -> Option<[RmsNorm; 2]> {
        let mut norm = |name: &str| RmsNorm::new(b.at(name), self.head_width());
        self.qk_norm.then(|| ["q_norm", "k_norm"].map(&mut norm))
    }

    /// Heads among the columns of a projected sequence `[batch, time, _]`, as `[batch, heads, time, head width]`.
    #[track_caller]
    pub(super) fn split<'t>(&self, x: Tensor<'t>, start: usize, heads: usize) -> Tensor<'t> {
        let (shape, head) = (x.shape(), self.head_width());
        x.slice(2, start, heads * head).reshape([shape[0], shape[1], heads, head]).swap_axes(1, 2)
    }

    /// The options of the product of queries and keys.
    pub(super) fn options<'t>(&self, training: bool) -> Attention<'t> {
        Attention {
            causal: self.causal,
            scale: Some(1.0 / (self.head_width() as f64).sqrt() / self.temperature),
            dropout: self.dropout.and_then(|dropout| dropout.of_weights(training)),
            ..Attention::default()
        }
    }
}

/// Self-attention (Vaswani et al. 2017): `concat(softmax(q k^T / sqrt(width / heads)) v) W^T + b`.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// Queries, keys and values, one after another: `[3 width, width]`, or `[width + 2 kv_heads width / heads, width]`
    /// where heads share keys and values.
    pub qkv: Linear,
    /// The projection of the heads' results, `[width, width]`.
    pub proj: Linear,
    /// The normalisations of queries and of keys, each over a head's width.
    pub qk_norm: Option<[RmsNorm; 2]>,
    /// The settings.
    pub config: AttentionConfig,
}

impl MultiHeadAttention {
    /// Declares `qkv` and `proj`, each with the given first weights, and biases of zeros; `q_norm` and `k_norm` if
    /// `config` asks for them.
    ///
    /// # Panics
    /// If the heads do not divide the width, the heads of keys do not divide the heads, rotary positions meet heads of
    /// an odd width, or the temperature is not positive.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &AttentionConfig, qkv: &Init, proj: &Init) -> Self {
        config.check("attention");
        let (width, qk_norm) = (config.width, config.norms(&mut b));
        let qkv = Linear::new(b.at("qkv"), width, width + 2 * config.kv_width(), qkv);
        let proj = Linear::new(b.at("proj"), width, width, proj);
        Self { qkv, proj, qk_norm, config: *config }
    }

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// Queries and keys, `[batch, heads, time, width / heads]`, are probed as `attention/queries` and `attention/keys`,
    /// normalised and rotated if they are. The scores, `[batch, heads, time, time]`, are probed as `attention/scores`,
    /// so that [`crate::probe`] can measure them; a tensor that a handler returns for the scores is ignored.
    ///
    /// # Panics
    /// If `x` has another shape or type.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        self.run(x, training, None)
    }

    /// As [`MultiHeadAttention::forward`] in evaluation, for new positions after those in a cache: `x` has their rows
    /// alone, which attend to all positions so far. Keys and values go to the layer `layer` of the cache.
    /// [`KvCache::advance`] then counts the positions.
    ///
    /// # Panics
    /// As [`MultiHeadAttention::forward`]; if the settings are not causal, since then earlier positions would have to
    /// attend to these; if the cache has no such layer, or one of another shape or type.
    #[track_caller]
    pub fn forward_cached<'t>(&self, x: Tensor<'t>, cache: &KvCache, layer: usize) -> Tensor<'t> {
        let time = x.shape().get(1).copied().unwrap_or(0);
        self.run(x, false, Some(cache.past(x.tape(), layer, time)))
    }

    #[track_caller]
    pub(super) fn run<'t>(&self, x: Tensor<'t>, training: bool, past: Option<Past<'t>>) -> Tensor<'t> {
        let (shape, config) = (x.shape(), &self.config);
        let width = config.width;
        assert!(
            shape.rank() == 3 && shape[2] == width,
            "attention of {}{shape}: needs [batch, time, {width}]",
            x.dtype()
        );
        assert!(past.is_none() || config.causal, "attention: without `causal`, past positions attend to new ones");
        let _call = x.tape().call("attention", &[x]);
        let _scope = x.tape().enter("attention");
        let all = self.qkv.forward(x);
        let (kv_heads, kv_width) = (config.shared_heads(), config.kv_width());
        let q = normed(self.qk_norm.as_ref(), 0, config.split(all, 0, config.heads));
        let k = normed(self.qk_norm.as_ref(), 1, config.split(all, width, kv_heads));
        let (q, k) = match (config.rotary, past) {
            (Some(rotary), None) => (rotary.forward(q), rotary.forward(k)),
            (Some(rotary), Some(past)) => (rotary.forward_at(q, past.positions), rotary.forward_at(k, past.positions)),
            (None, _) => (q, k),
        };
        let (q, k) = (q.probe("queries"), k.probe("keys"));
        let options = config.options(training);
        let (k, options) = match past {
            Some(past) => (past.keys(k), Attention { causal: false, mask: Some(past.seen()), ..options }),
            None => (k, options),
        };
        q.attention_scores(k, &options).probe("scores");
        let v = config.split(all, width + kv_width, kv_heads);
        let v = if let Some(past) = past { past.values(v) } else { v };
        let y = q.attention(k, v, &options).swap_axes(1, 2).reshape(shape);
        Dropout::optional(config.dropout, self.proj.forward(y), training)
    }
}

/// Queries or keys, normalised if there are norms: the first is that of queries, the second that of keys.
#[track_caller]
pub(super) fn normed<'t>(norms: Option<&[RmsNorm; 2]>, which: usize, x: Tensor<'t>) -> Tensor<'t> {
    if let Some(norms) = norms { norms[which].forward(x) } else { x }
}
