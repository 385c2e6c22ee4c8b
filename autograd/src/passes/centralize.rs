//! Gradient centralization: gradients of weights without their mean.

use super::units::Units;
use crate::{
    grads::{Grads, Unscaled},
    lints::names,
    pitfall::{Pitfall, Severity},
    recorded::PassKind,
    store::{Param, ParamSet},
};

/// The choice of parameters to centralize: weights of two dimensions or more.
#[derive(Clone, Debug)]
pub struct Centralize {
    min_ndim: usize,
    exclude: ParamSet,
}

impl Default for Centralize {
    fn default() -> Self {
        Self { min_ndim: 2, exclude: ParamSet::default() }
    }
}

impl Centralize {
    /// Weights of two dimensions or more.
    pub fn new() -> Self {
        Self::default()
    }

    /// Weights of this many dimensions or more: 4 for those of convolutions alone.
    ///
    /// # Panics
    /// If that is below 2: a vector has no rows, and a bias whose gradient lacks its mean could not shift anything.
    #[must_use]
    #[track_caller]
    pub fn min_ndim(self, min_ndim: usize) -> Self {
        let lost = Pitfall::CentralizedAway;
        assert!(min_ndim >= 2, "centralize: min_ndim is {min_ndim}, and must be at least 2: {lost}");
        Self { min_ndim, ..self }
    }

    /// Leaves these parameters alone: tables of embeddings, and weights with one input per output, whose gradient would
    /// be 0.
    #[must_use]
    pub fn exclude(self, params: &ParamSet) -> Self {
        Self { exclude: self.exclude.iter().chain(params.iter()).collect(), ..self }
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Subtracts from each row of a weight's gradient the mean of the row (Yong et al. 2020; optax's `centralize`):
    ///
    /// `g - mean(g over all dimensions but the first)`
    ///
    /// for weights of two dimensions or more. Biases and the scales of norms are left alone. It is a projection, which
    /// only shortens the gradient: a clip after it sees the gradient that is applied.
    ///
    /// # Panics
    /// If a weight has rows without elements.
    #[track_caller]
    pub fn centralize(self) -> Self {
        self.centralize_with(&Centralize::new())
    }

    /// Centralizes some weights: see [`Grads::centralize`].
    ///
    /// # Panics
    /// As [`Grads::centralize`].
    #[track_caller]
    pub fn centralize_with(self, what: &Centralize) -> Self {
        let layout = &self.tape.layout;
        layout.check(&what.exclude);
        let applies = |param: Param| {
            let rank = layout.param(param).shape.rank();
            rank >= what.min_ndim && self.present.contains(param) && !what.exclude.contains(param)
        };
        for param in self.present.iter().filter(|param| applies(*param)) {
            let (path, shape) = (&layout.param(param).path, &layout.param(param).shape);
            let nothing = shape[0] > 0 && shape.numel() == 0;
            assert!(
                !nothing,
                "centralize: parameter {path:?} of shape {shape} has rows of nothing, which have no mean"
            );
        }
        self.note_what_is_lost(&applies);
        let mut parameters = vec![("min_ndim", what.min_ndim.to_string())];
        parameters.extend((!what.exclude.is_empty()).then(|| ("excluded", what.exclude.len().to_string())));
        let (flat, _) = self.pass(PassKind::Centralize, "centralize", &parameters, |flat| {
            let centred = flat.map(|arena, g| {
                let units = Units::of(layout, arena, |param| applies(param).then_some(1));
                if units.params.is_empty() {
                    return g;
                }
                let lens = self.tape.table(&units.table(|_, len| len as f64), g.dtype());
                // The means are zero outside the units: other gradients keep their bits.
                g - (g.segment_sum(&units.segments) / lens).segment_broadcast(&units.segments)
            });
            (centred, vec![])
        });
        self.with_flat(flat)
    }

    /// Notes lints about weights that would not train, and about tables whose rows are looked up by index.
    #[track_caller]
    fn note_what_is_lost(&self, applies: &impl Fn(Param) -> bool) {
        let layout = &self.tape.layout;
        let among = |wanted: &dyn Fn(Param) -> bool| {
            let params: Vec<Param> = self.present.iter().filter(|param| applies(*param) && wanted(*param)).collect();
            (!params.is_empty()).then(|| names(layout, params))
        };
        let single = |param| {
            let shape = &layout.param(param).shape;
            shape.numel() > 0 && shape.numel() == shape[0]
        };
        if let Some(lost) = among(&single) {
            let text = format!("centralize makes every gradient of {lost} 0: one element per row; `exclude` it");
            self.tape.note(Pitfall::CentralizedAway, Severity::Warning, text);
        }
        let tables = self.tape.looked_up();
        if let Some(tables) = among(&|param| tables.contains(&param)) {
            let text = format!("centralize applies to {tables}, whose rows are looked up by index; `exclude` it");
            self.tape.note(Pitfall::RuleByModuleKind, Severity::Warning, text);
        }
    }
}
