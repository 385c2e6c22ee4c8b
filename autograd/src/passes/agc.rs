//! Adaptive gradient clipping: by the ratio of gradient to weight, unit by unit.

use super::{
    check_norm,
    clip::coefficient,
    norm::{Over, norm},
    units::{Units, row_dims},
};
use crate::{
    DType, Operand, Tensor,
    grads::{Grads, Unscaled},
    pitfall::{Pitfall, Severity},
    range::Range,
    recorded::PassKind,
    store::{Param, ParamSet},
};

/// An adaptive clip: `clipping`, `eps` 1e-3, `div_eps` 1e-6, the Euclidean norm. A number or a scalar tensor is an
/// `Agc` with these defaults.
#[derive(Clone, Debug)]
pub struct Agc<'t> {
    clipping: Operand<'t>,
    eps: f64,
    div_eps: f64,
    p: f64,
    exclude: ParamSet,
    unit_dims: Vec<(ParamSet, usize)>,
}

impl<'t> Agc<'t> {
    /// A clip with this largest ratio of a unit's gradient to its weights. If it is a tensor, gradients flow to it.
    pub fn new(clipping: impl Into<Operand<'t>>) -> Self {
        let (exclude, unit_dims) = (ParamSet::default(), vec![]);
        Self { clipping: clipping.into(), eps: 1e-3, div_eps: 1e-6, p: 2.0, exclude, unit_dims }
    }

    /// The floor of the norm of a unit's weights, so that weights that start at zero can move.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The floor of the norm of a unit's gradient, where it is a divisor.
    #[must_use]
    pub fn div_eps(self, div_eps: f64) -> Self {
        Self { div_eps, ..self }
    }

    /// Uses the p-norm, for p above 0 or infinite.
    #[must_use]
    pub fn p(self, p: f64) -> Self {
        Self { p, ..self }
    }

    /// Leaves these parameters alone: the paper does so with the last layer.
    #[must_use]
    pub fn exclude(self, params: &ParamSet) -> Self {
        Self { exclude: self.exclude.iter().chain(params.iter()).collect(), ..self }
    }

    /// For these parameters, the first `dims` dimensions tell units apart: 2 for attention weights `[heads, dim, in]`,
    /// 0 for one unit.
    #[must_use]
    pub fn unit_dims(mut self, params: &ParamSet, dims: usize) -> Self {
        self.unit_dims.push((params.clone(), dims));
        self
    }

    /// The number of leading dimensions that tell a parameter's units apart.
    #[track_caller]
    fn dims(&self, grads: &Grads<'t, Unscaled>, param: Param) -> usize {
        let given = self.unit_dims.iter().rev().find(|(params, _)| params.contains(param));
        let dims = given.map_or_else(|| row_dims(&grads.tape.layout, param), |(_, dims)| *dims);
        let decl = grads.tape.layout.param(param);
        let (path, shape) = (&decl.path, &decl.shape);
        assert!(dims <= shape.rank(), "agc: parameter {path:?} of shape {shape} has no {dims} dimensions");
        dims
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let all = [("eps", self.eps, 1e-3), ("div_eps", self.div_eps, 1e-6), ("p", self.p, 2.0)];
        let others = all.into_iter().filter(|(_, value, default)| value != default);
        let excluded = (!self.exclude.is_empty()).then(|| ("excluded", self.exclude.len().to_string()));
        let clipping = ("clipping", self.clipping.to_string());
        std::iter::once(clipping)
            .chain(others.map(|(name, value, _)| (name, value.to_string())))
            .chain(excluded)
            .collect()
    }
}

impl From<f64> for Agc<'_> {
    fn from(clipping: f64) -> Self {
        Self::new(clipping)
    }
}

