//! The end of a recording: the tape becomes a program, with the findings of its lints.

use crate::{lints::facts::Drawing, program::Program, tape::Tape};

impl Tape {
    /// The program recorded so far, without the closures that recorded it.
    pub fn finish(self) -> Program {
        let inner = self.inner.into_inner();
        Program {
            nodes: inner.nodes,
            scopes: inner.scopes,
            inputs: inner.inputs,
            commits: inner.states.now.into_iter().collect(),
            taps: inner.taps,
            alarms: inner.training.alarms,
            passes: inner.training.passes,
            unreached: inner.training.unreached,
            lints: vec![],
            losses: vec![],
            logits: vec![],
            steep: vec![],
            events: inner.training.events,
            drawing: Drawing::default(),
            shared: if self.ranks > 1 { inner.chance.shared } else { vec![] },
            layout: self.layout,
            ranks: self.ranks,
        }
        .without_idle_commits()
        .with_lints(inner.facts)
    }
}
