//! Running a schedule over a tile: block by block, instruction by instruction.

use crate::{
    loops::{
        program::{Action, Extent, Home, Schedule, Step, Vector},
        reduce::{self, with_monoid},
        segments::{self, Part, Runs},
    },
    memory::{
        elements::{Element, Env, Source, Target, aligned, aligned_mut, nothing, with_type},
        half::narrow,
        scratch::{Scratch, Seen},
    },
    random,
    simd::{
        finite::any_non_finite,
        functions::{self, Number},
        lanes::{self, Lanes},
    },
};
use std::ops::Range;
use wgrad::{
    DType, Data, f16,
    op::{Binary, Segments},
};

mod chains;

/// A schedule on its way through a part of its space, on one thread.
pub(crate) struct Machine<'a> {
    schedule: &'a Schedule,
    env: Env<'a>,
    scratch: &'a mut Scratch,
    /// The rows of the tile.
    rows: Range<usize>,
    /// The columns of the block.
    columns: Range<usize>,
    /// The first column of the tile.
    first: usize,
    /// The number of elements that the result of the step at hand has.
    extent: Extent,
    /// True if the walk at hand reads memory that nothing has read or prefetched.
    fresh: bool,
    /// The number of elements that the tile has.
    size: usize,
}

impl<'a> Machine<'a> {
    pub fn new(schedule: &'a Schedule, env: Env<'a>, scratch: &'a mut Scratch) -> Self {
        scratch.seen[..schedule.cells.len()].fill(Seen::Register);
        Self { schedule, env, scratch, rows: 0..0, columns: 0..0, first: 0, extent: Extent::Rows, fresh: true, size: 0 }
    }

    /// Goes to some rows, at most as many as a tile has, and computes what needs no walk over them.
    pub fn enter(&mut self, rows: Range<usize>) {
        self.rows = rows;
        self.columns = 0..0;
        self.row_steps(&self.schedule.prelude);
    }

    /// Goes to a tile.
    pub fn enter_tile(&mut self, tile: usize) {
        let first = tile * self.schedule.cut.rows;
        self.enter(first..self.schedule.cut.kept.min(first + self.schedule.cut.rows));
    }

    /// All of a tile.
    pub fn tile(&mut self, tile: usize) {
        self.enter_tile(tile);
        let cut = &self.schedule.cut;
        self.size = cut.rows * cut.reduced;
        for p in 0..self.schedule.phases.len() {
            if cut.chunks() == 1 {
                self.chunk(p, 0); // Its accumulators are the tile's.
                self.finish(p, true);
                continue;
            }
            self.start(p, false);
            for chunk in 0..cut.chunks() {
                self.chunk(p, chunk);
                self.merge(p);
            }
            self.finish(p, false);
        }
        self.leave();
    }

