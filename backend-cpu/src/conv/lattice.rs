//! The places of the operands of a convolution, or of the gradient of its images: along each axis, and in a block.
//!
//! Along one axis, element `e` of the kernel brings together position `i s + e d - p` of the images and position `i` of
//! the result. Both directions of this become sums without strides: a forward pass with stride `s` reads the images as
//! `s` images, one for each remainder of the position; a gradient of the images writes its result so. What is left is a
//! **shift** from the position at hand, the same for all positions.

use crate::memory::sizes::Sizes;
use std::ops::Range;

/// An element of the kernel along one axis.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tap {
    /// The element.
    pub element: usize,
    /// The residue that it reads, among those in use.
    pub residue: usize,
    /// The distance of its read from the position at hand, from the lowest shift on.
    pub shift: usize,
}

/// One axis: the source that is read, the result that is written.
#[derive(Debug)]
pub(super) struct Axis {
    /// The extent of the source.
    pub source: usize,
    /// The extent of the result.
    pub result: usize,
    /// The number of positions: position `u` writes `u spread + phase` of the result, and reads `(u + shift) stride + residue`
    /// of the source.
    pub positions: usize,
    /// See above.
    pub spread: usize,
    /// See above.
    pub stride: usize,
    /// The taps of each phase of the result.
    pub phases: Vec<Vec<Tap>>,
    /// The residues in use.
    pub residues: Vec<usize>,
    /// The lowest shift.
    pub low: isize,
    /// The highest shift less the lowest.
    pub reach: usize,
}

/// A convolution along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
    pub kernel: usize,
}

impl Axis {
    /// From images to results.
    pub fn forward(walk: Walk, image: usize, result: usize) -> Self {
        let stride = walk.stride as isize;
        let taps = (0..walk.kernel).map(|e| {
            let at = (e * walk.dilation) as isize - walk.padding as isize;
            (e, at.rem_euclid(stride) as usize, at.div_euclid(stride))
        });
        Self::new([image, result], result, [1, walk.stride], vec![taps.collect()])
    }

    /// From cotangents of results to those of images.
    pub fn backward(walk: Walk, image: usize, result: usize) -> Self {
        let stride = walk.stride as isize;
        let phase = |r: usize| {
            let taps = (0..walk.kernel).map(|e| (e, (r + walk.padding) as isize - (e * walk.dilation) as isize));
            taps.filter(|(_, at)| at % stride == 0).map(|(e, at)| (e, 0, at / stride)).collect()
        };
        let phases = (0..walk.stride).map(phase).collect();
        Self::new([result, image], image.div_ceil(walk.stride), [walk.stride, 1], phases)
    }

    /// Of taps that are given as element, residue and shift.
    fn new(
        [source, result]: [usize; 2],
        positions: usize,
        [spread, stride]: [usize; 2],
        phases: Vec<Vec<(usize, usize, isize)>>,
    ) -> Self {
        let all = || phases.iter().flatten();
        let (low, high) = all().fold((isize::MAX, isize::MIN), |(a, b), tap| (a.min(tap.2), b.max(tap.2)));
        let mut residues: Vec<usize> = all().map(|tap| tap.1).collect();
        residues.sort_unstable();
        residues.dedup();
        let place = |residue: usize| residues.binary_search(&residue).expect("it is one of them");
        let tap = |&(element, residue, shift): &(usize, usize, isize)| Tap {
            element,
            residue: place(residue),
            shift: (shift - low) as usize,
        };
        let phases = phases.iter().map(|taps| taps.iter().map(tap).collect()).collect();
        Self { source, result, positions, spread, stride, phases, residues, low, reach: (high - low) as usize }
    }

    /// The elements of a row, packed for positions from `first` on, that exist in the source, and the place of the first of
    /// these there.
    pub fn present(&self, residue: usize, first: usize, len: usize) -> (Range<usize>, usize) {
        let start = (first as isize + self.low) * self.stride as isize + self.residues[residue] as isize;
        let stride = self.stride as isize;
        // The number of elements that lie before a position of the source.
        let before =
            |position: usize| (position as isize - start + stride - 1).div_euclid(stride).clamp(0, len as isize);
        let (low, high) = (before(0), before(self.source));
        (low as usize..high.max(low) as usize, (start + low * stride).max(0) as usize)
    }

