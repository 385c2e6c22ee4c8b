//! The share of a rank in a batch.

use std::ops::Range;

/// The share of one rank among several: a stretch of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The number of the rank, from 0 on.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self { rank: 0, ranks: 1 }
    }
}

impl Share {
    /// The rows of this rank among so many. The shares of all ranks follow each other, and differ by at most one row.
    pub fn rows(self, all: usize) -> Range<usize> {
        all * self.rank / self.ranks..all * (self.rank + 1) / self.ranks
    }

    /// The factor of a mean over `own` of `all` rows, with which the mean over the ranks is the mean over all rows.
    /// `None` if it is 1 on every rank.
    pub fn factor(own: usize, all: usize, ranks: usize) -> Option<f64> {
        (!all.is_multiple_of(ranks)).then(|| (own * ranks) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_rows_in_order_and_as_even_as_can_be() {
        for (all, ranks) in [(8, 1), (8, 2), (7, 3), (20, 8), (3, 3), (2, 3)] {
            let shares: Vec<_> = (0..ranks).map(|rank| Share { rank, ranks }.rows(all)).collect();
            assert_eq!(shares.iter().cloned().flatten().collect::<Vec<_>>(), (0..all).collect::<Vec<_>>());
            let sizes = || shares.iter().map(ExactSizeIterator::len);
            assert!(sizes().max() <= sizes().min().map(|least| least + 1), "{shares:?}");
        }
    }

    #[test]
    fn factors_make_the_mean_of_means_the_mean_of_all() {
        let values = [1.0, 5.0, 2.0, 8.0, 3.0, 9.0, 4.0];
        for ranks in [2, 3, 4] {
            let of = |rank| {
                let own = &values[Share { rank, ranks }.rows(values.len())];
                let mean = own.iter().sum::<f64>() / own.len() as f64;
                mean * Share::factor(own.len(), values.len(), ranks).expect("shares are uneven")
            };
            let mean = (0..ranks).map(of).sum::<f64>() / ranks as f64;
            assert!((mean - values.iter().sum::<f64>() / 7.0).abs() < 1e-12, "{mean}");
        }
        assert_eq!(Share::factor(2, 8, 4), None);
    }
}
