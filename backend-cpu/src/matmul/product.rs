//! Matrix products and their epilogues. A side whose columns are contiguous is transposed once, not by each part that packs
//! it. If that side is the longer one, as in the gradient of a weight, the shorter side is transposed instead, and the kernel
//! computes the transpose of the product. Most gradients of weights are sums of outer products, without `gemm`.

use super::{
    float::Float,
    grid::{Grid, Way},
    half,
    matrix::{Matrix, Place, reach},
    outer_products,
    transpose::transpose,
};
use crate::{
    loops::{compile::arranged, program::Schedule, run::Machine, tiling::Setting, view::View},
    memory::{
        elements::{Element, Env, Source, aligned_mut, nothing},
        scratch::{Files, Room, Scratch, Workers},
        sizes::Sizes,
        strides::Walk,
    },
    threads::pool::Pool,
};
use std::ops::Range;
use wgrad::{
    DType, f16,
    plan::{Instr, MatMul, Operand},
};

/// The distance between rows of a transposed matrix: never a power of two, for caches keep few elements that are so far apart.
fn pitch(width: usize) -> usize {
    (width.div_ceil(16) | 1) * 16
}

/// Columns of a product up to which `gemm` reads the left side as it lies.
const UNPACKED: usize = 128;

/// One side of a product: where each matrix of the batch starts, and its row and column strides.
#[derive(Debug)]
struct Side {
    source: Source,
    offset: isize,
    batch: Walk,
    strides: [isize; 2],
}

impl Side {
    fn new(source: Source, operand: &Operand) -> Self {
        let (batch, matrix) = operand.shape.split_at(operand.shape.rank() - 2);
        let (batch_strides, strides) = operand.strides.split_at(batch.len());
        let stride = |i: usize| if matrix[i] == 1 { 0 } else { strides[i] };
        let batch = Walk::new(batch, batch_strides);
        Self { source, offset: operand.offset as isize, batch, strides: [stride(0), stride(1)] }
    }

    fn start(&self, batch: usize) -> isize {
        self.offset + self.batch.at(batch)
    }

    /// True if its columns are contiguous, and not its rows.
    fn is_transposed(&self) -> bool {
        self.strides[0] == 1 && self.strides[1] > 1
    }

    /// True if its rows are contiguous.
    fn is_in_rows(&self) -> bool {
        self.strides[1] == 1 && self.strides[0] > 1
    }
}

/// The place where the product goes.
#[derive(Debug)]
enum Out {
    /// Directly to the place of one of the writes.
    Write(Side),
    /// To a register, part by part.
    Register(usize),
}

