//! The scalar programs of groups: the values that a group computes, those that it loads, and those that it computes again
//! because that is cheaper than to store them.

use super::{
    Body, Instr, Level, Operand, Value,
    group::{Class, Group, Groups, View, is_identity, weight},
};
use crate::{
    node::NodeId,
    op::{Op, Segments},
};
use std::{collections::BTreeMap, sync::Arc};

/// The most that may be computed again for a consumer.
pub(super) struct Limit {
    /// Work, in additions.
    work: usize,
    /// Loads, of as many elements.
    loads: usize,
    /// Loads of what is small, and repeated.
    repeated: usize,
}

const fn limit(work: usize, loads: usize, repeated: usize) -> Limit {
    Limit { work, loads, repeated }
}

/// The limits of a value with one consumer, and of one with several. A store and a load of an element take as long as about twenty
/// additions.
const AGAIN: [&[Limit]; 2] = [&[limit(32, 4, usize::MAX)], &[limit(16, 1, 0), limit(6, 2, usize::MAX)]];
/// The limits of a scalar: its store takes a kernel, its load takes almost no time.
const SCALAR: &[Limit] = &[limit(8, 2, usize::MAX)];

impl Limit {
    /// The limits of a root: it may be computed again within any of them.
    pub fn of(groups: &Groups<'_>, root: NodeId) -> &'static [Limit] {
        match groups.program.node(root).shape.numel() {
            1 => SCALAR,
            _ => AGAIN[(groups.uses[root.index()] > 1) as usize],
        }
    }

    pub fn allows(&self, work: usize, loads: usize, repeated: usize) -> bool {
        work <= self.work && loads <= self.loads && repeated <= self.repeated
    }
}

/// A body under construction.
pub(super) struct Emitter<'a> {
    groups: &'a Groups<'a>,
    group: &'a Group,
    /// Values that are stored in any case: a load costs no more than a second computation.
    stored: &'a [bool],
    values: Vec<Value>,
    /// Values by root and, outside the group, by the view of it.
    known: BTreeMap<(NodeId, Option<Look>), usize>,
    /// The loads: roots and operands, in the order of the nodes' dimensions.
    pub loads: Vec<(NodeId, Operand)>,
    /// Values that are computed again.
    pub again: Vec<NodeId>,
    /// Reads before the body's own.
    first_load: usize,
}

/// The nodes on the way to a root's inputs. Each counts once. Scalars count at every use, because a stored scalar is better than
/// one that is computed for each element.
#[derive(Default)]
struct Met {
    computed: Vec<NodeId>,
    loads: Vec<NodeId>,
    repeated: usize,
    /// True if the work exceeds its limit.
    too_much: bool,
}

/// The properties that tell two views of one root apart: level, offset and strides.
type Look = (Level, usize, Vec<isize>);

/// Values by root and view.
fn key(root: NodeId, level: Level, operand: &Operand) -> (NodeId, Option<Look>) {
    (root, Some((level, operand.offset, operand.strides.clone())))
}

/// True if an operand shows the same elements all along a dimension.
fn repeated(operand: &Operand, d: usize) -> bool {
    operand.shape[d] > 1 && operand.strides[d] == 0
}

impl<'a> Emitter<'a> {
    pub fn new(groups: &'a Groups<'a>, group: &'a Group, stored: &'a [bool], first_load: usize) -> Self {
        let (known, values, loads, again) = (BTreeMap::new(), vec![], vec![], vec![]);
        Self { groups, group, stored, values, known, loads, again, first_load }
    }

    /// The finished body, for these stored members.
    pub fn body(&mut self, stores: &[NodeId]) -> Body {
        let stores = stores.iter().map(|&id| self.member(id)).collect();
        let values = std::mem::take(&mut self.values);
        let axes = self.group.axes.as_deref().unwrap_or(&[]);
        let space = self.order().iter().map(|&d| self.group.space[d]).collect::<Vec<_>>().into();
        Body { space, reduced: axes.len(), segments: self.group.segments.clone(), values, stores }
    }

