//! The gradient of 3x3 weights, with 16 multiplications for each 2x2 cotangents instead of 36: F(3x3, 2x2), the transpose of the
//! forward pass.
//!
//! For each of the 16, a product of matrices sums over squares: the channels of results by squares, times squares by the
//! channels of images. Rows of images are transposed first, so that vectors go over channels. A task takes some channels
//! of a group and some of the rows of squares of all images; it adds up its products a few rows at a time. The sums of the
//! tasks are added in the order of the images, and the 16 become 9 weights. A non-finite element makes all 9 weights of its
//! channels non-finite.

use super::{A, Geometry, SUMS, TASKS, load, of_square, suits};
use crate::{
    conv::tile::Machine,
    matmul::{
        matrix::{Matrix, Place},
        tiles::{Rows, multiply},
        transpose::transpose,
    },
    memory::{
        elements::{Element, Target, aligned_mut},
        scratch::{Files, Room, Workers},
        sizes::Sizes,
    },
    simd::float::{Real, Stored},
    threads::pool::Pool,
};
use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// Channels of results, and of images, that a task has at most.
const CHANNELS: usize = 64;

/// The extents of a square of cotangents, and of one of images.
const REACH: [usize; 2] = [2, 4];

/// The gradient of a convolution's weights.
#[derive(Debug)]
pub(in crate::conv) struct Weights {
    geometry: Geometry,
    /// Rows of squares of an image, and squares of a row.
    squares: [usize; 2],
    /// Channels of results and of images of a task, and the number of such parts in a group.
    channels: [usize; 2],
    parts: [usize; 2],
    /// Rows of squares of a task, and the number of such parts in all rows.
    rows: usize,
    chunks: usize,
    /// Rows of squares that are multiplied at a time.
    step: usize,
    /// From one square to the next, of cotangents and of images, and from one of the 16 sums to the next.
    pitch: [usize; 2],
    each: [usize; 2],
    lanes: usize,
    /// The sums of all tasks, in the scratch of the thread that runs the kernel; widened rows of images, rows transposed,
    /// and the sums of squares of both sides, in that of each.
    room: [usize; 5],
}

impl Weights {
    /// Prepares it where it is the faster way.
    pub fn new<T: Stored>(geometry: Geometry, sizes: Sizes, files: &mut Files) -> Option<Self> {
        let squares = geometry.result.map(|n| n.div_ceil(2));
        if !suits(&geometry, squares, sizes.winograd[1], sizes) {
            return None;
        }
        let lanes = Machine::new::<T::Sum>().lanes;
        let parts = geometry.channels.map(|n| n.div_ceil(CHANNELS));
        let channels = [0, 1].map(|side| geometry.channels[side].div_ceil(parts[side]));
        let pitch = channels.map(|n| n.next_multiple_of(lanes));
        let [height, width] = squares;
        let all = geometry.images * height;
        let rows = all.div_ceil(TASKS.div_ceil(geometry.groups * parts[0] * parts[1])).max(1);
        let step = (sizes.packed / (SUMS * (pitch[0] + pitch[1]) * width)).clamp(1, rows);
        let each = pitch.map(|pitch| step * width * pitch + lanes);
        let extents = [geometry.result, geometry.image];
        let positions = [0, 1].map(|side| {
            let [rows, columns] = extents[side];
            (2 * step.min(height) + REACH[side] - 2).min(rows) * columns
        });
        let chunks = all.div_ceil(rows);
        let most = |of: &dyn Fn(usize) -> usize| of(0).max(of(1));
        let room = [
            geometry.groups * parts[0] * parts[1] * chunks * SUMS * channels[0] * pitch[1],
            if T::seen(&[]).is_some() { 0 } else { most(&|side| channels[side] * positions[side]) },
            most(&|side| pitch[side] * (positions[side] + extents[side][1])),
            SUMS * each[0],
            SUMS * each[1],
        ];
        let room = room.map(|len| files.take(T::Sum::DTYPE, len));
        Some(Self { geometry, squares, channels, parts, rows, chunks, step, pitch, each, lanes, room })
    }