impl<'t> From<Tensor<'t>> for Agc<'t> {
    fn from(clipping: Tensor<'t>) -> Self {
        Self::new(clipping)
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Adaptive gradient clipping, unit by unit (Brock et al. 2021, NFNets; timm's `adaptive_clip_grad`): for the
    /// gradient G and the weights W of each unit,
    ///
    /// `m = clipping * max(|W|, eps)`, `G * m / max(|G|, div_eps)` where `|G| >= m`
    ///
    /// A unit is a row of a weight `[out, in]`, a filter `[out, in, ..]`, or the whole of a vector or scalar:
    /// [`Agc::unit_dims`] can change that. W are the values that the gradient was taken at, and gradients flow to them.
    /// A unit within its bound keeps its bits; a non-finite element spoils its own unit.
    ///
    /// If `clipping` is a tensor that is below 0 or NaN, the step is skipped, and the session reports it
    /// ([`crate::Error::Late`]).
    ///
    /// Taps: `agc/clipped`, the number of units scaled down (u32); `agc/clipping`, if it is a tensor.
    ///
    /// # Panics
    /// If `clipping` is a number below 0, or NaN, or a tensor that is not a scalar; if p is not above 0, or an eps is
    /// below 0; if a parameter has fewer dimensions than its units need.
    #[track_caller]
    pub fn agc(mut self, agc: impl Into<Agc<'t>>) -> Self {
        const NAME: &str = "agc";
        let agc = agc.into();
        check_norm(NAME, agc.p, &[("eps", agc.eps), ("div_eps", agc.div_eps)]);
        for params in agc.unit_dims.iter().map(|(params, _)| params).chain([&agc.exclude]) {
            self.tape.layout.check(params);
        }
        for param in self.present.iter().filter(|param| !agc.exclude.contains(*param)) {
            agc.dims(&self, param);
        }
        self.coefficient(NAME, "clipping", agc.clipping, Range::NotNegative);
        self.note_floor(NAME, "eps", agc.eps);
        if agc.exclude.is_empty() {
            let text = "agc leaves no parameter out, but its paper leaves out the output layer; `exclude` it";
            self.tape.note(Pitfall::AgcOnOutputLayer, Severity::Warning, text.into());
        }
        let (flat, clipped) = self.pass(PassKind::Agc, NAME, &agc.parameters(), |flat| {
            let mut count = self.tape.scalar(0.0, DType::U32);
            let clipped = flat.map_mut(|arena, g| {
                // An excluded parameter is one unit, so that one table serves all.
                let excluded = |param| agc.exclude.contains(param);
                let dims = |param| Some(if excluded(param) { 0 } else { agc.dims(&self, param) });
                let units = Units::of(&self.tape.layout, arena, dims);
                let w = self.values.get(arena).expect("every arena of a gradient has values");
                let mut c = agc.coefficients(g, w, &units);
                if units.params.iter().any(|param| excluded(*param)) {
                    let table = units.table(|param, _| f64::from(excluded(param)));
                    c = self.tape.table(&table, DType::Bool).select(c.ones_like(), c);
                }
                count += c.less(1.0).cast(DType::U32).sum();
                g * c.segment_broadcast(&units.segments)
            });
            (clipped, vec![count])
        });
        self.tap_of(NAME, "clipped", clipped[0]);
        self.with_flat(flat)
    }

    /// Adaptive clipping by one norm per parameter: a common simplification. The paper means [`Grads::agc`].
    ///
    /// `G * min(1, clip_factor * max(|W|, param_eps) / (|G| + eps))`
    ///
    /// With a `param_eps` of 0, a parameter that starts at zero never moves.
    ///
    /// If `clip_factor` is a tensor that is below 0 or NaN, the step is skipped, as by [`Grads::agc`].
    ///
    /// Taps: `agc_per_tensor/clipped`, the number of parameters scaled down (u32); `/clip_factor`, if it is a tensor.
    ///
    /// # Panics
    /// If a number is below 0, or a tensor is not a scalar.
    #[track_caller]
    pub fn agc_per_tensor(mut self, clip_factor: impl Into<Operand<'t>>, eps: f64, param_eps: f64) -> Self {
        const NAME: &str = "agc_per_tensor";
        let factor = clip_factor.into();
        check_norm(NAME, 2.0, &[("eps", eps), ("param_eps", param_eps)]);
        self.coefficient(NAME, "clip_factor", factor, Range::NotNegative);
        self.note_floor(NAME, "param_eps", param_eps);
        let text = "agc_per_tensor clips all parameters, and the paper leaves the output layer out; use `agc` and `exclude` it";
        self.tape.note(Pitfall::AgcOnOutputLayer, Severity::Warning, text.into());
        let parameters =
            [("clip_factor", factor.to_string()), ("eps", eps.to_string()), ("param_eps", param_eps.to_string())];
        let (flat, clipped) = self.pass(PassKind::Agc, NAME, &parameters, |flat| {
            let mut count = self.tape.scalar(0.0, DType::U32);
            let clipped = flat.map_mut(|arena, g| {
                let units = Units::of(&self.tape.layout, arena, |_| Some(0));
                let w = self.values.get(arena).expect("every arena of a gradient has values");
                let [n, w] = [g, w].map(|x| x.segment_norm(&units.segments));
                let w = if param_eps > 0.0 { w.maximum(param_eps) } else { w };
                let c = coefficient(w * factor.like(w).cast(w.dtype()), n, eps);
                count += c.less(1.0).cast(DType::U32).sum();
                g * c.segment_broadcast(&units.segments)
            });
            (clipped, vec![count])
        });
        self.tap_of(NAME, "clipped", clipped[0]);
        self.with_flat(flat)
    }
}

impl<S> Grads<'_, S> {
    /// Notes a lint about a floor of 0.
    #[track_caller]
    fn note_floor(&self, pass: &str, name: &str, floor: f64) {
        if floor == 0.0 {
            let text =
                format!("{pass} with {name} 0: a parameter that is all zeros never moves; give it a positive {name}");
            self.tape.note(Pitfall::AgcWithoutFloor, Severity::Warning, text);
        }
    }
}

impl<'t> Agc<'t> {
    /// The factor of each unit's gradient.
    #[track_caller]
    fn coefficients(&self, g: Tensor<'t>, w: Tensor<'t>, units: &Units) -> Tensor<'t> {
        let [g, w] = [g, w].map(|x| norm(x, self.p, Over::Each(&units.segments)));
        let most = w.maximum(self.eps) * self.clipping.like(w).cast(w.dtype());
        g.less(most).select(g.ones_like(), most / g.maximum(self.div_eps))
    }
}
