//! The parts of a training script around `wgrad`: modules, initial values, optimizers, schedules, data and checkpoints.
//!
//! - [`Builder`] declares parameters in a `wgrad::Store`; modules are small structs of parameter handles whose
//!   `forward` records onto the tape of its argument: [`Linear`], [`Conv2d`], [`ConvTranspose2d`],
//!   [`Upsample`], [`Embedding`], [`Recurrent`], [`RecurrentStack`], [`MultiHeadAttention`], [`CrossAttention`], [`Rotary`], [`FeedForward`], [`Scale`],
//!   [`Dropout`], the norms [`LayerNorm`], [`RmsNorm`], [`GroupNorm`], [`InstanceNorm`], [`BatchNorm`] and
//!   [`BatchNorm1d`].
//! - [`Gpt`], [`ResNet`], [`TwoTower`] and [`Mlp`] are whole models. Pooling has no parameters: see
//!   `wgrad::Tensor::max_pool2d`.
//! - [`KvCache`] keeps keys and values while a [`Gpt`] writes a text: see [`Gpt::forward_cached`].
//! - [`paths`] selects parameters by pattern, to freeze them or to group them; [`Summary`] prints them; [`probe`] has
//!   statistics of activations.
//! - [`init`] has the published initial values, [`optim`] the optimizers, [`schedule`] the learning rates;
//!   [`Rate::function`] takes a curve of one's own.
//! - [`diagnosis`] finds the faults of a run, and proves remedies by replay.
//! - [`FlightRecorder`] replays the last steps of a run that broke, and names the first non-finite value.
//! - [`Capsule`] keeps a step of a run in a file, to run it again on another device.
//! - [`LrFinder`] tries learning rates from far too low to far too high.
//! - [`Landscape`] measures the curvature of a loss, and the noise of its gradients.
//! - [`Forecast`] warns of signs that a run is about to break.
//! - [`LossWatch`] watches a loss; [`compare`] compares two runs; [`suggest_max_norm`] gives a bound for a clip.
//! - [`track`] hands the records of a run to sinks, such as a file of JSON lines.
//! - [`ClipWatch`] reports a clip that acts on nearly every update, or on none.
//! - [`data`] has tasks, readers of images and texts, and a loader that resumes anywhere, also after an error of the
//!   data set. [`checkpoint`] saves a session to a [`SaveFile`], which no other run can save to meanwhile, and restores
//!   it.
//!
//! Losses and metrics are methods of `wgrad::Tensor`: `cross_entropy`, `mse`, `accuracy`. This crate depends on no
//! backend.
//!
//! ```
//! use wgrad::{DType, Store, Tape};
//! use wgrad_nn::{Builder, Cell, Init, Linear, Recurrent, RecurrentInit, optim::{Sgd, SgdConfig}};
//! use wgrad::Optimizer;
//!
//! let mut store = Store::new();
//! let mut b = Builder::new(&mut store, 1);
//! let rnn = Recurrent::new(b.at("rnn"), Cell::Tanh, 6, 50, &RecurrentInit::smart_tanh());
//! let readout = Linear::new(b.at("readout"), 50, 4, &Init::Normal(0.01));
//! let params = store.params();
//! let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..Default::default() });
//!
//! let tape = Tape::new(store.into_parts().0);
//! let (x, y) = (tape.input("x", [20, 8, 6], DType::F32), tape.input("y", [8], DType::U32));
//! let loss = readout.forward(rnn.forward(x).last).cross_entropy(y);
//! sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
//! ```

pub mod data;
pub mod diagnosis;
pub mod optim;
pub mod track;

mod error;
mod layers;
mod models;
mod monitor;
mod numbers;
mod random;
mod train;

pub use diagnosis::{Forecast, LrFinder, LrPoint, LrRange, Sign, Warning};
pub use error::{Error, Result};
pub use layers::{
    Activation, AttentionConfig, BatchNorm, BatchNorm1d, BlockConfig, Buffers, Builder, Conv2d, ConvTranspose2d,
    CrossAttention, Dropout, Embedding, Fan, FeedForward, GroupNorm, Init, InstanceNorm, Interpolation, KeysValues,
    KvCache, LayerNorm, Linear, MultiHeadAttention, Norm, NormKind, NormPlace, Outputs, Recurrent, RecurrentInit,
    RecurrentStack, Remembered, RmsNorm, Rotary, RotaryPairs, Row, Scale, StackConfig, StackOutputs, Summary,
    TransformerBlock, Upsample, init, omega, paths,
};
pub use models::{
    BlockKind, Bridge, Gpt, GptConfig, Mlp, MlpConfig, MlpLayer, ResNet, ResNetBlock, ResNetConfig, Stem, TwoTower,
    TwoTowerConfig, Unit,
};
pub use monitor::{
    Balance, Boundary, Category, Change, ClipWatch, Comparison, Detail, FlowMeasure, GradMeasure, Histogram, LossAlert,
    LossWatch, Measurement, MonitorConfig, ParamMeasure, Profile, RunHistory, ScoreMeasure, SiteMeasure, UnitMeasure,
    Update, ValueMeasure, compare, probe, suggest_max_norm,
};
pub use optim::{Rate, Schedule, schedule};
pub use train::{
    Capsule, Edit, Eigenvalue, Estimate, Failure, FlightConfig, FlightMemory, FlightRecorder, Inputs, Landscape, Loss,
    LossScale, NoiseScale, Part, Precision, Replay, SaveFile, Spike, Spot, Stability, Trainer, TrainerConfig,
    Transform, checkpoint, cosine, write_edits,
};
pub use wgrad::Cell;
