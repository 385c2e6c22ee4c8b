//! A value that travels in pieces while this rank computes the rest of it. Rank `k` reduces the `k`-th stretch of each piece, and
//! tells the others the result.

use crate::{
    message::{Message, bytes_of, data_from, place},
    world::stretch,
};
use std::{collections::BTreeMap, ops::Range};
use wgrad::{
    DType, Data,
    collective::{Early, reduce_into},
    op::Reduce,
};

/// The most bytes of a stretch of a piece. With what comes before them, a message stays below 64 KiB: through a network
/// Open MPI sends such a message without asking the receiver first, who is computing.
const STRETCH: usize = 60 << 10;

/// The elements of a piece.
pub fn elements(dtype: DType, ranks: usize) -> usize {
    STRETCH / dtype.size() * ranks
}

/// The pieces of a value, in order.
fn ranges(dtype: DType, len: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let piece = elements(dtype, ranks);
    (0..len.div_ceil(piece)).map(move |i| i * piece..((i + 1) * piece).min(len))
}

/// The place of a piece: the value's number in its exchange, and the piece's in the value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct At {
    pub part: u32,
    pub index: u32,
}

/// The pieces of one exchange.
pub struct Pieces {
    rank: usize,
    ranks: usize,
    turn: u64,
    pieces: BTreeMap<At, Piece>,
}

/// A piece, as far as it is here.
#[derive(Default)]
struct Piece {
    /// This rank's, until it is reduced.
    own: Option<(Reduce, Data)>,
    /// The other ranks' values of the stretch that this rank reduces.
    of_others: BTreeMap<usize, Vec<u8>>,
    /// The type, once this rank has its part.
    dtype: Option<DType>,
    /// The results of each rank's stretch.
    totals: BTreeMap<usize, Vec<u8>>,
    len: usize,
}

impl Pieces {
    /// Those of an exchange.
    pub fn new((rank, ranks): (usize, usize), turn: u64) -> Self {
        Self { rank, ranks, turn, pieces: BTreeMap::new() }
    }

    /// The exchange.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// The values that this rank has begun, as bits.
    pub fn begun(&self) -> u64 {
        let begun = self.pieces.iter().filter(|(_, piece)| piece.dtype.is_some());
        begun.fold(0, |begun, (at, _)| begun | 1u64.checked_shl(at.part).unwrap_or(0))
    }

