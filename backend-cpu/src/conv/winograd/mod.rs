//! Convolutions by 3x3 weights without strides, and the gradients of their images, with 16 multiplications for each 2x2
//! results instead of 36: Winograd's F(2x2, 3x3), by Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
//! (2016).
//!
//! Each **square** of 4x4 elements of an image gives 16 sums, and so do the weights of each pair of channels. For each of the
//! 16 there is a product of a matrix of weights and one of squares. The 16 products give 2x2 results. A task takes a few rows of
//! squares, those of small images one after another. A non-finite element makes all results of its squares non-finite. Every
//! sum is over channels, in their order, on any thread.

mod weights;

pub(super) use weights::Weights;

use super::{
    Geometry,
    lattice::TASKS,
    tile::{Machine, Products, TILE},
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

/// The sums of a square.
const SUMS: usize = 16;
/// The number of elements that are taken apart at a time.
const SIXTEEN: usize = 16;
/// The most vectors of each result of a tile.
const VECTORS: usize = 6;

/// True if this pays for a convolution with so many squares in a column and in a row.
fn suits(geometry: &Geometry, squares: [usize; 2], least: usize, sizes: Sizes) -> bool {
    let plain = geometry.walks.iter().all(|walk| (walk.stride, walk.dilation, walk.kernel) == (1, 1, 3));
    let short = sizes.winograd[2];
    plain && geometry.channels.iter().all(|&n| n >= least) && squares[0] > 0 && squares[1] >= short
}

/// A convolution, or the gradient of its images.
#[derive(Debug)]
pub(super) struct Winograd {
    geometry: Geometry,
    backward: bool,
    /// The distance from a result back to the first element that it is computed from.
    padding: [isize; 2],
    /// The extents of what is read, and of results.
    source: [usize; 2],
    result: [usize; 2],
    /// Rows of squares of an image, and squares of a row.
    squares: [usize; 2],
    /// Rows of squares of a task.
    rows: usize,
    /// From one channel to the next of the sums of a task's squares, and from one of the 16 to the next.
    pitch: [usize; 2],
    /// Channels that are summed over, and channels of results, of one group.
    channels: [usize; 2],
    machine: Machine,
    /// The elements of a line with zeros around it, and of one of eight parts that lines are taken apart into.
    line: [usize; 2],
    /// The sums of weights, in the scratch of the thread that runs the kernel; those of squares, a channel of an image with
    /// its even and its odd columns apart, and products and results of a tile, in that of each.
    room: [usize; 4],
}

impl Winograd {
    /// Prepares it where it is the faster way.
    pub fn new<T: Stored>(geometry: Geometry, backward: bool, sizes: Sizes, files: &mut Files) -> Option<Self> {
        let [outs, ins] = geometry.channels;
        let channels = if backward { [outs, ins] } else { [ins, outs] };
        let (source, result) =
            if backward { (geometry.result, geometry.image) } else { (geometry.image, geometry.result) };
        let padding = geometry.walks.map(|walk| {
            let padding = walk.padding as isize;
            if backward { 2 - padding } else { padding }
        });
        let machine = Machine::new::<T::Sum>();
        let squares = result.map(|n| n.div_ceil(2));
        let [height, width] = squares;
        let each = SUMS * channels[0];
        if !suits(&geometry, squares, sizes.winograd[0], sizes) || width * each > 2 * sizes.packed {
            return None;
        }
        // As many squares as a tile of sums has, and of tasks a few for each thread.
        let most = (3 * machine.lanes).min(sizes.packed / each) / width;
        let all = geometry.images * height;
        let rows = all.div_ceil(all.div_ceil(most.max(1)).next_multiple_of(TASKS / 2).max(1)).max(1);
        let channel = (rows * width).next_multiple_of(machine.lanes);
        // The last vector of a row may reach beyond it.
        let pitch = [channel, channels[0] * channel + machine.lanes];
        let line =
            [2 * width.next_multiple_of(SIXTEEN) + 2, (rows.min(height) + 1) * width + SIXTEEN.max(machine.lanes)];
        let products = (SUMS * TILE + 4 * VECTORS) * machine.lanes;
        let room = [SUMS * outs * ins * geometry.groups, SUMS * pitch[1], line[0] + 8 * line[1], products];
        let room = room.map(|len| files.take(T::Sum::DTYPE, len));
        Some(Self { geometry, backward, padding, source, result, squares, rows, pitch, line, channels, machine, room })
    }

    /// Runs it on contiguous sources and weights; the result begins at `start` of the target.
    pub fn run<T: Stored>(
        &self,
        [source, weights]: [&[T]; 2],
        (target, start): (&Target, usize),
        workers: &Workers,
        pool: Pool,
    ) {
        let room = Room::<T::Sum>::take(workers, self.room[0]);
        self.weights(weights, &room, pool);
        let weights = room.seen();
        let all = self.geometry.images * self.squares[0];
        let tasks = all.div_ceil(self.rows);
        pool.each(self.geometry.groups * tasks, self.geometry.work() / 16, |range| {
            let mut scratch = workers.mine();
            let rooms = [1, 2, 3].map(|i| self.room[i]);
            let rooms = scratch.registers.get_disjoint_mut(rooms).expect("they differ");
            let [squares, lines, products] = rooms.map(|room| aligned_mut(T::Sum::slice_mut(room)));
            for task in range {
                let (group, first) = (task / tasks, task % tasks * self.rows);
                let rows = first..all.min(first + self.rows);
                let (squares, lines, products) = (&mut *squares, &mut *lines, &mut *products);
                Arch::new().dispatch(Task {
                    of: self,
                    source,
                    weights,
                    group,
                    rows,
                    squares,
                    lines,
                    products,
                    target,
                    start,
                });
            }
        });
    }

    /// The sums of weights: for each group and each of the 16, as tiles read them.
    fn weights<T: Stored>(&self, weights: &[T], room: &Room<T::Sum>, pool: Pool) {
        let Geometry { groups, channels: [wide, narrow], .. } = self.geometry;
        let [ins, outs] = self.channels;
        let tiles: Vec<(usize, usize)> = self.machine.tiles(outs).collect();
        pool.each(groups * tiles.len(), weights.len() * 4, |range| {
            for part in range {
                let (group, (first, size)) = (part / tiles.len(), tiles[part % tiles.len()]);
                let from = &weights[group * wide * narrow * 9..][..wide * narrow * 9];
                for channel in 0..ins {
                    let mut kernels = [[T::Sum::default(); 9]; 8];
                    for (m, to) in kernels.iter_mut().enumerate().take(size) {
                        let [a, b] = if self.backward { [channel, first + m] } else { [first + m, channel] };
                        let kernel = &from[(a * narrow + b) * 9..][..9];
                        for (tap, &w) in kernel.iter().enumerate() {
                            // The gradient goes the other way round.
                            to[if self.backward { 8 - tap } else { tap }] = w.one();
                        }
                    }
                    for (sum, values) in of_weights(&kernels).iter().enumerate() {
                        let at = (group * SUMS + sum) * ins * outs + first * ins + channel * size;
                        // SAFETY: each thread writes the sums of its own tiles.
                        unsafe { room.part(at, size) }.copy_from_slice(&values[..size]);
                    }
                }
            }
        });
    }
}

/// `G g G'` of eight kernels, side by side.
#[inline(always)]
fn of_weights<A: Real>(kernels: &[[A; 9]; 8]) -> [[A; 8]; SUMS] {
    let g: [[A; 8]; 9] = std::array::from_fn(|tap| kernels.map(|kernel| kernel[tap]));
    let half = A::from_f64(0.5);
    let three = |a: &[A; 8], b: &[A; 8], c: &[A; 8]| {
        let ends: [A; 8] = std::array::from_fn(|m| (a[m] + c[m]) * half);
        let middle: [A; 8] = std::array::from_fn(|m| b[m] * half);
        let [sum, difference] =
            [std::array::from_fn(|m| ends[m] + middle[m]), std::array::from_fn(|m| ends[m] - middle[m])];
        [*a, sum, difference, *c]
    };
    let columns: [[[A; 8]; 4]; 3] = std::array::from_fn(|j| three(&g[j], &g[3 + j], &g[6 + j]));
    let rows: [[[A; 8]; 4]; 4] = std::array::from_fn(|i| three(&columns[0][i], &columns[1][i], &columns[2][i]));
    std::array::from_fn(|sum| rows[sum / 4][sum % 4])
}

/// Some rows of squares of a group.
struct Task<'a, T: Stored> {
    of: &'a Winograd,
    source: &'a [T],
    weights: &'a [T::Sum],
    group: usize,
    rows: Range<usize>,
    squares: &'a mut [T::Sum],
    lines: &'a mut [T::Sum],
    products: &'a mut [T::Sum],
    target: &'a Target,
    /// The place where the results begin.
    start: usize,
}

