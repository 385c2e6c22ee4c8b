//! Memory on the device: words of 32 bits, whole buffers for what is large, and places in one shared buffer, the arena,
//! for what is small.
//!
//! An element takes a word: f32, u32 and i32 are themselves, and a bool is 0 or 1. f16 values take half a word in buffers of
//! their own; in the arena, and where kernels hand things on at once, they take a word too, which is the f32 of the same
//! value. In either form they are rounded when they are stored.
//!
//! The arena holds all scalars, the vectors that kernels look up, and constant tables, so that a kernel binds all of
//! these with one binding. A buffer may be bound once per kernel, and each use of it waits for the last: what is large has
//! buffers of its own.

use crate::{
    device::Inner,
    error::{Error, Result},
    wgsl::Memory,
};
use std::sync::Arc;
use wgrad::{DType, Data, f16};

/// Bytes of a word.
pub(crate) const WORD: u64 = 4;

/// The layout of elements in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// A word each.
    Words,
    /// f16 values, two in a word, the first in its lower bits.
    F16,
}

impl Form {
    /// That of elements in some memory.
    pub fn of(memory: Memory) -> Self {
        if memory.holds_f16() { Form::F16 } else { Form::Words }
    }

    /// That of elements in a buffer of their own.
    pub fn alone(dtype: DType) -> Self {
        if dtype == DType::F16 { Form::F16 } else { Form::Words }
    }

    /// The number of words that so many elements take.
    pub fn words(self, len: usize) -> usize {
        if self == Form::F16 { len.div_ceil(2) } else { len }
    }
}

/// The words of some elements, appended.
pub(crate) fn to_words(data: &Data, form: Form, words: &mut Vec<u32>) -> Result<()> {
    match data {
        Data::F16(v) if form == Form::F16 => {
            let bits = |pair: &[f16]| pair.iter().rev().fold(0, |word, x| word << 16 | u32::from(x.to_bits()));
            words.extend(v.chunks(2).map(bits));
        }
        Data::F64(_) => return Err(Error::Unsupported(DType::F64)),
        Data::F32(v) => words.extend(v.iter().map(|x| x.to_bits())),
        Data::F16(v) => words.extend(v.iter().map(|x| x.to_f32().to_bits())),
        Data::U32(v) => words.extend(v),
        Data::I32(v) => words.extend(v.iter().map(|x| *x as u32)),
        Data::Bool(v) => words.extend(v.iter().map(|x| u32::from(*x))),
    }
    Ok(())
}

/// The `len` elements that words hold.
pub(crate) fn from_words(dtype: DType, form: Form, len: usize, words: &[u32]) -> Data {
    match dtype {
        DType::F16 if form == Form::F16 => {
            let f16s = words.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
            Data::F16(f16s.take(len).map(f16::from_bits).collect())
        }
        DType::F32 => Data::F32(words.iter().map(|w| f32::from_bits(*w)).collect()),
        DType::F16 => Data::F16(words.iter().map(|w| f16::from_f32(f32::from_bits(*w))).collect()),
        DType::U32 => Data::U32(words.to_vec()),
        DType::I32 => Data::I32(words.iter().map(|w| *w as i32).collect()),
        DType::Bool => Data::Bool(words.iter().map(|w| *w != 0).collect()),
        DType::F64 => unreachable!("no f64 comes to the device"),
    }
}

/// A buffer, which gives its bytes back to the budget when it is dropped.
pub(crate) struct Buffer {
    pub raw: wgpu::Buffer,
    gpu: Arc<Inner>,
}

impl Buffer {
    /// A buffer of zeros that kernels can bind.
    pub fn storage(gpu: &Arc<Inner>, words: usize) -> Result<Self> {
        let bytes = bytes(words);
        let limit = gpu.limits.max_storage_buffer_binding_size.min(gpu.limits.max_buffer_size);
        if bytes > limit {
            return Err(Error::TooLarge { bytes, limit });
        }
        use wgpu::BufferUsages as U;
        Self::new(gpu, bytes, U::STORAGE | U::COPY_SRC | U::COPY_DST)
    }