    /// Runs it on contiguous cotangents and images; the result begins at `start` of the target.
    pub fn run<T: Stored>(&self, from: [&[T]; 2], (target, start): (&Target, usize), workers: &Workers, pool: Pool) {
        let Geometry { groups, channels: [outs, ins], .. } = self.geometry;
        let room = Room::<T::Sum>::take(workers, self.room[0]);
        let ([wide, narrow], chunks) = (self.parts, self.chunks);
        let len = SUMS * self.channels[0] * self.pitch[1];
        let all = self.geometry.images * self.squares[0];
        pool.each(groups * wide * narrow * chunks, self.geometry.work() / 16, |range| {
            let mut scratch = workers.mine();
            let rooms = [1, 2, 3, 4].map(|i| self.room[i]);
            let rooms = scratch.registers.get_disjoint_mut(rooms).expect("they differ");
            let [lines, transposed, cotangents, images] = rooms.map(|room| aligned_mut(T::Sum::slice_mut(room)));
            for task in range {
                let (parts, chunk) = (task / chunks, task % chunks);
                let part = [parts / narrow % wide, parts % narrow];
                let channels = [0, 1].map(|side| {
                    let first = part[side] * self.channels[side];
                    first..self.geometry.channels[side].min(first + self.channels[side])
                });
                Arch::new().dispatch(Task {
                    of: self,
                    from,
                    group: parts / narrow / wide,
                    channels,
                    rows: chunk * self.rows..all.min((chunk + 1) * self.rows),
                    lines: &mut *lines,
                    transposed: &mut *transposed,
                    squares: [&mut *cotangents, &mut *images],
                    // SAFETY: each task has sums of its own.
                    sums: unsafe { room.part(task * len, len) },
                });
            }
        });
        let sums = room.seen();
        pool.each(groups * outs, groups * outs * ins * SUMS * chunks.max(1), |range| {
            for result in range {
                // SAFETY: each thread writes the weights of its own results.
                let to = unsafe { target.part::<T>(start + result * ins * 9, ins * 9) };
                Arch::new().dispatch(Gather { of: self, sums, result, to });
            }
        });
    }
}

/// Some channels of results and of images, and some rows of squares.
struct Task<'a, T: Stored> {
    of: &'a Weights,
    from: [&'a [T]; 2],
    group: usize,
    channels: [Range<usize>; 2],
    rows: Range<usize>,
    lines: &'a mut [T::Sum],
    transposed: &'a mut [T::Sum],
    squares: [&'a mut [T::Sum]; 2],
    sums: &'a mut [T::Sum],
}

impl<T: Stored> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Weights { squares: [_, width], step, pitch, each, channels: [outs, _], .. } = *self.of;
        let [m, n] = [self.channels[0].len(), self.wide(1)];
        for first in self.rows.clone().step_by(step) {
            let rows = first..self.rows.end.min(first + step);
            (0..2).for_each(|side| self.read(simd, side, rows.clone()));
            for (sum, out) in self.sums.chunks_exact_mut(outs * pitch[1]).enumerate() {
                let [cotangents, images] = [0, 1].map(|side| &self.squares[side][sum * each[side]..]);
                let cotangents = Matrix { data: cotangents, start: 0, strides: [1, pitch[0] as isize] };
                let images = Rows { data: images, stride: pitch[1] };
                let (shape, out) = ([m, rows.len() * width, n], Place::of(out, pitch[1]));
                // SAFETY: `out` is borrowed mutably.
                unsafe { multiply(simd, shape, cotangents, images, out, first > self.rows.start) };
            }
        }
    }
}

