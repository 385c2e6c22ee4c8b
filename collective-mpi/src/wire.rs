//! Messages and bulk data through MPI: all that is `unsafe`.
//!
//! Nothing here blocks but the start and the end. MPI reads and writes memory while a request is open, so a request owns
//! its memory, and memory whose request never ends is never freed.

use crate::Error;
use mpi::{
    Threading,
    environment::{Universe, initialize_with_threading},
    ffi,
    traits::{AsRaw, Communicator},
};
use std::{
    mem::{ManuallyDrop, MaybeUninit, forget},
    ops::Range,
    os::raw::c_int,
    sync::Arc,
};
use wgrad::{DType, Data};

/// The tag of messages. Those of one rank arrive in their order.
const MESSAGE: c_int = 1;

/// The tag of bulk data. That of one rank arrives in its order.
const BULK: c_int = 2;

/// The most bytes of bulk data in one request: MPI counts in 32 bits, and each chunk that arrives shows that the other rank
/// is alive.
const CHUNK: usize = 64 << 20;

/// Variables that launchers set for a process.
const LAUNCHERS: [&str; 6] =
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"];

/// MPI has reported an error about another rank.
#[derive(Debug)]
pub struct Broken;

/// The connection of this process.
pub struct Wire {
    comm: ffi::MPI_Comm,
    rank: usize,
    ranks: usize,
    sending: Vec<Sending>,
    /// The message of each rank that is arriving.
    arriving: Vec<Option<Arriving>>,
    /// `None` after the end.
    universe: Option<Universe>,
}

// SAFETY: MPI was started for calls from any thread, one at a time. All calls are here, behind `&mut Wire`, and there is
// one wire in a process.
unsafe impl Send for Wire {}

/// A message on its way to another rank.
struct Sending {
    request: ffi::MPI_Request,
    bytes: Arc<[u8]>,
}

/// A message on its way to this rank.
struct Arriving {
    request: ffi::MPI_Request,
    bytes: Vec<u8>,
}

