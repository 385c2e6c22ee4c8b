//! `wgrad doctor`: which devices there are, what they offer, and whether their kernels compute what they should.

mod advice;
mod command;
mod probes;

pub use command::doctor;