impl<T: Stored> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Winograd { channels: [ins, outs], machine, pitch: [pitch, each], squares: [_, width], .. } = *self.of;
        for channel in 0..ins {
            self.read(simd, channel);
        }
        let bases: [usize; TILE] = std::array::from_fn(|v| v * machine.lanes);
        let vectors = (self.rows.len() * width).div_ceil(machine.lanes);
        let tile = TILE * machine.lanes;
        for (first, size) in machine.tiles(outs) {
            let most = machine.tile(size)[1];
            let mut v = 0;
            while v < vectors {
                let mut done = 0;
                for (sum, out) in self.products.chunks_exact_mut(tile).take(SUMS).enumerate() {
                    let weights = &self.weights[(self.group * SUMS + sum) * ins * outs + first * ins..][..size * ins];
                    let packed = &self.squares[sum * each + v * machine.lanes..];
                    let bases = &bases[..most.min(vectors - v)];
                    let products = Products { weights, packed, bases, channels: ins, stride: pitch, taps: &[0] };
                    done = products.sums(simd, size, most, out);
                }
                for m in 0..size {
                    let (products, results) = self.products.split_at_mut(SUMS * tile);
                    results_of(simd, products, m * done, done, results);
                    self.write(first + m, v * machine.lanes, done * machine.lanes);
                }
                v += done;
            }
        }
    }
}

