//! From a plan to the device's kernels in their order: what runs before each exchange with other ranks, what is shown, and
//! what commits. It needs no device, only the places of memory.

use crate::{
    error::{Error, Result},
    lower::{Check, Lowering, can_fail, claims},
    merge::merged,
    wgsl::{
        F16Storage, Memory, SCRATCH, SHARED, Scratch, Tables, Target, View,
        body::copy,
        cooperative::{By, Units},
        launch::{Dispatch, Launch, Most},
    },
};
use std::{cell::RefCell, collections::BTreeMap, ops::Range};
use wgrad::{
    DType, Program, StateId,
    collective::Way,
    plan::{Grouping, Home, Instr, Kernel, Kind, Plan, Slot, Value},
};

/// A stretch of memory that the host writes or reads.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub memory: Memory,
    pub start: usize,
    pub len: usize,
    pub dtype: DType,
}

/// Values that are exchanged with other ranks after a stage, and what becomes of each.
/// The result lies where the value does, from the first element on.
#[derive(Debug)]
pub(crate) struct Stop {
    pub values: Vec<(Stretch, Way)>,
}

/// The place where a program's memory is.
pub(crate) struct Layout<'a> {
    /// Each slot's memory, and its first word.
    pub places: &'a [(Memory, usize)],
    /// The same of states.
    pub state: &'a dyn Fn(StateId) -> (Memory, usize),
    /// The word of the arena that says whether the run has failed, if one can.
    pub failed: Option<usize>,
    /// The number of the first of the program's buffers that is free: see [`Schedule::scratch`].
    pub own: usize,
    /// The most bytes that a workgroup's invocations can share.
    pub shared: usize,
    /// The number of storage buffers that a kernel can bind.
    pub buffers: usize,
    /// The target that kernels are cut up for.
    pub target: Target,
    /// The way kernels store f16 values.
    pub f16_storage: F16Storage,
    /// The units that multiply matrices of f16, if there are any.
    pub units: Option<Units>,
    /// True if each kernel is a dispatch of its own.
    pub separate: bool,
    /// True if its compiler computes as if floats were real numbers.
    pub wary: bool,
}

/// The kernels of a plan.
pub(crate) struct Schedule {
    pub dispatches: Vec<Dispatch>,
    /// Those that run before each exchange, and after the last.
    pub stages: Vec<(Range<usize>, Option<Stop>)>,
    /// Those that commit.
    pub commits: Range<usize>,
    /// The place where tapped values are when the last stage has run.
    pub taps: Vec<Stretch>,
    pub checks: Vec<Check>,
    /// The words of buffers that the kernels hand things on in.
    pub scratch: Vec<usize>,
}

