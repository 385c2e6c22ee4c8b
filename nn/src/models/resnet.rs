//! Residual networks for images, and the plain ones that they are compared with.

use crate::{
    error::{Error, Result},
    layers::{Activation, Builder, Conv2d, Fan, Init, Linear, Norm, NormKind},
};
use wgrad::{Pool2d, Tensor};

/// The blocks of a [`ResNet`]'s stages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BlockKind {
    /// Two 3x3 convolutions.
    #[default]
    Basic,
    /// 1x1 to the stage's width, 3x3, and 1x1 to four times the width.
    Bottleneck,
}

impl BlockKind {
    /// The number of convolutions.
    fn convolutions(self) -> usize {
        match self {
            BlockKind::Basic => 2,
            BlockKind::Bottleneck => 3,
        }
    }

    /// The width of the output, as a multiple of the stage's width.
    fn expansion(self) -> usize {
        match self {
            BlockKind::Basic => 1,
            BlockKind::Bottleneck => 4,
        }
    }
}

/// The first layers of a [`ResNet`]: a convolution, and a pooling if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stem {
    /// The kernel of the convolution.
    pub kernel: usize,
    /// Its stride.
    pub stride: usize,
    /// The max-pooling of the convolution's output.
    pub pool: Option<Pool2d>,
}

impl Stem {
    /// 3x3, for images of 8 to 32 pixels.
    pub const CIFAR: Self = Self { kernel: 3, stride: 1, pool: None };

    /// 7x7 with stride 2, then max-pooling with stride 2, for images of hundreds of pixels.
    pub const IMAGENET: Self =
        Self { kernel: 7, stride: 2, pool: Some(Pool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 2] }) };
}

/// Settings of a [`ResNet`].
#[derive(Clone, PartialEq, Debug)]
pub struct ResNetConfig {
    /// The channels of the images.
    pub channels: usize,
    /// The number of classes.
    pub classes: usize,
    /// The stem; its output is as wide as the first stage.
    pub stem: Stem,
    /// The kind of all blocks.
    pub block: BlockKind,
    /// The width of each stage, and the number of its blocks. Each stage but the first halves height and width.
    pub stages: Vec<(usize, usize)>,
    /// True if the input of each block is added to its output; otherwise the network is plain.
    pub residual: bool,
    /// The normalisation after each convolution, by batch or in groups of channels. Without one, convolutions have a
    /// bias.
    pub norm: NormKind,
    /// True if the last norm of each residual block gives 0 at first: each block begins as its shortcut, and a deep
    /// network as a shallow one (Goyal et al. 2017, "Accurate, large minibatch SGD", section 5.1).
    pub silent: bool,
    /// The activation.
    pub activation: Activation,
    /// True if the backward sweep recomputes the values within blocks instead of keeping them: see
    /// [`wgrad::Tape::checkpoint`].
    pub checkpoint: bool,
    /// First values of the convolutions' weights.
    pub init: Init,
}

impl ResNetConfig {
    /// The networks for CIFAR-10 of He et al. 2016 (section 4.2): three stages of widths 16, 32 and 64. `depth` counts
    /// the layers with weights on the longest path: `6 n + 2` for basic blocks, such as 20, 56 or 110; `9 n + 2` for
    /// bottlenecks. Shortcuts that change the width are 1x1 convolutions.
    ///
    /// # Errors
    /// [`Error::Depth`] if there is no such network of this depth.
    pub fn cifar(depth: usize, block: BlockKind, channels: usize, classes: usize) -> Result<Self> {
        Self::three_stages(depth, block, [16, 32, 64], channels, classes)
    }

    /// As [`ResNetConfig::cifar`] at half of the width, for small grey images such as digits of 8x8.
    ///
    /// # Errors
    /// As [`ResNetConfig::cifar`].
    pub fn small(depth: usize, block: BlockKind, channels: usize, classes: usize) -> Result<Self> {
        Self::three_stages(depth, block, [8, 16, 32], channels, classes)
    }

