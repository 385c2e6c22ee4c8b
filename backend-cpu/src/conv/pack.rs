//! Copies of images, in the order in which the loops of a convolution read them, with zeros where there is no image.

use super::{
    lattice::{Axis, Blocks},
    real::Stored,
};
use crate::memory::Element;

/// Packs what a block reads of one channel: `from` is that channel's plane.
pub(super) fn channel<T: Stored>(axes: &[Axis; 2], blocks: &Blocks, block: usize, from: &[T], to: &mut [T::Sum]) {
    let [rows, width] = blocks.plane;
    let first = blocks.first(block);
    let planes = (0..axes[0].residues.len()).flat_map(|r| (0..axes[1].residues.len()).map(move |c| [r, c]));
    for ([down, across], to) in planes.zip(to.chunks_exact_mut(rows * width)) {
        let (present, top) = axes[0].present(down, first[0], rows);
        let (columns, left) = axes[1].present(across, first[1], width);
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            if !present.contains(&row) || columns.is_empty() {
                to.fill(Default::default());
                continue;
            }
            let at = (top + (row - present.start) * axes[0].stride) * axes[1].source + left;
            to[..columns.start].fill(Default::default());
            to[columns.end..].fill(Default::default());
            spaced(&from[at..], axes[1].stride, &mut to[columns.clone()]);
        }
    }
}

/// Every so manyth element.
fn spaced<T: Stored>(from: &[T], stride: usize, to: &mut [T::Sum]) {
    match stride {
        1 => T::read(&from[..to.len()], to),
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = from.one()),
    }
}

/// Packs a block of one plane of cotangents, as vectors go over its positions: zeros where there is no position.
pub(super) fn positions<T: Stored>(axes: &[Axis; 2], blocks: &Blocks, block: usize, from: &[T], to: &mut [T::Sum]) {
    let first = blocks.first(block);
    let rows = axes[0].written(0, first[0], blocks.extents[0]);
    let columns = axes[1].written(0, first[1], blocks.extents[1]);
    for (row, to) in to.chunks_mut(blocks.pitch).enumerate() {
        let here = if row < rows { columns.min(to.len()) } else { 0 };
        if here > 0 {
            T::read(&from[(first[0] + row) * axes[1].result + first[1]..][..here], &mut to[..here]);
        }
        to[here..].fill(Element::from_f64(0.0));
    }
}
