//! What the command reports, as one plain sentence.

use std::path::PathBuf;

/// An error of the command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that do not go together: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// A line of a run file that is not allowed: exit status 2.
    #[error("{}, line {line}: {why}", path.display())]
    RunFile {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// A GPU that is not there or cannot be opened.
    #[error(transparent)]
    Gpu(#[from] wgrad_wgpu::Error),
    /// A run that fails after it has been saved.
    #[error("{source}. It was saved after {steps} steps: go on with --resume {}", path.display())]
    Saved {
        /// Why it fails.
        source: Box<Error>,
        /// After how many steps it was saved.
        steps: usize,
        /// Where.
        path: PathBuf,
    },
    /// A checkpoint of another run.
    #[error("{path} was saved by a run with {what} {saved}, and this one has {wanted}")]
    OtherRun {
        /// The file.
        path: String,
        /// What differs.
        what: &'static str,
        /// As saved.
        saved: String,
        /// As asked for.
        wanted: String,
    },
    /// A checkpoint whose history of steps is none that a run of this model has made.
    #[error("the history in {} is damaged: it has {why}", path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// An integer of a file that is no class.
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
    /// A file of golden vectors that does not read as one.
    #[error("{} is no {what} of golden vectors: {why}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file of metrics that cannot be written.
    #[error("{}: {why}", path.display())]
    Metrics {
        /// The file.
        path: PathBuf,
        /// Why.
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
        /// Its updates.
        updates: usize,
    },
    /// Nothing to verify, which is no success.
    #[error("{} has no golden vectors{}", path.display(), kind.as_ref().map_or(String::new(), |kind| format!(" of kind {kind:?}")))]
    NoVectors {
        /// The directory.
        path: PathBuf,
        /// The kind that was asked for.
        kind: Option<String>,
    },
    /// A device without a clock for its kernels.
    #[error("{device} does not tell how long its kernels take: profile another device, such as --device cpu")]
    NoKernelTimes {
        /// Its name.
        device: String,
    },
    /// A run failed.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
    /// A model, its data or its file.
    #[error(transparent)]
    Nn(#[from] wgrad_nn::Error),
}

impl Error {
    /// Whether what was asked for is wrong, and not what came of it.
    pub fn is_of_usage(&self) -> bool {
        matches!(self, Error::Usage(_) | Error::RunFile { .. })
    }
}

impl From<wgrad_cpu::Error> for Error {
    fn from(error: wgrad_cpu::Error) -> Self {
        Error::Session(error.into())
    }
}

/// The result of what the command does.
pub type Result<T> = std::result::Result<T, Error>;
