//! The CPU backend of wgrad.
//!
//! [`mod@reference`] interprets a program node by node in f64: it is the definition of every operation, plain and slow on
//! purpose. [`CpuBackend`] executes plans in the types of the program on a pool of threads, and is tested against it.
//!
//! The rooms, each of which uses only those before it:
//!
//! | folder | subject |
//! |---|---|
//! | `threads` | a team of threads, and how many share a kernel |
//! | `memory` | element types, operands, strided walks, scratch, sizes |
//! | `simd` | float vectors, and the elementwise functions of each type |
//! | `loops` | fused elementwise work and reductions: compiled to programs, run tile by tile |
//! | `matmul` | matrix products and their epilogues |
//! | `conv`, `sequence`, `attention` | convolutions, recurrent cells, attention |

pub mod reference;
mod sequence;

mod argsort;
mod attention;
mod backend;
mod conv;
mod cumsum;
mod exchange;
mod indexing;
mod kernel;
mod loops;
mod matmul;
mod memory;
mod random;
mod simd;
mod threads;

pub use backend::{CpuBackend, Error};
