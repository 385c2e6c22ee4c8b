//! A session: a device, the values of a store on it, and the programs compiled for it.

mod now;
mod ranks;
mod snapshot;
mod states;

pub use snapshot::Snapshot;

use crate::{
    Array, Data, Shape, Site,
    backend::{Backend, BufferId, ExecutableId},
    collective::{Alone, Collective, Counted, Stamp},
    error::{Error, Result},
    lints::{Draws, Lint},
    plan::{Grouping, Plan},
    program::Program,
    recorded::{Alarm, Events},
    store::{Layout, Store},
    tape::Tape,
    window::Windows,
};
use std::{
    collections::{HashMap, VecDeque},
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// The number of runs whose taps are kept for a caller who does not fetch them; older ones are dropped.
const TAP_RING: usize = 64;

/// The number of programs that [`Session::run_cached`] keeps; beyond that the one unused for longest is forgotten.
const CACHED_PROGRAMS: usize = 64;

/// The number of programs that it keeps at any size: a loop that runs no more than these compiles each once.
const CACHED_ANYWAY: usize = 8;

/// The default limit in bytes of all kept programs, above which only those are kept.
const CACHED_BYTES: u64 = 1 << 30;

/// A program compiled for a session. It reads as the [`Program`] it was made from. When its last copy is dropped, the
/// session forgets what it compiled.
#[derive(Clone, Debug)]
pub struct Step {
    program: Arc<Program>,
    executable: Arc<Executable>,
    /// The number of exchanges in a run.
    exchanges: usize,
    /// The facts that ranks must have in common to run it.
    stamp: Stamp,
    session: u64,
}

/// Executables whose steps have been dropped.
type Dropped = Arc<Mutex<Vec<ExecutableId>>>;

/// Reports itself when it is dropped.
#[derive(Debug)]
struct Executable {
    id: ExecutableId,
    /// True if the ranks have compared what they must have in common, and what they must not.
    agreed: AtomicBool,
    /// All lints of the program, where that has shown more.
    lints: OnceLock<Vec<Lint>>,
    dropped: Dropped,
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

impl Deref for Step {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Step {
    /// The lints of the program: [`Program::lints`], what [`Session::lints`] tells of it beside others, and, of
    /// one that several ranks run together, what its first run has shown.
    pub fn lints(&self) -> &[Lint] {
        self.executable.lints.get().map_or(self.program.lints(), |all| all)
    }
}

/// The tapped values of one run. Of passes of one kind that a program has several of, the first taps `<pass>/<name>`, the
/// second `<pass>/<name>#2`: see [`Tape::tap_each`].
#[derive(Clone, Debug)]
pub struct Taps {
    /// The run's number, from 0 on, counted by the session.
    pub run: u64,
    values: Vec<(Arc<str>, Array)>,
}

impl Taps {
    /// The value tapped under a name.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.values.iter().find(|(n, _)| **n == *name).map(|(_, value)| value)
    }

    /// The first element of the value tapped under a name, as `f64`.
    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.get(name).map(|value| value.item(0))
    }

    /// The values that [`Tape::tap_each`] has tapped under a name, in the order in which they were tapped.
    pub fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Array> {
        let own = move |tap: &str| match tap.strip_prefix(name) {
            Some("") => true,
            Some(rest) => rest.strip_prefix('#').is_some_and(|count| count.parse::<usize>().is_ok()),
            None => false,
        };
        self.values.iter().filter(move |(tap, _)| own(tap)).map(|(_, value)| value)
    }

    /// All values, in the order in which they were tapped.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.values.iter().map(|(name, value)| (&**name, value))
    }
}

/// The values that a program shows of its runs.
struct Shown {
    /// The name and shape of each tap.
    names: Vec<(Arc<str>, Shape)>,
    alarms: Vec<Alarm>,
}

/// The key of a program in the cache: a name and the inputs' shapes and types.
type CacheKey = (String, Vec<(String, Shape, crate::DType)>);

/// A device with the values of a store, and compiled programs.
pub struct Session {
    id: u64,
    backend: Box<dyn Backend>,
    collective: Box<dyn Collective>,
    layout: Arc<Layout>,
    grouping: Grouping,
    buffers: Vec<BufferId>,
    /// The most recently used last.
    cache: Vec<(CacheKey, Step)>,
    cached_bytes: u64,
    dropped: Dropped,
    /// Snapshots that nobody can go back to any more.
    snapshots: snapshot::Dropped,
    /// The place where each name of the cache is used.
    places: HashMap<String, Site>,
    shown: HashMap<ExecutableId, Shown>,
    taps: VecDeque<Taps>,
    /// Faults that runs have shown, for the next call.
    late: VecDeque<Error>,
    runs: u64,
    /// The runs with exchanges so far, and the number of them from one comparison of parameters to the next.
    meetings: u64,
    compared_every: u64,
    /// True if this rank asks all ranks to stop; and if one of them has asked, as far as a run has told.
    asking: bool,
    asked: bool,
    windows: Windows,
    draws: Draws,
    lints: Vec<Lint>,
}

