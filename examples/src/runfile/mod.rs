//! `wgrad train FILE.toml` and `wgrad diagnose FILE.toml`: runs that a file describes instead of Rust code: the model,
//! data, loss, optimizer and passes on gradients.
//!
//! [`RunFile::read`] checks a file key by key; the run is then trained as the examples are. Keys that a file leaves out
//! have the values of the complete file of its model, which [`defaults`] returns.

mod command;
mod config;
mod diagnose;
mod document;
mod feed;
mod model;
mod read;
mod recipe;
mod words;

pub use command::{TrainArgs, train};
pub use config::RunFile;
pub use diagnose::{DiagnoseArgs, diagnose};
pub use read::{defaults, models};
