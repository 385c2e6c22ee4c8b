//! Comparisons of values: within a bound relative to the largest of them, or bit for bit.

use approx::relative_eq;
use wgrad::{Array, DType, Data};

/// The largest allowed distance of values, relative to the larger of 1 and the largest expected magnitude.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance(pub f64);

impl Tolerance {
    /// f64 against f64, with another order of summation, or another implementation of a function.
    pub const F64: Self = Self(1e-12);
    /// f32 against f64.
    pub const F32: Self = Self(1e-4);
    /// f32 against f64, with some values stored in f16. A backend that fuses stores other values in f16 than the
    /// reference, and second derivatives amplify the difference.
    pub const F16: Self = Self(1e-1);

    /// The bound for programs whose values have this type.
    ///
    /// # Panics
    /// If the type is not a float.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 => Self::F64,
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            dtype => panic!("{dtype} is exact"),
        }
    }
}

/// Compares values with expected ones. NaN equals NaN, and infinities equal themselves.
///
/// # Errors
/// The first pair whose distance is above the tolerance.
pub fn compare(what: &str, have: &[f64], want: &[f64], tolerance: Tolerance) -> Result<(), String> {
    if have.len() != want.len() {
        return Err(format!("{what}: {} values instead of {}", have.len(), want.len()));
    }
    let scale = want.iter().filter(|v| v.is_finite()).fold(1.0f64, |scale, v| scale.max(v.abs()));
    for (i, (&h, &w)) in have.iter().zip(want).enumerate() {
        if !(h.is_nan() && w.is_nan() || relative_eq!(h, w, epsilon = tolerance.0 * scale, max_relative = 0.0)) {
            return Err(format!("{what}[{i}]: {h} instead of {w} (scale {scale:.3e}, {tolerance:?})"));
        }
    }
    Ok(())
}

/// True if two arrays have the same shape and the same bits. Unlike with `==`, NaN equals NaN, and -0 differs from 0.
pub fn same_bits(a: &Array, b: &Array) -> bool {
    a.shape() == b.shape()
        && match (a.data(), b.data()) {
            (Data::F64(a), Data::F64(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            (Data::F32(a), Data::F32(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            (Data::F16(a), Data::F16(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            (a, b) => a == b,
        }
}
