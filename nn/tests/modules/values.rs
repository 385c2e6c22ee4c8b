//! What modules compute, against formulas written out.

use crate::{assert_close, declared, eval, numbers, read, session, write};
use approx::abs_diff_eq;
use wgrad::{Array, DType, Rng, Session, Store, Tape};
use wgrad_nn::{
    AttentionConfig, BlockKind, Builder, Conv2d, Dropout, Gpt, GptConfig, GroupNorm, Init, LayerNorm,
    MultiHeadAttention, NormKind, NormPlace, ResNet, ResNetConfig, RmsNorm, Scale, Summary, probe,
};

#[test]
fn a_convolution_adds_a_bias_to_each_channel() {
    let (conv, mut session) = declared(|b| Conv2d::new(b, 1, 2, 2, wgrad::Conv2d::default(), &Init::Zeros));
    write(&mut session, "weight", &[1.0, 0.0, 0.0, -1.0, 0.0, 2.0, 0.0, 0.0]);
    write(&mut session, "bias", &[10.0, 20.0]);
    let x = Array::new([1, 1, 2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 7.0]);
    let y = eval(&mut session, &x, |x| conv.forward(x));
    assert_eq!((y.shape().to_vec(), y.to_f64()), (vec![1, 2, 1, 2], vec![6.0, 5.0, 24.0, 26.0]));
}

#[test]
fn norms_follow_their_formulas() {
    let x = numbers([2, 4], 0);
    let (gain, shift) = ([0.5, -1.0, 2.0, 1.5], [0.1, 0.2, -0.3, 0.0]);
    let rows: Vec<Vec<f64>> = x.to_f64().chunks(4).map(<[f64]>::to_vec).collect();
    let normed = |row: &[f64], centre: bool| {
        let mean = if centre { row.iter().sum::<f64>() / row.len() as f64 } else { 0.0 };
        let square = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / row.len() as f64;
        row.iter().map(|v| (v - mean) / (square + 1e-5).sqrt()).collect::<Vec<_>>()
    };
    let affine = |row: Vec<f64>, shift: &[f64]| (0..4).map(|i| row[i] * gain[i] + shift[i]).collect::<Vec<_>>();

    let (norm, mut session) = declared(|b| LayerNorm::new(b, 4));
    write(&mut session, "weight", &gain);
    write(&mut session, "bias", &shift);
    let want: Vec<f64> = rows.iter().flat_map(|row| affine(normed(row, true), &shift)).collect();
    assert_close(&eval(&mut session, &x, |x| norm.forward(x)).to_f64(), &want);

    let (norm, mut session) = declared(|b| RmsNorm::new(b, 4));
    write(&mut session, "weight", &gain);
    let want: Vec<f64> = rows.iter().flat_map(|row| affine(normed(row, false), &[0.0; 4])).collect();
    assert_close(&eval(&mut session, &x, |x| norm.forward(x)).to_f64(), &want);

    let (norm, mut session) = declared(|b| GroupNorm::new(b, 2, 4));
    write(&mut session, "weight", &gain);
    write(&mut session, "bias", &shift);
    let grouped = |row: &Vec<f64>| [normed(&row[..2], true), normed(&row[2..], true)].concat();
    let want: Vec<f64> = rows.iter().flat_map(|row| affine(grouped(row), &shift)).collect();
    assert_close(&eval(&mut session, &x, |x| norm.forward(x)).to_f64(), &want);
}

#[test]
fn a_scale_multiplies() {
    let (scale, mut session) = declared(|b| Scale::new(b, -2.5));
    let y = eval(&mut session, &Array::new([2], vec![1.0, 3.0]), |x| scale.forward(x));
    assert_eq!(y.to_f64(), [-2.5, -7.5]);
}

