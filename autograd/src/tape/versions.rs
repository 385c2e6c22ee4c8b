//! The successive values of an arena on a tape, and those through which a loss reads each parameter.
//!
//! A step makes a new value of the whole arena; the parameters that it does not step keep their values in it. Such a
//! parameter, if read before and after the step, is one variable, and has one gradient: the sum over both reads.

use crate::{
    Site, Tensor,
    node::NodeId,
    op::{Op, Place},
    store::{Param, ParamSet, StateId},
    tape::Tape,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    iter,
};

/// A tape's record of its arenas' values.
#[derive(Default)]
pub(crate) struct Versions {
    /// Every assignment, in order: the state, the value and the line.
    pub assigned: Vec<(StateId, NodeId, Site)>,
    /// For a value of an arena that differs from an earlier one in some parameters only: the earlier value, those
    /// parameters, and the line of the update.
    updates: HashMap<NodeId, (NodeId, ParamSet, Site)>,
    /// The reads of each parameter: the value of the arena, and the node of the parameter.
    reads: BTreeMap<Param, Vec<(NodeId, NodeId)>>,
}

impl Versions {
    /// The earliest value of the arena since which a parameter has not changed up to `version`. The search ends at
    /// `stops`.
    fn origin(&self, version: NodeId, param: Param, stops: &[Tensor<'_>]) -> NodeId {
        let mut origin = version;
        while let Some((from, changed, _)) = self.updates.get(&origin) {
            if changed.contains(param) || stops.iter().any(|stop| stop.id == origin) {
                break;
            }
            origin = *from;
        }
        origin
    }
}

/// The restrictions on the paths of a sweep.
#[derive(Default)]
pub(crate) struct Paths {
    /// Nodes that send no cotangents to their inputs.
    cuts: HashSet<NodeId>,
    /// For a node between an arena and a read of a parameter: the first of the nodes with the same value. A sweep
    /// reaches it after the consumers of all of them.
    firsts: HashMap<NodeId, NodeId>,
}

impl Paths {
    /// True if a node sends no cotangents to its inputs.
    pub fn end_at(&self, id: NodeId) -> bool {
        self.cuts.contains(&id)
    }

    /// The node that gathers the cotangents of this one.
    pub fn gathering(&self, id: NodeId) -> NodeId {
        self.firsts.get(&id).copied().unwrap_or(id)
    }
}

/// A value of an arena through which a loss reads a parameter.
pub(crate) struct Read<'t> {
    /// The parameter.
    pub param: Param,
    /// The value of the arena.
    pub version: Tensor<'t>,
    /// The node that receives the gradient: the slice that gathers it, or the arena, if the loss also reads that as a
    /// whole.
    pub stand: Tensor<'t>,
    /// The line that reads it.
    site: Site,
}

