//! `wgrad resnet`: residual and plain networks for images, after He, Zhang, Ren & Sun 2015 and 2016.

mod args;
mod command;
mod config;
mod data;
mod example;

pub use args::{ResNetArgs, ResNetRunArgs};
pub use command::train;
pub use config::{CURES, Case, Config, Fix, Source};
pub use example::step;
