//! What a run is: the healthy configuration, then what a case breaks, then what a cure mends.

use super::args::ResNetArgs;
use crate::{
    Error, Result,
    cli::Training,
    report::Metric,
    run::{Cure, cured},
};
use clap::ValueEnum;
use std::path::PathBuf;
use wgrad_nn::{Activation, BlockKind, Fan, Init, NormKind, ResNetConfig, Schedule, data::Images};

/// What is wrong with a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// Nothing.
    #[default]
    Healthy,
    /// 56 layers and no shortcuts.
    Degradation,
    /// Nothing normalises, at batch and learning rate for large batches.
    Exploding,
    /// The weights of a plain network start too small.
    Vanishing,
    /// The units of a plain network are sigmoids.
    Sigmoid,
    /// The learning rate of a plain network kills its units.
    DeadRelu,
}

/// What cures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// Nothing.
    #[default]
    None,
    /// Add what comes into a block to what it gives.
    Residual,
    /// Clip each unit's gradient by the norm of its weights.
    Agc,
    /// Normalise what each convolution gives, over the batch.
    BatchNorm,
    /// Clip the global gradient norm to 0.1.
    ClipNorm,
    /// He's first values, which keep the variance from layer to layer.
    HeInit,
    /// Rectified units.
    Relu,
    /// Rectified units that let a share of what is below 0 pass.
    LeakyRelu,
}

/// Which cures a case has, the default one first.
pub const CURES: &[Cure<Case, Fix>] = &[
    (Case::Healthy, &[]),
    (Case::Degradation, &[Fix::Residual]),
    (Case::Exploding, &[Fix::Agc, Fix::BatchNorm, Fix::ClipNorm]),
    (Case::Vanishing, &[Fix::HeInit, Fix::BatchNorm]),
    (Case::Sigmoid, &[Fix::Relu]),
    (Case::DeadRelu, &[Fix::LeakyRelu]),
];

/// Where images come from.
#[derive(Clone, PartialEq, Debug)]
pub enum Source {
    /// The digits that the crate carries.
    Digits,
    /// A folder of CIFAR-10 or MNIST.
    Folder(PathBuf),
}

/// A run's settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The case.
    pub case: Case,
    /// The cure.
    pub fix: Fix,
    /// Where images come from.
    pub source: Source,
    /// The number of layers with weights.
    pub depth: usize,
    /// Whether blocks have shortcuts.
    pub residual: bool,
    /// Whether convolutions are followed by batch normalisation.
    pub batch_norm: bool,
    /// The units.
    pub activation: Activation,
    /// First values of the convolutions' weights.
    pub init: Init,
    /// Images per step.
    pub batch: usize,
    /// The learning rate.
    pub lr: Schedule,
    /// How much of its last step an update repeats.
    pub momentum: f64,
    /// L2 decay.
    pub weight_decay: f64,
    /// The factor of adaptive clipping.
    pub agc: Option<f64>,
    /// The bound on the global gradient norm.
    pub clip_norm: Option<f64>,
    /// The most training steps.
    pub steps: usize,
    /// Steps between evaluations on held-out images; also between saves.
    pub evaluate_every: usize,
    /// The accuracy at which the task counts as solved, and the run ends.
    pub solved: f64,
    /// The command line's options of training.
    pub training: Training,
}

/// The depth of a network without another.
const DEPTH: usize = 20;
/// The depth at which plain networks are worse than shallower ones.
const DEEP: usize = 56;
/// The depth to which a plain network without normalisation learns well from sound first values.
const SHALLOW: usize = 8;
/// The number of updates of a healthy run.
const STEPS: usize = 600;
/// The highest rate of a network.
const RATE: f64 = 0.1;
/// That of a plain one without normalisation.
const PLAIN: f64 = 0.05;
/// The number of updates that He et al. trained on CIFAR-10.
const PUBLISHED: usize = 64_000;
/// The greatest depth.
const DEEPEST: usize = 302;

/// The updates over which the rate rises: before that, what one rounding changes would be in every digit of the loss ten
/// updates later.
const RISE: u32 = 100;

/// A rate that goes from `init` to `base` in `rise` updates, then along a cosine to a hundredth of it. Where a rate
/// does not fall, it hangs on last bits whether a run ends in time.
fn reaching(init: f64, rise: u32, base: f64, steps: usize) -> Schedule {
    Schedule::WarmupCosine { base, steps: rise, total: steps as _, init, end: 0.01 * base }
}

/// A rate that falls from its first value on.
fn falling(base: f64, steps: usize) -> Schedule {
    reaching(base, 0, base, steps)
}

/// A rate that rises before it falls.
fn rising(base: f64, steps: usize) -> Schedule {
    reaching(base / f64::from(RISE), RISE, base, steps)
}

