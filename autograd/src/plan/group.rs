//! The nodes that become one kernel.
//!
//! Every compute node belongs to a group, and every group has a depth that exceeds the depths of all groups it reads:
//! so no grouping makes a cycle. A node joins the deepest group among its producers if it has the same index space, else it
//! opens a group one deeper than its producers. That alone stores nothing: a group stores the values that later groups read and
//! do not compute again.

use super::{Grouping, Level, Operand, merge::Links, width::Ingredients};
use crate::{
    Shape,
    node::NodeId,
    op::{Op, Segments, Unary},
    program::Program,
};
use std::{collections::BTreeMap, sync::Arc};

/// The class of a node in the planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// A scalar constant.
    Const,
    /// Memory that exists before the program runs.
    Leaf,
    /// A view of its root.
    View,
    /// Elementwise. (Values that are repeated over segments, too: the position decides the element.)
    Map,
    /// A reduction.
    Reduce,
    /// A matrix product.
    MatMul,
    /// A kernel by itself.
    Single,
}

/// The place of a node's value: a root, which is a leaf or is computed, and a view of the root's elements as if they were
/// contiguous. (The operand's slot is the root's position on the tape.)
#[derive(Clone, Debug)]
pub(super) struct View {
    pub root: NodeId,
    pub operand: Operand,
}

/// Nodes that are computed by one kernel.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Map, Reduce (which a group with any reduction is), MatMul or Single.
    pub class: Class,
    pub depth: usize,
    /// The index space, in the order of its nodes' dimensions.
    pub space: Shape,
    /// The dimensions that are reduced, ascending.
    pub axes: Option<Vec<usize>>,
    /// The segments that are the rows of a vector.
    pub segments: Option<Arc<Segments>>,
    /// The nodes, in the order in which they joined, which is an order to compute them in.
    pub members: Vec<NodeId>,
    pub levels: BTreeMap<NodeId, Level>,
    /// The members that depend on a reduction of this group.
    pub after: BTreeMap<NodeId, bool>,
}

/// The groups of a program.
pub(super) struct Groups<'a> {
    pub program: &'a Program,
    pub options: &'a Grouping,
    pub live: Vec<bool>,
    /// Nodes that join no group, and are not computed again.
    pub apart: Vec<bool>,
    pub class: Vec<Class>,
    pub views: Vec<View>,
    /// The number of reads of a root, by nodes, taps and commits.
    pub uses: Vec<usize>,
    pub groups: Vec<Group>,
    /// In whose memory a root will lie: see [`Groups::homes_to_be`].
    pub lies: Vec<NodeId>,
    /// The inputs from which cheap roots can be computed again: see [`Groups::computable_again`].
    pub again: Vec<Option<Ingredients>>,
    /// The group that stores a root if anybody asks.
    pub home: Vec<Option<usize>>,
}

/// A node's way to join a group: itself, and before it the cheap nodes that the group then computes as well.
type Joining = Vec<(NodeId, Level)>;

/// Chains of cheap nodes longer than this are not computed twice.
pub(super) const ABSORBED: usize = 6;

impl Group {
    /// The dimensions that remain when the rows are reduced.
    pub fn kept(&self) -> Shape {
        if let Some(segments) = &self.segments {
            return [segments.ranges.len()].into();
        }
        self.axes.as_ref().map_or(self.space.clone(), |axes| self.space.without(axes))
    }

    /// The shape of a level's values, in the order of the nodes' dimensions.
    pub fn frame(&self, level: Level) -> Shape {
        if level == Level::Row { self.kept() } else { self.space.clone() }
    }

    /// The elements of a row, of the longest where they differ.
    fn row_len(&self) -> usize {
        if let Some(segments) = &self.segments {
            return segments.ranges.iter().map(|(_, len)| *len).max().unwrap_or(0);
        }
        self.axes.iter().flatten().map(|&d| self.space[d]).product()
    }

    /// True if an operand over the whole space shows each row's element of a contiguous value of level `Row`.
    fn repeats_rows(&self, operand: &Operand) -> bool {
        if self.segments.is_some() {
            return false; // No strides say so.
        }
        let mut want = vec![0; self.space.rank()];
        let mut stride = 1;
        for d in (0..self.space.rank()).rev().filter(|d| self.axes.as_ref().is_none_or(|axes| !axes.contains(d))) {
            want[d] = stride;
            stride *= self.space[d] as isize;
        }
        operand.offset == 0 && (0..want.len()).all(|d| self.space[d] == 1 || operand.strides[d] == want[d])
    }

