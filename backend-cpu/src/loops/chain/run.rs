//! The loop of a chain, compiled for the vector instructions that the machine has.

use super::PREFETCHES;
use super::{
    Code, Instruction, Question,
    compute::{FEW, Lane},
    pieces::Pieces,
    sink::Folds,
};
use crate::{
    loops::{reduce::WIDE, segments::Runs},
    memory::elements::{Element, prefetch},
    simd::lanes::Lanes,
};
use arrayvec::ArrayVec;
use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// The distance of prefetches in elements, for memory that has not been read or prefetched before.
pub(crate) const AHEAD: usize = 2048;
/// The most instructions of a chain, and the most inputs.
pub(crate) const LONGEST: usize = 32;
pub(crate) const INPUTS: usize = 32;
const VALUES: usize = LONGEST + INPUTS;

/// The place where a chain finds one of its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From<'a, T> {
    /// In memory, one after another.
    Memory(*const T),
    /// In a register, one after another.
    Register(*const T),
    /// In memory, in pieces: which of the run's.
    Pieces(usize),
    /// Conditions in memory: which of the run's.
    Conditions(usize),
    /// Nowhere: all elements are equal.
    One(T),
    /// One for each of the block's lines, which are equally long.
    Lines(&'a [T]),
    /// A line, which all lines are equal to.
    Tile(&'a [T]),
    /// Among the values of the rows, which are segments.
    Rows(Lanes<'a, T>),
}

/// The place where one of its results goes.
#[derive(Debug)]
pub(crate) struct To<'a, T> {
    pub value: usize,
    pub place: Pieces<'a, T>,
    /// The place where the elements at hand go, if it is contiguous.
    pub here: Option<*mut T>,
    /// True if it may be computed there.
    pub alone: bool,
}

/// A chain, and the block that it runs over.
pub(crate) struct Run<'a, 'b, T> {
    pub code: &'a [Instruction],
    pub inputs: &'a [From<'b, T>],
    /// Inputs, and conditions, that lie in pieces.
    pub pieces: &'a mut [Pieces<'b, T>],
    pub conditions: &'a mut [Pieces<'b, bool>],
    pub outputs: &'a mut [To<'b, T>],
    pub folds: Folds<'a>,
    /// If rows are segments: their runs, where the elements begin among them, and the first row.
    pub rows: Option<(Runs<'a>, usize, usize)>,
    /// Room for [`FEW`] elements of each value.
    pub file: &'a mut [T],
    /// The number of elements of each input and output.
    pub len: usize,
    /// True if inputs in memory may not have been read or prefetched before.
    pub fresh: bool,
    /// Further prefetches, in step with the elements.
    pub prefetches: &'a [*const T],
}

