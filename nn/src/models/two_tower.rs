//! Images described by a text: an encoder of images, a projection, and a decoder of text that sees the image first.

use super::{Gpt, GptConfig, ResNet, ResNetConfig};
use crate::layers::{Builder, Init, LayerNorm, Linear, Scale};
use wgrad::Tensor;

/// The bridge between the encoder and the projection.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub enum Bridge {
    /// No bridge: features keep their magnitude.
    #[default]
    Plain,
    /// A [`LayerNorm`].
    Norm,
    /// A [`Scale`] with this first value.
    Scale(f64),
}

/// Settings of a [`TwoTower`].
#[derive(Clone, PartialEq, Debug)]
pub struct TwoTowerConfig {
    /// The encoder of images.
    pub vision: ResNetConfig,
    /// The decoder of text; its context has room for the image too.
    pub text: GptConfig,
    /// The bridge.
    pub bridge: Bridge,
    /// The factor of features before the bridge: 1, or another one to study features of another magnitude.
    pub feature_scale: f64,
    /// True if the encoder runs in evaluation mode in training too, so that its running statistics stay as they are.
    /// Its parameters are frozen only if they are left out of the trained ones: see [`crate::layers::paths::freeze`].
    pub frozen: bool,
}

/// A decoder of text behind a projection of an image's features (in the manner of LLaVA, Liu et al. 2023).
#[derive(Clone, Debug)]
pub struct TwoTower {
    /// The encoder, whose head serves to train it by itself.
    pub vision: ResNet,
    /// The norm of the features, where there is one.
    pub norm: Option<LayerNorm>,
    /// The scale of the features, where there is one.
    pub scale: Option<Scale>,
    /// The linear map from features to the width of the text.
    pub projection: Linear,
    /// The decoder.
    pub text: Gpt,
    /// The settings.
    pub config: TwoTowerConfig,
}

impl TwoTower {
    /// Declares `vision`, `bridge`, `projection`, whose weights are drawn by Xavier's rule, and `text`.
    ///
    /// # Panics
    /// As [`ResNet::new`] and [`Gpt::new`].
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &TwoTowerConfig) -> Self {
        let vision = ResNet::new(b.at("vision"), &config.vision);
        let features = config.vision.features();
        let norm = (config.bridge == Bridge::Norm).then(|| LayerNorm::new(b.at("bridge"), features));
        let scale = match config.bridge {
            Bridge::Scale(first) => Some(Scale::new(b.at("bridge"), first)),
            Bridge::Plain | Bridge::Norm => None,
        };
        let init = Init::XavierUniform { gain: 1.0 };
        let projection = Linear::new(b.at("projection"), features, config.text.width, &init);
        Self { vision, norm, scale, projection, text: Gpt::new(b.at("text"), &config.text), config: config.clone() }
    }

    /// The encoder's features of images `[batch, channels, height, width]`: `[batch, features]`, probed as `features`.
    ///
    /// # Panics
    /// As [`ResNet::forward`].
    #[track_caller]
    pub fn encode<'t>(&self, images: Tensor<'t>, training: bool) -> Tensor<'t> {
        let features = {
            let _scope = images.tape().enter("vision");
            self.vision.features(images, training && !self.config.frozen)
        };
        // A factor of 1 records no node.
        let features = if self.config.feature_scale == 1.0 { features } else { features * self.config.feature_scale };
        features.probe("features")
    }

    /// Maps features and the symbols so far, u32 `[batch, time]`, to the logits of the symbols that follow the image
    /// and each symbol, `[batch, 1 + time, vocabulary]`. The input of the projection is probed as `projection/x`.
    ///
    /// # Panics
    /// If `features` has another shape or type; as [`Gpt::forward`].
    #[track_caller]
    pub fn describe<'t>(&self, features: Tensor<'t>, symbols: Tensor<'t>, training: bool) -> Tensor<'t> {
        let tape = features.tape();
        let _call = tape.call("two_tower", &[features, symbols]);
        let mut x = if let Some(norm) = &self.norm { norm.forward(features) } else { features };
        if let Some(scale) = &self.scale {
            x = scale.forward(x);
        }
        let image = {
            let _scope = tape.enter("projection");
            self.projection.forward(x.probe("x"))
        };
        let _scope = tape.enter("text");
        self.text.forward_after(image.unsqueeze(1), symbols, training)
    }

    /// Maps images and the symbols so far to logits: [`TwoTower::encode`], then [`TwoTower::describe`].
    ///
    /// # Panics
    /// As [`TwoTower::encode`] and [`TwoTower::describe`].
    #[track_caller]
    pub fn forward<'t>(&self, images: Tensor<'t>, symbols: Tensor<'t>, training: bool) -> Tensor<'t> {
        self.describe(self.encode(images, training), symbols, training)
    }

    /// The mean cross-entropy of descriptions, u32 `[batch, time]`, each symbol given the features of an image and the
    /// symbols before it, in nats per symbol.
    ///
    /// # Panics
    /// As [`TwoTower::describe`]; if descriptions have no symbol.
    #[track_caller]
    pub fn loss<'t>(&self, features: Tensor<'t>, descriptions: Tensor<'t>, training: bool) -> Tensor<'t> {
        let (shape, rows) = (descriptions.shape(), descriptions.numel());
        assert!(shape.rank() == 2 && rows > 0, "two_tower: descriptions of {shape}: needs [batch, time]");
        let logits = self.describe(features, descriptions.slice(1, 0, shape[1] - 1), training);
        logits.reshape([rows, self.config.text.vocabulary]).cross_entropy(descriptions.reshape([rows]))
    }
}
