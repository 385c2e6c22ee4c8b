//! Clipping by the norms of groups of parameters, and of each parameter.

use super::{
    check_norm,
    clip::{NonFinite, coefficient},
    norm::{Over, norm},
    units::Units,
};
use crate::{
    DType, Operand, Tensor,
    grads::{Grads, Unscaled},
    op::Segments,
    pitfall::Pitfall,
    range::Range,
    recorded::PassKind,
    store::{Param, ParamSet},
};
use std::sync::Arc;

/// Groups of parameters, each with a bound on the norm of its gradients.
#[derive(Clone, Debug, Default)]
pub struct ClipGroups<'t> {
    groups: Vec<(ParamSet, Operand<'t>)>,
    p: Option<f64>,
    eps: Option<f64>,
    keep_rest: bool,
    non_finite: Option<NonFinite>,
}

impl<'t> ClipGroups<'t> {
    /// No groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// One group for each parameter, all with the same bound.
    pub fn per_parameter(params: &ParamSet, max_norm: impl Into<Operand<'t>>) -> Self {
        let max_norm = max_norm.into();
        Self {
            groups: params.iter().map(|param| (ParamSet::from_iter([param]), max_norm)).collect(),
            ..Self::default()
        }
    }

    /// Adds a group.
    #[must_use]
    pub fn group(mut self, params: &ParamSet, max_norm: impl Into<Operand<'t>>) -> Self {
        self.groups.push((params.clone(), max_norm.into()));
        self
    }

    /// Uses the p-norm, for p above 0 or infinite.
    #[must_use]
    pub fn p(self, p: f64) -> Self {
        Self { p: Some(p), ..self }
    }

