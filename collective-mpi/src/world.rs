//! The exchange of values, and the end of a world.

use crate::{
    Error,
    message::{Message, Values, bytes_of, data_from, inlined, layout, place},
    pace::Pace,
    pieces::{At, Pieces, elements},
    wire::{Broken, Move, Wire},
};
use std::{collections::VecDeque, ops::Range, sync::Arc, time::Duration};
use wgrad::{
    Collective, DType, Data, Error as Lost, Result,
    collective::{Difference, Early, Exchange, Stamp, Way, judge, reduce_into, reduced},
    op::Reduce,
};

/// The time that a rank which has lost another waits, at its end, for the rest to do so too: the launcher ends all
/// processes when the first ends so, and each is to tell its error before that.
const PARTING: Duration = Duration::from_secs(2);

/// The number of exchanges for which memory of values that have come is kept.
const KEPT: u64 = 8;

/// This process as a rank among those that a launcher of MPI, such as `mpirun`, has started.
///
/// Values are added in the order of the ranks, in their own type (f16 values in f32, rounded once), as
/// [`wgrad::InProcess`] does it and with the same bits.
///
/// Dropping it says so to the others, whose exchange fails at once with [`wgrad::Error::RankLost`]. It then waits until all
/// have left, as MPI wants it; only if a rank was lost by its silence, MPI stays without an orderly end.
pub struct World {
    wire: Wire,
    patience: Duration,
    /// The number of exchanges so far.
    turn: u64,
    /// Messages of ranks that came while something else was under way.
    heard: Vec<VecDeque<Message>>,
    /// Memory of values that have come before, and the turn when. Fresh memory costs as much time as to fill it.
    spare: Vec<(u64, Data)>,
    /// True if values travel in pieces while the rest of them is computed.
    overlaps: bool,
    /// The pieces of the exchange that is due.
    pieces: Option<Pieces>,
    /// The ranks from which nothing more comes.
    gone: Vec<bool>,
    /// The rank because of which this world is at its end.
    lost: Option<usize>,
    /// True if a rank was silent for too long, here or elsewhere.
    silence: bool,
    /// True if this rank has said that it leaves.
    parted: bool,
}

impl World {
    /// Connects to all other ranks, once in a process. `patience` is the longest that a rank waits for another in an
    /// exchange, and must be the same on all. It covers what the slowest rank computes from one exchange to the next.
    ///
    /// # Errors
    /// If this process was not started by a launcher of MPI, or has been connected before; if a rank is another version of
    /// wgrad, has another patience or does not answer.
    pub fn connect(patience: Duration) -> std::result::Result<Self, Error> {
        let wire = Wire::start()?;
        let ranks = wire.ranks();
        let heard = (0..ranks).map(|_| VecDeque::new()).collect();
        let mut gone = vec![false; ranks];
        gone[wire.rank()] = true;
        let mut world = Self {
            wire,
            patience,
            turn: 0,
            heard,
            spare: vec![],
            overlaps: false,
            pieces: None,
            gone,
            lost: None,
            silence: false,
            parted: false,
        };
        let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let hellos = world.meet(&Message::hello(nanos))?;
        let Message::Hello { version: first, patience: first_patience } = &hellos[0] else {
            return Err(other_version(0));
        };
        for (rank, hello) in hellos.iter().enumerate() {
            match hello {
                Message::Hello { version, .. } if version != first => return Err(other_version(rank)),
                Message::Hello { patience, .. } if patience != first_patience => return Err(Error::Patience { rank }),
                Message::Hello { .. } => {}
                _ => return Err(other_version(rank)),
            }
        }
        Ok(world)
    }

    /// Sends large values in pieces while the kernels that compute the rest of them run. The bits are the same. It pays
    /// where the exchange takes as long as a good part of the backward pass; otherwise it costs some copies. Ranks need not agree.
    #[must_use]
    pub fn overlapping(mut self, overlaps: bool) -> Self {
        self.overlaps = overlaps;
        self
    }

    /// The number of this rank, from 0 on.
    pub fn rank(&self) -> usize {
        self.wire.rank()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.wire.ranks()
    }

    /// The error of a world without this rank.
    fn without(&mut self, rank: usize) -> Lost {
        self.lost.get_or_insert(rank);
        Lost::RankLost { rank }
    }

    /// The same because of a rank that was silent for too long. The others hear of it at once.
    fn silent(&mut self, rank: usize) -> Lost {
        self.silence = true;
        self.gone[rank] = true;
        let error = self.without(rank);
        self.part(Some(rank));
        error
    }