impl Session {
    /// Moves a store's values to a device. The store's declarations are final from here on.
    ///
    /// # Errors
    /// If the device has no room, or lacks one of the element types.
    pub fn new(mut backend: Box<dyn Backend>, store: Store) -> Result<Self> {
        let (layout, values) = store.into_parts();
        backend.reserve(&values)?;
        let buffers = values.iter().map(|value| backend.alloc(value)).collect::<Result<_>>()?;
        let grouping = backend.grouping();
        Ok(Self {
            id: fresh_id(),
            backend,
            collective: Box::new(Alone),
            layout,
            grouping,
            buffers,
            cache: vec![],
            cached_bytes: CACHED_BYTES,
            dropped: Dropped::default(),
            snapshots: snapshot::Dropped::default(),
            places: HashMap::new(),
            shown: HashMap::new(),
            taps: VecDeque::new(),
            late: VecDeque::new(),
            runs: 0,
            meetings: 0,
            compared_every: ranks::COMPARED_EVERY,
            asking: false,
            asked: false,
            windows: Windows::default(),
            draws: Draws::default(),
            lints: vec![],
        })
    }

    /// The same as one of several ranks, which run the same programs together: what it records from here on knows how
    /// many there are, and [`crate::Grads::all_reduce`] is the mean over them. Programs recorded before are another
    /// session's.
    #[must_use]
    pub fn with_collective(self, collective: Box<dyn Collective>) -> Self {
        Self { id: fresh_id(), collective, cache: vec![], ..self }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.collective.ranks()
    }

    /// The device's name.
    pub fn device(&self) -> String {
        self.backend.name()
    }

    /// The store's declarations.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Records a program and compiles it.
    ///
    /// # Errors
    /// If the device cannot run it.
    pub fn record(&mut self, f: impl FnOnce(&Tape)) -> Result<Step> {
        let tape = Tape::for_ranks(self.layout.clone(), self.ranks());
        f(&tape);
        self.compile(tape.finish())
    }

    /// Compiles a recorded program.
    ///
    /// # Errors
    /// [`Error::ForeignProgram`] if it was recorded over other declarations, [`Error::OtherRanks`] if for
    /// another number of ranks; if the device cannot run it.
    pub fn compile(&mut self, mut program: Program) -> Result<Step> {
        if !self.layout.serves(program.layout()) {
            return Err(self.foreign(&program));
        }
        let (recorded, ranks) = (program.ranks(), self.ranks());
        if recorded != ranks {
            return Err(Error::OtherRanks { recorded, ranks });
        }
        self.forget_dropped();
        let (_, plan) = self.plan(&program);
        let id = self.backend.compile(&plan, &self.buffers)?;
        let names = program.taps().iter().map(|tap| (tap.name.as_str().into(), program.node(tap.node).shape.clone()));
        self.shown.insert(id, Shown { names: names.collect(), alarms: program.alarms.clone() });
        self.windows.meet(&program.events);
        let found = self.draws.meet(&mut program);
        self.note(found);
        let (agreed, lints, dropped) = (AtomicBool::new(false), OnceLock::new(), self.dropped.clone());
        let executable = Arc::new(Executable { id, agreed, lints, dropped });
        let (exchanges, stamp) = (plan.exchanges().len(), ranks::stamp(&program));
        Ok(Step { program: Arc::new(program), executable, exchanges, stamp, session: self.id })
    }

    /// Lints of the session's programs together, those of [`Session::eval`] too, and of its rank beside
    /// others: [`crate::Pitfall::SharedDraws`], [`crate::Pitfall::SameDrawsOnRanks`]. Each line is told of once.
    pub fn lints(&self) -> &[Lint] {
        &self.lints
    }

    fn note(&mut self, found: impl IntoIterator<Item = Lint>) {
        for lint in found {
            if self.lints.iter().all(|known| (known.pitfall, known.site) != (lint.pitfall, lint.site)) {
                self.lints.push(lint);
            }
        }
    }

    /// The plan of a program for this session's device, and the program as it was planned: lowered and simplified.
    pub fn plan(&self, program: &Program) -> (Program, Plan) {
        let (rank, simplify) = (self.collective.rank(), self.grouping.simplify);
        let lowered = program.lowered_for(rank, simplify, |op, inputs| self.backend.claims(op, inputs));
        let plan = Plan::with(&lowered, &self.grouping);
        (lowered, plan)
    }

