//! A compiled plan: buffers, kernels with what they bind, and what is copied to the host after a run.

use crate::{
    clock::{Clock, STAMPS, seconds},
    device::Inner,
    error::Result,
    lower::{Check, can_fail},
    memory::{Arena, Buffer, Form, WORD, bytes, to_words},
    schedule::{Layout, Schedule, Stop, Stretch, own, representable, small},
    wgsl::{Memory, SHARED, launch::Dispatch},
};
use std::{collections::HashMap, ops::Range, sync::Arc};
use wgrad::{
    DType, Data,
    plan::{Home, Plan, Slot},
};

/// The place of a buffer that outlives programs: in the arena, or by itself.
pub(crate) enum Place {
    Arena(usize),
    Alone(Buffer),
}

/// A buffer that outlives programs.
pub(crate) struct StateBuffer {
    pub place: Place,
    pub dtype: DType,
    pub len: usize,
}

impl StateBuffer {
    /// The way its elements lie there.
    pub fn form(&self) -> Form {
        match self.place {
            Place::Arena(_) => Form::Words,
            Place::Alone(_) => Form::alone(self.dtype),
        }
    }
}

/// The things that programs share.
pub(crate) struct World<'a> {
    pub gpu: &'a Arc<Inner>,
    pub arena: &'a mut Arena,
    pub states: &'a [StateBuffer],
    pub counters: &'a mut crate::Counters,
}

impl World<'_> {
    fn storage(&mut self, words: usize) -> Result<Buffer> {
        self.counters.buffers += 1;
        Buffer::storage(self.gpu, words)
    }
}

/// A kernel, ready to be run.
struct Step {
    pipeline: Arc<wgpu::ComputePipeline>,
    group: wgpu::BindGroup,
    groups: [u32; 3],
}

/// The values that come to the host after a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// Type and length of each tapped value, which follow one another.
    pub taps: Vec<(DType, usize)>,
    /// Two words for each, after the taps.
    pub checks: Vec<Check>,
    /// The number of dispatches that have timestamps, which come last.
    pub timed: usize,
}

impl Shown {
    /// The words of what is tapped, of what tells whether kernels have failed, and of timestamps.
    fn parts(&self) -> [usize; 3] {
        [self.taps.iter().map(|(_, len)| len).sum(), 2 * self.checks.len(), STAMPS * self.timed]
    }

    /// All words.
    pub fn words(&self) -> usize {
        self.parts().iter().sum()
    }

    /// The words of each part.
    pub fn split<'a>(&self, words: &'a [u32]) -> [&'a [u32]; 3] {
        let [taps, flags, _] = self.parts();
        let (taps, rest) = words.split_at(taps);
        let (flags, stamps) = rest.split_at(flags);
        [taps, flags, stamps]
    }
}

/// A compiled plan.
pub(crate) struct Executable {
    own: Vec<Buffer>,
    flags: Option<Buffer>,
    params: Option<Buffer>,
    /// Its part of the arena.
    places: Vec<(usize, usize)>,
    dispatches: Vec<Dispatch>,
    pipelines: Vec<Arc<wgpu::ComputePipeline>>,
    steps: Vec<Step>,
    /// The arena's generation for which the steps were made.
    generation: u64,
    /// The steps that run before each exchange, and after the last.
    stages: Vec<(Range<usize>, Option<Stop>)>,
    /// The steps that commit.
    commits: Range<usize>,
    pub inputs: Vec<Option<Stretch>>,
    /// The place where tapped values are when the last stage has run.
    taps: Vec<Stretch>,
    pub shown: Arc<Shown>,
    /// Slots that kernels write: for tests that fill them with garbage.
    transient: Vec<Stretch>,
    /// Buffers for what is shown, not in use.
    pub free: Vec<Buffer>,
    /// The number of kernels that the plan has.
    kernels: usize,
    /// The clock of its dispatches, if somebody watches.
    clock: Option<Clock>,
    /// The seconds of each kernel of the plan in each run, until they are asked for.
    pub times: Vec<Vec<f64>>,
}

