//! Loop kernels: a body is compiled to a program, whose walks over rows run tile by tile.
//!
//! A step of a walk is a chain or a single action. A chain runs several float instructions on a few elements at a time; an
//! action runs one on a whole block. Both stay, since a chain of one instruction is slower than a loop over the block: by
//! 8 % of a soft-max, and 5 % of a recurrent network's training step (docs/performance-log.md).

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
