//! The gradient of a convolution's weights: products of cotangents and images, summed over all positions of all images.
//!
//! A task takes some channels of a group and some of the images, one after another; it adds up vectors of products over
//! the positions of a few units (blocks of images) in registers, then their elements, unit after unit, in f32 (in f64
//! what is stored so). The sums of the tasks are added in the order of the images. How the work is cut up follows from
//! the shapes alone, and so do the bits of the result.

use super::{
    Geometry,
    lattice::{Axis, Blocks, TASKS},
    pack,
    tile::{Machine, Pairs},
};
use crate::simd::float::{Real, Stored};
use crate::{
    memory::{
        elements::{Element, Target, aligned_mut},
        scratch::{Files, Room, Workers},
        sizes::Sizes,
    },
    threads::pool::Pool,
};
use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// Channels of results, and of images, that a task has at most: each is packed for each part of the others.
const CHANNELS: [usize; 2] = [64, 32];

/// The least number of vectors of products that are summed before their elements are, if a task has so many; and about the most,
/// of several blocks: the cotangents of a tile then stay in the first cache.
const VECTORS: [usize; 2] = [64, 96];

/// The gradient of a convolution's weights.
#[derive(Debug)]
pub(super) struct Weights {
    geometry: Geometry,
    axes: [Axis; 2],
    blocks: Blocks,
    /// Channels of results and of images that a task has.
    channels: [usize; 2],
    /// The number of parts that those of a group are so cut into.
    parts: [usize; 2],
    /// Images of a task, and the number of such parts in all images.
    images: [usize; 2],
    /// Blocks that are packed at a time.
    units: usize,
    /// The beginning of each vector in a packed channel, block after block.
    vectors: Vec<usize>,
    /// The reads of each element of the kernel, for each channel of a task.
    taps: Vec<usize>,
    machine: Machine,
    /// The sums of all tasks, in the scratch of the thread that runs the kernel; packed images and cotangents, in that of
    /// each.
    room: [usize; 3],
}

impl Weights {
    pub fn new<T: Stored>(geometry: Geometry, sizes: Sizes, files: &mut Files) -> Self {
        let axes = [0, 1].map(|d| Axis::forward(geometry.walks[d], geometry.image[d], geometry.result[d]));
        let machine = Machine::new::<T::Sum>();
        let parts = [0, 1].map(|d| geometry.channels[d].div_ceil(CHANNELS[d]));
        let channels = [0, 1].map(|d| geometry.channels[d].div_ceil(parts[d].max(1)).max(1));
        // The only purpose of blocks here is to fit into a cache.
        let blocks = Blocks::new(&axes, channels[0] + channels[1], usize::MAX, 0, machine.lanes, sizes);
        let vectors = blocks.vectors.len();
        let tasks = TASKS.div_ceil((geometry.groups * parts[0] * parts[1]).max(1));
        let least = VECTORS[0].div_ceil((blocks.len() * vectors).max(1));
        let each = geometry.images.div_ceil(tasks).max(if sizes.serial == 0 { 1 } else { least });
        let images = [each, geometry.images.div_ceil(each.max(1))];
        let unit = channels[1] * blocks.channel + channels[0] * vectors * machine.lanes;
        let most = (2 * sizes.packed / unit.max(1)).min(VECTORS[1] / vectors.max(1));
        let units = most.clamp(1, (images[0] * blocks.len()).max(1));
        let pairs = axes[0].phases[0].iter().flat_map(|&a| axes[1].phases[0].iter().map(move |&b| [a, b]));
        let offsets: Vec<usize> = pairs.map(|taps| blocks.offset(&axes, taps)).collect();
        let taps = (0..channels[1])
            .flat_map(|c| offsets.iter().map(move |offset| (c, offset)))
            .map(|(c, o)| c * units * blocks.channel + o);
        let taps: Vec<usize> = taps.collect();
        let sums = geometry.groups * parts[0] * parts[1] * images[1] * channels[0] * taps.len();
        let packed = units * channels[1] * blocks.channel + machine.lanes;
        let room =
            [sums, packed, units * channels[0] * vectors * machine.lanes].map(|len| files.take(T::Sum::DTYPE, len));
        let first = |u: usize| blocks.vectors.iter().map(move |v| u * blocks.channel + v);
        let vectors = (0..units).flat_map(first).collect();
        Self { geometry, axes, blocks, channels, parts, images, units, vectors, taps, machine, room }
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
        let ([wide, narrow], [_, chunks]) = (self.parts, self.images);
        let len = self.channels[0] * self.taps.len();
        pool.each(groups * wide * narrow * chunks, self.geometry.work() / 16, |range| {
            for task in range {
                // SAFETY: each task has sums of its own.
                let sums = unsafe { room.part(task * len, len) };
                sums.fill(Element::from_f64(0.0));
                let (parts, chunk) = (task / chunks, task % chunks);
                let part = self.part(parts / narrow / wide, [parts / narrow % wide, parts % narrow], chunk);
                self.sum(&part, [cotangents, images], workers, sums);
            }
        });
        let sums = room.seen();
        let width = self.taps.len();
        let kernel = width / self.channels[1];
        pool.each(groups * outs, groups * outs * ins * kernel * chunks, |range| {
            for result in range {
                let (group, m) = (result / outs, result % outs);
                // SAFETY: each thread writes the weights of its own results.
                let to = unsafe { target.part::<T>(start + result * ins * kernel, ins * kernel) };
                for (part, to) in to.chunks_mut(width).enumerate() {
                    let first = ((group * wide + m / self.channels[0]) * narrow + part) * chunks;
                    for (t, to) in to.iter_mut().enumerate() {
                        let of = |chunk: usize| sums[(first + chunk) * len + m % self.channels[0] * width + t];
                        let sum = (0..chunks).map(of).fold(T::Sum::from_f64(0.0), |sum, part| sum + part);
                        *to = T::nearest(sum);
                    }
                }
            }
        });
    }

