//! A rank of a run, and how it tells the others that it has failed.

use super::Share;
use crate::Error;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use wgrad::{
    Collective, DType, Result, Session, Store,
    collective::{Early, Exchange, Stamp},
};

/// A rank of a run; by default one without others. All copies are the same rank: when the last is dropped, the rank
/// leaves.
#[derive(Clone, Default)]
pub struct Rank {
    share: Share,
    /// True if the ranks share out what optimizers keep.
    shards: bool,
    /// The connection to the others, if there are any.
    member: Option<Arc<Mutex<Member>>>,
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.share.fmt(f)
    }
}

/// A connection, and what the other ranks know of this one.
struct Member {
    engine: Box<dyn Collective>,
    known: Known,
}

/// The knowledge of the other ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// This rank takes part, as far as they know.
    Fine,
    /// It has said that it has failed. They learn of it when they come to the next exchange.
    Told,
    /// An exchange has failed on all ranks.
    Failed,
}

impl Rank {
    /// A rank with this connection to the others, which may share out what optimizers keep.
    pub fn new(engine: Box<dyn Collective>, shards: bool) -> Self {
        let share = Share { rank: engine.rank(), ranks: engine.ranks() };
        let member = (share.ranks > 1).then(|| Arc::new(Mutex::new(Member { engine, known: Known::Fine })));
        Self { share, shards, member }
    }

    /// The share of this rank in each batch.
    pub fn share(&self) -> Share {
        self.share
    }

    /// True if this rank prints and writes files.
    pub fn is_first(&self) -> bool {
        self.share.rank == 0
    }

    /// A store for the parameters of the run.
    pub fn store(&self) -> Store {
        let mut store = Store::new();
        if self.shards {
            store.shard(self.share.ranks);
        }
        store
    }

    /// The session as this rank of the run.
    #[must_use]
    pub fn join(&self, session: Session) -> Session {
        match &self.member {
            Some(member) => session.with_collective(Box::new(Joined { share: self.share, member: member.clone() })),
            None => session,
        }
    }

    /// Tells the other ranks that this one has failed, unless they know, and waits until one of them has ended because
    /// of it. If this rank left at once, the others would take it for lost.
    pub fn fail(&self) {
        let Some(member) = &self.member else { return };
        let mut member = locked(member);
        if member.known == Known::Fine {
            member.abort();
        }
        if member.known == Known::Told {
            // Nobody else comes to this exchange, unless all have failed.
            drop(member.exchange(Stamp::default(), &mut []));
        }
    }

    /// An error of this rank, which names it if there are others.
    pub fn named(&self, error: Error) -> Error {
        match self.share.ranks {
            1 => error,
            _ => Error::OfRank { rank: self.share.rank, source: Box::new(error) },
        }
    }
}

fn locked(member: &Mutex<Member>) -> MutexGuard<'_, Member> {
    member.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        let result = self.engine.exchange(stamp, parts);
        self.known = if result.is_ok() { Known::Fine } else { Known::Failed };
        result
    }

    fn abort(&mut self) {
        self.engine.abort();
        self.known = Known::Told;
    }
}

/// The connection as a session has it.
struct Joined {
    share: Share,
    member: Arc<Mutex<Member>>,
}

impl Collective for Joined {
    fn rank(&self) -> usize {
        self.share.rank
    }

    fn ranks(&self) -> usize {
        self.share.ranks
    }

    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        locked(&self.member).exchange(stamp, parts)
    }

    fn piece(&self, dtype: DType) -> Option<usize> {
        locked(&self.member).engine.piece(dtype)
    }

    fn begin(&mut self, early: Early) {
        locked(&self.member).engine.begin(early);
    }

    fn progress(&mut self) {
        locked(&self.member).engine.progress();
    }

    fn abort(&mut self) {
        locked(&self.member).abort();
    }
}
