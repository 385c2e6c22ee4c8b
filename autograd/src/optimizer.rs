//! The common part of optimizers: a pure update of parameters and state, gated by the verdict and by the presence of
//! gradients; and a step, which is that update plus assignment.

use crate::{
    Array, Tensor,
    grads::{Grads, Unscaled},
    lints::names,
    op::{Segments, Share},
    pass_state::Action,
    pitfall::{Pitfall, Severity},
    range::Range,
    recorded::PassKind,
    store::{Flat, Param, ParamSet, StateId, Store},
    tape::Tape,
};
use std::sync::Arc;

/// The arguments of an optimizer's rule, for one arena.
pub struct Rule<'t> {
    /// The arena.
    pub arena: StateId,
    /// The parameters, flat; this rank's part of them, if the optimizer's states are shared out. So are the gradients and
    /// the flat states.
    pub params: Tensor<'t>,
    /// Their gradients, flat; zero in the padding.
    pub grads: Tensor<'t>,
    /// A bound of the gradients' magnitudes, valid if the step is taken: that of a clip, if it is a number, else
    /// infinity. The square of a gradient may overflow if the bound exceeds the root of the type's largest number.
    pub largest: f64,
    /// The optimizer's states for this arena, in the order of [`OptimizerStates::of`].
    pub states: Vec<Tensor<'t>>,
    /// The segments of the whole arena, one per parameter: see [`Rule::spread`].
    pub segments: Arc<Segments>,
    /// The parameters, in the order of the segments.
    pub members: Vec<Param>,
    /// The number of updates that have been made before this one (u32 scalar).
    pub updates: Tensor<'t>,
    share: Option<Share>,
}

impl<'t> Rule<'t> {
    /// One value per segment, repeated over the segments, for each element of [`Rule::params`]; 0 in the padding.
    #[track_caller]
    pub fn spread(&self, per_segment: Tensor<'t>) -> Tensor<'t> {
        let whole = per_segment.segment_broadcast(&self.segments);
        self.share.map_or(whole, |share| share.of(whole))
    }
}

/// An optimizer's states in a store: the parameters it steps, a counter of updates, and for each of their arenas some
/// vectors, as long as the arena or with one element per segment. All start at zero.
#[derive(Clone, Debug)]
pub struct OptimizerStates {
    params: ParamSet,
    counter: StateId,
    per_arena: Vec<(StateId, Vec<StateId>)>,
}

impl OptimizerStates {
    /// Declares `<name>/updates`, and for each arena `<name>/<flat>/<dtype>` and `<name>/<segmental>/<dtype>`.
    ///
    /// # Panics
    /// If one of the names is taken; if the store shares out what optimizers keep ([`Store::shard`]), since a rule may
    /// need whole parameters. One that does not declares [`OptimizerStates::elementwise`].
    #[track_caller]
    pub fn declare(store: &mut Store, params: &ParamSet, name: &str, flat: &[&str], segmental: &[&str]) -> Self {
        let ranks = store.shards();
        assert!(ranks == 1, "{name}: its rule needs whole parameters, so {ranks} ranks cannot share out its states");
        Self::elementwise(store, params, name, flat, segmental)
    }

    /// As [`OptimizerStates::declare`], for a rule that computes each element from the same element of parameters,
    /// gradients and flat states, and from values per segment by [`Rule::spread`] alone. The ranks of [`Store::shard`]
    /// share its flat states out.
    ///
    /// # Panics
    /// If one of the names is taken.
    #[track_caller]
    pub fn elementwise(store: &mut Store, params: &ParamSet, name: &str, flat: &[&str], segmental: &[&str]) -> Self {
        let arenas = params.arenas(store.layout());
        let mut per_arena: Vec<(StateId, Vec<StateId>)> = arenas.into_iter().map(|arena| (arena, vec![])).collect();
        // Loops, not closures: a name that is taken is refused at the caller's line.
        let mut declared = vec![];
        for kind in flat {
            declared.push(store.like_shares(&format!("{name}/{kind}"), params));
        }
        for kind in segmental {
            declared.push(store.like_segments(&format!("{name}/{kind}"), params));
        }
        for kind in declared {
            per_arena.iter_mut().zip(kind).for_each(|((_, states), (_, state))| states.push(state));
        }
        let counter = store.state(&format!("{name}/updates"), &Array::new([], vec![0u32]));
        Self { params: params.clone(), counter, per_arena }
    }

