//! A session among ranks: what they must have in common, and when they are compared.

use super::{Session, Step};
use crate::{
    Error, Node, NodeId, Pitfall, Program,
    collective::{Difference, Stamp, agree},
    error::Result,
    lints::same_on_all_ranks,
    op::Op,
    random::{FNV_OFFSET, fnv1a, fnv1a_bytes},
    store::{ParamDecl, StateId},
};
use std::sync::{LazyLock, atomic::Ordering};

/// The number of runs with exchanges from one comparison of parameters to the next.
pub(super) const COMPARED_EVERY: u64 = 64;

static VERSION: LazyLock<u64> = LazyLock::new(|| fnv1a(env!("CARGO_PKG_VERSION")));

/// The facts that ranks must have in common to run a program. The words of the values are left to the backend.
pub(super) fn stamp(program: &Program) -> Stamp {
    let mut stamp = Stamp::default();
    if program.ranks() > 1 {
        stamp.set(Difference::Version, *VERSION);
        let layout = program.layout();
        let declared = |hash, (_, decl): (_, &ParamDecl)| {
            let dtype = layout.state(decl.arena).dtype;
            fnv1a_bytes(hash, format!("{} {dtype}{};", decl.path, decl.shape).into_bytes())
        };
        stamp.set(Difference::Declarations, layout.params().fold(FNV_OFFSET, declared));
        stamp.set(Difference::Gradients, gradients(program));
        stamp.set(Difference::Program, behaviour(program));
    }
    stamp
}

/// A hash of the sets of parameters with a gradient, or 0 if none is exchanged.
fn gradients(program: &Program) -> u64 {
    let tags = program.nodes().iter().filter_map(|node| match node.op {
        Op::Exchange(_, tag) if tag != 0 => Some(tag),
        _ => None,
    });
    tags.fold(0, |hash, tag| fnv1a_bytes(hash, tag.to_le_bytes()))
}

/// A hash of what a program does: how each state is computed from what the ranks have exchanged, and, in their order, the
/// operations before that which say most of a model. A rank may have batches of its own size, so shapes and constants count
/// after an exchange alone.
fn behaviour(program: &Program) -> u64 {
    let nodes = program.nodes();
    let mut live = vec![false; nodes.len()];
    program.commits().iter().for_each(|(_, node)| live[node.index()] = true);
    for (i, node) in nodes.iter().enumerate().rev().filter(|(_, node)| !node.inputs.is_empty()) {
        if live[i] {
            node.inputs.iter().for_each(|input| live[input.index()] = true);
        }
    }
    let any = |of: &[bool], node: &Node| node.inputs.iter().any(|input| of[input.index()]);
    let (mut met, mut own) = (vec![false; nodes.len()], vec![false; nodes.len()]);
    let (mut values, mut hash) = (vec![0; nodes.len()], FNV_OFFSET);
    for (i, node) in nodes.iter().enumerate() {
        met[i] = matches!(node.op, Op::Exchange(..)) || any(&met, node);
        own[i] = !met[i] && (matches!(node.op, Op::Input(_)) || any(&own, node));
        if own[i] {
            if live[i] && tells(&node.op) {
                hash = fnv1a_bytes(hash, format!("{};", node.op.name()).into_bytes());
            }
            continue;
        }
        let (text, inputs): (String, &[NodeId]) = match &node.op {
            // Its tag is a word of its own, and a rank brings to it what it likes.
            Op::Exchange(way, _) => (format!("{way:?}"), &[]),
            // Ranks that declare the same states have other numbers for them.
            Op::State(id) => (format!("{:?}", program.layout().state(*id).name), &[]),
            op => (format!("{op:?}"), &node.inputs),
        };
        let value = fnv1a_bytes(FNV_OFFSET, format!("{text} {}{}", node.dtype, node.shape).into_bytes());
        let of = |value, input: &NodeId| fnv1a_bytes(value, u64::to_le_bytes(values[input.index()]));
        values[i] = inputs.iter().fold(value, of);
    }
    let commits = program.commits().iter().filter(|(_, node)| met[node.index()]);
    commits.fold(hash, |hash, (_, node)| fnv1a_bytes(hash, values[node.index()].to_le_bytes()))
}

