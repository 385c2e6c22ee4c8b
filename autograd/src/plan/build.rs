//! From groups to a plan: kernels in an order that their reads allow, over buffers, some of which are parts of others.

use super::{
    Body, Grouping, Home, Instr, Kernel, Kind, Level, MatMul, Operand, Plan, Value,
    earlier::earlier,
    emit::Emitter,
    group::{Class, Groups, View, is_identity},
    memory,
};
use crate::{
    DType, Shape,
    node::NodeId,
    op::{Op, Place},
    program::Program,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

impl Plan {
    /// Plans a program, with everything that [`Grouping`] allows.
    pub fn new(program: &Program) -> Self {
        Self::with(program, &Grouping::default())
    }

    /// Plans a program.
    pub fn with(program: &Program, options: &Grouping) -> Self {
        // The slots of a kernel are known only when all are planned. If they are more than estimated, and too
        // many, nodes in the middle of the kernel open groups of their own, or what the kernel computes again is stored
        // instead; and the nodes are grouped anew.
        let mut groups = Groups::new(program, options);
        loop {
            groups.form();
            let (mut plan, again) = Self::grouped(&groups);
            memory::place(&mut plan, options);
            let too_wide = |kernel: &&Kernel| {
                matches!(kernel.kind, Kind::Loop(_) | Kind::MatMul(_)) && plan.buffers(kernel) > options.buffers
            };
            // The cuts: into as many parts as that takes.
            let cuts = |kernel: &Kernel| -> Vec<NodeId> {
                let open = |nodes: &[NodeId]| nodes.iter().filter(|id| !groups.apart[id.index()]).copied().collect();
                let mut nodes: Vec<NodeId> = open(&kernel.nodes[1..]);
                if nodes.is_empty() {
                    nodes = kernel.nodes.last().and_then(|last| again.get(last)).map_or(vec![], |again| open(again));
                }
                let parts = plan.buffers(kernel).div_ceil(options.buffers.max(1)).min(nodes.len() + 1);
                (1..parts).map(|part| nodes[part * nodes.len() / parts]).collect()
            };
            let cut: Vec<NodeId> = plan.kernels.iter().filter(too_wide).flat_map(cuts).collect();
            if cut.is_empty() {
                return plan;
            }
            cut.into_iter().for_each(|id| groups.apart[id.index()] = true);
        }
    }

    /// Kernels in order, with a slot for each value. Also, by a kernel's last node, what it computes again.
    fn grouped(groups: &Groups<'_>) -> (Self, Again) {
        let program = groups.program;
        let nodes = program.nodes().len();
        let mut builder = Builder {
            groups,
            stored: vec![false; nodes],
            placed: HashMap::new(),
            kernels: vec![],
            copies: vec![],
            again: Again::new(),
        };
        let ends = program.taps().iter().map(|tap| tap.node).chain(program.commits().iter().map(|(_, node)| *node));
        ends.for_each(|node| builder.store(builder.groups.views[node.index()].root));
        let mut order: Vec<usize> = (0..builder.groups.groups.len()).collect();
        order.sort_by_key(|&g| Reverse((builder.groups.groups[g].depth, g)));
        order.into_iter().for_each(|g| builder.group(g));
        builder.finish()
    }
}

/// The values that kernels compute again, by the last node of the kernel, which no other kernel ends with.
type Again = HashMap<NodeId, Vec<NodeId>>;

/// Kernels under construction. Until memory is assigned, an operand's slot is the root whose elements it shows.
struct Builder<'a> {
    groups: &'a Groups<'a>,
    /// The roots that are kept in memory.
    stored: Vec<bool>,
    /// Roots that are written as parts of others, and where.
    placed: HashMap<NodeId, Operand>,
    kernels: Vec<Kernel>,
    /// Copies that are no node's value: their slots come after all nodes'.
    copies: Vec<(DType, Shape)>,
    again: Again,
}

