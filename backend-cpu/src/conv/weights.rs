//! The gradient of a convolution's weights: products of cotangents and images, summed over all positions of all images.
//!
//! A task takes some channels of a group and some of the images, one after another; it adds up vectors of products over
//! the positions of a few units (blocks of images) in registers, then their elements, unit after unit, in f32 (in f64
//! what is stored so). The sums of the tasks are added in the order of the images. How the work is cut up follows from
//! the shapes alone, and so do the bits of the result.

use super::{
    Geometry, Room,
    lattice::{Axis, Blocks, TASKS},
    pack,
    real::{Real, Stored},
    tile::{Machine, Pairs},
};
use crate::{
    cut::Sizes,
    memory::{Element, Target},
    pool::Pool,
    scratch::{Files, Workers},
};
use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// Channels of a task, at most.
const CHANNELS: usize = 16;

/// The gradient of a convolution's weights.
#[derive(Debug)]
pub(super) struct Weights {
    geometry: Geometry,
    axes: [Axis; 2],
    blocks: Blocks,
    /// Channels of a task, and how many parts those of a group are so cut into.
    channels: [usize; 2],
    /// Images of a task, and how many parts all images are so cut into.
    images: [usize; 2],
    /// Blocks that are packed at a time.
    units: usize,
    /// Where each element of the kernel reads, for each channel of a task.
    taps: Vec<usize>,
    machine: Machine,
    /// The sums of all tasks, in the scratch of the thread that runs the kernel; packed images and cotangents, in that of
    /// each.
    room: [usize; 3],
}

impl Weights {
    pub fn new<T: Stored>(geometry: Geometry, sizes: Sizes, files: &mut Files) -> Self {
        let axes = [0, 1].map(|d| Axis::forward(geometry.walks[d], geometry.image[d], geometry.result[d]));
        let [outs, ins] = geometry.channels;
        let machine = Machine::new::<T::Sum>();
        let parts = ins.div_ceil(CHANNELS);
        let channels = [ins.div_ceil(parts.max(1)).max(1), parts];
        let split = TASKS.div_ceil((geometry.groups * parts).max(1)).min(geometry.images.max(1));
        let each = geometry.images.div_ceil(split).max(1);
        let images = [each, geometry.images.div_ceil(each)];
        // Blocks are there to fit into a cache only.
        let blocks = Blocks::new(&axes, channels[0] + outs, usize::MAX, 0, machine.lanes, sizes);
        let unit = channels[0] * blocks.channel + outs * blocks.vectors.len() * machine.lanes;
        let units = (sizes.packed / unit.max(1)).clamp(1, (images[0] * blocks.len()).max(1));
        let pairs = axes[0].phases[0].iter().flat_map(|&a| axes[1].phases[0].iter().map(move |&b| [a, b]));
        let offsets: Vec<usize> = pairs.map(|taps| blocks.offset(&axes, taps)).collect();
        let taps = (0..channels[0])
            .flat_map(|c| offsets.iter().map(move |offset| (c, offset)))
            .map(|(c, o)| c * blocks.channel + o);
        let taps: Vec<usize> = taps.collect();
        let sums = geometry.groups * outs * parts * images[1] * taps.len();
        let room = [
            sums,
            units * channels[0] * blocks.channel + machine.lanes,
            units * outs * blocks.vectors.len() * machine.lanes,
        ]
        .map(|len| files.take(T::Sum::DTYPE, len));
        Self { geometry, axes, blocks, channels, images, units, taps, machine, room }
    }

    /// Runs it on contiguous cotangents and images; the result begins at `start` of the target.
    pub fn run<T: Stored>(
        &self,
        [cotangents, images]: [&[T]; 2],
        (target, start): (&Target, usize),
        workers: &Workers,
        pool: Pool,
    ) {
        let Geometry { groups, channels: [outs, ins], .. } = self.geometry;
        let room = Room::<T::Sum>::take(workers, self.room[0]);
        let ([_, parts], [_, chunks]) = (self.channels, self.images);
        let len = outs * self.taps.len();
        pool.each(groups * parts * chunks, self.geometry.work() / 16, |range| {
            for task in range {
                let part = Part { group: task / chunks / parts, channels: task / chunks % parts, chunk: task % chunks };
                // SAFETY: each task has sums of its own.
                let sums = unsafe { room.part(task * len, len) };
                sums.fill(Element::from_f64(0.0));
                self.sum(&part, [cotangents, images], workers, sums);
            }
        });
        let sums = room.seen();
        let width = self.taps.len();
        let kernel = width / self.channels[0];
        pool.each(groups * outs, groups * outs * ins * kernel * chunks, |range| {
            for result in range {
                let (group, m) = (result / outs, result % outs);
                // SAFETY: each thread writes the weights of its own results.
                let to = unsafe { target.part::<T>(start + result * ins * kernel, ins * kernel) };
                for (part, to) in to.chunks_mut(width).enumerate() {
                    for (t, to) in to.iter_mut().enumerate() {
                        let of = |chunk: usize| sums[((group * parts + part) * chunks + chunk) * len + m * width + t];
                        let sum = (0..chunks).map(of).fold(T::Sum::from_f64(0.0), |sum, part| sum.plus(part));
                        *to = T::nearest(sum);
                    }
                }
            }
        });
    }

