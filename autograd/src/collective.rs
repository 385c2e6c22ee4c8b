//! Replicas that train together: the interface of an engine that connects them, and the exchange of values through it.
//!
//! Each replica, a *rank*, is a session of its own, with its own device, that runs the same programs at the same time.
//! [`crate::Session::with_collective`] makes a session a rank. At an exchange, the plan of a program is cut: the
//! kernels before run, the values meet those of the other ranks, and the kernels after run
//! ([`crate::plan::Plan::exchanges`]).

use crate::{
    DType, Data, Error, Pitfall, Result, Shape,
    op::{Op, Reduce},
    random::fnv1a,
    tape::Tape,
    tensor::Tensor,
};
use serde::{Deserialize, Serialize};

pub use crate::reduction::{reduce_into, reduced};

/// A connection to the other ranks. All ranks make the same calls in the same order.
///
/// An engine carries bytes and nothing else: [`judge`] says whether the ranks may exchange values, and [`reduced`] adds
/// them up, the same on every engine.
pub trait Collective: Send {
    /// The number of this rank, from 0 on.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Brings values that are due together, and replaces each by what its [`Way`] makes of those of all ranks, with the
    /// same bits on every rank and on every engine.
    ///
    /// # Errors
    /// As [`judge`], before a value is replaced; if a rank is lost, or has failed ([`Collective::abort`]). The error is
    /// one of all ranks that take part.
    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()>;

    /// The length of the pieces, in elements, in which values of this type can travel before the exchange; `None` if
    /// they travel whole.
    fn piece(&self, _dtype: DType) -> Option<usize> {
        None
    }

    /// Begins to exchange a piece of a value that the next exchange brings whole. It may be called for some of the
    /// pieces, in any order, and not at all on other ranks: the results are the same. It waits for nobody, and what goes
    /// wrong is an error of the exchange.
    fn begin(&mut self, _early: Early) {}

    /// Lets what has begun move on. A backend calls it between kernels.
    fn progress(&mut self) {}

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

    fn exchange(&mut self, _: Stamp, _: &mut [Exchange]) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}
}

/// The use that an exchange makes of the values of all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Way {
    /// Their elementwise reduction, on every rank: the sum (f16 is rounded once), or the maximum. They have one length.
    Reduce(Reduce),
    /// The vectors of this many ranks, one after the other in the order of the ranks, on every rank. They have one
    /// length.
    Gather(usize),
    /// On rank `r` of this many, `n`, the `r`-th of `n` equal stretches of the elementwise sum of the ranks' vectors. They
    /// have one length, a multiple of `n`.
    Scatter(usize),
}

impl Way {
    /// The name of an exchange of this kind.
    pub fn name(self) -> &'static str {
        match self {
            Way::Reduce(_) => "all_reduce",
            Way::Gather(_) => "all_gather",
            Way::Scatter(_) => "reduce_scatter",
        }
    }

    /// The exchange of cotangents, if the loss is the sum of those of all ranks.
    pub(crate) fn adjoint(self) -> Self {
        match self {
            Way::Reduce(_) => self,
            Way::Gather(ranks) => Way::Scatter(ranks),
            Way::Scatter(ranks) => Way::Gather(ranks),
        }
    }

    /// The shape of the result; refuses values that cannot be exchanged so.
    pub(crate) fn takes(self, shape: &Shape, dtype: DType) -> std::result::Result<Shape, String> {
        match self {
            Way::Reduce(reduce) if reduce != Reduce::Sum && dtype != DType::Bool => {
                Err("an all-reduce sums numbers; only bools can be reduced by maximum".into())
            }
            Way::Reduce(reduce) => reduce.takes(dtype).map(|()| shape.clone()),
            Way::Gather(ranks) | Way::Scatter(ranks) => match shape[..] {
                [len] if matches!(self, Way::Gather(_)) || len.is_multiple_of(ranks) => {
                    Reduce::Sum.takes(dtype).map(|()| [self.length(len)].into())
                }
                _ => Err(format!("needs a vector whose length {ranks} ranks divide, not {shape}")),
            },
        }
    }

    /// The length of the result, of values of this length.
    pub fn length(self, len: usize) -> usize {
        match self {
            Way::Reduce(_) => len,
            Way::Gather(ranks) => len * ranks,
            Way::Scatter(ranks) => len / ranks,
        }
    }
}

/// One value of an exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    /// The way in which it is exchanged.
    pub way: Way,
    /// The value.
    pub data: Data,
}

