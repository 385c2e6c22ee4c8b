//! The element types of tensors.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DType {
    /// IEEE 754 binary64; on the CPU only, for gradient checks and reference results.
    F64,
    /// IEEE 754 binary32, the type that models train in.
    F32,
    /// IEEE 754 binary16, for storage: arithmetic is done in f32, and each node's value is rounded to the nearest f16
    /// (ties to even, from 65520 on to infinity, subnormals kept). The reference defines it so; a backend may keep more
    /// precision between nodes that it fuses into one kernel. Parameters and the states of optimizers stay wider.
    F16,
    /// Unsigned 32-bit integers: tokens, class labels, indices.
    U32,
    /// Signed 32-bit integers.
    I32,
    /// Truth values, the result of comparisons.
    Bool,
}

impl DType {
    /// True if gradients exist in this type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16)
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 | DType::I32 => 4,
            DType::F16 => 2,
            DType::Bool => 1,
        }
    }

    /// The short name used in printed tapes and messages.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