    /// True if a view of a root in the frame of a level is the group's own value. In two merged groups there may be two views of one
    /// root: one group computes it, the other reads it transposed.
    pub fn shows(&self, root: NodeId, operand: &Operand, frame: Level) -> bool {
        let same = |level: Level| is_identity(operand, self.frame(level).numel());
        match (self.levels.get(&root), frame) {
            (None, _) | (Some(Level::Element), Level::Row) => false,
            (Some(&level), _) if level == frame => same(level),
            _ => operand.reshaped(&self.space).is_some_and(|operand| self.repeats_rows(&operand)),
        }
    }
}

/// True if an operand shows a contiguous root of this many elements as it is.
pub(super) fn is_identity(operand: &Operand, numel: usize) -> bool {
    operand.offset == 0 && operand.shape.numel() == numel && operand.is_contiguous()
}

/// A reduction's index space with neighbouring dimensions merged that are all kept, or all reduced.
fn pattern(space: &Shape, axes: &[usize]) -> Vec<(bool, usize)> {
    let mut runs: Vec<(bool, usize)> = vec![];
    for d in (0..space.rank()).filter(|&d| space[d] != 1) {
        let reduced = axes.contains(&d);
        match runs.last_mut() {
            Some((kind, extent)) if *kind == reduced => *extent *= space[d],
            _ => runs.push((reduced, space[d])),
        }
    }
    runs
}

/// The elements that a reduction combines: the dimensions, and if these are cut up, the segments.
fn rows(op: &Op) -> Option<(&[usize], Option<&Arc<Segments>>)> {
    match op {
        Op::Reduce(_, axes) => Some((axes, None)),
        Op::SegmentReduce(_, segments) => Some((&[0], Some(segments))),
        _ => None,
    }
}

/// True if a map's elements depend on their positions only: its inputs are no elements of its space.
pub(super) fn is_placed(op: &Op) -> bool {
    matches!(op, Op::Random { .. } | Op::SegmentBroadcast(_))
}

/// The cost of one element, an addition being 1.
pub(super) fn weight(op: &Op) -> usize {
    use crate::op::Binary;
    match op {
        Op::Unary(Unary::Neg | Unary::Floor | Unary::Round | Unary::IsFinite) | Op::Cast(_) | Op::Select => 1,
        Op::SegmentBroadcast(_) => 2,
        Op::Unary(Unary::Recip | Unary::Sqrt) | Op::Binary(Binary::Div) => 3,
        Op::Binary(Binary::Pow) | Op::Unary(_) | Op::Random { .. } => 16,
        Op::Binary(_) => 1,
        _ => 64,
    }
}

impl<'a> Groups<'a> {
    /// The live nodes of a program, in no group yet.
    pub fn new(program: &'a Program, options: &'a Grouping) -> Self {
        let mut groups = Groups {
            program,
            options,
            live: program.live(),
            apart: vec![false; program.nodes().len()],
            class: vec![],
            views: vec![],
            uses: vec![0; program.nodes().len()],
            groups: vec![],
            lies: vec![],
            again: vec![],
            home: vec![None; program.nodes().len()],
        };
        for i in 0..program.nodes().len() {
            let id = NodeId(i as u32);
            let (class, view) = groups.look(id);
            groups.class.push(class);
            groups.views.push(view);
            if groups.live[i] && class != Class::View {
                for input in &program.node(id).inputs {
                    groups.uses[groups.views[input.index()].root.index()] += 1;
                }
            }
        }
        let ends = program.taps().iter().map(|tap| tap.node).chain(program.commits().iter().map(|(_, node)| *node));
        ends.for_each(|node| groups.uses[groups.views[node.index()].root.index()] += 1);
        groups.lies = groups.homes_to_be();
        groups
    }

    /// Groups the nodes, anew if they have been grouped before.
    pub fn form(&mut self) {
        self.groups.clear();
        self.home.fill(None);
        self.again = self.computable_again();
        for i in 0..self.live.len() {
            if self.live[i] {
                self.place(NodeId(i as u32));
            }
        }
        let mut links = Links::new(self);
        if self.options.rows {
            self.merge_reductions(&mut links);
        }
        if self.options.maps {
            self.bundle(&mut links);
        }
    }

