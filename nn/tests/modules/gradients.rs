//! The gradient of every module, by its parameters and its inputs, against differences in f64.

use crate::{declared, numbers};
use wgrad::{Array, ParamSet, Pool2d, Shape, Tensor, testing::Gradcheck};
use wgrad_nn::{
    Activation, AttentionConfig, BatchNorm, BlockConfig, BlockKind, Builder, Conv2d, Embedding, Fan, FeedForward, Gpt,
    GptConfig, GroupNorm, Init, LayerNorm, Linear, Mlp, MlpConfig, MultiHeadAttention, NormKind, NormPlace, ResNet,
    ResNetConfig, RmsNorm, Scale, Stem, TransformerBlock,
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
    check(images([1, 3, 2, 2]), |b| Conv2d::without_bias(b, 3, 2, 1, plain, &INIT), |m, x| m.forward(x));
}

#[test]
fn of_norms() {
    check(numbers([2, 3, 5], 0), |b| LayerNorm::new(b, 5), |m, x| m.forward(x).sin());
    check(numbers([3, 5], 0), |b| RmsNorm::new(b, 5), |m, x| m.forward(x).sin());
    check(images([2, 4, 2, 2]), |b| GroupNorm::new(b, 2, 4), |m, x| m.forward(x).sin());
    for training in [true, false] {
        check(images([3, 2, 2, 2]), |b| BatchNorm::new(b, 2), |m, x| m.forward(x, training).sin());
    }
}

#[test]
fn of_attention() {
    for (causal, qk_norm) in [(true, false), (false, false), (true, true)] {
        let config = AttentionConfig { width: 6, heads: 2, causal, qk_norm, temperature: 1.5, dropout: None };
        check(numbers([2, 3, 6], 0), |b| MultiHeadAttention::new(b, &config, &INIT, &INIT), |m, x| m.forward(x, true));
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
    for (tied, place) in [(true, NormPlace::Pre), (false, NormPlace::Post)] {
        let config = GptConfig {
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