/// A piece of a value, before the exchange that brings the whole value.
#[derive(Clone, PartialEq, Debug)]
pub struct Early {
    /// The number of the value among those of the exchange.
    pub part: u32,
    /// The number of the piece: it begins at as many times [`Collective::piece`], and only the last may be shorter.
    pub index: u32,
    /// The reduction of the value.
    pub reduce: Reduce,
    /// The elements.
    pub data: Data,
}

/// The facts that all ranks have in common when they exchange values: one word for each [`Difference`].
///
/// ```
/// use wgrad::collective::{Difference, Stamp, judge};
/// let mut stamps = vec![Stamp::default(); 3];
/// stamps[2].set(Difference::Program, 7);
/// let error = judge(&stamps).expect_err("one runs another program");
/// assert_eq!(error.to_string(), "rank 2 runs another program than rank 0");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stamp(pub [u64; Difference::ALL.len()]);

impl Stamp {
    /// The word for a difference.
    pub fn get(&self, difference: Difference) -> u64 {
        self.0[difference as usize]
    }

    /// Replaces the word for a difference.
    pub fn set(&mut self, difference: Difference, word: u64) {
        self.0[difference as usize] = word;
    }
}

/// A thing in which ranks must not differ. The first that they differ in is the one that an error tells of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Difference {
    /// The version of wgrad.
    Version,
    /// The parameters' names, shapes and types.
    Declarations,
    /// The set of parameters with a gradient. A word of 0 stands for a program without gradients, which is another program.
    Gradients,
    /// The program: what is done with the values, and the settings of that.
    Program,
    /// The types and lengths of the values, and what becomes of them.
    Values,
    /// The bits of the parameters, in the runs that compare them: see [`crate::Session::check_replicas_every`].
    Parameters,
}

impl Difference {
    /// All of them, in the order in which ranks are compared.
    pub const ALL: [Self; 6] =
        [Self::Version, Self::Declarations, Self::Gradients, Self::Program, Self::Values, Self::Parameters];
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Version => "is another version of wgrad than",
            Self::Declarations => "declares other parameters than",
            Self::Program => "runs another program than",
            Self::Values => "exchanges values of other types or lengths than",
            Self::Gradients => "has gradients of other parameters than",
            Self::Parameters => "has other values of parameters than",
        })
    }
}

/// Compares the stamps of all ranks, in their order. An engine calls it with the same stamps on every rank, before it
/// replaces a value, so that the error is one of all ranks.
///
/// # Errors
/// [`Error::RanksDiffer`], with the first difference and the first rank that differs from rank 0 in it. A difference in
/// gradients is [`Pitfall::MissingGradient`], one in the values of parameters [`Pitfall::ReplicaDrift`].
pub fn judge(stamps: &[Stamp]) -> Result<()> {
    for difference in Difference::ALL {
        let first = stamps[0].get(difference);
        let differs = |word| word != first && (difference != Difference::Gradients || (word != 0 && first != 0));
        let Some(rank) = stamps.iter().position(|stamp| differs(stamp.get(difference))) else { continue };
        let pitfall = match difference {
            Difference::Gradients => Pitfall::MissingGradient,
            Difference::Parameters => Pitfall::ReplicaDrift,
            _ => return Err(Error::RanksDiffer { rank, difference }),
        };
        return Err(Error::Pitfall { pitfall, subject: format!("rank {rank} {difference} rank 0"), site: None });
    }
    Ok(())
}

/// Exchanges values that are due together. A backend calls it between the kernels before the exchange and those after.
///
/// # Errors
/// As [`Collective::exchange`].
pub fn exchange(collective: &mut dyn Collective, parts: &mut [Exchange]) -> Result<()> {
    let layout = |part: &Exchange| format!("{:?} {} {};", part.way, part.data.dtype(), part.data.len());
    let mut stamp = Stamp::default();
    stamp.set(Difference::Values, fnv1a(&parts.iter().map(layout).collect::<String>()));
    collective.exchange(stamp, parts)
}

/// For each word, true if it is the same on all ranks, which run the program of this stamp: the largest and the smallest
/// are this rank's.
///
/// # Errors
/// As [`Collective::exchange`].
pub(crate) fn agree<const N: usize>(
    collective: &mut dyn Collective,
    stamp: Stamp,
    words: [u64; N],
) -> Result<[bool; N]> {
    let halves = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    let own: Vec<u32> = halves.flat_map(|half| [half, !half]).collect();
    let mut part = [Exchange { way: Way::Reduce(Reduce::Max), data: Data::U32(own.clone()) }];
    collective.exchange(stamp, &mut part)?;
    let [Exchange { data: Data::U32(all), .. }] = part else { unreachable!("an exchange keeps the type") };
    Ok(std::array::from_fn(|i| own[4 * i..][..4] == all[4 * i..][..4]))
}