/// True if an operation is the same whatever the size of a batch. Sums, movement and arithmetic may fall away where a rank
/// has a single row.
fn tells(op: &Op) -> bool {
    let depends = matches!(
        op,
        Op::Input(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Reduce(..)
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Expand(_)
            | Op::Slice { .. }
            | Op::Assemble { .. }
            | Op::Barrier(_)
    );
    !depends
}

impl Session {
    /// Compares the parameters of all ranks, bit by bit, by a hash: each calls this at the same time. It reads them all, so
    /// it is for now and then.
    ///
    /// # Errors
    /// [`Error::Pitfall`] of [`Pitfall::ReplicaDrift`], on every rank, if they have drifted apart; if a rank or the device is lost.
    pub fn check_replicas(&mut self) -> Result<()> {
        let hash = self.parameters_hash()?;
        let mut stamp = Stamp::default();
        stamp.set(Difference::Version, *VERSION);
        stamp.set(Difference::Parameters, hash);
        self.collective.exchange(stamp, &mut [])
    }

    /// Compares the parameters of all ranks at the first run of programs that exchange values, and from then on in every
    /// `runs`-th of those runs, 64 by default: an error of [`Pitfall::ReplicaDrift`] then, before any state has changed. All
    /// ranks set the same number. Each time the parameters are read from the device and hashed.
    ///
    /// # Panics
    /// If the number is 0.
    pub fn check_replicas_every(&mut self, runs: u64) {
        assert!(runs > 0, "check_replicas_every: 0 runs");
        self.compared_every = runs;
    }

    /// Asks all ranks to stop after the same run. The wish travels with the first exchange of each run from now on:
    /// after that run [`Session::asked_to_stop`] is true on every rank. It changes nothing else, and cannot be taken
    /// back. Ranks may ask at different moments, as each does that gets a signal.
    ///
    /// ```
    /// # use wgrad::Session;
    /// # fn train(session: &mut Session, interrupted: impl Fn() -> bool, mut step: impl FnMut(&mut Session)) {
    /// while !session.asked_to_stop() {
    ///     if interrupted() {
    ///         session.ask_to_stop();
    ///     }
    ///     step(session);
    /// }
    /// # }
    /// ```
    pub fn ask_to_stop(&mut self) {
        self.asking = true;
    }

    /// True if a rank has asked to stop: on all ranks after the same run, or at once if there is a single rank.
    pub fn asked_to_stop(&self) -> bool {
        self.asked || (self.asking && self.ranks() == 1)
    }

    fn parameters_hash(&mut self) -> Result<u64> {
        let arenas: Vec<StateId> =
            self.layout.states().map(|(id, _)| id).filter(|id| self.layout.is_arena(*id)).collect();
        let read = |hash, arena: StateId| Ok(self.backend.read(self.buffers[arena.index()])?.hashed(hash));
        arenas.into_iter().try_fold(FNV_OFFSET, read)
    }

    /// The stamp of a run's exchanges, with the hash of the parameters when it is due.
    pub(super) fn stamped(&mut self, step: &Step) -> Result<Stamp> {
        let mut stamp = step.stamp;
        if step.exchanges > 0 && self.ranks() > 1 {
            if self.meetings.is_multiple_of(self.compared_every) {
                stamp.set(Difference::Parameters, self.parameters_hash()?);
            }
            self.meetings += 1;
        }
        Ok(stamp)
    }

    /// Before the first run of a program that ranks run together: gradient noise is the same on all of them, or they drift
    /// apart; other random numbers are better not.
    pub(super) fn compare_ranks(&mut self, step: &Step, failed: &mut bool) -> Result<()> {
        if step.executable.agreed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let program = &*step.program;
        let mut own = program.drawing.generators();
        // A program that exchanges nothing may be one rank's alone: no other rank would answer.
        own.retain(|key, _| step.exchanges > 0 && !program.shared.contains(key));
        let noise = self.hash_of(FNV_OFFSET, &program.shared)?;
        let mut words = vec![];
        for (key, (counter, streams, _)) in &own {
            let hash = self.hash_of(FNV_OFFSET, &[*key, *counter])?;
            words.push(fnv1a_bytes(hash, streams.iter().flat_map(|stream| stream.to_le_bytes())));
        }
        // Whatever goes wrong from here on does so on all ranks.
        *failed = true;
        if !program.shared.is_empty() && agree(&mut *self.collective, step.stamp, [noise])? == [false] {
            let subject = "gradient noise has another seed on each rank".into();
            return Err(Error::Pitfall { pitfall: Pitfall::NoiseOfOneReplica, subject, site: None });
        }
        let mut found = vec![];
        for (word, (key, (.., site))) in words.into_iter().zip(own) {
            if agree(&mut *self.collective, step.stamp, [word])? == [true] {
                found.push(same_on_all_ranks(&self.layout, key, site));
            }
        }
        *failed = false;
        step.executable.agreed.store(true, Ordering::Relaxed);
        if !found.is_empty() {
            step.executable.lints.get_or_init(|| [program.lints(), &found].concat());
            self.note(found);
        }
        Ok(())
    }

    /// The hash of what has this one so far, and some states.
    fn hash_of(&mut self, hash: u64, states: &[StateId]) -> Result<u64> {
        states.iter().try_fold(hash, |hash, state| Ok(self.read(*state)?.data().hashed(hash)))
    }
}
