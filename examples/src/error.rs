//! The errors of the command, each as one sentence.

use std::path::PathBuf;

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
    /// The session failed.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
    /// An error of a model, its data or its file.
    #[error(transparent)]
    Nn(#[from] wgrad_nn::Error),
}

impl Error {
    /// True if the command line or the run file is wrong: the exit status is then 2.
    pub fn is_of_usage(&self) -> bool {
        matches!(self, Error::Usage(_) | Error::RunFile { .. })
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
