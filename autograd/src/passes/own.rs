//! A pass of the caller's own, over the flat gradients.

use super::units::Units;
use crate::{
    DType, Tensor,
    grads::{Grads, Unscaled},
    recorded::PassKind,
    store::{Flat, StateId},
};

impl<'t> Grads<'t, Unscaled> {
    /// Records a gradient pass of your own under a name: `f` is given the flat gradient of each arena, and returns
    /// others of the same shapes and types. Gradients that are absent stay absent, whatever `f` gives for them: there,
    /// and between segments, the result is zero.
    ///
    /// The rules for the order of passes take it for a nonlinear one, such as a clip: it belongs after [`Grads::unscale`],
    /// [`Grads::all_reduce`], a check for non-finite elements, and the last micro-batch. States of the pass are read by
    /// [`crate::Tape::state`] and written by [`Grads::assign`], together with the step; a condition of the step goes to
    /// [`Grads::skip_unless`]. Nothing else is needed: `f` records ordinary operations, so gradients flow through the
    /// pass.
    ///
    /// A clip at twice the mean of the norms so far:
    ///
    /// ```
    /// # use wgrad::{Grads, StateId};
    /// fn clip_by_mean(g: Grads<'_>, mean: StateId) -> Grads<'_> {
    ///     let (norm, usual) = (g.norm(), g.tape().state(mean));
    ///     let bound = norm.minimum(usual * 2);
    ///     g.map("clip_by_mean", |flat| flat.map(|_, g| g * (bound / norm.maximum(1e-12))))
    ///         .assign(mean, usual * 0.9 + bound * 0.1)
    ///         .skip_unless(norm.is_finite())
    /// }
    /// ```
    ///
    /// # Panics
    /// If `f` returns other arenas than it was given, or a vector of another shape, type or tape; if the pass is a known
    /// mistake: [`crate::Pitfall::PassOnPartialWindow`], [`crate::Pitfall::ClipBeforeAllReduce`],
    /// [`crate::Pitfall::PassBeforeBackward`].
    #[track_caller]
    pub fn map(self, name: &'static str, f: impl FnOnce(&Flat<'t>) -> Flat<'t>) -> Self {
        let mut wrong = None;
        let (flat, _) = self.pass(PassKind::Own, name, &[], |flat| {
            let new = f(flat);
            wrong = self.misfit(&new);
            if wrong.is_some() {
                return (flat.clone(), vec![]);
            }
            let kept = |arena, _| self.where_present(arena, new.get(arena).expect("it fits"));
            (flat.map(kept), vec![])
        });
        if let Some(why) = wrong {
            panic!("{name}: {why}{}", self.tape.recorded_at());
        }
        self.with_flat(flat)
    }

    /// The first vector that could not be a gradient in place of this one.
    fn misfit(&self, new: &Flat<'t>) -> Option<String> {
        let name = |arena| &self.tape.layout.state(arena).name;
        let (old, count) = (self.flat.parts(), new.parts().len());
        if count != old.len() {
            return Some(format!("the pass returns {count} vectors, and was given {}", old.len()));
        }
        old.iter().find_map(|&(arena, g)| {
            let Some(x) = new.get(arena) else {
                return Some(format!("the pass returns nothing for {:?}", name(arena)));
            };
            if !std::ptr::eq(x.tape, self.tape) {
                return Some(format!("the vector that the pass returns for {:?} belongs to another tape", name(arena)));
            }
            let (have, want) = ((x.dtype(), x.shape()), (g.dtype(), g.shape()));
            (have != want).then(|| {
                format!(
                    "the pass returns {}{} for {:?}, whose gradient is {}{}",
                    have.0,
                    have.1,
                    name(arena),
                    want.0,
                    want.1
                )
            })
        })
    }

    /// The elements of gradients that are present; zero elsewhere.
    #[track_caller]
    fn where_present(&self, arena: StateId, g: Tensor<'t>) -> Tensor<'t> {
        let present = Units::of(&self.tape.layout, arena, |param| self.present.contains(param).then_some(0));
        if present.segments.ranges.iter().map(|(_, len)| len).sum::<usize>() == g.numel() {
            return g;
        }
        let all = self.tape.full([present.params.len()], 1.0, DType::Bool);
        all.segment_broadcast(&present.segments).select(g, g.zeros_like())
    }
}
