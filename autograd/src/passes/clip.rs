//! Clipping by the norm of all gradients together.

use super::{
    check_norm,
    norm::{Over, norm},
};
use crate::{
    DType, Operand, Tensor,
    grads::{Grads, Unscaled},
    pitfall::{Pitfall, Severity},
    range::Range,
    recorded::{Bad, PassKind},
};
use std::fmt;

/// A clip's policy for a non-finite norm. The default is [`NonFinite::Skip`] if the gradients have been checked before,
/// so that skips are expected, else [`NonFinite::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NonFinite {
    /// The step is skipped, and the session reports it: [`crate::Error::Late`].
    Error,
    /// The verdict becomes false, and the step is skipped.
    Skip,
    /// Plain arithmetic, as in PyTorch by default: a NaN spreads to all gradients; an infinity becomes NaN
    /// and all others 0.
    Propagate,
}

/// A clip by a norm: `max_norm`, the Euclidean norm, `eps` 1e-6. A number or a scalar tensor is a `ClipNorm` with
/// these defaults.
///
/// ```
/// use wgrad::ClipNorm;
/// let as_in_optax = ClipNorm::new(1.0).eps(0.0);
/// let by_the_largest_element = ClipNorm::new(0.1).p(f64::INFINITY);
/// # let _ = (as_in_optax, by_the_largest_element);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClipNorm<'t> {
    max_norm: Operand<'t>,
    p: f64,
    eps: f64,
    non_finite: Option<NonFinite>,
}

impl<'t> ClipNorm<'t> {
    /// A clip with this bound, in the unit of the gradient. If it is a tensor, gradients flow to it.
    pub fn new(max_norm: impl Into<Operand<'t>>) -> Self {
        Self { max_norm: max_norm.into(), p: 2.0, eps: 1e-6, non_finite: None }
    }

    /// Uses the p-norm, for p above 0 or infinite (the largest magnitude).
    #[must_use]
    pub fn p(self, p: f64) -> Self {
        Self { p, ..self }
    }

    /// The number that is added to the norm before it divides the bound. PyTorch adds 1e-6. Optax adds nothing, which
    /// is 0: then gradients whose norm equals the bound are left alone.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The reaction to a non-finite norm.
    #[must_use]
    pub fn non_finite(self, non_finite: NonFinite) -> Self {
        Self { non_finite: Some(non_finite), ..self }
    }

    /// The printed parameters: the bound, and others that differ from the default.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let all = [("p", self.p, 2.0), ("eps", self.eps, 1e-6)];
        let others = all.into_iter().filter(|(_, value, default)| value != default);
        let policy = self.non_finite.map(|policy| ("non_finite", policy.to_string()));
        let bound = ("max_norm", self.max_norm.to_string());
        std::iter::once(bound).chain(others.map(|(name, value, _)| (name, value.to_string()))).chain(policy).collect()
    }

    #[track_caller]
    fn coefficient(&self, n: Tensor<'t>) -> Tensor<'t> {
        if self.max_norm.value() == Some(f64::INFINITY) {
            return n.ones_like();
        }
        coefficient(self.max_norm.like(n).cast(n.dtype()), n, self.eps)
    }
}

/// `min(1, max_norm / (n + eps))`, for a finite bound.
#[track_caller]
pub(super) fn coefficient<'t>(max_norm: Tensor<'t>, n: Tensor<'t>, eps: f64) -> Tensor<'t> {
    if eps > 0.0 {
        return (max_norm / (n + eps)).minimum(1.0);
    }
    // A norm of 0 is not scaled down, and has no slope.
    let zero = n.equals(0.0);
    (zero.select(n.ones_like(), max_norm) / zero.select(n.ones_like(), n)).minimum(1.0)
}

impl From<f64> for ClipNorm<'_> {
    fn from(max_norm: f64) -> Self {
        Self::new(max_norm)
    }
}