impl<T: Stored> Task<'_, T> {
    /// A side's channels, as whole vectors.
    fn wide(&self, side: usize) -> usize {
        self.channels[side].len().next_multiple_of(self.of.lanes)
    }

    /// The sums of the squares of one side.
    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, side: usize, rows: Range<usize>) {
        let Weights { squares: [height, width], .. } = *self.of;
        let mut at = rows.start;
        while at < rows.end {
            let (image, first) = (at / height, at % height);
            let count = (height - first).min(rows.end - at);
            let plane = self.transpose(side, image, first..first + count);
            let square = (at - rows.start) * width;
            match side {
                0 => self.cotangents(simd, &plane, first..first + count, square),
                _ => self.images(simd, &plane, first..first + count, square),
            }
            at += count;
        }
    }

    /// Transposes the lines that some rows of squares read of an image, followed by zeros.
    fn transpose(&mut self, side: usize, image: usize, rows: Range<usize>) -> Plane {
        let Weights { geometry, pitch, .. } = self.of;
        let [height, columns] = [geometry.result, geometry.image][side];
        let padding = [0, 1].map(|d| if side == 1 { geometry.walks[d].padding } else { 0 });
        let top = (2 * rows.start).saturating_sub(padding[0]).min(height);
        let bottom = (2 * rows.end + REACH[side] - 2).saturating_sub(padding[0]).clamp(top, height);
        let (len, channels) = ((bottom - top) * columns, self.channels[side].clone());
        let first = (image * geometry.groups + self.group) * geometry.channels[side] + channels.start;
        let plane = height * columns;
        let from = &self.from[side][first * plane..][..channels.len() * plane];
        let from = match T::seen(from) {
            Some(data) => Matrix { data, start: (top * columns) as isize, strides: [1, plane as isize] },
            None => {
                for channel in 0..channels.len() {
                    let line = &mut self.lines[channel * len..][..len];
                    T::read(&from[channel * plane + top * columns..][..len], line);
                }
                Matrix { data: &*self.lines, start: 0, strides: [1, len as isize] }
            }
        };
        // SAFETY: the place is borrowed mutably.
        unsafe { transpose(from, Place::of(self.transposed, pitch[side]), [len, channels.len()]) };
        self.transposed[len * pitch[side]..][..columns * pitch[side]].fill(Element::from_f64(0.0));
        Plane { rows: top..bottom, columns, padding, pitch: pitch[side] }
    }

    /// `A y A'` of the squares of some rows of cotangents, from a square of the step on.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant extent, so that all sums stay in registers")]
    fn cotangents<S: Simd>(&mut self, simd: S, plane: &Plane, rows: Range<usize>, mut square: usize) {
        let zero = A::<T>::splat(simd, A::<T>::default());
        for row in rows {
            let lines = plane.lines::<2>(row);
            for column in 0..self.of.squares[1] {
                let places = plane.places(lines, column);
                for channel in (0..self.wide(0)).step_by(A::<T>::lanes::<S>()) {
                    let [[a, b], [c, d]] = self.elements::<S, 2>(simd, &places, channel);
                    let (left, right) = (apart::<S, A<T>>(simd, zero, a, c), apart::<S, A<T>>(simd, zero, b, d));
                    let mut sums = [left; 4];
                    for i in 0..4 {
                        sums[i] = apart::<S, A<T>>(simd, zero, left[i], right[i]);
                    }
                    self.put::<S>(0, square, channel, sums);
                }
                square += 1;
            }
        }
    }

    /// `B' d B` of the squares of some rows of images, from a square of the step on.
    #[inline(always)]
    fn images<S: Simd>(&mut self, simd: S, plane: &Plane, rows: Range<usize>, mut square: usize) {
        for row in rows {
            let lines = plane.lines::<4>(row);
            for column in 0..self.of.squares[1] {
                let places = plane.places(lines, column);
                for channel in (0..self.wide(1)).step_by(A::<T>::lanes::<S>()) {
                    let elements = self.elements::<S, 4>(simd, &places, channel);
                    self.put::<S>(1, square, channel, of_square::<S, A<T>>(simd, elements));
                }
                square += 1;
            }
        }
    }

    /// Some channels of the elements at these places.
    #[inline(always)]
    fn elements<S: Simd, const N: usize>(
        &self,
        simd: S,
        places: &[[usize; N]; N],
        channel: usize,
    ) -> [[<A<T> as Real>::Vector<S>; N]; N] {
        let mut elements = [[A::<T>::splat(simd, A::<T>::default()); N]; N];
        for i in 0..N {
            for j in 0..N {
                elements[i][j] = element::<S, A<T>>(self.transposed, places[i][j] + channel);
            }
        }
        elements
    }

    /// Some channels of the sums of a square.
    #[inline(always)]
    fn put<S: Simd>(&mut self, side: usize, square: usize, channel: usize, sums: [[<A<T> as Real>::Vector<S>; 4]; 4]) {
        let (pitch, each) = (self.of.pitch[side], self.of.each[side]);
        let to = &mut self.squares[side][square * pitch + channel..];
        assert!((SUMS - 1) * each + A::<T>::lanes::<S>() <= to.len());
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                // SAFETY: within the squares, by the assertion.
                unsafe {
                    let to = to.as_mut_ptr().add((4 * i + j) * each);
                    to.cast::<<A<T> as Real>::Vector<S>>().write_unaligned(sum);
                }
            }
        }
    }
}

/// A vector of some elements.
#[inline(always)]
fn element<S: Simd, A: Real>(from: &[A], place: usize) -> A::Vector<S> {
    // SAFETY: that many elements.
    unsafe { load::<S, A>(from[place..][..A::lanes::<S>()].as_ptr()) }
}

/// `A y` of two cotangents.
#[inline(always)]
fn apart<S: Simd, A: Real>(simd: S, zero: A::Vector<S>, x: A::Vector<S>, y: A::Vector<S>) -> [A::Vector<S>; 4] {
    [x, A::vector_add(simd, x, y), A::vector_sub(simd, x, y), A::vector_sub(simd, zero, y)]
}

