//! Messages between ranks, as bytes. Nothing here trusts a length that it reads.

use crate::pieces::At;
use half::f16;
use std::ops::Range;
use wgrad::{
    DType, Data,
    collective::{Difference, Exchange, Stamp, Way},
    op::Reduce,
};

/// The version of these messages and of the order in which they come. Every rank says it first, beside that of wgrad.
const VERSION: &str = concat!("messages 2, wgrad ", env!("CARGO_PKG_VERSION"));

/// The most bytes of values in one message. Such values go to all ranks at once, each of which reduces all of them. With
/// what comes before them the message stays below 4 KiB, which Open MPI sends between processes of a machine without
/// asking the receiver first.
pub const INLINE: usize = 2048;

/// A message of one rank to all others.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// The first: the time that the rank waits for others, in nanoseconds, and its version. Other versions may say
    /// anything after the first byte.
    Hello { patience: u64, version: Vec<u8> },
    /// The values of an exchange.
    Values { turn: u64, values: Values },
    /// A stretch of a value that is exchanged in pieces, or the reduction of all ranks' stretches.
    Piece { turn: u64, at: At, total: bool, bytes: Vec<u8> },
    /// The rank takes no part in an exchange.
    Failed { turn: u64 },
    /// The last: the rank has left, because it has lost this rank.
    Left { lost: Option<usize> },
}

/// The contribution of a rank to an exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Values {
    pub stamp: Stamp,
    /// The types and lengths of the values, and what becomes of them, as [`layout`] writes them.
    pub layout: Vec<u8>,
    /// The values that the rank has begun to send in pieces, as bits.
    pub begun: u64,
    /// The values that [`inlined`] names, one after the other.
    pub inline: Vec<u8>,
}

const HELLO: u8 = 0;
const VALUES: u8 = 1;
const FAILED: u8 = 2;
const LEFT: u8 = 3;
const PIECE: u8 = 4;
/// In [`Message::Left`], no rank.
const NOBODY: u64 = u64::MAX;

impl Message {
    /// The hello of this version.
    pub fn hello(patience: u64) -> Self {
        Self::Hello { patience, version: VERSION.into() }
    }

    /// The exchange that a message belongs to.
    pub fn turn(&self) -> Option<u64> {
        match self {
            Self::Values { turn, .. } | Self::Piece { turn, .. } | Self::Failed { turn } => Some(*turn),
            Self::Hello { .. } => Some(0),
            Self::Left { .. } => None,
        }
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![];
        match self {
            Self::Hello { patience, version } => {
                bytes.push(HELLO);
                bytes.extend(patience.to_le_bytes());
                bytes.extend(version);
            }
            Self::Values { turn, values: Values { stamp, layout, begun, inline } } => {
                bytes.reserve(1 + 8 * (3 + stamp.0.len()) + layout.len() + inline.len());
                bytes.push(VALUES);
                bytes.extend(turn.to_le_bytes());
                bytes.extend(stamp.0.iter().flat_map(|word| word.to_le_bytes()));
                bytes.extend((layout.len() as u64).to_le_bytes());
                bytes.extend(layout);
                bytes.extend(begun.to_le_bytes());
                bytes.extend(inline);
            }
            Self::Piece { turn, at: At { part, index }, total, bytes: of } => {
                bytes.reserve(1 + 3 * 8 + of.len());
                bytes.push(PIECE);
                bytes.extend(turn.to_le_bytes());
                bytes.extend(part.to_le_bytes());
                bytes.extend(index.to_le_bytes());
                bytes.extend(u64::from(*total).to_le_bytes());
                bytes.extend(of);
            }
            Self::Failed { turn } => {
                bytes.push(FAILED);
                bytes.extend(turn.to_le_bytes());
            }
            Self::Left { lost } => {
                bytes.push(LEFT);
                bytes.extend(lost.map_or(NOBODY, |rank| rank as u64).to_le_bytes());
            }
        }
        bytes
    }

