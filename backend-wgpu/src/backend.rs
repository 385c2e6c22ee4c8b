//! The device as wgrad sees it: buffers, compiled plans, enqueued runs, and their results.

use crate::{
    device::{Arrival, Choice, Gpu, Options},
    error::{Error, Result},
    executor::{Executable, Place, Shown, StateBuffer, World, state_place, write},
    lower::claims,
    memory::{Arena, Buffer, Form, WORD, bytes, from_words},
    schedule::{SMALL, Stretch, planned},
};
use std::{collections::VecDeque, ops::Range, sync::Arc};
use wgrad::{
    Backend, Collective, DType, Data,
    backend::{BufferId, Delivery, ExecutableId, SnapshotId},
    collective::{Exchange, exchange},
    op::{Op, Typed},
    plan::{Grouping, Plan},
};

/// The counters of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Kernels that were enqueued.
    pub dispatches: u64,
    /// Submissions to the device's queue.
    pub submits: u64,
    /// Buffers that were created.
    pub buffers: u64,
    /// Bind groups that were created.
    pub bind_groups: u64,
    /// Kernels that were compiled.
    pub pipelines: u64,
}

/// The number of runs that may be on their way: the host waits before it enqueues another.
const IN_FLIGHT: usize = 2;

/// A run that is on its way.
struct Flight {
    executable: ExecutableId,
    run: u64,
    submission: wgpu::SubmissionIndex,
    shown: Arc<Shown>,
    readback: Option<Buffer>,
    arrival: Arrival,
}

/// Copies of states.
struct Kept {
    /// Of those that share one buffer, side by side.
    small: Buffer,
    /// Of the others, one by one.
    alone: Vec<Buffer>,
}

/// A GPU as a device of wgrad.
///
/// Runs are enqueued, and their taps come one or two runs later. An index out of range, unlike on the CPU, is an error of a
/// later call: of that run no state changes, and no tap is delivered; runs that were enqueued in between start from the
/// states as they were.
pub struct WgpuBackend {
    gpu: Gpu,
    arena: Arena,
    states: Vec<StateBuffer>,
    snapshots: Vec<Option<Kept>>,
    executables: Vec<Option<Executable>>,
    flights: VecDeque<Flight>,
    deliveries: Vec<Delivery>,
    /// The faults that finished runs have shown.
    errors: VecDeque<wgrad::Error>,
    counters: Counters,
    /// The buffer that `read` copies to.
    staging: Option<Buffer>,
    /// Words on their way to the device.
    words: Vec<u32>,
    poison: bool,
}

impl WgpuBackend {
    /// Opens an adapter.
    ///
    /// # Errors
    /// If there is none, or none of this number, or its driver refuses.
    pub fn new(choice: Choice, options: Options) -> Result<Self> {
        Self::on(&Gpu::open(choice, options)?)
    }

    /// A backend on an opened adapter, with buffers of its own. What is compiled is shared.
    ///
    /// # Errors
    /// If the device is lost, or has no memory.
    pub fn on(gpu: &Gpu) -> Result<Self> {
        gpu.inner.check()?;
        Ok(Self {
            arena: Arena::new(&gpu.inner)?,
            gpu: gpu.clone(),
            states: vec![],
            snapshots: vec![],
            executables: vec![],
            flights: VecDeque::new(),
            deliveries: vec![],
            errors: VecDeque::new(),
            counters: Counters { buffers: 1, ..Counters::default() },
            staging: None,
            words: vec![],
            poison: gpu.inner.poison,
        })
    }

    /// For tests: fills everything that kernels write with NaN before each run, so that a kernel which reads what
    /// nobody wrote is found out.
    #[doc(hidden)]
    #[must_use]
    pub fn poisoned(self) -> Self {
        Self { poison: true, ..self }
    }

