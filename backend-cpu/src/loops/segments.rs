//! Segments of a vector: those that a stretch overlaps, and the parts of a vector whose rows they are.

use super::reduce::Monoid;
use crate::memory::elements::Element;
use pulp::{Arch, NullaryFnOnce};
use std::ops::Range;
use wgrad::op::Segments;

/// The runs of a stretch of a vector: in one segment each, or between two.
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    ranges: &'a [(usize, usize)],
    /// The next segment that ends behind what has been seen.
    next: usize,
    at: usize,
    end: usize,
}

impl<'a> Runs<'a> {
    pub fn new(segments: &'a Segments, stretch: Range<usize>) -> Self {
        Self::among(segments, 0..segments.ranges.len(), stretch)
    }

    /// As [`Runs::new`], if the first segment that the stretch overlaps is one of these, or comes after them.
    pub fn among(segments: &'a Segments, rows: Range<usize>, stretch: Range<usize>) -> Self {
        let before = segments.ranges[rows.clone()].partition_point(|(start, len)| start + len <= stretch.start);
        Self { ranges: &segments.ranges, next: rows.start + before, at: stretch.start, end: stretch.end }
    }
}

impl Iterator for Runs<'_> {
    /// The stretch, and its segment.
    type Item = (Range<usize>, Option<usize>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        // Those that are empty have no element.
        while let Some(&(start, len)) = self.ranges.get(self.next) {
            if start > at {
                self.at = start.min(self.end);
                return Some((at..self.at, None));
            }
            let segment = self.next;
            if start + len > self.end {
                self.at = self.end;
                return Some((at..self.at, Some(segment)));
            }
            self.next += 1;
            if len > 0 {
                self.at = start + len;
                return Some((at..self.at, Some(segment)));
            }
        }
        self.at = self.end;
        Some((at..self.end, None))
    }
}

struct Spread<'a, T, F>(Runs<'a>, &'a mut [T], F);

impl<T: Element, F: Fn(usize) -> T> NullaryFnOnce for Spread<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(runs, out, value) = self;
        let first = runs.at;
        for (run, segment) in runs {
            let value = segment.map_or(T::default(), &value);
            out[run.start - first..run.end - first].fill(value);
        }
    }
}

/// Repeats the value of each segment over a stretch of the vector; zeros between segments.
pub(crate) fn spread<T: Element>(runs: Runs, out: &mut [T], value: impl Fn(usize) -> T) {
    Arch::new().dispatch(Spread(runs, out, value));
}

/// The value of a stretch that lies in one segment, or between two.
pub(crate) fn uniform<T: Element>(runs: &Runs, value: impl Fn(usize) -> T) -> Option<T> {
    let (run, segment) = runs.clone().next()?;
    (run.end == runs.end).then(|| segment.map_or(T::default(), value))
}

struct Fold<'a, T: Copy, M: Monoid<T>>(Runs<'a>, &'a [T], usize, &'a mut [M::A]);

impl<T: Copy, M: Monoid<T>> NullaryFnOnce for Fold<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(runs, x, first_row, acc) = self;
        let first = runs.at;
        for (run, segment) in runs {
            if let Some(segment) = segment {
                let acc = &mut acc[segment - first_row];
                *acc = crate::loops::reduce::run::<T, M>(*acc, &x[run.start - first..run.end - first]);
            }
        }
    }
}

/// Combines a stretch of a vector into the accumulators of the segments from `first_row` on.
pub(crate) fn fold<T: Copy, M: Monoid<T>>(runs: Runs, x: &[T], first_row: usize, acc: &mut [M::A]) {
    Arch::new().dispatch(Fold::<T, M>(runs, x, first_row, acc));
}

/// A part of a vector whose rows are segments.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    /// The stretch of the vector.
    pub columns: Range<usize>,
    /// The segments in it; those at its ends may go on in other parts, where they may be split.
    pub rows: Range<usize>,
}

