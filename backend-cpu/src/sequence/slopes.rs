//! Slopes of gates, and loops over rows.

use crate::simd::float::Real;

/// The slope of the sigmoid where its value is `y`.
#[inline(always)]
pub(super) fn sigmoid_slope<T: Real>(y: T) -> T {
    y * (T::ONE - y)
}

/// The slope of the hyperbolic tangent where its value is `y`.
#[inline(always)]
pub(super) fn tanh_slope<T: Real>(y: T) -> T {
    T::ONE - y * y
}

/// Replaces each element by a function of it and of the elements at the same place elsewhere.
///
/// The compiler makes vector instructions of this where it can check that the slices do not overlap. It does so for few
/// slices, and once for all rows of a loop: an input in the rows of the same matrix as `out` then seems to overlap, and
/// the loop goes over single elements, ten times slower.
#[inline(always)]
pub(super) fn update<T: Copy, const N: usize>(out: &mut [T], x: [&[T]; N], f: impl Fn(T, [T; N]) -> T) {
    let len = out.len();
    let x = x.map(|x| &x[..len]);
    // Counted, not an iterator over `out`: so all checks of bounds disappear. A check that stays has the compiler leave
    // the last vector of each call to a slow loop over single elements.
    #[allow(clippy::needless_range_loop)]
    for i in 0..len {
        out[i] = f(out[i], x.map(|x| x[i]));
    }
}
