//! Layers and models, given what they cannot take.

use super::{refusal, refused_as};
use wgrad::{Cell, DType, Store, Tensor};
use wgrad_nn::{
    Activation, AttentionConfig, BatchNorm, BatchNorm1d, BlockConfig, BlockKind, Builder, Conv2d, ConvTranspose2d,
    Embedding, FeedForward, Gpt, GptConfig, GroupNorm, Init, InstanceNorm, Interpolation, LayerNorm, Linear, Mlp,
    MlpConfig, MultiHeadAttention, Recurrent, RecurrentInit, RecurrentStack, ResNet, ResNetConfig, RmsNorm, Rotary,
    Scale, StackConfig, TransformerBlock, Upsample,
};

/// Runs a layer, declared in a store of its own, on a tensor of the shape and type.
type Layer = for<'t> fn(Builder<'_>) -> Box<dyn Fn(Tensor<'_>)>;

const ONES: Init = Init::Ones;

/// A layer's name, a layer, and a shape that it cannot take.
const LAYERS: &[(&str, Layer, &[usize], DType)] = &[
    ("linear", |b| run(Linear::new(b, 3, 4, &ONES), |l, x| _ = l.forward(x)), &[2, 5], DType::F32),
    ("linear", |b| run(Linear::new(b, 3, 4, &ONES), |l, x| _ = l.forward(x)), &[2, 3], DType::F64),
    ("embedding", |b| run(Embedding::new(b, 3, 4, &ONES), |l, x| _ = l.forward(x)), &[2], DType::F32),
    ("layer_norm", |b| run(LayerNorm::new(b, 3), |l, x| _ = l.forward(x)), &[2, 4], DType::F32),
    ("rms_norm", |b| run(RmsNorm::new(b, 3), |l, x| _ = l.forward(x)), &[2, 4], DType::F32),
    ("group_norm", |b| run(GroupNorm::new(b, 2, 4), |l, x| _ = l.forward(x)), &[2, 5, 3], DType::F32),
    ("batch_norm", |b| run(BatchNorm::new(b, 3), |l, x| _ = l.forward(x, true)), &[3], DType::F32),
    ("batch_norm", |b| run(BatchNorm::new(b, 3), |l, x| _ = l.forward(x, true)), &[2, 4, 2, 2], DType::F32),
    ("batch_norm_eval", |b| run(BatchNorm::new(b, 3), |l, x| _ = l.forward(x, false)), &[2, 4, 2, 2], DType::F32),
    ("batch_norm_1d", |b| run(BatchNorm1d::new(b, 3), |l, x| _ = l.forward(x, true)), &[2, 3, 2, 2], DType::F32),
    ("batch_norm_1d", |b| run(BatchNorm1d::new(b, 3), |l, x| _ = l.forward(x, true)), &[2, 4], DType::F32),
    ("batch_norm_1d", |b| run(BatchNorm1d::new(b, 3), |l, x| _ = l.forward(x, false)), &[2, 4, 5], DType::F32),
    ("batch_norm_1d", |b| run(BatchNorm1d::new(b, 3), |l, x| _ = l.forward(x, true)), &[1, 3], DType::F32),
    ("instance_norm", |_| run(InstanceNorm::new(3), |l, x| _ = l.forward(x)), &[2, 3], DType::F32),
    ("instance_norm", |_| run(InstanceNorm::new(3), |l, x| _ = l.forward(x)), &[2, 4, 5], DType::F32),
    ("instance_norm", |b| run(InstanceNorm::affine(b, 3), |l, x| _ = l.forward(x)), &[2, 3, 1, 1], DType::F32),
    ("instance_norm", |b| run(InstanceNorm::affine(b, 3), |l, x| _ = l.forward(x)), &[2, 3, 4], DType::F64),
    ("rotary", |_| run(Rotary::default(), |l, x| _ = l.forward(x)), &[2, 3], DType::F32),
    ("rotary", |_| run(Rotary::default(), |l, x| _ = l.forward(x)), &[2, 4], DType::U32),
    ("scale", |b| run(Scale::new(b, 1.0), |l, x| _ = l.forward(x)), &[2], DType::F64),
    (
        "conv2d",
        |b| run(Conv2d::new(b, 3, 4, 3, wgrad::Conv2d::default(), &ONES), |l, x| _ = l.forward(x)),
        &[2, 5, 4, 4],
        DType::F32,
    ),
    ("conv_transpose2d", |b| run(transposed(b), |l, x| _ = l.forward(x)), &[2, 5, 4, 4], DType::F32),
    ("conv_transpose2d", |b| run(transposed(b), |l, x| _ = l.forward(x)), &[2, 3, 4], DType::F32),
    ("upsample", |_| run(upsample([2, 2]), |l, x| _ = l.forward(x)), &[3, 4, 4], DType::F32),
    ("upsample", |_| run(upsample([2, 0]), |l, x| _ = l.forward(x)), &[2, 3, 4, 4], DType::F32),
    ("upsample", |_| run(upsample([2, 2]), |l, x| _ = l.forward(x)), &[2, 3, 4, 4], DType::U32),
    ("mlp", |b| run(Mlp::new(b, &mlp()), |l, x| _ = l.forward(x, true)), &[2, 5], DType::F32),
    ("lstm", |b| run(recurrent(b), |l, x| _ = l.forward(x)), &[2, 5], DType::F32),
    ("lstm", |b| run(recurrent(b), |l, x| _ = l.forward(x)), &[2, 2, 5], DType::F32),
    ("lstm", |b| run(recurrent(b), |l, x| _ = l.unrolled(x)), &[2, 2, 5], DType::F32),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward(x, true)), &[2, 3], DType::F32),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward(x, true)), &[0, 2, 3], DType::F32),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward(x, true)), &[2, 2, 5], DType::F32),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward(x, true)), &[2, 2, 3], DType::F64),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward_from(x, x, None, true)), &[2, 2, 3], DType::F32),
    ("recurrent_stack", |b| run(stack(b), |l, x| _ = l.forward_from(x, x, Some(x), true)), &[2, 2, 3], DType::F32),
    ("attention", |b| run(attention(b), |l, x| _ = l.forward(x, true)), &[2, 2, 5], DType::F32),
    ("attention", |b| run(attention(b), |l, x| _ = l.forward(x, true)), &[2, 2, 4], DType::F64),
    ("feed_forward", |b| run(feed_forward(b), |l, x| _ = l.forward(x, true)), &[2, 5], DType::F32),
    ("transformer_block", |b| run(block(b), |l, x| _ = l.forward(x, true)), &[2, 2, 5], DType::F32),
    ("gpt", |b| run(gpt(b), |l, x| _ = l.forward(x, true)), &[2, 2], DType::F32),
    ("gpt", |b| run(gpt(b), |l, x| _ = l.forward(x, true)), &[2, 999], DType::U32),
    ("resnet", |b| run(resnet(b), |l, x| _ = l.forward(x, true)), &[2, 5, 8, 8], DType::F32),
];

