//! A session among ranks: what they must have in common, and when they are compared.

use super::{Session, Step};
use crate::{
    Error, Node, Pitfall, Program,
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

/// What the ranks must have in common to run a program. The words of the values are left to the backend.
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

/// A hash of the computation of all that a program changes. The operations that come after an exchange count with their
/// shapes and settings, as do the constants and states among their operands. Of the others, only the kind counts: each
/// rank may have batches of its own size.
fn behaviour(program: &Program) -> u64 {
    let nodes = program.nodes();
    let any = |of: &[bool], node: &Node| node.inputs.iter().any(|input| of[input.index()]);
    let (mut fed, mut whole, mut live) = (vec![false; nodes.len()], vec![false; nodes.len()], vec![false; nodes.len()]);
    for (i, node) in nodes.iter().enumerate() {
        fed[i] = matches!(node.op, Op::Input(_)) || any(&fed, node);
        whole[i] = matches!(node.op, Op::Exchange(..)) || any(&whole, node);
    }
    program.commits().iter().for_each(|(_, node)| live[node.index()] = true);
    for (i, node) in nodes.iter().enumerate().rev() {
        for input in node.inputs.iter().map(|input| input.index()) {
            live[input] |= live[i];
            // A rank brings to an exchange what it likes.
            whole[input] |= live[i] && whole[i] && !fed[input] && !matches!(node.op, Op::Exchange(..));
        }
    }
    let mut hash = FNV_OFFSET;
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        let text = match (&node.op, whole[i]) {
            // Its tag is a word of its own.
            (Op::Exchange(way, _), _) => format!("{way:?} {}{};", node.dtype, node.shape),
            // Ranks that declare the same states have other numbers for them.
            (Op::State(id), true) => format!("{:?};", program.layout().state(*id)),
            (op, true) => format!("{op:?} {}{};", node.dtype, node.shape),
            (op, false) => format!("{};", op.name()),
        };
        hash = fnv1a_bytes(hash, text.into_bytes());
    }
    hash
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
