//! Code that the tests across crates share: runs of programs on the reference and on devices, comparisons of results,
//! checks of gradients against finite differences, and the properties of random tapes.

mod cases;
pub mod catalogue;
pub mod checks;
mod compare;
pub mod fuzz;
mod gpu;
mod gradcheck;
pub mod injection;
mod model;
mod optimizer;
pub mod precision;
mod properties;
#[path = "../programs/mod.rs"]
pub mod research;
mod run;
pub mod shaders;
mod sound;
pub mod steps;
mod training;

pub use cases::proptest_config;
pub use compare::{Tolerance, compare, same_bits};
pub use gpu::{gpu, gpu_options, gpus, gpus_of_f16, has_timestamps, separate_gpu};
pub use gradcheck::{Domain, Gradcheck, Setting};
pub use model::{Linear, Mlp};
pub use optimizer::{AnyOptimizer, MakeOptimizer, Step};
pub use properties::{Around, Failure, Property, hold, lossy_steps, properties};
pub use run::{Machine, Outputs, Point, named, reference};
pub use sound::sound;
pub use training::{Training, Update, agree, tape, training};

/// Compiles and runs the programs in README.md.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

/// Compiles and runs the programs in docs/testing.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
mod testing {}

/// Compiles and runs the programs in docs/research.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/research.md")]
mod research_page {}
