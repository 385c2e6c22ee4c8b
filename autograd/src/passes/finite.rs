//! Passes that decide whether a step is taken: unscaling, and checks for NaN and infinity.

use crate::{
    Array, DType, Tensor,
    grads::{Grads, Scaled, Unscaled},
    recorded::{Bad, PassKind},
    scaler::LossScaler,
    store::{StateId, Store},
};
use std::marker::PhantomData;

impl<'t, S> Grads<'t, S> {
    /// Makes the step depend on another condition (bool scalar), too. If it is false, parameters, optimizer state and
    /// counters stay as they are, and a micro-batch skips its whole window, or is left out of it
    /// ([`crate::Accumulator::skip_bad_micro_batches`]). A condition that is computed from the gradients counts as a
    /// check of them. For a non-finite loss see [`Grads::check_loss`].
    ///
    /// # Panics
    /// If the condition is not a bool scalar.
    #[track_caller]
    pub fn skip_unless(mut self, condition: Tensor<'t>) -> Self {
        let (dtype, shape) = (condition.dtype(), condition.shape());
        assert!(
            dtype == DType::Bool && shape.rank() == 0,
            "skip_unless: the condition must be bool[], not {dtype}{shape}"
        );
        self.tape.own(condition, "skip_unless");
        if self.tape.looks_at(condition, &self.flat.tensors()) {
            self.judge(condition);
        } else {
            self.and_verdict(condition);
        }
        self
    }

    /// Bool scalar: true if every element is finite. Recorded on the values as they stand, before any arithmetic that
    /// could hide or spread an infinity.
    #[track_caller]
    pub(super) fn all_finite(&self) -> Tensor<'t> {
        let checks = self.flat.tensors().into_iter().map(Tensor::all_finite);
        checks.reduce(Tensor::and).unwrap_or_else(|| self.tape.scalar(1.0, DType::Bool))
    }

    /// The same gradients with another type of scale; the caller has made it true.
    pub(super) fn retyped<Z>(self) -> Grads<'t, Z> {
        let Self { tape, flat, values, present, absent, verdict, scaler, history, .. } = self;
        let Self { weight, generators, assigned, .. } = self;
        let scale = PhantomData;
        Grads { tape, flat, values, present, absent, verdict, scaler, history, weight, generators, assigned, scale }
    }
}

/// The reaction to too many non-finite steps in a row.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnGiveUp {
    /// No non-finite step is ever taken, and the session reports that the guard has given up: [`crate::Error::Late`].
    #[default]
    Error,
    /// The next non-finite step is taken, as by optax's `apply_if_finite`: it destroys the parameters.
    Accept,
}

/// Counts steps with non-finite gradients, in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FiniteGuard {
    in_a_row: StateId,
    total: StateId,
    last_finite: StateId,
    max_consecutive: Option<u32>,
    on_give_up: OnGiveUp,
}

impl FiniteGuard {
    /// Declares the states `<name>/notfinite_count` and `<name>/total_notfinite` (u32) and `<name>/last_finite` (bool).
    /// It gives up after more than `max_consecutive` non-finite steps in a row; without that number, never.
    ///
    /// # Panics
    /// If the names are taken.
    #[track_caller]
    pub fn new(store: &mut Store, name: &str, max_consecutive: Option<u32>, on_give_up: OnGiveUp) -> Self {
        let zero = Array::zeros([], DType::U32);
        let in_a_row = store.state(&format!("{name}/notfinite_count"), &zero);
        let total = store.state(&format!("{name}/total_notfinite"), &zero);
        let last_finite = store.state(&format!("{name}/last_finite"), &Array::new([], vec![true]));
        Self { in_a_row, total, last_finite, max_consecutive, on_give_up }
    }

    /// The state that counts non-finite steps in a row (u32 scalar).
    pub fn in_a_row(self) -> StateId {
        self.in_a_row
    }

    /// The state that counts all non-finite steps (u32 scalar).
    pub fn total(self) -> StateId {
        self.total
    }

    /// The state that is true if the last step was finite (bool scalar).
    pub fn last_finite(self) -> StateId {
        self.last_finite
    }
}

