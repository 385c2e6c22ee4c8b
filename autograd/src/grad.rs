//! The reverse sweep: records the gradient of a tensor on the tape that the tensor lives on.
//!
//! It is one pass over the nodes, from the last to the first. When it reaches a node, it has visited all consumers, so
//! the sum of their contributions is the node's total cotangent. The node's rule turns that into cotangents of the
//! inputs.

use crate::{
    DType, Tensor,
    node::{Checkpoint, NodeId, ScopeId},
    op::{Op, Place, fused},
    tape::{Tape, versions::Paths},
    vjp::vjp,
};
use std::{collections::HashMap, ops::Range};

/// The cotangents that a node has received so far.
#[derive(Default)]
struct Cotangent<'t> {
    sum: Option<Tensor<'t>>,
    /// Cotangents of slices of the node: gathered first, so that disjoint ones become a single `Assemble`.
    slices: Vec<(usize, Place, Tensor<'t>)>,
}

impl<'t> Cotangent<'t> {
    /// f16 values are summed in f32: [`Cotangent::total`] rounds once.
    fn add(&mut self, g: Tensor<'t>) {
        let wide = |x: Tensor<'t>| if x.dtype() == DType::F16 { x.cast(DType::F32) } else { x };
        self.sum = Some(self.sum.map_or(g, |sum| wide(sum) + wide(g)));
    }