    /// A buffer of zeros for small numbers that each kernel reads.
    pub fn uniform(gpu: &Arc<Inner>, words: usize) -> Result<Self> {
        Self::new(gpu, bytes(words), wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST)
    }

    /// A buffer that the host can read after something was copied to it.
    pub fn readback(gpu: &Arc<Inner>, words: usize) -> Result<Self> {
        Self::new(gpu, bytes(words), wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    /// A buffer that timestamps are written to, to be copied from there.
    pub fn resolved(gpu: &Arc<Inner>, words: usize) -> Result<Self> {
        Self::new(gpu, bytes(words), wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC)
    }

    fn new(gpu: &Arc<Inner>, size: u64, usage: wgpu::BufferUsages) -> Result<Self> {
        if size > gpu.limits.max_buffer_size {
            return Err(Error::TooLarge { bytes: size, limit: gpu.limits.max_buffer_size });
        }
        gpu.take(size)?;
        let description = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        match gpu.scoped(|| gpu.device.create_buffer(&description)) {
            Ok(raw) => Ok(Self { raw, gpu: gpu.clone() }),
            Err(error) => {
                gpu.give(size);
                Err(error)
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.gpu.give(self.raw.size());
    }
}

/// The size of a buffer of so many words: nothing is smaller than a vector of four.
pub(crate) fn bytes(words: usize) -> u64 {
    (words as u64 * WORD).max(16)
}

/// One buffer with places for what is small. Its buffer changes when it grows: see [`Arena::generation`].
pub(crate) struct Arena {
    pub buffer: Buffer,
    /// The number of changes of the buffer.
    pub generation: u64,
    words: usize,
    /// Stretches that are free, ascending: start and length.
    free: Vec<(usize, usize)>,
}

/// The number of words that an arena has at first.
const FIRST: usize = 16 * 1024;

impl Arena {
    pub fn new(gpu: &Arc<Inner>) -> Result<Self> {
        Ok(Self { buffer: Buffer::storage(gpu, FIRST)?, generation: 0, words: FIRST, free: vec![(0, FIRST)] })
    }

    /// A place for so many words, whatever they hold.
    pub fn alloc(&mut self, gpu: &Arc<Inner>, words: usize) -> Result<usize> {
        if words == 0 {
            return Ok(0);
        }
        let found = match self.free.iter().position(|(_, len)| *len >= words) {
            Some(found) => found,
            None => {
                self.grow(gpu, words)?;
                self.free.len() - 1
            }
        };
        let (start, len) = self.free[found];
        match len == words {
            true => drop(self.free.remove(found)),
            false => self.free[found] = (start + words, len - words),
        }
        Ok(start)
    }

    /// Gives a place back.
    pub fn release(&mut self, start: usize, words: usize) {
        if words == 0 {
            return;
        }
        let at = self.free.partition_point(|(other, _)| *other < start);
        self.free.insert(at, (start, words));
        if at + 1 < self.free.len() && start + words == self.free[at + 1].0 {
            self.free[at].1 += self.free.remove(at + 1).1;
        }
        if at > 0 && self.free[at - 1].0 + self.free[at - 1].1 == start {
            self.free[at - 1].1 += self.free.remove(at).1;
        }
    }

    /// Makes room for so many words at the end.
    fn grow(&mut self, gpu: &Arc<Inner>, words: usize) -> Result<()> {
        let total = (2 * self.words).max(self.words + words);
        let buffer = Buffer::storage(gpu, total)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.buffer.raw, 0, &buffer.raw, 0, self.words as u64 * WORD);
        gpu.queue.submit([encoder.finish()]);
        let start = self.words;
        (self.buffer, self.words) = (buffer, total);
        self.generation += 1;
        self.release(start, total - start);
        Ok(())
    }
}
