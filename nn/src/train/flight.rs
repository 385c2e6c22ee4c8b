//! The flight recorder: the last states and batches of a run, to replay once it has broken.

use super::{Capsule, Trainer, trainer::Place};
use crate::monitor::Update;
use std::{collections::VecDeque, fmt};
use wgrad::{Array, Error, Growth, Origin, Result, Session, Sizes, Snapshot, Step, Taps};

/// Settings of a [`FlightRecorder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlightConfig {
    /// The number of updates from one snapshot to the next.
    pub every: usize,
    /// The number of snapshots that are kept.
    pub keep: usize,
}

impl Default for FlightConfig {
    /// A snapshot every 50 updates, of which the last 2 are kept.
    fn default() -> Self {
        Self { every: 50, keep: 2 }
    }
}

/// The memory that a flight recorder takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlightMemory {
    /// The memory of snapshots, on the device.
    pub device: u64,
    /// The memory of batches, on the host.
    pub host: u64,
}

/// A call of the trainer.
#[derive(Debug)]
enum Call {
    Step(Vec<(String, Array)>),
    Flush,
}

/// The calls from one snapshot to the next.
#[derive(Debug)]
struct Leg {
    snapshot: Snapshot,
    /// The number of the update that follows the snapshot, from 0 on.
    update: usize,
    calls: Vec<Call>,
}

/// Keeps the states of a run at its last snapshots, on the device, and the batches since the oldest of them, on the
/// host. That suffices to run the same steps again, bit for bit: the loss scale, windows of micro-batches, dropout and
/// running statistics are states too.
///
/// It takes the memory of [`FlightConfig::keep`] copies of all states, and of the batches of that many times
/// [`FlightConfig::every`] updates. A replay takes the memory of one more snapshot.
///
/// ```
/// # use wgrad::{Array, Session};
/// # use wgrad_nn::{FlightConfig, FlightRecorder, Trainer};
/// # fn train(trainer: &mut Trainer, session: &mut Session, batches: &[(Array, Array)]) -> Result<(), wgrad::Error> {
/// let mut recorder = FlightRecorder::new(FlightConfig::default());
/// for (x, y) in batches {
///     recorder.step(trainer, session, &[("x", x), ("y", y)])?;
///     for update in trainer.updates(&session.taps()?) {
///         if !update.loss.is_finite() {
///             println!("{}", recorder.replay(trainer, session)?);
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FlightRecorder {
    config: FlightConfig,
    legs: VecDeque<Leg>,
    updates: usize,
}

/// A part of an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The program of a micro-batch, by its number in the window. If an update has one micro-batch, this is all of it.
    MicroBatch(usize),
    /// The program that ends a window.
    Update,
}

/// The place where a run has broken.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// The number of the update, from 0 on.
    pub update: usize,
    /// The part of the update.
    pub part: Part,
    /// The first node whose value is non-finite.
    pub origin: Origin,
    /// The program with its states and inputs, to be run again anywhere.
    pub capsule: Capsule,
}

/// The place where values have grown, though all of them are finite.
#[derive(Clone, PartialEq, Debug)]
pub struct Spike {
    /// The number of the update whose loss or gradient is largest, from 0 on.
    pub update: usize,
    /// The number of an earlier update, whose loss or gradient is the median of those before `update`.
    pub since: usize,
    /// The part of the update.
    pub part: Part,
    /// The first node that has grown.
    pub growth: Growth,
    /// The program with its states and inputs in `update`, to be run again anywhere.
    pub capsule: Capsule,
}

