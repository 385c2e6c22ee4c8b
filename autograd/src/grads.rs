//! Gradients of parameters on their way from the loss to the optimizer.
//!
//! A [`Grads`] holds one flat vector per arena and the set of parameters that are present in it. Its type says if it
//! still carries a loss scale: passes with thresholds exist only for [`Unscaled`] gradients.

use crate::{
    DType, Tensor,
    node::NodeId,
    op::{Place, Segments},
    pass_state::{Action, Allowed, PassConfig, PassState, Weighting},
    pitfall::Pitfall,
    random::Rng,
    range::Range,
    scaler::LossScaler,
    store::{Flat, Param, ParamSet, StateId},
    tape::Tape,
    tape::versions::Read,
};
use std::{cell::RefCell, collections::BTreeMap, marker::PhantomData, sync::Arc};

/// Marks gradients multiplied by a loss scale.
#[derive(Clone, Copy, Debug)]
pub enum Scaled {}

/// Marks gradients in units of the loss itself.
#[derive(Clone, Copy, Debug)]
pub enum Unscaled {}

/// The gradient of a loss with respect to a set of parameters.
///
/// ```
/// # use wgrad::{Grads, LossScaler, Optimizer, Scaled};
/// fn update(g: Grads<'_, Scaled>, scaler: &LossScaler, optimizer: &dyn Optimizer) {
///     optimizer.step(g.unscale(scaler).clip_by_global_norm(1.0));
/// }
/// ```
///
/// Some mistakes do not compile. [`crate::Pitfall::PassAfterStep`], a pass after the step:
///
/// ```compile_fail,E0382
/// # use wgrad::{Grads, Optimizer};
/// fn update(g: Grads<'_>, optimizer: &dyn Optimizer) {
///     optimizer.step(g);
///     let _ = g.clip_by_global_norm(1.0);
/// }
/// ```
///
/// [`crate::Pitfall::ClipBeforeUnscale`], a clip of scaled gradients:
///
/// ```compile_fail,E0599
/// # use wgrad::{Grads, Scaled};
/// fn update(g: Grads<'_, Scaled>) {
///     let _ = g.clip_by_global_norm(1.0);
/// }
/// ```
///
/// [`crate::Pitfall::NothingToUnscale`], unscaling twice:
///
/// ```compile_fail,E0599
/// # use wgrad::{Grads, LossScaler, Scaled};
/// fn update(g: Grads<'_, Scaled>, scaler: &LossScaler) {
///     let _ = g.unscale(scaler).unscale(scaler);
/// }
/// ```
///
/// [`crate::Pitfall::StepPastScaler`], a step past the scaler:
///
/// ```compile_fail,E0308
/// # use wgrad::{Grads, Optimizer, Scaled};
/// fn update(g: Grads<'_, Scaled>, optimizer: &dyn Optimizer) {
///     optimizer.step(g);
/// }
/// ```
#[derive(Clone)]
#[must_use = "gradients do nothing until an optimizer steps with them"]
pub struct Grads<'t, S = Unscaled> {
    pub(crate) tape: &'t Tape,
    pub(crate) flat: Flat<'t>,
    /// The arenas, in which the present parameters have the values that the loss read.
    pub(crate) values: Flat<'t>,
    pub(crate) present: ParamSet,
    pub(crate) absent: ParamSet,
    /// Bool scalar: true if the step may be taken.
    pub(crate) verdict: Option<Tensor<'t>>,
    pub(crate) scaler: LossScaler,
    /// The passes that the gradients have been through.
    pub(crate) history: RefCell<History>,
    /// States of the caller, with the values that a step assigns to them.
    pub(crate) assigned: Vec<(StateId, Tensor<'t>)>,
    /// The number of tokens that the gradient is a mean over (scalar), if it is weighted by tokens.
    pub(crate) weight: Option<Tensor<'t>>,
    /// The generators that a step advances, each with the counter at which its numbers were drawn (u32 scalar).
    pub(crate) generators: Vec<(Rng, Tensor<'t>)>,
    pub(crate) scale: PhantomData<S>,
}

/// The origin of gradients, and their passes.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub state: PassState,
    /// All actions, in order. When gradients are added up, the rules check the actions of each.
    pub done: Vec<Action>,
    /// The loss, if the gradients are of a single one.
    pub loss: Option<NodeId>,
    /// True if f16 took part in them.
    pub half: bool,
    /// True if the verdict includes a check of their values.
    pub judged: bool,
    /// The dynamic scale that they were divided by, and its value then.
    pub unscaled_by: Option<(StateId, NodeId)>,
    /// The coefficients that the verdict is about.
    pub coefficients: Vec<(NodeId, Range)>,
    /// A bound of all magnitudes, valid if the verdict is true.
    pub largest: f64,
}

