//! Ranks that are threads of one process.

use crate::{Data, Error, Result, collective::Collective, op::Reduce};
use ::half::f16;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A rank among the threads of a process. Move each rank to a thread, and into a session there.
///
/// Values are added in the order of the ranks, in their own type (f16 values in f32, rounded once), so the result has
/// the same bits on every rank and in every run. A rank that is dropped makes every further exchange of the others an
/// error.
///
/// ```
/// use wgrad::{Collective, Data, InProcess, op::Reduce};
/// let sums = std::thread::scope(|scope| {
///     let ranks = InProcess::world(3).into_iter().map(|mut rank| {
///         scope.spawn(move || {
///             let mut data = Data::F32(vec![rank.rank() as f32, 1.0]);
///             rank.all_reduce(Reduce::Sum, &mut data).map(|()| data)
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
    Data(Reduce, Data),
    /// The rank does not take part.
    Nothing,
}

#[derive(Debug)]
struct Table {
    brought: Vec<Option<Brought>>,
    /// The result of a complete exchange, or the rank that took no part; kept until all waiting ranks have fetched it.
    result: Option<std::result::Result<Data, usize>>,
    /// The number of ranks that have yet to fetch the result.
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
        let table = Table { brought, result: None, waiting: 0, lost: None };
        let meeting = Arc::new(Meeting { table: table.into(), changed: Condvar::new() });
        (0..ranks).map(|rank| Self { rank, ranks, meeting: meeting.clone() }).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.meeting.changed.wait(table).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts this rank's part on the table, once there is room for it; the last rank computes the result.
    fn bring(&self, brought: Brought) -> Result<MutexGuard<'_, Table>> {
        let mut table = self.table();
        while table.result.is_some() || table.brought[self.rank].is_some() {
            if let Some(rank) = table.lost.filter(|_| table.result.is_none()) {
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
            table.waiting = all.iter().filter(|brought| matches!(brought, Brought::Data(..))).count();
            // Nobody fetches the result of an exchange that nobody took part in.
            table.result = (table.waiting > 0).then(|| reduced(all));
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

    fn all_reduce(&mut self, reduce: Reduce, data: &mut Data) -> Result<()> {
        let empty = Data::zeros(data.dtype(), 0);
        let mut table = self.bring(Brought::Data(reduce, std::mem::replace(data, empty)))?;
        let result = loop {
            match (&table.result, table.lost) {
                (Some(result), _) => break result.clone(),
                (None, Some(rank)) => return Err(Error::RankLost { rank }),
                (None, None) => table = self.wait(table),
            }
        };
        table.waiting -= 1;
        if table.waiting == 0 {
            table.result = None;
            self.meeting.changed.notify_all();
        }
        *data = result.map_err(|rank| Error::RankFailed { rank })?;
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

/// The parts of all ranks, reduced in the order of the ranks; or the first rank that took no part, or whose part does
/// not fit.
fn reduced(all: Vec<Brought>) -> std::result::Result<Data, usize> {
    let mut total: Option<(Reduce, Wide)> = None;
    let mut dtype = None;
    for (rank, brought) in all.into_iter().enumerate() {
        let Brought::Data(reduce, data) = brought else { return Err(rank) };
        if *dtype.get_or_insert(data.dtype()) != data.dtype() {
            return Err(rank);
        }
        let data = Wide::of(data);
        match &mut total {
            None => total = Some((reduce, data)),
            Some((first, total)) => {
                if *first != reduce || !total.add(reduce, data) {
                    return Err(rank);
                }
            }
        }
    }
    let (_, total) = total.ok_or(0usize)?;
    Ok(total.into_data(dtype.ok_or(0usize)?))
}

/// Data while it is being added: f16 as f32.
enum Wide {
    F64(Vec<f64>),
    F32(Vec<f32>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    Bool(Vec<bool>),
}

impl Wide {
    fn of(data: Data) -> Self {
        match data {
            Data::F64(v) => Wide::F64(v),
            Data::F32(v) => Wide::F32(v),
            Data::F16(v) => Wide::F32(v.into_iter().map(f16::to_f32).collect()),
            Data::U32(v) => Wide::U32(v),
            Data::I32(v) => Wide::I32(v),
            Data::Bool(v) => Wide::Bool(v),
        }
    }

    fn into_data(self, dtype: crate::DType) -> Data {
        match self {
            Wide::F32(v) if dtype == crate::DType::F16 => Data::F16(v.into_iter().map(f16::from_f32).collect()),
            Wide::F64(v) => Data::F64(v),
            Wide::F32(v) => Data::F32(v),
            Wide::U32(v) => Data::U32(v),
            Wide::I32(v) => Data::I32(v),
            Wide::Bool(v) => Data::Bool(v),
        }
    }

    /// Combines with another rank's data, by sum or maximum; false if it does not fit.
    fn add(&mut self, reduce: Reduce, other: Self) -> bool {
        /// Combines element by element; false if the lengths differ.
        fn each<T: Copy>(a: &mut [T], b: &[T], f: impl Fn(T, T) -> T) -> bool {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, *b));
            a.len() == b.len()
        }
        /// The larger of two numbers; NaN if either is.
        macro_rules! larger {
            () => {
                |a, b| if a >= b || a.is_nan() { a } else { b }
            };
        }
        match (reduce, self, other) {
            (Reduce::Sum, Wide::F64(a), Wide::F64(b)) => each(a, &b, |a, b| a + b),
            (Reduce::Sum, Wide::F32(a), Wide::F32(b)) => each(a, &b, |a, b| a + b),
            (Reduce::Sum, Wide::U32(a), Wide::U32(b)) => each(a, &b, u32::wrapping_add),
            (Reduce::Sum, Wide::I32(a), Wide::I32(b)) => each(a, &b, i32::wrapping_add),
            (Reduce::Max, Wide::F64(a), Wide::F64(b)) => each(a, &b, larger!()),
            (Reduce::Max, Wide::F32(a), Wide::F32(b)) => each(a, &b, larger!()),
            (Reduce::Max, Wide::U32(a), Wide::U32(b)) => each(a, &b, u32::max),
            (Reduce::Max, Wide::I32(a), Wide::I32(b)) => each(a, &b, i32::max),
            (Reduce::Max, Wide::Bool(a), Wide::Bool(b)) => each(a, &b, |a, b| a || b),
            _ => false,
        }
    }
}
