//! The state of a set of gradients: the passes that have run, and those that may follow.
//!
//! A gradient set carries tags: the number of micro-batches that are in its window, and whether it is reduced over the
//! replicas, carries a loss scale, has been checked, and has been consumed by a step. Each [`Action`] needs some of
//! them and changes others; [`PassState::apply`] is the one place that knows the rules.

use crate::pitfall::{Pitfall, Pitfall::*, Severity};
use std::collections::BTreeMap;

/// The combination of micro-batches' gradients.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Weighting {
    /// The mean: `(1/K) sum_k g_k`, where K is the number of micro-batches, even if the window is cut short.
    #[default]
    Mean,
    /// `sum_k n_k g_k / sum_k n_k`: for gradients of means over n_k tokens, the gradient of the mean over all tokens.
    TokenWeighted,
    /// The sum.
    Sum,
}

/// The settings of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassConfig {
    /// Micro-batches per window.
    pub micro_batches: usize,
    /// Replicas that train together.
    pub ranks: usize,
    /// True if a loss scaler is in use, static or dynamic.
    pub scaler: bool,
    /// The weighting of micro-batches; `None` if it is not specified.
    pub weighting: Option<Weighting>,
}

/// An action on gradients, or one that depends on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Adds the gradient of one micro-batch.
    Backward,
    /// Takes the mean over the replicas.
    AllReduce,
    /// Divides by the loss scale.
    Unscale,
    /// Checks that every element is finite.
    FiniteCheck,
    /// Reduces the verdict over all replicas.
    ReduceVerdict,
    /// Adds noise.
    Noise {
        /// True if each rank draws its own noise.
        rank_key: bool,
    },
    /// Subtracts means.
    Centralize,
    /// Clips adaptively, by the parameters' norms.
    Agc,
    /// Clips by a norm.
    ClipNorm,
    /// Clips each element.
    ClipValue,
    /// Changes gradients in a way that is not known: a pass of the caller's own.
    Own,
    /// Takes a window's gradients out of their accumulator, which leaves it empty.
    Take {
        /// True if the window may be short: the data has ended, or the length of windows is not specified.
        short: bool,
    },
    /// Updates the parameters if the verdict allows it.
    Step,
    /// Updates the parameters whatever the verdict.
    RawStep,
    /// A step that the verdict has forbidden.
    Skip,
    /// Empties the gradients.
    Zero,
    /// Grows the loss scale or backs off.
    ScalerUpdate,
    /// Advances the schedule.
    Tick {
        /// True if it waits for a successful step.
        gated: bool,
    },
    /// Shows the gradients.
    Probe,
    /// Clips within a hook of a parameter, and so in every backward.
    LeafHookClip,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Replica {
    Local,
    Reduced,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    Unchecked,
    /// The verdict of one replica, or of all.
    Verdict(Replica),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Consumed {
    No,
    ByStep,
    BySkip,
}

/// The tags of the gradients of one window.
#[derive(Clone, Debug)]
struct Tags {
    /// The number of micro-batches that are in.
    window: usize,
    replica: Replica,
    scaled: bool,
    check: Check,
    consumed: Consumed,
    /// The number of all-reduces that the gradients went through.
    reduces: usize,
    /// Clipped by norm or adaptively.
    clipped: bool,
    /// Clipped by value.
    clamped: bool,
}

impl Tags {
    /// The tags of empty gradients.
    fn fresh(config: &PassConfig) -> Self {
        Self {
            window: 0,
            replica: config.born(),
            scaled: config.scaler,
            check: Check::Unchecked,
            consumed: Consumed::No,
            reduces: 0,
            clipped: false,
            clamped: false,
        }
    }
}

impl PassConfig {
    /// Gradients of a single replica are born reduced.
    fn born(&self) -> Replica {
        if self.ranks > 1 { Replica::Local } else { Replica::Reduced }
    }
}

/// The run-time part of the rules for gradient passes.
///
/// ```
/// use wgrad::{Action, PassConfig, PassState, Pitfall, Weighting};
/// let config = PassConfig { micro_batches: 2, ranks: 1, scaler: false, weighting: Some(Weighting::Mean) };
/// let mut state = PassState::new(config);
/// assert_eq!(state.apply(Action::Backward), Ok(()));
/// assert_eq!(state.apply(Action::ClipNorm), Err(Pitfall::PassOnPartialWindow));
/// ```
#[derive(Clone, Debug)]
pub struct PassState {
    config: PassConfig,
    tags: Tags,
    /// True if a step has been made since the schedule's last tick.
    stepped: bool,
    norm_clips: usize,
    value_clips: usize,
    found: BTreeMap<Pitfall, Severity>,
    /// The first error of the action that is being applied.
    refused: Option<Pitfall>,
    allowed: Allowed,
}

/// Deviations from the rules, which are mistakes unless they are declared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Allowed {
    /// Nonlinear passes over a part of a window.
    pub per_micro_batch: bool,
    /// Clips of one replica's gradients.
    pub local_clip: bool,
}

