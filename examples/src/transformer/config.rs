//! The settings of a run: the healthy configuration, then the changes of a case, then the changes of a cure.

use super::args::{Case, Fix, Size, TransformerArgs};
use crate::{
    Error, Result,
    cli::{PrecisionName, Training},
    report::Metric,
    run::{Cure, cured, name_of},
};
use std::path::PathBuf;
use wgrad_nn::{GptConfig, LossScale, NormPlace, Schedule, data::Text};

/// The kind of optimizer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Update {
    /// AdamW with its usual settings.
    AdamW,
    /// Stochastic gradient descent with this momentum.
    Momentum(f64),
}

/// A run's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The case.
    pub case: Case,
    /// The cure.
    pub fix: Fix,
    /// The size.
    pub size: Size,
    /// The file of the text; without one, the sources of this crate.
    pub text: Option<PathBuf>,
    /// The network; the text decides its vocabulary.
    pub model: GptConfig,
    /// The factor of the initial weights of queries and keys.
    pub qk_gain: f64,
    /// The number of windows of text per step.
    pub batch: usize,
    /// The optimizer.
    pub update: Update,
    /// The learning rate.
    pub lr: Schedule,
    /// The bound on the global gradient norm.
    pub clip: Option<f64>,
    /// The loss scale.
    pub loss_scale: LossScale,
    /// The divisor of the gradient of the loss.
    pub divisor: f64,
    /// The command line's training options.
    pub training: Training,
    /// The most training steps.
    pub steps: usize,
    /// The number of steps between evaluations on held-out data, and between saves.
    pub evaluate_every: usize,
    /// The target of the validation loss, in nats per character. The healthy configuration reaches it with a margin.
    pub target: f64,
    /// The number of characters to sample at the end.
    pub sample: usize,
}

/// The cures of each case, the default one first.
pub const CURES: &[Cure<Case, Fix>] = &[
    (Case::Healthy, &[]),
    (Case::Exploding, &[Fix::ClipNorm]),
    (Case::PostNorm, &[Fix::PreNorm, Fix::Warmup]),
    (Case::Scores, &[Fix::QkNorm, Fix::Temperature]),
    (Case::Underflow, &[Fix::LossScale]),
];

/// The default numbers of steps. The learning rate falls over this number of steps, whatever `--steps` asks for, so
/// that a run that is stopped early and resumed equals an uninterrupted run.
const SMALL_STEPS: u32 = 500;
const MEDIUM_STEPS: u32 = 5000;

/// A learning rate that rises to `base` in `steps` steps, then falls to a tenth of it.
fn rising(base: f64, steps: u32, total: u32) -> Schedule {
    Schedule::WarmupCosine { base, steps, total, init: base / f64::from(steps.max(1)), end: 0.1 * base }
}

/// The sources of this crate.
pub(crate) const SOURCES: &str = include_str!(concat!(env!("OUT_DIR"), "/sources.txt"));

impl Config {
    /// The settings for the flags.
    ///
    /// # Errors
    /// [`Error::Usage`] if the flags do not go together.
    pub fn new(args: &TransformerArgs, steps: Option<usize>) -> Result<Self> {
        let TransformerArgs { case, fix, size, .. } = *args;
        cured(CURES, case, fix)?;
        if case != Case::Healthy && size != Size::Small {
            return Err(Error::Usage(format!("--case {} requires --size small", name_of(case))));
        }
        if steps == Some(0) {
            return Err(Error::Usage("--steps 0: expected at least 1".into()));
        }
        let mut config = Self::healthy(args);
        args.training.check(config.batch)?;
        config.steps = steps.unwrap_or(config.steps);
        config.break_with(case);
        config.mend_with(fix);
        Ok(config)
    }

    fn healthy(args: &TransformerArgs) -> Self {
        let small = Self {
            case: args.case,
            fix: args.fix,
            size: args.size,
            text: args.text.clone(),
            model: GptConfig {
                width: 64,
                context: 64,
                hidden: 256,
                // One over the square root of the width, so that each layer keeps the scale of its inputs.
                std: 0.125,
                checkpoint: args.training.checkpoint,
                ..GptConfig::small(0)
            },
            qk_gain: 1.0,
            batch: 8,
            update: Update::AdamW,
            lr: rising(3e-3, 50, SMALL_STEPS),
            clip: Some(1.0),
            loss_scale: LossScale::Auto,
            divisor: 1.0,
            training: args.training.clone(),
            steps: SMALL_STEPS as usize,
            evaluate_every: 50,
            // A model of character pairs alone reaches 2.5.
            target: 2.45,
            sample: 0,
        };
        match args.size {
            Size::Small => small,
            Size::Medium => Self {
                model: GptConfig { checkpoint: args.training.checkpoint, ..GptConfig::small(0) },
                lr: rising(2e-3, 100, MEDIUM_STEPS),
                steps: MEDIUM_STEPS as usize,
                evaluate_every: 250,
                target: 1.8,
                ..small
            },
        }
    }

    fn break_with(&mut self, case: Case) {
        match case {
            Case::Healthy => {}
            // Plain gradient descent. Adam divides gradients by their own magnitude, so that neither large gradients
            // nor clipping would matter.
            Case::Exploding => {
                (self.update, self.lr) = (Update::Momentum(0.9), rising(0.5, 0, SMALL_STEPS));
                (self.model.std, self.clip) = (0.3, None);
                // Plain descent is slower, but its target is also below 3.4, the loss of a model of single characters.
                self.target = 2.9;
            }
            Case::PostNorm => {
                (self.model.layers, self.model.place) = (12, NormPlace::Post);
                self.lr = rising(3e-3, 0, SMALL_STEPS);
            }
            Case::Scores => self.qk_gain = 16.0,
            Case::Underflow => {
                (self.training.precision, self.loss_scale) = (PrecisionName::F16, LossScale::None);
                self.divisor = 65536.0;
            }
        }
    }

    fn mend_with(&mut self, fix: Fix) {
        match fix {
            Fix::None => {}
            Fix::ClipNorm => self.clip = Some(1.0),
            Fix::PreNorm => self.model.place = NormPlace::Pre,
            Fix::Warmup => self.lr = rising(3e-3, 150, SMALL_STEPS),
            Fix::QkNorm => self.model.qk_norm = true,
            Fix::Temperature => self.model.temperature = 256.0,
            Fix::LossScale => self.loss_scale = LossScale::Auto,
        }
    }

    /// Reads the text.
    ///
    /// # Errors
    /// If the file cannot be read, is no text, or is too short.
    pub fn read(&self, seed: u64) -> Result<Text> {
        let context = self.model.context;
        Ok(match &self.text {
            Some(path) => Text::read(path, context, seed)?,
            None => Text::new(SOURCES, context, seed)?,
        })
    }

    /// The metric: validation nats per character.
    pub fn metric(&self) -> Metric {
        Metric { name: "nats", target: self.target, rising: false }
    }
}
