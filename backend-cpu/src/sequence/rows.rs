//! Outputs that chunks of the batch share: each chunk writes its own rows, at every time step.

use std::{marker::PhantomData, ops::Range};

/// An output `[time, batch, width]`, to be taken apart by rows.
pub(super) struct Output<'a, T> {
    start: *mut T,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a mutable borrow of plain elements; whoever takes rows of it promises that they are taken once.
unsafe impl<T: Send> Sync for Output<'_, T> {}

impl<'a, T> Output<'a, T> {
    pub fn new(all: &'a mut [T]) -> Self {
        Self { start: all.as_mut_ptr(), len: all.len(), elements: PhantomData }
    }

    /// Some rows, of so many time steps and a batch of so many.
    ///
    /// # Safety
    /// No row is taken twice.
    pub unsafe fn rows(&self, time: usize, batch: usize, rows: &Range<usize>) -> Steps<'a, T> {
        let width = self.len / (time * batch);
        assert!(self.len == time * batch * width && rows.start <= rows.end && rows.end <= batch);
        // SAFETY: within the slice, by the assertion.
        let first = unsafe { self.start.add(rows.start * width) };
        Steps { first, time, stride: batch * width, len: rows.len() * width, elements: PhantomData }
    }

    /// Some elements.
    ///
    /// # Safety
    /// None is taken twice.
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start + len <= self.len);
        // SAFETY: within the slice, by the assertion; the rest is promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Fills rows with an input. An empty input lies there already.
#[inline(always)]
pub(super) fn hold<T: Copy>(rows: &mut [T], input: &[T]) {
    if !input.is_empty() {
        rows.copy_from_slice(input);
    }
}

/// The rows of one chunk at each time step.
pub(super) struct Steps<'a, T> {
    first: *mut T,
    time: usize,
    /// From one time step to the next.
    stride: usize,
    /// Of one time step.
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T> Steps<'a, T> {
    /// An output that a cell does not have.
    pub fn none() -> Self {
        Self {
            first: std::ptr::NonNull::dangling().as_ptr(),
            time: usize::MAX,
            stride: 0,
            len: 0,
            elements: PhantomData,
        }
    }

    /// The rows of the one time step that there is; nothing of what a cell does not have.
    pub fn only(self) -> &'a mut [T] {
        assert!(self.time == 1 || self.len == 0);
        // SAFETY: as in `after`; a dangling pointer is as good as any for no elements.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }

    /// The rows at time step `t`.
    pub fn at(&mut self, t: usize) -> &mut [T] {
        self.after(t).1
    }

    /// The rows at the step before `t`, if there is one, and those at `t`.
    pub fn after(&mut self, t: usize) -> (Option<&[T]>, &mut [T]) {
        assert!(t < self.time);
        // SAFETY: both lie within the output, by the assertion here and the one where the rows were taken; they do not
        // overlap, since a stride is no shorter than the rows of one step; nobody else has these rows.
        unsafe {
            let now = self.first.add(t * self.stride);
            let before = (t > 0).then(|| std::slice::from_raw_parts(now.sub(self.stride), self.len));
            (before, std::slice::from_raw_parts_mut(now, self.len))
        }
    }
}