impl<T: Lane> WithSimd for Run<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { code, inputs, pieces, conditions, outputs, folds, rows, file, len, fresh, prefetches } = self;
        let values = inputs.len() + code.len();
        assert!(inputs.len() <= INPUTS && code.len() <= LONGEST && file.len() >= values * FEW);
        // Arrays with room for the longest chain are not written before they are needed: chains are often short.
        let mut memory = ArrayVec::<(usize, *const T), INPUTS>::new();
        let mut ahead = ArrayVec::<*const T, { INPUTS + PREFETCHES }>::new();
        ahead.extend(prefetches.iter().copied());
        let mut in_pieces = ArrayVec::<(usize, usize), INPUTS>::new();
        let mut of_conditions = ArrayVec::<(usize, usize), INPUTS>::new();
        let mut lines = ArrayVec::<(usize, Line<T>), INPUTS>::new();
        for (i, (row, input)) in file.chunks_exact_mut(FEW).zip(inputs).enumerate() {
            match *input {
                From::One(x) => row.fill(x),
                From::Memory(x) | From::Register(x) => {
                    memory.push((i, x));
                    if fresh && matches!(input, From::Memory(_)) {
                        ahead.push(x.wrapping_add(AHEAD));
                    }
                }
                From::Pieces(x) => in_pieces.push((i, x)),
                From::Conditions(x) => of_conditions.push((i, x)),
                From::Lines(x) => lines.push((i, Line::One { values: x, width: len / x.len(), shown: usize::MAX })),
                From::Tile(x) => lines.push((i, Line::Tile { values: x, shown: false })),
                From::Rows(_) => {}
            }
        }
        let mut spread = rows
            .filter(|_| inputs.iter().any(|input| matches!(input, From::Rows(_))))
            .map(|(runs, at, row)| Spread { runs, at, row, run: (at..at, None) });
        // The place of each value's elements at hand: in the file, but for inputs in memory and results that are computed
        // in their places.
        let start_of_file = file.as_mut_ptr();
        let mut at = [start_of_file; VALUES];
        // SAFETY: within the file, by the assertion.
        let row = |value: usize| unsafe { start_of_file.add(value * FEW) };
        at[..values].iter_mut().enumerate().for_each(|(value, at)| *at = row(value));
        // A selected value is known before it is computed.
        for i in 0..outputs.len() {
            let (before, others) = outputs.split_at_mut(i);
            let to = &mut others[0];
            let mut value = to.value;
            while let Some(&Instruction { code: Code::Choose, of: [condition, a, b, ..] }) =
                value.checked_sub(inputs.len()).map(|i| &code[i])
            {
                // SAFETY: a condition is an input, and within the file.
                let condition = unsafe { *row(usize::from(condition)) } != T::default();
                value = usize::from(if condition { a } else { b });
            }
            to.value = value;
            to.alone = to.alone && value >= inputs.len() && before.iter().all(|other| other.value != value);
        }
        let mut place = folds.lines.start();
        let mut start = 0;
        while start < len {
            let few = FEW.min(len - start);
            for &(i, x) in &memory {
                let x = x.wrapping_add(start);
                if few == FEW {
                    at[i] = x.cast_mut();
                } else {
                    at[i] = row(i);
                    // SAFETY: `few` elements are left of the input, by the caller's promise. The row is within the file.
                    unsafe { std::ptr::copy_nonoverlapping(x, at[i], few) };
                }
            }
            let (at_once, between) = ahead.split_at(ahead.len().saturating_sub(code.len()));
            let fetch = |x: &*const T| prefetch(x.wrapping_add(start), FEW);
            at_once.iter().for_each(fetch);
            for &(i, which) in &of_conditions {
                let conditions = &mut conditions[which];
                let show = |first: usize, x: *mut bool, len: usize| {
                    // SAFETY: `len` elements of the input are there, by the caller's promise. The row is within the file,
                    // and nothing else refers to it now.
                    let (x, own) = unsafe {
                        (std::slice::from_raw_parts(x, len), std::slice::from_raw_parts_mut(row(i).add(first), len))
                    };
                    own.iter_mut().zip(x).for_each(|(own, &x)| *own = if x { T::ONE } else { T::default() });
                };
                match conditions.here(AHEAD) {
                    Some(x) => show(0, x, FEW),
                    None => conditions.each(few, show),
                }
            }
            for &(i, which) in &in_pieces {
                let pieces = &mut pieces[which];
                at[i] = row(i);
                if let Some(here) = pieces.here(AHEAD) {
                    at[i] = here;
                    continue;
                }
                pieces.each(few, |first, x, len| {
                    // SAFETY: so many elements of the input are there, by the caller's promise, and the row is within the
                    // file, and apart from them.
                    unsafe { std::ptr::copy_nonoverlapping(x, row(i).add(first), len) };
                });
            }
            for (i, line) in &mut *lines {
                // SAFETY: the row is within the file, and nothing else refers to it now.
                let own = unsafe { std::slice::from_raw_parts_mut(row(*i), FEW) };
                at[*i] = line.show(start, few, own).cast_mut();
            }
            if let Some(spread) = &mut spread {
                // SAFETY: nothing refers to the file but pointers that are not in use now.
                let file = unsafe { std::slice::from_raw_parts_mut(start_of_file, inputs.len() * FEW) };
                spread.fill(inputs, start..start + few, file);
            }
            for to in &mut *outputs {
                to.here = to.place.here(0);
                if to.alone {
                    at[to.value % VALUES] = to.here.unwrap_or(row(to.value % values));
                }
            }
            let made = if few == FEW && T::folds_made(simd, folds.lines) { folds.made } else { 0 };
            for (i, &Instruction { code, of }) in code.iter().enumerate() {
                between.get(i).map(fetch);
                if made & (1 << i) != 0 {
                    continue;
                }
                let of = |operand: usize| at[usize::from(of[operand]) % VALUES].cast_const();
                let to = (inputs.len() + i) % VALUES;
                if code == Code::Choose {
                    // SAFETY: as above.
                    let condition = unsafe { *of(0) } != T::default();
                    at[to] = of(if condition { 1 } else { 2 }).cast_mut();
                    continue;
                }
                // SAFETY: each operand is a row of the file, or `FEW` elements of an input or an output, and the result is
                // a row that nobody else writes, or an output's place. (No instruction uses a later value: that would find
                // what the last round left.)
                unsafe { T::compute(simd, code, of, at[to]) };
            }
            for (i, fold) in folds.of.iter().enumerate() {
                let x = at[fold.value % VALUES].cast_const();
                if let Some(Instruction { code, of: [a, b, ..] }) = fold.made.filter(|_| made != 0) {
                    let [a, b] = [a, b].map(|value| at[usize::from(value) % VALUES].cast_const());
                    let acc = &mut folds.accs[i];
                    for first in (0..FEW).step_by(WIDE) {
                        let (of, at) = ([a, b].map(|x| x.wrapping_add(first)), place.behind(first));
                        // SAFETY: as above.
                        unsafe { T::fold_made(simd, code, of, at, acc) };
                    }
                    continue;
                }
                // SAFETY: `few` elements of each value have been computed, and are written no more this round.
                let x = unsafe { std::slice::from_raw_parts(x, few) };
                if let Question::NonFiniteNorm(norm) = fold.question {
                    let [acc, norm] = folds.accs.get_disjoint_mut([i, norm]).expect("they differ");
                    T::look(simd, x, place, acc, f64::slice(norm));
                    continue;
                }
                for (group, x) in x.chunks(WIDE).enumerate() {
                    T::fold(simd, fold.question, x, place.behind(group * WIDE), &mut folds.accs[i]);
                }
            }
            for to in &mut *outputs {
                let from = at[to.value % VALUES].cast_const();
                match to.here {
                    Some(_) if to.alone => {}
                    // SAFETY: so many elements of the output are there, by the caller's promise; the file is apart from
                    // them, and an input that a choice has handed on is there already, or elsewhere.
                    Some(here) => unsafe { T::compute(simd, Code::Copy, |_| from, here) },
                    None => to.place.each(few, |first, to, len| {
                        // SAFETY: as above.
                        unsafe { std::ptr::copy(from.add(first), to, len) };
                    }),
                }
            }
            start += FEW;
            place = place.behind(FEW);
        }
    }
}