fn run<L: 'static>(layer: L, forward: fn(&L, Tensor<'_>)) -> Box<dyn Fn(Tensor<'_>)> {
    Box::new(move |x| forward(&layer, x))
}

fn mlp() -> MlpConfig {
    MlpConfig { inputs: 3, width: 4, depth: 1, outputs: 2, init: ONES, ..MlpConfig::default() }
}

fn transposed(b: Builder<'_>) -> ConvTranspose2d {
    ConvTranspose2d::new(b, 3, 4, 3, wgrad::Conv2d::default(), &ONES)
}

fn upsample(factors: [usize; 2]) -> Upsample {
    Upsample { factors, interpolation: Interpolation::Bilinear }
}

fn recurrent(b: Builder<'_>) -> Recurrent {
    Recurrent::new(b, Cell::Lstm, 3, 4, &RecurrentInit::default())
}

fn stack(b: Builder<'_>) -> RecurrentStack {
    let config = StackConfig { layers: 2, bidirectional: true, dropout: None };
    RecurrentStack::new(b, Cell::Lstm, 3, 4, &RecurrentInit::default(), &config)
}

fn config() -> AttentionConfig {
    AttentionConfig { width: 4, heads: 2, ..AttentionConfig::default() }
}

fn attention(b: Builder<'_>) -> MultiHeadAttention {
    MultiHeadAttention::new(b, &config(), &ONES, &ONES)
}

fn feed_forward(b: Builder<'_>) -> FeedForward {
    FeedForward::new(b, 4, 8, Activation::Relu, &ONES, &ONES)
}

fn block(b: Builder<'_>) -> TransformerBlock {
    let (init, residual_init) = (ONES, ONES);
    let (attention, place) = (config(), wgrad_nn::NormPlace::Pre);
    TransformerBlock::new(
        b,
        &BlockConfig { attention, hidden: 8, activation: Activation::Relu, place, init, residual_init },
    )
}

fn gpt(b: Builder<'_>) -> Gpt {
    Gpt::new(b, &GptConfig { width: 8, heads: 2, hidden: 8, layers: 1, context: 16, ..GptConfig::small(5) })
}

fn resnet(b: Builder<'_>) -> ResNet {
    ResNet::new(b, &ResNetConfig::small(8, BlockKind::Basic, 3, 4).expect("a depth"))
}

#[test]
fn a_layer_is_named_and_so_is_its_line() {
    for (name, layer, shape, dtype) in LAYERS {
        let mut store = Store::new();
        let layer = layer(Builder::new(&mut store, 0).at("layer"));
        let t = super::tape(store.layout());
        let x = t.input("x", *shape, *dtype);
        refused_as(file!(), name, || layer(x));
    }
}

/// The nodes of a layer, too, name the line that calls it, and not one of the library.
#[test]
fn the_nodes_of_a_layer_name_the_line_that_calls_it() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 0);
    let (attention, gpt) = (attention(b.at("attention")), gpt(b.at("gpt")));
    let (resnet, lstm, stack) = (resnet(b.at("resnet")), recurrent(b.at("lstm")), stack(b.at("stack")));
    let t = super::tape(store.layout());
    attention.forward(t.input("a", [2, 3, 4], DType::F32), false);
    gpt.forward(t.input("g", [2, 3], DType::U32), false);
    resnet.forward(t.input("r", [2, 3, 8, 8], DType::F32), true);
    lstm.forward(t.input("l", [3, 2, 3], DType::F32));
    stack.forward(t.input("s", [3, 2, 3], DType::F32), true);
    let program = t.finish();
    let elsewhere = program.nodes().iter().find(|node| node.site.file() != file!());
    assert!(elsewhere.is_none(), "{elsewhere:?}");
}

#[test]
fn a_path_that_is_taken_is_refused_at_the_models_line() {
    let mut store = Store::new();
    let _ = gpt(Builder::new(&mut store, 0).at("gpt"));
    let refused = refusal(|| gpt(Builder::new(&mut store, 0).at("gpt")));
    assert!(refused.file == file!() && refused.message.contains("\"gpt/tokens/weight\""), "{}", refused.message);
    Mlp::new(Builder::new(&mut store, 0).at("mlp"), &mlp());
    let refused = refusal(|| Mlp::new(Builder::new(&mut store, 0).at("mlp"), &mlp()));
    assert!(refused.file == file!() && refused.message.contains("\"mlp/layer/0/bias\""), "{}", refused.message);
}