    /// The work of a task.
    fn part(&self, group: usize, parts: [usize; 2], chunk: usize) -> Part {
        let channels = [0, 1].map(|d| {
            let first = parts[d] * self.channels[d];
            first..self.geometry.channels[d].min(first + self.channels[d])
        });
        let each = self.images[0] * self.blocks.len();
        let units = chunk * each..(self.geometry.images * self.blocks.len()).min((chunk + 1) * each);
        Part { group, channels, units }
    }

    /// Sums the products of a task.
    fn sum<T: Stored>(&self, part: &Part, from: [&[T]; 2], workers: &Workers, sums: &mut [T::Sum]) {
        let mut scratch = workers.mine();
        let [images, cotangents] =
            scratch.registers.get_disjoint_mut([self.room[1], self.room[2]]).expect("they differ");
        let [images, cotangents] = [images, cotangents].map(|room| aligned_mut(T::Sum::slice_mut(room)));
        let taps = &self.taps[..part.channels[1].len() * (self.taps.len() / self.channels[1])];
        for first in part.units.clone().step_by(self.units) {
            let units = first..part.units.end.min(first + self.units);
            self.pack(part, from, units.clone(), [cotangents, images]);
            let (packed, results) = ([&*cotangents, &*images], part.channels[0].len());
            Arch::new().dispatch(Task { of: self, packed, results, units: units.len(), taps, sums: &mut *sums });
        }
    }

    /// Packs some units of the cotangents and images of a task.
    fn pack<T: Stored>(&self, part: &Part, from: [&[T]; 2], units: Range<usize>, to: [&mut [T::Sum]; 2]) {
        let Self { geometry, axes, blocks, .. } = self;
        let wide = blocks.vectors.len() * self.machine.lanes;
        // From one channel to the next: all blocks of a channel lie one behind the other.
        let every = [self.units * wide, self.units * blocks.channel];
        let [results, images] = [0, 1].map(|side| {
            let plane = geometry.plane(side == 1);
            let [first, len] = [part.channels[side].start, part.channels[side].len()].map(|channels| channels * plane);
            move |group: usize| &from[side][group * geometry.channels[side] * plane + first..][..len]
        });
        let [cotangents, packed] = to;
        // Vectors read beyond the last position; those elements are multiplied by 0.
        for channel in 0..part.channels[1].len() {
            let end = channel * every[1] + units.len() * blocks.channel;
            packed[end..][..self.machine.lanes].fill(Element::from_f64(0.0));
        }
        for (i, unit) in units.enumerate() {
            let (group, block) = (unit / blocks.len() * geometry.groups + part.group, unit % blocks.len());
            let last = (part.channels[1].len() - 1) * every[1];
            let to = &mut packed[i * blocks.channel..][..last + blocks.channel];
            pack::channels(axes, blocks, block, images(group), (to, every[1]));
            let last = (part.channels[0].len() - 1) * every[0];
            let to = &mut cotangents[i * wide..][..last + wide];
            pack::positions(axes, blocks, block, results(group), wide, (to, every[0]));
        }
    }
}

/// The work of a task: channels of results and of images of a group, and units.
struct Part {
    group: usize,
    channels: [Range<usize>; 2],
    units: Range<usize>,
}

/// Some packed units of a task.
struct Task<'a, A> {
    of: &'a Weights,
    /// Cotangents, and images.
    packed: [&'a [A]; 2],
    results: usize,
    units: usize,
    taps: &'a [usize],
    sums: &'a mut [A],
}

impl<A: Real> WithSimd for Task<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Weights { blocks, machine, .. } = self.of;
        let wide = blocks.vectors.len() * machine.lanes;
        let pairs = Pairs {
            cotangents: self.packed[0],
            cotangent: self.of.units * wide,
            images: self.packed[1],
            vectors: &self.of.vectors[..self.units * blocks.vectors.len()],
        };
        let width = self.of.taps.len();
        let few = machine.registers < 32;
        let mut m = 0;
        while m < self.results {
            let left = self.results - m;
            let rows = if left >= 8 && !few {
                8
            } else if left >= 4 {
                4
            } else {
                1
            };
            let mut t = 0;
            while t < self.taps.len() {
                let out = (&mut self.sums[m * width + t..(m + rows - 1) * width + self.taps.len()], width);
                let taps = &self.taps[t..];
                macro_rules! add {
                    ($m:literal, $t:literal) => {{
                        pairs.add::<S, $m, $t>(simd, m, taps, out);
                        $t
                    }};
                }
                t += match (rows, taps.len()) {
                    (8, 3..) => add!(8, 3),
                    (8, _) => add!(8, 1),
                    (4, 3..) => add!(4, 3),
                    (4, _) => add!(4, 1),
                    (_, 9..) if !few => add!(1, 9),
                    (_, 3..) => add!(1, 3),
                    _ => add!(1, 1),
                };
            }
            m += rows;
        }
    }
}
