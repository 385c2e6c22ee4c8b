//! The parts of a matrix product's result, which threads share.

use std::ops::Range;

/// The unit of the edges of parts.
const STEP: usize = 16;

/// The place where a part of a product goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Directly to its place.
    Straight,
    /// By way of a register.
    Held,
    /// From a register to an epilogue that reads whole rows.
    Followed,
}

/// The division of a product's result into parts, each of which one thread computes at a time: about evenly, but in
/// steps of [`STEP`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    sides: [usize; 2],
    /// The number of parts of each side; 0 if the side is empty.
    pub parts: [usize; 2],
}

impl Grid {
    /// For `batch` products `[m, k] x [k, n]`: few and large parts, because each packs both its sides, but enough to keep all
    /// threads busy. An epilogue reads whole rows, which are contiguous, so its parts have whole rows.
    ///
    /// No bit depends on the threads: `gemm` adds up the products of each element in an order that follows from the inner
    /// dimension alone, save where a result is small or narrow. Those are cut by their shape alone, and no others into such.
    pub fn new(batch: usize, [m, k, n]: [usize; 3], way: Way, threads: usize) -> Self {
        /// The largest part, and the largest in a register.
        const LARGEST: [[usize; 2]; 2] = [[2048, 2048], [512, 2048]];
        /// The costs, in multiplications, of packing an element, of beginning a part, and of beginning an incomplete row of an
        /// epilogue.
        const PACKED: usize = 32;
        const BEGUN: usize = 1 << 17;
        const ROW: usize = 5000;
        /// The elements of a register that the cache of the second level holds, and the cost of each further one.
        const NEAR: usize = 1 << 18;
        const FAR: usize = 20;
        let (epilogue, held) = (way == Way::Followed, way != Way::Straight);
        let (sides, more) = ([m, n], 2 * threads);
        if is_small(sides) {
            return Self { sides, parts: small_parts(batch, [m, k, n], epilogue) };
        }
        let fewest = [0, 1].map(|i| sides[i].div_ceil(LARGEST[usize::from(held)][i]));
        let grids = (fewest[0]..=fewest[0] + more).flat_map(|rows| {
            (fewest[1]..=fewest[1] + more / rows).map(move |columns| Self { sides, parts: [rows, columns] })
        });
        let cost = |grid: &Self| {
            let [rows, columns] = grid.largest();
            let rounds = (batch * grid.parts[0] * grid.parts[1]).div_ceil(threads);
            let torn = if epilogue && columns < n { rows * ROW } else { 0 };
            let far = if held { (rows * columns).saturating_sub(NEAR) * FAR } else { 0 };
            rounds * (rows * columns * k + (rows + columns) * k * PACKED + torn + far + BEGUN)
        };
        grids.filter(|grid| !is_small(grid.least())).min_by_key(cost).expect("the fewest parts are no small ones")
    }

    /// The place where the parts of a side begin and end.
    pub fn range(&self, side: usize, part: usize) -> Range<usize> {
        let (all, steps) = (self.sides[side], self.sides[side].div_ceil(STEP));
        let edge = |part: usize| all.min(part * steps / self.parts[side] * STEP);
        edge(part)..edge(part + 1)
    }

    /// Rows and columns of the largest part.
    pub fn largest(&self) -> [usize; 2] {
        [0, 1].map(|i| self.sides[i].min(self.sides[i].div_ceil(STEP).div_ceil(self.parts[i].max(1)) * STEP))
    }

    /// As many as each part has, at least.
    fn least(&self) -> [usize; 2] {
        let last = |i: usize| self.range(i, self.parts[i] - 1).len().min(self.range(i, 0).len());
        [last(0), last(1)]
    }
}

/// True if `gemm` multiplies matrices with a result of this shape in other ways.
fn is_small([rows, columns]: [usize; 2]) -> bool {
    const NARROW: usize = 32;
    const SMALL: usize = 64;
    rows.min(columns) <= NARROW || rows.max(columns) <= SMALL
}

/// The number of parts that the sides of a small or narrow result are cut into.
fn small_parts(batch: usize, [m, k, n]: [usize; 3], epilogue: bool) -> [usize; 2] {
    /// The largest part, and the largest of a product with an epilogue; how many parts there should be at least;
    /// multiplications that are not worth splitting.
    const LARGEST: [[usize; 2]; 2] = [[256, 512], [128, 2048]];
    const PARTS: usize = 8;
    const SMALL: usize = 1 << 20;
    /// A side that is not split.
    const LEAST: usize = STEP;
    let largest = LARGEST[usize::from(epilogue)];
    let mut part = [m.clamp(1, largest[0]), n.clamp(1, largest[1])];
    while batch * m.div_ceil(part[0]) * n.div_ceil(part[1]) < PARTS && part[0] * part[1] * k > SMALL {
        // Columns first, of which each part packs those of the right side; but an epilogue's rows stay whole.
        let whole = epilogue && part[1] == n && part[0] > LEAST;
        let side = usize::from(part[1] > part[0] && !whole);
        if part[side] <= LEAST {
            break;
        }
        part[side] = (part[side] / 2).next_multiple_of(LEAST);
    }
    [m.div_ceil(part[0]), n.div_ceil(part[1])]
}

#[cfg(test)]
mod tests {
    use super::{Grid, Way};

    #[test]
    fn products_of_any_shape_are_cut_into_parts() {
        for threads in [1, 2, 3, 8, 64] {
            for long in [0, 3, 200, 5000, 10_923, 1 << 21] {
                for (m, n) in [
                    (0, 5),
                    (200, 0),
                    (1, 1),
                    (6, 50),
                    (16, 16),
                    (50, 6),
                    (17, 16),
                    (300, 3),
                    (65, 33),
                    (100, 3000),
                    (5001, 70),
                ] {
                    for way in [Way::Straight, Way::Held, Way::Followed] {
                        let grid = Grid::new(1, [m, long, n], way, threads);
                        for (i, side) in [m, n].into_iter().enumerate() {
                            let ranges: Vec<_> = (0..grid.parts[i]).map(|part| grid.range(i, part)).collect();
                            assert!(ranges.iter().all(|range| !range.is_empty() && range.len() <= grid.largest()[i]));
                            let least = if m * n > 0 { grid.least()[i] } else { 0 };
                            assert!(ranges.iter().all(|range| range.len() >= least), "{m}x{n}: {grid:?}");
                            if side == 0 {
                                assert!(ranges.is_empty() && grid.largest()[i] == 0);
                                continue;
                            }
                            assert!(ranges[0].start == 0 && ranges.last().expect("some").end == side);
                            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{m}x{n}: {grid:?}");
                        }
                    }
                }
            }
        }
    }

    /// `gemm` multiplies small and narrow matrices in other ways, with other bits.
    #[test]
    fn nothing_large_is_cut_into_what_is_small_or_narrow() {
        for threads in [1, 2, 3, 5, 8, 64] {
            for m in (33..700).step_by(7) {
                for n in (33..2200).step_by(61).filter(|n| m.max(*n) > 64) {
                    let grid = Grid::new(1, [m, 777, n], Way::Straight, threads);
                    let least = [0, 1].map(|i| (0..grid.parts[i]).map(|part| grid.range(i, part).len()).min());
                    assert!(least.iter().min() > Some(&Some(32)) && least.iter().max() > Some(&Some(64)), "{grid:?}");
                }
            }
        }
    }
}
