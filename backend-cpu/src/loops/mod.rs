//! Loop kernels: a body is compiled to a program, whose walks over rows run tile by tile.

pub(crate) mod chain;
pub(crate) mod compile;
pub(crate) mod interleave;
pub(crate) mod kernel;
pub(crate) mod program;
pub(crate) mod reduce;
pub(crate) mod run;
pub(crate) mod segments;
pub(crate) mod tiling;
pub(crate) mod view;

mod finite;
mod prefetch;