    /// Adds up what a task does.
    fn sum<T: Stored>(&self, part: &Part, from: [&[T]; 2], workers: &Workers, sums: &mut [T::Sum]) {
        let [each, _] = self.images;
        let images = part.chunk * each..self.geometry.images.min((part.chunk + 1) * each);
        let units = images.start * self.blocks.len()..images.end * self.blocks.len();
        let mut scratch = workers.mine();
        let [images, cotangents] =
            scratch.registers.get_disjoint_mut([self.room[1], self.room[2]]).expect("they differ");
        let [images, cotangents] = [images, cotangents].map(T::Sum::slice_mut);
        for first in units.clone().step_by(self.units) {
            let units = first..units.end.min(first + self.units);
            self.pack(part, from, units.clone(), [cotangents, images]);
            let first = part.channels * self.channels[0];
            let channels = self.channels[0].min(self.geometry.channels[1] - first);
            let taps = &self.taps[..channels * (self.taps.len() / self.channels[0])];
            let task = Task { of: self, packed: [&*cotangents, &*images], units: units.len(), taps, sums: &mut *sums };
            Arch::new().dispatch(task);
        }
    }

    /// Packs some units of the cotangents and images of a task.
    fn pack<T: Stored>(&self, part: &Part, from: [&[T]; 2], units: Range<usize>, to: [&mut [T::Sum]; 2]) {
        let Geometry { groups, channels: [outs, ins], .. } = self.geometry;
        let [cotangents, images] = to;
        let [result, plane] = [true, false].map(|result| self.geometry.plane(!result));
        let first = part.channels * self.channels[0];
        let channels = self.channels[0].min(ins - first);
        let wide = self.blocks.vectors.len() * self.machine.lanes;
        let count = units.len();
        for (i, unit) in units.enumerate() {
            let (image, block) = (unit / self.blocks.len(), unit % self.blocks.len());
            let group = image * groups + part.group;
            for c in 0..channels {
                let from = &from[1][(group * ins + first + c) * plane..][..plane];
                let to = &mut images[(i * self.channels[0] + c) * self.blocks.channel..][..self.blocks.channel];
                pack::channel(&self.axes, &self.blocks, block, from, to);
            }
            for m in 0..outs {
                let from = &from[0][(group * outs + m) * result..][..result];
                pack::positions(
                    &self.axes,
                    &self.blocks,
                    block,
                    from,
                    &mut cotangents[(i * outs + m) * wide..][..wide],
                );
            }
        }
        // Vectors look beyond the last position, and what they find there is multiplied by 0.
        let end = ((count - 1) * self.channels[0] + channels) * self.blocks.channel;
        images[end..][..self.machine.lanes].fill(Element::from_f64(0.0));
    }
}

/// What a task does: some channels of a group, some images.
struct Part {
    group: usize,
    channels: usize,
    chunk: usize,
}

/// Some packed units of a task.
struct Task<'a, A> {
    of: &'a Weights,
    /// Cotangents, and images.
    packed: [&'a [A]; 2],
    units: usize,
    taps: &'a [usize],
    sums: &'a mut [A],
}

impl<A: Real> WithSimd for Task<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Weights { blocks, machine, geometry, channels, .. } = self.of;
        let wide = blocks.vectors.len() * machine.lanes;
        let [outs, _] = geometry.channels;
        let pairs = Pairs {
            cotangents: self.packed[0],
            cotangent: [outs * wide, wide],
            images: self.packed[1],
            image: channels[0] * blocks.channel,
            units: self.units,
            vectors: &blocks.vectors,
        };
        let width = self.of.taps.len();
        let few = machine.registers < 32;
        let mut m = 0;
        while m < outs {
            let rows = if outs - m >= 4 { 4 } else { 1 };
            let mut t = 0;
            while t < self.taps.len() {
                let out = (&mut self.sums[m * width + t..(m + rows - 1) * width + self.taps.len()], width);
                let taps = &self.taps[t..];
                t += match (rows, taps.len()) {
                    (4, 6..) if !few => {
                        pairs.add::<S, 4, 6>(simd, m, taps, out);
                        6
                    }
                    (4, 3..) => {
                        pairs.add::<S, 4, 3>(simd, m, taps, out);
                        3
                    }
                    (4, _) => {
                        pairs.add::<S, 4, 1>(simd, m, taps, out);
                        1
                    }
                    (_, 9..) if !few => {
                        pairs.add::<S, 1, 9>(simd, m, taps, out);
                        9
                    }
                    (_, 3..) => {
                        pairs.add::<S, 1, 3>(simd, m, taps, out);
                        3
                    }
                    _ => {
                        pairs.add::<S, 1, 1>(simd, m, taps, out);
                        1
                    }
                };
            }
            m += rows;
        }
    }
}
