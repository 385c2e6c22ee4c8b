//! The errors of the command, each as one sentence.

use std::{io, path::PathBuf};

/// The exit status of a run that has lost a rank. A launcher may start such a run again.
pub const LOST: u8 = 3;

/// An error of the command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that do not go together: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// An invalid line of a run file: exit status 2.
    #[error("{}, line {line}: {why}", path.display())]
    RunFile {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The mistake, and the values that are allowed.
        why: String,
    },
    /// A GPU that is not there or cannot be opened.
    #[error(transparent)]
    Gpu(#[from] wgrad_wgpu::Error),
    /// A run that fails after it has been saved.
    #[error("{source}. It was saved after {steps} steps: go on with --resume {}", path.display())]
    Saved {
        /// The reason of the failure.
        source: Box<Error>,
        /// The number of steps that the saved run has made.
        steps: usize,
        /// The file that it was saved to.
        path: PathBuf,
    },
    /// A checkpoint of another run.
    #[error("{path} was saved by a run with {what} {saved}, and this one has {wanted}")]
    OtherRun {
        /// The file.
        path: String,
        /// The setting that differs.
        what: &'static str,
        /// The setting of the saved run.
        saved: String,
        /// The setting of this run.
        wanted: String,
    },
    /// A checkpoint whose history of steps no run of this model can have made.
    #[error("the history in {} is damaged: it has {why}", path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// The damage, as the end of a sentence: "it has ..".
        why: String,
    },
    /// An integer in a file that is not a class index.
    #[error("{path}: the tensor {tensor:?} holds {value}, and the classes are 0 to {last}")]
    NoClass {
        /// The file.
        path: String,
        /// The tensor.
        tensor: String,
        /// The integer.
        value: i64,
        /// The last class.
        last: u32,
    },
    /// A file of golden vectors that cannot be parsed.
    #[error("{}: the {what} of golden vectors cannot be read: {why}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// The kind of file that was expected.
        what: &'static str,
        /// The reason that the file cannot be parsed.
        why: String,
    },
    /// A file of metrics that cannot be written.
    #[error("{}: {why}", path.display())]
    Metrics {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A folder without a run.
    #[error("{} holds no run: no folder in it has the file metrics.jsonl, which --report DIR writes", path.display())]
    NoRuns {
        /// The folder.
        path: PathBuf,
    },
    /// A run that is too short to be compared.
    #[error("{} is a run of {updates} updates, and a comparison needs at least 2", path.display())]
    ShortRun {
        /// The folder or file.
        path: PathBuf,
        /// The number of its updates.
        updates: usize,
    },
    /// A directory without vectors to verify, which does not count as success.
    #[error("{} has no golden vectors{}", path.display(), kind.as_ref().map_or(String::new(), |kind| format!(" of kind {kind:?}")))]
    NoVectors {
        /// The directory.
        path: PathBuf,
        /// The kind that `--kind` asks for.
        kind: Option<String>,
    },
    /// A device without a clock for its kernels.
    #[error("{device} does not tell how long its kernels take: profile another device, such as --device cpu")]
    NoKernelTimes {
        /// The device's name.
        device: String,
    },
    /// An error of one rank among others.
    #[error("rank {rank}: {source}")]
    OfRank {
        /// The rank.
        rank: usize,
        /// The error.
        source: Box<Error>,
    },
    /// MPI does not start.
    #[error("MPI does not start: {0}")]
    Mpi(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread of a rank cannot be started.
    #[error("the thread of a rank cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The program that starts the ranks is not there.
    #[error(
        "{} is not there: install Open MPI (on Debian and Ubuntu the packages openmpi-bin and libopenmpi-dev), or name \
         its mpirun by --mpirun PATH", path.display()
    )]
    NoMpirun {
        /// The program.
        path: PathBuf,
    },
    /// The program that starts the ranks cannot be run, or was killed itself.
    #[error("{} cannot go on: {why}", path.display())]
    Mpirun {
        /// The program.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A rank was lost once more than the launcher starts again: exit status 3.
    #[error("{why}: not started again, as {left}")]
    RanksLost {
        /// The way in which the ranks ended.
        why: String,
        /// The reason that the launcher gives up.
        left: String,
    },
    /// The session failed.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
    /// An error of a model, its data or its file.
    #[error(transparent)]
    Nn(#[from] wgrad_nn::Error),
}

impl Error {
    /// The exit status: 2 if the command line or the run file is wrong, 3 if a rank was lost, and 1 otherwise.
    pub fn status(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::RunFile { .. } => 2,
            Error::RanksLost { .. } => LOST,
            Error::Saved { source, .. } | Error::OfRank { source, .. } => source.status(),
            _ => match self.of_session() {
                Some(wgrad::Error::RankLost { .. }) => LOST,
                _ => 1,
            },
        }
    }

    /// True if it only tells that another rank has failed or is lost.
    pub(crate) fn is_of_another_rank(&self) -> bool {
        let error = self.without_rank().of_session();
        matches!(error, Some(wgrad::Error::RankLost { .. } | wgrad::Error::RankFailed { .. }))
    }

    /// The error of a rank without the rank's number.
    pub(crate) fn without_rank(&self) -> &Error {
        if let Error::OfRank { source, .. } = self { source } else { self }
    }

    fn of_session(&self) -> Option<&wgrad::Error> {
        match self {
            Error::Session(error) | Error::Nn(wgrad_nn::Error::Session(error)) => Some(error),
            _ => None,
        }
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