impl Schedule {
    /// The kernels of a plan whose memory is there. `put` puts words into the arena, and gives their place.
    pub fn new(plan: &Plan, layout: &Layout<'_>, put: &mut dyn FnMut(Vec<u32>) -> Result<usize>) -> Result<Self> {
        // Scratch memory is used within one kernel of the plan, and so is the same for all.
        let words = RefCell::new([0; SCRATCH]);
        let mut scratch = |which: Scratch, wanted: usize| {
            let words = &mut words.borrow_mut()[which as usize];
            *words = wanted.max(*words);
            Memory::Own(layout.own + which as usize)
        };
        let Layout { shared, target, wary, units, .. } = *layout;
        let mut tables = Tables { put, scratch: &mut scratch, shared, target, wary, units };
        let mut lowering = Lowering { plan, places: layout.places, failed: layout.failed, checks: vec![] };
        let most = Most { buffers: layout.buffers, shared: layout.shared };
        let mut dispatches: Vec<Dispatch> = vec![];
        // Ends a stage. Between two stages, the host may read memory.
        let mut end_stage = |launches: &mut Vec<Launch>| {
            let launches = std::mem::take(launches);
            let launches = if layout.separate { launches } else { merged(launches, most) };
            let first = dispatches.len();
            dispatches.extend(launches.iter().map(|launch| launch.dispatch(layout.f16_storage)));
            first..dispatches.len()
        };
        let (mut launches, mut stages, mut taps) = (vec![], vec![], vec![]);
        let exchanges = plan.exchanges();
        let mut next = exchanges.iter().peekable();
        for (k, kernel) in plan.kernels.iter().enumerate() {
            launches.extend(lowering.kernel(kernel, &mut tables)?.into_iter().map(|launch| launch.of(k)));
            let Some(exchange) = next.next_if(|exchange| exchange.end == k + 1) else { continue };
            let value = |k: usize| {
                let kernel = &plan.kernels[k];
                let (write, way) = (&kernel.writes[0], kernel.exchange().expect("the plan says so"));
                let view = lowering.view(write);
                let (len, dtype) = (kernel.reads[0].shape.numel(), view.dtype);
                (Stretch { memory: view.memory, start: view.offset, len, dtype }, way)
            };
            let values = exchange.clone().map(value).collect();
            stages.push((end_stage(&mut launches), Some(Stop { values })));
        }
        // Values that are shown as they lie in memory are copied from there; the rest is put in order first, a word for each
        // element.
        let mut end = 0;
        for tap in &plan.taps {
            let view = lowering.view(tap);
            let len = tap.shape.numel();
            if view.is_contiguous() && !view.memory.holds_f16() {
                taps.push(Stretch { memory: view.memory, start: view.offset, len, dtype: view.dtype });
            } else {
                let memory = Memory::Own(layout.own + SCRATCH);
                let to = View { memory, offset: end, ..view.clone() }.contiguous(&view.shape);
                launches.extend(copy(&view, &to, None, &mut tables)?);
                taps.push(Stretch { memory, start: end, len, dtype: view.dtype });
                end += len;
            }
        }
        stages.push((end_stage(&mut launches), None));
        for (state, operand) in &plan.commits {
            let view = lowering.view(operand);
            let (memory, offset) = (layout.state)(*state);
            let to = View { memory, offset, ..view.clone() }.contiguous(&view.shape);
            launches.extend(copy(&view, &to, layout.failed, &mut tables)?);
        }
        let commits = end_stage(&mut launches);
        let checks = lowering.checks;
        let scratch = words.into_inner().into_iter().chain([end]).collect();
        Ok(Self { dispatches, stages, commits, taps, checks, scratch })
    }

    /// Refuses kernels that bind more storage buffers than this.
    pub fn within(&self, limit: usize) -> Result<()> {
        match self.dispatches.iter().find(|dispatch| dispatch.bindings.len() > limit) {
            Some(dispatch) => Err(Error::TooManyBuffers { needed: dispatch.bindings.len(), limit }),
            None => Ok(()),
        }
    }
}

/// Refuses plans with values of a type that GPUs do not have, be it in the middle of a kernel.
pub(crate) fn representable(plan: &Plan) -> Result<()> {
    let slots = plan.slots.iter().map(|slot| slot.dtype);
    let values = plan.kernels.iter().flat_map(values).map(|value| value.dtype);
    match slots.chain(values).find(|dtype| *dtype == DType::F64) {
        Some(dtype) => Err(Error::Unsupported(dtype)),
        None => Ok(()),
    }
}

/// The elementwise part of a kernel.
fn values(kernel: &Kernel) -> &[Value] {
    match &kernel.kind {
        Kind::Loop(body) => &body.values,
        Kind::MatMul(matmul) => &matmul.epilogue.values,
        _ => &[],
    }
}

/// The slots that live in the arena, if they are no states: scalars, and vectors that kernels look up.
pub(crate) fn small(plan: &Plan) -> Vec<bool> {
    let mut small: Vec<bool> = plan.slots.iter().map(|slot| slot.len <= 1).collect();
    for kernel in &plan.kernels {
        for value in values(kernel) {
            if let Instr::Lookup { load, .. } = value.instr {
                small[kernel.reads[load].slot] = true;
            }
        }
    }
    small
}

