//! Attention with shared heads, with rotary positions, and to another sequence.

use crate::{assert_close, declared, eval, numbers, read, write};
use wgrad::{Array, Attention, Session, Shape};
use wgrad_nn::{AttentionConfig, Builder, CrossAttention, Init, MultiHeadAttention, Rotary, RotaryPairs};

const INIT: Init = Init::Normal(0.7);

fn config() -> AttentionConfig {
    AttentionConfig { width: 8, heads: 4, ..AttentionConfig::default() }
}

fn attention(config: &AttentionConfig) -> (MultiHeadAttention, Session) {
    declared(|b| MultiHeadAttention::new(b, config, &INIT, &INIT))
}

/// Rows of a matrix or elements of a vector, `heads` blocks of them, each `times` times.
fn repeated(blocks: &[f64], heads: usize, times: usize) -> Vec<f64> {
    blocks.chunks(blocks.len() / heads).flat_map(|block| block.repeat(times)).collect()
}

#[test]
fn as_many_heads_of_keys_as_of_queries_are_plain_attention() {
    let x = numbers(Shape::from([2, 5, 8]), 1);
    let result = |kv_heads| {
        let (attention, mut session) = attention(&AttentionConfig { kv_heads, ..config() });
        eval(&mut session, &x, |x| attention.forward(x, true))
    };
    assert_eq!(result(Some(4)), result(None));
}

#[test]
fn shared_heads_are_heads_with_the_same_keys_and_values() {
    let x = numbers(Shape::from([2, 5, 8]), 1);
    let (width, head) = (8, 2);
    let variants = [
        config(),
        AttentionConfig { causal: false, qk_norm: true, ..config() },
        AttentionConfig { rotary: Some(Rotary::default()), ..config() },
    ];
    for (variant, kv_heads) in variants.into_iter().flat_map(|variant| [1, 2].map(|kv_heads| (variant, kv_heads))) {
        let (shared, mut few) = attention(&AttentionConfig { kv_heads: Some(kv_heads), ..variant });
        let (whole, mut many) = attention(&variant);
        let kv = kv_heads * head;
        let bias: Vec<f64> = (0..width + 2 * kv).map(|i| 0.3 * (i as f64).sin()).collect();
        write(&mut few, "qkv/bias", &bias);
        for (path, row) in [("qkv/weight", width), ("qkv/bias", 1)] {
            let of = read(&mut few, path);
            let (q, kv) = of.split_at(width * row);
            let (k, v) = kv.split_at(kv.len() / 2);
            let all = [q.to_vec(), repeated(k, kv_heads, 4 / kv_heads), repeated(v, kv_heads, 4 / kv_heads)].concat();
            write(&mut many, path, &all);
        }
        let want = eval(&mut many, &x, |x| whole.forward(x, true));
        let have = eval(&mut few, &x, |x| shared.forward(x, true));
        assert_close(&have.to_f64(), &want.to_f64());
    }
}

/// With rotary positions, a sequence that begins later gives the same: only distances matter.
#[test]
fn rotated_attention_does_not_see_absolute_positions() {
    let x = numbers(Shape::from([1, 6, 8]), 1);
    for pairs in [RotaryPairs::Neighbours, RotaryPairs::Halves] {
        let rotary = Rotary { pairs, ..Rotary::default() };
        let (layer, mut session) = attention(&AttentionConfig { heads: 2, rotary: Some(rotary), ..config() });
        let have = eval(&mut session, &x, |x| layer.forward(x, true));
        let want = eval(&mut session, &x, |x| {
            let t = x.tape();
            let all = layer.qkv.forward(x);
            let head = |i: usize| all.slice(2, 8 * i, 8).reshape([1, 6, 2, 4]).swap_axes(1, 2);
            let later = |x| rotary.forward_at(x, t.iota(6) + 1000.0);
            let options = Attention { causal: true, ..Attention::default() };
            let y = later(head(0)).attention(later(head(1)), head(2), &options);
            layer.proj.forward(y.swap_axes(1, 2).reshape([1, 6, 8]))
        });
        assert_close(&have.to_f64(), &want.to_f64());
    }
    let (plain, mut session) = attention(&config());
    let (rotated, mut other) = attention(&AttentionConfig { rotary: Some(Rotary::default()), ..config() });
    let plain = eval(&mut session, &x, |x| plain.forward(x, true)).to_f64();
    let rotated = eval(&mut other, &x, |x| rotated.forward(x, true)).to_f64();
    // The first position attends to itself alone.
    assert_close(&plain[..8], &rotated[..8]);
    assert!(plain[8..].iter().zip(&rotated[8..]).all(|(a, b)| a != b));
}