/// The part of a task: rows and columns of one of the products, of some of the inner dimension.
struct Part {
    batch: usize,
    inner: Range<usize>,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// A matrix product and its epilogue.
#[derive(Debug)]
pub(crate) struct Product {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
    sides: [Side; 2],
    out: Out,
    grid: Grid,
    /// A register for each side that is transposed.
    transposed: [Option<usize>; 2],
    /// Registers for the transposes of a part's right and left side, where the product's transpose is computed.
    flipped: Option<usize>,
    /// True if it is a sum of outer products.
    outer: bool,
    /// The inner dimension, or its two halves, each of which is summed by itself: so each thread reads only the half that it has
    /// written, which is in its caches.
    inner: Vec<Range<usize>>,
    /// A register for the sums over the second half.
    halved: Option<usize>,
    epilogue: Option<Schedule>,
    dtype: DType,
    /// For a product of f16: registers of f32.
    room: Option<[usize; 3]>,
}

impl Product {
    pub fn new(
        matmul: &MatMul,
        reads: &[Operand],
        writes: &[Operand],
        source: &dyn Fn(&Operand) -> Source,
        sizes: Sizes,
        files: &mut Files,
    ) -> Self {
        let MatMul { m, k, n, ref epilogue, .. } = *matmul;
        let mut body = epilogue.clone();
        let mut writes = writes.to_vec();
        let product = body.values.iter().position(|v| v.instr == Instr::Product).expect("it is computed for something");
        let dtype = body.values[product].dtype;
        let batch = matmul.batch.numel();
        let alone = body.values.len() == 1 && body.stores.len() == 1;
        let sides = [0, 1].map(|i| Side::new(source(&reads[i]), &reads[i]));
        let stored = body.stores.iter().position(|&v| v == product);
        let in_rows = stored.is_none_or(|w| Side::new(source(&writes[w]), &writes[w]).is_in_rows());
        let turnable = batch == 1 && dtype != DType::F16;
        let long = k >= sizes.halved && k >= 4 * m.min(n);
        let halves = long && alone && turnable && sides[0].is_transposed() && in_rows;
        let pieces = if halves { 2 } else { 1 };
        let inner: Vec<_> = (0..pieces).map(|i| k * i / pieces..k * (i + 1) / pieces).collect();
        let wide = n > UNPACKED;
        let gradient = turnable && sides[0].is_transposed() && sides[1].is_in_rows() && in_rows;
        let outer =
            gradient && alone && outer_products::suits(dtype, [m, n], [sides[0].strides[1], sides[1].strides[0]]);
        let transpose_right = gradient && !outer && wide && m > n;
        let flip = transpose_right || outer && !n.is_multiple_of(outer_products::COLUMNS);
        let way = match alone {
            false => Way::Followed,
            true if flip || dtype == DType::F16 => Way::Held,
            true => Way::Straight,
        };
        let grid = Grid::new(batch * inner.len(), [m, k, n], way, sizes.threads);
        let part = grid.largest();
        let packed = [wide, grid.parts[0] >= sizes.transposed];
        // Before the epilogue's registers, some of which it gives back.
        let halved = halves.then(|| files.take(dtype, m * n));
        let flipped = flip.then(|| files.take(dtype, part[0] * part[1]));
        let transposed = [0, 1].map(|i| {
            let packed = turnable && packed[i] && sides[i].is_transposed();
            let transpose = if transpose_right { i == 1 } else { packed && !outer };
            let [rows, width] = if transpose_right { [n, k] } else { [[m, k], [k, n]][i] };
            transpose.then(|| files.take(dtype, rows * pitch(width)))
        });
        let room = (dtype == DType::F16).then(|| half::room(part, k).map(|len| files.take(DType::F32, len)));
        let (out, view) = match stored {
            Some(w) => {
                body.stores.remove(w);
                let write = writes.remove(w);
                let view = View::new(source(&write), &write, write.shape.rank() - 1, false);
                (Out::Write(Side::new(source(&write), &write)), view)
            }
            None => {
                let register = files.take(dtype, part[0] * part[1]);
                (Out::Register(register), View::rows(Source::Product, batch * m, n, part[1]))
            }
        };
        let epilogue = (!body.stores.is_empty()).then(|| {
            let setting = Setting { body: &body, reads, writes: &writes, source, product: Some(view), sizes };
            arranged(&setting, files)
        });
        Self { batch, m, k, n, sides, out, grid, transposed, flipped, outer, inner, halved, epilogue, dtype, room }
    }

    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        match self.dtype {
            DType::F64 => self.run_in::<f64>(env, workers, pool),
            DType::F16 => self.run_in::<f16>(env, workers, pool),
            _ => self.run_in::<f32>(env, workers, pool),
        }
    }