#[inline(always)]
unsafe fn load<S: Simd, A: Real>(from: *const A) -> A::Vector<S> {
    // SAFETY: the caller says that a vector's elements are there; any bits are a vector.
    unsafe { from.cast::<A::Vector<S>>().read_unaligned() }
}

/// `B' d B`: the sums of a square's elements.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
fn of_square<S: Simd, A: Real>(simd: S, d: [[A::Vector<S>; 4]; 4]) -> [[A::Vector<S>; 4]; 4] {
    let (plus, minus) = (|a, b| A::vector_add(simd, a, b), |a, b| A::vector_sub(simd, a, b));
    let mut sums = d;
    for j in 0..4 {
        let [a, b, c, d] = [d[0][j], d[1][j], d[2][j], d[3][j]];
        (sums[0][j], sums[1][j], sums[2][j], sums[3][j]) = (minus(a, c), plus(b, c), minus(c, b), minus(b, d));
    }
    for i in 0..4 {
        let [a, b, c, d] = sums[i];
        sums[i] = [minus(a, c), plus(b, c), minus(c, b), minus(b, d)];
    }
    sums
}

/// `A' m A` of some vectors of squares, from one on: two rows of results.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
fn results_of<S: Simd, A: Real>(simd: S, products: &[A], first: usize, vectors: usize, to: &mut [A]) {
    let lanes = A::lanes::<S>();
    let (tile, row) = (TILE * lanes, 2 * VECTORS * lanes);
    assert!(products.len() >= SUMS * tile && first + vectors <= TILE && vectors <= VECTORS && to.len() >= 2 * row);
    let (plus, minus) = (|a, b| A::vector_add(simd, a, b), |a, b| A::vector_sub(simd, a, b));
    for v in 0..vectors {
        // SAFETY: within the products, by the assertion.
        let m = |sum: usize| unsafe { load::<S, A>(products.as_ptr().add(sum * tile + (first + v) * lanes)) };
        let mut rows = [[m(0); 4]; 2];
        for j in 0..4 {
            let (b, c) = (m(4 + j), m(8 + j));
            rows[0][j] = plus(plus(m(j), b), c);
            rows[1][j] = minus(minus(b, c), m(12 + j));
        }
        for (i, [a, b, c, d]) in rows.into_iter().enumerate() {
            let mut pair = [[A::default(); SIXTEEN]; 2];
            for (y, to) in [plus(plus(a, b), c), minus(minus(b, c), d)].into_iter().zip(&mut pair) {
                // SAFETY: no vector has more elements.
                unsafe { to.as_mut_ptr().cast::<A::Vector<S>>().write_unaligned(y) };
            }
            for (t, to) in to[i * row + 2 * v * lanes..][..2 * lanes].as_chunks_mut().0.iter_mut().enumerate() {
                *to = [pair[0][t], pair[1][t]];
            }
        }
    }
}

