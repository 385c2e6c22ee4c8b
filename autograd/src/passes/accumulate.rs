//! Accumulation: the gradients of several micro-batches as one.

use super::accumulated::AccumulatedHooks;
use crate::{
    Array, DType, Tensor,
    grads::{Grads, Unscaled},
    pass_state::PassState,
    scaler::LossScaler,
    store::{Flat, ParamSet, StateId, Store},
    tape::Tape,
};
use std::{
    marker::PhantomData,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What the gradients of micro-batches become.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Weighting {
    /// Their mean: `(1/K) sum_k g_k`, K being how many there are, also where a window is cut short.
    #[default]
    Mean,
    /// `sum_k n_k g_k / sum_k n_k`, for gradients of means over n_k tokens: that of the mean over all tokens.
    TokenWeighted,
    /// Their sum.
    Sum,
}

/// Gradients that add up over several runs, in a store: micro-batches that together are one batch.
///
/// `S` tells whether they carry a loss scale, as in [`Grads`]. [`Accumulator::add`] is recorded in the program of a
/// micro-batch, [`Accumulator::take`] in that of the update, which may be the same. What has been added is gone when it
/// has been taken, whether the step is then taken or skipped.
#[derive(Debug)]
pub struct Accumulator<S = Unscaled> {
    pub(super) params: ParamSet,
    pub(super) hooks: AccumulatedHooks,
    weighting: Weighting,
    skip_bad: bool,
    /// For each arena, the sum so far.
    sums: Vec<(StateId, StateId)>,
    /// How many micro-batches, or tokens, there are in the window (u32 scalar).
    weight: StateId,
    /// Of what has been recorded: the parameters with a gradient in some micro-batch, and the scale.
    recorded: Mutex<Option<(ParamSet, LossScaler)>>,
    scale: PhantomData<fn() -> S>,
}

impl<S> Accumulator<S> {
    /// Declares `<name>/sum/<dtype>` for each arena of the parameters, and `<name>/weight`.
    ///
    /// # Panics
    /// If the names are taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, name: &str, weighting: Weighting) -> Self {
        let sums = store.like_arenas(&format!("{name}/sum"), params);
        let weight = store.state(&format!("{name}/weight"), &Array::zeros([], DType::U32));
        let (recorded, params) = (Mutex::new(None), params.clone());
        let hooks = AccumulatedHooks::default();
        Self { params, hooks, weighting, skip_bad: false, sums, weight, recorded, scale: PhantomData }
    }

    /// A micro-batch whose gradient is not finite is left out, and not counted. Without this it spoils the sum, and the
    /// check after it skips the whole window.
    #[must_use]
    pub fn skip_bad_micro_batches(self) -> Self {
        Self { skip_bad: true, ..self }
    }

    /// Adds the gradient of a micro-batch's mean loss.
    ///
    /// # Panics
    /// If the accumulator is weighted by tokens: [`Accumulator::add_tokens`] says how many there are; if the gradient is of
    /// other parameters, or its scale differs from that of others.
    #[track_caller]
    pub fn add(&self, grads: Grads<'_, S>) {
        assert!(
            self.weighting != Weighting::TokenWeighted,
            "accumulate: weighted by tokens: say how many there are, by `add_tokens`"
        );
        let one = grads.tape.scalar(1.0, DType::U32);
        self.record(grads, one);
    }

    /// Adds the gradient of a mean over so many tokens (u32 scalar). Of none, the gradient is left out whatever it is: the
    /// mean of nothing is NaN.
    ///
    /// # Panics
    /// If the accumulator is not weighted by tokens, or the number is no u32 scalar; as [`Accumulator::add`].
    #[track_caller]
    pub fn add_tokens<'t>(&self, grads: Grads<'t, S>, tokens: Tensor<'t>) {
        assert!(self.weighting == Weighting::TokenWeighted, "accumulate: not weighted by tokens: use `add`");
        let (dtype, shape) = (tokens.dtype(), tokens.shape());
        assert!(
            dtype == DType::U32 && shape.rank() == 0,
            "accumulate: {dtype}{shape} is no number of tokens: u32[] is"
        );
        self.record(grads, tokens);
    }

    #[track_caller]
    fn record<'t>(&self, grads: Grads<'t, S>, weight: Tensor<'t>) {
        let tape = grads.tape;
        assert!(grads.generators.is_empty(), "accumulate: noise is for the whole batch: add it to what is taken");
        let foreign = grads.present.iter().find(|param| !self.params.contains(*param));
        if let Some(param) = foreign {
            panic!("accumulate: parameter {:?} is not among those accumulated", tape.layout.param(param).path);
        }
        {
            let mut recorded = self.recorded();
            let (present, scaler) = recorded.get_or_insert_with(|| (ParamSet::default(), grads.scaler));
            assert!(*scaler == grads.scaler, "accumulate: the micro-batches' losses have different scales");
            *present = present.iter().chain(grads.present.iter()).collect();
        }
        let parameters = [("weighting", format!("{:?}", self.weighting))];
        let site = std::panic::Location::caller();
        tape.pass("accumulate", &parameters, &grads.flat.tensors(), || {
            let mut counts = weight.not_equals(0.0);
            if self.skip_bad {
                counts = counts.and(grads.all_finite());
            }
            if let Some(verdict) = grads.verdict {
                counts = counts.and(verdict);
            }
            let mut after = vec![];
            for &(arena, state) in &self.sums {
                let Some(g) = grads.flat.get(arena) else { continue };
                let g = if self.weighting == Weighting::TokenWeighted { g * weight.cast(g.dtype()) } else { g };
                let before = tape.state(state);
                let sum = tape.at_site(site, || self.hooks.run(&grads, arena, before + g));
                after.push((state, counts.select(sum, before)));
            }
            let before = tape.state(self.weight);
            after.push((self.weight, counts.select(before + weight, before)));
            after.iter().for_each(|(state, value)| tape.assign(*state, *value));
            after.into_iter().map(|(_, value)| value).collect()
        });
    }

    /// What has been added up so far, for each arena; of gradients weighted by tokens, the products.
    #[track_caller]
    pub fn sum<'t>(&self, tape: &'t Tape) -> Flat<'t> {
        Flat::new(self.sums.iter().map(|&(arena, state)| (arena, tape.state(state))).collect())
    }

    /// Takes what has been added up, weighted, and leaves zeros. Of an empty window the verdict is false.
    ///
    /// A parameter that was absent from some micro-batches counts as zero in these; one that was absent from all of those
    /// recorded so far is absent.
    ///
    /// # Panics
    /// If nothing that adds has been recorded: which parameters are present is known from that.
    #[track_caller]
    pub fn take<'t>(&self, tape: &'t Tape) -> Grads<'t, S> {
        let recorded = self.recorded().clone();
        let (present, scaler) =
            recorded.expect("accumulate: record what adds to the accumulator before what takes from it");
        let weight = tape.state(self.weight);
        let sums = self.sum(tape);
        let mut result = None;
        let parameters = [("weighting", format!("{:?}", self.weighting))];
        tape.pass("take_accumulated", &parameters, &sums.tensors(), || {
            let some = weight.not_equals(0.0);
            let flat = match self.weighting {
                Weighting::Sum => sums.clone(),
                Weighting::Mean | Weighting::TokenWeighted => {
                    let divisor = some.select(weight, weight.ones_like());
                    sums.map(|_, sum| sum / divisor.cast(sum.dtype()))
                }
            };
            for &(_, state) in &self.sums {
                let decl = tape.layout.state(state);
                tape.assign(state, tape.full(&decl.shape, 0.0, decl.dtype));
            }
            tape.assign(self.weight, tape.scalar(0.0, DType::U32));
            let outputs = flat.tensors().into_iter().chain([some]).collect();
            result = Some((flat, some));
            outputs
        });
        let (flat, some) = result.expect("the pass has run");
        let absent = self.params.iter().filter(|param| !present.contains(*param)).collect();
        let values = tape.arenas(&self.params);
        let weight = (self.weighting == Weighting::TokenWeighted).then_some(weight);
        let (verdict, generators) = (Some(some), vec![]);
        let passes = PassState::of_one_batch(scaler != LossScaler::none()).into();
        Grads { tape, flat, values, present, absent, verdict, scaler, passes, weight, generators, scale: PhantomData }
    }

    fn recorded(&self) -> MutexGuard<'_, Option<(ParamSet, LossScaler)>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
