//! Probes of gradients: their norms, and the ratios of these to the norms of the parameters.

use crate::{grads::Grads, pass_state::Action, recorded::PassKind, store::ParamSet};

impl<S> Grads<'_, S> {
    /// Shows the gradients as they are here, and changes nothing.
    ///
    /// Taps: `<name>/norm`, the Euclidean norm of all; `<name>/norms`, that of each present parameter, in the order of
    /// declaration; and `<name>/ratios`, the norms divided by those of the parameters' values, which show vanishing and
    /// exploding gradients better than absolute numbers; 0 for a parameter that is all zeros. (All are f32, except the
    /// first, which is in the widest type of the gradients.)
    ///
    /// Gradients that still carry a loss scale, are of one replica or one micro-batch, or have been clipped, are noted
    /// as [`crate::Pitfall::MisplacedProbe`].
    #[track_caller]
    pub fn probe(&self, name: &str) {
        self.apply(Action::Probe);
        let about = (ParamSet::default(), PassKind::Probe);
        let shown = self.tape.pass_over("probe", &[("name", name.into())], &self.flat.tensors(), about, || {
            let (norm, norms) = (self.norm(), self.segment_norms());
            let values = self.norms_of(&self.values);
            let zero = values.equals(0.0);
            let ratios = zero.select(norms.zeros_like(), norms / zero.select(values.ones_like(), values));
            vec![norm, norms, ratios]
        });
        for (kind, value) in ["norm", "norms", "ratios"].into_iter().zip(shown) {
            self.tape.tap(&format!("{name}/{kind}"), value);
        }
    }
}
