//! Convolutions, and the gradients of their images, which are convolutions of cotangents: one task for each block of each
//! group of each image. Every sum is over channels, then over the kernel, in that order, on any thread.

use super::{
    Geometry,
    lattice::{Axis, Blocks, Tap},
    pack,
    tile::{Machine, Products, TILE},
};
use crate::simd::float::Stored;
use crate::{
    memory::{
        elements::{Element, Target, aligned_mut},
        scratch::{Files, Room, Workers},
        sizes::Sizes,
    },
    threads::pool::Pool,
};
use pulp::{Arch, Simd, WithSimd};

/// Results at a constant stride along each axis, and the taps that they are summed from.
#[derive(Debug)]
struct Phase {
    at: [usize; 2],
    /// The place where each tap reads in a packed channel.
    offsets: Vec<usize>,
    /// The elements of the kernel.
    elements: Vec<usize>,
    /// The place where its packed weights begin.
    weights: usize,
}

/// A convolution, or the gradient of its images.
#[derive(Debug)]
pub(super) struct Correlation {
    geometry: Geometry,
    backward: bool,
    axes: [Axis; 2],
    blocks: Blocks,
    phases: Vec<Phase>,
    /// Channels that are summed over, and channels of results, of one group.
    channels: [usize; 2],
    machine: Machine,
    /// Packed weights, in the scratch of the thread that runs the kernel; packed images, in that of each.
    room: [usize; 2],
}

impl Correlation {
    pub fn new<T: Stored>(geometry: Geometry, backward: bool, sizes: Sizes, files: &mut Files) -> Self {
        let axes = [0, 1].map(|d| {
            let (walk, image, result) = (geometry.walks[d], geometry.image[d], geometry.result[d]);
            if backward { Axis::backward(walk, image, result) } else { Axis::forward(walk, image, result) }
        });
        let [outs, ins] = geometry.channels;
        let channels = if backward { [outs, ins] } else { [ins, outs] };
        let machine = Machine::new::<T::Sum>();
        let tasks = geometry.images * geometry.groups;
        let blocks = Blocks::new(&axes, channels[0], tasks, geometry.work(), machine.lanes, sizes);
        let [rows, columns] = [&axes[0].phases, &axes[1].phases];
        let pairs = rows
            .iter()
            .enumerate()
            .flat_map(|(r, down)| columns.iter().enumerate().map(move |(c, across)| ([r, c], down, across)));
        let mut weights = 0;
        let phase = |(at, down, across): ([usize; 2], &Vec<Tap>, &Vec<Tap>)| {
            let taps = || down.iter().flat_map(|&a| across.iter().map(move |&b| [a, b]));
            let offsets: Vec<usize> = taps().map(|taps| blocks.offset(&axes, taps)).collect();
            let elements = taps().map(|[a, b]| a.element * geometry.walks[1].kernel + b.element).collect();
            let start = weights;
            weights += geometry.groups * ins * outs * offsets.len();
            Phase { at, offsets, elements, weights: start }
        };
        let phases = pairs.map(phase).collect();
        let packed = channels[0] * blocks.channel + machine.lanes;
        let room = [files.take(T::Sum::DTYPE, weights), files.take(T::Sum::DTYPE, packed)];
        Self { geometry, backward, axes, blocks, phases, channels, machine, room }
    }

    /// Runs it on contiguous sources and weights; the result begins at `start` of the target.
    pub fn run<T: Stored>(
        &self,
        [source, weights]: [&[T]; 2],
        (target, start): (&Target, usize),
        workers: &Workers,
        pool: Pool,
    ) {
        let Geometry { images, groups, .. } = self.geometry;
        let [ins, outs] = self.channels;
        let room = Room::<T::Sum>::take(workers, self.room[0]);
        self.pack_weights(weights, &room, pool);
        let packed = room.seen();
        let count = self.blocks.len();
        let [height, width] = [self.axes[0].source, self.axes[1].source];
        pool.each(images * groups * count, self.geometry.work() / 16, |range| {
            for task in range {
                let (image, group, block) = (task / count / groups, task / count % groups, task % count);
                let mut scratch = workers.mine();
                let to = aligned_mut(T::Sum::slice_mut(&mut scratch.registers[self.room[1]]));
                let first = (image * groups + group) * ins;
                let from = &source[first * height * width..][..ins * height * width];
                let channel = self.blocks.channel;
                pack::channels(&self.axes, &self.blocks, block, from, (&mut to[..ins * channel], channel));
                // Vectors read beyond the last position.
                to[ins * channel..][..self.machine.lanes].fill(Element::from_f64(0.0));
                let plane: usize = self.geometry.plane(self.backward);
                let result = start + (image * groups + group) * outs * plane;
                Arch::new().dispatch(Task::<T> { of: self, packed: to, weights: packed, group, block, target, result });
            }
        });
    }

