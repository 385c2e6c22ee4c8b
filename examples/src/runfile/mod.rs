//! `wgrad train FILE.toml` and `wgrad diagnose FILE.toml`: a run without writing Rust, from a file that says model, data, loss, optimizer and what is done to
//! gradients.
//!
//! [`RunFile::read`] checks a file key by key; the file that it opens is trained as the examples are. What a file leaves out is
//! as in the complete file of its model, which [`defaults`] has.

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
