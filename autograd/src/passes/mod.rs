//! Gradient passes: short pure functions that record the treatment of gradients between the loss and the optimizer.
//!
//! No pass has a gradient rule or a kernel of its own. Each is a region of the program (see [`crate::Program::passes`])
//! whose body is ordinary nodes, so a pass can be printed, differentiated and fused like the model itself. It works on
//! the flat vectors: the number of nodes does not depend on the number of parameters. A pass that does not act changes
//! no bit.

mod accumulate;
mod accumulated;
mod agc;
mod centralize;
mod clip;
mod finite;
mod groups;
mod noise;
mod norm;
mod own;
mod probe;
mod reduce;
mod units;
mod value;

pub use accumulate::Accumulator;
pub use agc::Agc;
pub use centralize::Centralize;
pub use clip::{ClipNorm, NonFinite};
pub use finite::{FiniteGuard, OnGiveUp};
pub use groups::ClipGroups;
pub use noise::{Draw, Noise};

use crate::{
    Tensor,
    grads::Grads,
    pass_state::Action,
    recorded::PassKind,
    store::{Flat, ParamSet},
};

impl<'t, S> Grads<'t, S> {
    /// Records `f` as a pass over the flat vectors. `f` returns the new vectors, and further outputs of the pass.
    #[track_caller]
    fn pass(
        &self,
        kind: PassKind,
        name: &'static str,
        parameters: &[(&'static str, String)],
        f: impl FnOnce(&Flat<'t>) -> (Flat<'t>, Vec<Tensor<'t>>),
    ) -> (Flat<'t>, Vec<Tensor<'t>>) {
        self.pass_over(self.present.clone(), kind, name, parameters, f)
    }

    /// As `pass`, for a pass that changes the gradients of some parameters only.
    #[track_caller]
    fn pass_over(
        &self,
        params: ParamSet,
        kind: PassKind,
        name: &'static str,
        parameters: &[(&'static str, String)],
        f: impl FnOnce(&Flat<'t>) -> (Flat<'t>, Vec<Tensor<'t>>),
    ) -> (Flat<'t>, Vec<Tensor<'t>>) {
        // A pass whose action depends on more than its kind has applied it by itself.
        if let Some(action) = kind.judged() {
            self.apply(action);
        }
        let mut result = None;
        // The body is recorded within a closure, but its nodes still name the line that asked for the pass.
        let site = self.tape.site();
        self.tape.pass_over(name, parameters, &self.flat.tensors(), (params, kind), || {
            let (flat, extra) = self.tape.at_site(site, || f(&self.flat));
            let outputs = flat.tensors().into_iter().chain(extra.iter().copied()).collect();
            result = Some((flat, extra));
            outputs
        });
        result.expect("the pass has run")
    }

    /// Bool scalar: true if `finite` is true on all ranks, which must agree, because states will depend on it.
    #[track_caller]
    fn on_all_ranks(&self, finite: Tensor<'t>) -> Tensor<'t> {
        if self.tape.ranks() == 1 {
            return finite;
        }
        self.apply(Action::ReduceVerdict);
        !(!finite).any_over_ranks()
    }

    /// Taps a value of a pass, as `<pass>/<name>`, or for a second such pass as `<pass>/<name>#2`.
    #[track_caller]
    fn tap_of(&self, pass: &'static str, name: &str, value: Tensor<'t>) {
        self.tape.tap_each(&format!("{pass}/{name}"), value);
    }
}

/// Checks the order of a norm, and the numbers that are added to norms.
#[track_caller]
fn check_norm(pass: &str, p: f64, eps: &[(&str, f64)]) {
    assert!(p > 0.0, "{pass}: there is no {p}-norm: p must be above 0");
    for (name, eps) in eps {
        assert!(eps.is_finite() && *eps >= 0.0, "{pass}: {name} is {eps}, and must be finite and at least 0");
    }
}
