//! From nodes to kernels: leaves become slots, movement becomes strided reads, everything else becomes a kernel.

use super::{Body, Home, Instr, Kernel, Kind, Level, MatMul, Operand, Plan, Slot, Value};
use crate::{
    DType,
    op::Op,
    program::Program,
    tape::{Node, NodeId},
};
use std::collections::HashMap;

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
                read = plan.kernel(program, id, Kind::Op(Op::Reshape(read.shape.clone())), vec![read]);
            }
            plan.commits.push((state, read));
        }
        plan.reuse_slots();
        plan
    }

    /// Appends a kernel with a slot of its own, and returns the read of its result.
    fn kernel(&mut self, program: &Program, id: NodeId, kind: Kind, reads: Vec<Operand>) -> Operand {
        let node = program.node(id);
        let output = self.slot(node.dtype, node.shape.numel(), Home::Transient);
        let write = Operand::contiguous(output, &node.shape);
        let writes = vec![write.clone()];
        self.kernels.push(Kernel { kind, reads, writes, nodes: vec![id], scope: node.scope, site: node.site });
        write
    }

    fn slot(&mut self, dtype: DType, len: usize, home: Home) -> usize {
        self.slots.push(Slot { dtype, len, home });
        self.slots.len() - 1
    }

    /// Gives transient values whose lifetimes do not overlap the same slot. Taps and commits are read at the end.
    fn reuse_slots(&mut self) {
        let mut last_use = vec![0; self.slots.len()];
        for (k, kernel) in self.kernels.iter().enumerate() {
            kernel.writes.iter().chain(&kernel.reads).for_each(|operand| last_use[operand.slot] = k);
        }
        let at_end = self.taps.iter().chain(self.commits.iter().map(|(_, read)| read));
        at_end.for_each(|read| last_use[read.slot] = usize::MAX);
        let mut dying: HashMap<usize, Vec<usize>> = HashMap::new();
        for write in self.kernels.iter().flat_map(|kernel| &kernel.writes) {
            dying.entry(last_use[write.slot]).or_default().push(write.slot);
        }
        let mut slots: Vec<Slot> = vec![];
        let mut place = vec![usize::MAX; self.slots.len()];
        for (s, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.home != Home::Transient) {
            place[s] = slots.len();
            slots.push(slot.clone());
        }
        let mut free: Vec<usize> = vec![];
        for (k, kernel) in self.kernels.iter().enumerate() {
            for write in &kernel.writes {
                let Slot { dtype, len, .. } = self.slots[write.slot];
                // The smallest that is large enough, else the largest, which grows.
                let fit = |&i: &usize| {
                    let have = slots[free[i]].len;
                    if have >= len { (0, have) } else { (1, usize::MAX - have) }
                };
                let found = (0..free.len()).filter(|&i| slots[free[i]].dtype == dtype).min_by_key(fit);
                place[write.slot] = match found {
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
            }
            let dead = dying.remove(&k).unwrap_or_default();
            free.extend(dead.into_iter().map(|s| place[s]));
        }
        self.slots = slots;
        for kernel in &mut self.kernels {
            kernel.writes.iter_mut().chain(&mut kernel.reads).for_each(|operand| operand.slot = place[operand.slot]);
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
            Op::Iota(_) => Some(Home::Iota),
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
                None => {
                    let (kind, reads) = kind(program, node, inputs);
                    self.plan.kernel(program, id, kind, reads)
                }
            },
        }
    }
}

/// The kernel of one node by itself.
fn kind(program: &Program, node: &Node, mut reads: Vec<Operand>) -> (Kind, Vec<Operand>) {
    let load = |i: usize| Value {
        instr: Instr::Load(i),
        dtype: program.node(node.inputs[i]).dtype,
        level: Level::Element,
    };
    let mut body = Body { space: node.shape.clone(), reduced: 0, values: vec![], stores: vec![node.inputs.len()] };
    body.values = (0..reads.len()).map(load).collect();
    let mut level = Level::Element;
    let instr = match &node.op {
        Op::Unary(op) => Instr::Unary(*op, 0),
        Op::Binary(op) => Instr::Binary(*op, 0, 1),
        Op::Select => Instr::Select(0, 1, 2),
        Op::Cast(_) => Instr::Cast(0),
        Op::Reduce(kind, axes) => {
            let x = &mut reads[0];
            let kept = (0..x.shape.rank()).filter(|d| !axes.contains(d));
            let order: Box<[usize]> = kept.chain(axes.iter().copied()).collect();
            body.space = order.iter().map(|&d| x.shape[d]).collect::<Vec<_>>().into();
            body.reduced = axes.len();
            *x = x.through(&Op::Permute(order), &body.space).expect("any order can be read");
            level = Level::Row;
            Instr::Reduce(*kind, 0)
        }
        Op::MatMul { ta, tb } => {
            let r = node.shape.rank();
            for (x, transposed) in reads.iter_mut().zip([ta, tb]) {
                if *transposed {
                    let order = (0..r - 2).chain([r - 1, r - 2]).collect::<Box<[usize]>>();
                    let shape = x.shape.with(r - 2, x.shape[r - 1]).with(r - 1, x.shape[r - 2]);
                    *x = x.through(&Op::Permute(order), &shape).expect("any order can be read");
                }
            }
            body.values = vec![Value { instr: Instr::Product, dtype: node.dtype, level }];
            body.stores = vec![0];
            let batch = node.shape[..r - 2].into();
            let (m, k, n) = (node.shape[r - 2], reads[0].shape[r - 1], node.shape[r - 1]);
            return (Kind::MatMul(MatMul { batch, m, k, n, epilogue: body }), reads);
        }
        op => return (Kind::Op(op.clone()), reads),
    };
    body.values.push(Value { instr, dtype: node.dtype, level });
    (Kind::Loop(body), reads)
}