    /// The message that bytes are, if they are one.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let message = match take(rest, 1)?[0] {
            HELLO => Self::Hello { patience: word(rest)?, version: all(rest) },
            VALUES => {
                let turn = word(rest)?;
                let mut stamp = Stamp::default();
                for difference in Difference::ALL {
                    stamp.set(difference, word(rest)?);
                }
                let len = usize::try_from(word(rest)?).ok()?;
                let layout = take(rest, len)?.to_vec();
                let begun = word(rest)?;
                Self::Values { turn, values: Values { stamp, layout, begun, inline: all(rest) } }
            }
            PIECE => {
                let (turn, at, total) = (word(rest)?, word(rest)?, word(rest)?);
                let at = At { part: at as u32, index: (at >> 32) as u32 };
                Self::Piece { turn, at, total: total != 0, bytes: all(rest) }
            }
            FAILED => Self::Failed { turn: word(rest)? },
            LEFT => Self::Left { lost: Some(word(rest)?).filter(|lost| *lost != NOBODY).map(|lost| lost as usize) },
            _ => return None,
        };
        bytes.is_empty().then_some(message)
    }
}

/// The next bytes.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (next, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(next)
}

/// All bytes that are left.
fn all(bytes: &mut &[u8]) -> Vec<u8> {
    std::mem::take(bytes).to_vec()
}

fn word(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?))
}