    /// The total. Slices are dealt, in order of arrival, into groups that do not overlap; each group is one `Assemble`.
    fn total(mut self, like: Tensor<'t>) -> Option<Tensor<'t>> {
        let shape = like.shape();
        let mut groups: Vec<(usize, Vec<(Place, Tensor<'t>)>)> = vec![];
        for (axis, place, g) in std::mem::take(&mut self.slices) {
            let span = |place: Place, g: Tensor<'t>| place.span(g.shape()[axis]);
            let (start, end) = span(place, g);
            let apart = |&(p, q): &(Place, Tensor<'t>)| span(p, q).0 >= end || span(p, q).1 <= start;
            match groups.iter_mut().find(|(a, parts)| *a == axis && parts.iter().all(apart)) {
                Some((_, parts)) => parts.push((place, g)),
                None => groups.push((axis, vec![(place, g)])),
            }
        }
        for (axis, mut parts) in groups {
            parts.sort_by_key(|(place, _)| place.start);
            self.add(Tensor::assemble(&parts, axis, shape[axis]));
        }
        Some(self.sum?.cast(like.dtype()))
    }
}

/// A sweep in progress.
struct Sweep<'p, 't> {
    tape: &'t Tape,
    paths: &'p Paths,
    /// True if a gradient is wanted with respect to a node, or to something that it was computed from.
    needed: Vec<bool>,
    cotangents: HashMap<NodeId, Cotangent<'t>>,
    /// The recomputed nodes of checkpoints, which rules read in place of the originals.
    recomputed: HashMap<NodeId, Tensor<'t>>,
    /// The scopes of the gradient nodes of each forward scope.
    scopes: HashMap<ScopeId, ScopeId>,
}

/// The cotangents of `wrt`, given cotangents of some outputs. `None`: the outputs do not depend on it.
#[track_caller]
pub(crate) fn sweep<'t>(
    tape: &'t Tape,
    seeds: &[(Tensor<'t>, Tensor<'t>)],
    wrt: &[Tensor<'t>],
    paths: &Paths,
) -> Vec<Option<Tensor<'t>>> {
    for x in seeds.iter().flat_map(|(y, g)| [y, g]).chain(wrt) {
        tape.own(*x, "grad");
    }
    let top = seeds.iter().map(|(y, _)| y.id.0).max().map_or(0, |id| id + 1);
    let root = tape.child_scope(tape.current_scope(), "backward", None);
    let mut sweep = Sweep {
        tape,
        paths,
        needed: needed(tape, wrt, top, paths),
        cotangents: HashMap::new(),
        recomputed: HashMap::new(),
        scopes: HashMap::from([(ScopeId(0), root)]),
    };
    for &(y, g) in seeds {
        sweep.cotangent(y.id).add(g);
    }
    let mut checkpoints: Vec<Checkpoint> = tape.inner.borrow().checkpoints.clone();
    checkpoints.retain(|range| range.end <= top);
    checkpoints.sort_by_key(|range| (range.end, std::cmp::Reverse(range.start)));
    let mut found = HashMap::new();
    // The gradient of a contraction has the contraction's precision, not that of the place where the sweep is recorded.
    let policy = tape.inner.borrow_mut().here.autocast.take();
    for index in (0..top).rev() {
        let id = NodeId(index);
        // Outer checkpoints are entered first, so that inner ones recompute from the outer recomputation.
        while checkpoints.last().is_some_and(|range| range.end == index + 1) {
            let range = checkpoints.pop().expect("just seen");
            if range.clone().any(|i| sweep.needed[i as usize]) {
                sweep.recompute(range);
            }
        }
        if sweep.needed[index as usize] {
            let total = sweep.visit(id);
            found.extend(total.map(|total| (id, total)));
        }
    }
    tape.inner.borrow_mut().here.autocast = policy;
    wrt.iter().map(|w| found.get(&paths.gathering(w.id)).copied()).collect()
}

/// Marks the nodes through which a gradient can flow to `wrt`.
fn needed(tape: &Tape, wrt: &[Tensor<'_>], top: u32, paths: &Paths) -> Vec<bool> {
    let nodes = &tape.inner.borrow().nodes;
    let mut needed = vec![false; top as usize];
    for id in wrt.iter().map(|w| paths.gathering(w.id)).filter(|id| id.0 < top) {
        needed[id.index()] = true;
    }
    for (i, node) in nodes[..top as usize].iter().enumerate() {
        let (id, flows) = (NodeId(i as u32), node.differentiated().iter().any(|input| needed[input.index()]));
        // A node with several outputs is visited even where a path ends, for the sake of the other outputs.
        let ends = paths.end_at(id) && node.op.outputs().0 == 1;
        needed[i] |= node.carries() && flows && !ends || needed[paths.gathering(id).index()];
    }
    needed
}

impl<'t> Sweep<'_, 't> {
    /// Sends the total cotangent of a node to its inputs, and returns it. For a hook, returns what its closures gave
    /// back.
    fn visit(&mut self, id: NodeId) -> Option<Tensor<'t>> {
        let tape = self.tape;
        let node = tape.node(id);
        let scope = self.backward_scope(node.scope);
        tape.in_scope(scope, || {
            tape.at_site(node.site, || {
                // The cotangents of several outputs wait for the first output, which the sweep reaches last.
                let (outputs, out) = node.op.outputs();
                let first = NodeId(id.0 - out as u32);
                let like = |k: usize| Tensor { tape, id: NodeId(first.0 + k as u32) };
                let total = self.cotangents.remove(&id).and_then(|c| c.total(like(out)));
                let passed = total.filter(|_| !self.paths.end_at(id));
                if outputs > 1 {
                    if let Some(total) = passed {
                        self.cotangents.entry(id).or_default().add(total);
                    }
                    if out > 0 {
                        return total;
                    }
                }
                let g: Vec<_> = match outputs {
                    1 => vec![passed],
                    _ => (0..outputs).map(|k| self.cotangents.remove(&like(k).id).and_then(|c| c.sum)).collect(),
                };
                if g.iter().all(Option::is_none) {
                    return total;
                }
                let sent = self.send(&node.op, &node.inputs, (0..outputs).map(like).collect(), g);
                if matches!(node.op, Op::Hook(_)) { sent } else { total }
            })
        })
    }

    /// Applies the rule of `op`, and adds the results to the cotangents of the inputs that need them. Returns the
    /// result for the first input.
    fn send(
        &mut self,
        op: &Op,
        inputs: &[NodeId],
        y: Vec<Tensor<'t>>,
        g: Vec<Option<Tensor<'t>>>,
    ) -> Option<Tensor<'t>> {
        if let (Op::Slice { axis, start, step, .. }, Some(g)) = (op, g[0]) {
            let place = Place { start: *start, step: *step };
            self.cotangent(inputs[0]).slices.push((*axis, place, g));
            return Some(g);
        }
        let tape = self.tape;
        let read = |id: NodeId| self.recomputed.get(&id).copied().unwrap_or(Tensor { tape, id });
        let x: Vec<Tensor<'t>> = inputs.iter().map(|&id| read(id)).collect();
        let y: Vec<Tensor<'t>> = y.iter().map(|y| read(y.id)).collect();
        let sent = match op.is_fused() {
            true => fused::vjp(op, &y, &x, &g).unwrap_or_else(|| by_decomposition(op, &x, &g)),
            false => vjp(op, &y, &x, &g),
        };
        for (&input, d) in inputs.iter().zip(&sent) {
            let Some(d) = d.filter(|_| self.needed[input.index()]) else { continue };
            let x = Tensor { tape, id: input };
            assert!(
                d.shape() == x.shape() && d.dtype() == x.dtype(),
                "the gradient rule of {} gives {}{} for an input of {}{}{}",
                op.name(),
                d.dtype(),
                d.shape(),
                x.dtype(),
                x.shape(),
                tape.recorded_at()
            );
            self.cotangent(input).add(d);
        }
        sent.into_iter().next().flatten()
    }

    fn cotangent(&mut self, id: NodeId) -> &mut Cotangent<'t> {
        self.cotangents.entry(self.paths.gathering(id)).or_default()
    }

