//! Optimizers: pure rules over whole arenas, with PyTorch's formulas and defaults, or those of their papers.

pub mod schedule;

mod adagrad;
mod adam;
mod ema;
mod groups;
mod lion;
mod muon;
mod newton_schulz;
mod range;
mod rate;
mod rmsprop;
pub(crate) mod sam;
mod sgd;

pub use adagrad::{Adagrad, AdagradConfig};
pub use adam::{Adam, AdamConfig, AdamW, AdamWConfig};
pub use ema::{Ema, EmaConfig};
pub use groups::Group;
pub use lion::{Lion, LionConfig};
pub use muon::{Muon, MuonConfig, MuonOthers, MuonScale};
pub use rate::{Rate, RateFunction};
pub use rmsprop::{RmsProp, RmsPropConfig};
pub use sam::Sam;
pub use schedule::Schedule;
pub use sgd::{Sgd, SgdConfig};

use wgrad::{Flat, OptimizerStates, StateId, Tape, Tensor};

/// The divisors of gradients in a rule, from an arena and its states: see [`wgrad::Preconditioner::divisors`].
fn divisors<'t>(states: &OptimizerStates, tape: &'t Tape, of: impl Fn(StateId, &[StateId]) -> Tensor<'t>) -> Flat<'t> {
    let arenas = states.params().arenas(tape.layout()).into_iter();
    Flat::new(arenas.filter_map(|arena| Some((arena, of(arena, states.of(arena)?)))).collect())
}

/// Refuses a hyper-parameter outside a range, naming it.
#[track_caller]
fn check(optimizer: &str, name: &str, value: f64, sound: bool, range: &str) {
    assert!(value.is_finite() && sound, "{optimizer}: {name} is {value}, and must be {range}");
}

/// Refuses an epsilon that is not positive in f32: if gradients are 0, it alone prevents `0 / 0`.
#[track_caller]
fn check_eps(optimizer: &str, eps: f64) {
    check(optimizer, "eps", eps, eps as f32 > 0.0, "positive in f32");
}

/// Refuses a decay rate of a running mean outside `[0, 1)`.
#[track_caller]
fn check_rate(optimizer: &str, name: &str, rate: f64) {
    check(optimizer, name, rate, (0.0..1.0).contains(&rate), "in [0, 1)");
}

/// The name of an optimizer that replaces another: both declare states, so their names must differ.
fn again(name: &str) -> String {
    format!("{name}/again")
}

/// Refuses a negative number.
#[track_caller]
fn check_not_negative(optimizer: &str, name: &str, value: f64) {
    check(optimizer, name, value, value >= 0.0, "finite and not negative");
}
