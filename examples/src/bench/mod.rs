//! `wgrad bench`: times training steps and single operations, as the runners of other frameworks do.

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
