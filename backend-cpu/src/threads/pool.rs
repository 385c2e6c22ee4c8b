//! The number of threads that share a kernel's work: one, where more would not pay.

use super::team::Team;
use std::ops::Range;

/// The split of kernels among threads. No result depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a> {
    team: &'a Team,
    /// Weighted elements below which a kernel runs on the calling thread.
    serial: usize,
}

/// Parts per thread, so that a thread that is held up does not hold up the others.
const PARTS: usize = 4;

impl<'a> Pool<'a> {
    pub fn new(team: &'a Team, serial: usize) -> Self {
        Self { team, serial }
    }

    /// The threads themselves.
    pub fn team(&self) -> &'a Team {
        self.team
    }

    /// The number of parts that some work is worth splitting into.
    pub fn parts(&self, work: usize) -> usize {
        if self.team.threads() == 1 || work < self.serial {
            return 1;
        }
        (PARTS * self.team.threads()).min(2 + work / self.serial.max(1))
    }

    /// Runs tasks `0..tasks`, in ranges, on as many threads as their work pays for.
    pub fn each(&self, tasks: usize, work: usize, f: impl Fn(Range<usize>) + Sync) {
        let parts = self.parts(work).min(tasks);
        if parts <= 1 {
            return f(0..tasks);
        }
        self.team.each(parts, |i| f(i * tasks / parts..(i + 1) * tasks / parts));
    }
}