impl History {
    /// The history of new gradients. It has a backward unless the loss reaches no parameter.
    pub fn born(tape: &Tape, scaler: LossScaler, present: &ParamSet) -> RefCell<Self> {
        let scaler = scaler != LossScaler::none();
        let config = PassConfig { micro_batches: 1, ranks: tape.ranks(), scaler, weighting: Some(Weighting::Mean) };
        let half = tape.inner.borrow().here.half;
        let (state, done, coefficients, largest) = (PassState::new(config), vec![], vec![], f64::INFINITY);
        let (loss, judged, unscaled_by) = (None, false, None);
        let mut history = Self { state, done, loss, half, judged, unscaled_by, coefficients, largest };
        if !present.is_empty() {
            history.apply(Action::Backward).expect("the first backward is in order");
        }
        RefCell::new(history)
    }

    fn apply(&mut self, action: Action) -> Result<(), Pitfall> {
        self.done.push(action);
        self.state.apply(action)
    }
}

impl<'t, S> Grads<'t, S> {
    /// Sweeps from a loss to the parameters of a set, and gathers their gradients into flat vectors.
    #[track_caller]
    pub(crate) fn of(loss: Tensor<'t>, params: &ParamSet) -> Self {
        let tape = loss.tape();
        tape.mark_loss(loss);
        let paths = tape.paths_to_params(loss);
        let reads = tape.reads(loss, params, &paths);
        let found = loss.grad_along(&reads.iter().map(|read| read.stand).collect::<Vec<_>>(), &paths);
        // If a loss reads an arena through several of its values, each of them has a part of the gradient.
        let mut parts: BTreeMap<Param, Vec<(&Read<'t>, Tensor<'t>)>> = BTreeMap::new();
        for (read, part) in reads.iter().zip(found).filter_map(|(read, part)| Some((read, part?))) {
            let known = parts.entry(read.param).or_default();
            if let Some((other, _)) =
                known.iter().find(|(other, _)| !tape.is_same_in(read.param, read.version, other.version))
            {
                tape.refuse_two_values(other, read);
            }
            if known.iter().all(|(other, _)| other.stand.id != read.stand.id) {
                known.push((read, part));
            }
        }
        let present: ParamSet = parts.keys().copied().collect();
        let absent: ParamSet = params.iter().filter(|param| !present.contains(*param)).collect();
        tape.inner.borrow_mut().training.unreached.extend(absent.iter());
        let gather = |arena| {
            let decl = tape.layout.state(arena);
            let mut places = vec![];
            for (param, parts) in parts.iter().filter(|(param, _)| tape.layout.param(**param).arena == arena) {
                let (start, len) = tape.layout.place(*param);
                let own =
                    |(_, part): &(_, Tensor<'t>)| if part.numel() == len { *part } else { part.slice(0, start, len) };
                let total = parts.iter().map(own).reduce(|sum, part| sum + part).expect("it is present");
                places.push((Place { start, step: 1 }, total));
            }
            let len = decl.shape.numel();
            if places.is_empty() {
                return (arena, tape.full([len], 0.0, decl.dtype));
            }
            (arena, Tensor::assemble(&places, 0, len))
        };
        let scope = tape.child_scope(tape.current_scope(), "backward", None);
        let arenas = params.arenas(&tape.layout);
        let flat = tape.at_caller(|| tape.in_scope(scope, || Flat::new(arenas.iter().map(|a| gather(*a)).collect())));
        let values = Flat::new(arenas.iter().map(|arena| (*arena, tape.as_read(*arena, &parts))).collect());
        let scaler = LossScaler::none();
        let (verdict, weight, generators, assigned) = (None, None, vec![], vec![]);
        let history = History::born(tape, scaler, &present);
        history.borrow_mut().loss = Some(loss.id);
        let scale = PhantomData;
        Self { tape, flat, values, present, absent, verdict, scaler, history, assigned, weight, generators, scale }
    }

    /// The tape.
    pub fn tape(&self) -> &'t Tape {
        self.tape
    }