/// Rows of all channels of an image, transposed, and a row of zeros behind them.
struct Plane {
    rows: Range<usize>,
    columns: usize,
    padding: [usize; 2],
    pitch: usize,
}

impl Plane {
    /// The beginnings of the lines of a row of squares; lines outside the image are zeros.
    fn lines<const N: usize>(&self, row: usize) -> [usize; N] {
        std::array::from_fn(|i| {
            // A place before the first one wraps around, and is too large.
            let row = (2 * row + i).wrapping_sub(self.padding[0]).wrapping_sub(self.rows.start);
            row.min(self.rows.len()) * self.columns * self.pitch
        })
    }

    /// The place where the elements of a square are.
    #[inline(always)]
    fn places<const N: usize>(&self, lines: [usize; N], column: usize) -> [[usize; N]; N] {
        let zeros = self.rows.len() * self.columns * self.pitch;
        lines.map(|line| {
            std::array::from_fn(|j| {
                let column = (2 * column + j).wrapping_sub(self.padding[1]);
                if column < self.columns { line + column * self.pitch } else { zeros }
            })
        })
    }
}

/// The weights of a result's channel, from the sums of all tasks.
struct Gather<'a, T: Stored> {
    of: &'a Weights,
    sums: &'a [T::Sum],
    result: usize,
    to: &'a mut [T],
}

impl<T: Stored> WithSimd for Gather<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Weights { geometry, parts: [wide, narrow], channels: [outs, ins], pitch: [_, pitch], .. } = *self.of;
        let (chunks, lanes) = (self.of.chunks, A::<T>::lanes::<S>());
        let (group, m) = (self.result / geometry.channels[0], self.result % geometry.channels[0]);
        let zero = A::<T>::splat(simd, A::<T>::default());
        for (part, to) in self.to.chunks_mut(ins * 9).enumerate() {
            let first = ((group * wide + m / outs) * narrow + part) * chunks;
            for (v, to) in to.chunks_mut(lanes * 9).enumerate() {
                let mut sums = [zero; SUMS];
                for chunk in first..first + chunks {
                    for (sum, to) in sums.iter_mut().enumerate() {
                        let place = ((chunk * SUMS + sum) * outs + m % outs) * pitch + v * lanes;
                        *to = A::<T>::vector_add(simd, *to, element::<S, A<T>>(self.sums, place));
                    }
                }
                let weights = weights_of::<S, A<T>>(simd, &sums);
                for tap in 0..9 {
                    let mut few = [A::<T>::default(); 16];
                    // SAFETY: no vector has more elements.
                    unsafe { few.as_mut_ptr().cast::<<A<T> as Real>::Vector<S>>().write_unaligned(weights[tap]) };
                    for (to, &weight) in to[tap..].iter_mut().step_by(9).zip(&few) {
                        *to = T::nearest(weight);
                    }
                }
            }
        }
    }
}

/// `G' m G`.
#[inline(always)]
fn weights_of<S: Simd, A: Real>(simd: S, m: &[A::Vector<S>; SUMS]) -> [A::Vector<S>; 9] {
    let mut rows = [m[0]; 12];
    for i in 0..4 {
        let three = together::<S, A>(simd, m[4 * i], m[4 * i + 1], m[4 * i + 2], m[4 * i + 3]);
        (rows[3 * i], rows[3 * i + 1], rows[3 * i + 2]) = three;
    }
    let mut weights = [m[0]; 9];
    for j in 0..3 {
        let three = together::<S, A>(simd, rows[j], rows[3 + j], rows[6 + j], rows[9 + j]);
        (weights[j], weights[3 + j], weights[6 + j]) = three;
    }
    weights
}

/// `G' m` of four sums.
#[inline(always)]
fn together<S: Simd, A: Real>(
    simd: S,
    a: A::Vector<S>,
    b: A::Vector<S>,
    c: A::Vector<S>,
    d: A::Vector<S>,
) -> (A::Vector<S>, A::Vector<S>, A::Vector<S>) {
    let half = A::splat(simd, A::from_f64(0.5));
    let zero = A::splat(simd, A::default());
    let (sum, difference) = (A::vector_add(simd, b, c), A::vector_sub(simd, b, c));
    (A::mul_add(simd, half, sum, a), A::mul_add(simd, half, difference, zero), A::mul_add(simd, half, sum, d))
}
