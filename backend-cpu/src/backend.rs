//! The device: buffers, compiled plans, and a pool of threads.

use crate::{
    exchange::Stop,
    kernel::Compiled,
    loops::view::View,
    memory::{
        elements::{Element, Env, Source, Target, exact, nothing, poison, room, take, with_type, written},
        scratch::{Files, Workers},
        sizes::Sizes,
    },
    threads::{clock::Instant, pool::Pool, team::Team},
};
use std::{collections::HashSet, ops::Range, time::Duration};
use wgrad::{
    Backend, Collective, DType, Data, Result, StateId,
    backend::{BufferId, Delivery, ExecutableId, SnapshotId},
    op::{Op, Typed},
    plan::{Grouping, Home, Operand, Plan},
};

/// Errors of the CPU beside those that every backend reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system gives no more threads.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// The number that were asked for.
        threads: usize,
        /// Why not.
        source: std::io::Error,
    },
}

impl From<Error> for wgrad::Error {
    fn from(error: Error) -> Self {
        wgrad::Error::Backend(Box::new(error))
    }
}

/// A strided read, resolved.
#[derive(Debug)]
struct Read {
    view: View,
    len: usize,
    dtype: DType,
}

impl Read {
    /// Copies the elements to contiguous memory, from element `start` on.
    fn copy(&self, env: &Env, to: &mut Data, start: usize) {
        let all = (0..1, 0..self.len);
        with_type!(self.dtype, T => {
            let from = T::slice(env.data(self.view.source));
            self.view.gather(from, 0, all.0, all.1, &mut T::slice_mut(to)[start..][..self.len]);
        });
    }
}

#[derive(Debug)]
struct Executable {
    kernels: Vec<Compiled>,
    /// Between kernels, in order.
    stops: Vec<Stop>,
    slots: Vec<Data>,
    /// The slots that kernels write.
    transient: Vec<usize>,
    taps: Vec<Read>,
    /// A buffer, its first element, and what it becomes.
    commits: Vec<(usize, usize, Read)>,
    /// The writes of the kernel at hand, taken out of their places.
    taken: Vec<Data>,
    targets: Vec<Target>,
    /// The seconds of each kernel in each run, until they are asked for; `None` if nobody watches.
    times: Option<Vec<Vec<f64>>>,
}

/// The CPU as a device.
pub struct CpuBackend {
    team: Team,
    poison: bool,
    sizes: Sizes,
    files: Files,
    workers: Workers,
    buffers: Vec<Data>,
    /// The beginning of each buffer in its memory, and its length.
    extents: Vec<(usize, usize)>,
    snapshots: Vec<Option<Vec<Data>>>,
    executables: Vec<Option<Executable>>,
    deliveries: Vec<Delivery>,
}

impl CpuBackend {
    /// A device with this many threads; 0 takes as many as the machine has cores.
    ///
    /// # Errors
    /// [`wgrad::Error::Backend`] of [`Error::Threads`] if the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self> {
        let team = Team::new(threads).map_err(|source| Error::Threads { threads, source })?;
        let workers = Workers::new(team.threads());
        let sizes = Sizes { threads: team.threads(), ..Sizes::FAST };
        Ok(Self {
            team,
            poison: false,
            sizes,
            files: Files::default(),
            workers,
            buffers: vec![],
            extents: vec![],
            snapshots: vec![],
            executables: vec![],
            deliveries: vec![],
        })
    }

    /// For tests: a device that fills every slot, and all scratch, with NaN (or wild integers) before each run, so that
    /// a kernel which reads what nobody wrote is found out.
    ///
    /// # Errors
    /// [`wgrad::Error::Backend`] of [`Error::Threads`] if the threads cannot be started.
    pub fn poisoned(threads: usize) -> Result<Self> {
        Ok(Self { poison: true, ..Self::new(threads)? })
    }

    /// For tests: a poisoned device that cuts the smallest kernels into many parts, and shares them among its threads.
    ///
    /// # Errors
    /// [`wgrad::Error::Backend`] of [`Error::Threads`] if the threads cannot be started.
    #[doc(hidden)]
    pub fn splitting(threads: usize) -> Result<Self> {
        let made = Self::poisoned(threads)?;
        Ok(Self { sizes: Sizes { threads: made.sizes.threads, ..Sizes::TINY }, ..made })
    }

    fn executable(&mut self, id: ExecutableId) -> &mut Executable {
        self.executables[id.0].as_mut().expect("a session has not released what it names")
    }
}

