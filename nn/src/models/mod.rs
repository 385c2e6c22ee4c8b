//! Whole models, made of layers.

mod gpt;
mod mlp;
mod resnet;
mod two_tower;

pub use gpt::{Gpt, GptConfig};
pub use mlp::{Mlp, MlpConfig, MlpLayer};
pub use resnet::{BlockKind, ResNet, ResNetBlock, ResNetConfig, Stem, Unit};
pub use two_tower::{Bridge, TwoTower, TwoTowerConfig};
