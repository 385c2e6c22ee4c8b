//! The plan: what a backend compiles. Dead nodes are gone, movement is absorbed into strided reads, and values live in
//! slots that are reused as soon as their last reader has run.
//!
//! Today a kernel is one node. Grouping nodes into kernels comes on top of this, not instead of it.

use crate::{
    DType, Shape,
    op::Op,
    program::Program,
    store::StateId,
    tape::{NodeId, ScopeId},
};
use std::{collections::HashMap, panic::Location};

/// Where the elements of a slot come from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Home {
    /// Written by kernels during a run.
    Transient,
    /// The data of an input, by its position.
    Input(usize),
    /// A state of the session.
    State(StateId),
    /// A constant.
    Const(f64),
}

/// A stretch of memory.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
    /// Where they come from.
    pub home: Home,
}

/// A strided read of a slot.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The slot.
    pub slot: usize,
    /// The first element.
    pub offset: usize,
    /// The extents that the reader sees.
    pub shape: Shape,
    /// The distance between neighbours along each dimension, in elements; 0 repeats, negative walks backwards.
    pub strides: Vec<isize>,
}

/// One computation: an op over strided reads, written contiguously.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The operation. `Reshape` copies its input, whatever its strides.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// The slot it writes, from element 0 on; never one that it reads.
    pub output: usize,
    /// The shape of its result.
    pub shape: Shape,
    /// The element type of its result.
    pub dtype: DType,
    /// The node that it computes.
    pub node: NodeId,
    /// The node's scope.
    pub scope: ScopeId,
    /// The line that recorded the node.
    pub site: &'static Location<'static>,
}

/// A program, ready to be compiled.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The kernels, in the order in which they run.
    pub kernels: Vec<Kernel>,
    /// The memory they use.
    pub slots: Vec<Slot>,
    /// What the host is shown after the kernels have run, and before the commits.
    pub taps: Vec<Operand>,
    /// The states that change, after everything else. No operand reads a state.
    pub commits: Vec<(StateId, Operand)>,
}

impl Operand {
    fn contiguous(slot: usize, shape: &Shape) -> Self {
        Self { slot, offset: 0, shape: shape.clone(), strides: shape.strides() }
    }

    /// Whether the elements lie one after another, row-major.
    pub fn is_contiguous(&self) -> bool {
        let unit = self.shape.strides();
        self.shape.numel() == 0 || (0..self.shape.rank()).all(|d| self.shape[d] == 1 || self.strides[d] == unit[d])
    }

    /// The read that results from looking at this one through a movement op; `None` if that takes a copy.
    fn through(&self, op: &Op, shape: &Shape) -> Option<Self> {
        let mut view = Operand { shape: shape.clone(), ..self.clone() };
        match op {
            Op::Reshape(_) => view.strides = self.reshaped(shape)?,
            Op::Permute(order) => view.strides = order.iter().map(|&d| self.strides[d]).collect(),
            Op::Expand(_) => {
                let repeated = |d: usize| if self.shape[d] == shape[d] { self.strides[d] } else { 0 };
                view.strides = (0..shape.rank()).map(repeated).collect();
            }
            Op::Slice { axis, start, step, .. } => {
                view.offset = (self.offset as isize + *start as isize * self.strides[*axis]) as usize;
                view.strides[*axis] *= step;
                if shape.numel() == 0 {
                    view.offset = 0; // Nothing is read, so nothing may lie outside the slot.
                }
            }
            _ => return None,
        }
        Some(view)
    }

    /// Strides that show this read in another shape, if there are any: groups of dimensions with equal numbers of
    /// elements must each be evenly spaced.
    fn reshaped(&self, to: &Shape) -> Option<Vec<isize>> {
        if self.is_contiguous() {
            return Some(to.strides());
        }
        let mut strides = vec![0; to.rank()];
        let from: Vec<(usize, isize)> =
            (0..self.shape.rank()).map(|d| (self.shape[d], self.strides[d])).filter(|(n, _)| *n != 1).collect();
        let (mut i, mut j) = (0, 0);
        while i < from.len() {
            let (mut have, mut want) = (from[i].0, 1);
            let (first_i, first_j) = (i, j);
            while have != want || j == first_j {
                if want < have || j == first_j {
                    want *= *to.get(j)?;
                    j += 1;
                } else {
                    i += 1;
                    have *= from.get(i)?.0;
                }
            }
            // Dimensions first_i..=i become first_j..j: the former must nest without gaps.
            if from[first_i..=i].windows(2).any(|w| w[0].1 != w[1].1 * w[1].0 as isize) {
                return None;
            }
            let mut stride = from[i].1;
            for d in (first_j..j).rev() {
                strides[d] = stride;
                stride *= to[d] as isize;
            }
            i += 1;
        }
        Some(strides)
    }
}

