//! The options of a run on several ranks.

use crate::cli::seconds;
use clap::Args;
use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

/// The largest number of ranks in one process.
const MOST_THREADS: usize = 256;

/// The time that a rank waits for another, in seconds, if the command line does not say.
const PATIENCE: &str = "60";

/// The kind of ranks that train together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranks {
    /// Processes that `mpirun` has started.
    Mpi,
    /// Threads of this process.
    Threads(NonZeroUsize),
}

impl FromStr for Ranks {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let threads = |number: &str| number.parse().ok().filter(|n: &NonZeroUsize| n.get() <= MOST_THREADS);
        match (name, name.strip_prefix("threads:").and_then(threads)) {
            ("mpi", _) => Ok(Ranks::Mpi),
            (_, Some(number)) => Ok(Ranks::Threads(number)),
            _ => Err(format!("expected mpi, or threads:N with N from 1 to {MOST_THREADS}")),
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ranks::Mpi => write!(f, "mpi"),
            Ranks::Threads(number) => write!(f, "threads:{number}"),
        }
    }
}

/// The options of a run on several ranks.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RanksArgs {
    /// Train on several ranks, each of which takes its share of each batch: mpi (the processes that mpirun has started:
    /// see `wgrad launch`), or threads:N (N threads of this process, with the cores in equal parts)
    #[arg(long, value_name = "RANKS")]
    pub ranks: Option<Ranks>,
    /// Share out what the optimizer keeps among the ranks, so that each has a part of it in memory (stage 1 of ZeRO); the
    /// bits are the same
    #[arg(long, requires = "ranks")]
    pub shard: bool,
    /// Send gradients of ranks of MPI in pieces while the backward pass goes on, which pays where the network is slow; the
    /// bits are the same
    #[arg(long, requires = "ranks")]
    pub overlap: bool,
    /// The time that a rank of MPI waits for another before it counts as lost
    #[arg(long, value_name = "SECONDS", default_value = PATIENCE, value_parser = seconds)]
    pub patience: Duration,
}

impl Default for RanksArgs {
    fn default() -> Self {
        Self { ranks: None, shard: false, overlap: false, patience: seconds(PATIENCE).expect("a number of seconds") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_they_print() {
        for name in ["mpi", "threads:1", "threads:256"] {
            assert_eq!(name.parse::<Ranks>().map(|ranks| ranks.to_string()), Ok(name.into()));
        }
        for name in ["", "mpi:2", "threads", "threads:", "threads:0", "threads:257", "threads:-1", "4"] {
            assert!(name.parse::<Ranks>().is_err_and(|why| why.contains("threads:N")), "{name}");
        }
    }
}
