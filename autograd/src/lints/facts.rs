//! A recording's notes for its lints.

use crate::{
    Site,
    node::NodeId,
    pitfall::{Pitfall, Severity},
    store::StateId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A pitfall that a program, or a run, may have met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lint {
    /// The pitfall.
    pub pitfall: Pitfall,
    /// Its severity here.
    pub severity: Severity,
    /// The finding, and the cure.
    pub message: String,
    /// The line that it is about; `None` if only a run shows it.
    pub site: Option<Site>,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.pitfall.code(), self.severity, self.message)?;
        self.site.map_or(Ok(()), |site| write!(f, " ({site})"))
    }
}

/// A mark for a property of nodes that their op does not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// The output of a recurrent layer.
    Recurrent,
    /// The scores of attention.
    Attention,
    /// Statistics of a batch.
    BatchStatistics,
    /// The number of targets that a mean is over, if some are ignored.
    TokenCount,
    /// The input of a loss over classes.
    Logits,
}

/// A recording's notes for its lints.
#[derive(Default)]
pub(crate) struct Facts {
    pub notes: Vec<Lint>,
    pub marks: Vec<(NodeId, Mark)>,
    /// The losses whose gradients have been taken.
    pub losses: Vec<NodeId>,
    /// The verdicts that steps follow.
    pub verdicts: Vec<NodeId>,
    /// The line of the last assignment to each state.
    pub assigned: BTreeMap<StateId, Site>,
    /// The draws from generators.
    pub drawn: Vec<Drawn>,
    /// True if the gradient that is being recorded is one of a scaled loss.
    pub scaled_sweep: bool,
}

impl Facts {
    /// Remembers the line that last gave a state a value.
    pub(crate) fn assign(&mut self, state: StateId, site: Site) {
        self.assigned.insert(state, site);
    }
}

/// A draw from a generator on a tape.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub key: StateId,
    pub counter: StateId,
    pub stream: u64,
    pub node: NodeId,
    pub site: Site,
}

/// The draws of a program, and the facts that their lints need.
#[derive(Clone, Default, Debug)]
pub(crate) struct Drawing {
    pub drawn: Vec<Drawn>,
    /// The states that the program commits, among them the counters that it advances.
    pub moved: BTreeSet<StateId>,
    pub trains: bool,
}
