//! `wgrad doctor`: finds the devices, prints their properties, and tests their kernels.

mod advice;
mod command;
mod probes;

pub use command::doctor;
