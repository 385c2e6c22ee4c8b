//! The non-finite values of a run, and the way from the first of them to the run's results.

use super::probed::{Answers, Question};
use crate::{
    node::NodeId,
    op::{Op, Unary},
    program::Program,
    session::Taps,
};

/// The answers of a probed run.
pub(super) struct Flags {
    /// Of each node, whether its value has an element that is not finite and not meant.
    bad: Vec<bool>,
    /// Of each selection, whether what it takes from its first and its second branch has one.
    taken: Vec<[bool; 2]>,
}

/// The way of what is not finite.
pub(super) struct Found {
    /// The first node, and those that lead from it to the last.
    pub chain: Vec<NodeId>,
    /// The last one, in words.
    pub reaches: String,
}

impl Flags {
    /// Reads the answers.
    pub fn read(program: &Program, answers: &Answers, taps: &Taps) -> Self {
        let count = program.nodes().len();
        let (mut bad, mut taken) = (vec![false; count], vec![[false; 2]; count]);
        for (at, asked) in answers.asked.iter().enumerate() {
            let values = taps.get(&format!("origin/{at}")).expect("tapped").to_f64();
            for (question, value) in asked.iter().zip(values) {
                let is_bad = value > -0.5;
                match question {
                    Question::Value(id) => bad[id.index()] = is_bad,
                    Question::Taken(id, branch) => taken[id.index()][branch - 1] = is_bad,
                }
            }
        }
        for (id, [negative, positive]) in &answers.whole {
            let value = taps.get(&format!("origin/whole/{id}")).expect("tapped");
            let meant =
                |v: f64| v.is_finite() || *negative && v == f64::NEG_INFINITY || *positive && v == f64::INFINITY;
            bad[id.index()] = !value.to_f64().into_iter().all(meant);
        }
        Self { bad, taken }
    }

    /// Of nodes that are told to be bad; selections take of both branches.
    pub fn all_taken(bad: Vec<bool>) -> Self {
        let taken = vec![[true; 2]; bad.len()];
        Self { bad, taken }
    }

    /// The operands of a node that its bad elements may come from.
    fn bad_operands<'p>(&'p self, program: &'p Program, id: NodeId) -> impl Iterator<Item = NodeId> + 'p {
        let node = program.node(id);
        let passed_on = move |(at, operand): (usize, &NodeId)| {
            let taken = node.op != Op::Select || at == 0 || self.taken[id.index()][at - 1];
            (taken && self.bad[operand.index()]).then_some(*operand)
        };
        node.inputs.iter().enumerate().filter_map(passed_on)
    }

    /// The first bad node that a chain of bad nodes leads from to a result, and the shortest such chain.
    pub fn first(&self, program: &Program) -> Option<Found> {
        let commits = program.commits().iter().map(|(state, node)| {
            (*node, format!("the state {:?} would not be finite", program.layout().state(*state).name))
        });
        let taps = program.taps().iter().map(|tap| (tap.node, format!("the tap {:?} is not finite", tap.name)));
        let results: Vec<(NodeId, String)> = taps.chain(commits).collect();
        let checks = (0..program.nodes().len()).filter_map(|i| {
            let node = &program.nodes()[i];
            let checked = matches!(node.op, Op::Unary(Unary::IsFinite)).then(|| node.inputs[0])?;
            Some((checked, "a check finds it, and the step is skipped".to_string()))
        });
        let any = |_: NodeId| true;
        self.leading_to(program, &results, &any).or_else(|| self.leading_to(program, &checks.collect::<Vec<_>>(), &any))
    }

    /// The first bad node that may begin a chain of bad nodes to one of these results, and the shortest such chain.
    pub fn leading_to(
        &self,
        program: &Program,
        results: &[(NodeId, String)],
        may_begin: &dyn Fn(NodeId) -> bool,
    ) -> Option<Found> {
        // Of each node the next one on the shortest way to a result, by breadth-first search from the results.
        let count = program.nodes().len();
        let mut next: Vec<Option<Option<NodeId>>> = vec![None; count];
        let mut open = std::collections::VecDeque::new();
        for (id, _) in results.iter().filter(|(id, _)| self.bad[id.index()]) {
            if next[id.index()].is_none() {
                next[id.index()] = Some(None);
                open.push_back(*id);
            }
        }
        while let Some(id) = open.pop_front() {
            for operand in self.bad_operands(program, id) {
                if next[operand.index()].is_none() {
                    next[operand.index()] = Some(Some(id));
                    open.push_back(operand);
                }
            }
        }
        let first = (0..count as u32).map(NodeId).find(|id| next[id.index()].is_some() && may_begin(*id))?;
        let mut chain = vec![first];
        while let Some(Some(id)) = next[chain[chain.len() - 1].index()] {
            chain.push(id);
        }
        let last = chain[chain.len() - 1];
        let (_, reaches) = results.iter().find(|(id, _)| *id == last).expect("it ends at a result");
        Some(Found { chain, reaches: reaches.clone() })
    }
}
