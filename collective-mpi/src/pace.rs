//! Waiting: at first without sleep, and not for ever.

use std::time::{Duration, Instant};

/// The time to look again at once. A small message between cores takes a few microseconds.
const SPIN: Duration = Duration::from_micros(20);

/// The time from which on a rank sleeps, as the others are then computing and may need this core.
const SLEEP: Duration = Duration::from_millis(1);

/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(1);

/// A wait that has begun.
pub struct Pace {
    start: Instant,
    sleeps: bool,
}

impl Pace {
    /// A wait for ranks that may still be computing.
    pub fn new() -> Self {
        Self { start: Instant::now(), sleeps: true }
    }

    /// A wait for data that is under way. It never sleeps, since MPI moves data only while both sides call it.
    pub fn busy() -> Self {
        Self { sleeps: false, ..Self::new() }
    }

    /// Waits a little; false if the limit has passed.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let waited = self.start.elapsed();
        if limit.is_some_and(|limit| waited >= limit) {
            return false;
        }
        if waited < SPIN {
            std::hint::spin_loop();
        } else if waited < SLEEP || !self.sleeps {
            std::thread::yield_now();
        } else {
            // A wait becomes longer by this share at most.
            std::thread::sleep((waited / 16).min(LONGEST));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit() {
        for pace in [Pace::new(), Pace::busy()] {
            let limit = Duration::from_millis(20);
            while pace.wait(Some(limit)) {}
            assert!((limit..limit * 20).contains(&pace.start.elapsed()));
            assert!(pace.wait(None));
        }
    }
}