    /// A node's class, and how its value is found.
    fn look(&self, id: NodeId) -> (Class, View) {
        let node = self.program.node(id);
        let own = || View { root: id, operand: Operand::contiguous(id.index(), &node.shape) };
        let alias = |k: usize| (Class::View, self.views[node.inputs[k].index()].clone());
        let class = match &node.op {
            Op::Const(_) => Class::Const,
            Op::Input(_) | Op::State(_) | Op::Iota(_) | Op::Table(_) => Class::Leaf,
            Op::Detach | Op::Barrier(_) | Op::Hook(_) => return alias(0),
            Op::Recomputed => return alias(1),
            Op::Custom { args, out, .. } => return alias(args + out),
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Random { .. } => Class::Map,
            Op::SegmentBroadcast(_) if self.options.segments => Class::Map,
            Op::SegmentReduce(..) if self.options.segments => Class::Reduce,
            Op::Reduce(..) => Class::Reduce,
            Op::MatMul { .. } => Class::MatMul,
            op => {
                let seen = node.inputs.first().and_then(|input| {
                    let view = &self.views[input.index()];
                    let operand = view.operand.through(op, &node.shape)?;
                    Some(View { root: view.root, operand })
                });
                return match seen {
                    Some(view) => (Class::View, view),
                    None if self.options.heads && matches!(op, Op::Attention(_, 0) | Op::AttentionGrad(..)) => {
                        (Class::Single, View { root: id, operand: Operand::heads(id.index(), &node.shape) })
                    }
                    None => (Class::Single, own()),
                };
            }
        };
        (class, own())
    }

    /// The place of a node's input `i`.
    pub fn input(&self, id: NodeId, i: usize) -> &View {
        &self.views[self.program.node(id).inputs[i].index()]
    }

    /// The depth of the group that computes a root; `None` for a root that exists from the start.
    pub fn depth(&self, root: NodeId) -> Option<usize> {
        self.home[root.index()].map(|g| self.groups[g].depth)
    }

    /// The movement between a node and its root, the root's first.
    pub fn chain(&self, mut id: NodeId) -> Vec<NodeId> {
        let mut chain = vec![];
        while self.class[id.index()] == Class::View {
            let node = self.program.node(id);
            id = match &node.op {
                Op::Detach | Op::Barrier(_) | Op::Hook(_) => node.inputs[0],
                Op::Recomputed => node.inputs[1],
                Op::Custom { args, out, .. } => node.inputs[args + out],
                _ => {
                    chain.push(id);
                    node.inputs[0]
                }
            };
        }
        chain.reverse();
        chain
    }

    /// One more than the depths of all inputs.
    fn depth_after(&self, id: NodeId) -> usize {
        let inputs = self.program.node(id).inputs.iter();
        let depths = inputs.filter_map(|input| self.depth(self.views[input.index()].root));
        depths.map(|depth| depth + 1).max().unwrap_or(0)
    }

    /// Puts a node into a group.
    fn place(&mut self, id: NodeId) {
        let class = self.class[id.index()];
        if matches!(class, Class::Const | Class::Leaf | Class::View) {
            return;
        }
        let op = &self.program.node(id).op;
        let (_, out) = op.outputs();
        if out > 0 && id.0 > 0 {
            // Another output of the node before it, if that is alive.
            if let Some(g) = (1..=out).find_map(|back| self.home[id.index() - back]) {
                self.groups[g].members.push(id);
                self.home[id.index()] = Some(g);
                return;
            }
        }
        match class {
            _ if self.apart[id.index()] => {}
            Class::Map => {
                for g in self.candidates(id) {
                    if let Some(joining) = self.fits(id, g, 0) {
                        return self.join(g, joining);
                    }
                }
            }
            Class::Reduce => {
                if let Some(g) = self.reduces_in(id).or_else(|| self.same_segments(id)) {
                    return self.join(g, vec![(id, Level::Row)]);
                }
            }
            _ => {}
        }
        self.open(id, class);
    }

    /// The groups of a node's inputs, deepest first.
    fn candidates(&self, id: NodeId) -> Vec<usize> {
        let inputs = self.program.node(id).inputs.iter();
        let mut found: Vec<usize> =
            inputs.filter_map(|input| self.home[self.views[input.index()].root.index()]).collect();
        found.sort_unstable_by_key(|&g| (std::cmp::Reverse(self.groups[g].depth), g));
        found.dedup();
        found
    }