impl PassState {
    /// The state before the first backward.
    pub fn new(config: PassConfig) -> Self {
        let mut state = Self {
            tags: Tags::fresh(&config),
            config,
            stepped: false,
            norm_clips: 0,
            value_clips: 0,
            found: BTreeMap::new(),
            refused: None,
            allowed: Allowed::default(),
        };
        match config.weighting {
            None => state.report_if(config.micro_batches > 1, UndividedSum),
            Some(Weighting::Sum) => state.report_as(config.micro_batches > 1, UndividedSum, Severity::Warning),
            Some(Weighting::Mean | Weighting::TokenWeighted) => {}
        }
        state
    }

    /// The same state with these deviations allowed.
    pub(crate) fn allowing(self, allowed: Allowed) -> Self {
        Self { allowed, ..self }
    }

    /// The deviations that are allowed.
    pub(crate) fn allowed(&self) -> Allowed {
        self.allowed
    }

    /// The same state with this many micro-batches in the window already.
    pub(crate) fn resumed(mut self, micro_batches: usize) -> Self {
        self.tags.window = micro_batches;
        self
    }

    /// True if the values have been checked for non-finite ones.
    pub(crate) fn is_checked(&self) -> bool {
        self.tags.check != Check::Unchecked
    }

    /// Applies actions in order.
    ///
    /// # Errors
    /// The pitfall of the first action that is refused.
    pub(crate) fn after(mut self, actions: &[Action]) -> Result<Self, Pitfall> {
        actions.iter().try_for_each(|action| self.apply(*action))?;
        Ok(self)
    }

    /// The settings.
    pub fn config(&self) -> &PassConfig {
        &self.config
    }

    /// Every pitfall met so far, with the severity that it had.
    pub fn found(&self) -> BTreeMap<Pitfall, Severity> {
        let mut found = self.found.clone();
        if self.value_clips > 0 && self.norm_clips == 0 {
            found.insert(ClipByValueAlone, ClipByValueAlone.severity());
        }
        found
    }

    /// Applies an action. A pitfall does not stop it: the state is then the one that the action really leaves.
    ///
    /// # Errors
    /// The first pitfall of severity [`Severity::Error`] that the action runs into. Lesser ones are only noted, for
    /// [`PassState::found`].
    pub fn apply(&mut self, action: Action) -> Result<(), Pitfall> {
        self.refused = None;
        match action {
            Action::Backward => self.backward(),
            Action::Zero => self.zero(),
            Action::AllReduce => self.all_reduce(),
            Action::Unscale => self.unscale(),
            Action::FiniteCheck => self.finite_check(),
            Action::ReduceVerdict => {
                if let Check::Verdict(of) = &mut self.tags.check {
                    *of = Replica::Reduced;
                }
            }
            Action::Centralize => drop(self.usable()),
            Action::Noise { .. } | Action::Agc | Action::ClipNorm | Action::ClipValue | Action::Own => {
                self.nonlinear(action)
            }
            Action::Take { short } => self.take(short),
            Action::Step | Action::RawStep | Action::Skip => self.step(action),
            Action::ScalerUpdate => {
                self.report_if(self.tags.window > 0 && !self.is_consumed(), ScaleChangesInsideWindow)
            }
            Action::Tick { gated } => self.tick(gated),
            Action::Probe => self.probe(),
            Action::LeafHookClip => {
                // A hook runs in each backward: before the window is complete, the replicas reduced, the scale divided
                // out.
                self.report_if(self.config.micro_batches > 1, PassOnPartialWindow);
                self.report_if(self.config.scaler, ClipBeforeUnscale);
                self.report_if(self.config.ranks > 1, ClipBeforeAllReduce);
            }
        }
        self.refused.map_or(Ok(()), Err)
    }

    fn report_as(&mut self, wrong: bool, pitfall: Pitfall, severity: Severity) {
        if wrong {
            let worst = self.found.entry(pitfall).or_insert(severity);
            *worst = severity.max(*worst);
            if severity == Severity::Error {
                self.refused = self.refused.or(Some(pitfall));
            }
        }
    }

    fn report_if(&mut self, wrong: bool, pitfall: Pitfall) {
        self.report_as(wrong, pitfall, pitfall.severity());
    }

    fn is_consumed(&self) -> bool {
        self.tags.consumed != Consumed::No
    }

    fn is_partial(&self) -> bool {
        self.tags.window < self.config.micro_batches
    }

    /// True if the gradients are those of one replica.
    pub(crate) fn is_local(&self) -> bool {
        self.tags.replica == Replica::Local
    }

