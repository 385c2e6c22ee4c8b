//! `wgrad bench`: times training steps and single operations, in the way of the runners of other frameworks.

mod command;
pub mod data;
mod measure;
mod networks;
mod passes;
pub mod peers;
mod primitives;
pub mod profile;
mod recurrent;
mod row;
mod training;

pub use command::bench;