    /// The dimensions of the space, those that are reduced last.
    fn order(&self) -> Box<[usize]> {
        let axes = self.group.axes.as_deref().unwrap_or(&[]);
        (0..self.group.space.rank()).filter(|d| !axes.contains(d)).chain(axes.iter().copied()).collect()
    }

    /// An operand of a level, its dimensions in the order of the body's.
    pub fn ordered(&self, operand: Operand) -> Operand {
        if operand.shape.rank() != self.group.space.rank() || self.group.axes.is_none() {
            return operand; // A row's element, whose dimensions are in order; or nothing is out of order.
        }
        let order = self.order();
        let shape = order.iter().map(|&d| operand.shape[d]).collect::<Vec<_>>().into();
        operand.through(&Op::Permute(order), &shape).expect("any order can be looked at")
    }

    /// The value of a member of the group.
    fn member(&mut self, id: NodeId) -> usize {
        if let Some(&value) = self.known.get(&(id, None)) {
            return value;
        }
        let level = self.group.levels[&id];
        let from = if self.groups.class[id.index()] == Class::Reduce { Level::Element } else { level };
        let value = self.compute(id, from, &[]);
        self.values[value].level = level;
        self.known.insert((id, None), value);
        value
    }

    /// Appends a node's instruction, its inputs seen through `chain` in the frame of a level.
    fn compute(&mut self, id: NodeId, frame: Level, chain: &[NodeId]) -> usize {
        let node = self.groups.program.node(id);
        if let Op::Random { stream, .. } = node.op {
            return self.random(id, stream, frame, chain);
        }
        if let Op::SegmentBroadcast(segments) = &node.op {
            return self.spread(id, segments, frame, chain);
        }
        let mut x: Vec<usize> = match self.groups.class[id.index()] {
            Class::MatMul => vec![],
            _ => (0..node.inputs.len()).map(|i| self.operand(node.inputs[i], frame, chain)).collect(),
        };
        if let (Class::Reduce, Level::Row) =
            (self.groups.class[id.index()], x.first().map_or(Level::Element, |&x| self.values[x].level))
        {
            // Reductions are of elements: the same one, all along the row.
            let dtype = self.values[x[0]].dtype;
            x[0] = self.push(Instr::Cast(x[0]), dtype, Level::Element);
        }
        let instr = match &node.op {
            Op::Unary(op) => Instr::Unary(*op, x[0]),
            Op::Binary(op) => Instr::Binary(*op, x[0], x[1]),
            Op::Select => Instr::Select(x[0], x[1], x[2]),
            Op::Cast(_) => Instr::Cast(x[0]),
            Op::Reduce(kind, _) | Op::SegmentReduce(kind, _) => Instr::Reduce(*kind, x[0]),
            Op::MatMul { .. } => Instr::Product,
            op => unreachable!("{} is no part of a body", op.name()),
        };
        let level = x.iter().map(|&x| self.values[x].level).max().unwrap_or(Level::Element);
        self.push(instr, node.dtype, level)
    }

    /// Random words: the view of the node decides which.
    fn random(&mut self, id: NodeId, stream: u64, frame: Level, chain: &[NodeId]) -> usize {
        let node = self.groups.program.node(id);
        let all = Operand::contiguous(id.index(), &node.shape);
        let (level, index) = self.look(&all, frame, chain).expect("checked when the node joined the group");
        let key = [(0, 0), (0, 1), (1, 0)].map(|(input, element)| self.scalar(node.inputs[input], element, level));
        let index = Operand { slot: 0, ..self.ordered(index) };
        self.push(Instr::Random { stream, key, index }, node.dtype, level)
    }

    /// Values that are repeated over segments: a row's own value, or an element of what is there before.
    fn spread(&mut self, id: NodeId, segments: &Arc<Segments>, frame: Level, chain: &[NodeId]) -> usize {
        let node = self.groups.program.node(id);
        let View { root, operand } = self.groups.input(id, 0).clone();
        if chain.is_empty() && frame == Level::Element && self.groups.spreads_row(id, self.group, segments) {
            let row = self.member(root);
            return self.push(Instr::Spread(row), node.dtype, Level::Element);
        }
        let all = Operand::contiguous(id.index(), &node.shape);
        let (level, index) = self.look(&all, frame, chain).expect("checked when the node joined the group");
        let index = Operand { slot: 0, ..self.ordered(index) };
        let load = self.read(root, operand);
        self.push(Instr::Lookup { load, segments: segments.clone(), index }, node.dtype, level)
    }