    /// The number of positions of a phase, from `first` on, that write something.
    pub fn written(&self, phase: usize, first: usize, len: usize) -> usize {
        let all = (self.result.saturating_sub(phase)).div_ceil(self.spread);
        all.saturating_sub(first).min(len)
    }
}

/// Blocks of positions, and how the source is packed for one of them: for each channel, for each pair of residues, a
/// plane of rows.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Positions of a block.
    pub extents: [usize; 2],
    /// The number of blocks.
    pub counts: [usize; 2],
    /// Rows of a packed plane, and elements of a row.
    pub plane: [usize; 2],
    /// Elements of a packed channel.
    pub channel: usize,
    /// Positions from one row to the next, as vectors go over them: over rows that are whole vectors one by one, else
    /// over packed rows with all they have.
    pub pitch: usize,
    /// The place where in a packed plane each vector begins.
    pub vectors: Vec<usize>,
}

/// The number of tasks that there should be at least, if they are not small.
pub(super) const TASKS: usize = 8;

impl Blocks {
    /// `channels` are packed at a time; `tasks` are done for each block, all of them together costing `work`.
    pub fn new(axes: &[Axis; 2], channels: usize, tasks: usize, work: usize, lanes: usize, sizes: Sizes) -> Self {
        // Work below this many multiplications is not split; sixteen of them cost as much as one addition of a loop.
        let small = sizes.serial * 16;
        let positions = [axes[0].positions, axes[1].positions];
        let planes = axes[0].residues.len() * axes[1].residues.len();
        let plane = |extents: [usize; 2]| [extents[0] + axes[0].reach, extents[1] + axes[1].reach];
        let packed = |extents: [usize; 2]| channels * planes * plane(extents).iter().product::<usize>();
        let counts = |extents: [usize; 2]| [0, 1].map(|d| positions[d].div_ceil(extents[d]));
        let mut extents = positions.map(|n| n.max(1));
        while extents[0] > 1 && packed(extents) > sizes.packed {
            extents[0] = extents[0].div_ceil(2);
        }
        while extents[1] > 4 * lanes && packed(extents) > sizes.packed {
            extents[1] = extents[1].div_ceil(2).next_multiple_of(lanes);
        }
        while extents[0] > 4 && tasks.saturating_mul(counts(extents).iter().product()) < TASKS && work > small {
            extents[0] = extents[0].div_ceil(2);
        }
        // Blocks of about equal size.
        extents[0] = positions[0].div_ceil(counts(extents)[0].max(1)).max(1);
        let plane = plane(extents);
        let pitch = if extents[1].is_multiple_of(lanes) { extents[1] } else { plane[1] };
        let all = (extents[0] - 1) * pitch + extents[1];
        let vectors = (0..all.div_ceil(lanes)).map(|v| v * lanes / pitch * plane[1] + v * lanes % pitch).collect();
        Self { extents, counts: counts(extents), plane, channel: planes * plane[0] * plane[1], pitch, vectors }
    }

    /// The number of vectors that have positions in the first rows of a block.
    pub fn vectors_of(&self, rows: usize, lanes: usize) -> usize {
        if rows == 0 { 0 } else { ((rows - 1) * self.pitch + self.extents[1]).div_ceil(lanes) }
    }

    /// The number of blocks in all.
    pub fn len(&self) -> usize {
        self.counts[0] * self.counts[1]
    }

    /// The first position of a block.
    pub fn first(&self, block: usize) -> [usize; 2] {
        [block / self.counts[1] * self.extents[0], block % self.counts[1] * self.extents[1]]
    }

    /// The place where a pair of taps reads in a packed channel, from a position on.
    pub fn offset(&self, axes: &[Axis; 2], taps: [Tap; 2]) -> usize {
        let plane = taps[0].residue * axes[1].residues.len() + taps[1].residue;
        (plane * self.plane[0] + taps[0].shift) * self.plane[1] + taps[1].shift
    }
}
