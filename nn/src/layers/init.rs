//! Initial values of parameters, by their published names.

use super::linalg::{orthonormal, spectral_radius};
use rand::{Rng, RngExt, seq::SliceRandom};
use rand_distr::{Distribution, StandardNormal};
use wgrad::Shape;

/// The number of connections that a scale is computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fan {
    /// Inputs per unit: keeps the variance of the forward pass.
    In,
    /// Outputs per input: keeps the variance of the backward pass.
    Out,
}

/// The way a parameter's first values are drawn.
///
/// Weights are `[out, in]`, convolutions `[out, in, height, width]`: fan in is the product of all extents but the
/// first, fan out that of all but the second.
#[derive(Clone, PartialEq, Debug)]
pub enum Init {
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// One value.
    Constant(f64),
    /// Uniform in `[-limit, limit)`.
    Uniform(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform with limit `gain * sqrt(6 / (fan_in + fan_out))` (Glorot & Bengio 2010).
    XavierUniform {
        /// A factor for the nonlinearity; 1 for tanh, as published.
        gain: f64,
    },
    /// Normal with standard deviation `gain * sqrt(2 / (fan_in + fan_out))` (Glorot & Bengio 2010).
    XavierNormal {
        /// A factor for the nonlinearity; 1 for tanh, as published.
        gain: f64,
    },
    /// Normal with standard deviation `sqrt(2 / fan)`, for ReLU (He et al. 2015).
    He {
        /// The fan.
        fan: Fan,
    },
    /// Uniform with limit `sqrt(6 / fan)`, for ReLU (He et al. 2015): the variance of [`Init::He`].
    HeUniform {
        /// The fan.
        fan: Fan,
    },
    /// `gain` times a matrix with orthonormal rows or columns, whichever are fewer, uniformly distributed
    /// (Saxe et al. 2014). Extents after the first count as columns.
    Orthogonal {
        /// The factor.
        gain: f64,
    },
    /// `gain` on the diagonal of a matrix, 0 elsewhere: the recurrent weight of an IRNN (Le et al. 2015).
    Identity {
        /// The factor.
        gain: f64,
    },
    /// A square matrix with this many standard normal non-zeros per row at random places (all, if the row is
    /// shorter), rescaled to a spectral radius (Pascanu et al. 2013, "smart tanh": 15 and 0.95).
    SparseSpectral {
        /// Non-zeros per row, at least 1.
        nonzeros: usize,
        /// The spectral radius: the largest magnitude of an eigenvalue.
        radius: f64,
    },
    /// Another initializer's values, multiplied: see [`Init::times`].
    Times {
        /// The factor.
        gain: f64,
        /// The other initializer.
        of: Box<Init>,
    },
}

impl Init {
    /// The same values, multiplied by a gain.
    ///
    /// ```
    /// use wgrad_nn::{Fan, Init};
    /// let small = Init::He { fan: Fan::In }.times(0.1);
    /// assert_eq!(Init::Ones.times(1.0), Init::Ones);
    /// # let _ = small;
    /// ```
    #[must_use]
    pub fn times(self, gain: f64) -> Self {
        if gain == 1.0 { self } else { Init::Times { gain, of: Box::new(self) } }
    }