impl Tape {
    /// The value of a parameter, a slice of its arena's latest value.
    #[track_caller]
    pub fn param(&self, param: Param) -> Tensor<'_> {
        let arena = self.state(self.layout.param(param).arena);
        let raw = self.param_within(param, arena);
        let hook = self.inner.borrow().closures.param_hooks.get(&param).copied();
        let read = hook.map_or(raw, |hook| self.push(Op::Hook(hook), &[raw]));
        let mut inner = self.inner.borrow_mut();
        let reads = inner.states.versions.reads.entry(param).or_default();
        if !reads.contains(&(arena.id, read.id)) {
            reads.push((arena.id, read.id));
        }
        read
    }

    /// The parameter's slice of a value of its arena, before hooks.
    #[track_caller]
    fn param_within<'t>(&'t self, param: Param, arena: Tensor<'t>) -> Tensor<'t> {
        let decl = self.layout.param(param);
        arena.slice(0, decl.offset, decl.shape.numel()).reshape(&decl.shape)
    }

    /// Remembers that a value of an arena differs from an earlier one in some parameters only.
    #[track_caller]
    pub(crate) fn note_update(&self, new: Tensor<'_>, old: Tensor<'_>, changed: ParamSet) {
        let site = self.site();
        if new.id != old.id {
            self.inner.borrow_mut().states.versions.updates.insert(new.id, (old.id, changed, site));
        }
    }

    /// True if a parameter is the same in two values of its arena, as far as is known.
    pub(crate) fn is_same_in(&self, param: Param, a: Tensor<'_>, b: Tensor<'_>) -> bool {
        let versions = &self.inner.borrow().states.versions;
        versions.origin(a.id, param, &[]) == versions.origin(b.id, param, &[])
    }

    /// The values that an arena has had on this tape, the one in force first, then from the latest to the first.
    #[track_caller]
    pub(crate) fn versions(&self, arena: StateId) -> Vec<Tensor<'_>> {
        let decl = self.layout.state(arena);
        let first = self.push_typed(Op::State(arena), [].into(), (decl.shape.clone(), decl.dtype));
        let mut versions: Vec<Tensor<'_>> = vec![];
        for id in self.made(arena).into_iter().chain([first.id]) {
            if versions.iter().all(|known| known.id != id) {
                versions.push(Tensor { tape: self, id });
            }
        }
        versions
    }

    /// The values that an arena has been given on this tape, from the one in force to the first.
    fn made(&self, arena: StateId) -> Vec<NodeId> {
        let inner = self.inner.borrow();
        let rebound = inner.states.rebound.iter().rev().filter_map(|values| values.get(&arena).copied());
        let assigned =
            inner.states.versions.assigned.iter().rev().filter(|(state, ..)| *state == arena).map(|(_, id, _)| *id);
        rebound.chain(assigned).collect()
    }

    /// The paths of a sweep from a value to some tensors. Reads of one value of a parameter count as one, unless `wrt`
    /// tells them apart: it names several of them, or an arena in between.
    pub(crate) fn paths(&self, y: Tensor<'_>, wrt: &[Tensor<'_>]) -> Paths {
        self.paths_up_to(y, wrt, HashSet::new())
    }

    /// The paths of a sweep from a loss to parameters: they end at every value that an arena has been given, so that
    /// none goes through the step that made the value.
    pub(crate) fn paths_to_params(&self, loss: Tensor<'_>) -> Paths {
        let arenas: HashSet<StateId> = self.layout.params().map(|(_, decl)| decl.arena).collect();
        self.paths_up_to(loss, &[], arenas.into_iter().flat_map(|arena| self.made(arena)).collect())
    }

    fn paths_up_to(&self, y: Tensor<'_>, wrt: &[Tensor<'_>], cuts: HashSet<NodeId>) -> Paths {
        let mut paths = Paths { cuts, firsts: HashMap::new() };
        let inner = self.inner.borrow();
        let versions = &inner.states.versions;
        let read_again = |reads: &[(NodeId, NodeId)]| reads.iter().any(|(version, _)| *version != reads[0].0);
        if versions.updates.is_empty() || !versions.reads.values().any(|reads| read_again(reads)) {
            return paths;
        }
        let above = above(self, y, &paths);
        for (&param, reads) in versions.reads.iter().filter(|(_, reads)| read_again(reads)) {
            // For each value that the parameter has had, the nodes between its reads and the arenas, the slices last.
            let mut same: BTreeMap<NodeId, Vec<Vec<NodeId>>> = BTreeMap::new();
            for &(version, read) in reads {
                let inner = |id: &NodeId| Some(inner.nodes[id.index()].inputs[0]).filter(|id| *id != version);
                let way: Vec<NodeId> = iter::successors(Some(read).filter(|id| *id != version), inner).collect();
                if way.iter().any(|id| above.contains(id) || wrt.iter().any(|w| w.id == *id)) {
                    same.entry(versions.origin(version, param, wrt)).or_default().push(way);
                }
            }
            for ways in same.into_values() {
                let named = ways.iter().filter(|way| wrt.iter().any(|w| way.contains(&w.id)));
                if named.map(|way| way.last()).collect::<BTreeSet<_>>().len() > 1 {
                    continue;
                }
                // Among a parameter's hooks, reshapes and slices, equal ops have equal values.
                let mut firsts: HashMap<&Op, NodeId> = HashMap::new();
                for &id in ways.iter().flatten() {
                    firsts.entry(&inner.nodes[id.index()].op).and_modify(|first| *first = id.min(*first)).or_insert(id);
                }
                let first = |id: NodeId| (id, firsts[&inner.nodes[id.index()].op]);
                paths.firsts.extend(ways.into_iter().flatten().map(first));
            }
        }
        paths
    }

    /// The values of their arenas through which a loss reads some parameters, parameter by parameter, the latest first.
    #[track_caller]
    pub(crate) fn reads<'t>(&'t self, loss: Tensor<'t>, params: &ParamSet, paths: &Paths) -> Vec<Read<'t>> {
        let mut reads = vec![];
        for arena in params.arenas(&self.layout) {
            let (versions, members) = (self.versions(arena), self.layout.members(arena));
            // Parameters without elements share a place.
            let mut places: HashMap<(usize, usize), Vec<Param>> = HashMap::new();
            members.into_iter().for_each(|param| places.entry(self.layout.place(param)).or_default().push(param));
            let nodes = &self.inner.borrow().nodes;
            let mut slices: HashMap<(NodeId, Param), NodeId> = HashMap::new();
            let mut wholes: HashMap<NodeId, NodeId> = HashMap::new();
            for reader in above(self, loss, paths) {
                let node = &nodes[reader.index()];
                for version in versions.iter().filter(|version| node.differentiated().contains(&version.id)) {
                    let slice = match node.op {
                        Op::Slice { axis: 0, start, len, step: 1 } => places.get(&(start, len)),
                        _ => None,
                    };
                    match slice {
                        Some(params) => slices.extend(params.iter().map(|param| ((version.id, *param), reader))),
                        None => drop(wholes.entry(version.id).or_insert(reader)),
                    }
                }
            }
            for param in params.iter().filter(|param| self.layout.param(*param).arena == arena) {
                for &version in &versions {
                    let (whole, slice) = (wholes.get(&version.id), slices.get(&(version.id, param)));
                    let Some(reader) = slice.or(whole) else { continue };
                    // If the arena as a whole receives a gradient anyway, the slice adds to it.
                    let slice = slice.map(|slice| paths.gathering(*slice)).filter(|_| whole.is_none());
                    let within = slice.map_or(version.id, |slice| nodes[slice.index()].inputs[0]);
                    let id = slice.filter(|_| !wholes.contains_key(&within)).unwrap_or(within);
                    reads.push(Read {
                        param,
                        version,
                        stand: Tensor { tape: self, id },
                        site: nodes[reader.index()].site,
                    });
                }
            }
        }
        reads.sort_by_key(|read| read.param);
        reads
    }

    /// A value of an arena in which each parameter has the value at which the loss read it.
    #[track_caller]
    pub(crate) fn as_read<'t>(
        &'t self,
        arena: StateId,
        parts: &BTreeMap<Param, Vec<(&Read<'t>, Tensor<'t>)>>,
    ) -> Tensor<'t> {
        let own = || parts.values().map(|parts| parts[0].0).filter(|read| self.layout.param(read.param).arena == arena);
        let fits = |version: &Tensor<'t>| own().all(|read| self.is_same_in(read.param, *version, read.version));
        own()
            .map(|read| read.version)
            .chain(own().next().is_none().then(|| self.state(arena)))
            .find(fits)
            .unwrap_or_else(|| {
                let place = |read: &Read<'t>| {
                    let (start, len) = self.layout.place(read.param);
                    (Place { start, step: 1 }, read.version.slice(0, start, len))
                };
                Tensor::assemble(&own().map(place).collect::<Vec<_>>(), 0, self.layout.state(arena).shape.numel())
            })
    }

    /// The line that made a value of an arena: that of the step, of the assignment, of the update, or of the value
    /// itself.
    fn made_at(&self, version: NodeId) -> Site {
        let inner = self.inner.borrow();
        let stepped = inner.training.passes.iter().find(|pass| pass.outputs.contains(&version)).map(|pass| pass.site);
        let assigned = inner.states.versions.assigned.iter().find(|(_, id, _)| *id == version).map(|(.., site)| *site);
        let updated = inner.states.versions.updates.get(&version).map(|(.., site)| *site);
        stepped.or(assigned).or(updated).unwrap_or(inner.nodes[version.index()].site)
    }

    /// Refuses one gradient with respect to two values of a parameter.
    #[track_caller]
    pub(crate) fn refuse_two_values(&self, later: &Read<'_>, earlier: &Read<'_>) -> ! {
        let path = &self.layout.param(later.param).path;
        let made = self.made_at(later.version.id);
        panic!(
            "grad: the loss reads {path:?} both before it changed (read at {}) and after the change at {made} (read at \
             {}), so there is no single gradient; detach one read, or read both after the change{}",
            earlier.site,
            later.site,
            self.recorded_at()
        )
    }
}

/// The nodes through which gradients flow back from a value, its own among them, as far as the paths go.
fn above(tape: &Tape, y: Tensor<'_>, paths: &Paths) -> BTreeSet<NodeId> {
    let nodes = &tape.inner.borrow().nodes;
    let mut above = BTreeSet::new();
    let mut open = vec![y.id];
    while let Some(id) = open.pop() {
        let node = &nodes[id.index()];
        if node.carries() && !paths.end_at(id) && above.insert(id) {
            open.extend(node.differentiated());
        }
    }
    above
}
