//! wgrad: autograd in which **the tape is the program**.
//!
//! A training step (forward, backward, gradient hooks, gradient passes, optimizer) is one append-only list of nodes
//! that can be printed, differentiated, planned, replayed and fuzzed. Nothing that touches a gradient happens outside
//! it.
//!
//! - [`op`], `vjp.rs` and `grad.rs` are the whole of automatic differentiation.
//! - [`Tape`] and [`Tensor`] record a [`Program`]; its [`plan::Plan`] is compiled by a device.
//! - [`jvp`], [`fn@vjp`], [`jacobian`], [`hessian`] and [`hvp`] differentiate a function over tensors, in any order.
//! - [`Store`] declares the states that outlive a step; [`Session`] runs programs over them on a [`Backend`].
//! - [`random`] numbers are a function of seed and position; an [`Rng`] keeps the seed and a counter in the store.
//! - [`Grads`] carries gradients through the passes to an [`Optimizer`]; [`PassState`] refuses known mistakes, by
//!   number: [`Pitfall`].
//! - [`LossScaler`] scales a loss, by a constant or by a scale that adapts itself on the device.
//!
//! This crate knows no device. `wgrad-cpu` runs plans on CPU threads, `wgrad-wgpu` on GPUs.

pub mod backend;
pub mod collective;
pub mod op;
pub mod plan;
pub mod print;
pub mod random;
#[cfg(feature = "testing")]
pub mod testing;

mod alarm;
mod array;
mod coefficient;
mod compose;
mod derivatives;
mod dot;
mod dtype;
mod error;
mod finish;
mod grad;
mod grads;
mod half;
mod handle;
mod in_process;
mod lints;
mod lower;
mod node;
mod operand;
mod optimizer;
mod origin;
mod parting;
mod pass_state;
mod passes;
mod pitfall;
mod program;
mod range;
mod recorded;
mod reduction;
mod scaler;
mod session;
mod shape;
mod simplify;
mod site;
mod store;
mod stored;
mod tape;
mod tensor;
mod vjp;
mod window;

pub use ::half::f16;
pub use array::{Array, Data};
pub use backend::Backend;
pub use collective::Collective;
pub use compose::{Attention, BatchNormed, CrossEntropy, Pool2d, Reduction};
pub use derivatives::{Arguments, hessian, hvp, jacobian, jvp, vjp};
pub use dtype::DType;
pub use error::{Error, Result};
pub use grads::{Grads, Scaled, Unscaled};
pub use half::f16_from_f64;
pub use in_process::InProcess;
pub use lints::Lint;
pub use node::{Node, NodeId, Scope, ScopeId};
pub use op::conv::Conv2d;
pub use op::fused::{Cell, Form, Named, Recurrence, Scores};
pub use operand::Operand;
pub use optimizer::{Optimizer, OptimizerStates, Preconditioner, Rule, Tuning};
pub use origin::{Grown, Growth, NodePlace, Origin, Phase, Probe, Sizes, ValueRange};
pub use parting::{Judge, Parting, PartingOf};
pub use pass_state::{Action, PassConfig, PassState, Weighting};
pub use passes::{Accumulator, Agc, Centralize, ClipGroups, ClipNorm, Draw, FiniteGuard, Noise, NonFinite, OnGiveUp};
pub use pitfall::{Pitfall, Severity};
pub use program::Program;
pub use random::Rng;
pub use recorded::{InputDecl, Pass, PassKind, TapDecl};
pub use scaler::{DynamicScale, LossScaler, ScaledLoss};
pub use session::{Session, Snapshot, Step, Taps};
pub use shape::Shape;
pub use site::Site;
pub use store::{ALIGN, Flat, Layout, Param, ParamDecl, ParamSet, StateDecl, StateId, Store};
pub use stored::StoredProgram;
pub use tape::{Call, Entered, Tape, Vjp};
pub use tensor::Tensor;
