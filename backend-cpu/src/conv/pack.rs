//! Copies of images, in the order in which the loops of a convolution read them, with zeros where there is no image.

use super::lattice::{Axis, Blocks};
use crate::memory::elements::Element;
use crate::simd::float::Stored;

/// Packs the elements that a block reads of some channels. The channels are contiguous in `from`, and `every` elements apart in
/// `to`.
pub(super) fn channels<T: Stored>(
    axes: &[Axis; 2],
    blocks: &Blocks,
    block: usize,
    from: &[T],
    (to, every): (&mut [T::Sum], usize),
) {
    let [rows, width] = blocks.plane;
    let source = axes[0].source * axes[1].source;
    let first = blocks.first(block);
    let pairs = (0..axes[0].residues.len()).flat_map(|r| (0..axes[1].residues.len()).map(move |c| [r, c]));
    for (plane, [down, across]) in pairs.enumerate() {
        let (present, top) = axes[0].present(down, first[0], rows);
        let (columns, left) = axes[1].present(across, first[1], width);
        let all = present.len() == rows && columns.len() == width;
        let one_piece = axes[0].stride == 1 && columns.len() == axes[1].source && columns.len() == width;
        for (channel, to) in to.chunks_mut(every.max(1)).enumerate() {
            let to = &mut to[plane * rows * width..][..rows * width];
            if !all {
                to.fill(Element::from_f64(0.0));
            }
            if present.is_empty() || columns.is_empty() {
                continue;
            }
            let from = &from[channel * source..][..source];
            if one_piece {
                let len = present.len() * width;
                T::read(&from[top * width..][..len], &mut to[present.start * width..][..len]);
                continue;
            }
            for row in present.clone() {
                let at = (top + (row - present.start) * axes[0].stride) * axes[1].source + left;
                let to = &mut to[row * width..][columns.clone()];
                match axes[1].stride {
                    1 => T::read(&from[at..][..to.len()], to),
                    2 => spaced::<T>(&from[at..], 2, to),
                    stride => spaced::<T>(&from[at..], stride, to),
                }
            }
        }
    }
}

/// Copies with a stride. A constant stride lets the compiler vectorize the loop.
#[inline(always)]
fn spaced<T: Stored>(from: &[T], stride: usize, to: &mut [T::Sum]) {
    let from = &from[..(to.len() - 1) * stride + 1];
    for (i, to) in to.iter_mut().enumerate() {
        *to = from[i * stride].one();
    }
}

/// Packs a block of some planes of cotangents, `len` elements of each, in the order of vectors over its positions, with zeros where
/// there is no position. In `to` planes are `every` elements apart.
pub(super) fn positions<T: Stored>(
    axes: &[Axis; 2],
    blocks: &Blocks,
    block: usize,
    from: &[T],
    len: usize,
    (to, every): (&mut [T::Sum], usize),
) {
    let first = blocks.first(block);
    let [rows, columns] = [0, 1].map(|d| axes[d].written(0, first[d], blocks.extents[d]));
    let width = axes[1].result;
    let one_piece = columns == width && blocks.pitch == width;
    let all = if one_piece { rows * width } else { 0 };
    for (to, from) in to.chunks_mut(every.max(1)).zip(from.chunks_exact(axes[0].result * width)) {
        let to = &mut to[..len];
        let from = &from[first[0] * width..][..rows * width];
        to[all..].fill(Element::from_f64(0.0));
        if one_piece {
            T::read(from, &mut to[..all]);
            continue;
        }
        for (row, from) in from.chunks_exact(width).enumerate() {
            T::read(&from[first[1]..][..columns], &mut to[row * blocks.pitch..][..columns]);
        }
    }
}
