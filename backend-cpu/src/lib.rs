//! The CPU backend of wgrad.
//!
//! [`mod@reference`] interprets a program node by node in f64: it is the definition of every operation, plain and slow on
//! purpose. [`CpuBackend`] executes plans in the types of the program on a pool of threads, and is tested against it.

pub mod reference;
pub mod sequence;

mod backend;
mod contract;
mod index;
mod kernel;
mod map;
mod math;
mod nest;
mod reduce;

pub use backend::{CpuBackend, Error};
