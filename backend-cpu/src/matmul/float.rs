//! The element types of products, and how each is multiplied.

use super::{
    gemm::multiply,
    matrix::{Matrix, Place},
    outer_products,
};
use crate::memory::elements::Element;

/// The element types of products.
pub(crate) trait Float: Element {
    /// `out = lhs rhs` for shape `[m, k, n]`, none of m and n being 0. f16 values need the [`half::room`] for it.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn multiply(
        shape: [usize; 3],
        lhs: Matrix<Self>,
        rhs: Matrix<Self>,
        out: Place<Self>,
        room: Option<[&mut [f32]; 3]>,
    );

    /// As [`outer_products::multiply`].
    ///
    /// # Safety
    /// As for that.
    unsafe fn outer(shape: [usize; 3], lhs: Matrix<Self>, rhs: Matrix<Self>, out: Place<Self>);

    /// Adds elements to others.
    fn add(to: &mut [Self], x: &[Self]);
}

macro_rules! floats {
    ($($t:ty),*) => { $(
        impl Float for $t {
            unsafe fn multiply(
                shape: [usize; 3],
                lhs: Matrix<$t>,
                rhs: Matrix<$t>,
                out: Place<$t>,
                _: Option<[&mut [f32]; 3]>,
            ) {
                // SAFETY: promised by the caller.
                unsafe { multiply(shape, lhs, rhs, out, false) };
            }
            unsafe fn outer(shape: [usize; 3], lhs: Matrix<$t>, rhs: Matrix<$t>, out: Place<$t>) {
                // SAFETY: promised by the caller.
                unsafe { outer_products::multiply(shape, lhs, rhs, out) };
            }
            fn add(to: &mut [$t], x: &[$t]) {
                to.iter_mut().zip(x).for_each(|(to, x)| *to += x);
            }
        }
    )* };
}
floats!(f64, f32);
