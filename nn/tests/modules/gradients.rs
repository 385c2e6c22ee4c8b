//! The gradient of every module, by its parameters and its inputs, against differences in f64.

use crate::{declared, numbers};
use wgrad::{Array, ParamSet, Pool2d, Shape, Tensor, testing::Gradcheck};
use wgrad_nn::{
    Activation, AttentionConfig, BatchNorm, BatchNorm1d, BlockConfig, BlockKind, Builder, Cell, Conv2d,
    ConvTranspose2d, CrossAttention, Embedding, Fan, FeedForward, Gpt, GptConfig, GroupNorm, Init, InstanceNorm,
    Interpolation, LayerNorm, Linear, Mlp, MlpConfig, MultiHeadAttention, NormKind, NormPlace, RecurrentInit,
    RecurrentStack, ResNet, ResNetConfig, RmsNorm, Rotary, RotaryPairs, Scale, StackConfig, Stem, TransformerBlock,
    Upsample,
};

const INIT: Init = Init::Normal(0.5);

/// Checks a module's result, along random directions of each parameter and of the input.
#[track_caller]
fn check<M>(x: Array, declare: impl FnOnce(Builder<'_>) -> M, forward: impl for<'t> Fn(&M, Tensor<'t>) -> Tensor<'t>) {
    let (module, mut session) = declared(declare);
    let params: ParamSet = session.layout().params().map(|(id, _)| id).collect();
    let check = Gradcheck::new().random_directions(2);
    let checked = check.check_params(&mut session, &params, &[x], |_, x| forward(&module, x[0]));
    let checked = checked.unwrap_or_else(|error| panic!("{error}"));
    assert!(checked.compared >= 2 * params.len() && checked.compared > 2 * checked.kinks, "{checked:?}");
}

fn images(shape: [usize; 4]) -> Array {
    numbers(Shape::from(shape), 2)
}

/// Two hidden layers with these settings.
fn check_mlp(config: MlpConfig) {
    let activation = if config.activation == Activation::Relu { Activation::Tanh } else { config.activation };
    let config = MlpConfig { inputs: 4, width: 5, depth: 2, outputs: 2, init: INIT, activation, ..config };
    check(numbers([3, 4], 1), |b| Mlp::new(b, &config), |m, x| m.forward(x, true));
}

#[test]
fn of_layers() {
    check(numbers([2, 3], 0), |b| Linear::new(b, 3, 4, &INIT), |m, x| m.forward(x));
    check(numbers([2, 3], 0), |b| Scale::new(b, 0.7), |m, x| m.forward(x));
    check(Array::new([4], vec![2u32, 0, 1, 2]), |b| Embedding::new(b, 3, 2, &INIT), |m, x| m.forward(x));
    for activation in [Activation::Tanh, Activation::Sigmoid, Activation::LeakyRelu(0.1), Activation::Silu] {
        check_mlp(MlpConfig { activation, ..MlpConfig::default() });
    }
    check_mlp(MlpConfig { residual: true, norm: NormKind::Layer, ..MlpConfig::default() });
    check_mlp(MlpConfig { residual: true, norm: NormKind::BATCH, ..MlpConfig::default() });
    check_mlp(MlpConfig { norm: NormKind::Rms, activation: Activation::Identity, ..MlpConfig::default() });
}

#[test]
fn of_convolutions() {
    let strided = wgrad::Conv2d { stride: [2, 1], groups: 2, ..wgrad::Conv2d::same(3) };
    check(images([2, 2, 4, 3]), |b| Conv2d::new(b, 2, 4, 3, strided, &INIT), |m, x| m.forward(x));
    let plain = wgrad::Conv2d::default();
    let strided_alone = wgrad::Conv2d { stride: [2, 1], ..plain };
    check(images([1, 3, 2, 2]), |b| Conv2d::without_bias(b, 3, 2, 1, plain, &INIT), |m, x| m.forward(x));
    check(images([2, 4, 3, 2]), |b| ConvTranspose2d::new(b, 4, 2, 3, strided, &INIT), |m, x| m.forward(x));
    check(
        images([1, 3, 2, 2]),
        |b| ConvTranspose2d {
            output_padding: [1, 0],
            ..ConvTranspose2d::without_bias(b, 3, 2, 2, strided_alone, &INIT)
        },
        |m, x| m.forward(x),
    );
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear] {
        let up = Upsample { factors: [2, 3], interpolation };
        check(images([1, 2, 2, 2]), |b| (Scale::new(b, 0.7), up), |(scale, up), x| up.forward(scale.forward(x)).sin());
    }
}

#[test]
fn of_norms() {
    check(numbers([2, 3, 5], 0), |b| LayerNorm::new(b, 5), |m, x| m.forward(x).sin());
    check(numbers([3, 5], 0), |b| RmsNorm::new(b, 5), |m, x| m.forward(x).sin());
    check(images([2, 4, 2, 2]), |b| GroupNorm::new(b, 2, 4), |m, x| m.forward(x).sin());
    for training in [true, false] {
        check(images([3, 2, 2, 2]), |b| BatchNorm::new(b, 2), |m, x| m.forward(x, training).sin());
        check(numbers([3, 2, 4], 0), |b| BatchNorm1d::new(b, 2), |m, x| m.forward(x, training).sin());
    }
    check(images([2, 3, 2, 2]), |b| InstanceNorm::affine(b, 3), |m, x| m.forward(x).sin());
    check(numbers([2, 3, 4], 0), |_| InstanceNorm::new(3), |m, x| m.forward(x).sin());
}

#[test]
fn of_rotary_positions() {
    for pairs in [RotaryPairs::Neighbours, RotaryPairs::Halves] {
        let rotary = Rotary { pairs, ..Rotary::default() };
        check(numbers([2, 3, 4], 0), |_| rotary, |rotary, x| rotary.forward(x).sin());
    }
}

#[test]
fn of_stacks_of_recurrent_layers() {
    let config = StackConfig { layers: 2, bidirectional: true, dropout: None };
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let init = RecurrentInit::normal(0.5);
        check(
            numbers([3, 2, 3], 0),
            |b| RecurrentStack::new(b, cell, 3, 2, &init, &config),
            |m, x| {
                let out = m.forward(x, true);
                out.memory.into_iter().fold(out.hidden.sin().sum() + out.last.cos().sum(), |y, c| y + c.sin().sum())
            },
        );
    }
}

