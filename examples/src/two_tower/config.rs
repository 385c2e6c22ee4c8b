//! What a run is: the healthy configuration, then what a case breaks, then what a cure mends.

use super::{args::TwoTowerArgs, data::Descriptions, encoder::Encoder};
use crate::{
    Error, Result,
    cli::Training,
    report::Metric,
    run::{Cure, cured},
};
use clap::ValueEnum;
use wgrad_nn::{BlockKind, Bridge, GptConfig, NormPlace, ResNetConfig, TwoTowerConfig};

/// What is wrong with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// Nothing.
    #[default]
    Healthy,
    /// The frozen encoder gives features some thousand times too large: its last statistics are of darker images.
    Boundary,
    /// The encoder learns too, from a loss of its own whose gradients are a hundred times the text's.
    Imbalance,
}

/// What cures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// Nothing.
    #[default]
    None,
    /// Normalise features before the projection.
    LayerNorm,
    /// Multiply features by a thousandth.
    Scale,
    /// Let the encoder learn, and its statistics follow the images at hand.
    Unfreeze,
    /// Multiply the encoder's gradients by a hundredth.
    ScaleGrad,
    /// A hundredth of the learning rate for the encoder.
    GroupLr,
}

/// Which cures a case has, the default one first.
pub const CURES: &[Cure<Case, Fix>] = &[
    (Case::Healthy, &[]),
    (Case::Boundary, &[Fix::LayerNorm, Fix::Scale, Fix::Unfreeze]),
    (Case::Imbalance, &[Fix::ScaleGrad, Fix::GroupLr]),
];

/// How many times darker the images seem of which the encoder's last statistics are, and how many times larger that makes
/// its features.
const DARKER: f64 = 40.0;
const LARGER: f64 = 1000.0;
/// The weight of the encoder's own loss with which its gradients are a hundred times the text's, or more; and how many
/// times.
const OWN_LOSS: f64 = 25.0;
const EXCESS: f64 = 100.0;

/// A run's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The case.
    pub case: Case,
    /// The cure.
    pub fix: Fix,
    /// How many times darker the images seem to be of which the encoder's last statistics are; `None` if they are right.
    pub darker: Option<f64>,
    /// What lies between encoder and projection.
    pub bridge: Bridge,
    /// Whether the encoder stays as it was trained.
    pub frozen: bool,
    /// The weight of the encoder's own loss, of classes; `None` without one.
    pub own_loss: Option<f64>,
    /// What the encoder's gradients are multiplied by.
    pub vision_scale: Option<f64>,
    /// The encoder's learning rate, over that of the others.
    pub vision_rate: Option<f64>,
    /// Images per step.
    pub batch: usize,
    /// The learning rate.
    pub lr: f64,
    /// How much of its last step an update repeats.
    pub momentum: f64,
    /// The standard deviation of the decoder's first weights.
    pub std: f64,
    /// Where the decoder normalises.
    pub place: NormPlace,
    /// The most training steps.
    pub steps: usize,
    /// Steps between evaluations on held-out images; also between saves.
    pub evaluate_every: usize,
    /// The metric, with its target.
    pub metric: Metric,
    /// The accuracy at which the task counts as solved, and the run ends.
    pub solved: f64,
    /// The command line's options of training.
    pub training: Training,
    /// The encoder as it was trained beforehand.
    pub(super) encoder: Encoder,
}

/// The depth of the encoder.
const DEPTH: usize = 8;
/// The sizes of the decoder.
const WIDTH: usize = 32;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const HIDDEN: usize = 64;
/// The standard deviation of its first weights, and where it normalises.
const STD: f64 = 0.2;
const PLACE: NormPlace = NormPlace::Post;

impl Config {
    /// The settings that flags ask for.
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

    /// The model for such descriptions of digits.
    pub(super) fn model(&self, descriptions: &Descriptions) -> TwoTowerConfig {
        let TwoTowerConfig { vision, text, feature_scale, .. } = sizes(descriptions);
        let checkpoint = self.training.checkpoint;
        let text = GptConfig { place: self.place, std: self.std, checkpoint, ..text };
        let vision = ResNetConfig { checkpoint, ..vision };
        TwoTowerConfig { vision, text, bridge: self.bridge, feature_scale, frozen: self.frozen }
    }
}

/// The model for such descriptions of digits, where nothing is said of it.
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
