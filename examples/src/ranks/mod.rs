//! Ranks: runs that train one model together, as processes of MPI or as threads of one process.
//!
//! Each rank runs the whole command, and takes its share of each batch. Rank 0 alone prints and writes files.

mod args;
mod each;
mod rank;
mod share;
mod streams;

pub use args::{Ranks, RanksArgs};
pub use each::each;
pub use rank::Rank;
pub use share::Share;
pub(crate) use streams::own_streams;
