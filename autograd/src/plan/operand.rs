//! Strided views of a slot, and the effect of movement ops on them.

use crate::{Shape, op::Op};

/// A strided view of a slot: the elements that a kernel reads, or those that it writes.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// The slot.
    pub slot: usize,
    /// The first element.
    pub offset: usize,
    /// The extents that the reader sees.
    pub shape: Shape,
    /// The distance between neighbours along each dimension, in elements; 0 repeats, negative walks backwards.
    pub strides: Vec<isize>,
}

impl Operand {
    /// All of a slot, from its first element on.
    pub fn contiguous(slot: usize, shape: &Shape) -> Self {
        Self { slot, offset: 0, shape: shape.clone(), strides: shape.strides() }
    }

    /// All of a slot that holds matrices `[.., heads, rows, columns]` with the same row of all heads side by side.
    pub(super) fn heads(slot: usize, shape: &Shape) -> Self {
        let mut strides = shape.strides();
        let r = shape.rank();
        (strides[r - 3], strides[r - 2]) = (shape[r - 1] as isize, (shape[r - 3] * shape[r - 1]) as isize);
        Self { slot, offset: 0, shape: shape.clone(), strides }
    }

    /// True if the elements of each row, if there are any, lie one after another, and no row lies before the one above it.
    pub fn is_in_rows(&self) -> bool {
        let one = |d: usize| self.shape.get(d).is_none_or(|&extent| extent <= 1);
        let r = self.shape.rank();
        self.shape.numel() == 0
            || r > 0 && (one(r - 1) || self.strides[r - 1] == 1) && (r < 2 || one(r - 2) || self.strides[r - 2] >= 0)
    }

    /// True if no stride of 0 repeats an element.
    pub(super) fn is_part(&self) -> bool {
        self.shape.iter().zip(&self.strides).all(|(&extent, &stride)| extent <= 1 || stride != 0)
    }

    /// True if the elements lie one after another, row-major.
    pub fn is_contiguous(&self) -> bool {
        let unit = self.shape.strides();
        self.shape.numel() == 0 || (0..self.shape.rank()).all(|d| self.shape[d] == 1 || self.strides[d] == unit[d])
    }

    /// The same elements after each `width` of the slot's elements have moved apart, to a distance of `pitch`. `None` if no strides
    /// describe that.
    pub(super) fn spread(&self, width: usize, pitch: usize) -> Option<Self> {
        let (mut strides, mut reach) = (vec![], self.offset % width.max(1));
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            let stride = usize::try_from(stride).ok()?;
            strides.push(if stride.is_multiple_of(width) {
                (stride / width.max(1) * pitch) as isize
            } else {
                reach += extent.saturating_sub(1) * stride;
                stride as isize
            });
        }
        let offset = self.offset / width.max(1) * pitch + self.offset % width.max(1);
        (reach < width || self.shape.numel() == 0).then_some(Self { offset, strides, ..self.clone() })
    }

    /// The effect of a movement op on this read; `None` if it takes a copy.
    pub(crate) fn through(&self, op: &Op, shape: &Shape) -> Option<Self> {
        let mut view = Operand { shape: shape.clone(), ..self.clone() };
        match op {
            Op::Reshape(_) => return self.reshaped(shape),
            Op::Permute(order) => view.strides = order.iter().map(|&d| self.strides[d]).collect(),
            Op::Expand(_) => {
                let repeated = |d: usize| if self.shape[d] == shape[d] { self.strides[d] } else { 0 };
                view.strides = (0..shape.rank()).map(repeated).collect();
            }
            Op::Slice { axis, start, step, .. } => {
                view.offset = (self.offset as isize + *start as isize * self.strides[*axis]) as usize;
                view.strides[*axis] *= step;
                if shape.numel() == 0 {
                    view.offset = 0; // Nothing is read, so nothing may lie outside the slot.
                }
            }
            _ => return None,
        }
        Some(view)
    }

    /// The same elements in another shape of equally many elements, if that takes no copy.
    pub(crate) fn reshaped(&self, to: &Shape) -> Option<Self> {
        let strides = if self.shape == *to { self.strides.clone() } else { self.strides_in(to)? };
        Some(Operand { shape: to.clone(), strides, ..self.clone() })
    }

    /// Strides that show this read in another shape, if there are any: groups of dimensions with equal numbers of
    /// elements must each be evenly spaced.
    fn strides_in(&self, to: &Shape) -> Option<Vec<isize>> {
        if self.is_contiguous() {
            return Some(to.strides());
        }
        let mut strides = vec![0; to.rank()];
        let from: Vec<(usize, isize)> =
            (0..self.shape.rank()).map(|d| (self.shape[d], self.strides[d])).filter(|(n, _)| *n != 1).collect();
        let (mut i, mut j) = (0, 0);
        while i < from.len() {
            let (mut have, mut want) = (from[i].0, 1);
            let (first_i, first_j) = (i, j);
            while have != want || j == first_j {
                if want < have || j == first_j {
                    want *= *to.get(j)?;
                    j += 1;
                } else {
                    i += 1;
                    have *= from.get(i)?.0;
                }
            }
            // Dimensions first_i..=i become first_j..j: the former must nest without gaps.
            if from[first_i..=i].windows(2).any(|w| w[0].1 != w[1].1 * w[1].0 as isize) {
                return None;
            }
            let mut stride = from[i].1;
            for d in (first_j..j).rev() {
                strides[d] = stride;
                stride *= to[d] as isize;
            }
            i += 1;
        }
        Some(strides)
    }
}
