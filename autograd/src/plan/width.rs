//! An estimate of the number of buffers that a kernel will need, while its group grows. The number itself is known when memory has
//! been assigned: see [`super::Plan::buffers`].

use super::{
    emit::Limit,
    group::{Class, Groups, is_identity, is_placed, weight},
};
use crate::{node::NodeId, op::Op, store::StateId};
use std::collections::HashMap;

/// The cost of computing a root again: the work, the roots of as many elements, and those that are repeated.
#[derive(Clone, Default)]
pub(super) struct Ingredients {
    work: usize,
    loads: Vec<NodeId>,
    repeated: Vec<NodeId>,
}

impl Groups<'_> {
    /// For each root, the one in whose memory it will probably lie: a part lies in the whole that is assembled of it, a state's next
    /// value in the state.
    pub fn homes_to_be(&self) -> Vec<NodeId> {
        let ids = || (0..self.program.nodes().len() as u32).map(NodeId);
        let mut lies: Vec<NodeId> = ids().collect();
        let whole = |id: NodeId| {
            let view = &self.views[id.index()];
            let computed = !matches!(self.class[view.root.index()], Class::Leaf | Class::Const);
            (computed && is_identity(&view.operand, self.program.node(view.root).shape.numel())).then_some(view.root)
        };
        if self.options.in_place {
            let states: HashMap<StateId, NodeId> = ids()
                .filter_map(|id| match self.program.node(id).op {
                    Op::State(state) => Some((state, id)),
                    _ => None,
                })
                .collect();
            for (state, id) in self.program.commits() {
                if let (Some(root), Some(&old)) = (whole(*id), states.get(state)) {
                    lies[root.index()] = old;
                }
            }
        }
        // From the last to the first: a part of a part lies in the whole.
        for id in ids().rev().filter(|_| self.options.direct) {
            if let Op::Assemble { .. } = self.program.node(id).op {
                let parts = self.program.node(id).inputs.iter().filter_map(|input| whole(*input));
                parts.for_each(|root| lies[root.index()] = lies[id.index()]);
            }
        }
        lies
    }

    /// The inputs from which each root can be computed again. The kernels that read it decide by the same limits later, when they know
    /// their other values and reads.
    pub fn computable_again(&self) -> Vec<Option<Ingredients>> {
        let mut all: Vec<Option<Ingredients>> = vec![];
        for i in 0..self.class.len() {
            let root = NodeId(i as u32);
            let cheap = self.live[i] && self.class[i] == Class::Map && self.is_cheap(root);
            all.push(cheap.then(|| self.again_of(root, &all)).flatten());
        }
        all
    }

    fn again_of(&self, root: NodeId, known: &[Option<Ingredients>]) -> Option<Ingredients> {
        let node = self.program.node(root);
        let mut again = Ingredients { work: weight(&node.op), ..Ingredients::default() };
        let inputs: &[NodeId] = if is_placed(&node.op) { &[] } else { &node.inputs };
        for source in inputs.iter().map(|input| self.views[input.index()].root) {
            match &known[source.index()] {
                _ if self.class[source.index()] == Class::Const => {}
                _ if self.program.node(source).shape.numel() < node.shape.numel() => again.repeated.push(source),
                None => again.loads.push(source),
                Some(further) => {
                    again.work += further.work;
                    again.loads.extend(&further.loads);
                    again.repeated.extend(&further.repeated);
                }
            }
        }
        for sources in [&mut again.loads, &mut again.repeated] {
            sources.sort_unstable();
            sources.dedup();
        }
        let within = |limit: &Limit| limit.allows(again.work, again.loads.len(), again.repeated.len());
        Limit::of(self, root).iter().any(within).then_some(again)
    }

    /// The buffers of a kernel that computes these groups.
    fn width(&self, of: &[usize]) -> usize {
        let own = |root: &NodeId| of.iter().any(|&g| self.groups[g].levels.contains_key(root));
        let mut members: Vec<NodeId> = of.iter().flat_map(|&g| &self.groups[g].members).copied().collect();
        members.sort_unstable();
        members.dedup();
        let mut inside: HashMap<NodeId, usize> = HashMap::new();
        let mut touched: Vec<NodeId> = vec![];
        for input in members.iter().flat_map(|id| &self.program.node(*id).inputs) {
            let root = self.views[input.index()].root;
            if own(&root) {
                *inside.entry(root).or_default() += 1;
            } else if let Some(again) = &self.again[root.index()] {
                touched.extend(again.loads.iter().chain(&again.repeated).filter(|source| !own(source)));
            } else if self.class[root.index()] != Class::Const {
                touched.push(root);
            }
        }
        let stored = |id: &NodeId| {
            self.home[id.index()].is_some_and(|home| of.contains(&home))
                && self.uses[id.index()] > inside.get(id).copied().unwrap_or(0)
        };
        touched.extend(members.into_iter().filter(stored));
        let one = |root: &NodeId| self.program.node(*root).shape.numel() == 1;
        let scalars = usize::from(touched.iter().any(one));
        touched.retain(|root| !one(root));
        touched.iter_mut().for_each(|root| *root = self.lies[root.index()]);
        touched.sort_unstable();
        touched.dedup();
        touched.len() + scalars
    }

    /// True if the kernel of two groups will need no more buffers than there may be, or no more than one of them anyway.
    pub fn bindable(&self, from: usize, to: usize) -> bool {
        let width = self.width(&[from, to]);
        width <= self.options.buffers || width <= self.width(&[from]).max(self.width(&[to]))
    }
}