    fn run_in<T: Float>(&self, env: Env, workers: &Workers, pool: Pool) {
        let transposed =
            [0, 1].map(|i| self.transposed[i].map(|register| self.transpose::<T>(i, register, &env, workers, pool)));
        let parts = self.grid.parts;
        let work = self.batch * self.m * self.n * (self.k / 16 + 1);
        let second = self.halved.map(|register| Room::<T>::take(workers, register));
        pool.each(self.inner.len() * self.batch * parts[0] * parts[1], work, |range| {
            for task in range {
                let (first, row, column) = (task / (parts[0] * parts[1]), task / parts[1] % parts[0], task % parts[1]);
                let (batch, half) = if second.is_some() { (0, first) } else { (first, 0) };
                let part = Part {
                    batch,
                    inner: self.inner[half].clone(),
                    rows: self.grid.range(0, row),
                    columns: self.grid.range(1, column),
                };
                self.part::<T>(env, workers, &transposed, part, second.as_ref().filter(|_| half > 0));
            }
        });
        let (Some(second), Out::Write(side)) = (&second, &self.out) else { return };
        let Source::Target(target) = side.source else { unreachable!("writes are targets") };
        pool.each(self.m, self.m * self.n, |range| {
            for row in range {
                let start = (side.start(0) + row as isize * side.strides[0]) as usize;
                // SAFETY: each row is added to once, after both halves have been summed.
                let out = unsafe { env.targets[target].part::<T>(start, self.n) };
                T::add(out, &second.seen()[row * self.n..][..self.n]);
            }
        });
    }