impl Builder<'_> {
    fn store(&mut self, root: NodeId) {
        self.stored[root.index()] = true;
    }

    fn push(&mut self, kind: Kind, reads: Vec<Operand>, writes: Vec<Operand>, nodes: Vec<NodeId>) {
        let first = self.groups.program.node(nodes[0]);
        let (scope, site) = (first.scope, first.site);
        self.kernels.push(Kernel { kind, reads, writes, nodes, scope, site });
    }

    /// Emits a group's kernel, if any of its values is stored. Groups come deepest first, after all of their consumers.
    fn group(&mut self, g: usize) {
        let group = &self.groups.groups[g];
        let at_home = |id: &&NodeId| self.groups.home[id.index()] == Some(g) && self.stored[id.index()];
        let stores: Vec<NodeId> = group.members.iter().filter(at_home).copied().collect();
        if stores.is_empty() {
            return;
        }
        let first = group.members[0];
        let mut reads: Vec<Operand> = vec![];
        match group.class {
            Class::Single => return self.single(g),
            Class::MatMul => reads.extend(factors(self.groups, first)),
            _ => {}
        }
        let mut emitter = Emitter::new(self.groups, group, &self.stored, reads.len());
        let body = earlier(emitter.body(&stores));
        reads.extend(emitter.loads.iter().map(|(_, operand)| emitter.ordered(operand.clone())));
        let writes = stores.iter().map(|&id| emitter.ordered(emitter.write(id))).collect();
        let again = std::mem::take(&mut emitter.again);
        let kind = match group.class {
            Class::MatMul => {
                let shape = &self.groups.program.node(first).shape;
                let r = shape.rank();
                let (m, k, n) = (shape[r - 2], reads[0].shape[r - 1], shape[r - 1]);
                Kind::MatMul(MatMul { batch: shape[..r - 2].into(), m, k, n, epilogue: body })
            }
            _ => Kind::Loop(body),
        };
        reads.iter().for_each(|read| self.stored[read.slot] = true);
        let mut nodes = group.members.clone();
        nodes.sort_unstable();
        self.again.insert(nodes[nodes.len() - 1], again);
        self.push(kind, reads, writes, nodes);
    }

    /// Emits the kernel of an op by itself.
    fn single(&mut self, g: usize) {
        let members = self.groups.groups[g].members.clone();
        let program = self.groups.program;
        let node = program.node(members[0]);
        if let Op::Assemble { axis, places, len } = &node.op
            && self.groups.options.direct
            && node.shape[..*axis].iter().product::<usize>() == 1
            && places.iter().all(|place| place.step == 1)
        {
            return self.assemble(members[0], *axis, places, *len);
        }
        if let Op::Assemble { axis, places, .. } = &node.op
            && let Some(placed) = self.side_by_side(members[0], *axis, places)
        {
            placed.iter().for_each(|(root, _)| self.store(*root));
            return self.placed.extend(placed);
        }
        // Every output has memory, whether it is read or not: the op writes all of them.
        let (outputs, _) = node.op.outputs();
        let first = members[0].0 - node.op.outputs().1 as u32;
        let writes = (first..first + outputs as u32).map(|i| {
            self.stored[i as usize] = true;
            let own = || self.groups.views[i as usize].operand.clone();
            self.placed.get(&NodeId(i)).cloned().unwrap_or_else(own)
        });
        let mut writes: Vec<Operand> = writes.collect();
        let mut reads: Vec<Operand> =
            (0..node.inputs.len()).map(|i| self.groups.input(members[0], i).operand.clone()).collect();
        if let Op::Exchange(way, _) = node.op
            && way.length(reads[0].shape.numel()) < reads[0].shape.numel()
        {
            // This rank's value lies where the result does, which is shorter.
            writes = vec![Operand::contiguous(members[0].index(), &reads[0].shape)];
        }
        reads.iter().for_each(|read| self.stored[read.slot] = true);
        if node.op.reads_contiguous() {
            let heads = self.groups.options.heads && matches!(node.op, Op::Attention(..) | Op::AttentionGrad(..));
            let lies = if heads { Operand::is_in_rows } else { Operand::is_contiguous };
            for (i, read) in reads.iter_mut().enumerate().filter(|(_, read)| !lies(read)) {
                *read = self.contiguous(read.clone(), program.node(node.inputs[i]).dtype, members[0]);
            }
        }
        if let Op::Reshape(_) = node.op {
            // Movement that no view can express: a copy in the order of its read.
            let write = Operand::contiguous(members[0].index(), &reads[0].shape);
            return self.push(copy(&reads[0].shape, node.dtype), reads, vec![write], members);
        }
        self.push(Kind::Op(node.op.clone()), reads, writes, members);
    }

    /// A copy of a read, for a kernel that takes its elements one after another.
    fn contiguous(&mut self, read: Operand, dtype: DType, reader: NodeId) -> Operand {
        let slot = self.groups.program.nodes().len() + self.copies.len();
        let copied = Operand::contiguous(slot, &read.shape);
        self.copies.push((dtype, read.shape.clone()));
        self.push(copy(&read.shape, dtype), vec![read], vec![copied.clone()], vec![reader]);
        copied
    }

    /// The places of the parts of an assembly without gaps, if all parts are gradients of attention that nothing else reads: they need
    /// not be contiguous.
    fn side_by_side(&self, id: NodeId, axis: usize, places: &[Place]) -> Option<Vec<(NodeId, Operand)>> {
        let Groups { program, options, views, uses, .. } = self.groups;
        let whole = &program.node(id).shape;
        let inner: usize = whole[axis + 1..].iter().product();
        let mut placed = vec![];
        for (i, place) in places.iter().enumerate() {
            let View { root, operand } = self.groups.input(id, i);
            let gradient = matches!(program.node(*root).op, Op::AttentionGrad(..)) && uses[root.index()] == 1;
            let all = is_identity(operand, program.node(*root).shape.numel());
            if !gradient || !all || place.step != 1 {
                return None;
            }
            let [width, pitch] = [operand.shape[axis], whole[axis]].map(|extent| extent * inner);
            let own = views[root.index()].operand.spread(width, pitch)?;
            placed.push((*root, Operand { slot: id.index(), offset: own.offset + place.start * inner, ..own }));
        }
        let parts: usize = placed.iter().map(|(_, part)| part.shape.numel()).sum();
        (options.direct && options.heads && parts == whole.numel()).then_some(placed)
    }

    /// An assembly of stretches of memory: a copy of each part, and zeros in the gaps.
    fn assemble(&mut self, id: NodeId, axis: usize, places: &[Place], len: usize) {
        let node = self.groups.program.node(id);
        let inner: usize = node.shape[axis + 1..].iter().product();
        let mut covered: Vec<(usize, usize)> = vec![];
        for (i, place) in places.iter().enumerate() {
            let View { root, operand } = self.groups.input(id, i).clone();
            let (start, numel) = (place.start * inner, operand.shape.numel());
            covered.push((start, numel));
            self.store(root);
            let write = Operand { offset: start, ..Operand::contiguous(id.index(), &operand.shape) };
            self.push(copy(&operand.shape, node.dtype), vec![operand], vec![write], vec![id]);
        }
        covered.sort_unstable();
        let mut gaps = vec![];
        let mut end = 0;
        for (start, numel) in covered.into_iter().filter(|(_, numel)| *numel > 0).chain([(len * inner, 0)]) {
            if start > end {
                gaps.push((end, start - end));
            }
            end = end.max(start + numel);
        }
        if !gaps.is_empty() {
            let whole = Operand::contiguous(id.index(), &node.shape);
            self.push(Kind::Fill(gaps), vec![], vec![whole], vec![id]);
        }
    }

    /// The plan, its kernels in order, its slots not yet shared.
    fn finish(mut self) -> (Plan, Again) {
        let program = self.groups.program;
        let mut plan = Plan::default();
        let mut kernels = std::mem::take(&mut self.kernels);
        kernels.reverse();
        let mut slots: HashMap<usize, usize> = HashMap::new();
        let mut buffer = |plan: &mut Plan, operand: &Operand| {
            let slot = *slots.entry(operand.slot).or_insert_with(|| {
                let Some(node) = program.nodes().get(operand.slot) else {
                    let (dtype, shape) = &self.copies[operand.slot - program.nodes().len()];
                    return plan.slot(*dtype, shape.numel(), Home::Transient);
                };
                let (len, home) = match &node.op {
                    Op::Const(bits) => (1, Home::Const(f64::from_bits(*bits))),
                    Op::Input(input) => (node.shape.numel(), Home::Input(input.0 as usize)),
                    Op::State(state) => (node.shape.numel(), Home::State(*state)),
                    Op::Iota(len) => (*len, Home::Iota),
                    Op::Table(values) => {
                        plan.tables.push(values.clone());
                        (values.len(), Home::Table(plan.tables.len() - 1))
                    }
                    // This rank's value lies there before the result does.
                    Op::Exchange(..) => {
                        (node.shape.numel().max(program.node(node.inputs[0]).shape.numel()), Home::Transient)
                    }
                    _ => (node.shape.numel(), Home::Transient),
                };
                plan.slot(node.dtype, len, home)
            });
            Operand { slot, ..operand.clone() }
        };
        for kernel in &mut kernels {
            kernel.reads.iter_mut().chain(&mut kernel.writes).for_each(|o| *o = buffer(&mut plan, o));
        }
        let end = |id: NodeId| &self.groups.views[id.index()].operand;
        plan.taps = program.taps().iter().map(|tap| buffer(&mut plan, end(tap.node))).collect();
        let mut constants = vec![];
        for &(state, id) in program.commits() {
            let read = buffer(&mut plan, end(id));
            let node = program.node(id);
            let transient = plan.slots[read.slot].home == Home::Transient;
            let value = if transient {
                read.clone()
            } else {
                // Commits are copied one after another, so no copy may read a state.
                let slot = plan.slot(node.dtype, node.shape.numel(), Home::Transient);
                Operand::contiguous(slot, &node.shape)
            };
            if let Home::Const(constant) = plan.slots[read.slot].home {
                constants.push((id, constant, read, value.clone()));
            } else if !transient {
                let (kind, scope, site) = (copy(&read.shape, node.dtype), node.scope, node.site);
                kernels.push(Kernel {
                    kind,
                    reads: vec![read],
                    writes: vec![value.clone()],
                    nodes: vec![id],
                    scope,
                    site,
                });
            }
            plan.commits.push((state, value));
        }
        plan.kernels = in_order(kernels);
        for (id, constant, read, write) in constants {
            let (state, node) = (plan.commits.iter().find(|(_, value)| *value == write), program.node(id));
            let state = Home::State(state.expect("its commit").0);
            if self.groups.options.maps && plan.also_write(state, constant, &write, self.groups.options.buffers) {
                continue;
            }
            let (kind, scope, site) = (copy(&read.shape, node.dtype), node.scope, node.site);
            let (reads, writes, nodes) = (vec![read], vec![write], vec![id]);
            plan.kernels.push(Kernel { kind, reads, writes, nodes, scope, site });
        }
        (plan, self.again)
    }
}

