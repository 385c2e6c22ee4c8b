//! Attention that cannot be: settings, sequences and caches that do not fit.

use super::{refusal, tape};
use wgrad::{DType, Store};
use wgrad_nn::{AttentionConfig, Builder, CrossAttention, Gpt, GptConfig, Init, KvCache, MultiHeadAttention, Rotary};

const INIT: Init = Init::Ones;

fn config() -> AttentionConfig {
    AttentionConfig { width: 8, heads: 4, ..AttentionConfig::default() }
}

/// Requires a refusal at a line of this file that begins with this text.
#[track_caller]
fn assert_refused(text: &str, f: impl FnOnce()) {
    let refused = refusal(f);
    assert!(refused.message.starts_with(text), "{}", refused.message);
    assert_eq!(refused.file, file!(), "{}", refused.message);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let rotary = Some(Rotary::default());
    const OF_TWO: &str = "cross_attention: the positions of two sequences do not compare";
    for (config, source_width, text) in [
        (
            AttentionConfig { kv_heads: Some(3), ..config() },
            None,
            "attention: 4 heads of queries share 3 heads of keys",
        ),
        (
            AttentionConfig { kv_heads: Some(0), ..config() },
            None,
            "attention: 4 heads of queries share 0 heads of keys",
        ),
        (
            AttentionConfig { width: 12, rotary, ..config() },
            None,
            "attention: rotary positions turn pairs, and heads have a width of 3",
        ),
        (config(), Some(5), OF_TWO),
        (AttentionConfig { causal: false, rotary, ..config() }, Some(5), OF_TWO),
        (AttentionConfig { heads: 3, causal: false, ..config() }, Some(5), "cross_attention: 3 heads of a width of 8"),
    ] {
        let mut store = Store::new();
        let b = Builder::new(&mut store, 0);
        assert_refused(text, || match source_width {
            Some(width) => _ = CrossAttention::new(b, &config, width, &INIT, &INIT),
            None => _ = MultiHeadAttention::new(b, &config, &INIT, &INIT),
        });
    }
}

#[test]
fn sequences_that_do_not_fit_are_refused() {
    let mut store = Store::new();
    let config = AttentionConfig { causal: false, ..config() };
    let layer = CrossAttention::new(Builder::new(&mut store, 0), &config, 5, &INIT, &INIT);
    for (x, source, present, needs) in [
        ([2, 3, 8], [1, 4, 5], None, "needs [batch, time, 8] and [batch, source time, 5]"),
        ([2, 3, 5], [2, 4, 5], None, "needs [batch, time, 8] and [batch, source time, 5]"),
        ([2, 3, 8], [2, 4, 8], None, "needs [batch, time, 8] and [batch, source time, 5]"),
        ([2, 3, 8], [2, 4, 5], Some([2, 3]), "needs a mask bool[2, 4], not bool[2, 3]"),
    ] {
        let t = tape(store.layout());
        let [x, source] = [("x", x), ("source", source)].map(|(name, shape)| t.input(name, shape, DType::F32));
        let present = present.map(|shape| t.input("present", shape, DType::Bool));
        let text = format!("cross_attention of f32{} and f32{}: {needs}", x.shape(), source.shape());
        assert_refused(&text, || _ = layer.forward(x, source, present, true));
    }
}

#[test]
fn a_cache_of_another_model_is_refused() {
    let one = GptConfig { context: 9, width: 8, layers: 2, hidden: 12, ..GptConfig::small(7) };
    for (other, batch, text) in [
        (one.clone(), 3, "kv_cache of f32[3, 4, 9, 2]: has no room for rows of f32[2, 4, 1, 2]"),
        (
            GptConfig { kv_heads: Some(2), ..one.clone() },
            2,
            "kv_cache of f32[2, 2, 9, 2]: has no room for rows of f32[2, 4, 1, 2]",
        ),
        (GptConfig { layers: 1, ..one.clone() }, 2, "gpt: the cache has 1 layers, and the model 2"),
    ] {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let (model, other) = (Gpt::new(b.at("model"), &one), Gpt::new(b.at("other"), &other));
        let cache = other.cache(b.at("other"), batch);
        let t = tape(store.layout());
        let symbols = t.input("symbols", [2, 1], DType::U32);
        assert_refused(text, || _ = model.forward_cached(symbols, &cache));
    }
}

#[test]
fn a_cache_is_for_causal_attention_and_has_so_many_layers() {
    for (causal, layer, time, text) in [
        (false, 0, 1, "attention: without `causal`, past positions attend to new ones"),
        (true, 1, 1, "kv_cache: there is no layer 1 of 1"),
        (true, 0, 5, "kv_cache: 5 positions, where the context has 4"),
    ] {
        let (mut store, config) = (Store::new(), AttentionConfig { causal, ..config() });
        let mut b = Builder::new(&mut store, 0);
        let attention = MultiHeadAttention::new(b.at("attention"), &config, &INIT, &INIT);
        let cache = KvCache::new(b.at("attention"), &config, 1, 1, 4);
        let t = tape(store.layout());
        let x = t.input("x", [1, time, 8], DType::F32);
        assert_refused(text, || _ = attention.forward_cached(x, &cache, layer));
    }
}
