//! Self-attention with several heads.

use super::{Builder, Dropout, Init, Linear, RmsNorm};
use wgrad::{Attention, Tensor};

/// Settings of a [`MultiHeadAttention`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionConfig {
    /// The width of the inputs and of the outputs.
    pub width: usize,
    /// The number of heads that share the width.
    pub heads: usize,
    /// True if a position attends only to itself and to earlier positions.
    pub causal: bool,
    /// True if queries and keys are normalised before their product, which bounds the scores (Henry et al. 2020,
    /// "Query-key normalization"; here by [`RmsNorm`], whose weights are learnt).
    pub qk_norm: bool,
    /// The divisor of scores, besides the root of a head's width; positive.
    pub temperature: f64,
    /// The dropout of the attention weights and of the output.
    pub dropout: Option<Dropout>,
}

impl Default for AttentionConfig {
    /// Causal, with one head of width 1 to be overridden, no normalisation, temperature 1 and no dropout.
    fn default() -> Self {
        Self { width: 1, heads: 1, causal: true, qk_norm: false, temperature: 1.0, dropout: None }
    }
}

/// Self-attention (Vaswani et al. 2017): `concat(softmax(q k^T / sqrt(width / heads)) v) W^T + b`.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    /// Queries, keys and values, one after another, `[3 width, width]`.
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
    /// If the heads do not divide the width, or the temperature is not positive.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &AttentionConfig, qkv: &Init, proj: &Init) -> Self {
        let AttentionConfig { width, heads, temperature, .. } = *config;
        assert!(heads > 0 && width.is_multiple_of(heads), "attention: {heads} heads of a width of {width}");
        assert!(
            temperature > 0.0 && temperature.is_finite(),
            "attention: temperature is {temperature}, and must be positive"
        );
        let mut norm = |name: &str| RmsNorm::new(b.at(name), width / heads);
        let qk_norm = config.qk_norm.then(|| ["q_norm", "k_norm"].map(&mut norm));
        let qkv = Linear::new(b.at("qkv"), width, 3 * width, qkv);
        let proj = Linear::new(b.at("proj"), width, width, proj);
        Self { qkv, proj, qk_norm, config: *config }
    }

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// Queries and keys, `[batch, heads, time, width / heads]`, are probed as `attention/queries` and `attention/keys`.
    /// The scores, `[batch, heads, time, time]`, are probed as `attention/scores`, so that [`crate::probe`] can measure
    /// them; a tensor that a handler returns for the scores is ignored.
    ///
    /// # Panics
    /// If `x` has another shape or type.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let (shape, AttentionConfig { width, heads, .. }) = (x.shape(), self.config);
        assert!(
            shape.rank() == 3 && shape[2] == width,
            "attention of {}{shape}: needs [batch, time, {width}]",
            x.dtype()
        );
        let (batch, time) = (shape[0], shape[1]);
        let _call = x.tape().call("attention", &[x]);
        let _scope = x.tape().enter("attention");
        let all = self.qkv.forward(x);
        let head = |i: usize| {
            let part = all.slice(2, i * width, width);
            part.reshape([batch, time, heads, width / heads]).swap_axes(1, 2)
        };
        let (q, k) = match &self.qk_norm {
            Some([q_norm, k_norm]) => (q_norm.forward(head(0)), k_norm.forward(head(1))),
            None => (head(0), head(1)),
        };
        let options = Attention {
            causal: self.config.causal,
            scale: Some(1.0 / ((width / heads) as f64).sqrt() / self.config.temperature),
            dropout: self.config.dropout.and_then(|dropout| dropout.of_weights(training)),
            ..Attention::default()
        };
        let (q, k) = (q.probe("queries"), k.probe("keys"));
        q.attention_scores(k, &options).probe("scores");
        let y = q.attention(k, head(2), &options).swap_axes(1, 2).reshape(shape);
        Dropout::optional(self.config.dropout, self.proj.forward(y), training)
    }
}