/// The parts of an executable while a plan is compiled.
struct Parts {
    own: Vec<Buffer>,
    places: Vec<(usize, usize)>,
    /// Tables in the arena, by their words.
    tables: HashMap<Vec<u32>, usize>,
}

impl Executable {
    /// Compiles a plan. Whatever it takes of the arena is given back if that fails.
    pub fn new(plan: &Plan, states: &[usize], world: &mut World<'_>) -> Result<Self> {
        let mut parts = Parts { own: vec![], places: vec![], tables: HashMap::new() };
        let result = Self::build(plan, states, world, &mut parts);
        if result.is_err() {
            parts.places.iter().for_each(|&(start, words)| world.arena.release(start, words));
        }
        result
    }

    fn build(plan: &Plan, states: &[usize], world: &mut World<'_>, parts: &mut Parts) -> Result<Self> {
        representable(plan)?;
        let small = small(plan);
        let slots = || plan.slots.iter().zip(&small);
        let alone = slots().filter(|(slot, small)| !**small && !matches!(slot.home, Home::State(_)));
        // A plan that has no room as a whole takes none.
        world.gpu.admit(alone.map(|(slot, _)| bytes(Form::alone(slot.dtype).words(slot.len))).sum())?;
        let mut places = vec![];
        for (slot, &small) in slots() {
            places.push(place(slot, small, states, world, parts)?);
        }
        for (slot, place) in plan.slots.iter().zip(&places) {
            fill(plan, slot, *place, world, parts)?;
        }
        let stretch = |s: usize, slot: &Slot| Stretch {
            memory: places[s].0,
            start: places[s].1,
            len: slot.len,
            dtype: slot.dtype,
        };
        let slots = || plan.slots.iter().enumerate();
        let transient = slots().filter(|(_, slot)| slot.home == Home::Transient).map(|(s, slot)| stretch(s, slot));
        let transient = transient.collect();
        let count = slots().filter_map(|(_, slot)| match slot.home {
            Home::Input(i) => Some(i + 1),
            _ => None,
        });
        let mut inputs: Vec<Option<Stretch>> = vec![None; count.max().unwrap_or(0)];
        for (s, slot) in slots() {
            if let Home::Input(i) = slot.home {
                inputs[i] = Some(stretch(s, slot));
            }
        }

        let failed = plan.kernels.iter().any(can_fail).then(|| parts.arena(world, 1)).transpose()?;
        let all = world.states;
        let buffers = world.gpu.limits.max_storage_buffers_per_shader_stage as usize;
        let layout = Layout {
            places: &places,
            state: &|state| state_place(all, states[state.index()]),
            failed,
            own: parts.own.len(),
            // A limit of all devices: it is checked here, since wgpu does not.
            shared: (world.gpu.limits.max_compute_workgroup_storage_size as usize).min(SHARED),
            buffers,
            target: world.gpu.target,
            f16_storage: world.gpu.f16_storage,
            units: world.gpu.units,
            separate: world.gpu.separate,
            wary: world.gpu.wary,
        };
        let schedule = Schedule::new(plan, &layout, &mut |words| parts.table(world, words))?;
        schedule.within(buffers)?;
        let Schedule { dispatches, stages, commits, taps, checks, scratch } = schedule;
        for words in scratch {
            parts.own.push(world.storage(words)?);
        }
        let flags = match checks.len() {
            0 => None,
            n => Some(world.storage(2 * n)?),
        };
        let shown = Shown { taps: taps.iter().map(|tap| (tap.dtype, tap.len)).collect(), checks, timed: 0 };
        let mut executable = Self {
            own: std::mem::take(&mut parts.own),
            flags,
            params: None,
            places: vec![],
            dispatches,
            pipelines: vec![],
            steps: vec![],
            generation: 0,
            stages,
            commits,
            inputs,
            taps,
            shown: Arc::new(shown),
            transient,
            free: vec![],
            kernels: plan.kernels.len(),
            clock: None,
            times: vec![],
        };
        executable.compile(world)?;
        executable.bind(world)?;
        executable.places = std::mem::take(&mut parts.places);
        Ok(executable)
    }