/// Attention with plain loops: `out[b, i, h]` is the mean of values over the keys that `i` sees, weighted by
/// `exp(q k / sqrt(d) / temperature)`.
#[test]
fn attention_is_a_weighted_mean_of_values() {
    let (width, heads, time, d) = (4, 2, 3, 2);
    for (causal, temperature) in [(true, 1.0), (false, 3.0)] {
        let config = AttentionConfig { width, heads, causal, temperature, ..AttentionConfig::default() };
        let init = Init::Normal(0.7);
        let (attention, mut session) = declared(|b| MultiHeadAttention::new(b, &config, &init, &init));
        let bias: Vec<f64> = (0..12).map(|i| 0.1 * i as f64).collect();
        write(&mut session, "qkv/bias", &bias);
        let x = numbers([1, time, width], 3);
        let have = eval(&mut session, &x, |x| attention.forward(x, true)).to_f64();

        let (w, proj, x) = (read(&mut session, "qkv/weight"), read(&mut session, "proj/weight"), x.to_f64());
        let product = |w: &[f64], x: &[f64], row: usize| (0..width).map(|c| w[row * width + c] * x[c]).sum::<f64>();
        let qkv = |t: usize, row: usize| product(&w, &x[t * width..], row) + bias[row];
        let mut want = vec![];
        for i in 0..time {
            let mut mixed = vec![];
            for h in 0..heads {
                let score = |j: usize| {
                    let dot: f64 = (0..d).map(|c| qkv(i, h * d + c) * qkv(j, width + h * d + c)).sum();
                    (dot / (d as f64).sqrt() / temperature).exp()
                };
                let seen = if causal { i + 1 } else { time };
                let sum: f64 = (0..seen).map(score).sum();
                let value = |c: usize| (0..seen).map(|j| score(j) * qkv(j, 2 * width + h * d + c)).sum::<f64>() / sum;
                mixed.extend((0..d).map(value));
            }
            want.extend((0..width).map(|row| product(&proj, &mixed, row)));
        }
        assert_close(&have, &want);
    }
}

#[test]
fn normalised_queries_and_keys_bound_the_scores() {
    for (qk_norm, bounded) in [(false, false), (true, true)] {
        let config = AttentionConfig { width: 8, heads: 2, qk_norm, ..AttentionConfig::default() };
        let init = Init::Normal(30.0);
        let (attention, mut session) = declared(|b| MultiHeadAttention::new(b, &config, &init, &init));
        let x = numbers([2, 5, 8], 0);
        let step = session.record(|t| {
            let x = t.input_like("x", &x);
            t.with_probe(
                |path, x| {
                    if path == "attention/scores" {
                        let (low, high) = probe::range(x);
                        x.tape().tap("low", low);
                        x.tape().tap("high", high);
                        x.tape().tap("entropy", probe::entropy(x));
                    }
                    x
                },
                || attention.forward(x, true),
            );
        });
        session.run(&step.expect("it compiles"), &[("x", &x)]).expect("it runs");
        session.wait().expect("it has run");
        let taps = session.taps().expect("they have arrived").remove(0);
        let tap = |name| taps.scalar(name).expect("tapped");
        // Unit rows of width 4 have norm 2: a score is at most 2 * 2 / sqrt(4).
        let inside = tap("low").abs().max(tap("high")) <= 2.0;
        assert_eq!(inside, bounded, "{} to {}", tap("low"), tap("high"));
        // The first query sees one key, the last five: at most the mean of their logarithms.
        let most = (1..=5).map(|n| (n as f64).ln()).sum::<f64>() / 5.0;
        assert!((0.0..=most).contains(&tap("entropy")) && (tap("entropy") > 0.3) == bounded, "{}", tap("entropy"));
    }
}

#[test]
fn probes_count_and_measure() {
    let mut session = session(Store::new());
    let x = Array::new([2, 2], vec![3.0, 4.0, 0.0, f64::NEG_INFINITY]);
    let range = eval(&mut session, &x, |x| {
        let (low, high) = probe::range(x);
        wgrad::Tensor::stack(&[low, high])
    });
    assert_eq!(range.to_f64(), [0.0, 4.0]);
    assert_eq!(eval(&mut session, &x, probe::zero_fraction).item(0), 0.25);
    let entropy = eval(&mut session, &Array::new([2, 2], vec![1.0, 1.0, 5.0, f64::NEG_INFINITY]), probe::entropy);
    assert_close(&entropy.to_f64(), &[2f64.ln() / 2.0]);
    let norm = eval(&mut session, &Array::new([2, 2], vec![3.0, 4.0, 0.0, -1.0]), probe::row_norm);
    assert_close(&norm.to_f64(), &[3.0]);
}

fn gpt(change: impl FnOnce(&mut GptConfig)) -> GptConfig {
    let mut config =
        GptConfig { context: 6, width: 8, layers: 2, heads: 2, hidden: 12, std: 0.4, ..GptConfig::small(7) };
    change(&mut config);
    config
}