/// A replay of the last steps of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    /// The number of the first update.
    pub from: usize,
    /// The updates of the replay. The numbers of their runs are not those of the run itself.
    pub updates: Vec<Update>,
    /// The update that broke the run. An update is unsound if its loss or gradient is non-finite, or if it was not
    /// taken. If the run ends with unsound updates, this is the first of these. If it has recovered, this is its first
    /// unsound update, not counting those that a dynamic loss scale has skipped.
    pub broken: Option<usize>,
    /// The place where the run broke: in that update, or in an earlier one that left non-finite states. `None` if the
    /// run did not break. Also `None` if every value of that update is finite when its nodes run one by one: a sign
    /// that a kernel of the device is wrong.
    pub failure: Option<Failure>,
    /// The place where values have grown, in a run that did not break, if a loss or a gradient is 4 times the median
    /// before it.
    pub spike: Option<Spike>,
}

/// The factor of growth that makes a spike.
const SPIKE: f64 = 4.0;

impl FlightRecorder {
    /// A recorder that has seen no step.
    ///
    /// # Panics
    /// If a setting is 0.
    #[track_caller]
    pub fn new(config: FlightConfig) -> Self {
        let FlightConfig { every, keep } = config;
        assert!(every > 0 && keep > 0, "flight recorder: {keep} snapshots every {every} updates: needs 1 or more");
        Self { config, legs: VecDeque::new(), updates: 0 }
    }

    /// [`Trainer::step`], recorded. Every step of the run goes through here, from the same session.
    ///
    /// # Errors
    /// As [`Trainer::step`]; if the device has no room for a snapshot.
    ///
    /// # Panics
    /// As [`Trainer::step`]; if the session is another than before.
    #[track_caller]
    pub fn step(&mut self, trainer: &mut Trainer, session: &mut Session, inputs: &[(&str, &Array)]) -> Result<bool> {
        self.keep(trainer, session)?;
        let before = trainer.place();
        let done = trainer.step(session, inputs);
        let call = || Call::Step(inputs.iter().map(|(name, array)| (name.to_string(), (*array).clone())).collect());
        self.note(call, before, trainer.place());
        done
    }

    /// [`Trainer::flush`], recorded.
    ///
    /// # Errors
    /// As [`Trainer::flush`].
    ///
    /// # Panics
    /// As [`Trainer::flush`].
    #[track_caller]
    pub fn flush(&mut self, trainer: &mut Trainer, session: &mut Session) -> Result<bool> {
        let before = trainer.place();
        let done = trainer.flush(session);
        self.note(|| Call::Flush, before, trainer.place());
        done
    }

    /// The memory that the recorder takes now.
    pub fn memory(&self) -> FlightMemory {
        let bytes = |call: &Call| match call {
            Call::Step(batch) => {
                batch.iter().map(|(_, array)| (array.shape().numel() * array.dtype().size()) as u64).sum()
            }
            Call::Flush => 0,
        };
        FlightMemory {
            device: self.legs.iter().map(|leg| leg.snapshot.bytes()).sum(),
            host: self.legs.iter().flat_map(|leg| &leg.calls).map(bytes).sum(),
        }
    }

    /// Takes a snapshot if one is due: between two windows, or within a window if errors have kept the last one from
    /// its end.
    fn keep(&mut self, trainer: &mut Trainer, session: &mut Session) -> Result<()> {
        let late = self.legs.back().map(|leg| self.updates.checked_sub(leg.update + self.config.every));
        let due = match late {
            Some(None) => false,
            Some(Some(0)) => trainer.present(session)? == 0,
            Some(Some(_)) | None => true,
        };
        if !due {
            return Ok(());
        }
        if self.legs.len() == self.config.keep {
            self.legs.pop_front();
        }
        let snapshot = session.snapshot()?;
        self.legs.push_back(Leg { snapshot, update: self.updates, calls: vec![] });
        Ok(())
    }

    /// Notes a call, unless it has run nothing. A call that fails may have run a micro-batch and not the update.
    fn note(&mut self, call: impl FnOnce() -> Call, before: Place, after: Place) {
        if let Some(leg) = self.legs.back_mut().filter(|_| !after.is_as(&before)) {
            leg.calls.push(call());
            self.updates += after.since(&before);
        }
    }

