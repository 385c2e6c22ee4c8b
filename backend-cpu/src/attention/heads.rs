//! The places of heads' matrices: those that attention reads and those that it writes.

use crate::simd::float::Real;
use crate::{
    matmul::{matrix::Place, tiles::Rows},
    memory::{
        elements::{Element, Env, Source},
        strides::Walk,
    },
};
use wgrad::plan::Operand;

/// An operand `[.., heads, rows, columns]`, each row contiguous; or `[.., heads, rows]`, a number for each row.
#[derive(Debug)]
pub(super) struct Heads {
    source: Source,
    offset: isize,
    heads: Walk,
    /// From a row, or its number, to the next.
    stride: usize,
}

impl Heads {
    /// An operand's, of which so many dimensions tell the heads.
    ///
    /// # Panics
    /// If the elements of a row are not contiguous.
    pub fn new(source: Source, operand: &Operand, split: usize) -> Self {
        assert!(operand.is_in_rows(), "attention reads and writes rows that lie in one piece");
        let (heads, matrix) = operand.shape.split_at(split);
        let (heads_strides, strides) = operand.strides.split_at(split);
        let (heads, stride) = match matrix {
            // Nothing is found there, whatever the strides are.
            _ if operand.shape.numel() == 0 => (Walk::new(&[], &[]), 0),
            [1, _] => (Walk::new(heads, heads_strides), 0),
            [_, _] => (Walk::new(heads, heads_strides), strides[0] as usize),
            _ => (Walk::new(heads, heads_strides), 1),
        };
        Self { source, offset: operand.offset as isize, heads, stride }
    }

    fn start(&self, head: usize, row: usize) -> isize {
        self.offset + self.heads.at(head) + (row * self.stride) as isize
    }

    /// The matrix of a head, from a row on: whatever lies there, if it has no elements.
    pub fn rows<'a, T: Element>(&self, env: &Env<'a>, head: usize, row: usize) -> Rows<'a, T> {
        let all = T::slice(env.data(self.source));
        Rows { data: all.get(self.start(head, row) as usize..).unwrap_or(&[]), stride: self.stride }
    }

    /// The place where a head's matrix is written, from a row on.
    pub fn place<T: Element>(&self, env: &Env, head: usize, row: usize) -> Place<T> {
        let Source::Target(target) = self.source else { unreachable!("a kernel writes its targets") };
        let (data, len) = env.targets[target].all();
        Place { data, len, start: self.start(head, row), strides: [self.stride as isize, 1] }
    }
}

/// Fills rows with zeros.
///
/// # Safety
/// The elements of the place are alive, and nobody else touches those of these rows.
#[inline(always)]
pub(super) unsafe fn clear<T: Real>(place: Place<T>, [rows, columns]: [usize; 2]) {
    for row in 0..rows {
        // SAFETY: promised by the caller.
        unsafe { place.row(row, columns) }.fill(T::ZERO);
    }
}

/// Multiplies each row of a matrix by a number of its own.
///
/// # Safety
/// As for [`clear`].
#[inline(always)]
pub(super) unsafe fn scale<T: Real>(place: Place<T>, columns: usize, factors: &[T]) {
    for (row, &factor) in factors.iter().enumerate() {
        // SAFETY: promised by the caller.
        for x in unsafe { place.row(row, columns) } {
            *x = *x * factor;
        }
    }
}
