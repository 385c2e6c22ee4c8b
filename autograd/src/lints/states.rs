//! States that a non-finite step would spoil: states that do not follow its verdict, and parameters stepped without a
//! verdict.

use super::Walk;
use crate::{
    Tensor,
    grads::{Grads, Unscaled},
    node::{Node, NodeId, Scope},
    op::{Binary, Op, Unary},
    pitfall::Pitfall,
    recorded::PassKind,
    tape::Tape,
};
use std::collections::HashSet;

impl Tape {
    /// Remembers the verdict that a step follows, and notes a lint about unchecked gradients.
    #[track_caller]
    pub(crate) fn note_step(&self, grads: &Grads<'_, Unscaled>, optimizer: &str) {
        self.inner.borrow_mut().facts.verdicts.extend(grads.verdict().map(Tensor::id));
        if !grads.history.borrow().judged {
            let text = format!(
                "{optimizer} steps with gradients that nobody has checked: one NaN among them, and its parameters are NaN; \
                 check them by `check_finite`, or clip them by their norm"
            );
            self.note(Pitfall::UncheckedStep, Pitfall::UncheckedStep.severity(), text);
        }
    }

    /// True if a value is computed from gradients: these, or any others of a sweep on this tape.
    pub(crate) fn looks_at(&self, value: Tensor<'_>, gradients: &[Tensor<'_>]) -> bool {
        let inner = &*self.inner.borrow();
        let (read, swept) = (reads(&inner.nodes, value.id), swept(&inner.scopes));
        let in_sweep = |(node, read): (&Node, &bool)| *read && swept[node.scope.0 as usize];
        gradients.iter().any(|g| read[g.id.index()]) || inner.nodes.iter().zip(&read).any(in_sweep)
    }
}

/// Marks the scopes of reverse sweeps.
fn swept(scopes: &[Scope]) -> Vec<bool> {
    let mut swept = vec![false; scopes.len()];
    for (i, scope) in scopes.iter().enumerate() {
        swept[i] = scope.name == "backward" || swept[scope.parent.0 as usize];
    }
    swept
}

/// Marks the nodes that a value is computed from, its own among them.
fn reads(nodes: &[Node], value: NodeId) -> Vec<bool> {
    let mut read = vec![false; nodes.len()];
    read[value.index()] = true;
    for i in (0..nodes.len()).rev().filter(|i| *i <= value.index()) {
        if read[i] {
            nodes[i].inputs.iter().for_each(|input| read[input.index()] = true);
        }
    }
    read
}

/// P51: a state whose next value depends on its last one, and on a value that may be non-finite if the step is skipped.
pub(super) fn ungated_states(walk: &mut Walk<'_>) {
    if walk.facts.verdicts.is_empty() {
        return;
    }
    let program = walk.program;
    let spoilt = spoilt(walk);
    // Steps and accumulators guard their own states.
    let passes = program.passes.iter().filter(|pass| matches!(pass.kind, PassKind::Step | PassKind::Accumulate));
    let own: Vec<NodeId> = passes.flat_map(|pass| &pass.outputs).copied().collect();
    for &(state, value) in program.commits().iter().filter(|(_, value)| spoilt[value.index()] && !own.contains(value)) {
        let read = reads(program.nodes(), value);
        let keeps = program.nodes().iter().zip(read).any(|(node, read)| read && node.op == Op::State(state));
        let Some(&site) = walk.facts.assigned.get(&state).filter(|_| keeps) else { continue };
        let name = &program.layout().state(state).name;
        let text = format!(
            "state {name:?} takes in what a skipped step has computed, and keeps it; give it the value by `Grads::assign`, \
             which follows the verdict"
        );
        walk.report(Pitfall::StateOfSkippedStep, site, text);
    }
}

/// Marks the nodes that may be NaN or infinite in a run whose step is skipped for that reason.
fn spoilt(walk: &Walk<'_>) -> Vec<bool> {
    let program = walk.program;
    let taken =
        program.passes.iter().filter(|pass| pass.kind == PassKind::TakeAccumulated).flat_map(|pass| &pass.outputs);
    let sources: HashSet<NodeId> = walk.facts.losses.iter().chain(taken).copied().collect();
    let swept = swept(&program.scopes);
    let of = |all: &[bool], node: &Node| node.inputs.iter().any(|input| all[input.index()]);
    let len = program.nodes().len();
    let (mut spoilt, mut tells, mut compares) = (vec![false; len], vec![false; len], vec![false; len]);
    for (i, node) in program.nodes().iter().enumerate() {
        let id = NodeId(i as u32);
        let exact = !node.dtype.is_float();
        // These nodes tell if something is finite, or if the step is taken.
        tells[i] = matches!(node.op, Op::Unary(Unary::IsFinite))
            || walk.facts.verdicts.contains(&id)
            || of(&tells, node) && (exact || matches!(node.op, Op::Cast(_) | Op::Exchange(..)));
        // A comparison with NaN is false.
        let is_comparison = matches!(node.op, Op::Binary(Binary::Lt | Binary::Eq));
        compares[i] = exact && (is_comparison && of(&spoilt, node) || of(&compares, node));
        let input = |k: usize| node.inputs[k].index();
        spoilt[i] = match node.op {
            _ if exact => false,
            Op::Input(_) => true,
            Op::Select if tells[input(0)] => false,
            Op::Select if compares[input(0)] => spoilt[input(2)],
            _ => of(&spoilt, node) || sources.contains(&id) || !node.inputs.is_empty() && swept[node.scope.0 as usize],
        };
    }
    spoilt
}