impl<'t> From<Tensor<'t>> for ClipNorm<'t> {
    fn from(max_norm: Tensor<'t>) -> Self {
        Self::new(max_norm)
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NonFinite::Error => "error",
            NonFinite::Skip => "skip",
            NonFinite::Propagate => "propagate",
        })
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// The policy in force for a norm.
    #[track_caller]
    pub(super) fn policy(&self, said: Option<NonFinite>) -> NonFinite {
        let checked = self.history.borrow().state.is_checked();
        if said == Some(NonFinite::Propagate) && !checked {
            let text = "one infinity makes all other gradients 0 under `NonFinite::Propagate`; skip such a step";
            self.tape.note(Pitfall::InfinityZeroesStep, Severity::Warning, text.into());
        }
        said.unwrap_or(if checked { NonFinite::Skip } else { NonFinite::Error })
    }

    /// Taps a pass's norm, or several, as `<pass>/<name>`. A non-finite one is an error, if that is the policy.
    #[track_caller]
    pub(super) fn tap_norm(&self, pass: &'static str, name: &str, norm: Tensor<'t>, policy: NonFinite) {
        if policy != NonFinite::Error {
            return self.tap_of(pass, name, norm);
        }
        let what = format!("{pass}: the norm is not finite, and the step was skipped");
        self.tape.alarm(&format!("{pass}/{name}"), norm, Bad::NotFinite, what);
    }
}

impl<'t, S> Grads<'t, S> {
    /// The p-norm over all present gradients, in the widest of their types: `(sum |g|^p)^(1/p)`, for infinite p the
    /// largest magnitude. It is finite whenever the true norm is, and 0 for no gradients.
    ///
    /// # Panics
    /// If p is not above 0.
    #[track_caller]
    pub fn p_norm(&self, p: f64) -> Tensor<'t> {
        check_norm("p_norm", p, &[]);
        let norms: Vec<Tensor<'t>> = self.flat.tensors().into_iter().map(|g| norm(g, p, Over::All)).collect();
        match norms[..] {
            [] => self.tape.scalar(0.0, DType::F32),
            [norm] => norm,
            _ => {
                let widest = norms.iter().map(|n| n.dtype()).min().expect("not empty");
                let row: Vec<Tensor<'t>> = norms.iter().map(|n| n.cast(widest).reshape([1])).collect();
                norm(Tensor::concat(&row, 0), p, Over::All)
            }
        }
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Scales all gradients together so that their global norm is at most `max_norm` (Pascanu et al. 2013; PyTorch's
    /// `clip_grad_norm_`):
    ///
    /// `n = |g|`, `g * min(1, max_norm / (n + eps))`
    ///
    /// Gradients within the bound keep their bits. If the norm is non-finite, the step is skipped (see [`NonFinite`]),
    /// even if the norm overflows although every element is finite: no step is better than one along zeros. `max_norm`
    /// is in the unit of the gradient. If it is a tensor, gradients flow to it; if that is below 0 or NaN, the step is
    /// skipped, and the session reports it ([`crate::Error::Late`]).
    ///
    /// Taps: `clip_by_global_norm/norm` (before clipping), `/coefficient`, `/clipped` (bool); `/max_norm`, if it is a
    /// tensor.
    ///
    /// # Panics
    /// If `max_norm` is a number below 0, or NaN; or a tensor that is not a scalar; if p is not above 0, or eps is
    /// below 0.
    #[track_caller]
    pub fn clip_by_global_norm(mut self, clip: impl Into<ClipNorm<'t>>) -> Self {
        const NAME: &str = "clip_by_global_norm";
        let clip = clip.into();
        check_norm(NAME, clip.p, &[("eps", clip.eps)]);
        self.coefficient(NAME, "max_norm", clip.max_norm, Range::NotNegative);
        let policy = self.policy(clip.non_finite);
        let (flat, values) = self.pass(PassKind::ClipGlobalNorm, NAME, &clip.parameters(), |flat| {
            let norm = self.p_norm(clip.p);
            let coefficient = clip.coefficient(norm);
            let clipped = flat.map(|_, g| g * coefficient.cast(g.dtype()));
            let mut values = vec![norm, coefficient, coefficient.less(1.0)];
            values.extend((policy != NonFinite::Propagate).then(|| norm.is_finite()));
            (clipped, values)
        });
        self.tap_norm(NAME, "norm", values[0], policy);
        self.tap_of(NAME, "coefficient", values[1]);
        self.tap_of(NAME, "clipped", values[2]);
        if let Some(finite) = values.get(3) {
            self.judge(*finite);
        }
        // No element is larger than the norm, of whatever order.
        let largest = clip.max_norm.value().filter(|_| policy != NonFinite::Propagate).unwrap_or(f64::INFINITY);
        self.with_flat(flat).within(largest)
    }
}
