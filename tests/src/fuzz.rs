//! Fuzzing with random tapes. Several threads run rounds of all properties, each round with its own seed, until the
//! time is up, a stop is requested, or a property fails.

use crate::{Failure, Property};
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// A round tries one case for this number of cases in the property's test.
const ROUND: u32 = 64;
/// The time between two reports.
const REPORT: Duration = Duration::from_secs(10);

/// The prefix of the names of fuzzing threads.
const THREAD: &str = "fuzz-";

/// The settings of a fuzzing run.
#[derive(Clone, Copy)]
pub struct Fuzz<'a> {
    /// Makes the properties; each thread makes its own.
    pub properties: fn() -> Vec<Property>,
    /// The seed of the first round; each later round has the next seed. A run on one thread is reproducible.
    pub seed: u64,
    /// The number of threads.
    pub threads: usize,
    /// The time after which no case is started.
    pub time: Duration,
    /// The number of tapes after which the run ends, even if time is left.
    pub tapes: u64,
    /// Ends the run if set. A failure sets it.
    pub stop: &'a AtomicBool,
}

/// A failure, and the seed that reproduces it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The seed of the round that found the failure. On one thread, this seed finds it in the first round.
    pub seed: u64,
    /// The time from the start of the run until the failure, before it was shrunk.
    pub after: Duration,
    /// The failure.
    pub failure: Failure,
}

/// The progress of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The properties, and the number of tapes for which each has held.
    pub tapes: Vec<(&'static str, u64)>,
    /// The time since the start.
    pub time: Duration,
}

impl Tried {
    /// The number of tapes of all properties.
    pub fn total(&self) -> u64 {
        self.tapes.iter().map(|(_, tapes)| tapes).sum()
    }
}

thread_local! {
    /// The message and the place of this thread's last panic.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the panics of fuzzing threads and of devices' threads from being printed, because a case that shrinks panics
/// thousands of times. A failure has the message of its panic.
pub fn silence_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match thread::current().name() {
        Some(name) if name.starts_with(THREAD) => PANICKED.set(Some(panic.to_string())),
        Some(name) if name.starts_with("wgrad-") => {}
        _ => print(panic),
    }));
}

impl Fuzz<'_> {
    /// Runs the fuzzing, and calls `report` every ten seconds.
    pub fn run(&self, mut report: impl FnMut(&Tried)) -> (Tried, Vec<Found>) {
        let names: Vec<&str> = (self.properties)().iter().map(|property| property.name).collect();
        let counts: Vec<AtomicU64> = names.iter().map(|_| AtomicU64::new(0)).collect();
        let (start, round) = (Instant::now(), AtomicU64::new(self.seed));
        let tried = || Tried {
            tapes: names.iter().copied().zip(counts.iter().map(|count| count.load(Relaxed))).collect(),
            time: start.elapsed(),
        };
        let mut found = vec![];
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for i in 0..self.threads {
                let worker = Worker { fuzz: self, start, round: &round, counts: &counts, found: sender.clone() };
                let builder = thread::Builder::new().name(format!("{THREAD}{i}"));
                builder.spawn_scoped(scope, move || worker.run()).expect("a thread starts");
            }
            drop(sender);
            let mut next = REPORT;
            loop {
                match receiver.recv_timeout(next.saturating_sub(start.elapsed())) {
                    Ok(failure) => found.push(failure),
                    Err(RecvTimeoutError::Timeout) => {
                        report(&tried());
                        next += REPORT;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        (tried(), found)
    }
}

/// One thread of a run.
struct Worker<'a> {
    fuzz: &'a Fuzz<'a>,
    start: Instant,
    round: &'a AtomicU64,
    counts: &'a [AtomicU64],
    found: Sender<Found>,
}

impl Worker<'_> {
    fn run(self) {
        let properties = (self.fuzz.properties)();
        while !self.is_over() {
            let seed = self.round.fetch_add(1, Relaxed);
            for (i, property) in properties.iter().enumerate() {
                if let Some(found) = self.try_property(property, seed, i) {
                    // The send fails only if the main thread is gone, and then nobody needs the failure.
                    return self.found.send(found).unwrap_or_default();
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        let tried = || self.counts.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        self.fuzz.stop.load(Relaxed) || self.start.elapsed() >= self.fuzz.time || tried() >= self.fuzz.tapes
    }

    fn try_property(&self, property: &Property, seed: u64, i: usize) -> Option<Found> {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&(i as u64).to_le_bytes());
        let mut config = crate::proptest_config(256);
        config.cases = property.cases.div_ceil(ROUND);
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let failed = Cell::new(None);
        let outcome = property.run(&mut runner, &|check| {
            // A case that shrinks is checked to the end, even if the time is up.
            if failed.get().is_none() && self.is_over() {
                return Ok(());
            }
            let outcome = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| Err(panicked(&*panic)));
            match (&outcome, failed.get()) {
                (Ok(()), None) => drop(self.counts[i].fetch_add(1, Relaxed)),
                (Err(TestCaseError::Fail(_)), None) => {
                    failed.set(Some(self.start.elapsed()));
                    self.fuzz.stop.store(true, Relaxed);
                }
                _ => {}
            }
            outcome
        });
        let failure = outcome.err()?;
        self.fuzz.stop.store(true, Relaxed);
        Some(Found { seed, after: failed.get().unwrap_or_else(|| self.start.elapsed()), failure })
    }
}

/// A panic as a failure, with its message, and its place if it was on this thread.
fn panicked(panic: &(dyn Any + Send)) -> TestCaseError {
    let said =
        || panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref().map(|s: &&str| s.to_string()));
    TestCaseError::fail(PANICKED.take().or_else(said).unwrap_or_else(|| "a panic".into()))
}