    /// Begins a piece of this rank. Returns what is to be sent, and to whom.
    pub fn begin(&mut self, early: Early) -> Vec<(usize, Message)> {
        let Early { part, index, reduce, data } = early;
        let at = At { part, index };
        let piece = self.pieces.entry(at).or_default();
        (piece.len, piece.dtype) = (data.len(), Some(data.dtype()));
        let mut sent = vec![];
        for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
            let (of, size) = (stretch(data.len(), rank, self.ranks), data.dtype().size());
            let bytes = bytes_of(&data)[of.start * size..of.end * size].to_vec();
            sent.push((rank, Message::Piece { turn: self.turn, at, total: false, bytes }));
        }
        piece.own = Some((reduce, data));
        sent.extend(self.reduced(at));
        sent
    }

    /// Takes in what another rank has sent. Returns what is to be sent because of it.
    pub fn take_in(&mut self, rank: usize, at: At, total: bool, bytes: Vec<u8>) -> Vec<(usize, Message)> {
        let piece = self.pieces.entry(at).or_default();
        if total {
            piece.totals.insert(rank, bytes);
            return vec![];
        }
        piece.of_others.insert(rank, bytes);
        self.reduced(at)
    }

    /// Reduces this rank's stretch of a piece if all ranks' values are here. Returns the messages that tell the others.
    fn reduced(&mut self, at: At) -> Vec<(usize, Message)> {
        let (own, ranks) = (self.rank, self.ranks);
        let Some(piece) = self.pieces.get_mut(&at) else { return vec![] };
        if piece.of_others.len() + 1 < ranks {
            return vec![];
        }
        let Some((reduce, data)) = piece.own.take() else { return vec![] };
        let range = stretch(data.len(), own, ranks);
        let of = |rank: usize| match rank == own {
            true => Some(data.slice(range.clone())),
            false => data_from(&mut &piece.of_others[&rank][..], data.dtype(), range.len()),
        };
        // Values of another length are those of another program, which the exchange itself refuses.
        let Some(all) = (0..ranks).map(of).collect::<Option<Vec<Data>>>() else { return vec![] };
        let mut all = all.into_iter();
        let mut total = all.next().expect("there is at least one rank");
        if !reduce_into(reduce, &mut total, all) {
            return vec![];
        }
        piece.of_others.clear();
        let bytes = bytes_of(&total).to_vec();
        piece.totals.insert(own, bytes.clone());
        let tell = |rank| (rank, Message::Piece { turn: self.turn, at, total: true, bytes: bytes.clone() });
        (0..ranks).filter(|rank| *rank != own).map(tell).collect()
    }

    /// The pieces of a value that this rank has not begun.
    pub fn missing(&self, part: u32, dtype: DType, len: usize) -> Vec<(u32, Range<usize>)> {
        let is_begun = |index| self.pieces.get(&At { part, index }).is_some_and(|piece| piece.dtype.is_some());
        let all = ranges(dtype, len, self.ranks).enumerate().map(|(index, range)| (index as u32, range));
        all.filter(|(index, _)| !is_begun(*index)).collect()
    }

    /// A rank whose result of a value is not here yet.
    pub fn waits_for(&self, part: u32, dtype: DType, len: usize) -> Option<usize> {
        ranges(dtype, len, self.ranks).enumerate().find_map(|(index, _)| {
            let totals = self.pieces.get(&At { part, index: index as u32 }).map(|piece| &piece.totals);
            (0..self.ranks).find(|rank| totals.is_none_or(|totals| !totals.contains_key(rank)))
        })
    }

    /// Writes the results over a value, all of whose pieces are here; false if one has another length.
    pub fn place(&mut self, part: u32, data: &mut Data) -> bool {
        ranges(data.dtype(), data.len(), self.ranks).enumerate().all(|(index, range)| {
            let piece = self.pieces.remove(&At { part, index: index as u32 }).unwrap_or_default();
            piece.totals.iter().all(|(rank, bytes)| {
                let of = stretch(range.len(), *rank, self.ranks);
                let total = data_from(&mut &bytes[..], data.dtype(), of.len());
                total.is_some_and(|total| {
                    place(data, range.start + of.start, &total, 0..of.len());
                    true
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgrad::collective::reduced;

    /// Three ranks whose messages come in any order, and one of which begins after it has heard of the others.
    #[test]
    fn pieces_are_the_reduction_of_the_whole() {
        const RANKS: usize = 3;
        for len in [0, 1, 2, 7, elements(DType::F32, RANKS), elements(DType::F32, RANKS) + 5] {
            let value = |rank: usize| Data::F32((0..len).map(|i| (i * 7 + rank * 3) as f32 * 0.1).collect());
            let mut ranks: Vec<Pieces> = (0..RANKS).map(|rank| Pieces::new((rank, RANKS), 4)).collect();
            let mut under_way = vec![];
            for rank in [2, 0, 1] {
                for (index, range) in ranks[rank].missing(0, DType::F32, len).into_iter().rev() {
                    let early = Early { part: 0, index, reduce: Reduce::Sum, data: value(rank).slice(range) };
                    under_way.extend(ranks[rank].begin(early).into_iter().map(|(to, message)| (rank, to, message)));
                }
                assert!(ranks[rank].missing(0, DType::F32, len).is_empty());
                while let Some((from, to, Message::Piece { turn: 4, at, total, bytes })) = under_way.pop() {
                    let more = ranks[to].take_in(from, at, total, bytes);
                    under_way.extend(more.into_iter().map(|(next, message)| (to, next, message)));
                }
            }
            let want = reduced(Reduce::Sum, (0..RANKS).map(value)).expect("they fit");
            for (rank, pieces) in ranks.iter_mut().enumerate() {
                assert_eq!((pieces.waits_for(0, DType::F32, len), pieces.begun()), (None, u64::from(len > 0)));
                let mut have = value(rank);
                assert!(pieces.place(0, &mut have));
                assert_eq!(have, want, "rank {rank}, {len} elements");
            }
        }
    }

    #[test]
    fn a_value_of_another_length_is_never_complete() {
        let mut pieces = Pieces::new((0, 2), 1);
        let at = At { part: 0, index: 0 };
        assert!(pieces.take_in(1, at, false, vec![0; 3]).is_empty());
        let data = Data::F32(vec![1.0; 4]);
        assert_eq!(
            pieces.begin(Early { part: 0, index: 0, reduce: Reduce::Sum, data }).len(),
            1,
            "its own stretch alone"
        );
        assert_eq!(pieces.waits_for(0, DType::F32, 4), Some(0));
        pieces.take_in(1, at, true, vec![0; 3]);
        assert!(!pieces.place(0, &mut Data::F32(vec![1.0; 4])));
    }
}