    /// The adapter.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// True if the adapter is a renderer on the CPU: slower than the CPU backend, and not what somebody wants who has not asked
    /// for it.
    pub fn is_software(&self) -> bool {
        self.gpu.summary().is_software()
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn world(&mut self) -> (World<'_>, &mut Vec<Option<Executable>>) {
        let Self { gpu, arena, states, counters, executables, .. } = self;
        (World { gpu: &gpu.inner, arena, states, counters }, executables)
    }

    /// The place of a state, and its first word.
    fn state(&self, buffer: BufferId) -> (&wgpu::Buffer, usize, &StateBuffer) {
        let state = &self.states[buffer.0];
        match &state.place {
            Place::Arena(start) => (&self.arena.buffer.raw, *start, state),
            Place::Alone(buffer) => (&buffer.raw, 0, state),
        }
    }

    /// Some elements of a state, and the buffer that they are in.
    fn stretch(&self, buffer: BufferId, range: Range<usize>) -> (wgpu::Buffer, Stretch) {
        let (memory, first) = state_place(&self.states, buffer.0);
        let (raw, _, state) = self.state(buffer);
        (raw.clone(), Stretch { memory, start: first + range.start, len: range.len(), dtype: state.dtype })
    }

    /// Copies between states and a snapshot's buffers, after all runs so far.
    fn exchange_kept(&mut self, buffers: &[BufferId], kept: &Kept, restore: bool) -> Result<()> {
        let gpu = self.gpu.inner.clone();
        gpu.check()?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let (mut at, mut alone) = (0, kept.alone.iter());
        for &id in buffers {
            let (buffer, start, state) = self.state(id);
            let bytes = state.form().words(state.len) as u64 * WORD;
            let own = (buffer, start as u64 * WORD);
            let copy = match &state.place {
                Place::Arena(_) => (&kept.small.raw, at),
                Place::Alone(_) => (&alone.next().expect("one for each").raw, 0),
            };
            if let Place::Arena(_) = &state.place {
                at += bytes;
            }
            if bytes > 0 {
                let ((from, start), (to, place)) = if restore { (copy, own) } else { (own, copy) };
                encoder.copy_buffer_to_buffer(from, start, to, place, bytes);
            }
        }
        gpu.queue.submit([encoder.finish()]);
        self.counters.submits += 1;
        Ok(())
    }

    /// Copies a stretch of a buffer to the host, after all runs so far.
    fn fetch(&mut self, from: &wgpu::Buffer, start: usize, words: usize) -> Result<Vec<u32>> {
        if words == 0 {
            return Ok(vec![]);
        }
        let bytes = words as u64 * WORD;
        let gpu = self.gpu.inner.clone();
        let staging = match self.staging.take().filter(|staging| staging.raw.size() >= bytes) {
            Some(staging) => staging,
            None => {
                self.counters.buffers += 1;
                Buffer::readback(&gpu, words)?
            }
        };
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(from, start as u64 * WORD, &staging.raw, 0, bytes);
        gpu.queue.submit([encoder.finish()]);
        self.counters.submits += 1;
        let arrival = Arrival::default();
        let tell = arrival.clone();
        staging.raw.map_async(wgpu::MapMode::Read, ..bytes, move |result| tell.tell(result.is_ok()));
        gpu.wait(None, &arrival)?;
        let found = mapped(&staging.raw, bytes)?;
        staging.raw.unmap();
        self.staging = Some(staging);
        Ok(found)
    }

    /// The elements of a stretch, after all runs so far.
    fn elements(&mut self, from: &wgpu::Buffer, stretch: &Stretch) -> Result<Data> {
        let form = Form::of(stretch.memory);
        // The first half may be a word's second.
        let (start, before) =
            if form == Form::F16 { (stretch.start / 2, stretch.start % 2) } else { (stretch.start, 0) };
        let len = before + stretch.len;
        let words = self.fetch(from, start, form.words(len))?;
        let data = from_words(stretch.dtype, form, len, &words);
        Ok(match data {
            Data::F16(f16s) => Data::F16(f16s[before..].to_vec()),
            data => data,
        })
    }

    /// Writes the elements of a stretch, and nothing beside it.
    fn put(&mut self, to: &wgpu::Buffer, stretch: &Stretch, data: &Data) -> Result<()> {
        let form = Form::of(stretch.memory);
        let (mut start, mut whole) = (stretch.start, None);
        if let (Form::F16, Data::F16(f16s)) = (form, data) {
            let first = stretch.start / 2 * 2;
            let around = Stretch {
                start: first,
                len: (stretch.start + stretch.len).next_multiple_of(2) - first,
                ..stretch.clone()
            };
            if let Data::F16(mut all) = self.elements(to, &around)? {
                all[stretch.start - first..][..stretch.len].copy_from_slice(f16s);
                (start, whole) = (first / 2, Some(Data::F16(all)));
            }
        }
        write(&self.gpu.inner, to, start, whole.as_ref().unwrap_or(data), form, &mut self.words)
    }

    /// Takes the results that have arrived.
    fn collect(&mut self) -> Result<()> {
        while self.flights.front().is_some_and(|flight| flight.arrival.is_known()) {
            let flight = self.flights.pop_front().expect("seen above");
            if !flight.arrival.is_good() {
                self.gpu.inner.check()?;
                return Err(Error::Lost("a run's values cannot be read".into()));
            }
            self.deliver(flight)?;
        }
        Ok(())
    }

    fn deliver(&mut self, flight: Flight) -> Result<()> {
        let Flight { executable, run, shown, readback, .. } = flight;
        let mut words = vec![];
        // It may have been released since.
        let owner = self.executables.get_mut(executable.0).and_then(Option::as_mut);
        let mut owner = owner.filter(|owner| Arc::ptr_eq(&owner.shown, &shown));
        if let Some(buffer) = readback {
            words = mapped(&buffer.raw, shown.words() as u64 * WORD)?;
            buffer.raw.unmap();
            if let Some(owner) = &mut owner {
                owner.free.push(buffer);
            }
        }
        let [taps, flags, stamps] = shown.split(&words);
        match out_of_range(&shown, flags) {
            Some(error) => self.errors.push_back(error),
            None => {
                if let Some(owner) = owner {
                    owner.keep_times(stamps, &self.gpu.inner);
                }
                let mut at = 0;
                let value = |&(dtype, len): &(DType, usize)| {
                    at += len;
                    from_words(dtype, Form::Words, len, &taps[at - len..at])
                };
                let values = shown.taps.iter().map(value).collect();
                self.deliveries.push(Delivery { executable, run, values });
            }
        }
        Ok(())
    }

    /// Waits until at most so many runs are on their way.
    fn wait_for(&mut self, most: usize) -> Result<()> {
        while self.flights.len() > most {
            let Flight { submission, arrival, .. } = &self.flights[0];
            let (submission, arrival) = (submission.clone(), arrival.clone());
            let waited = self.gpu.inner.wait(Some(submission), &arrival);
            if waited.is_err() {
                self.flights.pop_front();
            }
            waited?;
            self.collect()?;
        }
        Ok(())
    }

    /// Exchanges values with the other ranks, after a stage.
    fn exchange(
        &mut self,
        executable: &Executable,
        stage: usize,
        collective: &mut dyn Collective,
    ) -> wgrad::Result<()> {
        let Some(stop) = executable.stop(stage) else { return Ok(()) };
        let buffer =
            |this: &Self, stretch: &Stretch| executable.buffer(stretch.memory, &this.arena, &this.states).clone();
        if let Some(flags) = executable.flags() {
            let (flags, count) = (flags.clone(), 2 * executable.shown.checks.len());
            let flags = self.fetch(&flags, 0, count)?;
            if let Some(error) = out_of_range(&executable.shown, &flags) {
                return Err(error);
            }
        }
        let mut parts = vec![];
        for (stretch, way) in &stop.values {
            let from = buffer(self, stretch);
            parts.push(Exchange { way: *way, data: self.elements(&from, stretch)? });
        }
        exchange(collective, &mut parts)?;
        for ((stretch, ..), part) in stop.values.iter().zip(&parts) {
            let result = Stretch { len: part.data.len(), ..stretch.clone() };
            if result.len > 0 {
                let to = buffer(self, &result);
                self.put(&to, &result, &part.data)?;
            }
        }
        Ok(())
    }

    /// Runs all stages of a program.
    fn enqueue(
        &mut self,
        id: ExecutableId,
        executable: &mut Executable,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> wgrad::Result<()> {
        let gpu = self.gpu.inner.clone();
        let mut words = std::mem::take(&mut self.words);
        let poison = self.poison;
        let (mut world, _) = self.world();
        executable.refresh(&mut world)?;
        if poison {
            executable.poison(&world);
        }
        let written = executable.write_inputs(inputs, &world, &mut words);
        self.words = words;
        written?;
        let count = executable.shown.words();
        let readback = match executable.free.pop() {
            None if count > 0 => {
                self.counters.buffers += 1;
                Some(Buffer::readback(&gpu, count)?)
            }
            free => free,
        };
        let last = executable.stages() - 1;
        let mut submission = None;
        for stage in 0..=last {
            let (mut world, _) = self.world();
            let commands = executable.record(stage, readback.as_ref().map(|buffer| &buffer.raw), &mut world);
            submission = Some(gpu.queue.submit([commands]));
            self.counters.submits += 1;
            gpu.check()?;
            if let Err(error) = self.exchange(executable, stage, collective) {
                executable.free.extend(readback);
                return Err(error);
            }
        }
        let arrival = Arrival::default();
        let tell = arrival.clone();
        match &readback {
            Some(buffer) => {
                buffer.raw.map_async(wgpu::MapMode::Read, ..count as u64 * WORD, move |result| {
                    tell.tell(result.is_ok());
                });
            }
            None => gpu.queue.on_submitted_work_done(move || tell.tell(true)),
        }
        let submission = submission.expect("there is a last stage");
        let shown = executable.shown.clone();
        self.flights.push_back(Flight { executable: id, run, submission, shown, readback, arrival });
        Ok(())
    }
}

/// The words of a mapped buffer.
fn mapped(buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u32>> {
    let view = buffer.get_mapped_range(..bytes).map_err(|error| Error::Lost(error.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&view[..]))
}

/// The first kernel that has found an index out of range.
fn out_of_range(shown: &Shown, flags: &[u32]) -> Option<wgrad::Error> {
    let (found, check) = flags.chunks_exact(2).zip(&shown.checks).find(|(flag, _)| flag[0] != 0)?;
    Some(wgrad::Error::IndexOutOfRange { op: check.op, index: found[1], extent: check.extent, site: check.site })
}

impl Backend for WgpuBackend {
    fn name(&self) -> String {
        let summary = self.gpu.summary();
        format!("gpu ({}, {})", summary.name, summary.backend)
    }

    fn claims(&self, op: &Op, inputs: &[Typed]) -> bool {
        claims(op, inputs, self.gpu.inner.target)
    }

    fn grouping(&self) -> Grouping {
        let bound = self.gpu.inner.limits.max_storage_buffers_per_shader_stage as usize;
        Grouping { buffers: planned(bound), ..Grouping::default() }
    }

    fn reserve(&mut self, values: &[Data]) -> wgrad::Result<()> {
        let alone = values.iter().filter(|data| data.len() > SMALL);
        Ok(self.gpu.inner.admit(alone.map(|data| bytes(Form::alone(data.dtype()).words(data.len()))).sum())?)
    }

    fn alloc(&mut self, data: &Data) -> wgrad::Result<BufferId> {
        let (gpu, len, dtype) = (self.gpu.inner.clone(), data.len(), data.dtype());
        gpu.check()?;
        if dtype == DType::F64 {
            return Err(Error::Unsupported(dtype).into());
        }
        let place = if len <= SMALL {
            Place::Arena(self.arena.alloc(&gpu, len)?)
        } else {
            self.counters.buffers += 1;
            Place::Alone(Buffer::storage(&gpu, Form::alone(dtype).words(len))?)
        };
        self.states.push(StateBuffer { place, dtype, len });
        let id = BufferId(self.states.len() - 1);
        self.write(id, data)?;
        Ok(id)
    }

    fn write(&mut self, buffer: BufferId, data: &Data) -> wgrad::Result<()> {
        self.gpu.inner.check()?;
        let mut words = std::mem::take(&mut self.words);
        let (to, start, state) = self.state(buffer);
        let written = match data.is_empty() {
            true => Ok(()),
            false => write(&self.gpu.inner, to, start, data, state.form(), &mut words),
        };
        self.words = words;
        Ok(written?)
    }

    fn read(&mut self, buffer: BufferId) -> wgrad::Result<Data> {
        self.read_part(buffer, 0..self.states[buffer.0].len)
    }

    fn write_part(&mut self, buffer: BufferId, start: usize, data: &Data) -> wgrad::Result<()> {
        self.gpu.inner.check()?;
        if data.is_empty() {
            return Ok(());
        }
        let (to, stretch) = self.stretch(buffer, start..start + data.len());
        Ok(self.put(&to, &stretch, data)?)
    }

    fn read_part(&mut self, buffer: BufferId, range: Range<usize>) -> wgrad::Result<Data> {
        self.wait()?;
        let (from, stretch) = self.stretch(buffer, range);
        Ok(self.elements(&from, &stretch)?)
    }

    fn keep(&mut self, buffers: &[BufferId]) -> wgrad::Result<SnapshotId> {
        let gpu = self.gpu.inner.clone();
        gpu.check()?;
        let (mut small, mut alone) = (0, vec![]);
        for &id in buffers {
            let state = &self.states[id.0];
            let words = state.form().words(state.len);
            match &state.place {
                Place::Arena(_) => small += words,
                Place::Alone(_) => alone.push(Buffer::storage(&gpu, words)?),
            }
        }
        let kept = Kept { small: Buffer::storage(&gpu, small)?, alone };
        self.counters.buffers += 1 + kept.alone.len() as u64;
        self.exchange_kept(buffers, &kept, false)?;
        let free = self.snapshots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.snapshots.push(None);
            self.snapshots.len() - 1
        });
        self.snapshots[free] = Some(kept);
        Ok(SnapshotId(free))
    }

    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> wgrad::Result<()> {
        let kept = self.snapshots[snapshot.0].take().expect("a session has not forgotten what it names");
        let copied = self.exchange_kept(buffers, &kept, true);
        self.snapshots[snapshot.0] = Some(kept);
        Ok(copied?)
    }

    fn forget(&mut self, snapshot: SnapshotId) {
        self.snapshots[snapshot.0] = None;
    }

    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> wgrad::Result<ExecutableId> {
        self.gpu.inner.check()?;
        let states: Vec<usize> = states.iter().map(|id| id.0).collect();
        let (mut world, executables) = self.world();
        let executable = Executable::new(plan, &states, &mut world)?;
        let free = executables.iter().position(Option::is_none).unwrap_or_else(|| {
            executables.push(None);
            executables.len() - 1
        });
        executables[free] = Some(executable);
        Ok(ExecutableId(free))
    }

    fn release(&mut self, executable: ExecutableId) {
        if let Some(executable) = self.executables[executable.0].take() {
            executable.release(&mut self.arena);
        }
    }

    fn bytes(&self, executable: ExecutableId) -> u64 {
        self.executables[executable.0].as_ref().map_or(0, Executable::bytes)
    }

    fn wait(&mut self) -> wgrad::Result<()> {
        self.wait_for(0)?;
        self.gpu.inner.check()?;
        self.errors.pop_front().map_or(Ok(()), Err)
    }

    fn run(
        &mut self,
        executable: ExecutableId,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> wgrad::Result<()> {
        self.gpu.inner.check()?;
        self.wait_for(IN_FLIGHT - 1)?;
        // Taken out, so that the program and the device can both be changed.
        let mut compiled = self.executables[executable.0].take().expect("a session runs what it has not released");
        let result = self.enqueue(executable, &mut compiled, inputs, run, collective);
        self.executables[executable.0] = Some(compiled);
        result
    }

    fn watch(&mut self, executable: ExecutableId) -> wgrad::Result<bool> {
        self.gpu.inner.check()?;
        let (mut world, executables) = self.world();
        let executable = executables[executable.0].as_mut().expect("a session watches what it has not released");
        Ok(executable.watch(&mut world)?)
    }

    fn times(&mut self, executable: ExecutableId) -> Vec<Vec<f64>> {
        self.executables[executable.0].as_mut().map_or(vec![], |executable| std::mem::take(&mut executable.times))
    }

    fn deliveries(&mut self) -> wgrad::Result<Vec<Delivery>> {
        let polled = self.gpu.inner.device.poll(wgpu::PollType::Poll);
        self.gpu.inner.check()?;
        polled.map_err(|error| Error::Lost(error.to_string()))?;
        self.collect()?;
        match self.errors.pop_front() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.deliveries)),
        }
    }
}
