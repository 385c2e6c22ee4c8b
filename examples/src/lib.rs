//! What the `wgrad` command is made of: devices, examples, the measures that a run is judged by, the tour, and the
//! benchmarks.

pub mod bench;
pub mod cli;
pub mod device;
pub mod interrupt;
pub mod output;
pub mod report;
pub mod rnn;
pub mod tour;

mod error;

pub use error::{Error, Result};