    /// Draws values of a shape, row-major, in f64.
    ///
    /// # Panics
    /// If the shape does not fit: fans, orthogonality and identity need two dimensions, a spectral radius a square.
    #[track_caller]
    pub fn sample(&self, shape: &Shape, random: &mut impl Rng) -> Vec<f64> {
        let n = shape.numel();
        match *self {
            Init::Zeros => vec![0.0; n],
            Init::Ones => vec![1.0; n],
            Init::Constant(value) => vec![value; n],
            Init::Uniform(limit) => uniform(n, limit, random),
            Init::Normal(std) => normal(n, std, random),
            Init::XavierUniform { gain } => {
                let (fan_in, fan_out) = self.fans(shape);
                uniform(n, gain * (6.0 / (fan_in + fan_out)).sqrt(), random)
            }
            Init::XavierNormal { gain } => {
                let (fan_in, fan_out) = self.fans(shape);
                normal(n, gain * (2.0 / (fan_in + fan_out)).sqrt(), random)
            }
            Init::He { fan } => normal(n, (2.0 / self.fan(fan, shape)).sqrt(), random),
            Init::HeUniform { fan } => uniform(n, (6.0 / self.fan(fan, shape)).sqrt(), random),
            Init::Orthogonal { gain } => {
                let (rows, columns) = self.matrix(shape);
                let (count, len) = (rows.min(columns), rows.max(columns));
                let vectors = orthonormal(count, len, || StandardNormal.sample(random));
                let at = |r: usize, c: usize| if rows <= columns { vectors[r][c] } else { vectors[c][r] };
                (0..n).map(|i| gain * at(i / columns, i % columns)).collect()
            }
            Init::Identity { gain } => {
                let (_, columns) = self.matrix(shape);
                (0..n).map(|i| if i / columns == i % columns { gain } else { 0.0 }).collect()
            }
            Init::SparseSpectral { nonzeros, radius } => {
                let (rows, columns) = self.matrix(shape);
                assert!(rows == columns, "init {self:?} of {shape}: only a square matrix has a spectral radius");
                assert!(nonzeros > 0, "init {self:?}: needs at least one non-zero per row");
                let weights = sparse(rows, nonzeros.min(columns), random);
                let factor = radius / spectral_radius(&weights, rows);
                weights.into_iter().map(|w| w * factor).collect()
            }
            Init::Times { gain, ref of } => of.sample(shape, random).into_iter().map(|w| w * gain).collect(),
        }
    }

    /// The fan that a scale is computed from.
    #[track_caller]
    fn fan(&self, fan: Fan, shape: &Shape) -> f64 {
        let (fan_in, fan_out) = self.fans(shape);
        if fan == Fan::In { fan_in } else { fan_out }
    }

    /// Fan in and fan out.
    #[track_caller]
    fn fans(&self, shape: &Shape) -> (f64, f64) {
        self.matrix(shape);
        let field: usize = shape[2..].iter().product();
        ((shape[1] * field) as f64, (shape[0] * field) as f64)
    }