    /// Weights in the order in which tiles read them: phase, group, tile, channel, tap, result.
    fn pack_weights<T: Stored>(&self, weights: &[T], room: &Room<T::Sum>, pool: Pool) {
        let Geometry { groups, channels: [wide, narrow], .. } = self.geometry;
        let [ins, outs] = self.channels;
        let kernel: usize = self.geometry.walks.iter().map(|walk| walk.kernel).product();
        pool.each(groups, weights.len(), |range| {
            for (phase, group) in self.phases.iter().flat_map(|phase| range.clone().map(move |group| (phase, group))) {
                let taps = phase.offsets.len();
                let len = ins * taps * outs;
                // SAFETY: each thread packs the weights of its own groups.
                let mut to = unsafe { room.part(phase.weights + group * len, len) };
                let from = &weights[group * wide * narrow * kernel..][..wide * narrow * kernel];
                for (first, size) in self.machine.tiles(outs) {
                    let (tile, rest) = to.split_at_mut(ins * taps * size);
                    to = rest;
                    for (channel, tile) in tile.chunks_exact_mut((taps * size).max(1)).enumerate() {
                        for (&element, tile) in phase.elements.iter().zip(tile.chunks_exact_mut(size)) {
                            for (m, to) in tile.iter_mut().enumerate() {
                                let [a, b] = if self.backward { [channel, first + m] } else { [first + m, channel] };
                                *to = from[(a * narrow + b) * kernel + element].one();
                            }
                        }
                    }
                }
            }
        });
    }
}

/// A block of a group of an image.
struct Task<'a, T: Stored> {
    of: &'a Correlation,
    packed: &'a [T::Sum],
    weights: &'a [T::Sum],
    group: usize,
    block: usize,
    target: &'a Target,
    /// The place where the results of the group begin.
    result: usize,
}

impl<T: Stored> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Correlation { blocks, channels: [ins, outs], machine, axes, .. } = self.of;
        let mut sums = [[T::Sum::default(); 16]; TILE];
        let sums = &mut sums.as_flattened_mut()[..TILE * machine.lanes];
        let first = blocks.first(self.block);
        for phase in &self.of.phases {
            let [rows, columns] = [0, 1].map(|d| axes[d].written(phase.at[d], first[d], blocks.extents[d]));
            if columns == 0 {
                continue;
            }
            let vectors = blocks.vectors_of(rows, machine.lanes);
            let len = ins * phase.offsets.len();
            let weights = &self.weights[phase.weights + self.group * len * outs..][..len * outs];
            for (first, size) in machine.tiles(*outs) {
                let most = machine.tile(size)[1];
                let mut v = 0;
                while v < vectors {
                    let products = Products {
                        weights: &weights[first * len..][..size * len],
                        packed: self.packed,
                        bases: &blocks.vectors[v..vectors],
                        channels: *ins,
                        stride: blocks.channel,
                        taps: &phase.offsets,
                    };
                    let done = products.sums(simd, size, most, sums);
                    let place = Place { phase, first, size, vectors: v..v + done, extents: [rows, columns] };
                    self.store(&place, sums);
                    v += done;
                }
            }
        }
    }
}

/// The results of a tile, and the positions of a block that write something.
struct Place<'a> {
    phase: &'a Phase,
    first: usize,
    size: usize,
    vectors: std::ops::Range<usize>,
    extents: [usize; 2],
}

impl<T: Stored> Task<'_, T> {
    /// Writes the sums of a tile, where there is a result for them.
    #[inline(always)]
    fn store(&self, place: &Place, sums: &[T::Sum]) {
        let Correlation { blocks, machine, axes, .. } = self.of;
        let first = blocks.first(self.block);
        let [start, end] = [place.vectors.start, place.vectors.end].map(|v| v * machine.lanes);
        let [height, width] = [axes[0].result, axes[1].result];
        let mut at = start;
        while at < end {
            let (row, column) = (at / blocks.pitch, at % blocks.pitch);
            let len = (blocks.pitch - column).min(end - at);
            let kept = len.min(place.extents[1].saturating_sub(column));
            if row < place.extents[0] && kept > 0 {
                let y = (first[0] + row) * axes[0].spread + place.phase.at[0];
                let x = (first[1] + column) * axes[1].spread + place.phase.at[1];
                let spread = axes[1].spread;
                for m in 0..place.size {
                    let from = &sums[m * (end - start) + at - start..][..kept];
                    let to = self.result + ((place.first + m) * height + y) * width + x;
                    // SAFETY: no other task writes between these results of its own.
                    let to = unsafe { self.target.part::<T>(to, (kept - 1) * spread + 1) };
                    match spread {
                        1 => T::write(from, to),
                        _ => to.iter_mut().step_by(spread).zip(from).for_each(|(to, &sum)| *to = T::nearest(sum)),
                    }
                }
            }
            at += len;
        }
    }
}
