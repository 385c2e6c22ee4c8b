//! Workloads w1, w2 and w5: training steps of transformers and of a residual network.

use super::{
    data::{Draw, Source},
    training::{BATCHES, Training, Weight, zip},
};
use crate::Result;
use wgrad::{Optimizer, ParamSet, Store, Tensor};
use wgrad_nn::{
    BlockKind, Builder, Gpt, GptConfig, Linear, ResNet, ResNetConfig,
    data::Batch,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};

/// The number of symbols in the vocabulary.
const VOCABULARY: usize = 96;

/// A decoder that predicts symbols.
pub struct Decoder {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    hidden: usize,
    context: usize,
    batch: usize,
}

/// The small decoder.
pub const W1: Decoder = Decoder { name: "w1", layers: 4, width: 128, heads: 4, hidden: 512, context: 128, batch: 8 };

/// The medium decoder.
pub const W2: Decoder = Decoder { name: "w2", layers: 6, width: 384, heads: 6, hidden: 1536, context: 256, batch: 4 };

const ZEROS: Draw = Draw::Normal(0.0, 0.0);
const ONES: Draw = Draw::Normal(1.0, 0.0);

/// The weights of a linear layer with a bias, by their names in a file.
fn linear(name: &str, layer: &Linear, shape: [usize; 2], draw: Draw) -> [Weight; 2] {
    let bias = layer.bias.expect("a linear layer with a bias");
    [
        Weight::turned(format!("{name}.w"), layer.weight, shape, draw),
        Weight::plain(format!("{name}.b"), bias, &shape[1..], ZEROS),
    ]
}

/// The weights of a layer normalisation, by their names in a file.
fn norm(name: &str, layer: &wgrad_nn::LayerNorm, width: usize) -> [Weight; 2] {
    [
        Weight::plain(format!("{name}.g"), layer.weight, &[width], ONES),
        Weight::plain(format!("{name}.b"), layer.bias, &[width], ZEROS),
    ]
}

impl Training for Decoder {
    type Model = Gpt;

    fn name(&self) -> &'static str {
        self.name
    }

    fn declare(&self, store: &mut Store) -> Gpt {
        let Self { layers, width, heads, hidden, context, .. } = *self;
        let config = GptConfig { layers, width, heads, hidden, context, ..GptConfig::small(VOCABULARY) };
        Gpt::new(Builder::new(store, 0), &config)
    }

    fn weights(&self, model: &Gpt) -> Vec<Weight> {
        let Self { width, hidden, context, .. } = *self;
        let std = model.config.std;
        let (draw, residual) = (Draw::Normal(0.0, std), Draw::Normal(0.0, std / (2.0 * self.layers as f64).sqrt()));
        let mut weights = vec![
            Weight::plain("wte", model.tokens.weight, &[VOCABULARY, width], draw),
            Weight::plain("wpe", model.positions.as_ref().expect("they are learnt").weight, &[context, width], draw),
        ];
        for (i, block) in model.blocks.iter().enumerate() {
            let name = |part: &str| format!("h{i}.{part}");
            weights.extend(norm(&name("ln1"), &block.norm1, width));
            weights.extend(linear(&name("qkv"), &block.attention.qkv, [width, 3 * width], draw));
            weights.extend(linear(&name("proj"), &block.attention.proj, [width, width], residual));
            weights.extend(norm(&name("ln2"), &block.norm2, width));
            weights.extend(linear(&name("fc"), &block.ffn.up, [width, hidden], draw));
            weights.extend(linear(&name("fc2"), &block.ffn.down, [hidden, width], residual));
        }
        weights.extend(norm("lnf", model.norm.as_ref().expect("it normalises last"), width));
        let head = model.head.as_ref().expect("output weights of its own");
        weights.push(Weight::turned("head.w", head.weight, [width, VOCABULARY], draw));
        weights
    }

    fn batch(&self) -> usize {
        self.batch
    }

    fn batches(&self, source: &mut Source, batch: usize) -> Result<Vec<Batch>> {
        let shape = [BATCHES, batch, self.context];
        let x = source.classes("data.x", &shape, VOCABULARY as u32)?;
        Ok(zip(&x, &source.classes("data.y", &shape, VOCABULARY as u32)?))
    }

    fn loss<'t>(&self, model: &Gpt, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        model.loss(x, y, true)
    }

    fn optimizer(&self, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer> {
        Box::new(AdamW::new(store, params, AdamWConfig { lr: 3e-4.into(), ..AdamWConfig::default() }))
    }
}

/// ResNet-20 for images like those of CIFAR-10.
pub struct Residual;

/// The number of images per batch.
const IMAGES: usize = 32;
/// The images' channels, height and width.
const IMAGE: [usize; 3] = [3, 32, 32];
const CLASSES: usize = 10;

impl Training for Residual {
    type Model = ResNet;

    fn name(&self) -> &'static str {
        "w5"
    }

    fn declare(&self, store: &mut Store) -> ResNet {
        let config = ResNetConfig::cifar(20, BlockKind::Basic, IMAGE[0], CLASSES).expect("20 is 6 times 3 and 2");
        ResNet::new(Builder::new(store, 0), &config)
    }

    fn weights(&self, model: &ResNet) -> Vec<Weight> {
        let kernel = |name: String, unit: &wgrad_nn::Unit, [inputs, outputs, kernel]: [usize; 3]| {
            let draw = Draw::Normal(0.0, (2.0 / (outputs * kernel * kernel) as f64).sqrt());
            Weight::plain(name, unit.conv.weight, &[outputs, inputs, kernel, kernel], draw)
        };
        let mut inputs = model.config.stages[0].0;
        let mut weights = vec![kernel("stem.w".into(), &model.stem, [IMAGE[0], inputs, 3])];
        let mut blocks = model.blocks.iter();
        for (s, &(width, count)) in model.config.stages.iter().enumerate() {
            for (b, block) in (0..count).zip(&mut blocks) {
                weights.push(kernel(format!("s{s}b{b}.c1.w"), &block.units[0], [inputs, width, 3]));
                weights.push(kernel(format!("s{s}b{b}.c2.w"), &block.units[1], [width, width, 3]));
                let shortcut = block.shortcut.as_ref();
                weights.extend(shortcut.map(|unit| kernel(format!("s{s}b{b}.down.w"), unit, [inputs, width, 1])));
                inputs = width;
            }
        }
        weights.extend(linear("fc", &model.head, [inputs, CLASSES], Draw::Uniform(1.0 / (inputs as f64).sqrt())));
        weights
    }

    fn batch(&self) -> usize {
        IMAGES
    }

    fn batches(&self, source: &mut Source, batch: usize) -> Result<Vec<Batch>> {
        let shape = [&[BATCHES, batch][..], &IMAGE].concat();
        let x = source.floats("data.x", &shape, Draw::Normal(0.0, 1.0))?;
        Ok(zip(&x, &source.classes("data.y", &[BATCHES, batch], CLASSES as u32)?))
    }

    fn loss<'t>(&self, model: &ResNet, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        model.forward(x, true).cross_entropy(y)
    }

    fn optimizer(&self, store: &mut Store, params: &ParamSet) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(store, params, SgdConfig { lr: 0.05.into(), momentum: 0.9, ..SgdConfig::default() }))
    }

    fn clips(&self) -> bool {
        false
    }
}