    /// The number of rows, and of columns: all that follows the first dimension.
    #[track_caller]
    fn matrix(&self, shape: &Shape) -> (usize, usize) {
        assert!(shape.rank() >= 2, "init {self:?} of {shape}: needs at least two dimensions");
        (shape[0], shape[1..].iter().product())
    }
}

fn uniform(n: usize, limit: f64, random: &mut impl Rng) -> Vec<f64> {
    (0..n).map(|_| (2.0 * random.random::<f64>() - 1.0) * limit).collect()
}

fn normal(n: usize, std: f64, random: &mut impl Rng) -> Vec<f64> {
    (0..n).map(|_| std * Distribution::<f64>::sample(&StandardNormal, random)).collect()
}

/// A square matrix with standard normal numbers at `nonzeros` random places of each row.
fn sparse(n: usize, nonzeros: usize, random: &mut impl Rng) -> Vec<f64> {
    let mut weights = vec![0.0; n * n];
    let mut places: Vec<usize> = (0..n).collect();
    for row in weights.chunks_exact_mut(n.max(1)) {
        let (chosen, _) = places.partial_shuffle(random, nonzeros);
        chosen.iter().for_each(|&place| row[place] = StandardNormal.sample(random));
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::generator;
    use approx::{abs_diff_eq, assert_abs_diff_eq};

    fn draw<const N: usize>(init: Init, shape: [usize; N]) -> Vec<f64> {
        init.sample(&shape.into(), &mut generator(11, "w", 0))
    }

    /// Mean, standard deviation and largest magnitude.
    fn moments(values: &[f64]) -> (f64, f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        (mean, var.sqrt(), values.iter().fold(0.0, |m, v| m.max(v.abs())))
    }

    #[test]
    fn constants_are_constant() {
        assert_eq!(draw(Init::Zeros, [2, 2]), [0.0; 4]);
        assert_eq!(draw(Init::Ones, [3]), [1.0; 3]);
        assert_eq!(draw(Init::Constant(-2.5), []), [-2.5]);
    }

    #[test]
    fn spreads_follow_their_formulas() {
        // Fans of OIHW [40, 30, 3, 3]: 270 in, 360 out.
        let third = 3f64.sqrt();
        for (init, std) in [
            (Init::Uniform(0.3), 0.3 / third),
            (Init::Normal(0.02), 0.02),
            (Init::XavierUniform { gain: 2.0 }, 2.0 * (2.0 / 630f64).sqrt()),
            (Init::XavierNormal { gain: 1.0 }, (2.0 / 630f64).sqrt()),
            (Init::He { fan: Fan::In }, (2.0 / 270f64).sqrt()),
            (Init::He { fan: Fan::Out }, (2.0 / 360f64).sqrt()),
            (Init::HeUniform { fan: Fan::In }, (2.0 / 270f64).sqrt()),
            (Init::He { fan: Fan::In }.times(3.0), 3.0 * (2.0 / 270f64).sqrt()),
        ] {
            let (mean, have, _) = moments(&draw(init.clone(), [40, 30, 3, 3]));
            // 10,800 samples: the standard errors are 1 % of the mean's scale and below 1 % of the deviation's.
            assert!(abs_diff_eq!(mean, 0.0, epsilon = 0.04 * std), "{init:?}: mean {mean}");
            assert!(abs_diff_eq!(have, std, epsilon = 0.03 * std), "{init:?}: {have} for {std}");
        }
    }

    #[test]
    fn uniform_stays_within_its_limit() {
        let (_, _, largest) = moments(&draw(Init::XavierUniform { gain: 1.0 }, [100, 50]));
        let limit = (6.0 / 150f64).sqrt();
        assert!(largest <= limit && largest > 0.99 * limit, "{largest} for {limit}");
    }

    #[test]
    fn orthogonal_rows_or_columns_are_orthonormal() {
        for (rows, columns) in [(6, 6), (3, 8), (8, 3)] {
            let w = draw(Init::Orthogonal { gain: 2.0 }, [rows, columns]);
            let vector = |i: usize| -> Vec<f64> {
                if rows <= columns {
                    w[i * columns..(i + 1) * columns].to_vec()
                } else {
                    (0..rows).map(|r| w[r * columns + i]).collect()
                }
            };
            for i in 0..rows.min(columns) {
                for j in 0..=i {
                    let dot: f64 = vector(i).iter().zip(vector(j)).map(|(a, b)| a * b).sum();
                    assert!(abs_diff_eq!(dot, if i == j { 4.0 } else { 0.0 }, epsilon = 1e-12), "{i}.{j} = {dot}");
                }
            }
        }
    }

    #[test]
    fn sparse_spectral_has_its_non_zeros_and_its_radius() {
        let w = draw(Init::SparseSpectral { nonzeros: 15, radius: 0.95 }, [50, 50]);
        for row in w.chunks(50) {
            assert_eq!(row.iter().filter(|w| **w != 0.0).count(), 15);
        }
        assert_abs_diff_eq!(spectral_radius(&w, 50), 0.95, epsilon = 1e-9);
        let columns: Vec<usize> = (0..50).filter(|&i| w[i] != 0.0).collect();
        let others: Vec<usize> = (0..50).filter(|&i| w[50 + i] != 0.0).collect();
        assert_ne!(columns, others, "rows have places of their own");
    }

    #[test]
    fn short_rows_are_full() {
        let w = draw(Init::SparseSpectral { nonzeros: 15, radius: 0.5 }, [4, 4]);
        assert!(w.iter().all(|w| *w != 0.0));
    }

    #[test]
    #[should_panic(expected = "only a square matrix")]
    fn a_spectral_radius_needs_a_square() {
        draw(Init::SparseSpectral { nonzeros: 2, radius: 0.5 }, [4, 5]);
    }

    #[test]
    #[should_panic(expected = "[5]: needs at least two dimensions")]
    fn fans_need_two_dimensions() {
        draw(Init::He { fan: Fan::In }, [5]);
    }
}
