//! The little linear algebra that initial values need, in f64: orthonormal vectors and the spectral radius.

/// `count` orthonormal vectors of length `len >= count`, from vectors drawn by `draw`, by modified Gram-Schmidt.
///
/// This is the Q of a QR decomposition whose R has a positive diagonal, so of normal draws the result is uniformly
/// distributed (Mezzadri 2007). A second pass over each vector keeps it orthogonal to rounding.
pub(crate) fn orthonormal(count: usize, len: usize, mut draw: impl FnMut() -> f64) -> Vec<Vec<f64>> {
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut v: Vec<f64> = (0..len).map(|_| draw()).collect();
        for _ in 0..2 {
            for u in &vectors {
                let along = dot(u, &v);
                v.iter_mut().zip(u).for_each(|(v, u)| *v -= along * u);
            }
            let norm = dot(&v, &v).sqrt();
            v.iter_mut().for_each(|v| *v /= norm);
        }
        vectors.push(v);
    }
    vectors
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The largest magnitude of an eigenvalue of a real square matrix, row-major; complex pairs count too.
///
/// Gelfand's formula, `lim |A^m|^(1/m)`, at `m = 2^SQUARINGS` by repeated squaring. The norm is the largest element,
/// since any norm will do; each squaring divides by it, so that nothing overflows. The error is `O(log m / m)` times
/// the logarithm of the eigenvectors' condition number.
pub(crate) fn spectral_radius(matrix: &[f64], n: usize) -> f64 {
    const SQUARINGS: u32 = 40;
    let (mut power, mut log_radius) = (matrix.to_vec(), 0.0);
    for k in 0..=SQUARINGS {
        let norm = power.iter().fold(0f64, |norm, x| norm.max(x.abs()));
        if norm == 0.0 {
            return 0.0;
        }
        log_radius += norm.ln() / 2f64.powi(k as i32);
        power.iter_mut().for_each(|x| *x /= norm);
        power = square(&power, n);
    }
    log_radius.exp()
}

fn square(a: &[f64], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    for (row, out) in a.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        for (&x, other) in row.iter().zip(a.chunks_exact(n)) {
            out.iter_mut().zip(other).for_each(|(out, y)| *out += x * y);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[track_caller]
    fn assert_radius(matrix: &[f64], n: usize, want: f64) {
        assert_relative_eq!(spectral_radius(matrix, n), want, epsilon = 0.0, max_relative = 1e-9);
    }

    #[test]
    fn radius_of_a_rotation_is_its_scale() {
        // Eigenvalues 1.7 e^(+-i): power iteration would not converge.
        let (sin, cos) = 1f64.sin_cos();
        assert_radius(&[1.7 * cos, -1.7 * sin, 1.7 * sin, 1.7 * cos], 2, 1.7);
    }

    #[test]
    fn radius_of_a_triangle_is_its_largest_diagonal() {
        // Far from normal, with a double eigenvalue: the norm of A itself is 1e3.
        assert_radius(&[0.5, 1e3, 3.0, 0.0, -0.9, 7.0, 0.0, 0.0, -0.9], 3, 0.9);
        assert_radius(&[2.0, 1.0, 0.0, 2.0], 2, 2.0);
    }

    #[test]
    fn radius_of_opposite_eigenvalues() {
        assert_radius(&[0.0, 4.0, 1.0, 0.0], 2, 2.0);
    }

    #[test]
    fn radius_does_not_overflow_or_vanish() {
        assert_radius(&[1e200, 0.0, 0.0, 1e199], 2, 1e200);
        assert_radius(&[1e-150, 0.0, 0.0, -2e-150], 2, 2e-150);
    }

    #[test]
    fn radius_of_a_nilpotent_matrix_is_zero() {
        assert_eq!(spectral_radius(&[0.0, 5.0, 0.0, 0.0], 2), 0.0);
    }
}