    /// As [`ResNetConfig::cifar`], but the first stage has this width, and each stage is twice as wide as the one
    /// before it.
    ///
    /// # Errors
    /// As [`ResNetConfig::cifar`].
    pub fn of_width(width: usize, depth: usize, block: BlockKind, channels: usize, classes: usize) -> Result<Self> {
        Self::three_stages(depth, block, [width, 2 * width, 4 * width], channels, classes)
    }

    fn three_stages(
        depth: usize,
        block: BlockKind,
        widths: [usize; 3],
        channels: usize,
        classes: usize,
    ) -> Result<Self> {
        let per_block = widths.len() * block.convolutions();
        let blocks = depth.saturating_sub(2) / per_block;
        if blocks == 0 || blocks * per_block + 2 != depth {
            return Err(Error::Depth { depth, per_block });
        }
        Ok(Self {
            channels,
            classes,
            stem: Stem::CIFAR,
            block,
            stages: widths.map(|width| (width, blocks)).to_vec(),
            residual: true,
            norm: NormKind::BATCH,
            silent: false,
            activation: Activation::Relu,
            checkpoint: false,
            init: Init::He { fan: Fan::Out },
        })
    }

    /// The width of the head's input.
    pub fn features(&self) -> usize {
        self.stages.last().map_or(0, |(width, _)| width * self.block.expansion())
    }

    /// The number of layers with weights on the longest path from an image to its class.
    pub fn depth(&self) -> usize {
        2 + self.block.convolutions() * self.stages.iter().map(|(_, blocks)| blocks).sum::<usize>()
    }
}

/// A convolution, and the normalisation that follows it.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The convolution.
    pub conv: Conv2d,
    /// The normalisation.
    pub norm: Norm,
}

impl Unit {
    /// Declares `conv`, and `norm` if the configuration has one; a `silent` norm gives 0 at first.
    #[track_caller]
    fn new(
        mut b: Builder<'_>,
        config: &ResNetConfig,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        silent: bool,
    ) -> Self {
        let geometry = wgrad::Conv2d { stride: [stride; 2], ..wgrad::Conv2d::same(kernel) };
        let declare = if config.norm == NormKind::None { Conv2d::new } else { Conv2d::without_bias };
        let conv = declare(b.at("conv"), inputs, outputs, kernel, geometry, &config.init);
        let norm = if silent { Norm::silent } else { Norm::new };
        Self { conv, norm: norm(b.at("norm"), config.norm, outputs) }
    }

    #[track_caller]
    fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        self.norm.forward(self.conv.forward(x), training)
    }
}

/// A block of convolutions, whose input is added to their output unless the network is plain.
#[derive(Clone, Debug)]
pub struct ResNetBlock {
    /// The convolutions.
    pub units: Vec<Unit>,
    /// The convolution of the shortcut, if input and output differ in shape.
    pub shortcut: Option<Unit>,
    /// True if the block has a shortcut.
    pub residual: bool,
    /// The activation after each convolution; the last one comes after the sum.
    pub activation: Activation,
}

impl ResNetBlock {
    #[track_caller]
    fn new(mut b: Builder<'_>, config: &ResNetConfig, inputs: usize, width: usize, stride: usize) -> Self {
        let outputs = width * config.block.expansion();
        // Of each unit: its input and output channels, kernel and stride.
        let plan = match config.block {
            BlockKind::Basic => vec![([inputs, width], 3, stride), ([width, outputs], 3, 1)],
            BlockKind::Bottleneck => {
                vec![([inputs, width], 1, 1), ([width, width], 3, stride), ([width, outputs], 1, 1)]
            }
        };
        let (mut units, last) = (vec![], plan.len() - 1);
        for (i, (channels, kernel, stride)) in plan.into_iter().enumerate() {
            let silent = config.silent && config.residual && i == last;
            units.push(Unit::new(b.at(&i.to_string()), config, channels, kernel, stride, silent));
        }
        let reshapes = config.residual && (inputs != outputs || stride != 1);
        let shortcut = reshapes.then(|| Unit::new(b.at("shortcut"), config, [inputs, outputs], 1, stride, false));
        Self { units, shortcut, residual: config.residual, activation: config.activation }
    }