    /// Replays the steps since the oldest snapshot whose states are all finite, or since the oldest one if there is no
    /// such snapshot, and finds where the run broke. The session and the trainer are then as they were.
    ///
    /// It takes two or three times the time of these steps, and the time to check each value of one or two updates.
    ///
    /// # Errors
    /// As [`Session::run`], without the faults that the replayed runs report.
    #[track_caller]
    pub fn replay(&self, trainer: &mut Trainer, session: &mut Session) -> Result<Replay> {
        let place = trainer.place();
        let replay = self.replayed(trainer, session);
        trainer.go_to(place);
        replay
    }

    #[track_caller]
    fn replayed(&self, trainer: &mut Trainer, session: &mut Session) -> Result<Replay> {
        let mut first = 0;
        for (at, leg) in self.legs.iter().enumerate() {
            if session.rewound(&leg.snapshot, all_finite)? {
                first = at;
                break;
            }
        }
        let Some(leg) = self.legs.get(first) else {
            return Ok(Replay { from: self.updates, updates: vec![], broken: None, failure: None, spike: None });
        };
        let from = leg.update;
        let calls: Vec<&Call> = self.legs.iter().skip(first).flat_map(|leg| &leg.calls).collect();
        let updates = session.rewound(&leg.snapshot, |session| again(trainer, session, &calls))?;
        let broken = broken(&updates);
        let mut failure: Option<Failure> = None;
        // An earlier update may have produced the non-finite value that was given to this one.
        for at in (0..=broken.unwrap_or(0)).rev().filter(|_| broken.is_some()) {
            let found = session.rewound(&leg.snapshot, |session| look(trainer, session, &calls, at))?;
            let Some((part, origin, mut capsule)) = found else { break };
            let update = from + at;
            let notes =
                [("update", update.to_string()), ("part", part.to_string()), ("found", origin.place.to_string())];
            capsule.notes.extend(notes.map(|(key, text)| (key.to_string(), text)));
            failure = Some(Failure { update, part, origin, capsule });
            if failure.as_ref().is_some_and(|failure| failure.origin.is_produced()) {
                break;
            }
        }
        let spike = match (broken, extremes(&updates)) {
            (None, Some([since, update])) => {
                let of = |trainer: &mut Trainer, session: &mut Session, update: usize| {
                    session.rewound(&leg.snapshot, |session| sizes(trainer, session, &calls, update))
                };
                let (before, now) = (of(trainer, session, since)?, of(trainer, session, update)?);
                spiked(&before, &now).map(|(part, growth, capsule)| Spike {
                    update: from + update,
                    since: from + since,
                    part,
                    growth,
                    capsule,
                })
            }
            _ => None,
        };
        Ok(Replay { from, updates, broken: broken.map(|at| from + at), failure, spike })
    }
}

/// A program of an update, before it is run, and the sizes of its values.
struct Sized {
    part: Part,
    step: Step,
    sizes: Sizes,
    capsule: Capsule,
}

/// Makes steps from a snapshot up to an update, and measures each value of that update.
#[track_caller]
fn sizes(trainer: &mut Trainer, session: &mut Session, calls: &[&Call], update: usize) -> Result<Vec<Sized>> {
    let mut all = vec![];
    let mut measure = |session: &mut Session, part: Part, step: &Step, inputs: &[(&str, &Array)]| {
        let (sizes, capsule) = (session.sizes(step, inputs)?, Capsule::of(session, step, inputs)?);
        all.push(Sized { part, step: step.clone(), sizes, capsule });
        Ok(false)
    };
    // The programs of two updates are the same if neither is watched.
    trainer.unwatched(|trainer| visit(trainer, session, calls, update, &mut measure))?;
    Ok(all)
}

