//! Ranks that are threads of one process.

use crate::{
    Data, Error, Result,
    collective::{Collective, Exchange, Stamp, Way, judge, reduced},
    op::Reduce,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A rank among the threads of a process. Move each rank to a thread, and into a session there.
///
/// Values are added in the order of the ranks, in their own type (f16 values in f32, rounded once), so the result has
/// the same bits on every rank and in every run. A rank that is dropped makes every further exchange of the others an
/// error.
///
/// ```
/// use wgrad::{Collective, Data, InProcess, collective::{Exchange, Way, exchange}, op::Reduce};
/// let sums = std::thread::scope(|scope| {
///     let ranks = InProcess::world(3).into_iter().map(|mut rank| {
///         scope.spawn(move || {
///             let data = Data::F32(vec![rank.rank() as f32, 1.0]);
///             let mut part = [Exchange { way: Way::Reduce(Reduce::Sum), data }];
///             exchange(&mut rank, &mut part).map(|()| part[0].data.clone())
///         })
///     });
///     let ranks: Vec<_> = ranks.collect();
///     ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
/// });
/// assert_eq!(sums.expect("all have met"), vec![Data::F32(vec![3.0, 3.0]); 3]);
/// ```
#[derive(Debug)]
pub struct InProcess {
    rank: usize,
    ranks: usize,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct Meeting {
    table: Mutex<Table>,
    changed: Condvar,
}

/// A rank's part of an exchange.
#[derive(Debug)]
enum Brought {
    Values(Stamp, Vec<Exchange>),
    /// The rank does not take part.
    Nothing,
}

/// The end of an exchange, for those who wait.
#[derive(Clone, Debug)]
enum Outcome {
    /// The values that come of all, before a rank takes its stretches of those that are scattered.
    Values(Arc<Vec<Data>>),
    /// The stamps, which differ.
    Differ(Arc<Vec<Stamp>>),
    /// The rank that took no part, or whose values do not fit.
    Failed(usize),
}

#[derive(Debug)]
struct Table {
    brought: Vec<Option<Brought>>,
    /// The outcome of a complete exchange; kept until all waiting ranks have fetched it.
    outcome: Option<Outcome>,
    /// The number of ranks that have yet to fetch the outcome.
    waiting: usize,
    /// A rank that has left for good.
    lost: Option<usize>,
}

impl InProcess {
    /// This many ranks, connected with each other.
    ///
    /// # Panics
    /// If there are none.
    pub fn world(ranks: usize) -> Vec<Self> {
        assert!(ranks > 0, "a world has at least one rank");
        let brought = (0..ranks).map(|_| None).collect();
        let table = Table { brought, outcome: None, waiting: 0, lost: None };
        let meeting = Arc::new(Meeting { table: table.into(), changed: Condvar::new() });
        (0..ranks).map(|rank| Self { rank, ranks, meeting: meeting.clone() }).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.meeting.changed.wait(table).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts this rank's part on the table, once there is room for it; the last rank computes the outcome.
    fn bring(&self, brought: Brought) -> Result<MutexGuard<'_, Table>> {
        let mut table = self.table();
        while table.outcome.is_some() || table.brought[self.rank].is_some() {
            if let Some(rank) = table.lost.filter(|_| table.outcome.is_none()) {
                return Err(Error::RankLost { rank });
            }
            table = self.wait(table);
        }
        if let Some(rank) = table.lost {
            return Err(Error::RankLost { rank });
        }
        table.brought[self.rank] = Some(brought);
        if table.brought.iter().all(Option::is_some) {
            let all: Vec<Brought> = table.brought.iter_mut().filter_map(Option::take).collect();
            table.waiting = all.iter().filter(|brought| matches!(brought, Brought::Values(..))).count();
            // Nobody fetches the outcome of an exchange that nobody took part in.
            table.outcome = (table.waiting > 0).then(|| met(all));
            self.meeting.changed.notify_all();
        }
        Ok(table)
    }
}

impl Collective for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        let take = |part: &mut Exchange| {
            let empty = Data::zeros(part.data.dtype(), 0);
            Exchange { data: std::mem::replace(&mut part.data, empty), ..*part }
        };
        let mut table = self.bring(Brought::Values(stamp, parts.iter_mut().map(take).collect()))?;
        let outcome = loop {
            match (&table.outcome, table.lost) {
                (Some(outcome), _) => break outcome.clone(),
                (None, Some(rank)) => return Err(Error::RankLost { rank }),
                (None, None) => table = self.wait(table),
            }
        };
        table.waiting -= 1;
        if table.waiting == 0 {
            table.outcome = None;
            self.meeting.changed.notify_all();
        }
        drop(table);
        let values = match outcome {
            Outcome::Values(values) => values,
            Outcome::Differ(stamps) => return judge(&stamps),
            Outcome::Failed(rank) => return Err(Error::RankFailed { rank }),
        };
        for (part, whole) in parts.iter_mut().zip(&*values) {
            part.data = match part.way {
                Way::Reduce(_) | Way::Gather(_) => whole.clone(),
                Way::Scatter(_) => {
                    let len = whole.len() / self.ranks;
                    whole.slice(self.rank * len..(self.rank + 1) * len)
                }
            };
        }
        Ok(())
    }

    fn abort(&mut self) {
        // If a rank is lost, nobody is waiting any more.
        drop(self.bring(Brought::Nothing));
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.table().lost.get_or_insert(self.rank);
        self.meeting.changed.notify_all();
    }
}

/// The outcome of a meeting that all ranks have come to.
fn met(all: Vec<Brought>) -> Outcome {
    let ranks = all.len();
    let (mut stamps, mut values) = (vec![], vec![]);
    for (rank, brought) in all.into_iter().enumerate() {
        let Brought::Values(stamp, parts) = brought else { return Outcome::Failed(rank) };
        stamps.push(stamp);
        values.push(parts);
    }
    if judge(&stamps).is_err() {
        return Outcome::Differ(stamps.into());
    }
    let ways: Vec<Way> = values[0].iter().map(|part| part.way).collect();
    let misfit = |parts: &Vec<Exchange>| !parts.iter().map(|part| part.way).eq(ways.iter().copied());
    if let Some(rank) = values.iter().position(misfit) {
        return Outcome::Failed(rank);
    }
    let mut values: Vec<_> = values.into_iter().map(Vec::into_iter).collect();
    let mut whole = vec![];
    for way in ways {
        let of_all = values.iter_mut().filter_map(Iterator::next).map(|part| part.data);
        let met = match way {
            Way::Reduce(reduce) => reduced(reduce, of_all),
            Way::Scatter(_) => reduced(Reduce::Sum, of_all).filter(|sum| sum.len().is_multiple_of(ranks)),
            Way::Gather(_) => Data::concat(of_all),
        };
        let Some(met) = met else { return Outcome::Failed(0) };
        whole.push(met);
    }
    Outcome::Values(whole.into())
}
