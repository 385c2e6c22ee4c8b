//! The block of a transformer: attention and a feed-forward network, each with a residual connection and a norm.

use super::{
    Activation, AttentionConfig, Builder, Dropout, Init, KvCache, LayerNorm, Linear, MultiHeadAttention, kv_cache::Past,
};
use wgrad::Tensor;

/// Two linear layers with an activation between them, position by position.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `[hidden, width]`.
    pub up: Linear,
    /// `[width, hidden]`.
    pub down: Linear,
    /// The activation between both.
    pub activation: Activation,
    /// Dropout of the activations.
    pub dropout: Option<Dropout>,
}

impl FeedForward {
    /// Declares `up` and `down`, each with the given first weights, and biases of zeros; without dropout.
    #[track_caller]
    pub fn new(
        mut b: Builder<'_>,
        width: usize,
        hidden: usize,
        activation: Activation,
        up: &Init,
        down: &Init,
    ) -> Self {
        let up = Linear::new(b.at("up"), width, hidden, up);
        let down = Linear::new(b.at("down"), hidden, width, down);
        Self { up, down, activation, dropout: None }
    }

    /// Maps `[.., width]` to the same shape. The input of the activation is probed as `ffn/z`.
    ///
    /// # Panics
    /// As [`Linear::forward`].
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = x.tape().call("feed_forward", &[x]);
        let _scope = x.tape().enter("ffn");
        let y = self.down.forward(self.activation.probed(self.up.forward(x)));
        Dropout::optional(self.dropout, y, training)
    }
}

/// The place where a block normalises.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum NormPlace {
    /// The input of each part, `x + f(norm(x))`: gradients reach every block by the residual path (Xiong et al. 2020).
    #[default]
    Pre,
    /// The sum, `norm(x + f(x))`, as first published (Vaswani et al. 2017): deep stacks need a warm-up.
    Post,
}

/// Settings of a [`TransformerBlock`].
#[derive(Clone, PartialEq, Debug)]
pub struct BlockConfig {
    /// The settings of the attention; its dropout applies to the feed-forward network too.
    pub attention: AttentionConfig,
    /// The width between the two layers of the feed-forward network.
    pub hidden: usize,
    /// The activation of the feed-forward network.
    pub activation: Activation,
    /// The place where the block normalises.
    pub place: NormPlace,
    /// First values of weights.
    pub init: Init,
    /// First values of the weights whose outputs are added to the residual path; deep stacks need smaller ones.
    pub residual_init: Init,
}

/// Attention, then a feed-forward network, each added to its input.
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    /// The norm of the attention.
    pub norm1: LayerNorm,
    /// The attention.
    pub attention: MultiHeadAttention,
    /// The norm of the feed-forward network.
    pub norm2: LayerNorm,
    /// The feed-forward network.
    pub ffn: FeedForward,
    /// The place where the block normalises.
    pub place: NormPlace,
}

impl TransformerBlock {
    /// Declares `norm1`, `attention`, `norm2` and `ffn`.
    ///
    /// # Panics
    /// As [`MultiHeadAttention::new`].
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &BlockConfig) -> Self {
        let BlockConfig { attention, hidden, activation, place, init, residual_init } = config;
        let width = attention.width;
        let norm1 = LayerNorm::new(b.at("norm1"), width);
        let norm2 = LayerNorm::new(b.at("norm2"), width);
        let dropout = attention.dropout;
        let ffn = FeedForward::new(b.at("ffn"), width, *hidden, *activation, init, residual_init);
        let attention = MultiHeadAttention::new(b.at("attention"), attention, init, residual_init);
        Self { norm1, attention, norm2, ffn: FeedForward { dropout, ..ffn }, place: *place }
    }

    /// Maps `[batch, time, width]` to the same shape.
    ///
    /// # Panics
    /// If `x` has another shape or type.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        self.run(x, training, None)
    }

    /// As [`TransformerBlock::forward`] in evaluation, for new positions after those in a cache: see
    /// [`MultiHeadAttention::forward_cached`].
    ///
    /// # Panics
    /// As [`MultiHeadAttention::forward_cached`].
    #[track_caller]
    pub fn forward_cached<'t>(&self, x: Tensor<'t>, cache: &KvCache, layer: usize) -> Tensor<'t> {
        let time = x.shape().get(1).copied().unwrap_or(0);
        self.run(x, false, Some(cache.past(x.tape(), layer, time)))
    }

    #[track_caller]
    fn run<'t>(&self, x: Tensor<'t>, training: bool, past: Option<Past<'t>>) -> Tensor<'t> {
        let _call = x.tape().call("transformer_block", &[x]);
        match self.place {
            NormPlace::Pre => {
                let x = x + self.attention.run(self.norm1.forward(x), training, past);
                x + self.ffn.forward(self.norm2.forward(x), training)
            }
            NormPlace::Post => {
                let x = self.norm1.forward(x + self.attention.run(x, training, past));
                self.norm2.forward(x + self.ffn.forward(x, training))
            }
        }
    }
}
