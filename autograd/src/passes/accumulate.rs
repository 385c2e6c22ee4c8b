//! Accumulation: the gradients of several micro-batches as one.

use super::accumulated::AccumulatedHooks;
use crate::{
    Array, DType, Tensor,
    grads::{Grads, History, Unscaled},
    lints::Mark,
    pass_state::{Action, PassState, Weighting},
    pitfall::{Pitfall, Severity},
    recorded::{Event, PassKind, Window},
    scaler::LossScaler,
    store::{Flat, ParamSet, StateId, Store},
    tape::Tape,
};
use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Gradients that add up over several runs, in a store: micro-batches that together are one batch.
///
/// `S` says if they carry a loss scale, as in [`Grads`]. [`Accumulator::add`] is recorded in the program of a
/// micro-batch, [`Accumulator::take`] in that of the update, which may be the same. `take` empties the accumulator,
/// even if the step is then skipped: nothing has to be zeroed, and no gradient of an update, taken or skipped, can get
/// into the next one ([`Pitfall::StaleGradients`], [`Pitfall::KeptAfterSkip`]).
///
/// A session keeps count of windows over its runs, and refuses a run that would break their rules
/// ([`crate::Error::Pitfall`], with nothing run): one micro-batch too many or a window taken too early, if
/// [`Accumulator::micro_batches`] sets the length of windows ([`Pitfall::ViolatedWindow`]), and an update of the loss
/// scale inside a window ([`Pitfall::ScaleChangesInsideWindow`]).
///
/// The weighting of micro-batches has no default, so that nobody forgets it. [`Pitfall::UndividedSum`], accumulation
/// that nothing divides:
///
/// ```compile_fail,E0061
/// # use wgrad::{Accumulator, ParamSet, Store, Unscaled};
/// fn declare(store: &mut Store, params: &ParamSet) -> Accumulator<Unscaled> {
///     Accumulator::new(store, params, "window")
/// }
/// ```
#[derive(Debug)]
pub struct Accumulator<S = Unscaled> {
    name: String,
    pub(super) params: ParamSet,
    pub(super) hooks: AccumulatedHooks,
    /// The number of micro-batches that a window has, and the state that counts them (u32 scalar).
    length: Option<(usize, StateId)>,
    weighting: Weighting,
    skip_bad: bool,
    /// For each arena, the sum so far.
    sums: Vec<(StateId, StateId)>,
    /// The number of micro-batches, or tokens, in the window (u32 scalar).
    weight: StateId,
    /// True if a micro-batch of the window has been judged bad (bool scalar).
    bad: StateId,
    recorded: Mutex<Option<Recorded>>,
    scale: PhantomData<fn() -> S>,
}

/// Facts about the gradients whose addition has been recorded.
#[derive(Clone, Debug)]
struct Recorded {
    /// The parameters with a gradient in some micro-batch.
    present: ParamSet,
    scaler: LossScaler,
    /// The state of the scale that they carry, or have carried.
    scale: Option<StateId>,
    /// True if f16 took part in them.
    half: bool,
    /// Their sources that call for a clip.
    from: Vec<Mark>,
}