    /// The level of a value that is constant over the space, for use by a value of some level.
    fn uniform(&self, level: Level) -> Level {
        match (&self.group.segments, &self.group.axes) {
            (Some(_), _) => level,
            (None, Some(_)) => Level::Row,
            (None, None) => Level::Element,
        }
    }

    /// An element of a small vector, the same all over the space.
    fn scalar(&mut self, input: NodeId, element: usize, level: Level) -> usize {
        let View { root, operand } = &self.groups.views[input.index()];
        let level = self.uniform(level);
        let shape = self.group.frame(level);
        let stride = operand.strides.first().copied().unwrap_or(0);
        let offset = (operand.offset as isize + element as isize * stride) as usize;
        let strides = vec![0; shape.rank()];
        let key = (*root, Some((level, offset, strides.clone())));
        if let Some(&value) = self.known.get(&key) {
            return value;
        }
        let value = self.load(*root, Operand { slot: root.index(), offset, shape, strides }, level);
        self.known.insert(key, value);
        value
    }

    fn load(&mut self, root: NodeId, operand: Operand, level: Level) -> usize {
        let load = self.read(root, operand);
        self.push(Instr::Load(load), self.groups.program.node(root).dtype, level)
    }

    /// The number of a new read.
    fn read(&mut self, root: NodeId, operand: Operand) -> usize {
        debug_assert!(self.is_before(root), "a group reads groups before it");
        self.loads.push((root, operand));
        self.loads.len() - 1 + self.first_load
    }

    fn push(&mut self, instr: Instr, dtype: crate::DType, level: Level) -> usize {
        self.values.push(Value { instr, dtype, level });
        self.values.len() - 1
    }

    /// The value of a node's input, seen through further movement in the frame of a level.
    fn operand(&mut self, input: NodeId, frame: Level, chain: &[NodeId]) -> usize {
        let view = &self.groups.views[input.index()];
        let root = view.root;
        if let Op::Const(bits) = self.groups.program.node(root).op {
            let level = self.uniform(frame);
            let key = (root, Some((level, 0, vec![])));
            if let Some(&value) = self.known.get(&key) {
                return value;
            }
            let dtype = self.groups.program.node(root).dtype;
            let value = self.push(Instr::Const(f64::from_bits(bits)), dtype, level);
            self.known.insert(key, value);
            return value;
        }
        if chain.is_empty() && self.group.shows(root, &view.operand, frame) {
            return self.member(root);
        }
        let (level, operand) = self.look(&view.operand, frame, chain).expect("checked when the node joined the group");
        let key = key(root, level, &operand);
        if let Some(value) = self.known(&key, frame) {
            return value;
        }
        let mut chain_to_root = self.groups.chain(input);
        chain_to_root.extend(chain);
        let value = if !self.is_before(root) || self.computes_again(root, &operand, frame, &chain_to_root) {
            self.again.push(root);
            self.compute(root, frame, &chain_to_root)
        } else {
            self.load(root, operand, level)
        };
        self.known.insert(key, value);
        value
    }

    /// The properties of a view, for the frame of a level.
    fn known(&self, key: &(NodeId, Option<Look>), frame: Level) -> Option<usize> {
        // With rows of one element, members' values of elements seem to be values of rows, which they are not.
        let fits = |value: &usize| frame == Level::Element || self.values[*value].level == Level::Row;
        self.known.get(key).copied().filter(fits)
    }