/// The memory of a slot in buffer `i` of the program's.
pub(crate) fn own(slot: &Slot, i: usize) -> Memory {
    if slot.dtype == DType::F16 { Memory::OwnF16(i) } else { Memory::Own(i) }
}

/// The number of buffers that planners may count with on a device that binds so many: the arena may be one more than they know
/// of.
pub(crate) fn planned(bindings: usize) -> usize {
    bindings.min(2 * FLOOR) - 1
}

/// The buffers that every device can bind.
const FLOOR: usize = 8;

/// Up to this many words, a state lives in the arena.
pub(crate) const SMALL: usize = 1024;

/// The widest subgroup of an imagined device.
const WIDTH: usize = 32;

/// For tests: a device that is not there.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Imagined {
    /// The number of storage buffers that its kernels can bind.
    pub buffers: usize,
    /// True if it is a software renderer.
    pub software: bool,
    /// True if each kernel is a dispatch of its own.
    pub separate: bool,
    /// True if its compiler computes as if floats were real numbers.
    pub wary: bool,
    /// True if it stores integers of 16 bits, and so f16 values.
    pub native: bool,
    /// The size of its matrix units, if it has some: they take 16-bit integers too.
    pub units: Option<usize>,
}

/// For tests: the texts of a program's kernels on a device, in their order. No adapter is needed.
///
/// # Errors
/// If a kernel exceeds what all devices can do.
#[doc(hidden)]
pub fn kernels(program: &Program, grouping: &Grouping, device: Imagined) -> Result<Vec<String>> {
    let Imagined { buffers, software, separate, wary, native, units } = device;
    let target = if software { Target::Software } else { Target::Hardware };
    let program = program.lowered(grouping.simplify, |op, inputs| claims(op, inputs, target));
    let plan = &Plan::with(&program, &Grouping { buffers: planned(buffers), ..grouping.clone() });
    representable(plan)?;
    // The arena begins with the word that says whether the run has failed.
    let mut end = 1;
    let mut arena = |len: usize| {
        end += len;
        (Memory::Arena, end - len)
    };
    let slots = plan.slots.iter().filter_map(|slot| match slot.home {
        Home::State(id) => Some((id, slot.len, slot.dtype)),
        _ => None,
    });
    let committed =
        plan.commits.iter().map(|(id, operand)| (*id, operand.shape.numel(), plan.slots[operand.slot].dtype));
    let mut states: BTreeMap<usize, (Memory, usize)> = BTreeMap::new();
    for (id, len, dtype) in slots.chain(committed) {
        let alone = if dtype == DType::F16 { Memory::StateF16 } else { Memory::State };
        let place = || if len <= SMALL { arena(len) } else { (alone(id.index()), 0) };
        states.entry(id.index()).or_insert_with(place);
    }
    let place = |(i, (slot, small)): (usize, (&Slot, bool))| match slot.home {
        Home::State(id) => states[&id.index()],
        _ if small => arena(slot.len),
        _ => (own(slot, i), 0),
    };
    let places: Vec<(Memory, usize)> = plan.slots.iter().zip(small(plan)).enumerate().map(place).collect();
    let failed = plan.kernels.iter().any(can_fail).then_some(0);
    let layout = Layout {
        places: &places,
        state: &|id| states[&id.index()],
        failed,
        own: plan.slots.len(),
        shared: SHARED,
        buffers,
        target,
        f16_storage: if native { F16Storage::Native } else { F16Storage::Packed },
        units: units.map(|size| Units { size, width: WIDTH, by: By::Device }),
        separate,
        wary,
    };
    let schedule = Schedule::new(plan, &layout, &mut |_| Ok(0))?;
    schedule.within(buffers)?;
    Ok(schedule.dispatches.into_iter().map(|dispatch| dispatch.text).collect())
}