#[test]
fn of_attention() {
    let rotary = Some(Rotary::default());
    for (causal, qk_norm, kv_heads, rotary) in [
        (true, false, None, None),
        (false, false, None, None),
        (true, true, None, None),
        (true, false, Some(1), None),
        (false, true, Some(1), rotary),
    ] {
        let (width, heads, temperature, dropout) = (8, 2, 1.5, None);
        let config = AttentionConfig { width, heads, kv_heads, causal, qk_norm, rotary, temperature, dropout };
        check(numbers([2, 3, 8], 0), |b| MultiHeadAttention::new(b, &config, &INIT, &INIT), |m, x| m.forward(x, true));
    }
}

/// By a source of the same sequence, of another width: the second half of each row.
#[test]
fn of_attention_to_another_sequence() {
    for (qk_norm, kv_heads) in [(false, None), (true, Some(1))] {
        let config =
            AttentionConfig { width: 4, heads: 2, kv_heads, causal: false, qk_norm, ..AttentionConfig::default() };
        check(
            numbers([2, 3, 7], 0),
            |b| CrossAttention::new(b, &config, 3, &INIT, &INIT),
            |m, x| {
                let present = x.tape().iota(3).less_equal(1.0).broadcast_to([2, 3]);
                m.forward(x.slice(2, 0, 4), x.slice(2, 4, 3), Some(present), true)
            },
        );
    }
}

#[test]
fn of_transformers() {
    check(
        numbers([2, 4], 0),
        |b| FeedForward::new(b, 4, 6, Activation::GeluTanh, &INIT, &INIT),
        |m, x| m.forward(x, true),
    );
    for place in [NormPlace::Pre, NormPlace::Post] {
        let attention = AttentionConfig { width: 4, heads: 2, ..AttentionConfig::default() };
        let (init, residual_init) = (INIT, INIT);
        let config = BlockConfig { attention, hidden: 6, activation: Activation::Gelu, place, init, residual_init };
        check(numbers([2, 3, 4], 0), |b| TransformerBlock::new(b, &config), |m, x| m.forward(x, true).sin());
    }
    for (tied, place, kv_heads, rotary) in [
        (true, NormPlace::Pre, None, None),
        (false, NormPlace::Post, None, None),
        (false, NormPlace::Pre, Some(1), Some(Rotary::default())),
    ] {
        let config = GptConfig {
            kv_heads,
            rotary,
            context: 4,
            width: 4,
            layers: 2,
            heads: 2,
            hidden: 6,
            tied,
            place,
            std: 0.4,
            ..GptConfig::small(5)
        };
        let symbols = Array::new([2, 3], vec![4u32, 0, 3, 1, 1, 2]);
        check(symbols, |b| Gpt::new(b, &config), |m, x| m.loss(x, x, true));
    }
}

#[test]
fn of_networks_for_images() {
    let he = Init::He { fan: Fan::In };
    for (block, residual, batch_norm) in [
        (BlockKind::Basic, true, true),
        (BlockKind::Basic, true, false),
        (BlockKind::Basic, false, true),
        (BlockKind::Bottleneck, true, true),
    ] {
        // A smooth activation: with a kink in each of hundreds of units, one is always near.
        let config = ResNetConfig {
            channels: 2,
            classes: 3,
            stem: Stem { pool: Some(Pool2d::square(2)), ..Stem::CIFAR },
            block,
            stages: vec![(2, 1), (3, 1)],
            residual,
            norm: if batch_norm { NormKind::BATCH } else { NormKind::None },
            silent: false,
            activation: Activation::Tanh,
            checkpoint: false,
            init: he.clone(),
        };
        check(images([2, 2, 6, 6]), |b| ResNet::new(b, &config), |m, x| m.forward(x, true));
    }
}
