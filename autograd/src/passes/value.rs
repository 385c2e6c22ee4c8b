//! Passes that treat elements one by one: clipping by value, and scaling the gradients of some parameters.

use super::units::Units;
use crate::{
    DType, Operand,
    grads::{Grads, Unscaled},
    range::Range,
    recorded::PassKind,
    store::ParamSet,
};

impl<'t> Grads<'t, Unscaled> {
    /// Keeps each element between `-bound` and `bound` (PyTorch's `clip_grad_value_`). This changes the direction of
    /// the gradient. NaN stays NaN, but an infinity becomes the bound, so check for finite values before. No gradient
    /// flows at the bounds and beyond.
    ///
    /// Taps: `clip_by_value/clamped`, the number of elements beyond the bound (u32).
    ///
    /// # Panics
    /// If the bound is not above 0.
    #[track_caller]
    pub fn clip_by_value(self, bound: f64) -> Self {
        const NAME: &str = "clip_by_value";
        assert!(bound > 0.0, "{NAME}: the bound is {bound}, and must be above 0");
        let (flat, clamped) = self.pass(PassKind::ClipValue, NAME, &[("bound", bound.to_string())], |flat| {
            let mut count = self.tape.scalar(0.0, DType::U32);
            let clamped = flat.map_mut(|_, g| {
                count += g.abs().greater(bound).cast(DType::U32).sum();
                g.clamp(-bound, bound)
            });
            (clamped, vec![count])
        });
        self.tap_of(NAME, "clamped", clamped[0]);
        self.with_flat(flat).within(bound)
    }
}

impl<'t, S> Grads<'t, S> {
    /// Multiplies the gradients of some parameters by a factor; others keep their bits. Before a clip by the global
    /// norm, this changes the scale of all others; after it, the bound no longer holds. A factor below 0 reverses the
    /// gradients, as for an adversary. If the factor is a non-finite tensor, the step is skipped, and the session
    /// reports it ([`crate::Error::Late`]).
    ///
    /// Taps: `scale_grad/factor`, if it is a tensor.
    ///
    /// # Panics
    /// If the factor is a number that is not finite, or a tensor that is not a scalar.
    #[track_caller]
    pub fn scale_grad(mut self, params: &ParamSet, factor: impl Into<Operand<'t>>) -> Self {
        const NAME: &str = "scale_grad";
        let factor = factor.into();
        self.tape.layout.check(params);
        self.coefficient(NAME, "factor", factor, Range::Finite);
        let chosen = params.iter().filter(|param| self.present.contains(*param)).collect();
        let parameters = [("params", params.len().to_string()), ("factor", factor.to_string())];
        let (flat, _) = self.pass_over(chosen, PassKind::ScaleGroup, NAME, &parameters, |flat| {
            let scaled = flat.map(|arena, g| {
                let units = Units::of(&self.tape.layout, arena, |_| Some(0));
                let chosen = self.tape.table(&units.table(|param, _| f64::from(params.contains(param))), DType::Bool);
                let factor = factor.like(g).cast(g.dtype()).broadcast_to(chosen.shape());
                g * chosen.select(factor, factor.ones_like()).segment_broadcast(&units.segments)
            });
            (scaled, vec![])
        });
        self.with_flat(flat)
    }
}