    /// The whole value of one of the states, from all ranks if they share it out.
    ///
    /// # Panics
    /// If other ranks than the tape's share it out.
    #[track_caller]
    pub fn whole<'t>(&self, tape: &'t Tape, state: StateId) -> Tensor<'t> {
        self.check_ranks(tape);
        let (value, share) = (tape.state(state), tape.layout.state(state).share);
        share.map_or(value, |share| share.whole(value))
    }

    /// Refuses a tape of another number of ranks than share the states out.
    #[track_caller]
    fn check_ranks(&self, tape: &Tape) {
        let here = tape.ranks();
        for decl in self.per_arena.iter().flat_map(|(_, states)| states).map(|state| tape.layout.state(*state)) {
            let Some(Share { ranks, .. }) = decl.share.filter(|share| share.ranks != here) else { continue };
            panic!("{:?} is shared out among {ranks} ranks, and here are {here}{}", decl.name, tape.recorded_at());
        }
    }

    /// The way an arena is shared out, if it is.
    #[track_caller]
    fn share(&self, tape: &Tape, arena: StateId) -> Option<Share> {
        self.of(arena).into_iter().flatten().find_map(|state| tape.layout.state(*state).share)
    }

    /// The parameters that the optimizer steps. It leaves others alone, whatever gradients it is given.
    pub fn params(&self) -> &ParamSet {
        &self.params
    }

    /// The state that counts updates made (u32 scalar).
    pub fn counter(&self) -> StateId {
        self.counter
    }

    /// The states of an arena: the flat ones, then those per segment, as declared. `None` if none of the optimizer's
    /// parameters is there.
    pub fn of(&self, arena: StateId) -> Option<&[StateId]> {
        self.per_arena.iter().find(|(a, _)| *a == arena).map(|(_, states)| &states[..])
    }
}

/// A change of an optimizer's setting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tuning {
    /// All learning rates are multiplied by this.
    Rate(f64),
    /// All learning rates rise over this many updates, in place of any other warm-up.
    Warmup(u32),
    /// Learning rates stay at their peak once they have reached it.
    Hold,
    /// Momentum, or the decay rate of the mean of gradients.
    Momentum(f64),
    /// Weight decay.
    Decay(f64),
    /// The number that is added to a divisor.
    Epsilon(f64),
}

/// The step of an optimizer on a quadratic loss.
#[derive(Clone, Debug)]
pub struct Preconditioner<'t> {
    /// For each arena, the divisors of the elements of a gradient; 1 for an arena that is missing.
    pub divisors: Flat<'t>,
    /// The limit of stability: the product of the learning rate and an eigenvalue of the Hessian, divided by the
    /// divisors, beyond which steps along its eigenvector grow. It is 2 for plain gradient descent.
    pub limit: f64,
}

/// An optimizer over the parameters of a store.
///
/// Implement `rule`, the plain mathematics for whole arenas; `update` and `step` follow.
pub trait Optimizer {
    /// The optimizer's name, which is the scope of the nodes that it records.
    fn name(&self) -> &'static str;

    /// The optimizer's states in the store.
    fn states(&self) -> &OptimizerStates;

