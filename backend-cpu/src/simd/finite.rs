//! The check for non-finite numbers, by one sum over them.

use super::float::Real;
use pulp::{Arch, Simd, WithSimd};

struct NonFinite<'a>(&'a [f32]);

impl WithSimd for NonFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        any_non_finite_by(simd, self.0)
    }
}

/// True if any number is infinite or none at all.
pub(crate) fn any_non_finite(x: &[f32]) -> bool {
    Arch::new().dispatch(NonFinite(x))
}

/// As [`any_non_finite`], by the vectors that the caller is compiled for: what is not finite is no number times 0, and neither is
/// what that is added to.
#[inline(always)]
pub(crate) fn any_non_finite_by<S: Simd, T: Real>(simd: S, x: &[T]) -> bool {
    const SIDE_BY_SIDE: usize = 4;
    let (zero, lanes) = (T::splat(simd, T::default()), T::lanes::<S>());
    let mut sums = [zero; SIDE_BY_SIDE];
    let (vectors, rest) = x.split_at(x.len() / lanes * lanes);
    for (i, vector) in vectors.chunks_exact(lanes).enumerate() {
        // SAFETY: a vector's elements are there.
        let vector = unsafe { vector.as_ptr().cast::<T::Vector<S>>().read_unaligned() };
        sums[i % SIDE_BY_SIDE] = T::mul_add(simd, vector, zero, sums[i % SIDE_BY_SIDE]);
    }
    let [a, b, c, d] = sums;
    let sum = T::sum(simd, T::vector_add(simd, T::vector_add(simd, a, b), T::vector_add(simd, c, d)));
    let sum = rest.iter().fold(sum, |sum, &x| sum + x * T::default());
    !sum.into_f64().is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_found_wherever_it_is() {
        for len in [0, 1, 2, 127, 128, 129, 256, 300] {
            let mut x: Vec<f32> = (0..len).map(|i| (i as f32 - 77.0) * 1e36).collect();
            x.iter_mut().step_by(3).for_each(|x| *x = f32::MAX.copysign(*x));
            assert!(!any_non_finite(&x), "{len} finite numbers");
            for i in 0..len {
                for non_finite in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let kept = std::mem::replace(&mut x[i], non_finite);
                    assert!(any_non_finite(&x), "{non_finite} at {i} of {len}");
                    x[i] = kept;
                }
            }
        }
    }
}