impl Executable {
    fn new(plan: &Plan, states: &[BufferId], extents: &[(usize, usize)], sizes: Sizes, files: &mut Files) -> Self {
        let mut plan = plan.clone();
        let exchanged: HashSet<usize> =
            plan.exchanges().into_iter().flatten().map(|k| plan.kernels[k].writes[0].slot).collect();
        let slots = plan.slots.iter().enumerate().map(|(s, slot)| match slot.home {
            Home::Transient if exchanged.contains(&s) => (exact(slot.dtype, slot.len), 0),
            Home::Transient => room(slot.dtype, slot.len),
            Home::Const(value) => (Data::from_f64(slot.dtype, &[value]), 0),
            Home::Iota => (Data::U32((0..slot.len as u32).collect()), 0),
            Home::Table(table) => {
                let values: Vec<f64> = plan.tables[table].iter().map(|&bits| f64::from_bits(bits)).collect();
                (Data::from_f64(slot.dtype, &values), 0)
            }
            Home::State(state) => (nothing(slot.dtype), extents[states[state.index()].0].0),
            Home::Input(_) => (nothing(slot.dtype), 0),
        });
        let (slots, starts): (Vec<Data>, Vec<usize>) = slots.unzip();
        plan.operands().for_each(|operand| operand.offset += starts[operand.slot]);
        let plan = &plan;
        let place = |slot: usize| match plan.slots[slot].home {
            Home::Transient | Home::Const(_) | Home::Iota | Home::Table(_) => Source::Slot(slot),
            Home::State(state) => Source::Buffer(states[state.index()].0),
            Home::Input(input) => Source::Input(input),
        };
        let read = |operand: &Operand| Read {
            view: View::new(place(operand.slot), operand, 0, false),
            len: operand.shape.numel(),
            dtype: plan.slots[operand.slot].dtype,
        };
        let commit = |(state, operand): &(StateId, Operand)| {
            let buffer = states[state.index()].0;
            (buffer, extents[buffer].0, read(operand))
        };
        let mut kernels: Vec<Compiled> = vec![];
        while let Some(kernel) = plan.kernels.get(kernels.len()) {
            let next = plan.kernels.get(kernels.len() + 1);
            match next.and_then(|next| Compiled::together([kernel, next], &place, sizes, files)) {
                Some(both) => kernels.extend(both),
                None => kernels.push(Compiled::new(plan, kernel, &place, sizes, files)),
            }
        }
        let stops = Stop::all(plan, place);
        let most = kernels.iter().map(|kernel| kernel.writes.len()).max().unwrap_or(0);
        Self {
            kernels,
            stops,
            slots,
            transient: (0..plan.slots.len()).filter(|&s| plan.slots[s].home == Home::Transient).collect(),
            taps: plan.taps.iter().map(read).collect(),
            commits: plan.commits.iter().map(commit).collect(),
            taken: Vec::with_capacity(most),
            targets: Vec::with_capacity(most),
            times: None,
        }
    }

    fn run(
        &mut self,
        buffers: &mut [Data],
        inputs: &[&Data],
        workers: &Workers,
        pool: Pool,
        collective: &mut dyn Collective,
    ) -> Result<Vec<Data>> {
        let Self { kernels, stops, slots, taps, commits, taken, targets, times, .. } = self;
        let product = &nothing(DType::F32);
        stops.iter_mut().for_each(|stop| stop.prepare(slots, buffers, collective));
        let mut stops = stops.iter_mut().peekable();
        let mut seconds = times.as_ref().map(|_| Vec::with_capacity(kernels.len()));
        // The part of the kernel at hand that the one before has done.
        let mut ahead = Duration::ZERO;
        for (k, kernel) in kernels.iter().enumerate() {
            let start = seconds.as_ref().map(|_| Instant::now());
            taken.extend(kernel.writes.iter().map(|place| take(*place, slots, buffers)));
            targets.extend(taken.iter_mut().map(Target::new));
            let result = kernel.run(Env { slots, buffers, inputs, targets, product, shift: 0 }, workers, pool);
            targets.clear();
            for (place, data) in kernel.writes.iter().zip(taken.drain(..)) {
                *written(*place, slots, buffers) = data;
            }
            result?;
            if let (Some(seconds), Some(start)) = (&mut seconds, start) {
                let second = kernel.second().unwrap_or_default();
                seconds.push((start.elapsed().saturating_sub(second) + ahead).as_secs_f64());
                ahead = second;
            }
            if let Some(stop) = stops.peek_mut() {
                stop.begin(k, slots, buffers, collective);
            }
            if let Some(stop) = stops.next_if(|stop| stop.last() == k) {
                stop.run(slots, buffers, collective)?;
            }
        }
        let env = Env { slots, buffers, inputs, targets: &[], product, shift: 0 };
        let tapped = |tap: &Read| {
            let mut value = Data::zeros(tap.dtype, tap.len);
            tap.copy(&env, &mut value, 0);
            value
        };
        let values = taps.iter().map(tapped).collect();
        for (state, start, read) in commits {
            // The plan's commits read no state that a commit changes, so taking it out hides nothing.
            let mut target = take(Source::Buffer(*state), slots, buffers);
            read.copy(&Env { slots, buffers, inputs, targets: &[], product, shift: 0 }, &mut target, *start);
            buffers[*state] = target;
        }
        if let (Some(times), Some(seconds)) = (times, seconds) {
            times.push(seconds);
        }
        Ok(values)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        match self.team.threads() {
            1 => "cpu (1 thread)".into(),
            threads => format!("cpu ({threads} threads)"),
        }
    }