    /// The printed hyper-parameters.
    fn parameters(&self) -> Vec<(&'static str, String)>;

    /// Lints about the settings, noted in each program that steps with the optimizer.
    fn lints(&self) -> Vec<(Pitfall, String)> {
        vec![]
    }

    /// The learning rate of the update that follows this many updates; `None` if only a run can tell, or if it is not
    /// implemented.
    fn rate(&self, _updates: u32) -> Option<f64> {
        None
    }

    /// The step on a quadratic loss, with the states as they are after at least one update, without weight decay.
    /// `None` if it is not implemented.
    fn preconditioner<'t>(&self, _tape: &'t Tape) -> Option<Preconditioner<'t>> {
        None
    }

    /// Changes a setting before anything is recorded, to repeat a run with this one difference. True if there is such a
    /// setting.
    fn tune(&mut self, _tuning: Tuning) -> bool {
        false
    }

    /// The same rule over other parameters, with states of its own; `None` if it is not implemented.
    fn over(&self, _store: &mut Store, _params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        None
    }

    /// The learning rates that only a run can judge: scalars that are states, or that depend on states in a way that only
    /// the tape knows.
    fn rates<'t>(&self, _tape: &'t Tape) -> Vec<Tensor<'t>> {
        vec![]
    }

    /// Adds to the verdict that the [`Optimizer::rates`] are finite and at least 0: any other rate would reverse the
    /// step, or spoil all parameters. The session reports it ([`crate::Error::Late`]). [`Optimizer::step`] does this by
    /// itself.
    ///
    /// Taps: `<optimizer>/lr`, for each rate.
    #[track_caller]
    fn judge<'t>(&self, mut grads: Grads<'t, Unscaled>) -> Grads<'t, Unscaled> {
        for rate in self.rates(grads.tape()) {
            grads.coefficient(self.name(), "lr", rate.into(), Range::Rate);
        }
        grads
    }

    /// New parameters and new states of one arena. Padding that is zero must stay zero.
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>);

    /// The present values of the optimizer's states for the arenas of a gradient, and of its counter.
    fn current<'t>(&self, tape: &'t Tape, grads: &Flat<'t>) -> Flat<'t> {
        let states = grads.parts().iter().filter_map(|(arena, _)| self.states().of(*arena)).flatten().copied();
        Flat::new(states.chain([self.states().counter]).map(|state| (state, tape.state(state))).collect())
    }

    /// The pure update: parameters, gradients and states in, parameters and states out. Differentiable in all of them.
    ///
    /// If the verdict is false, everything stays as it was, the counter too. A parameter without a gradient keeps its
    /// value and its state, and so does one that the optimizer does not step.
    ///
    /// # Panics
    /// If a value is missing for an arena of the gradients, or for one of the optimizer's states; if other ranks than the
    /// tape's share the states out ([`Store::shard`]).
    #[track_caller]
    fn update<'t>(&self, params: &Flat<'t>, grads: &Grads<'t, Unscaled>, states: &Flat<'t>) -> (Flat<'t>, Flat<'t>) {
        let tape = grads.tape();
        tape.layout.state(self.states().counter);
        self.states().check_ranks(tape);
        let verdict = grads.verdict();
        let gate = |new: Tensor<'t>, old: Tensor<'t>| verdict.map_or(new, |verdict| verdict.select(new, old));
        let updates = given(tape, states, self.states().counter);
        let largest = grads.history.borrow().largest;
        let (mut new_params, mut new_states) = (vec![], vec![]);
        for &(arena, g) in grads.flat().parts() {
            let p = given(tape, params, arena);
            let Some(ids) = self.states().of(arena) else {
                new_params.push((arena, p));
                continue;
            };
            let mut old = Vec::with_capacity(ids.len());
            for id in ids {
                old.push(given(tape, states, *id));
            }
            let present = Presence::of(grads, &self.states().params, arena);
            let share = self.states().share(tape, arena);
            let own = |whole: Tensor<'t>| share.map_or(whole, |share| share.of(whole));
            let (new, new_old) = self.rule(Rule {
                arena,
                params: own(p),
                grads: own(g),
                largest,
                states: old.clone(),
                segments: present.segments.clone(),
                members: tape.layout.members(arena),
                updates,
                share,
            });
            let new = share.map_or(new, |share| share.whole(new));
            let new = gate(present.keep(new, p, None), p);
            tape.note_update(new, p, grads.present().iter().filter(|p| self.states().params.contains(*p)).collect());
            new_params.push((arena, new));
            for ((id, old), new) in ids.iter().zip(old).zip(new_old) {
                let share = tape.layout.state(*id).share;
                new_states.push((*id, gate(present.keep(new, old, share), old)));
            }
        }
        new_states.push((self.states().counter, gate(updates + 1.0, updates)));
        (Flat::new(new_params), Flat::new(new_states))
    }

    /// Updates the parameters and the optimizer's state, and consumes the gradients. Generators of gradient noise
    /// advance with the step, and states that [`Grads::assign`] names get their values. If a learning rate is
    /// non-finite or below 0, the step is skipped ([`Optimizer::judge`]).
    ///
    /// # Panics
    /// If the step is a known mistake: [`Pitfall::PassBeforeBackward`] if no gradient is present,
    /// [`Pitfall::ClipBeforeFiniteCheck`] if f16 took part in the gradients and nothing has checked them,
    /// [`Pitfall::ScalerBeforeStep`] if the loss scale has been updated since they were unscaled,
    /// [`Pitfall::StepBeforeAllReduce`] if they were never all-reduced. As [`Optimizer::update`].
    #[track_caller]
    fn step(&self, grads: Grads<'_, Unscaled>) {
        let grads = self.judge(grads);
        let tape = grads.tape();
        tape.layout.state(self.states().counter);
        self.states().check_ranks(tape);
        grads.apply(Action::Step);
        grads.check_origin();
        tape.note_step(&grads, self.name());
        for (pitfall, message) in self.lints() {
            tape.note(pitfall, pitfall.severity(), message);
        }
        let own = |param: &Param| self.states().params.contains(*param);
        let still: Vec<Param> = grads.absent().iter().filter(own).collect();
        if !still.is_empty() {
            let whose = names(&tape.layout, still);
            let text = format!("no gradient reaches {whose}, which {} steps; freeze it, or leave it out", self.name());
            tape.note(Pitfall::MissingGradient, Severity::Warning, text);
        }
        let stepped = grads.present().iter().filter(own).collect();
        tape.pass_over(self.name(), &self.parameters(), &grads.flat().tensors(), (stepped, PassKind::Step), || {
            let params = grads.flat().map(|arena, _| tape.state(arena));
            let (params, states) = self.update(&params, &grads, &self.current(tape, grads.flat()));
            let all = || params.parts().iter().chain(states.parts());
            all().for_each(|&(state, value)| tape.assign(state, value));
            for (generator, drawn) in &grads.generators {
                generator.move_past(*drawn, grads.verdict());
            }
            for &(state, value) in &grads.assigned {
                tape.assign(state, grads.verdict().map_or(value, |taken| taken.select(value, tape.state(state))));
            }
            all().map(|(_, value)| *value).collect()
        });
    }
}