impl<'t> Grads<'t, Scaled> {
    /// Divides by the loss scale, after checking the scaled values: a NaN or infinity among them makes the verdict
    /// false, and the optimizer then leaves parameters, state and counters as they are.
    ///
    /// `g / s`, as a multiplication by `1 / s` rounded to f32 (Micikevicius et al. 2018; PyTorch's `GradScaler`). If
    /// the state of a dynamic scale is not positive, normal and finite, the verdict is false too, and the session
    /// reports it ([`crate::Error::Late`]).
    ///
    /// Taps: `unscale/bad_scale` (bool), for a dynamic scale.
    ///
    /// # Panics
    /// If this is not the scaler that scaled the loss.
    #[track_caller]
    pub fn unscale(self, scaler: &LossScaler) -> Grads<'t, Unscaled> {
        assert!(
            self.scaler == *scaler,
            "unscale: the loss was scaled by {}, and this scaler has {scaler}",
            self.scaler
        );
        scaler.check_window(self.tape);
        self.history.borrow_mut().unscaled_by = scaler.noted(self.tape);
        for action in scaler.actions() {
            self.apply(*action);
        }
        let (flat, checked) = self.pass(PassKind::Unscale, "unscale", &[("scale", scaler.to_string())], |flat| {
            let sound = [scaler.is_sound(self.tape), Some(self.all_finite())].into_iter().flatten().reduce(Tensor::and);
            let finite = self.on_all_ranks(sound.expect("one at least"));
            scaler.judge(finite);
            (flat.map(|_, g| scaler.unscaled(g)), vec![finite])
        });
        let mut grads = Grads { scaler: LossScaler::none(), ..self.retyped() };
        grads.judge(checked[0]);
        grads.with_flat(flat)
    }
}

impl<'t, S> Grads<'t, S> {
    /// Skips the step if the loss is non-finite, which finite gradients do not rule out: a mean over no targets is NaN,
    /// and its gradient zero. The device skips the step at once, and the session reports it ([`crate::Error::Late`] of
    /// [`crate::Pitfall::NonFiniteLoss`]), with the line that recorded the loss. Such a micro-batch skips its whole
    /// window, or is left out of it ([`crate::Accumulator::skip_bad_micro_batches`]).
    ///
    /// Taps: `check_loss/loss`.
    ///
    /// # Panics
    /// If the gradients are not of a single loss, because they come from an accumulator. Check before accumulating.
    #[track_caller]
    pub fn check_loss(mut self) -> Self {
        const NAME: &str = "check_loss";
        let loss = self.history.borrow().loss;
        let Some(id) = loss else {
            panic!("{NAME}: accumulated gradients come from several losses: call `check_loss` before accumulating")
        };
        let (tape, loss) = (self.tape, Tensor { tape: self.tape, id });
        // All ranks judge reduced gradients alike.
        let local = self.history.borrow().state.is_local();
        let finite = tape.pass(NAME, &[], &[loss], || {
            let finite = loss.all_finite();
            vec![if local { finite } else { !(!finite).any_over_ranks() }]
        })[0];
        tape.alarm_of_loss(&format!("{NAME}/loss"), loss);
        self.and_verdict(finite);
        self
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Skips the step if an element is NaN or infinite: parameters, optimizer state and counters stay as they are.
    #[track_caller]
    pub fn check_finite(mut self) -> Self {
        let (_, checked) =
            self.pass(PassKind::CheckFinite, "check_finite", &[], |flat| (flat.clone(), vec![self.all_finite()]));
        self.judge(checked[0]);
        self
    }

    /// As [`Grads::check_finite`], and counts non-finite steps. The counters are updated even if the step is skipped
    /// (after optax's `apply_if_finite`).
    ///
    /// Taps: `skip_if_not_finite/count` (in a row), `skip_if_not_finite/gave_up` (bool; [`OnGiveUp`] says what
    /// follows).
    #[track_caller]
    pub fn skip_if_not_finite(mut self, guard: &FiniteGuard) -> Self {
        const NAME: &str = "skip_if_not_finite";
        self.tape.layout.state(guard.total);
        let most = guard.max_consecutive.map_or("none".to_string(), |most| most.to_string());
        let (_, values) = self.pass(PassKind::CheckFinite, NAME, &[("max_consecutive", most)], |flat| {
            let tape = self.tape;
            let finite = self.on_all_ranks(self.all_finite());
            let [in_a_row, total] = [guard.in_a_row, guard.total].map(|state| tape.state(state));
            let in_a_row = finite.select(in_a_row.zeros_like(), in_a_row + 1.0);
            let gave_up = match guard.max_consecutive {
                Some(most) => in_a_row.greater(f64::from(most)),
                None => tape.scalar(0.0, DType::Bool),
            };
            let taken = if guard.on_give_up == OnGiveUp::Accept { finite.or(gave_up) } else { finite };
            tape.assign(guard.in_a_row, in_a_row);
            tape.assign(guard.total, finite.select(total, total + 1.0));
            tape.assign(guard.last_finite, finite);
            (flat.clone(), vec![taken, in_a_row, gave_up])
        });
        self.tap_of(NAME, "count", values[1]);
        match (guard.max_consecutive, guard.on_give_up) {
            (Some(most), OnGiveUp::Error) => {
                let what = format!("{NAME}: more than {most} updates in a row were not finite");
                self.tape.alarm(&format!("{NAME}/gave_up"), values[2], Bad::True, what);
            }
            _ => self.tap_of(NAME, "gave_up", values[2]),
        }
        self.judge(values[0]);
        self
    }
}