impl Wire {
    /// Starts MPI.
    pub fn start() -> Result<Self, Error> {
        // A process that no launcher has started gets such variables from MPI itself.
        let launched = LAUNCHERS.iter().any(|name| std::env::var_os(name).is_some());
        let (universe, threads) = initialize_with_threading(Threading::Serialized).ok_or(Error::AlreadyConnected)?;
        let world = universe.world();
        if world.size() == 1 && !launched {
            return Err(Error::NotStarted);
        }
        if threads < Threading::Serialized {
            return Err(Error::Threads);
        }
        // A communicator of its own: nobody else's messages are on it.
        let own = ManuallyDrop::new(world.duplicate());
        let (rank, ranks) = (own.rank() as usize, own.size() as usize);
        let comm = own.as_raw();
        // SAFETY: the communicator is alive. By default an error would end all ranks.
        unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) };
        let arriving = (0..ranks).map(|_| None).collect();
        Ok(Self { comm, rank, ranks, sending: vec![], arriving, universe: Some(universe) })
    }

    /// The number of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Begins to send a message.
    pub fn send(&mut self, rank: usize, bytes: Arc<[u8]>) -> Result<(), Broken> {
        let count = c_int::try_from(bytes.len()).expect("a message is shorter than 2 GiB");
        // SAFETY: the bytes live until the request has ended, since `sending` holds them.
        let request = unsafe { self.send_raw(bytes.as_ptr(), count, rank, MESSAGE) }?;
        self.sending.push(Sending { request, bytes });
        Ok(())
    }

    /// True if all messages have been sent. It forgets those that have.
    pub fn all_sent(&mut self) -> bool {
        self.sending.retain_mut(|sending| !ended(&mut sending.request).is_ok_and(|ended| ended));
        self.sending.is_empty()
    }

    /// The next message of a rank, if it has arrived.
    pub fn receive(&mut self, rank: usize) -> Result<Option<Vec<u8>>, Broken> {
        if self.arriving[rank].is_none() {
            self.arriving[rank] = self.arrival(rank)?;
        }
        let Some(arriving) = &mut self.arriving[rank] else { return Ok(None) };
        Ok(if ended(&mut arriving.request)? { self.arriving[rank].take().map(|arrived| arrived.bytes) } else { None })
    }

    /// Begins to receive a message that is there.
    fn arrival(&mut self, rank: usize) -> Result<Option<Arriving>, Broken> {
        let (mut found, mut count) = (0, 0);
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::uninit();
        // SAFETY: the communicator is alive, and MPI writes to places of this function only. It sets the message and the
        // status if it has found one, and the memory lives until the request has ended, since `arriving` holds it.
        unsafe {
            let (message, status) = (message.as_mut_ptr(), status.as_mut_ptr());
            check(ffi::MPI_Improbe(rank as c_int, MESSAGE, self.comm, &mut found, message, status))?;
            if found == 0 {
                return Ok(None);
            }
            check(ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count))?;
            let mut bytes = vec![0; usize::try_from(count).map_err(|_| Broken)?];
            let mut request = ffi::RSMPI_REQUEST_NULL;
            check(ffi::MPI_Imrecv(bytes.as_mut_ptr().cast(), count, ffi::RSMPI_UINT8_T, message, &mut request))?;
            Ok(Some(Arriving { request, bytes }))
        }
    }

    /// Begins to move stretches of buffers from and to other ranks.
    ///
    /// # Panics
    /// If a stretch is not in its buffer, or if one that is received overlaps another.
    pub fn begin(&mut self, buffers: Vec<Data>, moves: &[Move]) -> Result<Transfer, Broken> {
        assert!(disjoint(moves), "what is received overlaps nothing");
        let mut transfer = Transfer { buffers: ManuallyDrop::new(buffers), requests: vec![], bools: vec![] };
        let begun = transfer.begin(self, moves);
        begun.map(|()| transfer)
    }

    /// # Safety
    /// The bytes must live, unchanged, until the request has ended.
    unsafe fn send_raw(
        &mut self,
        bytes: *const u8,
        count: c_int,
        rank: usize,
        tag: c_int,
    ) -> Result<ffi::MPI_Request, Broken> {
        // SAFETY: the communicator is alive; the rest is the caller's promise.
        unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let (rank, dtype) = (rank as c_int, ffi::RSMPI_UINT8_T);
            check(ffi::MPI_Isend(bytes.cast(), count, dtype, rank, tag, self.comm, &mut request))?;
            Ok(request)
        }
    }

    /// Ends MPI, which waits until all ranks do so. It may be another thread than the one that has started MPI: the
    /// standard advises against it, and the libraries accept it where calls are serialised.
    pub fn finish(&mut self) {
        let Some(universe) = self.universe.take() else { return };
        // SAFETY: nobody uses the communicator after this.
        unsafe { ffi::MPI_Comm_free(&mut self.comm) };
        drop(universe);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(universe) = self.universe.take() {
            // To end MPI would wait for a rank that is lost, for ever. The process ends without that, with a status of its
            // own; the launcher then ends those that are left.
            forget(universe);
        }
        self.all_sent();
        for Sending { bytes, .. } in self.sending.drain(..) {
            // MPI may still read it.
            forget(bytes);
        }
        for arriving in self.arriving.drain(..).flatten() {
            // MPI may still write to it.
            forget(arriving.bytes);
        }
    }
}

/// A stretch of a buffer, in elements, that goes to another rank or comes from it.
#[derive(Clone, Debug)]
pub struct Move {
    pub rank: usize,
    pub buffer: usize,
    pub range: Range<usize>,
    pub receives: bool,
}

/// True if each stretch that is received overlaps no other, so that MPI writes to no memory that it also reads or writes
/// otherwise.
fn disjoint(moves: &[Move]) -> bool {
    let mut sorted: Vec<&Move> = moves.iter().filter(|one| !one.range.is_empty()).collect();
    sorted.sort_by_key(|one| (one.buffer, one.range.start));
    // The ends of all stretches so far in this buffer, and of those that are received.
    let (mut buffer, mut any, mut received) = (usize::MAX, 0, 0);
    for Move { buffer: own, range, receives, .. } in sorted {
        if *own != buffer {
            (buffer, any, received) = (*own, 0, 0);
        }
        if range.start < received || (*receives && range.start < any) {
            return false;
        }
        any = any.max(range.end);
        if *receives {
            received = range.end;
        }
    }
    true
}

/// Bulk data under way. It owns the memory, which is never freed if the transfer does not come to its end.
pub struct Transfer {
    buffers: ManuallyDrop<Vec<Data>>,
    /// The other ranks, and what is open with them.
    requests: Vec<(usize, ffi::MPI_Request)>,
    /// The bytes that become truth values.
    bools: Vec<(*mut u8, usize)>,
}