    /// A side's matrix, from a corner on.
    fn matrix<'a, T: Float>(&self, side: usize, env: &Env<'a>, batch: usize, corner: [usize; 2]) -> Matrix<'a, T> {
        let side = &self.sides[side];
        let start = side.start(batch) + corner[0] as isize * side.strides[0] + corner[1] as isize * side.strides[1];
        Matrix { data: T::slice(env.data(side.source)), start, strides: side.strides }
    }

    /// A side in rows, or the transposed side for the product's transpose.
    fn transpose<'a, T: Float>(
        &self,
        side: usize,
        register: usize,
        env: &Env,
        workers: &'a Workers,
        pool: Pool,
    ) -> Room<'a, T> {
        /// Rows that a task transposes.
        const ROWS: usize = 64;
        let (mut from, room) = (self.matrix::<T>(side, env, 0, [0, 0]), Room::take(workers, register));
        let [rows, width] = if self.flipped.is_some() {
            from = from.transposed();
            [self.n, self.k]
        } else {
            [[self.m, self.k], [self.k, self.n]][side]
        };
        let inner = side == 0 || self.flipped.is_some();
        let all = 0..width;
        let halves = if inner { &self.inner[..] } else { std::slice::from_ref(&all) };
        let blocks = rows.div_ceil(ROWS);
        pool.each(halves.len() * blocks, rows * width / 4, |range| {
            for (half, first) in range.map(|i| (&halves[i / blocks], i % blocks * ROWS)) {
                let start = from.start + first as isize + half.start as isize * from.strides[1];
                let (from, rows) = (Matrix { start, ..from }, ROWS.min(rows - first));
                // SAFETY: each half of a row is transposed once.
                unsafe {
                    let pitch = pitch(width);
                    let (data, len) = room.span(first * pitch + half.start, (rows - 1) * pitch + half.len());
                    transpose(from, Place { data, len, start: 0, strides: [pitch as isize, 1] }, [rows, half.len()]);
                }
            }
        });
        room
    }

    /// The product of a part, of so many rows and columns.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn multiply<T: Float>(
        &self,
        [rows, k, columns]: [usize; 3],
        lhs: Matrix<T>,
        rhs: Matrix<T>,
        out: Place<T>,
        scratch: &mut Scratch,
    ) {
        let Some(flipped) = self.flipped else {
            let shape = [rows, k, columns];
            // SAFETY: promised by the caller.
            return match self.outer {
                true => unsafe { T::outer(shape, lhs, rhs, out) },
                false => unsafe { T::multiply(shape, lhs, rhs, out, self.room(scratch)) },
            };
        };
        let flipped = &mut aligned_mut(T::slice_mut(&mut scratch.registers[flipped]))[..rows * columns];
        // SAFETY: the transpose is borrowed mutably, from scratch; the rest is promised by the caller.
        unsafe {
            let (shape, lhs, rhs) = ([columns, k, rows], rhs.transposed(), lhs.transposed());
            match self.outer {
                true => T::outer(shape, lhs, rhs, Place::of(flipped, rows)),
                false => T::multiply(shape, lhs, rhs, Place::of(flipped, rows), None),
            }
            transpose(Matrix { data: flipped, start: 0, strides: [1, rows as isize] }, out, [rows, columns]);
        }
    }

    /// The registers of f32 that it needs.
    fn room<'a>(&self, scratch: &'a mut Scratch) -> Option<[&'a mut [f32]; 3]> {
        let registers = scratch.registers.get_disjoint_mut(self.room?).expect("they differ");
        Some(registers.map(f32::slice_mut))
    }

    /// One part of the product of one pair of matrices, with its epilogue; or its sums over a second half.
    fn part<T: Float>(
        &self,
        env: Env,
        workers: &Workers,
        transposed: &[Option<Room<T>>; 2],
        part: Part,
        second: Option<&Room<T>>,
    ) {
        let Part { batch, inner, rows, columns } = part;
        let mut scratch = workers.mine();
        let extents = [rows.len(), columns.len()];
        let shape = [rows.len(), inner.len(), columns.len()];
        let corners = [[rows.start, inner.start], [inner.start, columns.start]];
        let [lhs, rhs] = [0, 1].map(|i| {
            let [row, column] = corners[i];
            match &transposed[i] {
                Some(room) if self.flipped.is_some() => {
                    let pitch = pitch(self.k);
                    Matrix { data: room.seen(), start: (column * pitch + row) as isize, strides: [1, pitch as isize] }
                }
                Some(room) => {
                    let pitch = pitch([self.k, self.n][i]);
                    Matrix { data: room.seen(), start: (row * pitch + column) as isize, strides: [pitch as isize, 1] }
                }
                None => self.matrix(i, &env, batch, corners[i]),
            }
        });
        let mut product = nothing(T::DTYPE);
        let mut shift = 0;
        let first = batch * self.m + rows.start;
        if let Some(second) = second {
            // SAFETY: this part of the room is written by this task alone.
            unsafe {
                let (data, len) =
                    second.span(rows.start * self.n + columns.start, (rows.len() - 1) * self.n + columns.len());
                let out = Place { data, len, start: 0, strides: [self.n as isize, 1] };
                self.multiply(shape, lhs, rhs, out, &mut scratch);
            }
            return;
        }
        match &self.out {
            Out::Write(side) => {
                let Source::Target(target) = side.source else { unreachable!("writes are targets") };
                let start = side.start(batch)
                    + rows.start as isize * side.strides[0]
                    + columns.start as isize * side.strides[1];
                let (low, high) = reach(extents, side.strides);
                let low_at = (start + low) as usize;
                // SAFETY: the range spans the elements of this part and of others that lie between them. `multiply`
                // writes those of this part alone, through a pointer, and no other thread touches these. No kernel of
                // this kind reads a slot that it writes.
                unsafe {
                    let (data, len) = env.targets[target].span::<T>(low_at, (high - low) as usize + 1);
                    let out = Place { data, len, start: -low, strides: side.strides };
                    self.multiply(shape, lhs, rhs, out, &mut scratch);
                }
            }
            Out::Register(register) => {
                let most = self.grid.largest()[1];
                let width = most as isize;
                std::mem::swap(&mut product, &mut scratch.registers[*register]);
                let out = T::slice_mut(&mut product);
                let len = out.len();
                let out = Place::of(aligned_mut(out), most);
                // SAFETY: `out` is borrowed mutably, from scratch.
                unsafe { self.multiply(shape, lhs, rhs, out, &mut scratch) };
                let skipped = (len - out.len) as isize;
                shift = first as isize * width + columns.start as isize - skipped;
            }
        }
        if let Some(epilogue) = &self.epilogue {
            let env = Env { product: &product, shift, ..env };
            let mut machine = Machine::new(epilogue, env, &mut scratch);
            // Parts of several rows are not contiguous.
            let height = if columns.len() == self.n { epilogue.cut.rows } else { 1 };
            for row in (first..first + rows.len()).step_by(height) {
                machine.enter(row..(first + rows.len()).min(row + height));
                machine.walk(0, columns.clone());
            }
        }
        if let Out::Register(register) = self.out {
            scratch.registers[register] = product;
        }
    }
}
