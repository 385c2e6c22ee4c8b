//! Replicas that train together: the interface of an engine that connects them, and the exchange of values through it.
//!
//! Each replica, a *rank*, is a session of its own, with its own device, that runs the same programs at the same time.
//! [`crate::Session::with_collective`] makes a session a rank. At an all-reduce, the plan of a program is cut: the
//! kernels before run, the values meet those of the other ranks, and the kernels after run
//! ([`crate::plan::Plan::exchanges`]).

use crate::{
    DType, Data, Error, Pitfall, Result,
    op::{Op, Reduce},
    random::fnv1a,
    tape::Tape,
    tensor::Tensor,
};

/// A connection to the other ranks. All ranks make the same calls in the same order.
pub trait Collective: Send {
    /// The number of this rank, from 0 on.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Replaces the data by its elementwise reduction over all ranks: the sum (f16 is rounded once), or the maximum.
    /// The data has the same type and length on all ranks, and the same bits afterwards.
    ///
    /// # Errors
    /// If a rank is lost, or has failed ([`Collective::abort`]); on all ranks that take part.
    fn all_reduce(&mut self, reduce: Reduce, data: &mut Data) -> Result<()>;

    /// Says that this rank does not take part in the exchange that is due, because its run has failed: the exchange
    /// then fails on the other ranks. After that all ranks can go on.
    fn abort(&mut self);
}

/// A rank without others: the default of a session.
#[derive(Clone, Copy, Default, Debug)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _: Reduce, _: &mut Data) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// One value of an exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    /// The way it is reduced.
    pub reduce: Reduce,
    /// A hash of the set of parameters with a gradient, which must be equal on all ranks.
    pub tag: u64,
    /// The value.
    pub data: Data,
}

/// Exchanges values that are due together. A backend calls it between the kernels before the exchange and those after.
///
/// The ranks first compare what they are about to exchange, so that a program or a set of gradients that differs
/// between them is an error on all, and never a sum of unlike things.
///
/// # Errors
/// [`Error::RanksDiffer`] if the ranks are about to exchange different things; [`Pitfall::MissingGradient`] if
/// different parameters have gradients on them; as [`Collective::all_reduce`].
pub fn exchange(collective: &mut dyn Collective, parts: &mut [Exchange]) -> Result<()> {
    let layout = |part: &Exchange| format!("{:?} {} {};", part.reduce, part.data.dtype(), part.data.len());
    let layout = fnv1a(&parts.iter().map(layout).collect::<String>());
    let tags = fnv1a(&parts.iter().map(|part| format!("{:x};", part.tag)).collect::<String>());
    match agree(collective, [layout, tags])? {
        [true, true] => {}
        [false, _] => return Err(Error::RanksDiffer),
        [true, false] => {
            let subject = "the ranks have gradients of different parameters".into();
            return Err(Error::Pitfall { pitfall: Pitfall::MissingGradient, subject, site: None });
        }
    }
    parts.iter_mut().try_for_each(|part| collective.all_reduce(part.reduce, &mut part.data))
}

/// The number of calls that an exchange of `parts` values makes.
pub(crate) fn calls(parts: usize) -> usize {
    parts + 1
}

/// For each word, true if it is the same on all ranks: the largest and the smallest are this rank's.
///
/// # Errors
/// As [`Collective::all_reduce`].
pub(crate) fn agree<const N: usize>(collective: &mut dyn Collective, words: [u64; N]) -> Result<[bool; N]> {
    let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    let own: Vec<u32> = halves.flat_map(|half| [half, !half]).collect();
    let mut all = Data::U32(own.clone());
    collective.all_reduce(Reduce::Max, &mut all)?;
    let Data::U32(all) = all else { return Err(Error::RanksDiffer) };
    Ok(std::array::from_fn(|i| own[4 * i..][..4] == all[4 * i..][..4]))
}

/// Counts the calls that a run has made, so that a session knows whether the others still wait for this rank.
pub(crate) struct Counted<'a> {
    pub collective: &'a mut dyn Collective,
    pub calls: usize,
    /// True if one of them has failed: then it has failed on all ranks.
    pub failed: bool,
}

impl Collective for Counted<'_> {
    fn rank(&self) -> usize {
        self.collective.rank()
    }

    fn ranks(&self) -> usize {
        self.collective.ranks()
    }

    fn all_reduce(&mut self, reduce: Reduce, data: &mut Data) -> Result<()> {
        self.calls += 1;
        let result = self.collective.all_reduce(reduce, data);
        self.failed |= result.is_err();
        result
    }

    fn abort(&mut self) {
        self.collective.abort();
    }
}

impl Tape {
    /// The number of ranks that run this program together.
    pub fn ranks(&self) -> usize {
        self.ranks
    }
}

impl<'t> Tensor<'t> {
    /// The sum over all ranks, the same on each; with a single rank, this tensor. Its gradient is the sum of all ranks'
    /// cotangents.
    ///
    /// # Panics
    /// If the elements are bools.
    #[track_caller]
    pub fn sum_over_ranks(self) -> Self {
        self.over_ranks(Reduce::Sum, 0)
    }

    /// For bools, element by element: true if it is true on any rank.
    ///
    /// # Panics
    /// If the elements are not bools.
    #[track_caller]
    pub fn any_over_ranks(self) -> Self {
        let dtype = self.dtype();
        assert!(dtype == DType::Bool, "any_over_ranks: {dtype} is no truth value{}", self.tape.recorded_at());
        self.over_ranks(Reduce::Max, 0)
    }

    /// The reduction over all ranks, which must agree on the tag.
    #[track_caller]
    pub(crate) fn over_ranks(self, reduce: Reduce, tag: u64) -> Self {
        if self.tape.ranks == 1 {
            return self;
        }
        self.tape.push(Op::AllReduce(reduce, tag), &[self])
    }
}
