//! Chains within a tile: where a block's inputs and results are.

use super::Machine;
use crate::{
    loops::{
        chain::{
            Area, Chain, FOLDS, Folds, From, INPUTS, Input, LONGEST, Lane, Lines, PREFETCHES, Pieces, Prefetch, Run, To,
        },
        program::{Extent, Home},
        segments::Runs,
    },
    memory::{
        elements::{Element, Source, aligned_mut},
        scratch::Seen,
    },
    simd::lanes::Lanes,
};
use arrayvec::ArrayVec;
use wgrad::DType;

impl<'a> Machine<'a> {
    /// Runs a chain over the block.
    pub(super) fn chain<T: Lane>(&mut self, chain: &Chain) {
        self.extent = Extent::Block;
        let len = self.len(Extent::Block);
        let mut outputs = ArrayVec::<_, LONGEST>::new();
        for output in &chain.outputs {
            let place = output.direct.and_then(|view| self.destination(view, output.cell));
            let view = output.direct.filter(|&view| self.schedule.views[view].in_pieces);
            let place = match (place, view) {
                // SAFETY: these elements belong to this thread's block alone.
                (Some((target, at)), _) => Pieces::one(unsafe { target.span::<T>(at, len).0 }, len),
                (None, Some(view)) => {
                    self.scratch.seen[output.cell] = Seen::Pieces(view);
                    self.pieces(view)
                }
                (None, None) => {
                    let Home::Register { index, resident } = self.schedule.cells[output.cell].home else {
                        unreachable!("constants are not computed")
                    };
                    let first = self.offset(resident);
                    let register = aligned_mut(T::slice_mut(&mut self.scratch.registers[index]));
                    Pieces::one(register[first..][..len].as_mut_ptr(), len)
                }
            };
            outputs.push(To { value: output.value, place, here: None, alone: output.alone });
        }
        let mut file = self.take(chain.file);
        let mut accs = ArrayVec::<_, FOLDS>::new();
        for fold in &chain.folds {
            accs.push(self.take(self.schedule.accs[fold.acc].chunk));
        }
        // Nothing is collected: a collected array would be moved with all its capacity.
        let mut inputs = ArrayVec::<_, INPUTS>::new();
        let mut pieces = ArrayVec::<_, INPUTS>::new();
        let mut conditions = ArrayVec::<_, INPUTS>::new();
        for &input in &chain.inputs {
            inputs.push(match input {
                Input::Cell(cell) => self.input::<T>(cell, len, &mut pieces, &mut conditions),
                Input::Spread(rows) => From::Rows(self.lanes(rows)),
            });
        }
        let rows = self.schedule.tiling.as_ref().map(|tiling| {
            (
                Runs::among(&tiling.segments, self.rows.clone(), self.columns.clone()),
                self.columns.start,
                self.rows.start,
            )
        });
        let transposed = self.schedule.cut.transposed;
        let width = if transposed { self.rows.len() } else { self.columns.len() };
        let folds = Folds { of: &chain.folds, made: chain.made, accs: &mut accs, lines: Lines { width, transposed } };
        let mut prefetches = ArrayVec::<_, PREFETCHES>::new();
        for &prefetch in &chain.prefetches {
            prefetches.extend(self.prefetched::<T>(prefetch));
        }
        // SAFETY: inputs and outputs are `len` elements each, of this thread's registers and block; outputs have registers
        // of their own. In memory an output may be what an input shows, and is then the same operand: what is read and
        // what is written belong to the same points. Nothing else is read there any more: a chain writes at once over what
        // the kernel reads only if nothing comes after it but stores of its own results.
        unsafe {
            let file = aligned_mut(T::slice_mut(&mut file));
            let (code, prefetches, fresh) = (&chain.code[..], &prefetches[..], self.fresh);
            let (inputs, pieces, conditions) = (&inputs[..], &mut pieces[..], &mut conditions[..]);
            let outputs = &mut outputs[..];
            Run { code, inputs, pieces, conditions, outputs, folds, rows, file, len, fresh, prefetches }.run();
        }
        drop((inputs, pieces, conditions, outputs));
        for (fold, acc) in chain.folds.iter().zip(accs) {
            self.scratch.registers[self.schedule.accs[fold.acc].chunk] = acc;
        }
        self.scratch.registers[chain.file] = file;
    }

    /// The block at hand, as a view shows it in memory.
    fn pieces<T: Element>(&self, view: usize) -> Pieces<'a, T> {
        let view = &self.schedule.views[view];
        let (outer, inner) = self.ranges(Extent::Block);
        let area = Area { row: outer.start, column: inner.start, width: inner.len(), len: outer.len() * inner.len() };
        let memory = match view.source {
            Source::Target(target) => self.env.targets[target].all::<T>(),
            source => {
                let data = T::slice(self.env.data(source));
                (data.as_ptr().cast_mut(), data.len())
            }
        };
        Pieces::new(view, area, memory)
    }

    /// The beginning of memory that is prefetched: it is not touched.
    fn prefetched<T: Element>(&self, prefetch: Prefetch) -> Option<*const T> {
        let view = &self.schedule.views[prefetch.view];
        let (outer, inner) = self.ranges(Extent::Block);
        let at = view.direct(outer, inner)? as usize;
        let start = match view.source {
            Source::Target(target) => self.env.targets[target].all::<T>().0.cast_const(),
            source => T::slice(self.env.data(source)).as_ptr(),
        };
        Some(start.wrapping_add(at + if prefetch.next { self.size } else { 0 }))
    }

    /// The place of one of a chain's inputs, among these if it lies in pieces or is made of conditions.
    fn input<'b, T: Lane>(
        &'b self,
        cell: usize,
        len: usize,
        pieces: &mut ArrayVec<Pieces<'b, T>, INPUTS>,
        conditions: &mut ArrayVec<Pieces<'b, bool>, INPUTS>,
    ) -> From<'b, T> {
        let view = match self.scratch.seen[self.found(cell)] {
            Seen::Pieces(view) => Some(view),
            _ => None,
        };
        if self.dtype(cell) == DType::Bool {
            let found = match view {
                Some(view) => self.pieces(view),
                None => match self.lanes::<bool>(cell) {
                    Lanes::Splat(condition) => return From::One(if condition { T::ONE } else { T::default() }),
                    Lanes::Slice(conditions) => Pieces::one(conditions.as_ptr().cast_mut(), len),
                    Lanes::Lines(_) | Lanes::Tile(_) => {
                        unreachable!("conditions of rows or columns have been expanded")
                    }
                },
            };
            conditions.push(found);
            return From::Conditions(conditions.len() - 1);
        }
        if let Some(view) = view {
            pieces.push(self.pieces(view));
            return From::Pieces(pieces.len() - 1);
        }
        if let Seen::Memory(Source::Target(t), at) = self.scratch.seen[self.found(cell)]
            && self.schedule.cells[cell].extent == Extent::Block
        {
            // SAFETY: as in `lanes`.
            return From::Memory(unsafe { self.env.targets[t].span::<T>(at, len).0 });
        }
        let memory = matches!(self.scratch.seen[self.found(cell)], Seen::Memory(..));
        match self.lanes::<T>(cell) {
            Lanes::Splat(x) => From::One(x),
            Lanes::Slice(x) if memory => From::Memory(x.as_ptr()),
            Lanes::Slice(x) => From::Register(x.as_ptr()),
            Lanes::Lines(x) => From::Lines(x),
            Lanes::Tile(x) => From::Tile(x),
        }
    }
}