/// The first growth between two updates that a program itself has produced, or else the first that was given to one.
fn spiked(before: &[Sized], now: &[Sized]) -> Option<(Part, Growth, Capsule)> {
    let pairs = before.iter().zip(now).filter(|(a, b)| a.step.nodes().len() == b.step.nodes().len());
    let found = |(before, now): (&Sized, &Sized)| {
        let growth = Growth::between(&now.step, &before.sizes, &now.sizes, SPIKE)?;
        Some((now.part, growth, now.capsule.clone()))
    };
    let mut all: Vec<_> = pairs.filter_map(found).collect();
    let made = all.iter().position(|(_, growth, _)| !growth.operands.is_empty());
    (!all.is_empty()).then(|| all.swap_remove(made.unwrap_or(0)))
}

/// An update with the median loss or gradient norm, and a later one that is farthest above this median.
fn extremes(updates: &[Update]) -> Option<[usize; 2]> {
    let pair = |of: fn(&Update) -> f64| {
        let size = |at: &usize| of(&updates[*at]).abs();
        let order = |a: &usize, b: &usize| size(a).total_cmp(&size(b));
        // An update that a loss scale has skipped is no spike.
        let taken = |at: &usize| updates[*at].taken && size(at).is_finite();
        let worst = (0..updates.len()).filter(taken).max_by(order)?;
        let mut before: Vec<usize> = (0..worst).filter(taken).collect();
        before.sort_by(order);
        let usual = *before.get(before.len() / 2)?;
        Some((size(&worst) / size(&usual).max(f64::MIN_POSITIVE), [usual, worst]))
    };
    let pairs = [pair(|update| update.loss), pair(|update| update.grad_norm)];
    let (factor, pair) = pairs.into_iter().flatten().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (factor >= SPIKE).then_some(pair)
}

