//! Runs: the code that all examples share, from the first batch to the verdict.
//!
//! An example implements [`Runnable`] and [`Example`]; this module trains, watches, saves, resumes, judges and shows
//! it. Most examples are a [`Network`] with a [`wgrad_nn::Trainer`].

mod cases;
mod data;
mod diagnose;
mod example;
mod live;
mod metrics;
mod network;
mod recorded;
mod show;
mod table;
mod train;

pub(crate) use cases::name_of;
pub use cases::{Case, Cure, cases, cured};
pub use data::{Data, Feed, Tasks, stretch};
pub use diagnose::{Diagnose, diagnose};
pub use example::{Example, Names, Runnable, Seen, Settings};
pub use metrics::{Kept, Metrics, QUEUE};
pub use network::{Network, Objective, Plan, open, program};
pub use recorded::measured;
pub use show::{Asked, Beside, compare, line, show};
pub use table::{Column, table};
pub use train::{Files, Finished, Watch, check, run};