    fn claims(&self, op: &Op, inputs: &[Typed]) -> bool {
        op.is_fused() && matches!(inputs[0].1, DType::F32 | DType::F64)
    }

    fn grouping(&self) -> Grouping {
        Grouping { buffers: 24, ..Grouping::default() }
    }

    fn alloc(&mut self, data: &Data) -> Result<BufferId> {
        let (room, start) = room(data.dtype(), data.len());
        self.buffers.push(room);
        self.extents.push((start, data.len()));
        let id = BufferId(self.buffers.len() - 1);
        self.write(id, data)?;
        Ok(id)
    }

    fn write(&mut self, buffer: BufferId, data: &Data) -> Result<()> {
        self.write_part(buffer, 0, data)
    }

    fn read(&mut self, buffer: BufferId) -> Result<Data> {
        let (_, len) = self.extents[buffer.0];
        self.read_part(buffer, 0..len)
    }

    fn write_part(&mut self, buffer: BufferId, start: usize, data: &Data) -> Result<()> {
        let (first, len) = self.extents[buffer.0];
        let to = &mut self.buffers[buffer.0];
        with_type!(data.dtype(), T => {
            T::slice_mut(to)[first..][..len][start..][..data.len()].copy_from_slice(T::slice(data));
        });
        Ok(())
    }

    fn read_part(&mut self, buffer: BufferId, range: Range<usize>) -> Result<Data> {
        let (first, _) = self.extents[buffer.0];
        Ok(self.buffers[buffer.0].slice(first + range.start..first + range.end))
    }

    fn keep(&mut self, buffers: &[BufferId]) -> Result<SnapshotId> {
        let kept = buffers.iter().map(|buffer| self.read(*buffer)).collect::<Result<_>>()?;
        let free = self.snapshots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.snapshots.push(None);
            self.snapshots.len() - 1
        });
        self.snapshots[free] = Some(kept);
        Ok(SnapshotId(free))
    }

    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> Result<()> {
        let kept = self.snapshots[snapshot.0].take().expect("a session has not forgotten what it names");
        let written = buffers.iter().zip(&kept).try_for_each(|(buffer, data)| self.write(*buffer, data));
        self.snapshots[snapshot.0] = Some(kept);
        written
    }

    fn forget(&mut self, snapshot: SnapshotId) {
        self.snapshots[snapshot.0] = None;
    }

    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> Result<ExecutableId> {
        let free = self.executables.iter().position(Option::is_none).unwrap_or_else(|| {
            self.executables.push(None);
            self.executables.len() - 1
        });
        self.executables[free] = Some(Executable::new(plan, states, &self.extents, self.sizes, &mut self.files));
        self.workers.fit(&self.files);
        Ok(ExecutableId(free))
    }

    fn bytes(&self, executable: ExecutableId) -> u64 {
        let size = |slot: &Data| (slot.len() * slot.dtype().size()) as u64;
        self.executables[executable.0].as_ref().map_or(0, |compiled| compiled.slots.iter().map(size).sum())
    }

    fn release(&mut self, executable: ExecutableId) {
        self.executables[executable.0] = None;
    }

    fn run(
        &mut self,
        executable: ExecutableId,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> Result<()> {
        let Self { team, poison: poisoned, sizes, workers, buffers, executables, deliveries, .. } = self;
        let compiled = executables[executable.0].as_mut().expect("a session runs what it has not released");
        if *poisoned {
            compiled.transient.iter().for_each(|&s| poison(&mut compiled.slots[s]));
            workers.poison();
        }
        let values = compiled.run(buffers, inputs, workers, Pool::new(team, sizes.serial), collective)?;
        deliveries.push(Delivery { executable, run, values });
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(()) // A run has finished when it returns.
    }

    fn watch(&mut self, executable: ExecutableId) -> Result<bool> {
        self.executable(executable).times.get_or_insert_default();
        Ok(true)
    }

    fn times(&mut self, executable: ExecutableId) -> Vec<Vec<f64>> {
        self.executable(executable).times.as_mut().map_or(vec![], std::mem::take)
    }

    fn deliveries(&mut self) -> Result<Vec<Delivery>> {
        Ok(std::mem::take(&mut self.deliveries))
    }
}
