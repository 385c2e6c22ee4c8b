//! Optimizers as trait objects, for tests that run with each of them.

use wgrad::{Grads, Optimizer, ParamSet, Store};

/// Any optimizer.
pub type AnyOptimizer = Box<dyn Step>;

/// Makes an optimizer for the parameters of a store.
pub type MakeOptimizer = fn(&mut Store, &ParamSet) -> AnyOptimizer;

/// The part of [`Optimizer`] that a trait object needs.
pub trait Step {
    /// The same as [`Optimizer::step`].
    fn step(&self, grads: Grads<'_>);
}

impl<O: Optimizer> Step for O {
    fn step(&self, grads: Grads<'_>) {
        Optimizer::step(self, grads);
    }
}