/// An input with one value for each line, or one line for all.
#[derive(Clone, Copy)]
enum Line<'a, T> {
    /// One for each line of so many elements, and the line that a row of the file shows.
    One { values: &'a [T], width: usize, shown: usize },
    /// A line, which all lines are equal to, and whether a row of the file shows it as often as it fits.
    Tile { values: &'a [T], shown: bool },
}

impl<T: Lane> Line<'_, T> {
    /// Finds the values of `few` elements from `start` on in memory, or writes them to `own`; [`FEW`] can be read there.
    #[inline(always)]
    fn show(&mut self, start: usize, few: usize, own: &mut [T]) -> *const T {
        match self {
            Self::One { values, width, shown } => {
                let (mut line, mut at) = (start / *width, 0);
                if start + few <= (line + 1) * *width {
                    if *shown != line {
                        own.fill(values[line]);
                        *shown = line;
                    }
                    return own.as_ptr();
                }
                while at < few {
                    let end = few.min((line + 1) * *width - start);
                    own[at..end].fill(values[line]);
                    (line, at) = (line + 1, end);
                }
                *shown = usize::MAX;
            }
            Self::Tile { values, shown } => {
                let mut from = start % values.len();
                if from + FEW <= values.len() {
                    return values[from..].as_ptr();
                }
                let often = FEW.is_multiple_of(values.len());
                if *shown {
                    return own.as_ptr();
                }
                *shown = often;
                let (mut at, few) = (0, if often { FEW } else { few });
                while at < few {
                    let len = (few - at).min(values.len() - from);
                    own[at..at + len].copy_from_slice(&values[from..][..len]);
                    (from, at) = (0, at + len);
                }
            }
        }
        own.as_ptr()
    }
}

/// Inputs with one value for each row, where rows are segments.
struct Spread<'a> {
    runs: Runs<'a>,
    /// The beginning of the block, and the first of its rows.
    at: usize,
    row: usize,
    /// The stretch at hand, and its segment.
    run: (Range<usize>, Option<usize>),
}

impl Spread<'_> {
    /// Fills the inputs' rows of the file for some elements of the block.
    #[inline(always)]
    fn fill<T: Lane>(&mut self, inputs: &[From<T>], elements: Range<usize>, file: &mut [T]) {
        let (start, end) = (self.at + elements.start, self.at + elements.end);
        // The row still holds these values.
        if self.run.0.start + FEW <= start && end <= self.run.0.end {
            return;
        }
        let mut at = start;
        while at < end {
            while self.run.0.end <= at {
                let Some(run) = self.runs.next() else { return };
                self.run = run;
            }
            let until = end.min(self.run.0.end);
            for (row, input) in file.chunks_exact_mut(FEW).zip(inputs) {
                let From::Rows(values) = input else { continue };
                let value = match (self.run.1, values) {
                    (None, _) => T::default(),
                    (_, Lanes::Splat(x)) => *x,
                    (Some(segment), Lanes::Slice(x) | Lanes::Lines(x) | Lanes::Tile(x)) => x[segment - self.row],
                };
                row[at - start..until - start].fill(value);
            }
            at = until;
        }
    }
}

impl<T: Lane> Run<'_, '_, T> {
    /// Computes the values of each element, writes those that leave, and reduces those that are to be reduced.
    ///
    /// # Panics
    /// If the file has no room, or there are too many values.
    ///
    /// # Safety
    /// There are so many elements at each pointer. They are not written otherwise while this runs, and those of the outputs
    /// not read. An output may begin where an input does: of these elements each is read before it is written, and never
    /// after, and if the output is `alone`, no instruction reads that input but the one that computes it and those before.
    /// Else outputs overlap nothing.
    pub unsafe fn run(self) {
        Arch::new().dispatch(self);
    }
}