    fn open(&mut self, id: NodeId, class: Class) {
        let node = self.program.node(id);
        let rows = if class == Class::Reduce { rows(&node.op) } else { None };
        let (space, (axes, segments)) = match rows {
            Some((axes, segments)) => {
                (self.program.node(node.inputs[0]).shape.clone(), (Some(axes.to_vec()), segments.cloned()))
            }
            None => (node.shape.clone(), (None, None)),
        };
        let level = if axes.is_some() { Level::Row } else { Level::Element };
        let depth = self.depth_after(id);
        let (levels, after) = (BTreeMap::new(), BTreeMap::new());
        self.groups.push(Group { class, depth, space, axes, segments, members: vec![], levels, after });
        self.join(self.groups.len() - 1, vec![(id, level)]);
    }

    fn join(&mut self, g: usize, joining: Joining) {
        for (id, level) in joining {
            let reduces = self.class[id.index()] == Class::Reduce;
            let mut after = reduces;
            for input in &self.program.node(id).inputs {
                let root = self.views[input.index()].root;
                after |= self.groups[g].after.get(&root).copied().unwrap_or(false);
            }
            let group = &mut self.groups[g];
            group.members.push(id);
            group.levels.insert(id, level);
            group.after.insert(id, after);
            self.home[id.index()].get_or_insert(g);
        }
    }

    /// A map's way to join a group, if it may: at which level, and what else the group then computes.
    fn fits(&self, id: NodeId, g: usize, nested: usize) -> Option<Joining> {
        let group = &self.groups[g];
        let allowed = match group.class {
            Class::Map => self.options.maps,
            Class::Reduce => self.options.rows,
            Class::MatMul => self.options.epilogues,
            _ => false,
        };
        // An empty space has equally many rows and elements, which cannot be told apart, and no work to save.
        if !allowed || group.members.len() >= self.options.values || group.space.numel() == 0 {
            return None;
        }
        let node = self.program.node(id);
        if let Op::SegmentBroadcast(segments) = &node.op
            && self.spreads_row(id, group, segments)
        {
            return Some(vec![(id, Level::Element)]);
        }
        let placed = is_placed(&node.op);
        let mut absorbed: Joining = vec![];
        let mut inside: Vec<(&View, Level)> = vec![];
        let mut outside: Vec<&View> = vec![];
        for i in 0..node.inputs.len() {
            let view = self.input(id, i);
            let root = view.root;
            if self.class[root.index()] == Class::Const {
                continue;
            }
            let level = group.levels.get(&root).copied();
            if placed && (level.is_some() || self.depth(root).is_some_and(|depth| depth >= group.depth)) {
                return None; // Its inputs are no elements of the space: they must be there before.
            }
            let absorbed_level = absorbed.iter().find(|(known, _)| *known == root).map(|(_, level)| *level);
            if let Some(level) = level.or(absorbed_level) {
                inside.push((view, level));
            } else if self.depth(root).is_none_or(|depth| depth < group.depth) {
                outside.push(view);
            } else if self.class[root.index()] == Class::Map && nested < ABSORBED && self.is_cheap(root) {
                let mut more = self.fits(root, g, nested + 1)?;
                more.retain(|(new, _)| absorbed.iter().all(|(known, _)| known != new));
                absorbed.extend(more);
                if absorbed.len() > ABSORBED {
                    return None;
                }
                let level = absorbed.iter().find(|(known, _)| *known == root).map(|(_, level)| *level)?;
                inside.push((view, level));
            } else {
                return None;
            }
        }
        let numel = |view: &View| self.program.node(view.root).shape.numel();
        let is_row = |(view, level): &(&View, Level)| *level == Level::Row && is_identity(&view.operand, numel(view));
        let level = match () {
            // Nothing of the group is read: the node is absorbed for another's sake.
            _ if inside.is_empty() && node.shape.numel() == group.space.numel() => Level::Element,
            _ if inside.is_empty() && node.shape.numel() == group.kept().numel() => Level::Row,
            _ if inside.is_empty() => return None,
            _ if inside.iter().all(is_row) => Level::Row,
            _ => Level::Element,
        };
        let frame = group.frame(level);
        if node.shape.numel() != frame.numel() {
            return None;
        }
        for (view, from) in inside.iter().filter(|_| level == Level::Element) {
            let fine = match from {
                Level::Element => is_identity(&view.operand, numel(view)),
                Level::Row => group.repeats_rows(&view.operand.reshaped(&frame)?),
            };
            let after = *from == Level::Row && self.follows(view.root, g);
            if !fine
                || (after || group.after.get(&view.root) == Some(&true)) && group.row_len() > self.options.row_limit
            {
                return None;
            }
        }
        if !placed && outside.iter().any(|view| view.operand.reshaped(&frame).is_none()) {
            return None;
        }
        absorbed.push((id, level));
        Some(absorbed)
    }

