//! The way a block of an index space lies in an operand's memory.

use crate::memory::{
    elements::{Element, Source},
    strides::{Walk, at},
};
use std::ops::Range;
use wgrad::{Shape, plan::Operand};

/// An operand as the loops see it: an outer and an inner walk.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub source: Source,
    /// True if the kernel reads here what it overwrites later.
    pub overwritten: bool,
    /// True if only chains read it: they take it from memory in contiguous pieces.
    pub in_pieces: bool,
    offset: isize,
    outer: Walk,
    inner: Walk,
}

impl View {
    /// An operand whose last dimensions from `split` on are the inner ones, or the outer ones where `transposed`.
    pub fn new(source: Source, operand: &Operand, split: usize, transposed: bool) -> Self {
        let (kept, reduced) = operand.shape.split_at(split);
        let (kept_strides, reduced_strides) = operand.strides.split_at(split);
        let (kept, reduced) = (Walk::new(kept, kept_strides), Walk::new(reduced, reduced_strides));
        let (outer, inner) = if transposed { (reduced, kept) } else { (kept, reduced) };
        Self { source, overwritten: false, in_pieces: false, offset: operand.offset as isize, outer, inner }
    }

    /// Rows of `width` elements, one after another.
    pub fn rows(source: Source, rows: usize, columns: usize, width: usize) -> Self {
        let (outer, inner) = (Walk::new(&[rows], &[width as isize]), Walk::new(&[columns], &[1]));
        Self { source, overwritten: false, in_pieces: false, offset: 0, outer, inner }
    }

    /// True if the same elements are seen at the same places.
    pub fn shows_the_same(&self, other: &Self) -> bool {
        self.source == other.source
            && self.offset == other.offset
            && self.outer == other.outer
            && self.inner == other.inner
    }

    /// True if some block may be contiguous.
    pub fn may_be_direct(&self) -> bool {
        self.inner.stride == 1 || self.inner.len() == 1
    }

    /// The most elements of a row that are contiguous.
    pub fn piece_len(&self) -> usize {
        if self.inner.stride == 1 { self.inner.inner } else { 1 }
    }

    /// The place where a line begins.
    pub fn line(&self, outer: usize) -> isize {
        self.offset + self.outer.at(outer)
    }

    /// The distance of an element from its line's beginning, and the number of contiguous elements from it on.
    #[inline]
    pub fn piece(&self, inner: usize) -> (isize, usize) {
        let (across, run) = self.inner.run(inner);
        (across, if self.inner.stride == 1 { run } else { 1 })
    }

    /// The strides of the innermost dimension of each walk.
    pub fn strides(&self) -> (isize, isize) {
        (self.outer.stride, self.inner.stride)
    }

    /// The beginning of a block, if it is contiguous.
    #[inline]
    pub fn direct(&self, outer: Range<usize>, inner: Range<usize>) -> Option<isize> {
        let (rows, columns) = (outer.len(), inner.len());
        let (column, run) = self.inner.run(inner.start);
        if columns > 1 && (self.inner.stride != 1 || run < columns) {
            return None;
        }
        let (row, run) = self.outer.run(outer.start);
        if rows > 1 && (self.outer.stride != columns as isize || run < rows) {
            return None;
        }
        Some(self.offset + row + column)
    }

    /// Visits a block in rectangles whose rows and columns are evenly spaced: the rectangle's first row and column
    /// within the block, its height and width, and where it begins in memory.
    #[inline]
    fn rectangles(&self, outer: Range<usize>, inner: Range<usize>, mut f: impl FnMut([usize; 4], isize)) {
        self.outer.runs(outer, |row, height, down| {
            self.inner.runs(inner.clone(), |column, width, across| {
                f([row, column, height, width], self.offset + down + across);
            });
        });
    }

    /// Copies a block out of memory, row-major.
    pub fn gather<T: Element>(&self, x: &[T], shift: isize, outer: Range<usize>, inner: Range<usize>, to: &mut [T]) {
        let columns = inner.len();
        let (down, across) = self.strides();
        self.rectangles(outer, inner, |[row, column, height, width], start| {
            let start = start - shift;
            if width == 1 {
                let to = to[row * columns + column..].iter_mut().step_by(columns).take(height);
                return to.enumerate().for_each(|(r, to)| *to = x[at(start, r, down)]);
            }
            // Neighbours in memory stand in one column of the block.
            if down == 1 && height > 1 && !matches!(across, 0 | 1) {
                for i in 0..width {
                    let from = &x[at(start, i, across)..][..height];
                    let to = to[row * columns + column + i..].iter_mut().step_by(columns);
                    to.zip(from).for_each(|(to, &x)| *to = x);
                }
                return;
            }
            for r in 0..height {
                let to = &mut to[(row + r) * columns + column..][..width];
                let from = at(start, r, down);
                match across {
                    1 => to.copy_from_slice(&x[from..][..width]),
                    0 => to.fill(x[from]),
                    _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = x[at(from as isize, i, across)]),
                }
            }
        });
    }

    /// The position of each element of a block: what [`Self::gather`] reads, as numbers.
    pub fn positions(&self, outer: Range<usize>, inner: Range<usize>, mut f: impl FnMut(usize, usize)) {
        let columns = inner.len();
        let (down, across) = self.strides();
        self.rectangles(outer, inner, |[row, column, height, width], start| {
            for r in 0..height {
                let from = at(start, r, down) as isize;
                (0..width).for_each(|i| f((row + r) * columns + column + i, at(from, i, across)));
            }
        });
    }

    /// Hands out the stretches of memory that a block is to be written to: where in the block each begins, where in
    /// memory, its length and stride.
    pub fn scatter(&self, outer: Range<usize>, inner: Range<usize>, mut f: impl FnMut(usize, usize, usize, isize)) {
        let columns = inner.len();
        let (down, across) = self.strides();
        self.rectangles(outer, inner, |[row, column, height, width], start| {
            if width == 1 && columns == 1 {
                return f(row, start as usize, height, down);
            }
            for r in 0..height {
                f((row + r) * columns + column, at(start, r, down), width, across);
            }
        });
    }
}

/// The number of last dimensions that all of these operands walk through evenly: the widest rows that a space has.
pub(crate) fn even_tail<'a>(space: &Shape, operands: impl Iterator<Item = &'a Operand> + Clone) -> usize {
    let mut first = space.rank();
    // The dimension that the tail begins with, those of extent 1 apart.
    let mut last: Option<usize> = None;
    for d in (0..space.rank()).rev() {
        if space[d] != 1 {
            let even = |o: &Operand| last.is_none_or(|l| o.strides[d] == o.strides[l] * space[l] as isize);
            if !operands.clone().all(even) {
                break;
            }
            last = Some(d);
        }
        first = d;
    }
    space.rank() - first
}