    /// A view through further movement in the frame of a level: of level `Row` where nothing varies within rows.
    fn look(&self, operand: &Operand, level: Level, chain: &[NodeId]) -> Option<(Level, Operand)> {
        let mut seen = operand.clone();
        for id in chain {
            let node = self.groups.program.node(*id);
            seen = seen.through(&node.op, &node.shape)?;
        }
        let seen = seen.reshaped(&self.group.frame(level))?;
        let rows = self.group.axes.as_ref().filter(|_| level == Level::Element && self.group.segments.is_none());
        let Some(axes) = rows else {
            return Some((level, seen));
        };
        if axes.iter().any(|&d| seen.shape[d] != 1 && seen.strides[d] != 0) {
            return Some((level, seen));
        }
        let strides = (0..seen.shape.rank()).filter(|d| !axes.contains(d)).map(|d| seen.strides[d]).collect();
        Some((Level::Row, Operand { shape: self.group.kept(), strides, ..seen }))
    }

    /// True if a root exists before this group, and can be loaded. A root that other groups compute for themselves may not: its home may
    /// be a later group, which this one must not read.
    fn is_before(&self, root: NodeId) -> bool {
        self.groups.depth(root).is_none_or(|depth| depth < self.group.depth)
    }

    /// True if a root is computed again rather than loaded.
    fn computes_again(&self, root: NodeId, operand: &Operand, frame: Level, chain: &[NodeId]) -> bool {
        let limits = Limit::of(self.groups, root);
        let (most, mut met) = (limits.iter().map(|limit| limit.work).max().unwrap_or(0), Met::default());
        let cost = self.cost(root, operand, (frame, chain), most, &mut met);
        let fits = |work| limits.iter().any(|limit| limit.allows(work, met.loads.len(), met.repeated));
        !met.too_much && cost.is_some_and(fits)
    }

    /// The work to compute a root again, beyond the nodes already visited and those of this body; `None` if the root is to be loaded,
    /// or if the work exceeds `most`, which ends the walk.
    fn cost(
        &self,
        root: NodeId,
        operand: &Operand,
        (frame, chain): (Level, &[NodeId]),
        most: usize,
        met: &mut Met,
    ) -> Option<usize> {
        let node = self.groups.program.node(root);
        if met.computed.contains(&root) && node.shape.numel() != 1 {
            return Some(0);
        }
        let movable = self.groups.class[root.index()] == Class::Map && self.groups.is_cheap(root);
        // Repeated values are small, and better stored; but a scalar can be read anywhere.
        let repeats = node.shape.numel() != 1 && (0..operand.shape.rank()).any(|d| repeated(operand, d));
        if !movable || self.stored[root.index()] || repeats {
            return None;
        }
        let mut work = weight(&node.op);
        met.too_much |= work > most;
        if let Op::Random { .. } = node.op {
            return Some(work); // Its key and counter are scalars.
        }
        if let Op::SegmentBroadcast(_) = node.op {
            return self.is_before(self.groups.input(root, 0).root).then_some(work); // The vector that it reads is small.
        }
        for input in &node.inputs {
            let view = &self.groups.views[input.index()];
            if self.groups.class[view.root.index()] == Class::Const {
                continue;
            }
            if chain.is_empty() && self.group.shows(view.root, &view.operand, frame) {
                continue;
            }
            if met.too_much {
                return None;
            }
            let (level, seen) = self.look(&view.operand, frame, chain)?;
            if self.known(&key(view.root, level, &seen), frame).is_some() {
                continue;
            }
            let mut further = self.groups.chain(*input);
            further.extend(chain);
            match self.cost(view.root, &seen, (frame, &further), most - work, met) {
                Some(more) => work += more,
                None if !self.is_before(view.root) => return None,
                // Values repeated over the space are small, and cost little to load.
                None if (0..seen.shape.rank()).any(|d| repeated(&seen, d)) => met.repeated += 1,
                None if met.loads.contains(&view.root) => {}
                None => met.loads.push(view.root),
            }
        }
        met.computed.push(root);
        Some(work)
    }

    /// The place of a stored member, for a contiguous root.
    pub fn write(&self, id: NodeId) -> Operand {
        let frame = self.group.frame(self.group.levels[&id]);
        debug_assert!(is_identity(&Operand::contiguous(0, &frame), self.groups.program.node(id).shape.numel()));
        Operand::contiguous(id.index(), &frame)
    }
}
