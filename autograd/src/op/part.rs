//! Vectors that ranks share out: each has a stretch of its own. A program names no rank, so it is the same on all of
//! them; lowering for one of them replaces the operation by a slice, or by padding.

use crate::{Shape, Tensor, collective::Way, op::Op, store::ALIGN};
use serde::{Deserialize, Serialize};

/// A vector that is shared out among ranks, in stretches of one length. The last ones end in zeros, beyond its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The number of elements of the whole.
    pub whole: usize,
    /// The number of ranks.
    pub ranks: usize,
}

/// From the whole to a rank's stretch, or back; each is the transpose of the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Part {
    /// The rank's stretch of the whole.
    Taken(Share),
    /// The whole, with the rank's stretch in its place and zeros in those of others.
    Placed(Share),
}

impl Share {
    /// The number of elements of a stretch: as few as hold the whole, in steps of [`ALIGN`], as segments are.
    pub fn part(self) -> usize {
        self.whole.div_ceil(self.ranks).next_multiple_of(ALIGN)
    }

    /// The first element of a rank's stretch, and the number of its elements before the end of the whole.
    pub(crate) fn place(self, rank: usize) -> (usize, usize) {
        let start = (rank * self.part()).min(self.whole);
        (start, self.part().min(self.whole - start))
    }

    /// This rank's stretch of a whole vector.
    #[track_caller]
    pub(crate) fn of<'t>(self, whole: Tensor<'t>) -> Tensor<'t> {
        whole.tape().push(Op::Part(Part::Taken(self)), &[whole])
    }

    /// The whole vector, from the stretches of all ranks.
    #[track_caller]
    pub(crate) fn whole<'t>(self, part: Tensor<'t>) -> Tensor<'t> {
        part.tape().push(Op::Exchange(Way::Gather(self.ranks), 0), &[part]).slice(0, 0, self.whole)
    }
}

impl Part {
    /// The name of the operation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Taken(_) => "part",
            Part::Placed(_) => "placed_part",
        }
    }

    /// The vector that is shared out.
    pub(crate) fn share(self) -> Share {
        let (Part::Taken(share) | Part::Placed(share)) = self;
        share
    }

    /// The gradient rule: the operation on cotangents.
    pub(crate) fn transposed(self) -> Self {
        match self {
            Part::Taken(share) => Part::Placed(share),
            Part::Placed(share) => Part::Taken(share),
        }
    }

    /// The shape of the result; refuses a vector of another length.
    pub(crate) fn takes(self, shape: &Shape) -> Result<Shape, String> {
        let (from, to) = match self {
            Part::Taken(share) => (share.whole, share.part()),
            Part::Placed(share) => (share.part(), share.whole),
        };
        if shape[..] == [from] { Ok([to].into()) } else { Err(format!("needs a vector of {from} elements")) }
    }

    /// The operation on one of the ranks, in terms of places.
    pub(crate) fn at<'t>(self, rank: usize, x: Tensor<'t>) -> Tensor<'t> {
        let share = self.share();
        let (start, len) = share.place(rank);
        match self {
            Part::Taken(_) => x.slice(0, start, len).pad(0, 0, share.part() - len),
            Part::Placed(_) => x.slice(0, 0, len).pad(0, start, share.whole - start - len),
        }
    }
}

impl<'t> Tensor<'t> {
    /// This rank's stretch of a vector that all ranks have: the `r`-th of as many stretches of one length as there are
    /// ranks, a multiple of 128, with zeros beyond the vector's end. With a single rank, this tensor.
    ///
    /// # Panics
    /// If it is not a vector.
    #[track_caller]
    pub fn part_of_rank(self) -> Self {
        let ranks = self.tape().ranks();
        if ranks == 1 { self } else { Share { whole: self.numel(), ranks }.of(self) }
    }

    /// The vectors of all ranks, which have one length, in the order of the ranks, the same on each; with a single rank,
    /// this tensor. Its gradient is this rank's stretch of the sum of all ranks' cotangents.
    ///
    /// # Panics
    /// If it is not a vector, or of bools.
    #[track_caller]
    pub fn concat_over_ranks(self) -> Self {
        let ranks = self.tape().ranks();
        if ranks == 1 { self } else { self.tape().push(Op::Exchange(Way::Gather(ranks), 0), &[self]) }
    }
}
