//! An `mpirun` that no longer answers. Open MPI 4 can lock itself up when a rank dies while it connects: all ranks have
//! ended then, `mpirun` takes no note of it, and it hears no signal but SIGKILL.

use std::{
    fs,
    time::{Duration, Instant},
};

/// The time in which a working `mpirun` takes note of the end of its ranks. It needs microseconds.
const AT_MOST: Duration = Duration::from_secs(5);

/// The time between two looks at the processes of this machine.
const BETWEEN: Duration = Duration::from_millis(500);

/// A watch over a process that others have been started by.
pub struct Watch {
    process: u32,
    looked: Instant,
    since: Option<Instant>,
}

impl Watch {
    /// A watch over a process.
    pub fn new(process: u32) -> Self {
        Self { process, looked: Instant::now(), since: None }
    }

    /// True if all that the process has started has ended some time ago without being waited for. Where there is no `/proc`,
    /// it is never true.
    pub fn is_stuck(&mut self) -> bool {
        if self.looked.elapsed() >= BETWEEN {
            self.looked = Instant::now();
            let ended = started_by(self.process);
            let all = !ended.is_empty() && ended.iter().all(|ended| *ended);
            self.since = all.then(|| self.since.unwrap_or(self.looked));
        }
        self.since.is_some_and(|since| since.elapsed() >= AT_MOST)
    }
}

/// The processes that a process has started and not yet waited for: true for each that has ended.
fn started_by(process: u32) -> Vec<bool> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let ended = |stat: String| {
        // The name, in parentheses, may hold spaces and parentheses itself.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let (state, parent) = (fields.next()?, fields.next()?);
        (parent == process.to_string()).then_some(state == "Z")
    };
    stats.filter_map(ended).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::{self, Command};

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_runs() {
        // Other tests of this process may start some too, but none that sleep for so long.
        let count = |ended| started_by(process::id()).into_iter().filter(|one| *one == ended).count();
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
        assert!(count(false) > 0);
        child.kill().expect("it runs");
        let start = Instant::now();
        while count(true) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        child.wait().expect("it has ended");
    }
}
