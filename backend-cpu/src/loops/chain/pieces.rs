//! Operands of several contiguous pieces, such as a channel, of which each image has one: chains read and write them in place.
//! A few elements that cross from one piece into the next are copied through the chain's file.

use super::{Input, compute::FEW};
use crate::{
    loops::{
        program::{Action, Cell, Extent, Step},
        view::View,
    },
    memory::elements::{Source, prefetch},
};

/// Finds the views of a walk that only chains use, and whose contiguous pieces have at least so many elements.
pub(super) fn in_pieces(steps: &[Step], cells: &[Cell], views: &mut [View], least: usize) {
    let mut whole = vec![false; cells.len()];
    let mut made = vec![];
    for step in steps {
        match &step.action {
            Action::Chain(chain) => {
                made.extend(chain.outputs.iter().filter_map(|output| Some((output.direct?, output.cell))));
                let spread = chain.inputs.iter().filter(|input| matches!(input, Input::Spread(_)));
                spread.for_each(|input| whole[input.cell()] = true);
            }
            Action::Store(view, from) => whole[*from] |= !made.contains(&(*view, *from)),
            action => {
                action.operands().for_each(|cell| whole[cell] = true);
                if let (Action::Load(view), Some(to)) = (action, step.to) {
                    made.extend((!views[*view].overwritten).then_some((*view, to)));
                }
            }
        }
    }
    for (view, cell) in made {
        let needed_so = cells[cell].is_open() && cells[cell].extent == Extent::Block && !whole[cell];
        let view = &mut views[view];
        view.in_pieces = needed_so && view.source != Source::Product && view.piece_len() >= least;
    }
}

/// A block, row-major: its first row and column, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub row: usize,
    pub column: usize,
    /// Columns.
    pub width: usize,
    /// Elements.
    pub len: usize,
}

/// An iterator over a block's elements in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces<'a, T> {
    /// Their pieces; none if they are contiguous.
    view: Option<&'a View>,
    area: Area,
    memory: *mut T,
    len: usize,
    /// The line and column after the next piece, and the place of that line.
    line: usize,
    column: usize,
    base: isize,
    /// The place of the next element, and the number of contiguous elements there.
    at: *mut T,
    left: usize,
    /// The piece after that.
    next: (*mut T, usize),
    /// The distance of a prefetch in elements, which stays within these two pieces.
    ahead: usize,
}

impl<'a, T> Pieces<'a, T> {
    /// Elements one after another.
    pub fn one(memory: *mut T, len: usize) -> Self {
        let area = Area { row: 0, column: 0, width: len, len };
        let next = (memory, 0);
        Self { view: None, area, memory, len, line: 0, column: 0, base: 0, at: memory, left: len, next, ahead: 0 }
    }

    /// The elements of an area, as a view shows them in some memory.
    pub fn new(view: &'a View, area: Area, (memory, len): (*mut T, usize)) -> Self {
        let mut this =
            Self { view: Some(view), area, len, base: view.line(area.row), left: 0, ..Self::one(memory, len) };
        this.next = this.piece();
        this
    }

    /// The piece behind the next one.
    #[inline]
    fn piece(&mut self) -> (*mut T, usize) {
        let Some(view) = self.view else { return (self.memory, 0) };
        if self.column == self.area.width {
            (self.line, self.column) = (self.line + 1, 0);
            self.base = view.line(self.area.row + self.line);
        }
        if self.line * self.area.width == self.area.len {
            return (self.memory, 0);
        }
        let (across, run) = view.piece(self.area.column + self.column);
        let (at, run) = ((self.base + across) as usize, run.min(self.area.width - self.column));
        assert!(at.checked_add(run).is_some_and(|end| end <= self.len));
        self.column += run;
        (self.memory.wrapping_add(at), run)
    }

    /// Goes to the next piece.
    #[inline]
    fn advance(&mut self, ahead: usize) {
        (self.at, self.left) = self.next;
        self.next = self.piece();
        self.ahead = ahead.min(self.left);
    }

    /// The place of the next [`FEW`] elements, if they are contiguous; then it goes on behind them.
    #[inline(always)]
    pub fn here(&mut self, ahead: usize) -> Option<*mut T> {
        if self.left == 0 {
            self.advance(ahead);
        }
        if self.left < FEW {
            return None;
        }
        let at = self.at;
        if self.ahead > 0 {
            let near = self.ahead < self.left;
            let soon =
                if near { at.wrapping_add(self.ahead) } else { self.next.0.wrapping_add(self.ahead - self.left) };
            prefetch(soon, FEW);
        }
        self.at = at.wrapping_add(FEW);
        self.left -= FEW;
        Some(at)
    }

    /// Goes through the next `few` elements piece by piece. For each piece it gives the position of its first element among
    /// these, its place in memory, and its length.
    #[inline]
    pub fn each(&mut self, few: usize, mut f: impl FnMut(usize, *mut T, usize)) {
        let mut done = 0;
        while done < few {
            if self.left == 0 {
                self.advance(self.ahead);
            }
            let len = self.left.min(few - done);
            f(done, self.at, len);
            self.at = self.at.wrapping_add(len);
            (self.left, done) = (self.left - len, done + len);
        }
    }
}