    /// All of a tile of whole segments.
    pub fn parts(&mut self, parts: &[Part]) {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return };
        self.enter(first.rows.start..last.rows.end);
        self.size = last.columns.end - first.columns.start;
        for p in 0..self.schedule.phases.len() {
            self.walk_parts(p, parts);
            self.finish(p, true);
        }
        self.leave();
    }

    /// Walks over a tile of segments, with accumulators of its own.
    pub fn walk_parts(&mut self, phase: usize, parts: &[Part]) {
        self.first = parts[0].columns.start;
        self.start(phase, true);
        parts.iter().for_each(|part| self.walk(phase, part.columns.clone()));
    }

    /// Stores the values of the tile's rows.
    pub fn leave(&mut self) {
        self.row_steps(&self.schedule.finale);
    }

    /// Walks over some columns of the tile.
    pub fn walk(&mut self, phase: usize, columns: Range<usize>) {
        let schedule = self.schedule;
        self.fresh = schedule.phases[phase].fresh;
        let mut at = columns.start;
        while at < columns.end {
            self.columns = at..columns.end.min(at + schedule.cut.stretch);
            for step in &schedule.phases[phase].block {
                self.step(step, true);
            }
            at = self.columns.end;
        }
    }

    /// Walks over a chunk of the tile, with accumulators of its own.
    pub fn chunk(&mut self, phase: usize, chunk: usize) {
        self.start(phase, true);
        let first = chunk * self.schedule.cut.chunk;
        self.walk(phase, first..self.schedule.cut.reduced.min(first + self.schedule.cut.chunk));
    }

    /// Copies the chunk's accumulators of a phase out, or the tile's in.
    pub fn accumulators(&mut self, phase: usize, mut f: impl FnMut(usize, &Data, &mut Data)) {
        for i in self.schedule.phases[phase].accs.clone() {
            let acc = &self.schedule.accs[i];
            let mut tile = self.take(acc.tile);
            f(i, &self.scratch.registers[acc.chunk], &mut tile);
            self.scratch.registers[acc.tile] = tile;
        }
    }

    /// Prepares the accumulators of a phase: a chunk's or a tile's.
    pub fn start(&mut self, phase: usize, chunk: bool) {
        let rows = self.rows.len();
        for acc in &self.schedule.accs[self.schedule.phases[phase].accs.clone()] {
            let register = &mut self.scratch.registers[if chunk { acc.chunk } else { acc.tile }];
            with_monoid!(acc.kind, acc.dtype, T, M => {
                reduce::start::<T, M>(&mut Element::slice_mut(register)[..rows * acc.width]);
            });
        }
    }

    /// Merges the chunk's accumulators into the tile's.
    pub fn merge(&mut self, phase: usize) {
        let (schedule, rows) = (self.schedule, self.rows.len());
        self.accumulators(phase, |i, chunk, tile| {
            let acc = &schedule.accs[i];
            with_monoid!(acc.kind, acc.dtype, T, M => {
                let len = rows * acc.width;
                reduce::merge::<T, M>(&mut Element::slice_mut(tile)[..len], &Element::slice(chunk)[..len]);
            });
        });
    }

    /// The results of a phase's reductions, in the accumulators of its only chunk or in the tile's, and what follows from them
    /// for each row.
    pub fn finish(&mut self, phase: usize, chunk: bool) {
        let (schedule, rows) = (self.schedule, self.rows.len());
        for acc in &schedule.accs[schedule.phases[phase].accs.clone()] {
            let Home::Register { index, .. } = schedule.cells[acc.to].home else { unreachable!("results vary") };
            let mut out = self.take(index);
            let total = &self.scratch.registers[if chunk { acc.chunk } else { acc.tile }];
            with_monoid!(acc.kind, acc.dtype, T, M => {
                let out = &mut aligned_mut(T::slice_mut(&mut out))[..rows];
                reduce::finish::<T, M>(&Element::slice(total)[..rows * acc.width], out);
            });
            self.scratch.registers[index] = out;
        }
        self.row_steps(&schedule.phases[phase].rows);
    }

    fn row_steps(&mut self, steps: &'a [Step]) {
        if self.rows.is_empty() {
            return; // Points between segments.
        }
        steps.iter().for_each(|step| self.step(step, false));
    }

    fn take(&mut self, register: usize) -> Data {
        let register = &mut self.scratch.registers[register];
        let empty = nothing(register.dtype());
        std::mem::replace(register, empty)
    }

    fn len(&self, extent: Extent) -> usize {
        match extent {
            Extent::One => 1,
            Extent::Rows => self.rows.len(),
            Extent::Columns => self.columns.len(),
            Extent::Block => self.lines().len() * self.columns.len(),
        }
    }

    /// The lines of a block: its rows, or one where these are segments, one behind the other.
    fn lines(&self) -> Range<usize> {
        if self.schedule.tiling.is_some() { 0..1 } else { self.rows.clone() }
    }

    /// The place in its register where a value's block at hand begins.
    fn offset(&self, resident: bool) -> usize {
        if resident { (self.columns.start - self.first) * self.lines().len() } else { 0 }
    }

    /// The ranges of a view's outer and inner walk: of a block, or of a value per row.
    fn ranges(&self, extent: Extent) -> (Range<usize>, Range<usize>) {
        match extent {
            Extent::One => (0..1, 0..1),
            Extent::Rows => (0..1, self.rows.clone()),
            Extent::Columns => (0..1, self.columns.clone()),
            Extent::Block if self.schedule.cut.transposed => (self.columns.clone(), self.rows.clone()),
            Extent::Block => (self.lines(), self.columns.clone()),
        }
    }

    /// The cell that a cell is found in.
    fn found(&self, cell: usize) -> usize {
        match self.scratch.seen[cell] {
            Seen::Cell(other) => other,
            _ => cell,
        }
    }

    /// The elements of a cell, for reading.
    fn lanes<T: Element>(&self, cell: usize) -> Lanes<'_, T> {
        let cell = self.found(cell);
        let what = &self.schedule.cells[cell];
        let (index, resident) = match what.home {
            Home::Const(c) => return Lanes::Splat(T::from_f64(c)),
            Home::Register { index, resident } => (index, resident),
        };
        let len = self.len(what.extent);
        let slice = match self.scratch.seen[cell] {
            Seen::Register => &aligned(T::slice(&self.scratch.registers[index]))[self.offset(resident)..][..len],
            Seen::Cell(_) => unreachable!("it has been found"),
            Seen::Uniform => return Lanes::Splat(aligned(T::slice(&self.scratch.registers[index]))[0]),
            // SAFETY: these elements are of a block that is this thread's own. Either this thread has computed them, and
            // writes none of them again while it is at this block: writes do not overlap. Or they are a read that the
            // kernel overwrites, by stores that come after everything else that is done to the block; of a stored value
            // that is itself found here, only what the store would write over itself is.
            Seen::Memory(Source::Target(t), at) => unsafe { self.env.targets[t].seen(at, len) },
            Seen::Memory(Source::Product, at) => &T::slice(self.env.product)[at..][..len],
            Seen::Memory(source, at) => &T::slice(self.env.data(source))[at..][..len],
            Seen::Pieces(_) => unreachable!("nothing but chains need it"),
        };
        match (what.extent, self.extent) {
            _ if len == 1 => Lanes::Splat(slice[0]),
            // A block's lines are its rows, or transposed, its columns.
            (Extent::Rows, Extent::Block) if self.schedule.cut.transposed => Lanes::Tile(slice),
            (Extent::Columns, Extent::Block) if self.schedule.cut.transposed => Lanes::Lines(slice),
            (Extent::Rows, Extent::Block) => Lanes::Lines(slice),
            (Extent::Columns, Extent::Block) => Lanes::Tile(slice),
            _ => Lanes::Slice(slice),
        }
    }

    /// Computes a cell by `f`, into its register, or into memory where the step says so.
    fn compute<T: Element>(&mut self, step: &Step, f: impl FnOnce(&Self, &mut [T])) {
        let to = step.to.expect("a result has a place");
        let cell = &self.schedule.cells[to];
        let len = self.len(cell.extent);
        self.extent = cell.extent;
        let Home::Register { index, resident } = cell.home else { unreachable!("constants are not computed") };
        if let Some((target, at)) = step.direct.and_then(|view| self.destination(view, to)) {
            // SAFETY: the elements belong to this thread's block, no read of the kernel shows them (a write that shares
            // its slot with a read is never a step's destination), and writes do not overlap.
            let out = unsafe { target.part(at, len) };
            f(self, out);
            return;
        }
        let mut out = self.take(index);
        let first = self.offset(resident);
        f(self, &mut aligned_mut(T::slice_mut(&mut out))[first..][..len]);
        self.scratch.registers[index] = out;
    }

    /// The place of a result in memory, if it is contiguous; notes where it is.
    fn destination(&mut self, view: usize, to: usize) -> Option<(&'a Target, usize)> {
        self.scratch.seen[to] = Seen::Register;
        let (target, at) = self.place(view)?;
        self.scratch.seen[to] = Seen::Memory(self.schedule.views[view].source, at);
        Some((target, at))
    }

    /// The place of a write's block in memory, if it is contiguous.
    fn place(&self, view: usize) -> Option<(&'a Target, usize)> {
        let view = &self.schedule.views[view];
        let (outer, inner) = self.ranges(Extent::Block);
        let at = view.direct(outer, inner)? as usize;
        let Source::Target(target) = view.source else { unreachable!("writes are targets") };
        Some((&self.env.targets[target], at))
    }

    /// Runs one step: over the block, or over the values of the tile's rows.
    fn step(&mut self, step: &'a Step, block: bool) {
        match &step.action {
            Action::Load(view) => self.load(step, *view),
            Action::Store(view, from) => {
                let dtype = self.schedule.cells[*from].dtype;
                with_type!(dtype, T => self.store::<T>(*view, *from, block));
            }
            Action::Fold(acc, from) => self.fold(*acc, *from),
            Action::FoldNonFinite(acc, from) => self.fold_non_finite(*acc, *from),
            Action::Expand(from) => with_type!(self.dtype(*from), T => self.expand::<T>(step, *from)),
            Action::Random { stream, key, index } => {
                let extent = self.schedule.cells[step.to.expect("a result")].extent;
                let (outer, inner) = self.ranges(extent);
                let view = &self.schedule.views[*index];
                self.compute::<u32>(step, |this, out| {
                    view.positions(outer, inner, |i, word| out[i] = word as u32);
                    random::words(*stream, key.map(|k| this.lanes::<u32>(k)), out);
                });
            }
            Action::Lookup { from, segments, index, whole } => {
                with_type!(self.dtype_of(step), T => self.look_up::<T>(step, from, segments, *index, *whole));
            }
            Action::Spread { from, whole } => {
                with_type!(self.dtype(*from), T => self.spread::<T>(step, *from, *whole));
            }
            Action::Unary(op, a) => match (self.dtype(*a), self.dtype_of(step)) {
                (DType::F32, DType::Bool) => {
                    self.compute(step, |this, out| <f32 as Number>::is_finite(this.lanes(*a), out))
                }
                (DType::F64, DType::Bool) => {
                    self.compute(step, |this, out| <f64 as Number>::is_finite(this.lanes(*a), out))
                }
                (DType::F16, DType::Bool) => {
                    self.compute(step, |this, out| <f16 as Number>::is_finite(this.lanes(*a), out))
                }
                (dtype, _) => {
                    with_type!(dtype, T => self.compute::<T>(step, |this, out| T::unary(*op, this.lanes(*a), out)))
                }
            },
            Action::Binary(op @ (Binary::Lt | Binary::Eq), a, b) => with_type!(self.dtype(*a), T => {
                self.compute(step, |this, out| functions::compare::<T>(*op, this.lanes(*a), this.lanes(*b), out));
            }),
            Action::Binary(op, a, b) => with_type!(self.dtype(*a), T => {
                self.compute::<T>(step, |this, out| T::binary(*op, this.lanes(*a), this.lanes(*b), out));
            }),
            Action::Chain(chain) => match chain.dtype {
                DType::F32 => self.chain::<f32>(chain),
                _ => self.chain::<f64>(chain),
            },
            Action::Choose(c, a, b) => {
                let chosen = if matches!(self.lanes::<bool>(*c), Lanes::Splat(true)) { *a } else { *b };
                self.scratch.seen[step.to.expect("a result has a place")] = Seen::Cell(self.found(chosen));
            }
            Action::Select(c, a, b) => with_type!(self.dtype(*a), T => {
                let pick = |this: &Self, out: &mut [T]| {
                    lanes::select(this.lanes(*c), this.lanes(*a), this.lanes(*b), out);
                };
                self.compute::<T>(step, pick);
            }),
            // Without the way round f64, on which rounding takes longer.
            Action::Cast(a) if (self.dtype(*a), self.dtype_of(step)) == (DType::F32, DType::F16) => {
                self.compute(step, |this, out| lanes::map1(this.lanes(*a), out, narrow));
            }
            Action::Cast(a) => with_type!(self.dtype(*a), A => with_type!(self.dtype_of(step), O => {
                self.compute::<O>(step, |this, out| lanes::cast::<A, O>(this.lanes(*a), out));
            })),
        }
    }

    fn dtype(&self, cell: usize) -> DType {
        self.schedule.cells[cell].dtype
    }

    fn dtype_of(&self, step: &Step) -> DType {
        self.dtype(step.to.expect("a result has a type"))
    }

    /// Finds a read's elements in memory, or gathers them.
    fn load(&mut self, step: &Step, index: usize) {
        let view = &self.schedule.views[index];
        let to = step.to.expect("a load has a place");
        let cell = self.schedule.cells[to];
        let (outer, inner) = self.ranges(cell.extent);
        let shift = if view.source == Source::Product { self.env.shift } else { 0 };
        let resident = cell.is_resident();
        if view.in_pieces {
            let at = view.direct(outer, inner);
            self.scratch.seen[to] = at.map_or(Seen::Pieces(index), |at| Seen::Memory(view.source, at as usize));
            return;
        }
        // An operand that the kernel overwrites is copied first, where it matters.
        if !view.overwritten
            && !resident
            && let Some(at) = view.direct(outer.clone(), inner.clone())
        {
            let at = (at - shift) as usize;
            self.scratch.seen[to] = Seen::Memory(view.source, at);
            return;
        }
        self.scratch.seen[to] = Seen::Register;
        with_type!(cell.dtype, T => self.compute::<T>(step, |this, out| match view.source {
            Source::Product => view.gather(T::slice(this.env.product), shift, outer, inner, out),
            Source::Target(t) => this.gather_target(t, view, outer, inner, out),
            source => view.gather(T::slice(this.env.data(source)), 0, outer, inner, out),
        }));
    }

    /// Copies elements that this kernel overwrites later.
    fn gather_target<T: Element>(
        &self,
        target: usize,
        view: &crate::loops::view::View,
        outer: Range<usize>,
        inner: Range<usize>,
        out: &mut [T],
    ) {
        view.scatter(outer, inner, |first, at, len, stride| {
            let target = &self.env.targets[target];
            let out = out[first..].iter_mut().take(len).enumerate();
            if stride == 1 {
                // SAFETY: the elements belong to this thread's block alone, which has not written them yet: the write
                // that shares their slot is the same operand, and is the last thing that happens to the block.
                let x = unsafe { target.seen::<T>(at, len) };
                return out.zip(x).for_each(|((_, o), &x)| *o = x);
            }
            // SAFETY: as above.
            out.for_each(|(i, o)| {
                *o = unsafe { target.seen(crate::memory::strides::at(at as isize, i, stride), 1)[0] }
            });
        });
    }

    fn store<T: Element>(&mut self, view: usize, from: usize, block: bool) {
        let view = &self.schedule.views[view];
        let Source::Target(target) = view.source else { unreachable!("writes are targets") };
        self.extent = if block { Extent::Block } else { Extent::Rows };
        let (outer, inner) = self.ranges(self.extent);
        if let Seen::Memory(source, at) = self.scratch.seen[self.found(from)]
            && source == view.source
            && view.direct(outer.clone(), inner.clone()) == Some(at as isize)
        {
            return; // It has been computed there.
        }
        if matches!(self.scratch.seen[from], Seen::Pieces(_)) {
            return; // As above.
        }
        let x = self.lanes::<T>(from);
        view.scatter(outer, inner, |first, at, len, stride| {
            let target = &self.env.targets[target];
            let x = match x {
                Lanes::Slice(x) => Lanes::Slice(&x[first..][..len]),
                Lanes::Splat(x) => Lanes::Splat(x),
                Lanes::Lines(_) | Lanes::Tile(_) => unreachable!("what is stored has been expanded"),
            };
            // SAFETY: these elements of the write belong to this thread's block or rows, writes do not overlap, and a
            // read of the same slot has been copied to a register.
            match (stride, x) {
                (1, _) => lanes::copy(x, unsafe { target.part(at, len) }),
                (_, Lanes::Slice(x)) => x.iter().enumerate().for_each(|(i, &x)| unsafe {
                    target.part(crate::memory::strides::at(at as isize, i, stride), 1)[0] = x;
                }),
                (_, Lanes::Splat(x)) => (0..len).for_each(|i| unsafe {
                    target.part(crate::memory::strides::at(at as isize, i, stride), 1)[0] = x;
                }),
                (_, Lanes::Lines(_) | Lanes::Tile(_)) => unreachable!("as above"),
            }
        });
    }

    fn fold(&mut self, acc: usize, from: usize) {
        let acc = &self.schedule.accs[acc];
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let mut register = self.take(acc.chunk);
        with_monoid!(acc.kind, acc.dtype, T, M => {
            let sums = &mut Element::slice_mut(&mut register)[..rows * acc.width];
            let one;
            let x = match self.lanes::<T>(from) {
                Lanes::Slice(x) => x,
                Lanes::Splat(x) => {
                    one = [x];
                    &one
                }
                Lanes::Lines(_) | Lanes::Tile(_) => unreachable!("what is reduced has been expanded"),
            };
            if let Some(tiling) = &self.schedule.tiling {
                let acc = reduce::Accumulator::view_mut(sums);
                let runs = Runs::among(&tiling.segments, self.rows.clone(), self.columns.clone());
                segments::fold::<T, M>(runs, x, self.rows.start, acc);
            } else if self.schedule.cut.transposed {
                reduce::columns::<T, M>(x, sums);
            } else if rows == 1 {
                reduce::blocks::<T, M>(x, self.schedule.cut.block, sums);
            } else {
                reduce::rows::<T, M>(x, columns, sums);
            }
        });
        self.scratch.registers[acc.chunk] = register;
    }

    /// Looks for numbers that are not finite, in each row.
    fn fold_non_finite(&mut self, acc: usize, from: usize) {
        let acc = &self.schedule.accs[acc];
        let mut register = self.take(acc.chunk);
        let found = &mut bool::slice_mut(&mut register)[..self.rows.len()];
        match self.lanes::<f32>(from) {
            Lanes::Slice(x) => {
                let rows = x.chunks_exact(self.columns.len());
                found.iter_mut().zip(rows).for_each(|(found, row)| *found |= any_non_finite(row));
            }
            Lanes::Splat(x) => found.iter_mut().for_each(|found| *found |= any_non_finite(&[x])),
            Lanes::Lines(_) | Lanes::Tile(_) => unreachable!("answers were asked for of each element"),
        }
        self.scratch.registers[acc.chunk] = register;
    }

    /// Repeats the value of each row over its elements.
    fn spread<T: Element>(&mut self, step: &Step, from: usize, whole: bool) {
        let tiling = self.schedule.tiling.as_ref().expect("rows that are segments");
        let first = self.rows.start;
        let runs = Runs::among(&tiling.segments, self.rows.clone(), self.columns.clone());
        let of = |rows: Lanes<'_, T>, segment: usize| match rows {
            Lanes::Lines(x) | Lanes::Slice(x) | Lanes::Tile(x) => x[segment - first],
            Lanes::Splat(x) => x,
        };
        self.extent = Extent::Block;
        let rows = self.lanes::<T>(from);
        let one = if whole { None } else { segments::uniform(&runs, |segment| of(rows, segment)) };
        self.repeat(step, one, |this, out| {
            let rows = this.lanes::<T>(from);
            segments::spread(runs, out, |segment| of(rows, segment));
        });
    }

    /// Finds for each position the element of its segment.
    fn look_up<T: Element>(&mut self, step: &Step, from: &Vector, segments: &Segments, index: usize, whole: bool) {
        let extent = self.schedule.cells[step.to.expect("a result has a place")].extent;
        let (outer, inner) = self.ranges(extent);
        let view = &self.schedule.views[index];
        let x = T::slice(self.env.data(from.source));
        let value = |segment: usize| x[crate::memory::strides::at(from.offset as isize, segment, from.stride)];
        let Some(at) = view.direct(outer.clone(), inner.clone()) else {
            return self.repeat(step, None, |_, out| {
                view.positions(outer, inner, |i, position| {
                    let segment = Runs::new(segments, position..position + 1).next().and_then(|(_, segment)| segment);
                    out[i] = segment.map_or(T::default(), value);
                });
            });
        };
        let at = at as usize;
        let runs = Runs::new(segments, at..at + outer.len() * inner.len());
        let one = if whole { None } else { segments::uniform(&runs, value) };
        self.repeat(step, one, |_, out| segments::spread(runs, out, value));
    }

    /// Computes a cell by `f`, unless it is one value all over the block and may stay that.
    fn repeat<T: Element>(&mut self, step: &Step, one: Option<T>, f: impl FnOnce(&Self, &mut [T])) {
        let to = step.to.expect("a result has a place");
        if let (Some(one), None, Home::Register { index, .. }) = (one, step.direct, self.schedule.cells[to].home) {
            self.scratch.seen[to] = Seen::Uniform;
            aligned_mut(T::slice_mut(&mut self.scratch.registers[index]))[0] = one;
            return;
        }
        self.scratch.seen[to] = Seen::Register;
        self.compute(step, f);
    }

    /// Repeats a value per row or column, or one for all, over the elements of the block.
    fn expand<T: Element>(&mut self, step: &Step, from: usize) {
        self.compute::<T>(step, |this, out| lanes::copy(this.lanes(from), out));
    }
}
