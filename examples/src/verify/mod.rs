//! `wgrad verify`: runs golden vectors on a device, and compares the results with values that another framework has
//! computed.
//!
//! An `index.json` lists the vectors, with the attributes and tolerances of each; safetensors files hold their tensors.

mod attributes;
mod command;
mod compare;
mod index;
mod kind;
mod ops;
mod optim;
mod passes;
mod pipeline;
mod refusal;
mod report;
mod scaler;
mod schedule;
mod tensors;
mod traces;

pub use attributes::Attributes;
pub use command::{rows, verify};
pub use compare::{Comparison, Expected, compare};
pub use index::{Case, Index, Tolerance, Trace};
pub use kind::{KINDS, Kind, Vector};
pub use refusal::{Attempt, Refusal};
pub use report::{Outcome, Row};
pub use tensors::Tensors;
