//! A decoder of transformer blocks that predicts the next symbol of a text.

use crate::layers::{
    Activation, AttentionConfig, BlockConfig, Builder, Dropout, Embedding, Init, KvCache, LayerNorm, Linear, NormPlace,
    Rotary, TransformerBlock,
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
    /// The heads of keys and values, if fewer than `heads`: see [`AttentionConfig::kv_heads`].
    pub kv_heads: Option<usize>,
    /// The width between the layers of each feed-forward network.
    pub hidden: usize,
    /// The activation of each feed-forward network.
    pub activation: Activation,
    /// The place where blocks normalise.
    pub place: NormPlace,
    /// True if queries and keys are normalised.
    pub qk_norm: bool,
    /// Rotary positions, in place of a learnt vector for each position.
    pub rotary: Option<Rotary>,
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
            kv_heads: None,
            hidden: 512,
            activation: Activation::GeluTanh,
            place: NormPlace::Pre,
            qk_norm: false,
            rotary: None,
            temperature: 1.0,
            tied: false,
            dropout: None,
            checkpoint: false,
            std: 0.02,
        }
    }

    fn attention(&self) -> AttentionConfig {
        AttentionConfig {
            width: self.width,
            heads: self.heads,
            kv_heads: self.kv_heads,
            causal: true,
            qk_norm: self.qk_norm,
            rotary: self.rotary,
            temperature: self.temperature,
            dropout: self.dropout,
        }
    }

    fn block(&self) -> BlockConfig {
        BlockConfig {
            attention: self.attention(),
            hidden: self.hidden,
            activation: self.activation,
            place: self.place,
            init: Init::Normal(self.std),
            residual_init: Init::Normal(self.std / (2.0 * self.layers as f64).sqrt()),
        }
    }
}

/// A decoder in the manner of GPT-2, with learnt positions, or with rotary ones.
#[derive(Clone, Debug)]
pub struct Gpt {
    /// A vector for each symbol.
    pub tokens: Embedding,
    /// A vector for each position; `None` with rotary positions.
    pub positions: Option<Embedding>,
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
    /// Declares `tokens`, `positions` unless they are rotary, the blocks `block/0`, `block/1`, .., then `norm` and
    /// `head` if the configuration has them.
    ///
    /// # Panics
    /// As [`crate::MultiHeadAttention::new`].
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &GptConfig) -> Self {
        let (init, width) = (Init::Normal(config.std), config.width);
        let tokens = Embedding::new(b.at("tokens"), config.vocabulary, width, &init);
        let learnt = config.rotary.is_none();
        let positions = learnt.then(|| Embedding::new(b.at("positions"), config.context, width, &init));
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
        self.forward_embedded(self.embed(symbols), training, None)
    }

    /// Declares a cache for sampling so many texts at once: see [`Gpt::forward_cached`]. The builder has the type of
    /// the model's parameters.
    #[track_caller]
    pub fn cache(&self, b: Builder<'_>, batch: usize) -> KvCache {
        KvCache::new(b, &self.config.attention(), self.blocks.len(), batch, self.config.context)
    }

    /// As [`Gpt::forward`] in evaluation, for the symbols that follow those in the cache: their logits cost as much as
    /// these symbols alone, whatever came before. One program reads a prompt, another one each symbol after it:
    ///
    /// ```
    /// use wgrad::{Array, DType, Session, Store};
    /// use wgrad_cpu::CpuBackend;
    /// use wgrad_nn::{Builder, Gpt, GptConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut store = Store::new();
    /// let model = Gpt::new(Builder::new(&mut store, 0), &GptConfig { context: 8, width: 16, ..GptConfig::small(5) });
    /// let cache = model.cache(Builder::new(&mut store, 0), 1);
    /// let mut session = Session::new(Box::new(CpuBackend::new(1)?), store)?;
    /// let prompt = session.record(|t| {
    ///     cache.reset(t);
    ///     t.tap("logits", model.forward_cached(t.input("symbols", [1, 3], DType::U32), &cache).index(1, 2));
    /// })?;
    /// let next = session.record(|t| {
    ///     t.tap("logits", model.forward_cached(t.input("symbols", [1, 1], DType::U32), &cache).index(1, 0));
    /// })?;
    /// let mut text = vec![3, 1, 4];
    /// let mut taps = session.run_now(&prompt, &[("symbols", &Array::new([1, 3], text.clone()))])?;
    /// while text.len() < 8 {
    ///     let logits = taps.get("logits").expect("tapped").to_f64();
    ///     let likeliest = (0..5u32).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]));
    ///     text.push(likeliest.expect("there are symbols"));
    ///     taps = session.run_now(&next, &[("symbols", &Array::new([1, 1], text[text.len() - 1..].to_vec()))])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The logits are `[batch, time, vocabulary]` for symbols `[batch, time]`. A run that exceeds the context fails: see
    /// [`KvCache`].
    ///
    /// # Panics
    /// As [`Gpt::forward`]; if the cache is for another number of texts, or another model.
    #[track_caller]
    pub fn forward_cached<'t>(&self, symbols: Tensor<'t>, cache: &KvCache) -> Tensor<'t> {
        let layers = [cache.layers.len(), self.blocks.len()];
        assert!(layers[0] == layers[1], "gpt: the cache has {} layers, and the model {}", layers[0], layers[1]);
        let tape = symbols.tape();
        let _call = tape.call("gpt", &[symbols]);
        let logits = self.forward_embedded(self.embed(symbols), false, Some(cache));
        cache.advance(tape, symbols.shape()[1]);
        logits
    }

    /// As [`Gpt::forward`], but other vectors, `before`, `[batch, before, width]`, come ahead of the symbols: the
    /// logits are `[batch, before + time, vocabulary]`.
    ///
    /// # Panics
    /// As [`Gpt::forward`]; if `before` has another shape or type.
    #[track_caller]
    pub fn forward_after<'t>(&self, before: Tensor<'t>, symbols: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = symbols.tape().call("gpt", &[before, symbols]);
        self.forward_embedded(Tensor::concat(&[before, self.embed(symbols)], 1), training, None)
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

    /// Maps a vector for each position, `[batch, time, width]`, to logits. The first position is 0, or the one after
    /// those in a cache.
    #[track_caller]
    fn forward_embedded<'t>(&self, x: Tensor<'t>, training: bool, cache: Option<&KvCache>) -> Tensor<'t> {
        let (tape, time, context) = (x.tape(), x.shape()[1], self.config.context);
        assert!(time <= context, "gpt: {time} positions, where the context has {context}");
        let placed = match (&self.positions, cache) {
            (Some(learnt), None) => x + tape.param(learnt.weight).slice(0, 0, time),
            (Some(learnt), Some(cache)) => x + learnt.forward(cache.positions(tape, time)),
            (None, _) => x,
        };
        let mut x = Dropout::optional(self.config.dropout, placed, training);
        for (i, block) in self.blocks.iter().enumerate() {
            let _scope = tape.enter_turn("block", i);
            x = match (cache, self.config.checkpoint) {
                (Some(cache), _) => block.forward_cached(x, cache, i),
                (None, true) => tape.checkpoint(|| block.forward(x, training)),
                (None, false) => block.forward(x, training),
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
