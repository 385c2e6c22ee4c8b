//! Runs that have been kept: lists of them, and one beside another.

mod compare;
mod list;
mod summary;

pub use compare::{CompareArgs, compare};
pub use list::{RunsArgs, runs};