    /// Compiles the kernels, and writes their parameters.
    fn compile(&mut self, world: &mut World<'_>) -> Result<()> {
        let texts: Vec<&str> = self.dispatches.iter().map(|dispatch| dispatch.text.as_str()).collect();
        let (pipelines, compiled) = world.gpu.pipelines.get(world.gpu, &texts)?;
        world.counters.pipelines += compiled as u64;
        self.pipelines = pipelines;
        let words = self.params_of(world.gpu).flat_map(|(_, words)| words).collect::<Vec<u32>>();
        if !words.is_empty() {
            world.counters.buffers += 1;
            let buffer = Buffer::uniform(world.gpu, words.len())?;
            world.gpu.queue.write_buffer(&buffer.raw, 0, bytemuck::cast_slice(&words));
            self.params = Some(buffer);
        }
        Ok(())
    }

    /// The place of each dispatch's parameters, and their words up to the next place.
    fn params_of(&self, gpu: &Inner) -> impl Iterator<Item = (u64, Vec<u32>)> + '_ {
        let step = gpu.limits.min_uniform_buffer_offset_alignment as usize / WORD as usize;
        let mut at = 0;
        self.dispatches.iter().map(move |dispatch| {
            let mut words = dispatch.params.clone();
            words.resize(words.len().next_multiple_of(step), 0);
            at += words.len() as u64;
            ((at - words.len() as u64) * WORD, words)
        })
    }

    /// Makes the bind groups.
    fn bind(&mut self, world: &mut World<'_>) -> Result<()> {
        let params: Vec<u64> = self.params_of(world.gpu).map(|(at, _)| at).collect();
        let (arena, states, gpu) = (&*world.arena, world.states, world.gpu);
        let steps = gpu.scoped(|| {
            let step = |((dispatch, pipeline), at): ((&Dispatch, &Arc<wgpu::ComputePipeline>), &u64)| {
                let mut entries = vec![];
                if let (false, Some(params)) = (dispatch.params.is_empty(), &self.params) {
                    let size = std::num::NonZero::new(dispatch.params.len() as u64 * WORD);
                    let binding = wgpu::BufferBinding { buffer: &params.raw, offset: *at, size };
                    entries.push(wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(binding) });
                }
                for (i, memory) in dispatch.bindings.iter().enumerate() {
                    let buffer = self.buffer(*memory, arena, states);
                    entries.push(wgpu::BindGroupEntry { binding: i as u32 + 1, resource: buffer.as_entire_binding() });
                }
                let layout = pipeline.get_bind_group_layout(0);
                let description = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
                let group = gpu.device.create_bind_group(&description);
                Step { pipeline: pipeline.clone(), group, groups: dispatch.groups }
            };
            self.dispatches.iter().zip(&self.pipelines).zip(&params).map(step).collect::<Vec<_>>()
        })?;
        world.counters.bind_groups += steps.len() as u64;
        self.steps = steps;
        self.generation = world.arena.generation;
        Ok(())
    }

    /// The buffer of some memory.
    pub fn buffer<'a>(&'a self, memory: Memory, arena: &'a Arena, states: &'a [StateBuffer]) -> &'a wgpu::Buffer {
        match memory {
            Memory::Arena => &arena.buffer.raw,
            Memory::Own(i) | Memory::OwnF16(i) => &self.own[i].raw,
            Memory::Flags => &self.flags.as_ref().expect("something can fail").raw,
            Memory::State(i) | Memory::StateF16(i) => match &states[i].place {
                Place::Alone(buffer) => &buffer.raw,
                Place::Arena(_) => &arena.buffer.raw,
            },
        }
    }

    /// Sees to it that the bind groups are those of the arena as it is.
    pub fn refresh(&mut self, world: &mut World<'_>) -> Result<()> {
        if self.generation == world.arena.generation { Ok(()) } else { self.bind(world) }
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// The exchange after a stage.
    pub fn stop(&self, stage: usize) -> Option<&Stop> {
        self.stages[stage].1.as_ref()
    }

    /// For tests: fills what kernels write with garbage.
    pub fn poison(&self, world: &World<'_>) {
        for stretch in &self.transient {
            // NaN for floats; far beyond any index.
            let words = vec![u32::MAX; Form::of(stretch.memory).words(stretch.len)];
            let buffer = self.buffer(stretch.memory, world.arena, world.states);
            world.gpu.queue.write_buffer(buffer, stretch.start as u64 * WORD, bytemuck::cast_slice(&words));
        }
    }

    /// Writes the inputs, by way of some words of scratch.
    pub fn write_inputs(&self, inputs: &[&Data], world: &World<'_>, words: &mut Vec<u32>) -> Result<()> {
        for (data, stretch) in inputs.iter().zip(&self.inputs) {
            let Some(stretch) = stretch.as_ref().filter(|stretch| stretch.len > 0) else { continue };
            let buffer = self.buffer(stretch.memory, world.arena, world.states);
            write(world.gpu, buffer, stretch.start, data, Form::of(stretch.memory), words)?;
        }
        Ok(())
    }

    /// Records a stage, and after the last one what is shown and the commits. `readback` is where that goes.
    pub fn record(&self, stage: usize, readback: Option<&wgpu::Buffer>, world: &mut World<'_>) -> wgpu::CommandBuffer {
        let mut encoder = world.gpu.device.create_command_encoder(&Default::default());
        if let (0, Some(flags)) = (stage, &self.flags) {
            encoder.clear_buffer(&flags.raw, 0, None);
        }
        let (steps, _) = &self.stages[stage];
        self.pass(&mut encoder, steps.clone());
        world.counters.dispatches += steps.len() as u64;
        if stage + 1 == self.stages.len() {
            if let Some(readback) = readback {
                let mut at = 0;
                for tap in self.taps.iter().filter(|tap| tap.len > 0) {
                    let (from, bytes) = (self.buffer(tap.memory, world.arena, world.states), tap.len as u64 * WORD);
                    encoder.copy_buffer_to_buffer(from, tap.start as u64 * WORD, readback, at, bytes);
                    at += bytes;
                }
                if let Some(flags) = &self.flags {
                    let bytes = 2 * self.shown.checks.len() as u64 * WORD;
                    encoder.copy_buffer_to_buffer(&flags.raw, 0, readback, at, bytes);
                    at += bytes;
                }
                if let Some(clock) = &self.clock {
                    clock.copy(&mut encoder, readback, at);
                }
            }
            self.pass(&mut encoder, self.commits.clone());
            world.counters.dispatches += self.commits.len() as u64;
        }
        encoder.finish()
    }

    /// One pass for all; or one for each, between its timestamps, if somebody watches. (Commits are of no kernel.)
    fn pass(&self, encoder: &mut wgpu::CommandEncoder, steps: Range<usize>) {
        match self.clock.as_ref().filter(|_| steps != self.commits) {
            Some(clock) => steps.for_each(|step| self.timed_pass(encoder, step..step + 1, Some(clock.around(step)))),
            None => self.timed_pass(encoder, steps, None),
        }
    }

    fn timed_pass(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        steps: Range<usize>,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        if steps.is_empty() {
            return;
        }
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        let mut last: Option<&Arc<wgpu::ComputePipeline>> = None;
        for step in &self.steps[steps] {
            if !last.is_some_and(|last| Arc::ptr_eq(last, &step.pipeline)) {
                pass.set_pipeline(&step.pipeline);
                last = Some(&step.pipeline);
            }
            pass.set_bind_group(0, &step.group, &[]);
            let [x, y, z] = step.groups;
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// The flags, if a kernel can fail: for the host to read between stages.
    pub fn flags(&self) -> Option<&wgpu::Buffer> {
        self.flags.as_ref().map(|flags| &flags.raw)
    }

    /// Times each dispatch from the next run on. True if the device can.
    pub fn watch(&mut self, world: &mut World<'_>) -> Result<bool> {
        if self.clock.is_none() {
            let timed = self.commits.start;
            self.clock = Clock::new(world.gpu, timed)?;
            if self.clock.is_none() {
                return Ok(false);
            }
            world.counters.buffers += 1;
            // Earlier runs have shown their values in smaller buffers. Of those on their way `shown` is another.
            self.shown = Arc::new(Shown { timed, ..(*self.shown).clone() });
            self.free.clear();
        }
        Ok(true)
    }

    /// Keeps the timestamps of a run.
    pub fn keep_times(&mut self, stamps: &[u32], gpu: &Inner) {
        if self.shown.timed > 0 {
            let dispatches = self.dispatches.iter().map(|dispatch| &dispatch.kernels[..]);
            self.times.push(seconds(stamps, dispatches, self.kernels, gpu.queue.get_timestamp_period()));
        }
    }

    /// The bytes of what it has for itself: its buffers, and its places in the arena.
    pub fn bytes(&self) -> u64 {
        let buffers = self.own.iter().chain(&self.flags).chain(&self.params).chain(&self.free);
        let places: usize = self.places.iter().map(|(_, words)| words).sum();
        buffers.map(|buffer| buffer.raw.size()).sum::<u64>() + places as u64 * WORD
    }

    /// Gives back what it has of the arena.
    pub fn release(self, arena: &mut Arena) {
        self.places.iter().for_each(|&(start, words)| arena.release(start, words));
    }
}

/// Writes data to a buffer from a word on. It is there before anything that is submitted later.
pub(crate) fn write(
    gpu: &Inner,
    buffer: &wgpu::Buffer,
    start: usize,
    data: &Data,
    form: Form,
    words: &mut Vec<u32>,
) -> Result<()> {
    words.clear();
    to_words(data, form, words)?;
    gpu.queue.write_buffer(buffer, start as u64 * WORD, bytemuck::cast_slice(words));
    Ok(())
}

/// The memory of a state, and its first word.
pub(crate) fn state_place(states: &[StateBuffer], buffer: usize) -> (Memory, usize) {
    match states[buffer].place {
        Place::Arena(start) => (Memory::Arena, start),
        Place::Alone(_) if states[buffer].form() == Form::F16 => (Memory::StateF16(buffer), 0),
        Place::Alone(_) => (Memory::State(buffer), 0),
    }
}

/// Finds memory for a slot.
fn place(
    slot: &Slot,
    small: bool,
    states: &[usize],
    world: &mut World<'_>,
    parts: &mut Parts,
) -> Result<(Memory, usize)> {
    if let Home::State(state) = slot.home {
        return Ok(state_place(world.states, states[state.index()]));
    }
    if small {
        return Ok((Memory::Arena, parts.arena(world, slot.len)?));
    }
    parts.own.push(world.storage(Form::alone(slot.dtype).words(slot.len))?);
    Ok((own(slot, parts.own.len() - 1), 0))
}

/// Writes what a slot holds from the start.
fn fill(
    plan: &Plan,
    slot: &Slot,
    (memory, start): (Memory, usize),
    world: &mut World<'_>,
    parts: &Parts,
) -> Result<()> {
    let data = match slot.home {
        Home::Const(value) => Data::from_f64(slot.dtype, &[value]),
        Home::Iota => Data::U32((0..slot.len as u32).collect()),
        Home::Table(table) => {
            let values: Vec<f64> = plan.tables[table].iter().map(|&bits| f64::from_bits(bits)).collect();
            Data::from_f64(slot.dtype, &values)
        }
        _ => return Ok(()),
    };
    let buffer = match memory {
        Memory::Own(i) | Memory::OwnF16(i) => &parts.own[i].raw,
        _ => &world.arena.buffer.raw,
    };
    if data.is_empty() { Ok(()) } else { write(world.gpu, buffer, start, &data, Form::of(memory), &mut vec![]) }
}

impl Parts {
    /// A place in the arena for as long as the program lives.
    fn arena(&mut self, world: &mut World<'_>, words: usize) -> Result<usize> {
        let start = world.arena.alloc(world.gpu, words)?;
        self.places.push((start, words));
        Ok(start)
    }

    /// Puts a table into the arena, once.
    fn table(&mut self, world: &mut World<'_>, words: Vec<u32>) -> Result<usize> {
        if let Some(place) = self.tables.get(&words) {
            return Ok(*place);
        }
        let start = self.arena(world, words.len())?;
        if !words.is_empty() {
            let buffer = &world.arena.buffer.raw;
            world.gpu.queue.write_buffer(buffer, start as u64 * WORD, bytemuck::cast_slice(&words));
        }
        self.tables.insert(words, start);
        Ok(start)
    }
}
