//! The CPU backend of wgrad.
//!
//! [`mod@reference`] interprets a program node by node in f64: it is the definition of every operation, plain and slow on
//! purpose. [`CpuBackend`] executes plans in the types of the program on a pool of threads, and is tested against it.

pub mod reference;
pub mod reference_plan;
pub mod sequence;

mod ahead;
mod arrange;
mod attention;
mod backend;
mod chain;
mod clock;
mod contract;
mod conv;
mod cumsum;
mod cut;
mod finite;
mod fold;
mod gates;
mod grid;
mod half;
mod kernel;
mod lanes;
mod looped;
mod math;
mod memory;
mod nest;
mod outer;
mod pool;
mod random;
mod recurrence;
mod schedule;
mod scratch;
mod segments;
mod single;
mod small;
mod team;
mod tile;
mod together;
mod turn;
mod view;

pub use backend::{CpuBackend, Error};
pub use team::Team;
