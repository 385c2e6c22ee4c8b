//! Nested loops over strided operands: dimensions that all operands walk in step are merged, and the innermost loop is
//! handed out whole, so that the code inside it meets long runs and few shapes.

use std::ops::Range;

/// The loops over one index space, read by `N` operands.
#[derive(Clone, Debug)]
pub(crate) struct Nest<const N: usize> {
    /// Extent and strides of each outer dimension, outermost first.
    outer: Vec<(usize, [isize; N])>,
    /// The extent of the innermost dimension.
    inner: usize,
    /// Its strides.
    pub strides: [isize; N],
    offsets: [usize; N],
}

impl<const N: usize> Nest<N> {
    /// Over the given extents; `offsets` and `strides` of each operand, in elements.
    pub fn new(extents: &[usize], offsets: [usize; N], strides: [&[isize]; N]) -> Self {
        let mut dims: Vec<(usize, [isize; N])> = vec![];
        for (d, &extent) in extents.iter().enumerate() {
            let step: [isize; N] = std::array::from_fn(|k| strides[k][d]);
            match dims.last_mut() {
                _ if extent == 1 => {}
                // The outer dimension walks exactly over the ends of the inner one: they are one dimension.
                Some((n, outer)) if (0..N).all(|k| outer[k] == step[k] * extent as isize) => {
                    *n *= extent;
                    *outer = step;
                }
                _ => dims.push((extent, step)),
            }
        }
        let (inner, strides) = dims.pop().unwrap_or((1, [1; N]));
        Self { outer: dims, inner, strides, offsets }
    }

    /// The number of points.
    pub fn len(&self) -> usize {
        self.outer.iter().map(|(n, _)| n).product::<usize>() * self.inner
    }

    /// Visits a range of points, row-major, in runs along the innermost dimension: the first point's number, the run's
    /// length, and where each operand reads or writes its first element.
    pub fn visit(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, [usize; N])) {
        if range.is_empty() {
            return;
        }
        let mut row = range.start / self.inner;
        let mut column = range.start % self.inner;
        let mut index = vec![0; self.outer.len()];
        let mut base: [isize; N] = self.offsets.map(|o| o as isize);
        for (d, (extent, strides)) in self.outer.iter().enumerate().rev() {
            index[d] = row % extent;
            row /= extent;
            (0..N).for_each(|k| base[k] += index[d] as isize * strides[k]);
        }
        let mut point = range.start;
        loop {
            let len = (self.inner - column).min(range.end - point);
            f(point, len, std::array::from_fn(|k| (base[k] + column as isize * self.strides[k]) as usize));
            point += len;
            column = 0;
            if point == range.end {
                return;
            }
            for d in (0..index.len()).rev() {
                let (extent, strides) = &self.outer[d];
                index[d] += 1;
                (0..N).for_each(|k| base[k] += strides[k]);
                if index[d] < *extent {
                    break;
                }
                (0..N).for_each(|k| base[k] -= *extent as isize * strides[k]);
                index[d] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visited<const N: usize>(nest: &Nest<N>, range: Range<usize>) -> Vec<[usize; N]> {
        let mut seen = vec![];
        nest.visit(range, |_, len, at| {
            seen.extend((0..len).map(|i| {
                std::array::from_fn::<usize, N, _>(|k| (at[k] as isize + i as isize * nest.strides[k]) as usize)
            }));
        });
        seen
    }

    #[test]
    fn merges_what_walks_in_step_and_keeps_what_does_not() {
        let nest = Nest::new(&[2, 3, 4], [0, 0], [&[12, 4, 1], &[0, 4, 1]]);
        assert_eq!((nest.outer.len(), nest.inner, nest.len()), (1, 12, 24));
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
