//! Optimizers behind a pointer, for tests that run the same with each.

use wgrad::{Grads, Optimizer, ParamSet, Store};

/// Any optimizer.
pub type AnyOptimizer = Box<dyn Step>;

/// Makes an optimizer for the parameters of a store.
pub type MakeOptimizer = fn(&mut Store, &ParamSet) -> AnyOptimizer;

/// The part of [`Optimizer`] that needs no type.
pub trait Step {
    /// As [`Optimizer::step`].
    fn step(&self, grads: Grads<'_>);
}

impl<O: Optimizer> Step for O {
    fn step(&self, grads: Grads<'_>) {
        Optimizer::step(self, grads);
    }
}