fn cross(b: Builder<'_>, config: &AttentionConfig, source_width: usize) -> CrossAttention {
    CrossAttention::new(b, &AttentionConfig { causal: false, ..*config }, source_width, &INIT, &INIT)
}

/// A layer's result for `x` and a source, and a mask of the source if there is one.
fn attend(
    layer: &CrossAttention,
    session: &mut Session,
    x: &Array,
    source: &Array,
    present: Option<&[bool]>,
) -> Vec<f64> {
    let shape = [source.shape()[0], source.shape()[1]];
    let present = present.map(|present| Array::new(shape, present.to_vec()));
    let mut inputs = vec![("x", x), ("source", source)];
    inputs.extend(present.iter().map(|present| ("present", present)));
    let y = session.eval(&inputs, |t| {
        let present = present.as_ref().map(|present| t.input_like("present", present));
        layer.forward(t.input_like("x", x), t.input_like("source", source), present, true)
    });
    y.expect("it runs").to_f64()
}

/// With plain loops: the mean of the source's values, weighted by `exp(q k / sqrt(d))`, over what is present.
#[test]
fn a_sequence_attends_to_another_of_another_width() {
    let (width, head, from) = (8, 2, 5);
    let (x, source) = (numbers(Shape::from([2, 3, width]), 1), numbers(Shape::from([2, 4, from]), 2));
    let all = [true; 8];
    let some = [true, false, true, true, false, false, true, false];
    for (kv_heads, present) in [(4, all), (4, some), (2, some), (1, all)] {
        let config = AttentionConfig { kv_heads: Some(kv_heads), ..config() };
        let (layer, mut session) = declared(|b| cross(b, &config, from));
        let kv_width = kv_heads * head;
        write(&mut session, "kv/bias", &(0..2 * kv_width).map(|i| 0.1 * i as f64).collect::<Vec<_>>());
        let have = attend(&layer, &mut session, &x, &source, (present != all).then_some(&present));

        let mut of = |path: &str| read(&mut session, path);
        let (q_w, kv_w, kv_b, proj) = (of("q/weight"), of("kv/weight"), of("kv/bias"), of("proj/weight"));
        let (x, source) = (x.to_f64(), source.to_f64());
        let product =
            |w: &[f64], v: &[f64], row: usize| -> f64 { (0..v.len()).map(|c| w[row * v.len() + c] * v[c]).sum() };
        let kv = |s: usize, row: usize| product(&kv_w, &source[s * from..][..from], row) + kv_b[row];
        let mut want = vec![];
        for i in 0..2 * 3 {
            let mut mixed = vec![];
            for h in 0..4 {
                let shared = h / (4 / kv_heads) * head;
                let score = |s: usize| {
                    let q = |c: usize| product(&q_w, &x[i * width..][..width], h * head + c);
                    let dot: f64 = (0..head).map(|c| q(c) * kv(s, shared + c)).sum();
                    (dot / (head as f64).sqrt()).exp()
                };
                let seen: Vec<usize> = (i / 3 * 4..i / 3 * 4 + 4).filter(|s| present[*s]).collect();
                let sum: f64 = seen.iter().map(|s| score(*s)).sum();
                let value =
                    |c: usize| seen.iter().map(|s| score(*s) * kv(*s, kv_width + shared + c)).sum::<f64>() / sum;
                mixed.extend((0..head).map(value));
            }
            want.extend((0..width).map(|row| product(&proj, &mixed, row)));
        }
        assert_close(&have, &want);
    }
}

#[test]
fn attention_to_itself_is_self_attention() {
    let x = numbers(Shape::from([2, 5, 8]), 1);
    let config = AttentionConfig { causal: false, qk_norm: true, ..config() };
    let (own, mut session) = attention(&config);
    let (to_source, mut other) = declared(|b| cross(b, &config, 8));
    let (qkv, proj) = (read(&mut session, "qkv/weight"), read(&mut session, "proj/weight"));
    write(&mut other, "q/weight", &qkv[..64]);
    write(&mut other, "kv/weight", &qkv[64..]);
    write(&mut other, "proj/weight", &proj);
    let want = eval(&mut session, &x, |x| own.forward(x, true)).to_f64();
    assert_close(&attend(&to_source, &mut other, &x, &x, None), &want);
}

#[test]
fn a_source_that_is_all_padding_gives_the_bias_of_the_projection() {
    let (x, source) = (numbers(Shape::from([1, 2, 8]), 1), numbers(Shape::from([1, 3, 5]), 2));
    let (layer, mut session) = declared(|b| cross(b, &config(), 5));
    write(&mut session, "proj/bias", &[0.5; 8]);
    assert_eq!(attend(&layer, &mut session, &x, &source, Some(&[false; 3])), [0.5; 16]);
}