impl<T: Stored> Task<'_, T> {
    /// The sums of the squares of a channel.
    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, channel: usize) {
        let Winograd { channels: [ins, _], squares: [height, width], source: [rows, columns], .. } = *self.of;
        let plane = rows * columns;
        let mut at = self.rows.start;
        while at < self.rows.end {
            let (image, first) = (at / height, at % height);
            let count = (height - first).min(self.rows.end - at);
            let from =
                &self.source[((image * self.of.geometry.groups + self.group) * ins + channel) * plane..][..plane];
            self.lines(from, first, count);
            self.sums(simd, count * width, channel * self.of.pitch[0] + (at - self.rows.start) * width);
            at += count;
        }
    }

    /// Sorts the lines of some rows of squares by an element's position in its square: the elements of one position of all squares
    /// become contiguous. Outside the image there are zeros.
    #[inline(always)]
    fn lines(&mut self, from: &[T], first: usize, count: usize) {
        let Winograd {
            padding: [top, left], squares: [_, width], source: [rows, columns], line: [line, every], ..
        } = *self.of;
        let (padded, lines) = self.lines.split_at_mut(line);
        let begin = (left.max(0) as usize).min(2 * width + 2);
        let end = (columns as isize + left).clamp(begin as isize, 2 * width as isize + 2) as usize;
        let skipped = ((-left).max(0) as usize).min(columns);
        padded.fill(Element::from_f64(0.0));
        for i in 0..2 * count + 2 {
            let y = (2 * first + i) as isize - top;
            // It is line 0 or 1 of the squares of one row, and line 2 or 3 of those of the row before.
            let to = &mut lines[i % 2 * 4 * every + i / 2 * width..];
            if y < 0 || y >= rows as isize {
                (0..4).for_each(|j| to[j * every..][..width].fill(Element::from_f64(0.0)));
                continue;
            }
            let from = &from[y as usize * columns..][..columns];
            T::read(&from[skipped..][..end - begin], &mut padded[begin..end]);
            // Sixteen at a time: the last of them land where something else is written later.
            for some in (0..width).step_by(SIXTEEN) {
                let from = padded[2 * some..].first_chunk::<{ 2 * SIXTEEN + 2 }>().expect("there are zeros");
                for j in 0..4 {
                    let to = to[j * every + some..].first_chunk_mut::<SIXTEEN>().expect("there is room");
                    *to = std::array::from_fn(|i| from[2 * i + j]);
                }
            }
        }
    }

    /// The sums of so many squares, to a place in each of the 16 matrices.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
    fn sums<S: Simd>(&mut self, simd: S, count: usize, place: usize) {
        let Winograd { squares: [_, width], machine, pitch: [_, each], line: [line, every], .. } = *self.of;
        let lines = &self.lines[line..];
        for first in (0..count).step_by(machine.lanes) {
            assert!(7 * every + width + first + machine.lanes <= lines.len());
            assert!((SUMS - 1) * each + place + first + machine.lanes <= self.squares.len());
            // SAFETY: within the lines, by the assertion.
            let at = |i: usize, j: usize| unsafe {
                load::<S, A<T>>(lines.as_ptr().add((i % 2 * 4 + j) * every + i / 2 * width + first))
            };
            let mut elements = [[at(0, 0); 4]; 4];
            for i in 0..4 {
                for j in 0..4 {
                    elements[i][j] = at(i, j);
                }
            }
            let sums = of_square::<S, A<T>>(simd, elements);
            for i in 0..4 {
                for j in 0..4 {
                    // Elements after the last square are overwritten later, or never read.
                    // SAFETY: within the squares, by the assertion.
                    unsafe {
                        let to = self.squares.as_mut_ptr().add((4 * i + j) * each + place + first);
                        to.cast::<<A<T> as Real>::Vector<S>>().write_unaligned(sums[i][j]);
                    }
                }
            }
        }
    }

    /// Writes the results of some squares, from one of the task's on.
    #[inline(always)]
    fn write(&self, channel: usize, from: usize, count: usize) {
        let Winograd { channels: [_, outs], squares: [height, width], result: [rows, columns], .. } = *self.of;
        let machine = self.of.machine;
        let results = &self.products[SUMS * TILE * machine.lanes..];
        let end = (from + count).min(self.rows.len() * width);
        let mut at = from;
        while at < end {
            let (row, column) = (self.rows.start + at / width, at % width);
            let len = (width - column).min(end - at);
            let (image, y) = (row / height, row % height * 2);
            let plane = ((image * self.of.geometry.groups + self.group) * outs + channel) * rows * columns;
            let len_of_line = (2 * len).min(columns - 2 * column);
            for i in 0..(rows - y).min(2) {
                let results = &results[2 * (i * VECTORS * machine.lanes + at - from)..][..len_of_line];
                let to = self.start + plane + (y + i) * columns + 2 * column;
                // SAFETY: no other task writes these results.
                T::write(results, unsafe { self.target.part::<T>(to, len_of_line) });
            }
            at += len;
        }
    }
}

/// The type of sums of `T`.
type A<T> = <T as Stored>::Sum;