    #[track_caller]
    fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let mut h = x;
        for (i, unit) in self.units.iter().enumerate() {
            let _scope = x.tape().enter_turn("unit", i);
            let mut z = unit.forward(h, training);
            if self.residual && i + 1 == self.units.len() {
                z += if let Some(unit) = &self.shortcut { unit.forward(x, training) } else { x };
            }
            h = self.activation.probed(z);
        }
        h
    }
}

/// A network of convolutions for images (He et al. 2016, "Deep residual learning"), residual or plain.
#[derive(Clone, Debug)]
pub struct ResNet {
    /// The stem.
    pub stem: Unit,
    /// The blocks of all stages.
    pub blocks: Vec<ResNetBlock>,
    /// The linear map from the mean of each channel to the classes.
    pub head: Linear,
    /// The settings.
    pub config: ResNetConfig,
}

impl ResNet {
    /// Declares `stem`, the blocks `stage/<s>/<b>/..` and `head`. The weights of the head are uniform within
    /// `1 / sqrt(inputs)`.
    ///
    /// # Panics
    /// If there is no stage, or one has width 0; if the norm is [`NormKind::Layer`] or [`NormKind::Rms`], or its groups
    /// do not divide a width.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &ResNetConfig) -> Self {
        let narrow = config.stages.iter().any(|(width, _)| *width == 0);
        assert!(!config.stages.is_empty() && !narrow, "resnet of the stages {:?}", config.stages);
        let of_rows = matches!(config.norm, NormKind::Layer | NormKind::Rms);
        assert!(!of_rows, "resnet with the norm {:?}: images are normalised by batch or in groups", config.norm);
        let mut channels = config.stages[0].0;
        let stem =
            Unit::new(b.at("stem"), config, [config.channels, channels], config.stem.kernel, config.stem.stride, false);
        let (mut stages, mut blocks) = (b.at("stage"), vec![]);
        for (s, &(width, count)) in config.stages.iter().enumerate() {
            let mut stage = stages.at(&s.to_string());
            for i in 0..count {
                let stride = if s > 0 && i == 0 { 2 } else { 1 };
                blocks.push(ResNetBlock::new(stage.at(&i.to_string()), config, channels, width, stride));
                channels = width * config.block.expansion();
            }
        }
        let head = Linear::new(b.at("head"), channels, config.classes, &Init::Uniform(1.0 / (channels as f64).sqrt()));
        Self { stem, blocks, head, config: config.clone() }
    }

    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    ///
    /// Inputs of activations are probed as `stem/z` and `block[i]/unit[j]/z`: see [`wgrad::Tape::with_probe`].
    ///
    /// # Panics
    /// If `x` has another shape or type; in training, if batch normalisation is left with one element in a channel.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = x.tape().call("resnet", &[x]);
        self.head.forward(self.features(x, training))
    }

    /// The input of the head: the mean of each channel, `[batch, channels]`.
    ///
    /// # Panics
    /// As [`ResNet::forward`].
    #[track_caller]
    pub fn features<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let tape = x.tape();
        let _call = tape.call("resnet", &[x]);
        let mut x = {
            let _scope = tape.enter("stem");
            self.config.activation.probed(self.stem.forward(x, training))
        };
        if let Some(pool) = self.config.stem.pool {
            x = x.max_pool2d(&pool);
        }
        for (i, block) in self.blocks.iter().enumerate() {
            let _scope = tape.enter_turn("block", i);
            x = match self.config.checkpoint {
                true => tape.checkpoint(|| block.forward(x, training)),
                false => block.forward(x, training),
            };
        }
        x.global_avg_pool()
    }
}