/// Cuts a vector up into parts of about `columns` elements, of no more than `rows` segments. Only where they may be
/// `split` do segments lie in several parts; else a longer one is a part by itself.
pub(crate) fn parts(segments: &Segments, columns: usize, rows: usize, split: bool) -> Vec<Part> {
    let mut parts: Vec<Part> = vec![];
    let mut add = |stretch: Range<usize>, row: Option<usize>| {
        let last = parts.last_mut().filter(|last| {
            let fits = stretch.end - last.columns.start <= columns;
            fits && row.is_none_or(|row| row + 1 - last.rows.start <= rows)
        });
        match last {
            Some(last) => {
                last.columns.end = stretch.end;
                last.rows.end = row.map_or(last.rows.end, |row| row + 1);
            }
            None => {
                let next = parts.last().map_or(0, |last| last.rows.end);
                parts.push(Part { columns: stretch, rows: row.map_or(next..next, |row| row..row + 1) });
            }
        }
    };
    // Pieces of what may be split.
    let pieces = |stretch: Range<usize>| {
        stretch.clone().step_by(columns).map(move |start| start..stretch.end.min(start + columns))
    };
    let mut at = 0;
    for (row, &(start, len)) in segments.ranges.iter().enumerate() {
        pieces(at..start).for_each(|gap| add(gap, None));
        at = start + len;
        if split && len > 0 {
            pieces(start..at).for_each(|piece| add(piece, Some(row)));
        } else {
            add(start..at, Some(row));
        }
    }
    pieces(at..segments.total).for_each(|gap| add(gap, None));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(total: usize, ranges: &[(usize, usize)]) -> Segments {
        Segments { total, ranges: ranges.into() }
    }

    #[test]
    fn runs_cover_a_stretch() {
        let s = segments(20, &[(0, 0), (2, 3), (5, 0), (5, 4), (12, 0), (14, 6)]);
        let of = |position: usize| s.ranges.iter().position(|(start, len)| (*start..start + len).contains(&position));
        for start in 0..20 {
            for end in start..=20 {
                let mut at = start;
                for (run, segment) in Runs::new(&s, start..end) {
                    assert_eq!(run.start, at);
                    assert!(run.end > at && run.clone().all(|position| of(position) == segment), "{run:?} {segment:?}");
                    at = run.end;
                }
                assert_eq!(at, end);
            }
        }
    }

    #[test]
    fn parts_cover_the_vector_and_its_segments() {
        let s = segments(40, &[(0, 0), (0, 3), (3, 12), (15, 0), (15, 0), (15, 0), (20, 1), (21, 1), (30, 2)]);
        for (columns, rows, split) in [(4, 9, false), (4, 9, true), (7, 2, false), (7, 2, true), (100, 100, false)] {
            let parts = parts(&s, columns, rows, split);
            let (mut at, mut row) = (0, 0);
            for part in &parts {
                assert_eq!(part.columns.start, at);
                assert!(part.rows.start == row || split && part.rows.start + 1 == row, "{parts:?}");
                assert!(part.rows.len() <= rows);
                (at, row) = (part.columns.end, part.rows.end);
                for segment in part.rows.clone().filter(|_| !split) {
                    let (start, len) = s.ranges[segment];
                    assert!(start >= part.columns.start && start + len <= part.columns.end);
                }
            }
            assert_eq!((at, row), (40, s.ranges.len()));
        }
    }

    #[test]
    fn what_is_spread_is_zero_between_segments() {
        let s = segments(9, &[(1, 2), (3, 0), (5, 3)]);
        let mut out = [7.0f32; 9];
        spread(Runs::new(&s, 0..9), &mut out, |segment| segment as f32 + 1.0);
        assert_eq!(out, [0.0, 1.0, 1.0, 0.0, 0.0, 3.0, 3.0, 3.0, 0.0]);
        assert_eq!(uniform(&Runs::new(&s, 5..8), |segment| segment as f64), Some(2.0));
        assert_eq!(uniform(&Runs::new(&s, 4..8), |segment| segment as f64), None);
    }
}
