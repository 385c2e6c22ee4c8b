//! What a training script needs around `wgrad`: modules, initial values, optimizers, schedules, data and checkpoints.
//!
//! - [`Builder`] declares parameters in a `wgrad::Store`; modules ([`Linear`], [`Embedding`], [`Dropout`], [`Recurrent`]) are small
//!   structs of parameter handles whose `forward` records onto the tape of its argument.
//! - [`init`] has the published initial values, [`optim`] the optimizers, [`schedule`] the learning rates.
//! - [`ClipWatch`] says when a clip acts on every update, or on none.
//! - [`data`] has the tasks, [`checkpoint`] saves and restores a session.
//!
//! Losses and metrics are methods of `wgrad::Tensor`: `cross_entropy`, `mse`, `accuracy`. This crate names no device.
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

pub mod checkpoint;
pub mod data;
pub mod init;
pub mod optim;
pub mod schedule;

mod builder;
mod dropout;
mod embedding;
mod error;
mod linalg;
mod linear;
mod omega;
mod random;
mod recurrent;
mod trainer;
mod watch;

pub use builder::Builder;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use init::{Fan, Init};
pub use linear::Linear;
pub use omega::omega;
pub use recurrent::{Outputs, Recurrent, RecurrentInit};
pub use schedule::Schedule;
pub use trainer::{Inputs, Loss, LossScale, Precision, Trainer, TrainerConfig, Update};
pub use watch::ClipWatch;
pub use wgrad::Cell;
