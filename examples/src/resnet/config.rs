//! The settings of a run: the healthy configuration, then the changes of a case, then the changes of a cure.

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

/// The failures that a run can reproduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Case {
    /// No failure.
    #[default]
    Healthy,
    /// 56 layers and no shortcuts.
    Degradation,
    /// No normalisation, with the batch and the learning rate of large-batch training.
    Exploding,
    /// The weights of a plain network start too small.
    Vanishing,
    /// The units of a plain network are sigmoids.
    Sigmoid,
    /// The learning rate of a plain network kills its units.
    DeadRelu,
}

/// The cures of the cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Fix {
    /// No cure.
    #[default]
    None,
    /// Add the input of each block to its output.
    Residual,
    /// Clip each unit's gradient by the norm of its weights.
    Agc,
    /// Normalise the outputs of each convolution over the batch.
    BatchNorm,
    /// Clip the global gradient norm to 0.1.
    ClipNorm,
    /// He's initial weights, which keep the variance from layer to layer.
    HeInit,
    /// Rectified units.
    Relu,
    /// Leaky rectified units, which pass a share of each negative value.
    LeakyRelu,
}

/// The cures of each case, the default one first.
pub const CURES: &[Cure<Case, Fix>] = &[
    (Case::Healthy, &[]),
    (Case::Degradation, &[Fix::Residual]),
    (Case::Exploding, &[Fix::Agc, Fix::BatchNorm, Fix::ClipNorm]),
    (Case::Vanishing, &[Fix::HeInit, Fix::BatchNorm]),
    (Case::Sigmoid, &[Fix::Relu]),
    (Case::DeadRelu, &[Fix::LeakyRelu]),
];

/// The source of the images.
#[derive(Clone, PartialEq, Debug)]
pub enum Source {
    /// The digits built into the crate.
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
    /// The source of the images.
    pub source: Source,
    /// The number of layers with weights.
    pub depth: usize,
    /// True if blocks have shortcuts.
    pub residual: bool,
    /// True if batch normalisation follows each convolution.
    pub batch_norm: bool,
    /// The activation function.
    pub activation: Activation,
    /// The initial weights of the convolutions.
    pub init: Init,
    /// The number of images per step.
    pub batch: usize,
    /// The learning rate.
    pub lr: Schedule,
    /// The share of the last update that is added to the next.
    pub momentum: f64,
    /// The factor of L2 weight decay.
    pub weight_decay: f64,
    /// The factor of adaptive clipping.
    pub agc: Option<f64>,
    /// The bound on the global gradient norm.
    pub clip_norm: Option<f64>,
    /// The most training steps.
    pub steps: usize,
    /// The number of steps between evaluations on held-out images, and between saves.
    pub evaluate_every: usize,
    /// The accuracy at which the task counts as solved, and the run ends.
    pub solved: f64,
    /// The command line's training options.
    pub training: Training,
}

/// The default depth of a network.
const DEPTH: usize = 20;
/// The depth at which plain networks are worse than shallower ones.
const DEEP: usize = 56;
/// The depth at which a plain network without normalisation still learns well from good initial weights.
const SHALLOW: usize = 8;
/// The number of updates of a healthy run.
const STEPS: usize = 600;
/// The peak learning rate of a network.
const RATE: f64 = 0.1;
/// The peak learning rate of a plain network without normalisation.
const PLAIN: f64 = 0.05;
/// The number of updates that He et al. trained on CIFAR-10.
const PUBLISHED: usize = 64_000;
/// The greatest depth.
const DEEPEST: usize = 302;

/// The number of updates over which the rate rises. With the full rate from the start, one rounding error would reach
/// every digit of the loss within ten updates.
const RISE: u32 = 100;

/// A rate that goes from `init` to `base` in `rise` updates, then along a cosine to a hundredth of `base`. With a rate
/// that does not fall, rounding errors decide whether a run solves the task in time.
fn reaching(init: f64, rise: u32, base: f64, steps: usize) -> Schedule {
    Schedule::WarmupCosine { base, steps: rise, total: steps as _, init, end: 0.01 * base }
}

/// A rate that falls from the start.
fn falling(base: f64, steps: usize) -> Schedule {
    reaching(base, 0, base, steps)
}

/// A rate that rises before it falls.
fn rising(base: f64, steps: usize) -> Schedule {
    reaching(base / f64::from(RISE), RISE, base, steps)
}

impl Config {
    /// The settings for the flags.
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
            // The batch size, rate and weight decay are the published ones; a cosine replaces the two drops of the
            // rate.
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
                // The clip bounds each step, but the first 300 steps together move the weights far. With more weight
                // decay, these steps leave some cured networks slow to learn.
                (self.clip_norm, self.weight_decay, self.steps) = (Some(1.0), 5e-4, 2000);
                self.lr = reaching(1.5, 300, PLAIN, self.steps);
            }
        }
    }

    /// Removes shortcuts and normalisation. Even a healthy network then needs half the learning rate, and more steps.
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

    /// The configuration of a network for these images.
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

    /// Accuracy, with a target that the healthy network reaches with a margin: lower for photographs than for digits.
    pub(super) fn metric(&self, images: &Images) -> Metric {
        let target = if images.shape()[0] > 1 { 0.9 } else { 0.97 };
        Metric { name: "accuracy", target, rising: true }
    }
}