impl<S> Accumulator<S> {
    /// Declares `<name>/sum/<dtype>` for each arena of the parameters, `<name>/weight` and `<name>/bad`.
    ///
    /// # Panics
    /// If the names are taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, name: &str, weighting: Weighting) -> Self {
        let sums = store.like_arenas(&format!("{name}/sum"), params);
        let weight = store.state(&format!("{name}/weight"), &Array::zeros([], DType::U32));
        let bad = store.state(&format!("{name}/bad"), &Array::zeros([], DType::Bool));
        let (name, recorded, params) = (name.into(), Mutex::new(None), params.clone());
        let (hooks, length, skip_bad, scale) = (AccumulatedHooks::default(), None, false, PhantomData);
        Self { name, params, hooks, length, weighting, skip_bad, sums, weight, bad, recorded, scale }
    }

    /// Sets the number of micro-batches of a window, bad ones included. Declares `<name>/micro_batches`, which counts
    /// them: it is saved with the other states, so a session that is resumed within a window knows its position.
    /// Without this a window ends when it is taken.
    ///
    /// # Panics
    /// If the number is 0 or larger than u32, or if it has been set before.
    #[must_use]
    #[track_caller]
    pub fn micro_batches(self, store: &mut Store, count: usize) -> Self {
        assert!(count > 0 && u32::try_from(count).is_ok(), "accumulate: a window cannot have {count} micro-batches");
        let counter = store.state(&format!("{}/micro_batches", self.name), &Array::zeros([], DType::U32));
        Self { length: Some((count, counter)), ..self }
    }

    /// The state that counts the micro-batches of a window (u32 scalar), if [`Accumulator::micro_batches`] has set
    /// their number.
    pub fn counter(&self) -> Option<StateId> {
        self.length.map(|(_, counter)| counter)
    }

    /// The parameters with a gradient in some micro-batch that has been recorded so far: those that
    /// [`Accumulator::take`] takes. A program that takes leaves out a parameter whose first gradient is recorded later.
    pub fn present(&self) -> ParamSet {
        self.recorded().as_ref().map_or_else(ParamSet::default, |known| known.present.clone())
    }

    /// Leaves out, and does not count, a micro-batch whose gradient is non-finite, or whose verdict is false
    /// ([`Grads::check_loss`]). Without this the whole window is skipped: a non-finite gradient spoils the sum, which a
    /// later check finds, and a false verdict makes the verdict of its window false.
    #[must_use]
    pub fn skip_bad_micro_batches(self) -> Self {
        Self { skip_bad: true, ..self }
    }

    /// Adds the gradient of a micro-batch's mean loss.
    ///
    /// # Panics
    /// If the accumulator is weighted by tokens (see [`Accumulator::add_tokens`]). If the gradient is of other
    /// parameters, or has another loss scale than the earlier ones. If it has been through a nonlinear pass
    /// ([`Pitfall::PassOnPartialWindow`]; [`Grads::per_micro_batch`] allows it), or the gradient of the same loss has
    /// been added on this tape ([`Pitfall::BackwardTwice`]). If it has noise, or a state to assign, which belong to a
    /// step.
    #[track_caller]
    pub fn add(&self, grads: Grads<'_, S>) {
        assert!(
            self.weighting != Weighting::TokenWeighted,
            "accumulate: weighted by tokens: say how many there are, by `add_tokens`"
        );
        let one = grads.tape.scalar(1.0, DType::U32);
        self.record(grads, one);
    }

    /// Adds the gradient of a mean over this many tokens (u32 scalar). With 0 tokens the gradient is left out, because
    /// the mean of nothing is NaN.
    ///
    /// # Panics
    /// If the accumulator is not weighted by tokens, or the number is not a u32 scalar; as [`Accumulator::add`].
    #[track_caller]
    pub fn add_tokens<'t>(&self, grads: Grads<'t, S>, tokens: Tensor<'t>) {
        assert!(self.weighting == Weighting::TokenWeighted, "accumulate: not weighted by tokens: use `add`");
        grads.tape.own(tokens, "accumulate");
        let (dtype, shape) = (tokens.dtype(), tokens.shape());
        assert!(
            dtype == DType::U32 && shape.rank() == 0,
            "accumulate: the number of tokens must be u32[], not {dtype}{shape}"
        );
        self.record(grads, tokens);
    }

    #[track_caller]
    fn record<'t>(&self, grads: Grads<'t, S>, weight: Tensor<'t>) {
        let tape = grads.tape;
        tape.layout.state(self.weight);
        assert!(
            grads.generators.is_empty(),
            "accumulate: add noise to the gradients that `take` returns, not to a micro-batch"
        );
        assert!(grads.assigned.is_empty(), "accumulate: call `assign` on the gradients that `take` returns");
        let foreign = grads.present.iter().find(|param| !self.params.contains(*param));
        if let Some(param) = foreign {
            panic!("accumulate: parameter {:?} is not among those accumulated", tape.layout.param(param).path);
        }
        self.check(&grads);
        let mut counted = vec![];
        if let Some((_, counter)) = self.length {
            counted.push((counter, tape.state(counter) + 1.0));
        }
        self.note(&grads);
        let parameters = [("weighting", format!("{:?}", self.weighting))];
        let site = tape.site();
        let about = (grads.present.clone(), PassKind::Accumulate);
        tape.pass_over("accumulate", &parameters, &grads.flat.tensors(), about, || {
            let mut counts = weight.not_equals(0.0);
            let mut after = counted;
            if self.skip_bad {
                counts = counts.and(grads.all_finite());
            }
            match grads.verdict {
                Some(verdict) if self.skip_bad => counts = counts.and(verdict),
                Some(verdict) => after.push((self.bad, tape.state(self.bad).or(counts.and(!verdict)))),
                None => {}
            }
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

    /// Refuses gradients that do not belong together, and notes the facts about these.
    #[track_caller]
    fn check(&self, grads: &Grads<'_, S>) {
        let (tape, history) = (grads.tape, grads.history.borrow());
        {
            let mut recorded = self.recorded();
            let none =
                Recorded { present: ParamSet::default(), scaler: grads.scaler, scale: None, half: false, from: vec![] };
            let known = recorded.get_or_insert(none);
            assert!(known.scaler == grads.scaler, "accumulate: the micro-batches' losses have different scales");
            known.present = known.present.iter().chain(grads.present.iter()).collect();
            let carried = grads.scaler.states().map(|(scale, _)| scale);
            known.scale = known.scale.or(carried).or(history.unscaled_by.map(|(scale, _)| scale));
            known.half |= history.half;
        }
        // The gradient's passes ran on a part of a window.
        let config = crate::PassConfig { scaler: history.state.config().scaler, ..self.window().config(tape.ranks()) };
        let state = PassState::new(config).allowing(history.state.allowed());
        if let Err(pitfall) = state.after(&history.done) {
            tape.refuse(pitfall);
        }
        if let Some(loss) = history.loss {
            let twice = {
                let accumulated = &mut tape.inner.borrow_mut().training.accumulated;
                let twice = accumulated.contains(&(self.weight, loss));
                accumulated.push((self.weight, loss));
                twice
            };
            if twice {
                tape.refuse(Pitfall::BackwardTwice);
            }
        }
        tape.event(Event::Window(self.window(), Action::Backward));
    }

    /// The accumulator's settings, for a session's record of its window.
    fn window(&self) -> Arc<Window> {
        let recorded = self.recorded();
        let scaled = recorded.as_ref().is_some_and(|known| known.scaler != LossScaler::none());
        Arc::new(Window {
            name: self.name.clone(),
            micro_batches: self.length.map(|(count, _)| count),
            counter: self.length.map_or(self.weight, |(_, counter)| counter),
            weighting: self.weighting,
            scaled,
            scale: recorded.as_ref().and_then(|known| known.scale),
        })
    }

    /// The sums so far, for each arena; with weighting by tokens, of gradients times tokens.
    #[track_caller]
    pub fn sum<'t>(&self, tape: &'t Tape) -> Flat<'t> {
        // A loop, not a closure: a tape over another store is refused at the caller's line.
        let mut sums = Vec::with_capacity(self.sums.len());
        for &(arena, state) in &self.sums {
            sums.push((arena, tape.state(state)));
        }
        Flat::new(sums)
    }

    /// Takes the window's gradients, combined by the weighting, and leaves zeros. The verdict of an empty window is
    /// false. A run that takes a window shorter than its set length is refused ([`Pitfall::ViolatedWindow`]): see
    /// [`Accumulator::take_last`].
    ///
    /// A parameter that was absent from some micro-batches counts as zero in these; one that was absent from all of
    /// those recorded so far is absent.
    ///
    /// # Panics
    /// If no addition has been recorded: the additions tell which parameters are present.
    #[track_caller]
    pub fn take<'t>(&self, tape: &'t Tape) -> Grads<'t, S> {
        self.taken(tape, self.length.is_none())
    }

    /// As [`Accumulator::take`], for a window that may be short because the data has ended: the mean is over the
    /// micro-batches that are in.
    ///
    /// # Panics
    /// As [`Accumulator::take`].
    #[track_caller]
    pub fn take_last<'t>(&self, tape: &'t Tape) -> Grads<'t, S> {
        self.taken(tape, true)
    }

    #[track_caller]
    fn taken<'t>(&self, tape: &'t Tape, short: bool) -> Grads<'t, S> {
        let recorded = self.recorded().clone();
        let Recorded { present, scaler, half, from, .. } = recorded.expect("accumulate: record `add` before `take`");
        let weight = tape.state(self.weight);
        tape.event(Event::Window(self.window(), Action::Take { short }));
        if self.weighting == Weighting::Sum {
            let text =
                "what is taken is the sum of the micro-batches, and the step grows with their number; take their mean";
            tape.note(Pitfall::UndividedSum, Severity::Warning, text.into());
        }
        let sums = self.sum(tape);
        let mut result = None;
        let parameters = [("weighting", format!("{:?}", self.weighting))];
        let about = (ParamSet::default(), PassKind::TakeAccumulated);
        tape.pass_over("take_accumulated", &parameters, &sums.tensors(), about, || {
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
            for counter in [Some(self.weight), self.length.map(|(_, counter)| counter)].into_iter().flatten() {
                tape.assign(counter, tape.scalar(0.0, DType::U32));
            }
            let good = some.and(!tape.state(self.bad));
            tape.assign(self.bad, tape.scalar(0.0, DType::Bool));
            let outputs = flat.tensors().into_iter().chain([good]).collect();
            result = Some((flat, good));
            outputs
        });
        let (flat, good) = result.expect("the pass has run");
        from.into_iter().for_each(|mark| flat.tensors().into_iter().for_each(|x| tape.mark(x, mark)));
        let absent = self.params.iter().filter(|param| !present.contains(*param)).collect();
        let values = tape.arenas(&self.params);
        let weight = (self.weighting == Weighting::TokenWeighted).then_some(weight);
        let (verdict, generators, assigned) = (Some(good), vec![], vec![]);
        let history = History::born(tape, scaler, &present);
        history.borrow_mut().half |= half;
        let scale = PhantomData;
        Grads { tape, flat, values, present, absent, verdict, scaler, history, weight, generators, assigned, scale }
    }

    /// Notes lints about the accumulation of such a loss.
    #[track_caller]
    fn note(&self, grads: &Grads<'_, S>) {
        let (tape, flat) = (grads.tape, grads.flat.tensors());
        let from = [Mark::Recurrent, Mark::Attention].into_iter().filter(|mark| tape.comes_from(&flat, *mark));
        self.recorded().as_mut().expect("checked before").from.extend(from);
        if self.weighting == Weighting::Mean && tape.comes_from(&flat, Mark::TokenCount) {
            let text = "means over targets of which some are ignored are averaged as equals; weight them by tokens";
            tape.note(Pitfall::UnequalMicroBatches, Severity::Warning, text.into());
        }
        if tape.comes_from(&flat, Mark::BatchStatistics) {
            let text = "batch statistics of micro-batches are not those of the whole batch; use a norm without them";
            tape.note(Pitfall::BatchNormWithAccumulation, Severity::Lint, text.into());
        }
    }

    fn recorded(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