    /// Sets the planner's options for programs that are compiled from now on; the device's, by default. Kernels get
    /// no more buffers than the device asks for, whatever this says.
    pub fn set_grouping(&mut self, grouping: Grouping) {
        let buffers = grouping.buffers.min(self.backend.grouping().buffers);
        self.grouping = Grouping { buffers, ..grouping };
    }

    /// The bytes on the device that the programs kept by [`Session::run_cached`] may take, beyond which it keeps the 8 used
    /// last only; 1 GiB if this is not called. Programs that somebody holds stay compiled all the same.
    pub fn set_cached_bytes(&mut self, bytes: u64) {
        self.cached_bytes = bytes;
    }

    /// Forgets cached programs until there is room for one more.
    fn forget_cached(&mut self, new: ExecutableId) {
        let bytes = |step: &Step| self.backend.bytes(step.executable.id);
        let mut all = self.backend.bytes(new) + self.cache.iter().map(|(_, step)| bytes(step)).sum::<u64>();
        let mut forgotten = 0;
        for (_, step) in &self.cache {
            let kept = self.cache.len() - forgotten;
            if kept < CACHED_PROGRAMS && (kept < CACHED_ANYWAY || all <= self.cached_bytes) {
                break;
            }
            all -= bytes(step);
            forgotten += 1;
        }
        self.cache.drain(..forgotten);
        self.forget_dropped();
    }

    fn foreign(&self, program: &Program) -> Error {
        Error::ForeignProgram { recorded: program.layout().owner(), session: self.layout.owner() }
    }

    /// Frees what belongs to steps that have been dropped.
    fn forget_dropped(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for id in dropped {
            self.backend.release(id);
            self.shown.remove(&id);
        }
    }

