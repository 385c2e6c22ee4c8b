//! A recorded program: plain data, without the closures that recorded it.

use crate::{
    Site,
    lints::facts::{Drawing, Lint},
    node::{Node, NodeId, Scope, ScopeId},
    op::Op,
    recorded::{Alarm, Event, InputDecl, Pass, TapDecl},
    store::{Layout, Param, StateId},
};
use std::sync::Arc;

/// A recorded program: nodes in the order in which they run, their commits to states, and their taps.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) nodes: Vec<Node>,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) inputs: Vec<InputDecl>,
    pub(crate) commits: Vec<(StateId, NodeId)>,
    pub(crate) taps: Vec<TapDecl>,
    pub(crate) passes: Vec<Pass>,
    pub(crate) unreached: Vec<Param>,
    pub(crate) alarms: Vec<Alarm>,
    pub(crate) lints: Vec<Lint>,
    pub(crate) losses: Vec<NodeId>,
    pub(crate) logits: Vec<NodeId>,
    pub(crate) steep: Vec<NodeId>,
    pub(crate) drawing: Drawing,
    pub(crate) events: Vec<(Event, Site)>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ranks: usize,
    /// States that must be the same on all ranks: the keys of gradient noise.
    pub(crate) shared: Vec<StateId>,
}

impl Program {
    /// The nodes; each reads only nodes before it.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The ids of the nodes, in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(|at| NodeId(at as u32))
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The inputs, in the order of declaration.
    pub fn inputs(&self) -> &[InputDecl] {
        &self.inputs
    }

    /// The states that change, with the node that becomes the value of each when the program ends.
    pub fn commits(&self) -> &[(StateId, NodeId)] {
        &self.commits
    }

    /// The values that are delivered to the host.
    pub fn taps(&self) -> &[TapDecl] {
        &self.taps
    }

    /// The gradient passes, in the order in which they were recorded.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Parameters whose gradient was asked for, though the loss does not reach them. They have no gradient, which is
    /// not a gradient of zero: an optimizer leaves them and their state alone.
    pub fn unreached(&self) -> &[Param] {
        &self.unreached
    }

    /// The losses whose gradients were taken, before the multiplication by a loss scale.
    pub fn losses(&self) -> &[NodeId] {
        &self.losses
    }

    /// The logits of losses over classes.
    pub fn logits(&self) -> &[NodeId] {
        &self.logits
    }

    /// The operations on the way to a loss that have a point with a finite value and a non-finite gradient, and whose
    /// operands nothing keeps from that point: see [`crate::Pitfall::NonFiniteGradient`].
    pub fn steep(&self) -> &[NodeId] {
        &self.steep
    }

    /// The number of ranks that run the program together.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The store's declarations.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The scope of an id.
    pub fn scope(&self, id: ScopeId) -> &Scope {
        &self.scopes[id.0 as usize]
    }

    /// The scopes from the outermost to this one, without the root.
    pub fn scope_path(&self, mut id: ScopeId) -> Vec<&Scope> {
        let mut path = vec![];
        while id.0 != 0 {
            path.push(self.scope(id));
            id = self.scope(id).parent;
        }
        path.reverse();
        path
    }

    /// Marks the nodes that a commit or a tap depends on; a backend runs no others.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        let roots = self.commits.iter().map(|(_, node)| *node).chain(self.taps.iter().map(|tap| tap.node));
        roots.for_each(|root| live[root.index()] = true);
        for i in (0..self.nodes.len()).rev() {
            if live[i] {
                self.nodes[i].inputs.iter().for_each(|input| live[input.index()] = true);
            }
        }
        live
    }

    /// Drops commits that give a state the value that it has already.
    pub(crate) fn without_idle_commits(mut self) -> Self {
        let nodes = &self.nodes;
        self.commits.retain(|(state, node)| nodes[node.index()].op != Op::State(*state));
        self
    }
}
