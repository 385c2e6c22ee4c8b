//! `wgrad two-tower`: images described by a text, in the manner of LLaVA (Liu et al. 2023): a pretrained, frozen
//! encoder of images, a projection, and a decoder of text.

mod args;
mod command;
mod config;
mod data;
mod encoder;
mod example;

pub use args::{TwoTowerArgs, TwoTowerRunArgs};
pub use command::train;
pub(crate) use config::sizes;
pub use config::{CURES, Case, Config, Fix};
pub(crate) use data::Described;
pub(crate) use encoder::{Encoder, PATH};
pub(crate) use example::Describer;
pub use example::step;
