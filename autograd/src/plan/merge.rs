//! Groups that become one after all nodes have been placed: reductions of the same rows, small maps, and maps of one vector.

use super::{
    Level,
    group::{ABSORBED, Class, Groups, View, is_placed},
};
use crate::{Shape, node::NodeId, op::Segments};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// The largest space of which maps become one kernel that read nothing in common.
const SMALL: usize = 1024;
/// The number of groups that are tried for each that might be bundled.
const TRIED: usize = 8;

/// The key of reductions that are alike: a space, its axes, and the segments that are its rows.
type Rows = (Shape, Vec<usize>, Option<Arc<Segments>>);

/// A value that is read, and the position of the first element that is.
type Source = (NodeId, usize);

/// The groups that read what others are the homes of: for each, those that it reads, and those that read it.
pub(super) struct Links {
    reads: Vec<Vec<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Links {
    pub fn new(groups: &Groups<'_>) -> Self {
        let mut links = Self { reads: vec![], readers: vec![vec![]; groups.groups.len()] };
        for g in 0..groups.groups.len() {
            links.reads.push(groups.reads(g));
            links.reads[g].iter().for_each(|&home| links.readers[home].push(g));
        }
        links
    }

    /// Updates the relations after a group has taken in another.
    fn merge(&mut self, from: usize, to: usize, reads: Vec<usize>) {
        for g in [from, to] {
            for home in std::mem::take(&mut self.reads[g]) {
                self.readers[home].retain(|&reader| reader != g);
            }
        }
        for reader in std::mem::take(&mut self.readers[from]) {
            self.reads[reader].retain(|&home| home != from && home != to);
            self.reads[reader].push(to);
            self.readers[to].retain(|&other| other != reader);
            self.readers[to].push(reader);
        }
        reads.iter().for_each(|&home| self.readers[home].push(to));
        self.reads[to] = reads;
    }
}

impl Groups<'_> {
    /// Makes one group of reductions of the same rows that read the same elements (the gradients of a norm's scale and
    /// shift): the deeper takes the other's members, if whoever reads those comes later still.
    pub fn merge_reductions(&mut self, links: &mut Links) {
        let mut alike: HashMap<Rows, Vec<usize>> = HashMap::new();
        for (g, group) in self.groups.iter().enumerate() {
            let whole = group.space.numel() > 0 && group.members.iter().all(|id| !self.apart[id.index()]);
            if let (Class::Reduce, Some(axes), true) = (group.class, &group.axes, whole) {
                let rows = (group.space.clone(), axes.clone(), group.segments.clone());
                alike.entry(rows).or_default().push(g);
            }
        }
        let mut alike: Vec<Vec<usize>> = alike.into_values().filter(|groups| groups.len() > 1).collect();
        alike.sort_unstable();
        for mut same in alike {
            same.sort_unstable_by_key(|&g| (self.groups[g].depth, g));
            // The reads of each, and for each value the positions of its readers.
            let mut sources: Vec<Vec<Source>> = same.iter().map(|&g| self.sources(g)).collect();
            let mut found: HashMap<Source, Vec<usize>> = HashMap::new();
            for (i, source) in sources.iter().enumerate().flat_map(|(i, of)| of.iter().map(move |source| (i, source))) {
                found.entry(*source).or_default().push(i);
            }
            for (i, &from) in same.iter().enumerate() {
                let first_reader =
                    links.readers[from].iter().map(|&reader| self.groups[reader].depth).min().unwrap_or(usize::MAX);
                // Of full reductions there are few, and each saves a walk over everything.
                let full = self.groups[from].kept().numel() == 1;
                let comes_before = |to: usize| {
                    self.groups[to].depth < first_reader
                        || full && links.readers[from].iter().all(|&reader| !self.leads_to(links, reader, to))
                };
                let takes = |&j: &usize| {
                    let to = same[j];
                    self.groups[to].segments == self.groups[from].segments
                        && self.groups[from].depth <= self.groups[to].depth
                        && self.groups[from].members.len() + self.groups[to].members.len() <= self.options.values
                        && self.groups[from]
                            .levels
                            .iter()
                            .all(|(id, level)| self.groups[to].levels.get(id).is_none_or(|other| other == level))
                        && sources[j].iter().any(|source| sources[i].contains(source))
                        && comes_before(to)
                        && self.bindable(from, to)
                };
                // The nearest in depth, so that values are kept no longer than necessary.
                let mut later: Vec<usize> = sources[i].iter().flat_map(|source| &found[source]).copied().collect();
                later.retain(|&j| j > i);
                later.sort_unstable();
                later.dedup();
                if let Some(j) = later.into_iter().find(takes) {
                    let to = same[j];
                    self.merge(links, from, to);
                    self.deepen(links, to);
                    sources[j] = self.sources(to);
                    sources[j].iter().for_each(|source| found.entry(*source).or_default().push(j));
                }
            }
        }
    }

