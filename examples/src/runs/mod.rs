//! Recorded runs: lists and comparisons of them.

mod compare;
mod list;
mod summary;

pub use compare::{CompareArgs, compare};
pub use list::{RunsArgs, runs};
