//! The parts of the `wgrad` command: devices and their diagnosis, examples and the metrics of their runs, the tour, the
//! benchmarks, and the check against golden vectors.

pub mod bench;
pub mod cli;
pub mod device;
pub mod doctor;
pub mod history;
pub mod interrupt;
pub mod launch;
pub mod output;
pub mod ranks;
pub mod replay;
pub mod report;
pub mod resnet;
pub mod rnn;
pub mod run;
pub mod runfile;
pub mod runs;
pub mod tape;
pub mod tour;
pub mod transformer;
pub mod two_tower;
pub mod verify;

mod error;

pub use error::{Error, LOST, Result};

/// All cases of all examples.
pub fn cases() -> Vec<run::Case> {
    [
        run::cases("rnn", rnn::CURES),
        run::cases("transformer", transformer::CURES),
        run::cases("resnet", resnet::CURES),
        run::cases("two-tower", two_tower::CURES),
    ]
    .concat()
}