    /// Makes one group of maps of the same vector: of small ones, whatever they read, as starting a kernel takes longer than
    /// running it; of others, if they read elements in common (an optimizer's, where a verdict comes between them and the
    /// gradients). Groups between which others lie are left apart.
    pub fn bundle(&mut self, links: &mut Links) {
        let mut vectors: Vec<usize> = (0..self.groups.len())
            .filter(|&g| {
                let group = &self.groups[g];
                let vector = group.space.rank() <= 1 && group.space.numel() > 0;
                group.class == Class::Map && vector && group.members.iter().all(|id| !self.apart[id.index()])
            })
            .collect();
        vectors.sort_unstable_by_key(|&g| (self.groups[g].depth, g));
        let mut alike: HashMap<Shape, Vec<usize>> = HashMap::new();
        let mut place = vec![];
        for &g in &vectors {
            let same = alike.entry(self.groups[g].space.clone()).or_default();
            place.push(same.len());
            same.push(g);
        }
        for (from, place) in vectors.into_iter().zip(place) {
            let others = alike[&self.groups[from].space][place + 1..].iter().take(TRIED);
            if let Some(&to) = others.into_iter().find(|&&to| self.may_bundle(links, from, to)) {
                self.merge(links, from, to);
                self.deepen(links, to);
            }
        }
    }

    /// True if two groups of maps may become one: nothing that reads the first is read by the second, the second reads of the
    /// first what it would compute itself, and unless they are small, they read elements in common.
    fn may_bundle(&self, links: &Links, from: usize, to: usize) -> bool {
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
        let apart = |reader: usize| reader == to || !self.leads_to(links, reader, to);
        let common = || {
            let sources = self.sources(from);
            self.sources(to).iter().any(|source| sources.contains(source) || a.levels.contains_key(&source.0))
        };
        reads_own
            && links.readers[from].iter().all(|&reader| apart(reader))
            && (a.space.numel() <= SMALL || common())
            && self.bindable(from, to)
    }

    /// The homes of what a group reads, and does not have itself.
    fn reads(&self, g: usize) -> Vec<usize> {
        let group = &self.groups[g];
        let inputs = group.members.iter().flat_map(|id| &self.program.node(*id).inputs);
        let roots = inputs.map(|input| self.views[input.index()].root).filter(|root| !group.levels.contains_key(root));
        let mut homes: Vec<usize> =
            roots.filter_map(|root| self.home[root.index()]).filter(|home| *home != g).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// True if a group comes before another, directly or by way of others.
    fn leads_to(&self, links: &Links, from: usize, to: usize) -> bool {
        let (mut open, mut seen) = (vec![from], HashSet::from([from]));
        while let Some(g) = open.pop() {
            if g == to {
                return true;
            }
            if self.groups[g].depth < self.groups[to].depth {
                open.extend(links.readers[g].iter().filter(|&&reader| seen.insert(reader)));
            }
        }
        false
    }

    /// Makes the readers of a group deeper than it.
    fn deepen(&mut self, links: &Links, g: usize) {
        let mut open = vec![g];
        while let Some(g) = open.pop() {
            for &reader in &links.readers[g] {
                if self.groups[reader].depth <= self.groups[g].depth {
                    self.groups[reader].depth = self.groups[g].depth + 1;
                    open.push(reader);
                }
            }
        }
    }

    /// The values of its space's size that a group reads, also through values that it computes again, and such parts of larger
    /// values.
    fn sources(&self, g: usize) -> Vec<Source> {
        let group = &self.groups[g];
        let mut found = vec![];
        let mut open: Vec<(NodeId, usize)> = group.members.iter().map(|id| (*id, 0)).collect();
        while let Some((id, depth)) = open.pop() {
            for input in &self.program.node(id).inputs {
                let (View { root, operand }, elements) = (&self.views[input.index()], group.space.numel());
                let (all, is_part) = (self.program.node(*root).shape.numel(), operand.is_part());
                if group.levels.contains_key(root) || operand.shape.numel() != elements || all < elements {
                    continue;
                }
                let source = (*root, operand.offset);
                if all == elements && self.class[root.index()] == Class::Map && self.is_cheap(*root) && depth < ABSORBED
                {
                    open.push((*root, depth + 1));
                } else if (all == elements || is_part) && !found.contains(&source) {
                    found.push(source);
                }
            }
        }
        found
    }

    fn merge(&mut self, links: &mut Links, from: usize, to: usize) {
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
        links.merge(from, to, self.reads(to));
    }
}
