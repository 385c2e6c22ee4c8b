//! A decoder of transformer blocks that predicts the next symbol of a text.

use crate::layers::{
    Activation, AttentionConfig, BlockConfig, Builder, Dropout, Embedding, Init, LayerNorm, Linear, NormPlace,
    TransformerBlock,
};
use wgrad::{DType, Tensor};

/// Settings of a [`Gpt`].
#[derive(Clone, PartialEq, Debug)]
pub struct GptConfig {
    /// The number of symbols.
    pub vocabulary: usize,
    /// The longest sequence.
    pub context: usize,
    /// The width of a position.
    pub width: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The heads of each attention.
    pub heads: usize,
    /// The width between the layers of each feed-forward network.
    pub hidden: usize,
    /// The activation of each feed-forward network.
    pub activation: Activation,
    /// The place where blocks normalise.
    pub place: NormPlace,
    /// True if queries and keys are normalised.
    pub qk_norm: bool,
    /// The divisor of scores.
    pub temperature: f64,
    /// True if the output weights are those of the symbols (Press and Wolf 2017).
    pub tied: bool,
    /// The dropout of the embedding, of the attention weights, and of the outputs that blocks add.
    pub dropout: Option<Dropout>,
    /// True if the backward sweep recomputes the values within blocks instead of keeping them: see
    /// [`wgrad::Tape::checkpoint`].
    pub checkpoint: bool,
    /// The standard deviation of first weights. For weights whose outputs are added to the residual path, it is divided
    /// by `sqrt(2 layers)`, as in GPT-2 (Radford et al. 2019).
    pub std: f64,
}

impl GptConfig {
    /// Four Pre-LN blocks of width 128 with four heads, over 128 positions.
    pub fn small(vocabulary: usize) -> Self {
        Self {
            vocabulary,
            context: 128,
            width: 128,
            layers: 4,
            heads: 4,
            hidden: 512,
            activation: Activation::GeluTanh,
            place: NormPlace::Pre,
            qk_norm: false,
            temperature: 1.0,
            tied: false,
            dropout: None,
            checkpoint: false,
            std: 0.02,
        }
    }

    fn block(&self) -> BlockConfig {
        BlockConfig {
            attention: AttentionConfig {
                width: self.width,
                heads: self.heads,
                causal: true,
                qk_norm: self.qk_norm,
                temperature: self.temperature,
                dropout: self.dropout,
            },
            hidden: self.hidden,
            activation: self.activation,
            place: self.place,
            init: Init::Normal(self.std),
            residual_init: Init::Normal(self.std / (2.0 * self.layers as f64).sqrt()),
        }
    }
}

/// A decoder in the manner of GPT-2, with learnt positions.
#[derive(Clone, Debug)]
pub struct Gpt {
    /// A vector for each symbol.
    pub tokens: Embedding,
    /// A vector for each position.
    pub positions: Embedding,
    /// The blocks.
    pub blocks: Vec<TransformerBlock>,
    /// The norm after the last block; `None` if the blocks themselves end with a norm.
    pub norm: Option<LayerNorm>,
    /// The map from the width to the logits; `None` if it shares the weights of `tokens`.
    pub head: Option<Linear>,
    /// The settings.
    pub config: GptConfig,
}

impl Gpt {
    /// Declares `tokens`, `positions`, the blocks `block/0`, `block/1`, .., then `norm` and `head` if the configuration
    /// has them.
    ///
    /// # Panics
    /// If the heads do not divide the width, or the temperature is not positive.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &GptConfig) -> Self {
        let (init, width) = (Init::Normal(config.std), config.width);
        let tokens = Embedding::new(b.at("tokens"), config.vocabulary, width, &init);
        let positions = Embedding::new(b.at("positions"), config.context, width, &init);
        let mut block = b.at("block");
        let mut blocks = Vec::with_capacity(config.layers);
        for i in 0..config.layers {
            blocks.push(TransformerBlock::new(block.at(&i.to_string()), &config.block()));
        }
        let norm = (config.place == NormPlace::Pre).then(|| LayerNorm::new(b.at("norm"), width));
        let head = (!config.tied).then(|| Linear::without_bias(b.at("head"), width, config.vocabulary, &init));
        Self { tokens, positions, blocks, norm, head, config: config.clone() }
    }

    /// Maps symbols, u32 `[batch, time]`, to the logits of their successors, `[batch, time, vocabulary]`. The output of
    /// each block is probed as `block[i]/residual`. A symbol that is not in the vocabulary is an error when the program
    /// runs.
    ///
    /// # Panics
    /// If the symbols have another shape or type, or there are more positions than the context has.
    #[track_caller]
    pub fn forward<'t>(&self, symbols: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = symbols.tape().call("gpt", &[symbols]);
        self.forward_embedded(self.embed(symbols), training)
    }

    /// As [`Gpt::forward`], but other vectors, `before`, `[batch, before, width]`, come ahead of the symbols: the
    /// logits are `[batch, before + time, vocabulary]`.
    ///
    /// # Panics
    /// As [`Gpt::forward`]; if `before` has another shape or type.
    #[track_caller]
    pub fn forward_after<'t>(&self, before: Tensor<'t>, symbols: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = symbols.tape().call("gpt", &[before, symbols]);
        self.forward_embedded(Tensor::concat(&[before, self.embed(symbols)], 1), training)
    }

    /// The vectors of symbols.
    #[track_caller]
    fn embed<'t>(&self, symbols: Tensor<'t>) -> Tensor<'t> {
        let shape = symbols.shape();
        assert!(
            shape.rank() == 2 && symbols.dtype() == DType::U32,
            "gpt of {}{shape}: needs u32 [batch, time]",
            symbols.dtype()
        );
        self.tokens.forward(symbols)
    }

    /// Maps a vector for each position, `[batch, time, width]`, to logits.
    #[track_caller]
    fn forward_embedded<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let (tape, time, context) = (x.tape(), x.shape()[1], self.config.context);
        assert!(time <= context, "gpt: {time} positions, where the context has {context}");
        let positions = tape.param(self.positions.weight).slice(0, 0, time);
        let x = Dropout::optional(self.config.dropout, x + positions, training);
        let mut x = x;
        for (i, block) in self.blocks.iter().enumerate() {
            let _scope = tape.enter_turn("block", i);
            x = match self.config.checkpoint {
                true => tape.checkpoint(|| block.forward(x, training)),
                false => block.forward(x, training),
            };
            x = x.probe("residual");
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        match &self.head {
            Some(head) => head.forward(x),
            None => x.matmul_t(tape.param(self.tokens.weight)),
        }
    }

    /// The mean cross-entropy of symbols against their successors, both u32 `[batch, time]`, in nats per symbol.
    ///
    /// # Panics
    /// As [`Gpt::forward`]; if the successors have another shape.
    #[track_caller]
    pub fn loss<'t>(&self, symbols: Tensor<'t>, successors: Tensor<'t>, training: bool) -> Tensor<'t> {
        let rows = successors.numel();
        let logits = self.forward(symbols, training);
        logits.reshape([rows, self.config.vocabulary]).cross_entropy(successors.reshape([rows]))
    }
}