/// The value that an update is given for a state.
#[track_caller]
fn given<'t>(tape: &'t Tape, values: &Flat<'t>, state: StateId) -> Tensor<'t> {
    let Some(value) = values.get(state) else { panic!("update: no value for {:?}", tape.layout.state(state).name) };
    tape.fitting("update:", state, value);
    value
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn states(&self) -> &OptimizerStates {
        (**self).states()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        (**self).parameters()
    }

    fn lints(&self) -> Vec<(Pitfall, String)> {
        (**self).lints()
    }

    fn rate(&self, updates: u32) -> Option<f64> {
        (**self).rate(updates)
    }

    fn preconditioner<'t>(&self, tape: &'t Tape) -> Option<Preconditioner<'t>> {
        (**self).preconditioner(tape)
    }

    fn tune(&mut self, tuning: Tuning) -> bool {
        (**self).tune(tuning)
    }

    fn over(&self, store: &mut Store, params: &ParamSet) -> Option<Box<dyn Optimizer>> {
        (**self).over(store, params)
    }

    fn rates<'t>(&self, tape: &'t Tape) -> Vec<Tensor<'t>> {
        (**self).rates(tape)
    }

    #[track_caller]
    fn rule<'t>(&self, rule: Rule<'t>) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        (**self).rule(rule)
    }
}

impl Grads<'_, Unscaled> {
    /// Refuses a step of unchecked f16 gradients, and one after an update of the loss scale that they were divided by.
    #[track_caller]
    fn check_origin(&self) {
        let history = self.history.borrow();
        if history.half && !history.judged {
            self.tape.refuse(Pitfall::ClipBeforeFiniteCheck);
        }
        let updated = |(scale, value)| self.tape.state(scale).id != value;
        if history.unscaled_by.is_some_and(updated) {
            self.tape.refuse(Pitfall::ScalerBeforeStep);
        }
    }
}

/// The segments of an arena that an optimizer steps: those of its parameters that have a gradient.
struct Presence<'t> {
    /// Bool per segment; `None` if all are present.
    mask: Option<Tensor<'t>>,
    segments: Arc<Segments>,
}

impl<'t> Presence<'t> {
    fn of(grads: &Grads<'t, Unscaled>, params: &ParamSet, arena: StateId) -> Self {
        let layout = &grads.tape.layout;
        let present: Vec<bool> =
            layout.members(arena).iter().map(|&p| grads.present.contains(p) && params.contains(p)).collect();
        let mask = present.contains(&false).then(|| {
            let table: Vec<f64> = present.iter().map(|&p| p as u8 as f64).collect();
            grads.tape.table(&table, crate::DType::Bool)
        });
        Self { mask, segments: layout.segments(arena) }
    }

    /// `new` where a gradient is present, `old` elsewhere; for values per element, which ranks may share out, or per
    /// segment.
    #[track_caller]
    fn keep(&self, new: Tensor<'t>, old: Tensor<'t>, share: Option<Share>) -> Tensor<'t> {
        let Some(mask) = self.mask else { return new };
        let per_segment = share.is_none() && *new.shape() == [self.segments.ranges.len()];
        let mask = if per_segment { mask } else { mask.segment_broadcast(&self.segments) };
        share.map_or(mask, |share| share.of(mask)).select(new, old)
    }
}