impl Config {
    /// The settings that flags ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] if the flags do not go together.
    pub fn new(args: &ResNetArgs, steps: Option<usize>) -> Result<Self> {
        let usage = |text: String| Err(Error::Usage(text));
        let ResNetArgs { case, fix, .. } = *args;
        cured(CURES, case, fix)?;
        let depth = args.depth.unwrap_or(match case {
            Case::Degradation => DEEP,
            Case::Vanishing | Case::Sigmoid | Case::DeadRelu => SHALLOW,
            Case::Healthy | Case::Exploding => DEPTH,
        });
        if depth > DEEPEST || ResNetConfig::small(depth, BlockKind::Basic, 1, 1).is_err() {
            return usage(format!("--depth {depth}: expected 8, 14, 20 and so on by 6, at most {DEEPEST}"));
        }
        if steps == Some(0) {
            return usage("--steps 0: expected at least 1".into());
        }
        let mut config = Self::healthy(args, depth);
        (config.case, config.fix) = (case, fix);
        config.break_with(case);
        config.mend_with(fix);
        config.steps = steps.unwrap_or(config.steps);
        config.training.check(config.batch)?;
        Ok(config)
    }

    fn healthy(args: &ResNetArgs, depth: usize) -> Self {
        let digits = Self {
            case: Case::Healthy,
            fix: Fix::None,
            source: Source::Digits,
            depth,
            residual: true,
            batch_norm: true,
            activation: Activation::Relu,
            init: Init::He { fan: Fan::In },
            batch: 64,
            lr: rising(RATE, STEPS),
            momentum: 0.9,
            weight_decay: 0.0,
            agc: None,
            clip_norm: None,
            steps: STEPS,
            evaluate_every: 50,
            solved: 0.98,
            training: args.training.clone(),
        };
        match &args.data {
            None => digits,
            // Batch, rate and decay as published, with a cosine in place of two drops.
            Some(folder) => Self {
                source: Source::Folder(folder.clone()),
                batch: 128,
                lr: falling(RATE, PUBLISHED),
                weight_decay: 1e-4,
                steps: PUBLISHED,
                evaluate_every: 500,
                solved: f64::NAN,
                ..digits
            },
        }
    }

    fn break_with(&mut self, case: Case) {
        match case {
            Case::Healthy => {}
            Case::Degradation => self.residual = false,
            Case::Exploding => {
                (self.batch_norm, self.weight_decay) = (false, 5e-4);
                (self.batch, self.steps) = (128, 1000);
                self.lr = falling(0.4, self.steps);
            }
            Case::Vanishing => {
                self.plain();
                self.init = Init::Normal(0.02);
            }
            Case::Sigmoid => {
                self.plain();
                self.activation = Activation::Sigmoid;
            }
            Case::DeadRelu => {
                self.plain();
                // No step is long, and yet the first 300 together are. With more decay they leave some cured networks slow to
                // learn.
                (self.clip_norm, self.weight_decay, self.steps) = (Some(1.0), 5e-4, 2000);
                self.lr = reaching(1.5, 300, PLAIN, self.steps);
            }
        }
    }

    /// Neither shortcuts nor normalisation: what is healthy then learns at half the rate, and takes longer.
    fn plain(&mut self) {
        (self.residual, self.batch_norm, self.weight_decay) = (false, false, 2e-3);
        self.steps = 1500;
        self.lr = rising(PLAIN, self.steps);
    }

    fn mend_with(&mut self, fix: Fix) {
        match fix {
            Fix::None => {}
            Fix::Residual => self.residual = true,
            Fix::Agc => self.agc = Some(0.01),
            Fix::BatchNorm => self.batch_norm = true,
            Fix::ClipNorm => self.clip_norm = Some(0.1),
            Fix::HeInit => self.init = Init::He { fan: Fan::In },
            Fix::Relu => self.activation = Activation::Relu,
            Fix::LeakyRelu => self.activation = Activation::LeakyRelu(0.5),
        }
    }

    /// The network for such images.
    pub(super) fn network(&self, images: &Images) -> ResNetConfig {
        let widths = match self.source {
            Source::Digits => ResNetConfig::small,
            Source::Folder(_) => ResNetConfig::cifar,
        };
        let sized = widths(self.depth, BlockKind::Basic, images.shape()[0], images.classes());
        ResNetConfig {
            residual: self.residual,
            norm: if self.batch_norm { NormKind::BATCH } else { NormKind::None },
            silent: true,
            activation: self.activation,
            init: self.init.clone(),
            checkpoint: self.training.checkpoint,
            ..sized.expect("the depth has been checked")
        }
    }

    /// Accuracy, with what the healthy network reaches with a margin: less of photographs than of digits.
    pub(super) fn metric(&self, images: &Images) -> Metric {
        let target = if images.shape()[0] > 1 { 0.9 } else { 0.97 };
        Metric { name: "accuracy", target, rising: true }
    }
}
