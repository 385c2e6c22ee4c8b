//! Arithmetic by vectors: the float types, the elementwise functions, and loops over blocks.

pub(crate) mod finite;
pub(crate) mod float;
pub(crate) mod functions;
pub(crate) mod gates;
pub(crate) mod lanes;
pub(crate) mod math;

mod half;
