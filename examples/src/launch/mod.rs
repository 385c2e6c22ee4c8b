//! `wgrad launch`: a run on several ranks by `mpirun`, which goes on when a rank is lost.

mod args;
mod command;
mod mpirun;
mod restart;
mod stuck;

pub use args::LaunchArgs;
pub use command::launch;