    /// True if a member of a group, or a value that it computes again, depends on one of its reductions.
    fn follows(&self, root: NodeId, g: usize) -> bool {
        let group = &self.groups[g];
        group.after.get(&root).copied().unwrap_or_else(|| {
            let inputs = &self.program.node(root).inputs;
            let roots = inputs.iter().map(|input| self.views[input.index()].root);
            roots.filter(|root| self.depth(*root).is_some_and(|depth| depth >= group.depth)).any(|r| self.follows(r, g))
        })
    }

    /// True if a map may be computed twice.
    pub fn is_cheap(&self, root: NodeId) -> bool {
        let most = if self.uses[root.index()] <= 1 { 16 } else { 3 };
        self.options.recompute && !self.apart[root.index()] && weight(&self.program.node(root).op) <= most
    }

    /// True if a node repeats over its segment a value that a group has for each of the same segments, and if that depends on
    /// the segment's elements, these can be walked twice.
    pub fn spreads_row(&self, id: NodeId, group: &Group, segments: &Arc<Segments>) -> bool {
        let View { root, operand } = self.input(id, 0);
        let longest = if group.after.get(root) == Some(&true) { self.options.row_limit } else { usize::MAX };
        group.segments.as_ref().is_some_and(|own| Arc::ptr_eq(own, segments) || own == segments)
            && group.shows(*root, operand, Level::Row)
            && group.row_len() <= longest
    }

    /// The group that a reduction joins: the one that computes its elements, if they form the same rows.
    fn reduces_in(&mut self, id: NodeId) -> Option<usize> {
        let node = self.program.node(id);
        let (axes, segments) = rows(&node.op)?;
        let View { root, operand } = self.input(id, 0).clone();
        let g = self.home[root.index()]?;
        let group = &self.groups[g];
        let rows = self.options.rows && matches!(group.class, Class::Map | Class::Reduce) && group.space.numel() > 0;
        let element = group.levels.get(&root) == Some(&Level::Element);
        if !rows
            || !element
            || !is_identity(&operand, self.program.node(root).shape.numel())
            || group.members.len() >= self.options.values
        {
            return None;
        }
        if let Some(known) = &group.axes {
            let again = group.after[&root] && group.row_len() > self.options.row_limit;
            let same = match (&group.segments, segments) {
                (None, None) => pattern(&group.space, known) == pattern(&operand.shape, axes),
                (own, other) => own.as_ref() == other,
            };
            return (same && !again).then_some(g);
        }
        // The group's first reduction: its reads must be views of the reduction's shape.
        let space = operand.shape;
        let members = group.members.iter().map(|member| self.program.node(*member));
        let elementwise = members.filter(|node| !is_placed(&node.op));
        let views = elementwise.flat_map(|node| &node.inputs).map(|input| &self.views[input.index()]);
        let mut outside =
            views.filter(|v| !group.levels.contains_key(&v.root) && self.class[v.root.index()] != Class::Const);
        if !outside.all(|view| view.operand.reshaped(&space).is_some()) {
            return None;
        }
        let (axes, segments) = (Some(axes.to_vec()), segments.cloned());
        let group = &mut self.groups[g];
        (group.class, group.space, group.axes, group.segments) = (Class::Reduce, space, axes, segments);
        Some(g)
    }

    /// The latest group that reduces the same segments, if the elements are there before it: norms of gradients and of
    /// weights are read together.
    fn same_segments(&self, id: NodeId) -> Option<usize> {
        let (_, segments) = rows(&self.program.node(id).op)?;
        let before = self.depth(self.input(id, 0).root);
        let fits = |group: &&Group| {
            group.segments.as_ref() == segments
                && before.is_none_or(|depth| depth < group.depth)
                && group.members.len() < self.options.values
        };
        segments.filter(|_| self.options.rows)?;
        self.groups.iter().rposition(|group| fits(&group))
    }
}