    /// True if there are gradients that no step has consumed.
    fn usable(&mut self) -> bool {
        self.report_if(self.is_consumed(), PassAfterStep);
        self.report_if(self.tags.window == 0, PassBeforeBackward);
        !self.is_consumed() && self.tags.window > 0
    }

    fn backward(&mut self) {
        match self.tags.consumed {
            Consumed::No => {}
            // These gradients belong to an update that is over.
            Consumed::ByStep => self.report_if(true, StaleGradients),
            Consumed::BySkip => self.report_if(true, KeptAfterSkip),
        }
        if self.is_consumed() {
            self.tags = Tags::fresh(&self.config);
        }
        // Scaled gradients would be added to unscaled ones.
        self.report_if(self.tags.window > 0 && self.config.scaler && !self.tags.scaled, ScaleChangesInsideWindow);
        self.report_if(!self.is_partial(), ViolatedWindow);
        // A reduction or verdict before this does not cover the new part.
        let window = self.tags.window + 1;
        self.tags = Tags { window, replica: self.config.born(), check: Check::Unchecked, ..self.tags.clone() };
    }

    fn zero(&mut self) {
        self.report_if(self.tags.window > 0 && !self.is_consumed(), ZeroInsideWindow);
        self.tags = Tags::fresh(&self.config);
    }

    fn all_reduce(&mut self) {
        if self.usable() && self.config.ranks > 1 {
            self.tags.reduces += 1;
            self.report_if(self.is_partial() || self.tags.reduces > 1, RepeatedAllReduce);
            self.tags.replica = Replica::Reduced;
        }
    }

    fn unscale(&mut self) {
        self.usable();
        if self.tags.window > 0 {
            self.report_if(!self.tags.scaled, NothingToUnscale);
            self.tags.scaled = false;
        }
    }

    fn finite_check(&mut self) {
        if self.usable() {
            self.report_if(self.tags.clamped, ClipHidesInfinity);
            self.report_if(self.tags.clipped || self.tags.clamped, ClipBeforeFiniteCheck);
            self.tags.check = Check::Verdict(self.tags.replica);
        }
    }

    fn nonlinear(&mut self, action: Action) {
        if !self.usable() {
            return;
        }
        self.report_if(self.is_partial() && !self.allowed.per_micro_batch, PassOnPartialWindow);
        match action {
            Action::Noise { rank_key } => {
                // Noise before the all-reduce is only weaker than asked for; with a key per rank the replicas drift
                // apart.
                self.report_as(self.is_local(), NoiseOfOneReplica, Severity::Warning);
                self.report_if(!self.is_local() && rank_key && self.config.ranks > 1, NoiseOfOneReplica);
            }
            _ => self.report_if(self.is_local() && !self.allowed.local_clip, ClipBeforeAllReduce),
        }
        self.report_if(self.tags.scaled, ClipBeforeUnscale);
        match action {
            Action::ClipValue => {
                self.tags.clamped = true;
                self.value_clips += 1;
            }
            // A pass that is not known may be a clip by norm: it is taken for one.
            Action::ClipNorm | Action::Own => {
                self.tags.clipped = true;
                self.norm_clips += 1;
            }
            Action::Agc => self.tags.clipped = true,
            _ => {}
        }
    }

    /// Ends a window, which must be complete.
    fn close(&mut self) {
        self.report_if(self.is_partial(), ViolatedWindow);
    }

    /// An accumulator is emptied whatever becomes of the step: no gradient outlives its update.
    fn take(&mut self, short: bool) {
        if !short {
            self.close();
        }
        self.tags = Tags::fresh(&self.config);
    }

    fn step(&mut self, action: Action) {
        if !self.usable() {
            return;
        }
        self.close();
        self.report_if(self.is_local(), StepBeforeAllReduce);
        if self.config.scaler {
            self.report_if(self.tags.scaled || action == Action::RawStep, StepPastScaler);
            self.report_if(self.tags.check == Check::Unchecked, ClipBeforeFiniteCheck);
        }
        self.report_if(self.tags.check == Check::Verdict(Replica::Local), LocalVerdict);
        let skipped = action == Action::Skip;
        self.tags.consumed = if skipped { Consumed::BySkip } else { Consumed::ByStep };
        self.stepped |= !skipped;
    }

    fn tick(&mut self, gated: bool) {
        // Without a scaler no step is ever skipped, and there is nothing to wait for.
        let ungated = !gated && self.config.scaler;
        self.report_if(ungated, AdvanceOnSkippedStep);
        self.report_if(!ungated && !self.stepped, ScheduleWithoutStep);
        self.stepped = false;
    }

    fn probe(&mut self) {
        let changed = self.tags.scaled || self.tags.clipped || self.tags.clamped;
        self.report_if(self.is_partial() || self.is_local() || changed, MisplacedProbe);
    }
}