/// Stamps the exchanges of a run, and counts them, so that a session knows whether the others still wait for this rank.
pub(crate) struct Counted<'a> {
    pub collective: &'a mut dyn Collective,
    /// The words that the session knows; that of the values is the backend's.
    pub stamp: Stamp,
    pub calls: usize,
    /// True if one of them has failed: then it has failed on all ranks.
    pub failed: bool,
    /// True if this rank asks all to stop. It travels with the first exchange.
    pub asks: bool,
    /// True if any rank has asked.
    pub asked: bool,
}

impl Counted<'_> {
    /// Exchanges the values together with the wish to stop.
    fn exchange_asking(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        let take = |part: &mut Exchange| {
            let empty = Data::zeros(part.data.dtype(), 0);
            Exchange { data: std::mem::replace(&mut part.data, empty), ..*part }
        };
        let mut all: Vec<Exchange> = parts.iter_mut().map(take).collect();
        all.push(Exchange { way: Way::Reduce(Reduce::Max), data: Data::Bool(vec![self.asks]) });
        self.collective.exchange(stamp, &mut all)?;
        let asked = all.pop().expect("it has been pushed").data;
        self.asked |= asked == Data::Bool(vec![true]);
        parts.iter_mut().zip(all).for_each(|(part, met)| *part = met);
        Ok(())
    }
}

impl Collective for Counted<'_> {
    fn rank(&self) -> usize {
        self.collective.rank()
    }

    fn ranks(&self) -> usize {
        self.collective.ranks()
    }

    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        self.calls += 1;
        let is_first = self.calls == 1 && self.ranks() > 1;
        let mut all = self.stamp;
        all.set(Difference::Values, stamp.get(Difference::Values));
        let result = if is_first { self.exchange_asking(all, parts) } else { self.collective.exchange(all, parts) };
        self.failed |= result.is_err();
        result
    }

    fn piece(&self, dtype: DType) -> Option<usize> {
        self.collective.piece(dtype)
    }

    fn begin(&mut self, early: Early) {
        self.collective.begin(early);
    }

    fn progress(&mut self) {
        self.collective.progress();
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

    /// The reduction over all ranks. The tag is a hash of the set of parameters with a gradient, or 0.
    #[track_caller]
    pub(crate) fn over_ranks(self, reduce: Reduce, tag: u64) -> Self {
        if self.tape.ranks == 1 {
            return self;
        }
        self.tape.push(Op::Exchange(Way::Reduce(reduce), tag), &[self])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InProcess;

    /// The sums of two exchanges of one run on each rank, and whether any rank has asked.
    fn run_on_all(ranks: usize, asks: impl Fn(usize) -> bool + Sync) -> Vec<(Vec<Data>, bool)> {
        let asks = &asks;
        let run = |mut rank: InProcess| {
            let (stamp, own) = (Stamp::default(), rank.rank());
            let mut counted =
                Counted { collective: &mut rank, stamp, calls: 0, failed: false, asks: asks(own), asked: false };
            let sums = (0..2).map(|_| {
                let data = Data::F32(vec![own as f32 + 1.0]);
                let mut part = [Exchange { way: Way::Reduce(Reduce::Sum), data }];
                exchange(&mut counted, &mut part).map(|()| part[0].data.clone())
            });
            let sums = sums.collect::<Result<Vec<_>>>().expect("all meet");
            (sums, counted.asked)
        };
        std::thread::scope(|scope| {
            let world = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || run(rank)));
            let world: Vec<_> = world.collect();
            world.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    #[test]
    fn a_wish_to_stop_reaches_all_ranks_with_the_first_exchange() {
        for asking in [None, Some(0), Some(2)] {
            for (sums, asked) in run_on_all(3, |rank| Some(rank) == asking) {
                assert_eq!(sums, vec![Data::F32(vec![6.0]); 2], "the values are as without it");
                assert_eq!(asked, asking.is_some());
            }
        }
        assert!(!run_on_all(1, |_| true)[0].1, "a rank alone exchanges nothing");
    }
}
