//! The one error type of `cargo xtask`, and the exit status that each error stands for.

use std::fmt;
use std::process::ExitStatus;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a subcommand stopped.
#[derive(Debug)]
pub enum Error {
    /// The command line makes no sense; the usage text follows the message.
    Usage(String),
    /// A check of our own failed, or something it needs could not be read or started.
    Failed(String),
    /// A command that we started failed, and has said why on its own.
    Command {
        /// The command as it was printed.
        line: String,
        /// How it ended.
        status: ExitStatus,
    },
}

impl Error {
    /// The status to exit with: that of the failing command where there is one.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Failed(_) => 1,
            Error::Command { status, .. } => {
                status.code().or_else(|| signal_code(*status)).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(message) | Error::Failed(message) => f.write_str(message),
            Error::Command { line, status } => write!(f, "`{line}` failed: {status}"),
        }
    }
}

/// The status that a shell reports for a process ended by a signal, such as 130 after Ctrl-C.
#[cfg(unix)]
fn signal_code(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map(|signal| 128 + signal)
}

/// Signals exist on Unix only.
#[cfg(not(unix))]
fn signal_code(_: ExitStatus) -> Option<i32> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_exit_status_is_that_of_the_failing_command() {
        let exit_code = |raw| Error::Command { line: "x".into(), status: ExitStatus::from_raw(raw) }.exit_code();
        assert_eq!(exit_code(101 << 8), 101);
        assert_eq!(exit_code(2), 130);
    }
}