impl Plan {
    /// Plans a program.
    pub fn new(program: &Program) -> Self {
        let mut planner = Planner { plan: Plan::default(), reads: HashMap::new() };
        let live = program.live();
        for (i, node) in program.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
            let id = NodeId(i as u32);
            let read = planner.node(program, id);
            debug_assert_eq!(read.shape, node.shape);
            planner.reads.insert(id, read);
        }
        let Planner { mut plan, reads } = planner;
        plan.taps = program.taps().iter().map(|tap| reads[&tap.node].clone()).collect();
        for &(state, id) in program.commits() {
            let mut read = reads[&id].clone();
            if plan.slots[read.slot].home != Home::Transient {
                read = plan.kernel(program, id, Op::Reshape(read.shape.clone()), vec![read]);
            }
            plan.commits.push((state, read));
        }
        plan.reuse_slots();
        plan
    }

    /// Appends a kernel with a slot of its own, and returns the read of its result.
    fn kernel(&mut self, program: &Program, id: NodeId, op: Op, inputs: Vec<Operand>) -> Operand {
        let node = program.node(id);
        let output = self.slot(node.dtype, node.shape.numel(), Home::Transient);
        let (shape, dtype, scope, site) = (node.shape.clone(), node.dtype, node.scope, node.site);
        self.kernels.push(Kernel { op, inputs, output, shape, dtype, node: id, scope, site });
        Operand::contiguous(output, &node.shape)
    }

    fn slot(&mut self, dtype: DType, len: usize, home: Home) -> usize {
        self.slots.push(Slot { dtype, len, home });
        self.slots.len() - 1
    }

    /// Gives transient values whose lifetimes do not overlap the same slot. Taps and commits are read at the end.
    fn reuse_slots(&mut self) {
        let mut last_use = vec![0; self.slots.len()];
        for (k, kernel) in self.kernels.iter().enumerate() {
            last_use[kernel.output] = k;
            kernel.inputs.iter().for_each(|input| last_use[input.slot] = k);
        }
        let at_end = self.taps.iter().chain(self.commits.iter().map(|(_, read)| read));
        at_end.for_each(|read| last_use[read.slot] = usize::MAX);
        let mut dying: HashMap<usize, Vec<usize>> = HashMap::new();
        for kernel in &self.kernels {
            dying.entry(last_use[kernel.output]).or_default().push(kernel.output);
        }
        let mut slots: Vec<Slot> = vec![];
        let mut place = vec![usize::MAX; self.slots.len()];
        for (s, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.home != Home::Transient) {
            place[s] = slots.len();
            slots.push(slot.clone());
        }
        let mut free: Vec<usize> = vec![];
        for (k, kernel) in self.kernels.iter().enumerate() {
            let Slot { dtype, len, .. } = self.slots[kernel.output];
            // The smallest that is large enough, else the largest, which grows.
            let fit = |&i: &usize| {
                let have = slots[free[i]].len;
                if have >= len { (0, have) } else { (1, usize::MAX - have) }
            };
            let found = (0..free.len()).filter(|&i| slots[free[i]].dtype == dtype).min_by_key(fit);
            place[kernel.output] = match found {
                Some(i) => {
                    let slot = free.swap_remove(i);
                    slots[slot].len = slots[slot].len.max(len);
                    slot
                }
                None => {
                    slots.push(Slot { dtype, len, home: Home::Transient });
                    slots.len() - 1
                }
            };
            let dead = dying.remove(&k).unwrap_or_default();
            free.extend(dead.into_iter().map(|s| place[s]));
        }
        self.slots = slots;
        for kernel in &mut self.kernels {
            kernel.output = place[kernel.output];
            kernel.inputs.iter_mut().for_each(|input| input.slot = place[input.slot]);
        }
        let at_end = self.taps.iter_mut().chain(self.commits.iter_mut().map(|(_, read)| read));
        at_end.for_each(|read| read.slot = place[read.slot]);
    }

    /// Bytes of all transient slots.
    pub fn transient_bytes(&self) -> usize {
        let transient = self.slots.iter().filter(|slot| slot.home == Home::Transient);
        transient.map(|slot| slot.len * slot.dtype.size()).sum()
    }
}

struct Planner {
    plan: Plan,
    reads: HashMap<NodeId, Operand>,
}

impl Planner {
    /// How to read a node's value: a leaf's home, a view of its input, or the result of a new kernel.
    fn node(&mut self, program: &Program, id: NodeId) -> Operand {
        let node = program.node(id);
        let inputs: Vec<Operand> = node.inputs.iter().map(|input| self.reads[input].clone()).collect();
        let home = match &node.op {
            Op::Const(bits) => Some(Home::Const(f64::from_bits(*bits))),
            Op::Input(input) => Some(Home::Input(input.0 as usize)),
            Op::State(state) => Some(Home::State(*state)),
            _ => None,
        };
        if let Some(home) = home {
            let slot = self.plan.slot(node.dtype, node.shape.numel(), home);
            return Operand::contiguous(slot, &node.shape);
        }
        match &node.op {
            Op::Detach | Op::Barrier(_) | Op::Hook(_) => inputs[0].clone(),
            Op::Recomputed => inputs[1].clone(),
            Op::Custom { args, out, .. } => inputs[args + out].clone(),
            op => match inputs.first().and_then(|input| input.through(op, &node.shape)) {
                Some(view) => view,
                None => self.plan.kernel(program, id, op.clone(), inputs),
            },
        }
    }
}
