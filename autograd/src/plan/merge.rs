//! Groups that become one after all nodes have been placed: reductions of the same rows, and small maps.

use super::{
    Level,
    group::{ABSORBED, Class, Group, Groups, is_placed},
};
use crate::{Shape, op::Segments, tape::NodeId};
use std::{collections::HashMap, sync::Arc};

/// The largest space of which independent maps become one kernel.
const SMALL: usize = 1024;
/// How many groups are tried for each that might be bundled.
const TRIED: usize = 8;

/// What is reduced alike: a space, its axes, and the segments that are its rows.
type Rows = (Shape, Vec<usize>, Option<Arc<Segments>>);

impl Groups<'_> {
    /// Makes one group of reductions of the same rows that read the same elements (the gradients of a norm's scale and
    /// shift): the deeper takes the other's members, if whoever reads those comes later still.
    pub fn merge_reductions(&mut self) {
        let mut first_reader = self.first_readers();
        let mut alike: HashMap<Rows, Vec<usize>> = HashMap::new();
        for (g, group) in self.groups.iter().enumerate() {
            let whole = group.space.numel() > 0 && group.members.iter().all(|id| !self.apart.contains(id));
            if let (Class::Reduce, Some(axes), true) = (group.class, &group.axes, whole) {
                let rows = (group.space.clone(), axes.clone(), group.segments.clone());
                alike.entry(rows).or_default().push(g);
            }
        }
        let mut alike: Vec<Vec<usize>> = alike.into_values().filter(|groups| groups.len() > 1).collect();
        alike.sort_unstable();
        for mut same in alike {
            same.sort_unstable_by_key(|&g| (self.groups[g].depth, g));
            for (i, &from) in same.iter().enumerate() {
                let sources = self.sources(from);
                // Of full reductions there are few, and each saves a walk over everything.
                let full = self.groups[from].kept().numel() == 1;
                let comes_before = |to: usize| {
                    self.groups[to].depth < first_reader[from]
                        || full && self.readers(from).into_iter().all(|reader| !self.leads_to(reader, to))
                };
                let takes = |&&to: &&usize| {
                    self.groups[to].segments == self.groups[from].segments
                        && self.groups[from].depth <= self.groups[to].depth
                        && self.groups[from].members.len() + self.groups[to].members.len() <= self.options.values
                        && self.groups[from]
                            .levels
                            .iter()
                            .all(|(id, level)| self.groups[to].levels.get(id).is_none_or(|other| other == level))
                        && self.sources(to).iter().any(|source| sources.contains(source))
                        && comes_before(to)
                };
                // The nearest in depth: nothing is kept for longer than it must be.
                if let Some(&to) = same[i + 1..].iter().find(takes) {
                    self.merge(from, to);
                    first_reader[to] = first_reader[to].min(first_reader[from]);
                    if first_reader[to] <= self.groups[to].depth {
                        self.deepen(to);
                        first_reader = self.first_readers();
                    }
                }
            }
        }
    }

    /// Makes one group of small maps of the same space, whatever they read: starting a kernel takes longer than running
    /// it. Groups between which others lie are left apart.
    pub fn bundle(&mut self) {
        let mut small: Vec<usize> = (0..self.groups.len())
            .filter(|&g| {
                let group = &self.groups[g];
                let tiny = group.space.rank() <= 1 && (1..=SMALL).contains(&group.space.numel());
                group.class == Class::Map && tiny && group.members.iter().all(|id| !self.apart.contains(id))
            })
            .collect();
        small.sort_unstable_by_key(|&g| (self.groups[g].depth, g));
        for i in 0..small.len() {
            let from = small[i];
            let others = small[i + 1..].iter().copied();
            let same = others.filter(|&to| self.groups[to].space == self.groups[from].space).take(TRIED);
            if let Some(to) = same.into_iter().find(|&to| self.may_bundle(from, to)) {
                self.merge(from, to);
                self.deepen(to);
            }
        }
    }

    /// Whether two groups of maps may become one: nothing that reads the first is read by the second, and the second reads
    /// of the first what it would compute itself.
    fn may_bundle(&self, from: usize, to: usize) -> bool {
        let [a, b] = [from, to].map(|g| &self.groups[g]);
        if a.members.len() + b.members.len() > self.options.values || a.depth > b.depth {
            return false;
        }
        let reads_own = b.members.iter().map(|id| self.program.node(*id)).all(|node| {
            node.inputs.iter().map(|input| &self.views[input.index()]).all(|view| {
                self.home[view.root.index()] != Some(from)
                    || b.levels.contains_key(&view.root) && !is_placed(&node.op)
                    || a.shows(view.root, &view.operand, Level::Element) && !is_placed(&node.op)
            })
        });
        reads_own && self.readers(from).into_iter().all(|reader| reader == to || !self.leads_to(reader, to))
    }

    /// The groups that read what a group is the home of.
    fn readers(&self, of: usize) -> Vec<usize> {
        let reads = |group: &Group| {
            let inputs = group.members.iter().flat_map(|id| &self.program.node(*id).inputs);
            let mut roots = inputs.map(|input| self.views[input.index()].root);
            roots.any(|root| self.home[root.index()] == Some(of) && !group.levels.contains_key(&root))
        };
        (0..self.groups.len()).filter(|&g| g != of && reads(&self.groups[g])).collect()
    }

    /// Whether a group comes before another, directly or by way of others.
    fn leads_to(&self, from: usize, to: usize) -> bool {
        let mut seen = vec![from];
        let mut i = 0;
        while let Some(&g) = seen.get(i) {
            i += 1;
            if g == to {
                return true;
            }
            if self.groups[g].depth < self.groups[to].depth {
                let more = self.readers(g).into_iter().filter(|r| !seen.contains(r)).collect::<Vec<_>>();
                seen.extend(more);
            }
        }
        false
    }

    /// Sees to it that what reads a group is deeper.
    fn deepen(&mut self, g: usize) {
        let mut open = vec![g];
        while let Some(g) = open.pop() {
            for reader in self.readers(g) {
                if self.groups[reader].depth <= self.groups[g].depth {
                    self.groups[reader].depth = self.groups[g].depth + 1;
                    open.push(reader);
                }
            }
        }
    }

    /// For each group, the least depth of those that read it.
    fn first_readers(&self) -> Vec<usize> {
        let mut first = vec![usize::MAX; self.groups.len()];
        for (g, group) in self.groups.iter().enumerate() {
            for input in group.members.iter().flat_map(|member| &self.program.node(*member).inputs) {
                let root = self.views[input.index()].root;
                let elsewhere = self.home[root.index()].filter(|home| *home != g && !group.levels.contains_key(&root));
                if let Some(home) = elsewhere {
                    first[home] = first[home].min(group.depth);
                }
            }
        }
        first
    }

    /// The roots of the size of its space that a group reads, also by way of what it may compute again.
    fn sources(&self, g: usize) -> Vec<NodeId> {
        let group = &self.groups[g];
        let mut found = vec![];
        let mut open: Vec<(NodeId, usize)> = group.members.iter().map(|id| (*id, 0)).collect();
        while let Some((id, depth)) = open.pop() {
            for input in &self.program.node(id).inputs {
                let root = self.views[input.index()].root;
                if group.levels.contains_key(&root) || self.program.node(root).shape.numel() != group.space.numel() {
                    continue;
                }
                if self.class[root.index()] == Class::Map && self.is_cheap(root) && depth < ABSORBED {
                    open.push((root, depth + 1));
                } else if !found.contains(&root) {
                    found.push(root);
                }
            }
        }
        found
    }

    fn merge(&mut self, from: usize, to: usize) {
        let members = std::mem::take(&mut self.groups[from].members);
        let levels = std::mem::take(&mut self.groups[from].levels);
        let after = std::mem::take(&mut self.groups[from].after);
        for id in &members {
            if self.home[id.index()] == Some(from) {
                self.home[id.index()] = Some(to);
            }
        }
        let into = &mut self.groups[to];
        let new = members.into_iter().filter(|id| !into.levels.contains_key(id)).collect::<Vec<_>>();
        into.members.splice(0..0, new);
        into.levels.extend(levels);
        into.after.extend(after);
    }
}