/// True if all float states are finite.
fn all_finite(session: &mut Session) -> Result<bool> {
    let layout = session.layout().clone();
    for (state, decl) in layout.states() {
        if decl.dtype.is_float() && session.read(state)?.to_f64().iter().any(|value| !value.is_finite()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The taps of all runs so far. Faults that runs report late are ignored, as the caller knows of them.
pub(crate) fn settled(session: &mut Session) -> Result<Vec<Taps>> {
    fn unconcerned<R>(mut f: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            match f() {
                Err(Error::Late { .. }) => {}
                result => return result,
            }
        }
    }
    unconcerned(|| session.wait())?;
    unconcerned(|| session.taps())
}

/// Makes a call, and waits for each of its runs before the next, so that a fault of one does not stop the next. Returns
/// the updates that have been made. It calls `before` with each program before its run.
#[track_caller]
fn made(trainer: &mut Trainer, session: &mut Session, call: &Call, before: Before<'_>) -> Result<Vec<Update>> {
    let mut taps = vec![];
    let mut each = |session: &mut Session, step: &Step, inputs: &[(&str, &Array)]| {
        taps.extend(settled(session)?);
        before(session, step, inputs)
    };
    match call {
        Call::Flush => _ = trainer.flush_with(session, &mut each)?,
        Call::Step(batch) => _ = trainer.step_with(session, &named(batch), &mut each)?,
    }
    taps.extend(settled(session)?);
    Ok(trainer.updates(&taps))
}

/// Runs a micro-batch, and the update if that completes a window, and ignores their faults. Returns the updates that
/// have been made.
#[track_caller]
pub(crate) fn stepped(trainer: &mut Trainer, session: &mut Session, batch: &[(String, Array)]) -> Result<Vec<Update>> {
    made(trainer, session, &Call::Step(batch.to_vec()), &mut |_, _, _| Ok(()))
}

fn named(batch: &[(String, Array)]) -> Vec<(&str, &Array)> {
    batch.iter().map(|(name, array)| (name.as_str(), array)).collect()
}

/// Makes all calls from a snapshot on.
#[track_caller]
fn again(trainer: &mut Trainer, session: &mut Session, calls: &[&Call]) -> Result<Vec<Update>> {
    trainer.resume();
    let mut updates = vec![];
    for call in calls {
        updates.extend(made(trainer, session, call, &mut |_, _, _| Ok(()))?);
    }
    Ok(updates)
}

/// Makes steps from a snapshot up to an update, and looks for the first non-finite value of that update.
#[track_caller]
fn look(
    trainer: &mut Trainer,
    session: &mut Session,
    calls: &[&Call],
    update: usize,
) -> Result<Option<(Part, Origin, Capsule)>> {
    let mut found = None;
    let mut visitor = |session: &mut Session, part: Part, step: &Step, inputs: &[(&str, &Array)]| {
        if let Some(origin) = session.first_non_finite(step, inputs)? {
            found = Some((part, origin, Capsule::of(session, step, inputs)?));
        }
        Ok(found.is_some())
    };
    // Without a monitor, the chain leads to the loss, not to a measurement.
    trainer.unwatched(|trainer| visit(trainer, session, calls, update, &mut visitor))?;
    Ok(found)
}

/// A function that gets each program of an update before its run, and returns true if that is enough.
type Visitor<'a> = dyn FnMut(&mut Session, Part, &Step, &[(&str, &Array)]) -> Result<bool> + 'a;

/// Makes steps from a snapshot up to an update, and calls the visitor with each program of that update.
#[track_caller]
fn visit(
    trainer: &mut Trainer,
    session: &mut Session,
    calls: &[&Call],
    update: usize,
    visitor: &mut Visitor<'_>,
) -> Result<()> {
    trainer.resume();
    // A call may end a window and begin the next; the first call may continue a window.
    let (mut updates, mut micro_batches, mut done) = (0, trainer.present(session)?, false);
    for call in calls {
        made(trainer, session, call, &mut |session, step, inputs| {
            let is_end = inputs.is_empty();
            let part = if is_end { Part::Update } else { Part::MicroBatch(micro_batches) };
            if updates == update && !done {
                done = visitor(session, part, step, inputs)?;
            }
            micro_batches += 1;
            if is_end {
                (updates, micro_batches) = (updates + 1, 0);
            }
            Ok(())
        })?;
        if !trainer.has_windows() {
            (updates, micro_batches) = (updates + 1, 0);
        }
        if updates > update || done {
            break;
        }
    }
    Ok(())
}

/// The update that broke a run: see [`Replay::broken`].
fn broken(updates: &[Update]) -> Option<usize> {
    let sound = |update: &Update| update.loss.is_finite() && update.grad_norm.is_finite() && update.taken;
    let skipped = |update: &Update| update.loss.is_finite() && update.loss_scale != 1.0;
    match updates.iter().rposition(sound) {
        Some(last) if last + 1 == updates.len() => updates.iter().position(|u| !sound(u) && !skipped(u)),
        Some(last) => Some(last + 1),
        None => (!updates.is_empty()).then_some(0),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::MicroBatch(number) => write!(f, "micro-batch {number}"),
            Part::Update => f.write_str("the end of the window"),
        }
    }
}

impl fmt::Display for Spike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { update, since, growth, .. } = self;
        writeln!(
            f,
            "The loss or gradient of update {update} is far above those before it. Compared with update {since}:"
        )?;
        write!(f, "{growth}")
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, updates, broken, failure, spike } = self;
        writeln!(f, "Replayed {} updates from update {from} on.", updates.len())?;
        match (broken, failure) {
            (None, _) => match spike {
                None => write!(f, "All of them are sound."),
                Some(spike) => write!(f, "{spike}"),
            },
            (Some(update), None) => write!(
                f,
                "Update {update} is not sound, and yet each of its values is finite when its nodes run one by one: a kernel \
                 of the device may be wrong."
            ),
            (Some(_), Some(Failure { update, part, origin, .. })) => {
                writeln!(f, "Update {update} broke the run, in {part}.")?;
                write!(f, "{origin}")
            }
        }
    }
}

/// A function that gets each program and its inputs before the run.
pub(crate) type Before<'a> = &'a mut dyn FnMut(&mut Session, &Step, &[(&str, &Array)]) -> Result<()>;