    /// The flat gradient of each arena; zero where a parameter is absent, and between segments.
    pub fn flat(&self) -> &Flat<'t> {
        &self.flat
    }

    /// The gradient of one parameter, in its shape; `None` if it is absent.
    #[track_caller]
    pub fn get(&self, param: Param) -> Option<Tensor<'t>> {
        let decl = self.tape.layout.param(param);
        let flat = self.flat.get(decl.arena).filter(|_| self.present.contains(param))?;
        Some(flat.slice(0, decl.offset, decl.shape.numel()).reshape(&decl.shape))
    }

    /// The parameters that have a gradient.
    pub fn present(&self) -> &ParamSet {
        &self.present
    }

    /// The parameters asked for that the loss does not reach. Absent is not zero: an optimizer leaves them alone.
    pub fn absent(&self) -> &ParamSet {
        &self.absent
    }

    /// Bool scalar: true if the step may be taken; `None` before any check.
    pub fn verdict(&self) -> Option<Tensor<'t>> {
        self.verdict
    }

    /// The Euclidean norm over all present gradients, in the widest of their types. Finite wherever the true norm is.
    #[track_caller]
    pub fn norm(&self) -> Tensor<'t> {
        self.p_norm(2.0)
    }

    /// The Euclidean norm of each present parameter's gradient, in the order of declaration, as one f32 vector.
    #[track_caller]
    pub fn segment_norms(&self) -> Tensor<'t> {
        self.norms_of(&self.flat)
    }

    /// The norm of each present parameter's part of some flat vectors.
    #[track_caller]
    pub(crate) fn norms_of(&self, flat: &Flat<'t>) -> Tensor<'t> {
        let layout = &self.tape.layout;
        // Arena by arena; then gathered in the order of declaration, if that differs.
        let (mut norms, mut order) = (vec![], vec![]);
        for &(arena, g) in flat.parts() {
            let members = layout.members(arena).into_iter().filter(|param| self.present.contains(*param));
            let members: Vec<Param> = members.collect();
            let range = |param: &Param| (layout.param(*param).offset, layout.param(*param).shape.numel());
            let segments = Segments { total: g.numel(), ranges: members.iter().map(range).collect() };
            norms.push(g.segment_norm(&Arc::new(segments)).cast(DType::F32));
            order.extend(members);
        }
        if norms.is_empty() {
            return self.tape.full([0], 0.0, DType::F32);
        }
        let all = Tensor::concat(&norms, 0);
        if order.is_sorted() {
            return all;
        }
        let mut places: Vec<usize> = (0..order.len()).collect();
        places.sort_unstable_by_key(|place| order[*place]);
        let places: Vec<f64> = places.into_iter().map(|place| place as f64).collect();
        all.gather(self.tape.table(&places, DType::U32), 0)
    }

    /// Declares that nonlinear passes are meant to work on this micro-batch alone, before it is accumulated: to clip
    /// each part, as in differentially private training, is not to clip the whole. Without this declaration such
    /// gradients cannot be accumulated ([`Pitfall::PassOnPartialWindow`]).
    pub fn per_micro_batch(self) -> Self {
        self.allow(|allowed| allowed.per_micro_batch = true)
    }

    /// Declares that clips before the all-reduce are meant to work on this replica's gradients alone: a mean of clips
    /// is not the clip of the mean. Without this declaration they are refused ([`Pitfall::ClipBeforeAllReduce`]).
    pub fn local_clip(self) -> Self {
        self.allow(|allowed| allowed.local_clip = true)
    }

    /// Declares that the loss may reach none of the parameters: then passes change nothing, and optimizers leave
    /// everything alone. Without this declaration both are refused ([`Pitfall::PassBeforeBackward`]).
    pub fn even_if_absent(self) -> Self {
        if self.present.is_empty() {
            let mut history = self.history.borrow_mut();
            // The rules ask for a backward.
            if history.done.is_empty() {
                history.apply(Action::Backward).expect("the first backward is in order");
            }
        }
        self
    }

    fn allow(mut self, name: impl FnOnce(&mut Allowed)) -> Self {
        let history = self.history.get_mut();
        let mut allowed = history.state.allowed();
        name(&mut allowed);
        history.state = history.state.clone().allowing(allowed);
        self
    }

    /// Notes an action on the gradients.
    ///
    /// # Panics
    /// If the action is a known mistake.
    #[track_caller]
    pub(crate) fn apply(&self, action: Action) {
        let before = self.history.borrow().state.found();
        let refused = self.history.borrow_mut().apply(action);
        if let Err(pitfall) = refused {
            self.tape.refuse(pitfall);
        }
        self.note_found(&before);
    }

    /// Adds a check of the gradients' values to the verdict.
    #[track_caller]
    pub(crate) fn judge(&mut self, finite: Tensor<'t>) {
        self.history.get_mut().judged = true;
        self.and_verdict(finite);
    }

    /// Adds another condition to the verdict.
    #[track_caller]
    pub(crate) fn and_verdict(&mut self, condition: Tensor<'t>) {
        self.verdict = Some(self.verdict.map_or(condition, |verdict| verdict.and(condition)));
    }

    /// Assigns a value to a state of the caller together with the step: the assignment is skipped if the step is, by
    /// its final verdict. Until the step, reads give the old value. An average that is assigned by [`Tape::assign`]
    /// instead takes in the NaN of a skipped step, and keeps it ([`Pitfall::StateOfSkippedStep`]).
    ///
    /// ```
    /// # use wgrad::{Grads, Optimizer, StateId};
    /// fn update(g: Grads<'_>, average: StateId, optimizer: &dyn Optimizer) {
    ///     let g = g.check_finite();
    ///     let mean = g.tape().state(average) * 0.9 + g.norm() * 0.1;
    ///     optimizer.step(g.assign(average, mean).clip_by_global_norm(1.0));
    /// }
    /// ```
    ///
    /// # Panics
    /// If the shape or type is not the state's.
    #[track_caller]
    pub fn assign(mut self, state: StateId, value: Tensor<'t>) -> Self {
        self.tape.fitting("assign to", state, value);
        self.assigned.retain(|(known, _)| *known != state);
        self.assigned.push((state, value));
        self
    }

    /// The same gradients with other values, of any magnitude.
    pub(crate) fn with_flat(mut self, flat: Flat<'t>) -> Self {
        self.history.get_mut().largest = f64::INFINITY;
        Self { flat, ..self }
    }

    /// The same gradients, with a bound of all magnitudes.
    pub(crate) fn within(mut self, largest: f64) -> Self {
        self.history.get_mut().largest = largest;
        self
    }
}
