//! `wgrad transformer`: a decoder that learns a text character by character.

mod args;
mod command;
mod config;
mod example;
mod sample;

pub use args::{Case, Fix, Size, TransformerArgs, TransformerRunArgs};
pub use command::train;
pub(crate) use config::SOURCES;
pub use config::{CURES, Config};
pub use example::step;
pub(crate) use example::{enlarge, held_out};
