//! Scratch memory: each thread's registers, shared by all kernels, which run one after another.

use super::elements::{Element, Source, Target, aligned, nothing, poison, spare};
use crate::threads::team;
use std::{
    marker::PhantomData,
    sync::{Mutex, MutexGuard, PoisonError},
};
use wgrad::{DType, Data};

/// The registers that kernels are compiled for: their types and lengths.
#[derive(Debug, Default)]
pub(crate) struct Files {
    registers: Vec<(DType, usize)>,
    taken: Vec<bool>,
    /// The most values that a schedule has.
    cells: usize,
}

impl Files {
    /// Starts a kernel, which may use all registers.
    pub fn open(&mut self) {
        self.taken.fill(false);
    }

    /// A register with room for `len` elements.
    pub fn take(&mut self, dtype: DType, len: usize) -> usize {
        let free = (0..self.taken.len()).find(|&r| !self.taken[r] && self.registers[r].0 == dtype);
        let index = free.unwrap_or_else(|| {
            self.registers.push((dtype, 0));
            self.taken.push(false);
            self.taken.len() - 1
        });
        self.taken[index] = true;
        self.registers[index].1 = self.registers[index].1.max(len);
        index
    }

    /// Lets a register be taken again by the same kernel.
    pub fn give_back(&mut self, index: usize) {
        self.taken[index] = false;
    }

    /// Makes room for this many values.
    pub fn cells(&mut self, cells: usize) {
        self.cells = self.cells.max(cells);
    }
}

/// The place where a value of the block at hand is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    Register,
    /// The same all over the block: the register's first element.
    Uniform,
    Memory(Source, usize),
    /// The place where a view shows it, in pieces.
    Pieces(usize),
    /// The place of another cell, which is in one of the other places.
    Cell(usize),
}

/// One thread's registers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub registers: Vec<Data>,
    /// The place where each value is.
    pub seen: Vec<Seen>,
}

/// The scratch of all threads.
#[derive(Debug)]
pub(crate) struct Workers(Vec<Mutex<Scratch>>);

impl Workers {
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }

    /// Grows each thread's scratch to what kernels need.
    pub fn fit(&mut self, files: &Files) {
        for worker in &mut self.0 {
            let scratch = worker.get_mut().unwrap_or_else(PoisonError::into_inner);
            for (i, &(dtype, len)) in files.registers.iter().enumerate() {
                let len = len + spare(dtype);
                match scratch.registers.get_mut(i) {
                    None => scratch.registers.push(Data::zeros(dtype, len)),
                    Some(register) if register.len() < len => *register = Data::zeros(dtype, len),
                    Some(_) => {}
                }
            }
            scratch.seen.resize(scratch.seen.len().max(files.cells), Seen::Register);
        }
    }

    /// The calling thread's scratch.
    pub fn mine(&self) -> MutexGuard<'_, Scratch> {
        self.0[team::index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills all scratch with values that no computation should meet.
    pub fn poison(&mut self) {
        for worker in &mut self.0 {
            let scratch = worker.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.registers.iter_mut().for_each(poison);
        }
    }
}

/// Scratch that all threads share while a kernel runs.
pub(crate) struct Room<'a, A> {
    workers: &'a Workers,
    register: usize,
    data: Data,
    target: Target,
    /// The first element that begins a line of memory.
    first: usize,
    elements: PhantomData<A>,
}

impl<'a, A: Element> Room<'a, A> {
    /// A register of the calling thread, until this is dropped.
    pub fn take(workers: &'a Workers, register: usize) -> Self {
        let mut data = std::mem::replace(&mut workers.mine().registers[register], nothing(A::DTYPE));
        let target = Target::new(&mut data);
        let first = data.len() - aligned(A::slice(&data)).len();
        Self { workers, register, data, target, first, elements: PhantomData }
    }

    /// A stretch, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes any of it while the result is in use.
    #[allow(clippy::mut_from_ref, reason = "the caller promises what a mutable borrow would prove")]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [A] {
        // SAFETY: the data is alive, and by the caller's promise.
        unsafe { self.target.part(self.first + start, len) }
    }

    /// A stretch, some of which is to be written.
    ///
    /// # Safety
    /// Nobody else touches what is written.
    pub unsafe fn span(&self, start: usize, len: usize) -> (*mut A, usize) {
        // SAFETY: the data is alive, and by the caller's promise.
        unsafe { self.target.span(self.first + start, len) }
    }

    /// All of it, after it has been written.
    pub fn seen(&self) -> &[A] {
        &A::slice(&self.data)[self.first..]
    }
}

impl<A> Drop for Room<'_, A> {
    fn drop(&mut self) {
        self.workers.mine().registers[self.register] = std::mem::replace(&mut self.data, nothing(DType::F32));
    }
}