    /// Says to all that this rank leaves, and the rank that it has lost.
    fn part(&mut self, lost: Option<usize>) {
        if !std::mem::replace(&mut self.parted, true) {
            self.tell(&Message::Left { lost });
        }
    }

    /// Says something to all others. A rank that cannot be told is found to be silent later.
    fn tell(&mut self, message: &Message) {
        let bytes: Arc<[u8]> = message.encode().into();
        for rank in 0..self.ranks() {
            if rank != self.rank() {
                let _ = self.wire.send(rank, bytes.clone());
            }
        }
    }

    /// The next message that has come from a rank, if any; not those that wait in `heard`.
    fn listen(&mut self, rank: usize) -> std::result::Result<Option<Message>, Broken> {
        let Some(bytes) = self.wire.receive(rank)? else { return Ok(None) };
        let message = Message::decode(&bytes).ok_or(Broken)?;
        if let Message::Left { lost } = message {
            self.gone[rank] = true;
            self.silence |= lost.is_some();
        }
        Ok(Some(message))
    }

    /// The error that a rank's leaving is here.
    fn left(&mut self, rank: usize, because: Option<usize>) -> Lost {
        // This rank was the silent one: those that have left for it are lost to it.
        self.without(because.filter(|lost| *lost != self.rank()).unwrap_or(rank))
    }