impl Transfer {
    fn begin(&mut self, wire: &mut Wire, moves: &[Move]) -> Result<(), Broken> {
        let starts: Vec<*mut u8> = self.buffers.iter_mut().map(start).collect();
        for Move { rank, buffer, range, receives } in moves {
            let data = &self.buffers[*buffer];
            assert!(range.start <= range.end && range.end <= data.len(), "a stretch is in its buffer");
            let (size, len) = (data.dtype().size(), range.len() * data.dtype().size());
            // SAFETY: the stretch is in the buffer.
            let first = unsafe { starts[*buffer].add(range.start * size) };
            if *receives && data.dtype() == DType::Bool {
                self.bools.push((first, len));
            }
            for done in (0..len).step_by(CHUNK) {
                let count = (len - done).min(CHUNK) as c_int;
                // SAFETY: the chunk is in the stretch. `buffers` keeps it alive, and untouched, until all requests have
                // ended; what is received overlaps nothing.
                let request = unsafe {
                    let bytes = first.add(done);
                    match receives {
                        false => wire.send_raw(bytes, count, *rank, BULK)?,
                        true => {
                            let mut request = ffi::RSMPI_REQUEST_NULL;
                            let (rank, dtype) = (*rank as c_int, ffi::RSMPI_UINT8_T);
                            check(ffi::MPI_Irecv(bytes.cast(), count, dtype, rank, BULK, wire.comm, &mut request))?;
                            request
                        }
                    }
                };
                self.requests.push((*rank, request));
            }
        }
        Ok(())
    }

    /// Lets the data move on. The number of requests that are still open.
    pub fn open(&mut self, _: &mut Wire) -> Result<usize, Broken> {
        let mut result = Ok(());
        self.requests.retain_mut(|(_, request)| match ended(request) {
            Ok(ended) => !ended,
            Err(broken) => {
                result = Err(broken);
                true
            }
        });
        result.map(|()| self.requests.len())
    }

    /// A rank with which a request is still open.
    pub fn waits_for(&self) -> Option<usize> {
        self.requests.first().map(|(rank, _)| *rank)
    }

    /// The buffers, after the end.
    ///
    /// # Panics
    /// If something is still open.
    pub fn into_buffers(self) -> Vec<Data> {
        assert!(self.requests.is_empty(), "the transfer has ended");
        for (start, len) in self.bools {
            // SAFETY: these bytes are a stretch of a buffer, which nobody else uses. A byte other than 0 and 1 is no truth
            // value, so none is left before they are read as such.
            for byte in unsafe { std::slice::from_raw_parts_mut(start, len) } {
                *byte = u8::from(*byte != 0);
            }
        }
        ManuallyDrop::into_inner(self.buffers)
    }
}

/// The first byte of a buffer, through which all of it may be written.
fn start(data: &mut Data) -> *mut u8 {
    match data {
        Data::F64(v) => v.as_mut_ptr().cast(),
        Data::F32(v) => v.as_mut_ptr().cast(),
        Data::F16(v) => v.as_mut_ptr().cast(),
        Data::U32(v) => v.as_mut_ptr().cast(),
        Data::I32(v) => v.as_mut_ptr().cast(),
        Data::Bool(v) => v.as_mut_ptr().cast(),
    }
}

/// True if a request has ended. One that has stays so.
fn ended(request: &mut ffi::MPI_Request) -> Result<bool, Broken> {
    let mut flag = 0;
    // SAFETY: the request is open, or none, of which MPI says that it has ended. The caller has exclusive access to a part of
    // the wire, or of a transfer together with the wire, so that no other call is under way.
    check(unsafe { ffi::MPI_Test(request, &mut flag, ffi::RSMPI_STATUS_IGNORE) })?;
    Ok(flag != 0)
}

fn check(code: c_int) -> Result<(), Broken> {
    // MPI_SUCCESS is 0 by the standard.
    if code == 0 { Ok(()) } else { Err(Broken) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_overlaps_nothing() {
        let one = |buffer, range, receives| Move { rank: 0, buffer, range, receives };
        let (send, receive) = (|range| one(0, range, false), |range| one(0, range, true));
        assert!(disjoint(&[]));
        assert!(disjoint(&[send(0..4), send(0..4), send(2..6), receive(6..8)]));
        assert!(disjoint(&[receive(0..4), one(1, 0..4, true), receive(4..6), send(6..8)]));
        assert!(disjoint(&[receive(0..4), receive(2..2)]));
        assert!(!disjoint(&[send(0..4), receive(3..5)]));
        assert!(!disjoint(&[receive(0..4), send(3..5)]));
        assert!(!disjoint(&[receive(0..4), receive(3..5)]));
        assert!(!disjoint(&[receive(0..8), send(1..2), receive(9..10), send(7..8)]));
        assert!(!disjoint(&[send(0..8), send(1..2), receive(7..9)]));
    }
}