/// A copy of what the one read shows.
fn copy(shape: &Shape, dtype: DType) -> Kind {
    let load = Value { instr: Instr::Load(0), dtype, level: Level::Element };
    Kind::Loop(Body { space: shape.clone(), reduced: 0, segments: None, values: vec![load], stores: vec![0] })
}

/// The two sides of a matrix product, transposed as the op says.
fn factors(groups: &Groups, id: NodeId) -> [Operand; 2] {
    let Op::MatMul { ta, tb } = groups.program.node(id).op else { unreachable!("a group of a product") };
    [(0, ta), (1, tb)].map(|(i, transposed)| {
        let x = &groups.input(id, i).operand;
        let r = x.shape.rank();
        if !transposed {
            return x.clone();
        }
        let order = (0..r - 2).chain([r - 1, r - 2]).collect::<Box<[usize]>>();
        let shape: Shape = order.iter().map(|&d| x.shape[d]).collect::<Vec<_>>().into();
        x.through(&Op::Permute(order), &shape).expect("any order can be read")
    })
}

/// Orders kernels so that each runs after those that write what it reads, else in the order of the tape; but exchanges with
/// other ranks come after whatever need not wait for them, so that they are few.
fn in_order(kernels: Vec<Kernel>) -> Vec<Kernel> {
    let mut writers: HashMap<usize, Vec<usize>> = HashMap::new();
    for (k, kernel) in kernels.iter().enumerate() {
        kernel.writes.iter().for_each(|write| writers.entry(write.slot).or_default().push(k));
    }
    let mut waits = vec![0; kernels.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; kernels.len()];
    for (k, kernel) in kernels.iter().enumerate() {
        let mut before: Vec<usize> =
            kernel.reads.iter().filter_map(|read| writers.get(&read.slot)).flatten().copied().collect();
        before.sort_unstable();
        before.dedup();
        waits[k] = before.len();
        before.into_iter().for_each(|b| readers[b].push(k));
    }
    // A kernel's place on the tape is that of its last node.
    let place = |k: usize| {
        let kernel = &kernels[k];
        Reverse((kernel.exchange().is_some(), *kernel.nodes.last().expect("a kernel computes a node"), k))
    };
    let mut ready: BinaryHeap<_> = (0..kernels.len()).filter(|&k| waits[k] == 0).map(place).collect();
    let mut order = vec![];
    while let Some(Reverse((exchange, _, k))) = ready.pop() {
        // If an exchange comes first, nothing else is ready: all of them make one stop.
        let others = if exchange { std::mem::take(&mut ready).into_sorted_vec() } else { vec![] };
        for k in std::iter::once(k).chain(others.into_iter().rev().map(|Reverse((_, _, other))| other)) {
            order.push(k);
            for &r in &readers[k] {
                waits[r] -= 1;
                if waits[r] == 0 {
                    ready.push(place(r));
                }
            }
        }
    }
    assert_eq!(order.len(), kernels.len(), "kernels read each other in a circle");
    let mut kernels: Vec<Option<Kernel>> = kernels.into_iter().map(Some).collect();
    order.into_iter().map(|k| kernels[k].take().expect("each is ordered once")).collect()
}