/// The types and lengths of values, and what becomes of them. Ranks whose layouts are equal exchange values.
pub fn layout(parts: &[Exchange]) -> Vec<u8> {
    let mut bytes = vec![];
    for Exchange { way, data, .. } in parts {
        let (kind, ranks) = match way {
            Way::Reduce(Reduce::Sum) => (0, 0),
            Way::Reduce(Reduce::Max) => (1, 0),
            Way::Reduce(Reduce::Norm) => (2, 0),
            Way::Gather(ranks) => (3, *ranks as u64),
            Way::Scatter(ranks) => (4, *ranks as u64),
        };
        bytes.extend([kind, data.dtype() as u8]);
        bytes.extend(ranks.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
    }
    bytes
}

/// For each value, whether it is in the message itself: as many of them as have room there, in their order. It depends on
/// the layout alone, so ranks of one layout agree.
pub fn inlined(parts: &[Exchange]) -> Vec<bool> {
    let mut room = INLINE;
    let fits = |part: &Exchange| match room.checked_sub(bytes_of(&part.data).len()) {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    parts.iter().map(fits).collect()
}

/// The elements as bytes.
pub fn bytes_of(data: &Data) -> &[u8] {
    match data {
        Data::F64(v) => bytemuck::cast_slice(v),
        Data::F32(v) => bytemuck::cast_slice(v),
        Data::F16(v) => bytemuck::cast_slice(v),
        Data::U32(v) => bytemuck::cast_slice(v),
        Data::I32(v) => bytemuck::cast_slice(v),
        Data::Bool(v) => bytemuck::cast_slice(v),
    }
}

/// The elements at the front of bytes, which are taken away.
pub fn data_from(bytes: &mut &[u8], dtype: DType, len: usize) -> Option<Data> {
    let bytes = take(bytes, len.checked_mul(dtype.size())?)?;
    Some(match dtype {
        DType::F64 => Data::F64(bytemuck::pod_collect_to_vec(bytes)),
        DType::F32 => Data::F32(bytemuck::pod_collect_to_vec(bytes)),
        DType::F16 => Data::F16(bytemuck::pod_collect_to_vec::<u8, f16>(bytes)),
        DType::U32 => Data::U32(bytemuck::pod_collect_to_vec(bytes)),
        DType::I32 => Data::I32(bytemuck::pod_collect_to_vec(bytes)),
        DType::Bool => Data::Bool(bytes.iter().map(|byte| *byte != 0).collect()),
    })
}

/// Overwrites the elements from `start` on with a stretch of others of the same type.
pub fn place(data: &mut Data, start: usize, other: &Data, from: Range<usize>) {
    let range = start..start + from.len();
    match (data, other) {
        (Data::F64(a), Data::F64(b)) => a[range].copy_from_slice(&b[from]),
        (Data::F32(a), Data::F32(b)) => a[range].copy_from_slice(&b[from]),
        (Data::F16(a), Data::F16(b)) => a[range].copy_from_slice(&b[from]),
        (Data::U32(a), Data::U32(b)) => a[range].copy_from_slice(&b[from]),
        (Data::I32(a), Data::I32(b)) => a[range].copy_from_slice(&b[from]),
        (Data::Bool(a), Data::Bool(b)) => a[range].copy_from_slice(&b[from]),
        (a, b) => panic!("values of {} do not take {}", a.dtype(), b.dtype()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(way: Way, data: Data) -> Exchange {
        Exchange { way, data }
    }

    fn each_type() -> Vec<Data> {
        let numbers = [0.0, -1.0, 2.5, f64::INFINITY];
        let types = [DType::F64, DType::F32, DType::F16, DType::U32, DType::I32, DType::Bool];
        types.into_iter().map(|dtype| Data::from_f64(dtype, &numbers)).collect()
    }

    fn messages() -> Vec<Message> {
        let parts: Vec<Exchange> = each_type().into_iter().map(|data| part(Way::Gather(3), data)).collect();
        let inline = parts.iter().flat_map(|part| bytes_of(&part.data).to_vec()).collect();
        let stamp = Stamp([1, 2, 3, 4, 5, u64::MAX]);
        vec![
            Message::hello(7),
            Message::Values { turn: 9, values: Values { stamp, layout: layout(&parts), begun: 5, inline } },
            Message::Piece { turn: 3, at: At { part: 1, index: 2 }, total: true, bytes: vec![1, 2, 3] },
            Message::Failed { turn: u64::MAX },
            Message::Left { lost: None },
            Message::Left { lost: Some(2) },
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn broken_messages_are_refused() {
        for message in messages() {
            let bytes = message.encode();
            // Every proper beginning is another message at most, such as a hello of a shorter version.
            for len in 0..bytes.len() {
                assert_ne!(Message::decode(&bytes[..len]), Some(message.clone()));
            }
        }
        assert_eq!(Message::decode(&[9]), None);
        assert_eq!(
            Message::decode(&[&Message::Failed { turn: 1 }.encode()[..], &[0]].concat()),
            None,
            "a byte too many"
        );
        let mut long = messages()[1].encode();
        long[57..65].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Message::decode(&long), None, "a layout longer than the message");
    }

    #[test]
    fn elements_are_read_as_they_were_written() {
        let written = each_type();
        let bytes: Vec<u8> = written.iter().flat_map(|data| bytes_of(data).to_vec()).collect();
        let mut rest = &bytes[1..];
        assert_eq!(data_from(&mut rest, DType::F64, usize::MAX), None);
        // At any alignment.
        let odd = [&[0], &bytes[..]].concat();
        rest = &odd[1..];
        for data in written {
            assert_eq!(data_from(&mut rest, data.dtype(), data.len()), Some(data));
        }
        assert_eq!(data_from(&mut rest, DType::Bool, 1), None);
    }

    #[test]
    fn a_layout_tells_ways_types_and_lengths_apart() {
        let of = |way, data| layout(&[part(way, data)]);
        let first = of(Way::Reduce(Reduce::Sum), Data::U32(vec![1, 2]));
        assert_eq!(first, of(Way::Reduce(Reduce::Sum), Data::U32(vec![3, 4])));
        assert_ne!(first, of(Way::Reduce(Reduce::Max), Data::U32(vec![1, 2])));
        assert_ne!(first, of(Way::Gather(2), Data::U32(vec![1, 2])));
        assert_ne!(first, of(Way::Reduce(Reduce::Sum), Data::I32(vec![1, 2])));
        assert_ne!(first, of(Way::Reduce(Reduce::Sum), Data::U32(vec![1])));
        assert_ne!(of(Way::Scatter(1), Data::U32(vec![1, 2])), of(Way::Scatter(2), Data::U32(vec![1, 2])));
    }

    #[test]
    fn what_has_room_is_in_the_message() {
        let of = |lens: &[usize]| {
            let part = |len: &usize| part(Way::Reduce(Reduce::Sum), Data::zeros(DType::Bool, *len));
            inlined(&lens.iter().map(part).collect::<Vec<_>>())
        };
        assert_eq!(of(&[INLINE]), [true]);
        assert_eq!(of(&[INLINE + 1, 1]), [false, true]);
        assert_eq!(of(&[1, INLINE, 1]), [true, false, true]);
        assert_eq!(of(&[]), [false; 0]);
    }

    #[test]
    fn elements_are_placed() {
        for data in each_type() {
            let mut all = Data::zeros(data.dtype(), 6);
            place(&mut all, 1, &data, 0..data.len());
            assert_eq!(all.slice(1..5), data);
        }
    }
}