    /// Says something to all others, and waits for what each says at the same turn, in the order of the ranks.
    fn meet(&mut self, message: &Message) -> Result<Vec<Message>> {
        if let Some(rank) = self.lost {
            return Err(Lost::RankLost { rank });
        }
        self.tell(message);
        let mut all: Vec<Option<Message>> = vec![None; self.ranks()];
        all[self.rank()] = Some(message.clone());
        let pace = Pace::new();
        loop {
            for (rank, said) in all.iter_mut().enumerate() {
                while said.is_none() {
                    let next = match self.heard[rank].pop_front() {
                        Some(message) => Ok(Some(message)),
                        None => self.listen(rank),
                    };
                    match next {
                        Ok(None) => break,
                        Ok(Some(Message::Left { lost })) => return Err(self.left(rank, lost)),
                        Ok(Some(Message::Piece { turn, at, total, bytes })) if turn == self.turn => {
                            self.take_in(rank, at, total, bytes);
                        }
                        Ok(Some(message)) if message.turn() == Some(self.turn) => *said = Some(message),
                        // Of an exchange that this rank took no part in.
                        Ok(Some(message)) if message.turn() < Some(self.turn) => {}
                        Ok(Some(_)) | Err(Broken) => return Err(self.silent(rank)),
                    }
                }
            }
            self.wire.all_sent();
            let Some(missing) = all.iter().position(Option::is_none) else { break };
            if !pace.wait(Some(self.patience)) {
                return Err(self.silent(missing));
            }
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Moves stretches of buffers from and to other ranks, all of which take part.
    fn transfer(&mut self, buffers: Vec<Data>, moves: &[Move]) -> Result<Vec<Data>> {
        let Some(first) = moves.first().map(|one| one.rank) else { return Ok(buffers) };
        let Ok(mut transfer) = self.wire.begin(buffers, moves) else { return Err(self.silent(first)) };
        let (mut pace, mut before) = (Pace::busy(), usize::MAX);
        loop {
            let open = transfer.open(&mut self.wire);
            let waits_for = transfer.waits_for().unwrap_or(first);
            match open {
                Ok(0) => return Ok(transfer.into_buffers()),
                // The others are alive.
                Ok(open) if open < before => (before, pace) = (open, Pace::busy()),
                Ok(_) => {}
                Err(Broken) => return Err(self.silent(waits_for)),
            }
            for rank in 0..self.ranks() {
                if self.gone[rank] {
                    continue;
                }
                match self.listen(rank) {
                    Ok(None) => {}
                    // Its part may never come. A rank that leaves in order has sent all of it before.
                    Ok(Some(Message::Left { lost: Some(lost) })) => return Err(self.left(rank, Some(lost))),
                    Ok(Some(message)) => self.heard[rank].push_back(message),
                    Err(Broken) => return Err(self.silent(rank)),
                }
            }
            if !pace.wait(Some(self.patience)) {
                return Err(self.silent(waits_for));
            }
        }
    }

    /// The pieces of the exchange of this turn.
    fn pieces(&mut self, turn: u64) -> &mut Pieces {
        let world = (self.rank(), self.ranks());
        let fresh = || Pieces::new(world, turn);
        if self.pieces.as_ref().is_none_or(|pieces| pieces.turn() != turn) {
            self.pieces = None;
        }
        self.pieces.get_or_insert_with(fresh)
    }

    /// Takes in a part of a piece of the exchange at hand.
    fn take_in(&mut self, rank: usize, at: At, total: bool, bytes: Vec<u8>) {
        let turn = self.turn;
        let sent = self.pieces(turn).take_in(rank, at, total, bytes);
        self.send_each(sent);
    }

    /// Sends messages. A rank that cannot be told is found to be silent later.
    fn send_each(&mut self, messages: Vec<(usize, Message)>) {
        for (rank, message) in messages {
            let _ = self.wire.send(rank, message.encode().into());
        }
    }

    /// Takes in the pieces of an exchange that have come; other messages wait for theirs. The number of pieces.
    fn advance(&mut self, turn: u64) -> Result<usize> {
        self.wire.all_sent();
        let mut came = 0;
        for rank in 0..self.ranks() {
            loop {
                if self.heard[rank].is_empty() {
                    if self.gone[rank] {
                        break;
                    }
                    match self.listen(rank) {
                        Ok(None) => break,
                        Ok(Some(message)) => self.heard[rank].push_back(message),
                        Err(Broken) => return Err(self.silent(rank)),
                    }
                }
                match self.heard[rank].front() {
                    Some(Message::Piece { turn: its, .. }) if *its <= turn => {}
                    _ => break,
                }
                let Some(Message::Piece { turn: its, at, total, bytes }) = self.heard[rank].pop_front() else { break };
                if its == turn {
                    came += 1;
                    let sent = self.pieces(turn).take_in(rank, at, total, bytes);
                    self.send_each(sent);
                }
            }
        }
        Ok(came)
    }

    /// Exchanges values in pieces: those that have not been sent, and then all that is still to come.
    fn exchange_pieces(&mut self, mut parts: Vec<(u32, &mut Exchange)>) -> Result<()> {
        let turn = self.turn;
        for (part, Exchange { way, data }) in &parts {
            let Way::Reduce(reduce) = *way else { continue };
            for (index, range) in self.pieces(turn).missing(*part, data.dtype(), data.len()) {
                let early = Early { part: *part, index, reduce, data: data.slice(range) };
                let sent = self.pieces(turn).begin(early);
                self.send_each(sent);
                self.advance(turn)?;
            }
        }
        let mut pace = Pace::busy();
        let missing = |pieces: &Pieces| {
            parts.iter().find_map(|(part, to)| pieces.waits_for(*part, to.data.dtype(), to.data.len()))
        };
        let mut waits_for = missing(self.pieces(turn));
        while let Some(rank) = waits_for {
            if self.advance(turn)? > 0 {
                waits_for = missing(self.pieces(turn));
                pace = Pace::busy();
                continue;
            }
            for at in 0..self.ranks() {
                // A rank that leaves in order has sent all of its pieces before.
                if let Some(&Message::Left { lost }) = self.heard[at].front()
                    && (lost.is_some() || at == rank)
                {
                    return Err(self.left(at, lost));
                }
            }
            if !pace.wait(Some(self.patience)) {
                return Err(self.silent(rank));
            }
        }
        for (part, Exchange { data, .. }) in &mut parts {
            if !self.pieces(turn).place(*part, data) {
                return Err(Lost::RankFailed { rank: 0 });
            }
        }
        Ok(())
    }

    /// Memory for values that come from another rank.
    fn room(&mut self, dtype: DType, len: usize) -> Data {
        let fits = |(_, data): &(u64, Data)| data.dtype() == dtype && data.len() == len;
        let found = self.spare.iter().position(fits);
        found.map_or_else(|| Data::zeros(dtype, len), |at| self.spare.swap_remove(at).1)
    }

    /// Keeps memory for values to come, and forgets what was of no use for some time.
    fn keep(&mut self, memory: Vec<Data>) {
        self.spare.extend(memory.into_iter().map(|data| (self.turn, data)));
        self.spare.retain(|(turn, _)| turn + KEPT > self.turn);
    }

    /// Exchanges values that are too long for a message. Rank `k` reduces the `k`-th stretch of each, and each rank moves
    /// twice the length of the values at most, whatever the number of ranks.
    fn exchange_bulk(&mut self, mut parts: Vec<&mut Exchange>) -> Result<()> {
        let (own, ranks) = (self.rank(), self.ranks());
        let (buffers, mut moves) = self.stretches(&mut parts);
        let mut buffers = self.transfer(buffers, &moves)?.into_iter();
        let mut whole = vec![];
        moves.clear();
        for part in &mut parts {
            let mut data = buffers.next().expect("the rank's own");
            let reduce = match part.way {
                Way::Gather(_) => {
                    part.data = data;
                    continue;
                }
                Way::Scatter(_) => Reduce::Sum,
                Way::Reduce(reduce) => reduce,
            };
            let range = stretch(data.len(), own, ranks);
            let mut of_all: Vec<Data> = buffers.by_ref().take(ranks - 1).collect();
            let mut of_own = self.room(data.dtype(), range.len());
            place(&mut of_own, 0, &data, range.clone());
            of_all.insert(own, of_own);
            let (total, rest) = of_all.split_first_mut().expect("this rank's is one of them");
            assert!(reduce_into(reduce, total, &*rest), "the layout was compared");
            if let Way::Scatter(_) = part.way {
                part.data = of_all.remove(0);
            } else {
                place(&mut data, range.start, total, 0..range.len());
                let theirs = |rank| stretch(data.len(), rank, ranks);
                moves.extend(to_and_from(self.others(), whole.len(), |_| range.clone(), theirs));
                whole.push(data);
            }
            self.keep(of_all);
        }
        let mut whole = self.transfer(whole, &moves)?.into_iter();
        for part in parts.iter_mut().filter(|part| matches!(part.way, Way::Reduce(_))) {
            part.data = whole.next().expect("one of each reduction");
        }
        Ok(())
    }

    /// Takes values out, and lays out their way: for each its own memory, which is that of all ranks if they gather it.
    /// Behind a value to reduce there is memory for this rank's stretch of each other rank's value.
    fn stretches(&mut self, parts: &mut [&mut Exchange]) -> (Vec<Data>, Vec<Move>) {
        let (own, ranks) = (self.rank(), self.ranks());
        let (mut buffers, mut moves) = (vec![], vec![]);
        for part in parts {
            let (dtype, len, at) = (part.data.dtype(), part.data.len(), buffers.len());
            let data = std::mem::replace(&mut part.data, Data::zeros(dtype, 0));
            if let Way::Gather(_) = part.way {
                let of = |rank| rank * len..(rank + 1) * len;
                let mut all = Data::zeros(dtype, len * ranks);
                place(&mut all, own * len, &data, 0..len);
                buffers.push(all);
                moves.extend(to_and_from(self.others(), at, |_| of(own), of));
                continue;
            }
            buffers.push(data);
            let received = stretch(len, own, ranks).len();
            for rank in self.others() {
                moves.push(Move { rank, buffer: at, range: stretch(len, rank, ranks), receives: false });
                moves.push(Move { rank, buffer: buffers.len(), range: 0..received, receives: true });
                buffers.push(self.room(dtype, received));
            }
        }
        (buffers, moves)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank();
        (0..self.ranks()).filter(move |rank| *rank != own)
    }
}

impl Collective for World {
    fn rank(&self) -> usize {
        self.wire.rank()
    }

    fn ranks(&self) -> usize {
        self.wire.ranks()
    }

    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> Result<()> {
        self.turn += 1;
        let inlined = inlined(parts);
        let here = || inlined.iter().copied();
        let inline = parts.iter().zip(here()).filter(|(_, here)| *here);
        let inline = inline.flat_map(|(part, _)| bytes_of(&part.data)).copied().collect();
        let begun = self.pieces.as_ref().filter(|pieces| pieces.turn() == self.turn).map_or(0, Pieces::begun);
        let values = Values { stamp, layout: layout(parts), begun, inline };
        let mut all = vec![];
        let heard = self.meet(&Message::Values { turn: self.turn, values })?;
        for (rank, message) in heard.into_iter().enumerate() {
            let Message::Values { values, .. } = message else { return Err(Lost::RankFailed { rank }) };
            all.push(values);
        }
        judge(&all.iter().map(|values| values.stamp).collect::<Vec<_>>())?;
        if let Some(rank) = all.iter().position(|values| values.layout != all[0].layout) {
            return Err(Lost::RankFailed { rank });
        }
        if !parts.iter().all(|part| is_possible(part, self.ranks())) {
            return Err(Lost::RankFailed { rank: 0 });
        }
        let mut rest: Vec<&[u8]> = all.iter().map(|values| &values.inline[..]).collect();
        let mut results = vec![];
        for (part, _) in parts.iter().zip(here()).filter(|(_, here)| *here) {
            let mut of_all = vec![];
            for (rank, rest) in rest.iter_mut().enumerate() {
                let data = data_from(rest, part.data.dtype(), part.data.len());
                of_all.push(data.ok_or(Lost::RankFailed { rank })?);
            }
            let met = result(part.way, of_all).expect("the layout was compared");
            results.push(match part.way {
                Way::Reduce(_) | Way::Gather(_) => met,
                Way::Scatter(_) => met.slice(stretch(met.len(), self.rank(), self.ranks())),
            });
        }
        // If a rank has begun a value in pieces, all go on so.
        let begun = all.iter().fold(0, |begun, values| begun | values.begun);
        let in_pieces = |i: usize| 1u64.checked_shl(i as u32).is_some_and(|bit| begun & bit != 0);
        let bulk = parts.iter_mut().enumerate().zip(here()).filter_map(|(part, here)| (!here).then_some(part));
        let (pieces, bulk): (Vec<_>, Vec<_>) =
            bulk.partition(|(i, part)| matches!(part.way, Way::Reduce(_)) && in_pieces(*i));
        self.exchange_pieces(pieces.into_iter().map(|(i, part)| (i as u32, part)).collect())?;
        self.pieces = None;
        self.exchange_bulk(bulk.into_iter().map(|(_, part)| part).collect())?;
        for ((part, _), result) in parts.iter_mut().zip(here()).filter(|(_, here)| *here).zip(results) {
            part.data = result;
        }
        Ok(())
    }

    fn piece(&self, dtype: DType) -> Option<usize> {
        (self.overlaps && self.ranks() > 1).then(|| elements(dtype, self.ranks()))
    }

    fn begin(&mut self, early: Early) {
        if self.lost.is_none() {
            let turn = self.turn + 1;
            let sent = self.pieces(turn).begin(early);
            self.send_each(sent);
            self.progress();
        }
    }

    fn progress(&mut self) {
        let turn = self.turn + 1;
        if self.lost.is_none() && self.pieces.as_ref().is_some_and(|pieces| pieces.turn() == turn) {
            // The exchange itself reports what is wrong.
            let _ = self.advance(turn);
        }
    }

    fn abort(&mut self) {
        // It waits for nobody: the next exchange passes over what the others say at this one.
        self.turn += 1;
        if self.lost.is_none() {
            self.tell(&Message::Failed { turn: self.turn });
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.part(None);
        // To the last word of each, so that none of them waits for a message to be taken.
        let pace = Pace::new();
        let all_left = loop {
            for rank in 0..self.ranks() {
                while !self.gone[rank] {
                    match self.listen(rank) {
                        Ok(None) => break,
                        Ok(Some(_)) => {}
                        Err(Broken) => (self.gone[rank], self.silence) = (true, true),
                    }
                }
            }
            if self.wire.all_sent() && self.gone.iter().all(|gone| *gone) {
                break true;
            }
            if !pace.wait(self.silence.then_some(PARTING)) {
                break false;
            }
        };
        // All ranks know of a silence, so either all of them end MPI or none.
        if all_left && !self.silence {
            self.wire.finish();
        }
    }
}

fn other_version(rank: usize) -> Error {
    Lost::RanksDiffer { rank, difference: Difference::Version }.into()
}

/// The moves of a buffer's stretches to other ranks, and from them.
fn to_and_from(
    others: impl Iterator<Item = usize>,
    buffer: usize,
    to: impl Fn(usize) -> Range<usize>,
    from: impl Fn(usize) -> Range<usize>,
) -> impl Iterator<Item = Move> {
    others.flat_map(move |rank| {
        let one = |range, receives| Move { rank, buffer, range, receives };
        [one(to(rank), false), one(from(rank), true)]
    })
}

/// The stretch of a value that a rank reduces.
pub fn stretch(len: usize, rank: usize, ranks: usize) -> Range<usize> {
    len * rank / ranks..len * (rank + 1) / ranks
}

/// True if a value can be exchanged so. It depends on the layout alone, so the ranks agree.
fn is_possible(part: &Exchange, ranks: usize) -> bool {
    let none = || Data::zeros(part.data.dtype(), 0);
    result(part.way, [none(), none()]).is_some()
        && (!matches!(part.way, Way::Scatter(_)) || part.data.len().is_multiple_of(ranks))
}

/// The result of the values of all ranks, or of a stretch of them.
fn result(way: Way, of_all: impl IntoIterator<Item = Data>) -> Option<Data> {
    match way {
        Way::Reduce(reduce) => reduced(reduce, of_all),
        Way::Scatter(_) => reduced(Reduce::Sum, of_all),
        Way::Gather(_) => Data::concat(of_all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_the_whole() {
        for ranks in 1..6 {
            for len in 0..13 {
                let stretches: Vec<_> = (0..ranks).flat_map(|rank| stretch(len, rank, ranks)).collect();
                assert_eq!(stretches, (0..len).collect::<Vec<_>>());
            }
        }
    }
}