#[test]
fn a_later_symbol_changes_nothing_before_it() {
    for place in [NormPlace::Pre, NormPlace::Post] {
        let (model, mut session) = declared(|b| Gpt::new(b, &gpt(|c| c.place = place)));
        let first = vec![3u32, 1, 4, 1, 5, 2];
        let logits = |session: &mut Session, symbols: &[u32]| {
            let symbols = Array::new([1, symbols.len()], symbols.to_vec());
            eval(session, &symbols, |x| model.forward(x, false)).to_f64()
        };
        let whole = logits(&mut session, &first);
        for changed in 0..6 {
            let mut other = first.clone();
            other[changed] = 6;
            let other = logits(&mut session, &other);
            assert_eq!(whole[..changed * 7], other[..changed * 7], "{place:?}, {changed}");
            assert!(
                whole[changed * 7..].iter().zip(&other[changed * 7..]).all(|(a, b)| a != b),
                "{place:?}, {changed}"
            );
        }
        assert_close(&logits(&mut session, &first[..4]), &whole[..28]);
    }
}

#[test]
fn post_norm_ends_blocks_with_a_norm_and_pre_norm_the_stack() {
    for (place, rows_are_normal) in [(NormPlace::Pre, false), (NormPlace::Post, true)] {
        let (model, mut session) = declared(|b| Gpt::new(b, &gpt(|c| c.place = place)));
        assert_eq!(model.norm.is_none(), rows_are_normal);
        let y = eval(&mut session, &numbers([2, 3, 8], 1), |x| model.blocks[0].forward(x, false));
        assert_eq!(**y.shape(), [2, 3, 8]);
        let normal = y.to_f64().chunks(8).all(|row| {
            let mean = row.iter().sum::<f64>() / 8.0;
            let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 8.0;
            abs_diff_eq!(mean, 0.0, epsilon = 1e-9) && abs_diff_eq!(var, 1.0, epsilon = 1e-2)
        });
        assert_eq!(normal, rows_are_normal, "{place:?}");
    }
}

#[test]
fn tied_output_weights_are_those_of_the_symbols() {
    let count = |tied| {
        let (model, session) = declared(|b| Gpt::new(b, &gpt(|c| c.tied = tied)));
        assert_eq!(model.head.is_none(), tied);
        Summary::new(session.layout(), &Default::default()).elements()
    };
    assert_eq!(count(false) - count(true), 7 * 8);
}

#[test]
fn dropout_acts_in_training_alone() {
    let mut store = Store::new();
    let dropout = Dropout::new(0.4, Rng::new(&mut store, "dropout", 1));
    let model = |b| Gpt::new(b, &gpt(|c| c.dropout = Some(dropout)));
    let dropped = model(Builder::new(&mut store, 5).with_dtype(DType::F64));
    let (plain, mut without) = declared(|b| Gpt::new(b, &gpt(|_| ())));
    let mut with = session(store);
    let symbols = Array::new([2, 4], vec![1u32, 2, 3, 4, 5, 6, 0, 1]);
    let want = eval(&mut without, &symbols, |x| plain.forward(x, true)).to_f64();
    assert_eq!(eval(&mut with, &symbols, |x| dropped.forward(x, false)).to_f64(), want);
    let trained = eval(&mut with, &symbols, |x| dropped.forward(x, true)).to_f64();
    assert!(trained.iter().zip(&want).all(|(a, b)| a != b));
}

#[test]
fn scores_are_computed_for_those_who_look() {
    let mut store = Store::new();
    let config = AttentionConfig { width: 8, heads: 2, ..AttentionConfig::default() };
    let init = Init::Normal(0.1);
    let attention = MultiHeadAttention::new(Builder::new(&mut store, 0), &config, &init, &init);
    let t = Tape::new(store.into_parts().0);
    let x = t.input("x", [2, 4, 8], DType::F32);
    t.tap("y", attention.forward(x, true));
    // Of what is probed, nobody looks at anything.
    let program = t.finish().lowered(false, |_, _| true);
    let count = |name: &str| program.nodes().iter().filter(|node| node.op.name() == name).count();
    assert_eq!([count("attention"), count("exp"), count("matmul")], [2, 0, 2], "\n{program}");
}

#[test]
fn residual_networks_are_as_large_as_published_ones() {
    // PyTorch's ResNet-20 with 1x1 shortcuts has 272,474 parameters; the others are added up by hand likewise.
    for (depth, block, elements, blocks) in [
        (20, BlockKind::Basic, 272_474, 9),
        (56, BlockKind::Basic, 855_770, 27),
        (29, BlockKind::Bottleneck, 313_114, 9),
    ] {
        let config = ResNetConfig::cifar(depth, block, 3, 10).expect("such a depth");
        assert_eq!(config.depth(), depth);
        let mut store = Store::new();
        let model = ResNet::new(Builder::new(&mut store, 0), &config);
        assert_eq!(model.blocks.len(), blocks);
        let summary = Summary::new(store.layout(), &store.params());
        assert_eq!(summary.elements(), elements, "depth {depth}");
    }
}

