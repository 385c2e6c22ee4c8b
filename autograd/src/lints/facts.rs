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
    /// The line that it is about; `None` for what only a run shows.
    pub site: Option<Site>,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.pitfall.code(), self.severity, self.message)?;
        self.site.map_or(Ok(()), |site| write!(f, " ({site})"))
    }
}

/// The mark of an operation's nodes, where no op says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// The output of a recurrent layer.
    Recurrent,
    /// The scores of attention.
    Attention,
    /// Statistics of a batch.
    BatchStatistics,
    /// The number of targets that a mean is over, where some are ignored.
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
    /// The steps that have followed.
    pub verdicts: Vec<NodeId>,
    /// The place where each state was given a value last.
    pub assigned: BTreeMap<StateId, Site>,
    /// Random numbers that generators have given.
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

/// Numbers that a generator has given on a tape.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub key: StateId,
    pub counter: StateId,
    pub stream: u64,
    pub node: NodeId,
    pub site: Site,
}

/// The random numbers of a program, and what they depend on.
#[derive(Clone, Default, Debug)]
pub(crate) struct Drawing {
    pub drawn: Vec<Drawn>,
    /// The counters that it moves on.
    pub moved: BTreeSet<StateId>,
    pub trains: bool,
}