    /// Records the nodes of a checkpoint once more. They read the values that enter the checkpoint through barriers.
    fn recompute(&mut self, range: Range<u32>) {
        let tape = self.tape;
        let mut copies: HashMap<NodeId, Tensor<'t>> = HashMap::new();
        for index in range.clone() {
            let node = tape.node(NodeId(index));
            if node.inputs.is_empty() {
                continue; // A leaf costs nothing to keep.
            }
            let x: Vec<Tensor<'t>> = node
                .inputs
                .iter()
                .map(|&id| {
                    *copies.entry(id).or_insert_with(|| {
                        let original = self.recomputed.get(&id).copied().unwrap_or(Tensor { tape, id });
                        // Leaves too: a copy that reads only leaves would be merged with the original, which would then
                        // be kept.
                        let constant = matches!(tape.node(id).op, Op::Const(_) | Op::Iota(_) | Op::Table(_));
                        if constant { original } else { tape.at_site(node.site, || original.barrier()) }
                    })
                })
                .collect();
            let scope = self.backward_scope(node.scope);
            let copy = tape.in_scope(scope, || {
                let scope = tape.child_scope(tape.current_scope(), "recompute", None);
                let inputs = x.iter().map(|x| x.id).collect();
                tape.in_scope(scope, || {
                    tape.at_site(node.site, || tape.push_typed(node.op.clone(), inputs, (node.shape, node.dtype)))
                })
            });
            copies.insert(NodeId(index), copy);
        }
        for id in range.map(NodeId) {
            if let Some(&copy) = copies.get(&id) {
                let original = Tensor { tape, id };
                let stand = tape.at_site(tape.node(id).site, || tape.push(Op::Recomputed, &[original, copy]));
                self.recomputed.insert(id, stand);
            }
        }
    }

    /// The scope in which the gradient of `scope` is recorded: the same path, below `backward`.
    fn backward_scope(&mut self, scope: ScopeId) -> ScopeId {
        if let Some(&known) = self.scopes.get(&scope) {
            return known;
        }
        let decl = self.tape.scope(scope);
        let parent = self.backward_scope(decl.parent);
        let backward = self.tape.child_scope(parent, &decl.name, decl.turn);
        self.scopes.insert(scope, backward);
        backward
    }
}

/// The cotangents of the inputs, by the gradient of the decomposition. It reads the inputs through barriers: then they
/// do not depend on one another, and no node is merged with one that the forward pass keeps.
fn by_decomposition<'t>(op: &Op, x: &[Tensor<'t>], g: &[Option<Tensor<'t>>]) -> Vec<Option<Tensor<'t>>> {
    let mut inputs = Vec::with_capacity(x.len());
    for x in x {
        inputs.push(x.barrier());
    }
    let outputs = op.decompose(&inputs);
    let seeds: Vec<_> = outputs.into_iter().zip(g).filter_map(|(y, g)| Some((y, (*g)?))).collect();
    sweep(x[0].tape, &seeds, &inputs, &Paths::default())
}
