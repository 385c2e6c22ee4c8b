//! Optimizers: pure rules over whole arenas, with PyTorch's formulas and defaults.

mod adam;
mod rmsprop;
mod sgd;

pub use adam::{Adam, AdamConfig, AdamW, AdamWConfig};
pub use rmsprop::{RmsProp, RmsPropConfig};
pub use sgd::{Sgd, SgdConfig};

use std::sync::Arc;
use wgrad::{Array, ParamSet, StateId, Store, Tensor, op::Segments};

/// The states of an optimizer: a counter, flat vectors, and vectors with one element per segment.
#[derive(Clone, Debug)]
struct States {
    params: ParamSet,
    counter: StateId,
    per_arena: Vec<(StateId, Vec<StateId>, Arc<Segments>)>,
}

impl States {
    /// Declares `<name>/updates`, and for each arena `<name>/<flat>/<dtype>` and `<name>/<segmental>/<dtype>`.
    #[track_caller]
    fn declare(store: &mut Store, params: &ParamSet, name: &str, flat: &[&str], segmental: &[&str]) -> Self {
        let mut per_arena: Vec<(StateId, Vec<StateId>, Arc<Segments>)> = params
            .arenas(store.layout())
            .into_iter()
            .map(|arena| (arena, vec![], store.layout().segments(arena)))
            .collect();
        let mut add = |declared: Vec<(StateId, StateId)>| {
            per_arena.iter_mut().zip(declared).for_each(|((_, states, _), (_, state))| states.push(state));
        };
        flat.iter().for_each(|kind| add(store.like_arenas(&format!("{name}/{kind}"), params)));
        segmental.iter().for_each(|kind| add(store.like_segments(&format!("{name}/{kind}"), params)));
        let counter = store.state(&format!("{name}/updates"), &Array::new([], vec![0u32]));
        Self { params: params.clone(), counter, per_arena }
    }

    fn find(&self, arena: StateId) -> &(StateId, Vec<StateId>, Arc<Segments>) {
        let found = self.per_arena.iter().find(|(a, ..)| *a == arena);
        found.expect("an optimizer steps parameters of the arenas that it was made for")
    }

    fn of(&self, arena: StateId) -> Vec<StateId> {
        self.find(arena).1.clone()
    }

    fn segments(&self, arena: StateId) -> &Arc<Segments> {
        &self.find(arena).2
    }
}

/// `g + weight_decay * p`: L2 decay, as part of the gradient.
#[track_caller]
fn with_decay<'t>(g: Tensor<'t>, p: Tensor<'t>, weight_decay: f64) -> Tensor<'t> {
    if weight_decay == 0.0 { g } else { g + p * weight_decay }
}

/// Refuses a hyper-parameter outside a range, naming it.
#[track_caller]
fn check(optimizer: &str, name: &str, value: f64, sound: bool, range: &str) {
    assert!(value.is_finite() && sound, "{optimizer}: {name} is {value}, and must be {range}");
}

/// Refuses an epsilon that is not positive in f32: where gradients are 0 it alone keeps `0 / 0` away.
#[track_caller]
fn check_eps(optimizer: &str, eps: f64) {
    check(optimizer, "eps", eps, eps as f32 > 0.0, "positive in f32");
}

/// Refuses a decay rate of a running mean outside `[0, 1)`.
#[track_caller]
fn check_rate(optimizer: &str, name: &str, rate: f64) {
    check(optimizer, name, rate, (0.0..1.0).contains(&rate), "in [0, 1)");
}

/// Refuses a negative number.
#[track_caller]
fn check_not_negative(optimizer: &str, name: &str, value: f64) {
    check(optimizer, name, value, value >= 0.0, "finite and not negative");
}
