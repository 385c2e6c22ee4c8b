//! Fuzzing with random tapes: rounds of all properties, each round from a seed that no other has, on several threads,
//! until time is up, a stop is asked for, or a property fails.

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

/// A round tries this share of the cases that a test of the property tries.
const ROUND: u32 = 64;
/// The time between two reports.
const REPORT: Duration = Duration::from_secs(10);

/// How the names of fuzzing threads begin.
const THREAD: &str = "fuzz-";

/// What to fuzz.
#[derive(Clone, Copy)]
pub struct Fuzz<'a> {
    /// Makes the properties. Each thread has its own.
    pub properties: fn() -> Vec<Property>,
    /// The seed of the first round; each round's is the one after the last. One thread does the same each time.
    pub seed: u64,
    /// The number of threads.
    pub threads: usize,
    /// For how long.
    pub time: Duration,
    /// Ends it sooner, when so many tapes have been tried.
    pub tapes: u64,
    /// Ends it sooner when set; it is set when a failure is found.
    pub stop: &'a AtomicBool,
}

/// A failure, and how to see it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The seed of the round that found it: on one thread, this seed finds it in the first round.
    pub seed: u64,
    /// When it was found, before it was shrunk.
    pub after: Duration,
    /// The failure.
    pub failure: Failure,
}

/// What has been tried so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// The properties, and how many tapes each held for.
    pub tapes: Vec<(&'static str, u64)>,
    /// Since the start.
    pub time: Duration,
}

impl Tried {
    /// All tapes together.
    pub fn total(&self) -> u64 {
        self.tapes.iter().map(|(_, tapes)| tapes).sum()
    }
}

thread_local! {
    /// What this thread has panicked with last, and where.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the panics of fuzzing threads, and of the devices' threads, from being printed: while a case shrinks there are
/// thousands. A failure says what they said.
pub fn silence_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match thread::current().name() {
        Some(name) if name.starts_with(THREAD) => PANICKED.set(Some(panic.to_string())),
        Some(name) if name.starts_with("wgrad-") => {}
        _ => print(panic),
    }));
}

impl Fuzz<'_> {
    /// Fuzzes, and reports every ten seconds.
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

/// One thread of it.
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
                    // Nobody is there to hear of it if the main thread is gone.
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
            // What shrinks is checked to the end, whatever the time.
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

/// A panic as a failure: what it said, and where, if it was on this thread.
fn panicked(panic: &(dyn Any + Send)) -> TestCaseError {
    let said =
        || panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref().map(|s: &&str| s.to_string()));
    TestCaseError::fail(PANICKED.take().or_else(said).unwrap_or_else(|| "a panic".into()))
}