    /// Runs the program of this name for inputs of these shapes, recording it with `f` the first time. The name stands
    /// for the recording function: one place in the code, one name. The 64 programs used last are kept, or fewer, but at
    /// least 8, if their memory exceeds 1 GiB ([`Session::set_cached_bytes`]).
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`]; [`Error::NameTaken`] if two places in the code use one name.
    #[track_caller]
    pub fn run_cached(&mut self, name: &str, inputs: &[(&str, &Array)], f: impl FnOnce(&Tape)) -> Result<Step> {
        let key: CacheKey =
            (name.into(), inputs.iter().map(|(n, a)| (n.to_string(), a.shape().clone(), a.dtype())).collect());
        let here = Site::caller();
        let first = *self.places.entry(name.into()).or_insert(here);
        if first != here {
            return Err(Error::NameTaken { name: name.into(), first, second: here });
        }
        let step = match self.cache.iter().position(|(known, _)| *known == key) {
            Some(position) => self.cache.remove(position).1,
            None => {
                let step = self.record(f)?;
                self.forget_cached(step.executable.id);
                step
            }
        };
        self.cache.push((key, step.clone()));
        self.run(&step, inputs)?;
        Ok(step)
    }

    /// Enqueues one run of a program, with all its inputs by name. Returns the run's number.
    ///
    /// # Errors
    /// If an input is missing, unknown, given twice, or of another shape or type; if the program is another session's; if the run
    /// fails. No state has changed then. [`Error::Pitfall`] if it is known to be a mistake. [`Error::Late`], once and with
    /// nothing run, if an earlier run has shown that something is wrong: a loss that is not finite
    /// ([`crate::Grads::check_loss`]), a norm ([`crate::NonFinite::Error`]), too many skipped steps in a row
    /// ([`crate::OnGiveUp::Error`]). Where ranks exchange something,
    /// all of them run the program, and the error of one is an error of all.
    pub fn run(&mut self, step: &Step, inputs: &[(&str, &Array)]) -> Result<u64> {
        if step.session != self.id {
            return Err(self.foreign(step));
        }
        let mut made = (0, false);
        let result = self.run_counted(step, inputs, &mut made);
        let (calls, failed) = made;
        if result.is_err() && !failed && calls < step.exchanges {
            // The others are waiting, or will be.
            self.collective.abort();
        }
        result
    }

    /// Runs a program, and tells how many exchanges it made, and whether one of them has failed.
    fn run_counted(&mut self, step: &Step, inputs: &[(&str, &Array)], made: &mut (usize, bool)) -> Result<u64> {
        self.collect_taps()?;
        self.late()?;
        if let Some((name, _)) = inputs.iter().find(|(name, _)| step.inputs().iter().all(|i| i.name != *name)) {
            let known: Vec<&str> = step.inputs().iter().map(|i| i.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            return Err(Error::UnknownInput { name: name.to_string(), known });
        }
        let mut data: Vec<&Data> = Vec::with_capacity(step.inputs().len());
        for decl in step.inputs() {
            let mut given = inputs.iter().filter(|(name, _)| *name == decl.name);
            let (_, array) = given.next().ok_or_else(|| decl.missing())?;
            if given.next().is_some() {
                return Err(Error::InputTwice { name: decl.name.clone() });
            }
            check(|| format!("input {:?}", decl.name), (&decl.shape, decl.dtype), array, Some(decl.site))?;
            data.push(array.data());
        }
        self.compare_ranks(step, &mut made.1)?;
        let windows = self.windows_after(&step.program.events)?;
        let run = self.runs;
        self.runs += 1;
        let stamp = self.stamped(step)?;
        let (collective, asks) = (&mut *self.collective, self.asking);
        let mut counted = Counted { collective, stamp, calls: 0, failed: false, asks, asked: false };
        let result = self.backend.run(step.executable.id, &data, run, &mut counted);
        *made = (counted.calls, counted.failed);
        self.asked |= counted.asked;
        result?;
        if let Some(windows) = windows {
            self.windows = windows;
        }
        self.collect_taps()?;
        Ok(run)
    }

    /// The windows after a run that does this; `None` if it does nothing to any.
    fn windows_after(&mut self, events: &Events) -> Result<Option<Windows>> {
        if events.is_empty() {
            return Ok(None);
        }
        // The count is on the device. It is read once: when it is asked for the first time, and after it has been written.
        for counter in self.windows.unknown(events) {
            let value = self.read(counter)?.item(0);
            self.windows.learn(counter, value as usize, self.ranks());
        }
        self.windows.after(events).map(Some)
    }

    /// Measures from now on what each kernel of a program takes, in each of its runs: see [`Session::kernel_times`]. It
    /// computes the same bits. True if the device can tell.
    ///
    /// # Errors
    /// [`Error::ForeignProgram`] if the program is another session's; if the device has no room for what that takes, or is
    /// lost.
    pub fn watch(&mut self, step: &Step) -> Result<bool> {
        if step.session != self.id {
            return Err(self.foreign(step));
        }
        self.backend.watch(step.executable.id)
    }

    /// The times of a watched program's runs that have finished since the last call, oldest first: the seconds of each
    /// kernel, in the order of its plan. They are kept until somebody asks. Kernels that a device runs as one share its time
    /// in equal parts.
    ///
    /// # Errors
    /// [`Error::ForeignProgram`] if the program is another session's.
    pub fn kernel_times(&mut self, step: &Step) -> Result<Vec<Vec<f64>>> {
        if step.session != self.id {
            return Err(self.foreign(step));
        }
        Ok(self.backend.times(step.executable.id))
    }

    fn collect_taps(&mut self) -> Result<()> {
        for delivery in self.backend.deliveries()? {
            let Some(shown) = self.shown.get(&delivery.executable) else { continue };
            // One error per run: what comes first is the cause of the others.
            self.late.extend(shown.alarms.iter().find_map(|alarm| alarm.error(delivery.run, &delivery.values)));
            let named = shown.names.iter().zip(delivery.values);
            let values = named.map(|((name, shape), data)| (name.clone(), Array::new(shape, data))).collect();
            self.taps.push_back(Taps { run: delivery.run, values });
            if self.taps.len() > TAP_RING {
                self.taps.pop_front();
            }
        }
        Ok(())
    }

    /// The first error that runs have shown and nobody has been told of.
    fn late(&mut self) -> Result<()> {
        self.late.pop_front().map_or(Ok(()), Err)
    }

    /// Waits until all runs so far have finished, and their taps have arrived.
    ///
    /// # Errors
    /// If a run has failed, or the device is lost. [`Error::Late`], once, if a run has shown that something is wrong.
    pub fn wait(&mut self) -> Result<()> {
        self.backend.wait()?;
        self.collect_taps()?;
        self.late()
    }

    /// The tapped values that have arrived, oldest run first. Those of a run may arrive one or two runs later. Of runs whose
    /// taps are not fetched, the values of the last 64 are kept.
    ///
    /// # Errors
    /// If a run has failed on the device. [`Error::Late`], once, if a run has shown that something is wrong: its taps are
    /// there at the next call.
    pub fn taps(&mut self) -> Result<Vec<Taps>> {
        self.collect_taps()?;
        self.late()?;
        Ok(self.taps.drain(..).collect())
    }
}

fn fresh_id() -> u64 {
    static SESSIONS: AtomicU64 = AtomicU64::new(0);
    SESSIONS.fetch_add(1, Ordering::Relaxed)
}

/// Compares data with a declaration.
fn check(
    what: impl Fn() -> String,
    (shape, dtype): (&Shape, crate::DType),
    have: &Array,
    site: Option<Site>,
) -> Result<()> {
    if have.shape() == shape && have.dtype() == dtype {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: what(),
        want_dtype: dtype,
        want: shape.clone(),
        have_dtype: have.dtype(),
        have: have.shape().clone(),
        site,
    })
}