    /// The number that is added to norms, 1e-6 by default.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps: Some(eps), ..self }
    }

    /// The reaction to a non-finite norm.
    #[must_use]
    pub fn non_finite(self, non_finite: NonFinite) -> Self {
        Self { non_finite: Some(non_finite), ..self }
    }

    /// Leaves parameters in no group alone.
    #[must_use]
    pub fn keep_rest(self) -> Self {
        Self { keep_rest: true, ..self }
    }

    /// The group of a parameter.
    fn of(&self, param: Param) -> Option<usize> {
        self.groups.iter().position(|(params, _)| params.contains(param))
    }

    #[track_caller]
    fn check(&self, name: &str, grads: &mut Grads<'t, Unscaled>) {
        check_norm(name, self.p.unwrap_or(2.0), &[("eps", self.eps.unwrap_or(1e-6))]);
        let tape = grads.tape;
        let path = |param: Param| &tape.layout.param(param).path;
        for (i, (params, max_norm)) in self.groups.iter().enumerate() {
            grads.coefficient(name, "max_norm", *max_norm, Range::NotNegative);
            tape.layout.check(params);
            assert!(
                max_norm.value() != Some(f64::INFINITY),
                "{name}: a bound of infinity: leave the group out instead"
            );
            for param in params.iter() {
                let first = self.of(param).expect("a member of this group");
                let twice = Pitfall::OverlappingClipGroups;
                let at = tape.recorded_at();
                assert!(first == i, "{name}: parameter {:?} is in groups {first} and {i}: {twice}{at}", path(param));
            }
        }
        let rest = grads.present.iter().find(|param| self.of(*param).is_none());
        if let Some(param) = rest.filter(|_| !self.keep_rest) {
            panic!("{name}: parameter {:?} is in no group: say `keep_rest` to leave it alone", path(param));
        }
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Scales the gradients of each group so that their norm is at most the group's bound: the formula of
    /// [`Grads::clip_by_global_norm`], group by group (Pascanu et al. 2013).
    ///
    /// With a bound of C for each of n groups, the norm of all may still be `C sqrt(n)`. If a norm is non-finite, the
    /// step is skipped (see [`NonFinite`]). If a bound is a tensor that is below 0 or NaN, the step is skipped, and the
    /// session reports it ([`crate::Error::Late`]).
    ///
    /// Taps: `clip_by_group_norm/norms` (before clipping), `clip_by_group_norm/coefficients`, one per group;
    /// `clip_by_group_norm/max_norm` for each bound that is a tensor.
    ///
    /// # Panics
    /// If a parameter is in two groups; or in none, without [`ClipGroups::keep_rest`]; if there is no group; if a bound
    /// is below 0 or not finite, or a tensor that is not a scalar; if p is not above 0, or eps is below 0.
    #[track_caller]
    pub fn clip_by_group_norm(mut self, clip: &ClipGroups<'t>) -> Self {
        const NAME: &str = "clip_by_group_norm";
        assert!(!clip.groups.is_empty(), "{NAME}: there is no group");
        clip.check(NAME, &mut self);
        let (p, eps) = (clip.p.unwrap_or(2.0), clip.eps.unwrap_or(1e-6));
        let mut parameters = vec![("groups", clip.groups.len().to_string())];
        parameters
            .extend([("p", p, 2.0), ("eps", eps, 1e-6)].iter().filter(|x| x.1 != x.2).map(|x| (x.0, x.1.to_string())));
        parameters.extend(clip.non_finite.map(|policy| ("non_finite", policy.to_string())));
        let policy = self.policy(clip.non_finite);
        let covered = self.present.iter().filter(|param| clip.of(*param).is_some()).collect();
        let (flat, values) = self.pass_over(covered, PassKind::ClipGroupNorm, NAME, &parameters, |flat| {
            if flat.parts().is_empty() {
                let none = self.tape.full([clip.groups.len()], 0.0, DType::F32);
                return (flat.clone(), vec![none, none + 1.0]);
            }
            // One norm per parameter, then one per group: a norm of norms is the norm of all.
            let units: Vec<Units> =
                flat.parts().iter().map(|(arena, _)| Units::of(&self.tape.layout, *arena, |_| Some(0))).collect();
            let widest = flat.tensors().iter().map(|g| g.dtype()).min().expect("not empty");
            let per_param = flat.parts().iter().zip(&units);
            let norms: Vec<Tensor<'t>> =
                per_param.map(|((_, g), units)| norm(*g, p, Over::Each(&units.segments)).cast(widest)).collect();
            let params: Vec<Param> = units.iter().flat_map(|units| &units.params).copied().collect();
            let (order, segments) = by_group(&params, clip);
            let table =
                |values: &[usize]| self.tape.table(&values.iter().map(|v| *v as f64).collect::<Vec<f64>>(), DType::U32);
            let sorted = Tensor::concat(&norms, 0).gather(table(&order), 0);
            let norms = norm(sorted, p, Over::Each(&segments));
            let coefficients = coefficient(clip.bounds(norms), norms, eps);
            // The last coefficient is for parameters in no group.
            let all = Tensor::concat(&[coefficients, self.tape.full([1], 1.0, widest)], 0);
            let mut units = units.iter();
            let clipped = flat.map_mut(|_, g| {
                let units = units.next().expect("as many as arenas");
                let groups: Vec<usize> =
                    units.params.iter().map(|param| clip.of(*param).unwrap_or(clip.groups.len())).collect();
                let each = all.gather(table(&groups), 0).cast(g.dtype());
                g * each.segment_broadcast(&units.segments)
            });
            (clipped, vec![norms, coefficients])
        });
        self.tap_norm(NAME, "norms", values[0], policy);
        self.tap_of(NAME, "coefficients", values[1]);
        if policy != NonFinite::Propagate {
            self.judge(values[0].all_finite());
        }
        self.with_flat(flat)
    }

    /// Scales the gradient of each parameter so that the root of its mean square is at most a threshold (optax's
    /// `clip_by_block_rms`; Shazeer and Stern 2018):
    ///
    /// `g / max(1, rms(g) / threshold)`
    ///
    /// If the threshold is a tensor that is not above 0, the step is skipped, and the session reports it
    /// ([`crate::Error::Late`]).
    ///
    /// Taps: `clip_by_block_rms/clipped`, the number of parameters scaled down (u32); `/threshold`, if it is a tensor.
    ///
    /// # Panics
    /// If the threshold is a number that is not above 0, or a tensor that is not a scalar.
    #[track_caller]
    pub fn clip_by_block_rms(mut self, threshold: impl Into<Operand<'t>>) -> Self {
        const NAME: &str = "clip_by_block_rms";
        let threshold = threshold.into();
        self.coefficient(NAME, "threshold", threshold, Range::Positive);
        let (flat, clipped) =
            self.pass(PassKind::ClipGroupNorm, NAME, &[("threshold", threshold.to_string())], |flat| {
                let mut count = self.tape.scalar(0.0, DType::U32);
                let clipped = flat.map_mut(|arena, g| {
                    let units = Units::of(&self.tape.layout, arena, |_| Some(0));
                    let roots = self.tape.table(&units.table(|_, len| (len as f64).sqrt()), g.dtype());
                    let rms = g.segment_norm(&units.segments) / roots;
                    let c = (rms / threshold.like(g).cast(g.dtype())).maximum(1.0).recip();
                    count += c.less(1.0).cast(DType::U32).sum();
                    g * c.segment_broadcast(&units.segments)
                });
                (clipped, vec![count])
            });
        self.tap_of(NAME, "clipped", clipped[0]);
        self.with_flat(flat)
    }
}

impl<'t> ClipGroups<'t> {
    /// The bounds, one per group, in the type of the norms.
    #[track_caller]
    fn bounds(&self, norms: Tensor<'t>) -> Tensor<'t> {
        let numbers: Option<Vec<f64>> = self.groups.iter().map(|(_, bound)| bound.value()).collect();
        if let Some(numbers) = numbers {
            return norms.tape.table(&numbers, norms.dtype());
        }
        let scalar = norms.tape.scalar(0.0, norms.dtype());
        let each = |(_, bound): &(ParamSet, Operand<'t>)| bound.like(scalar).cast(norms.dtype()).reshape([1]);
        Tensor::concat(&self.groups.iter().map(each).collect::<Vec<_>>(), 0)
    }
}

/// The positions of parameters, group by group, and the segment of each group. Parameters in no group are left out.
fn by_group(params: &[Param], clip: &ClipGroups<'_>) -> (Vec<usize>, Arc<Segments>) {
    let (mut order, mut ranges) = (vec![], vec![]);
    for (members, _) in &clip.groups {
        let start = order.len();
        order.extend((0..params.len()).filter(|i| members.contains(params[*i])));
        ranges.push((start, order.len() - start));
    }
    let total = order.len();
    (order, Arc::new(Segments { total, ranges: ranges.into() }))
}
