//! Strided walks: dimensions that can be merged are merged, and runs of evenly spaced elements are handed out whole, so that
//! inner loops are long.

use std::ops::Range;

/// A row-major walk over some dimensions of one operand.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Walk {
    /// Extent and stride of each outer dimension, outermost first.
    outer: Vec<(usize, isize)>,
    /// The extent of the innermost dimension.
    pub inner: usize,
    /// Its stride.
    pub stride: isize,
}

impl Walk {
    pub fn new(extents: &[usize], strides: &[isize]) -> Self {
        let mut dims: Vec<(usize, isize)> = vec![];
        for (&extent, &step) in extents.iter().zip(strides) {
            match dims.last_mut() {
                _ if extent == 1 => {}
                // The outer dimension walks exactly over the ends of the inner one: they are one dimension.
                Some((n, outer)) if *outer == step * extent as isize => {
                    *n *= extent;
                    *outer = step;
                }
                _ => dims.push((extent, step)),
            }
        }
        let (inner, stride) = dims.pop().unwrap_or((1, 0));
        Self { outer: dims, inner, stride }
    }

    /// The number of points.
    pub fn len(&self) -> usize {
        self.outer.iter().map(|(n, _)| n).product::<usize>() * self.inner
    }

    /// The distance of a point from the start.
    pub fn at(&self, point: usize) -> isize {
        self.run(point).0
    }

    /// The distance of a point from the start, and the number of evenly spaced points from it on.
    pub fn run(&self, point: usize) -> (isize, usize) {
        if self.outer.is_empty() {
            return (point as isize * self.stride, self.inner - point.min(self.inner));
        }
        let (mut row, column) = (point / self.inner, point % self.inner);
        let mut position = column as isize * self.stride;
        for &(extent, stride) in self.outer[1..].iter().rev() {
            position += (row % extent) as isize * stride;
            row /= extent;
        }
        (position + row as isize * self.outer[0].1, self.inner - column)
    }

    /// Visits a range of points in evenly spaced runs: where the run begins within the range, its length, and how far
    /// from the start its first point lies.
    #[inline]
    pub fn runs(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, isize)) {
        let mut point = range.start;
        while point < range.end {
            let (position, rest) = self.run(point);
            let len = rest.min(range.end - point);
            f(point - range.start, len, position);
            point += len;
        }
    }
}

/// The position of element `i` of a run that starts at `base`.
#[inline(always)]
pub(crate) fn at(base: isize, i: usize, stride: isize) -> usize {
    (base + i as isize * stride) as usize
}

/// The loops over one index space, read by `N` operands in step.
#[derive(Clone, Debug)]
pub(crate) struct Nest<const N: usize> {
    walks: [Walk; N],
    offsets: [isize; N],
    len: usize,
}

impl<const N: usize> Nest<N> {
    /// Over the given extents; `offsets` and `strides` of each operand, in elements.
    pub fn new(extents: &[usize], offsets: [usize; N], strides: [&[isize]; N]) -> Self {
        let walks = strides.map(|strides| Walk::new(extents, strides));
        Self { walks, offsets: offsets.map(|o| o as isize), len: extents.iter().product() }
    }

    /// The number of points.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The strides within a run.
    pub fn strides(&self) -> [isize; N] {
        std::array::from_fn(|k| self.walks[k].stride)
    }

    /// Visits a range of points, row-major, in runs in which every operand is evenly spaced: the first point's number,
    /// the run's length, and where each operand reads or writes its first element.
    pub fn visit(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, [isize; N])) {
        let mut point = range.start;
        while point < range.end {
            let mut len = range.end - point;
            let at = std::array::from_fn(|k| {
                let (position, rest) = self.walks[k].run(point);
                len = len.min(rest);
                self.offsets[k] + position
            });
            f(point, len, at);
            point += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited<const N: usize>(nest: &Nest<N>, range: Range<usize>) -> Vec<[usize; N]> {
        let mut seen = vec![];
        nest.visit(range, |_, len, from| {
            seen.extend((0..len).map(|i| std::array::from_fn::<usize, N, _>(|k| at(from[k], i, nest.strides()[k]))));
        });
        seen
    }

    #[test]
    fn merges_what_walks_in_step_and_keeps_what_does_not() {
        let nest = Nest::new(&[2, 3, 4], [0, 0], [&[12, 4, 1], &[0, 4, 1]]);
        assert_eq!(nest.walks[0], Walk { outer: vec![], inner: 24, stride: 1 });
        assert_eq!(nest.walks[1], Walk { outer: vec![(2, 0)], inner: 12, stride: 1 });
        let all = visited(&nest, 0..24);
        assert!(all.iter().enumerate().all(|(i, at)| *at == [i, i % 12]));
    }

    #[test]
    fn any_range_is_a_stretch_of_the_whole() {
        let nest = Nest::new(&[3, 1, 5], [7, 14], [&[1, 0, 3], &[-5, 2, -1]]);
        let all = visited(&nest, 0..15);
        assert_eq!(all[0], [7, 14]);
        assert_eq!(all[14], [7 + 2 + 12, 0]);
        for start in 0..15 {
            for end in start..=15 {
                assert_eq!(visited(&nest, start..end), all[start..end]);
            }
        }
    }

    #[test]
    fn nothing_to_visit() {
        let nest = Nest::new(&[3, 0], [0], [&[0, 1]]);
        assert_eq!((nest.len(), visited(&nest, 0..0).len()), (0, 0));
    }
}
