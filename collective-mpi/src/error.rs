//! Errors of connecting. Those of exchanges are [`wgrad::Error`].

/// An error of [`crate::World::connect`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No launcher of MPI has started this process.
    #[error("this process was not started as a rank: start it with `mpirun -n <ranks>`")]
    NotStarted,
    /// MPI connects a process once.
    #[error("this process has been connected before, and MPI connects a process once")]
    AlreadyConnected,
    /// The library does not serve programs with threads.
    #[error("this MPI library does not serve a program with threads (MPI_THREAD_SERIALIZED)")]
    Threads,
    /// A rank waits for another time than rank 0.
    #[error("rank {rank} has another patience than rank 0")]
    Patience {
        /// The rank.
        rank: usize,
    },
    /// A rank is another version of wgrad ([`wgrad::Error::RanksDiffer`]), or is lost ([`wgrad::Error::RankLost`]).
    #[error(transparent)]
    Ranks(#[from] wgrad::Error),
}
