//! The settings of a run: the healthy configuration, then the changes of a case, then the changes of a cure.

use super::{args::TwoTowerArgs, data::Descriptions, encoder::Encoder};
use crate::{
    Error, Result,
    cli::Training,
    report::Metric,
    run::{Cure, cured},
};
use clap::ValueEnum;
use wgrad_nn::{BlockKind, Bridge, GptConfig, NormPlace, ResNetConfig, TwoTowerConfig};

/// The failures that a run can reproduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// No failure.
    #[default]
    Healthy,
    /// The features of the frozen encoder are about a thousand times too large, because its last norms have the
    /// statistics of darker images.
    Boundary,
    /// The encoder also learns from its own loss, whose gradients are a hundred times as large as those of the text.
    Imbalance,
}

/// The cures of the cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// No cure.
    #[default]
    None,
    /// Normalise features before the projection.
    LayerNorm,
    /// Multiply features by a thousandth.
    Scale,
    /// Train the encoder too, so that its statistics follow the images of the run.
    Unfreeze,
    /// Multiply the encoder's gradients by a hundredth.
    ScaleGrad,
    /// Use a hundredth of the learning rate for the encoder.
    GroupLr,
}

/// The cures of each case, the default one first.
pub const CURES: &[Cure<Case, Fix>] = &[
    (Case::Healthy, &[]),
    (Case::Boundary, &[Fix::LayerNorm, Fix::Scale, Fix::Unfreeze]),
    (Case::Imbalance, &[Fix::ScaleGrad, Fix::GroupLr]),
];

/// The divisor of the standard deviations in the encoder's last norms, as if its images had been this much darker; and
/// the resulting growth of its features.
const DARKER: f64 = 40.0;
const LARGER: f64 = 1000.0;
/// The weight of the encoder's own loss, which makes the encoder's gradients at least a hundred times as large as the
/// text's; and this excess.
const OWN_LOSS: f64 = 25.0;
const EXCESS: f64 = 100.0;

/// A run's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The case.
    pub case: Case,
    /// The cure.
    pub fix: Fix,
    /// The divisor of the standard deviations in the encoder's last norms; `None` leaves them correct.
    pub darker: Option<f64>,
    /// The bridge between encoder and projection.
    pub bridge: Bridge,
    /// True if the encoder is frozen.
    pub frozen: bool,
    /// The weight of the encoder's own classification loss; `None` without this loss.
    pub own_loss: Option<f64>,
    /// The factor of the encoder's gradients.
    pub vision_scale: Option<f64>,
    /// The factor of the learning rate for the encoder.
    pub vision_rate: Option<f64>,
    /// The number of images per step.
    pub batch: usize,
    /// The learning rate.
    pub lr: f64,
    /// The share of the last update that is added to the next.
    pub momentum: f64,
    /// The standard deviation of the decoder's initial weights.
    pub std: f64,
    /// The place of the decoder's normalisation.
    pub place: NormPlace,
    /// The most training steps.
    pub steps: usize,
    /// The number of steps between evaluations on held-out images, and between saves.
    pub evaluate_every: usize,
    /// The metric, with its target.
    pub metric: Metric,
    /// The accuracy at which the task counts as solved, and the run ends.
    pub solved: f64,
    /// The command line's training options.
    pub training: Training,
    /// The pretrained encoder.
    pub(super) encoder: Encoder,
}

/// The depth of the encoder.
const DEPTH: usize = 8;
/// The sizes of the decoder.
const WIDTH: usize = 32;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const HIDDEN: usize = 64;
/// The standard deviation of the decoder's initial weights, and the place of its normalisation.
const STD: f64 = 0.2;
const PLACE: NormPlace = NormPlace::Post;

impl Config {
    /// The settings for the flags.
    ///
    /// # Errors
    /// [`Error::Usage`] if the flags do not go together.
    pub fn new(args: &TwoTowerArgs, steps: Option<usize>) -> Result<Self> {
        let TwoTowerArgs { case, fix, .. } = *args;
        cured(CURES, case, fix)?;
        if steps == Some(0) {
            return Err(Error::Usage("--steps 0: expected at least 1".into()));
        }
        let mut config = Self {
            case,
            fix,
            darker: None,
            bridge: Bridge::Plain,
            frozen: true,
            own_loss: None,
            vision_scale: None,
            vision_rate: None,
            batch: 32,
            lr: 0.05,
            momentum: 0.9,
            std: STD,
            place: PLACE,
            steps: 600,
            evaluate_every: 50,
            metric: Metric { name: "accuracy", target: 0.93, rising: true },
            solved: 0.96,
            training: args.training.clone(),
            encoder: Encoder::default(),
        };
        config.steps = steps.unwrap_or(config.steps);
        config.break_with(case);
        config.mend_with(fix);
        config.training.check(config.batch)?;
        Ok(config)
    }

    fn break_with(&mut self, case: Case) {
        match case {
            Case::Healthy => {}
            Case::Boundary => self.darker = Some(DARKER),
            Case::Imbalance => (self.frozen, self.own_loss) = (false, Some(OWN_LOSS)),
        }
    }

    fn mend_with(&mut self, fix: Fix) {
        match fix {
            Fix::None => {}
            Fix::LayerNorm => self.bridge = Bridge::Norm,
            Fix::Scale => self.bridge = Bridge::Scale(1.0 / LARGER),
            Fix::Unfreeze => self.frozen = false,
            Fix::ScaleGrad => self.vision_scale = Some(1.0 / EXCESS),
            Fix::GroupLr => self.vision_rate = Some(1.0 / EXCESS),
        }
    }

    /// The configuration of the model for these descriptions.
    pub(super) fn model(&self, descriptions: &Descriptions) -> TwoTowerConfig {
        let TwoTowerConfig { vision, text, feature_scale, .. } = sizes(descriptions);
        let checkpoint = self.training.checkpoint;
        let text = GptConfig { place: self.place, std: self.std, checkpoint, ..text };
        let vision = ResNetConfig { checkpoint, ..vision };
        TwoTowerConfig { vision, text, bridge: self.bridge, feature_scale, frozen: self.frozen }
    }
}

/// The default configuration of the model for these descriptions.
pub(crate) fn sizes(descriptions: &Descriptions) -> TwoTowerConfig {
    let text = GptConfig {
        context: descriptions.length(),
        width: WIDTH,
        layers: LAYERS,
        heads: HEADS,
        hidden: HIDDEN,
        place: PLACE,
        std: STD,
        ..GptConfig::small(descriptions.vocabulary.len())
    };
    let vision = ResNetConfig::small(DEPTH, BlockKind::Basic, 1, 10).expect("8 is 6 and 2");
    TwoTowerConfig { vision, text, bridge: Bridge::Plain, feature_scale: 1.0, frozen: true }
}