#[test]
fn a_depth_without_a_network_says_which_there_are() {
    let error = |depth, block| ResNetConfig::cifar(depth, block, 3, 10).expect_err("no such depth").to_string();
    assert_eq!(error(21, BlockKind::Basic), "there is no network of depth 21: depths are 6 n + 2, such as 20 or 56");
    assert_eq!(
        error(21, BlockKind::Bottleneck),
        "there is no network of depth 21: depths are 9 n + 2, such as 29 or 83"
    );
    error(2, BlockKind::Basic);
}

#[test]
fn plain_networks_have_no_shortcuts_and_without_norms_there_are_biases() {
    let paths = |residual, norm| {
        let config = ResNetConfig { residual, norm, ..ResNetConfig::small(8, BlockKind::Basic, 1, 10).expect("8") };
        let mut store = Store::new();
        ResNet::new(Builder::new(&mut store, 0), &config);
        store.layout().params().map(|(_, p)| p.path.clone()).collect::<Vec<_>>()
    };
    let has = |paths: &[String], what: &str| paths.iter().any(|path| path.contains(what));
    let (batch, none) = (NormKind::BATCH, NormKind::None);
    let (residual, plain, bare) = (paths(true, batch), paths(false, batch), paths(true, none));
    assert!(has(&residual, "stage/1/0/shortcut/norm/weight") && !has(&residual, "conv/bias"));
    assert!(!has(&plain, "shortcut") && has(&plain, "norm/bias"));
    assert!(has(&bare, "stage/2/0/shortcut/conv/bias") && has(&bare, "stem/conv/bias") && !has(&bare, "norm"));
}

/// At first what the convolutions on the longest way do is nothing, as long as there is another way.
#[test]
fn a_silent_block_begins_as_its_shortcut() {
    let features = |silent, residual, seed| {
        let sizes = ResNetConfig::small(14, BlockKind::Basic, 1, 4).expect("14");
        let mut store = Store::new();
        let model = ResNet::new(Builder::new(&mut store, seed), &ResNetConfig { silent, residual, ..sizes });
        // The shortcuts' weights and the stem's are those of another seed, the others are not.
        let other = ResNet::new(Builder::new(&mut store, 7).at("other"), &model.config);
        let mut mixed = model.clone();
        mixed.stem = other.stem;
        for (block, of) in mixed.blocks.iter_mut().zip(other.blocks) {
            block.shortcut = of.shortcut;
        }
        let x = Array::new([2, 1, 8, 8], (0..128).map(|i| (i * i % 23) as f32 / 10.0).collect::<Vec<f32>>());
        let mut session = session(store);
        session.eval(&[("x", &x)], |t| mixed.features(t.input_like("x", &x), true)).expect("it runs").to_f64()
    };
    assert_eq!(features(true, true, 0), features(true, true, 1));
    assert_ne!(features(false, true, 0), features(false, true, 1), "a loud block is not");
    assert_ne!(features(true, false, 0), features(true, false, 1), "without a shortcut nothing is silent");
}

#[test]
fn activations_inputs_are_probed_layer_by_layer() {
    let config = ResNetConfig::small(8, BlockKind::Basic, 1, 4).expect("8");
    let mut store = Store::new();
    let model = ResNet::new(Builder::new(&mut store, 0), &config);
    let t = Tape::new(store.into_parts().0);
    let x = t.input("x", [2, 1, 8, 8], DType::F32);
    let y = t.with_probe(
        |path, z| {
            z.tape().tap(path, z);
            z
        },
        || model.forward(x, true),
    );
    assert_eq!(y.shape(), [2, 4].into());
    let taps: Vec<String> = t.finish().taps().iter().map(|tap| tap.name.clone()).collect();
    assert_eq!(taps.len(), 7);
    assert_eq!(taps[..3], ["stem/z", "block[0]/unit[0]/z", "block[0]/unit[1]/z"]);
}

#[test]
#[should_panic(expected = "3 heads of a width of 8")]
fn heads_divide_the_width() {
    let config = AttentionConfig { width: 8, heads: 3, ..AttentionConfig::default() };
    declared(|b| MultiHeadAttention::new(b, &config, &Init::Zeros, &Init::Zeros));
}

#[test]
#[should_panic(expected = "7 positions, where the context has 6")]
fn a_context_is_not_exceeded() {
    let (model, mut session) = declared(|b| Gpt::new(b, &gpt(|_| ())));
    eval(&mut session, &Array::zeros([1, 7], DType::U32), |x| model.forward(x, false));
}
