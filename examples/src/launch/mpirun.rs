//! The process of `mpirun`: how it is started, interrupted, and how it ended.

use super::stuck::Watch;
use crate::{Error, LOST, Result, interrupt};
use std::{
    io,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

/// The time between two looks at the process.
const BETWEEN: Duration = Duration::from_millis(20);

/// The exit statuses of a shell for a signal begin here, and `mpirun` has those of its ranks.
const SIGNAL: i32 = 128;

/// The signals of crashes and of a machine without memory: SIGABRT, SIGBUS, SIGKILL and SIGSEGV. Others ask a process
/// to end, or are numbers of `mpirun`'s own errors: it ends with 132 if it does not find the program.
const LOSING: [i32; 4] = [6, 7, 9, 11];

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It ended by itself, or was asked to, with this exit status.
    Ended(u8),
    /// A rank was lost, and the others ended because of that; as a part of a sentence.
    Lost(String),
}

impl Outcome {
    /// The outcome for an exit status of `mpirun`: that of the first rank that failed, or a signal that has ended a rank.
    /// Open MPI counts signals from 128 on, as a shell does. MPICH does not, and puts the statuses of several ranks
    /// together bit by bit; no status of this command is one of these signals.
    pub fn of(status: i32) -> Self {
        match status - SIGNAL {
            _ if status == i32::from(LOST) || LOSING.contains(&status) => Self::Lost("a rank was lost".into()),
            signal if LOSING.contains(&signal) => Self::Lost(format!("signal {signal} ended a rank")),
            _ => Self::Ended(u8::try_from(status).unwrap_or(1)),
        }
    }
}

/// Runs a command of `mpirun` to its end. Ctrl-C is passed on once.
///
/// If it no longer answers, it is killed, and the run has lost a rank.
///
/// # Errors
/// [`Error::NoMpirun`] if it is not there, [`Error::Mpirun`] if it cannot be run or if a signal has ended it.
pub fn run(command: &mut Command) -> Result<Outcome> {
    let path = Path::new(command.get_program()).to_path_buf();
    // Ranks read no input, and a process of another group must not.
    command.stdin(Stdio::null());
    #[cfg(unix)]
    {
        // A terminal sends Ctrl-C to the whole group. From this command mpirun gets it once: the second one kills ranks.
        std::os::unix::process::CommandExt::process_group(command, 0);
    }
    let fails = |error: io::Error| Error::Mpirun { path: path.clone(), why: error.to_string() };
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoMpirun { path: path.clone() },
        _ => fails(error),
    })?;
    let mut watch = Watch::new(child.id());
    let (mut passed_on, mut killed) = (false, false);
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait().map_err(fails)? {
            break status;
        }
        if interrupt::requested() && !passed_on {
            passed_on = true;
            pass_on(&mut child).map_err(fails)?;
        }
        if !killed && watch.is_stuck() {
            killed = true;
            child.kill().map_err(fails)?;
        }
        thread::sleep(BETWEEN);
    };
    match status.code() {
        Some(code) if passed_on => Ok(Outcome::Ended(u8::try_from(code).unwrap_or(1))),
        Some(code) => Ok(Outcome::of(code)),
        None if passed_on => Ok(Outcome::Ended(interrupt::INTERRUPTED)),
        None if killed => Ok(Outcome::Lost("mpirun did not answer after all its ranks had ended".into())),
        None => Err(Error::Mpirun { path, why: format!("it ended by {status}") }),
    }
}

/// Passes Ctrl-C on.
#[cfg(unix)]
fn pass_on(child: &mut Child) -> io::Result<()> {
    let id = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: the process has not been waited for to its end, so the number is still its own.
    match unsafe { libc::kill(id, libc::SIGINT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(unix))]
fn pass_on(child: &mut Child) -> io::Result<()> {
    child.kill()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_rank_is_a_reason_to_start_again() {
        for status in [0, 1, 2, 101, 130, 132, 143] {
            assert_eq!(Outcome::of(status), Outcome::Ended(status as u8));
        }
        for status in [3, 9, 3 | 9] {
            assert_eq!(Outcome::of(status), Outcome::Lost("a rank was lost".into()));
        }
        assert_eq!(Outcome::of(137), Outcome::Lost("signal 9 ended a rank".into()));
        assert_eq!(Outcome::of(139), Outcome::Lost("signal 11 ended a rank".into()));
    }
}
