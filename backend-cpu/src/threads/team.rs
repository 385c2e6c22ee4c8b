//! Threads that stay together: each has the same share of every kernel's parts, and then takes parts that others have left.
//!
//! Rows that a thread has written are in its caches when it reads them in the next kernel: a pool that hands parts to
//! whichever thread asks first would move them from cache to cache. Between kernels, which follow one another within
//! microseconds, the threads look for the next one before they sleep, because waking takes longer than a small kernel.

use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
        },
    },
    thread::{self, JoinHandle},
};

/// The number of looks for the next job before a thread sleeps: for about a tenth of a millisecond.
const LOOKS: u32 = 2000;

/// The state of the job at hand: in its lowest bits, how many threads have joined it; whether more may join; whether the
/// team is dissolved; above, its number.
const JOINED: u64 = (1 << 24) - 1;
const OPEN: u64 = 1 << 24;
const DISSOLVED: u64 = 1 << 25;
const NUMBER: u64 = 1 << 26;

thread_local! {
    /// The thread's number in its team; 0 for a thread that calls one.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's number in the team whose work it does.
pub(crate) fn index() -> usize {
    INDEX.get()
}

/// The function that each thread runs, with its number.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// A counter in a line of memory of its own.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicUsize);

struct Shared {
    state: AtomicU64,
    /// Alive, and not written, while the state is open or a thread has joined.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// The parts of each thread's share that have been taken.
    taken: Vec<Counter>,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    looks: u32,
}

// SAFETY: the job is written by the calling thread alone, while nobody may join, and is `Sync` itself.
unsafe impl Sync for Shared {}
// SAFETY: the pointer is followed only while the calling thread keeps the job alive.
unsafe impl Send for Shared {}

/// Threads that share the work of kernels.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held while a job runs.
    busy: Mutex<()>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish()
    }
}

impl Team {
    /// A team of the calling thread and as many others as make up `threads`; 0 takes as many as the machine has cores.
    ///
    /// # Errors
    /// If the operating system gives no more threads.
    pub fn new(threads: usize) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            taken: (0..threads).map(|_| Counter::default()).collect(),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            alarm: Condvar::new(),
            panic: Mutex::new(None),
            // Threads without a core of their own would hold up the others.
            looks: if threads <= cores { LOOKS } else { 0 },
        });
        let mut team = Self { shared, threads: vec![], busy: Mutex::new(()) };
        for i in 1..threads {
            let shared = team.shared.clone();
            let work = move || {
                INDEX.set(i);
                shared.work(i);
            };
            team.threads.push(thread::Builder::new().name(format!("wgrad-{i}")).spawn(work)?);
        }
        Ok(team)
    }

    /// The number of threads that it has, the calling one included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs parts `0..parts`, each once, on all threads. A part must not ask a team to run something.
    ///
    /// # Panics
    /// If a part does: with what it panicked, after all threads are done.
    pub fn each(&self, parts: usize, f: impl Fn(usize) + Sync) {
        let threads = self.threads();
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = &self.shared.taken;
        taken.iter().for_each(|taken| taken.0.store(0, Relaxed));
        let share = |thread: usize| thread * parts / threads..(thread + 1) * parts / threads;
        self.shared.run(&|me| {
            for other in (0..threads).map(|turn| (me + turn) % threads) {
                let share = share(other);
                loop {
                    let part = taken[other].0.fetch_add(1, Relaxed);
                    if part >= share.len() {
                        break;
                    }
                    f(share.start + part);
                }
            }
        });
    }
}

impl Shared {
    /// Runs a job on the calling thread and on those that come in time: it must be done when it returns anywhere.
    fn run(&self, job: &Job<'_>) {
        // SAFETY: nobody may join, and nobody has: nobody looks at the place. What is put there lives longer than the
        // state is open and anybody has joined, which is until this returns, whatever its type says.
        unsafe { *self.job.get() = Some(std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job)) };
        let number = self.state.load(Relaxed) / NUMBER + 1;
        self.state.store((number * NUMBER) | OPEN, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.alarm.notify_all();
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(0)));
        self.state.fetch_and(!OPEN, AcqRel);
        let mut looks = 0;
        while self.state.load(Acquire) & JOINED > 0 {
            looks += 1;
            if looks < self.looks { std::hint::spin_loop() } else { thread::yield_now() }
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = result.err().or(panic) {
            resume_unwind(panic);
        }
    }

    /// The loop of a thread, until the team is dissolved.
    fn work(&self, me: usize) {
        let mut done = 0;
        while let Some(number) = self.join(done) {
            done = number;
            // SAFETY: it joined while the job was open, so the job stays alive until it has left.
            let job = unsafe { &*(*self.job.get()).expect("an open job") };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(me))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.state.fetch_sub(1, AcqRel);
        }
    }

    /// Joins the next job after one, as soon as there is one: its number, or nothing if the team is dissolved.
    fn join(&self, done: u64) -> Option<u64> {
        let mut looks = 0;
        loop {
            let state = self.state.load(Acquire);
            if state & DISSOLVED > 0 {
                return None;
            }
            if state & OPEN > 0 && state / NUMBER != done {
                if self.state.compare_exchange(state, state + 1, AcqRel, Relaxed).is_ok() {
                    return Some(state / NUMBER);
                }
                continue;
            }
            looks += 1;
            if looks < self.looks {
                std::hint::spin_loop();
                continue;
            }
            let bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleepers.fetch_add(1, SeqCst);
            // A job that opened before this thread counted as a sleeper does not wake it.
            if self.state.load(SeqCst) == state {
                drop(self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner));
                looks = 0;
            }
            self.sleepers.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.state.fetch_or(DISSOLVED, SeqCst);
        drop(self.shared.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.alarm.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("what a job panics with is caught");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn every_part_is_run_once() {
        for threads in [1, 2, 3, 7] {
            let team = Team::new(threads).expect("threads");
            assert_eq!(team.threads(), threads);
            for parts in (0..20).chain([100, 1001]) {
                let runs: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::default()).collect();
                team.each(parts, |part| {
                    assert!(index() < threads);
                    runs[part].fetch_add(1, Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1), "{parts} parts on {threads} threads");
            }
        }
    }

    #[test]
    fn every_thread_begins_with_its_own_share() {
        let team = Team::new(3).expect("threads");
        for sleep in [false, true] {
            let barrier = Barrier::new(3);
            let first = [const { AtomicUsize::new(usize::MAX) }; 3];
            team.each(9, |part| {
                if first[index()].load(Relaxed) == usize::MAX {
                    first[index()].store(part, Relaxed);
                    barrier.wait(); // No thread can take another part before all have taken one.
                }
            });
            assert_eq!(first.map(AtomicUsize::into_inner), [0, 3, 6], "after a sleep: {sleep}");
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn a_panic_is_the_callers_and_the_team_goes_on() {
        let team = Team::new(2).expect("threads");
        for guilty in 0..8 {
            let done = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.each(8, |part| {
                    assert!(part != guilty, "part {guilty}");
                    done.fetch_add(1, Relaxed);
                });
            }));
            let panic = result.expect_err("a part panics");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("part {guilty}")));
            done.store(0, Relaxed);
            team.each(8, |_| {
                done.fetch_add(1, Relaxed);
            });
            assert_eq!(done.into_inner(), 8);
        }
    }
}
