//! Square roots by multiplications. With vectors of 512 bits they take less time than the machine's square root, and leave the
//! divider free for divisions. Each is correctly rounded, as the machine's is: the tests check every number of two binades, and
//! all others are those times a power of 4.

#[cfg(target_arch = "x86_64")]
use super::groups::wide;
use pulp::Simd;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The square roots of a vector's elements.
#[inline(always)]
pub(super) fn of_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    #[cfg(target_arch = "x86_64")]
    if wide::<S>() {
        // SAFETY: vectors of this size are what the machine has with AVX-512 alone.
        return unsafe { std::mem::transmute_copy(&wide_roots(std::mem::transmute_copy(&x))) };
    }
    simd.sqrt_f32s(x)
}

/// One step of Newton's and Goldschmidt's method from the machine's estimate, and one correction by the number less the square
/// of that (P. Markstein, "IA-64 and elementary functions", 2000, chapter 9).
///
/// # Safety
/// The machine has AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn wide_roots(x: __m512) -> __m512 {
    /// The least number whose root is computed so: for it the correction is no subnormal number.
    const LEAST: i32 = 0x0d80_0000; // 2^-100
    const INFINITE: i32 = 0x7f80_0000;
    let bits = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(LEAST));
    // The machine's instruction computes the others: smaller, 0, negative, infinite, NaN.
    if _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(INFINITE - LEAST)) != 0 {
        return _mm512_sqrt_ps(x);
    }
    let half = _mm512_set1_ps(0.5);
    let guess = _mm512_rsqrt14_ps(x);
    let (root, slope) = (_mm512_mul_ps(x, guess), _mm512_mul_ps(half, guess));
    let off = _mm512_fnmadd_ps(root, slope, half);
    let (root, slope) = (_mm512_fmadd_ps(root, off, root), _mm512_fmadd_ps(slope, off, slope));
    _mm512_fmadd_ps(_mm512_fnmadd_ps(root, root, x), slope, root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    struct Roots<'a>(&'a mut [f32]);

    impl WithSimd for Roots<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, rest) = S::as_mut_simd_f32s(self.0);
            assert!(rest.is_empty());
            vectors.iter_mut().for_each(|x| *x = of_f32s(simd, *x));
        }
    }

    /// Compares the roots of some numbers with those of the standard library, which are the nearest floats.
    fn compare(x: &[f32]) {
        let mut roots = x.to_vec();
        Arch::new().dispatch(Roots(&mut roots));
        for (x, root) in x.iter().zip(roots) {
            assert!(root.to_bits() == x.sqrt().to_bits() || root.is_nan() && x.sqrt().is_nan(), "{x:e}: {root:e}");
        }
    }

    #[test]
    fn roots_are_the_nearest_floats() {
        let numbers: Vec<_> = (1.0f32.to_bits()..4.0f32.to_bits()).map(f32::from_bits).collect();
        compare(&numbers);
    }

    #[test]
    fn roots_of_numbers_of_any_size_are_the_nearest_floats() {
        let positive = (0..=f32::INFINITY.to_bits()).step_by(4093).map(f32::from_bits);
        let edge = 2.0f32.powi(-100);
        let non_finite =
            [0.0, edge, edge.next_down(), edge.next_up(), f32::MAX, f32::INFINITY, f32::NAN, f32::from_bits(1)];
        for part in [positive.collect::<Vec<_>>(), non_finite.to_vec()] {
            let mut numbers: Vec<_> = part.iter().flat_map(|&x| [x, -x]).collect();
            compare(&numbers[..numbers.len() / 16 * 16]);
            // Each beside others whose roots are made, and which one that is not keeps from it.
            numbers = part.iter().flat_map(|&x| [x; 16]).collect();
            numbers.iter_mut().skip(1).step_by(2).for_each(|x| *x = 2.0);
            compare(&numbers);
        }
    }
}
