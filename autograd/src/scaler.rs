//! Loss scaling: multiplying the loss so that small gradients survive a narrow type.
//!
//! A dynamic scale is a state of the store, and its whole cycle (skip, back off, grow) happens on the tape: unscaling
//! notes its findings in another state, and [`LossScaler::update`] acts on all findings under the present scale.

use crate::{
    Array, DType, Operand, Tensor,
    grads::{Grads, History, Scaled},
    node::NodeId,
    pass_state::Action,
    pitfall::Pitfall,
    range::Range,
    recorded::{Bad, Event},
    store::{ParamSet, StateId, Store},
    tape::Tape,
};
use std::fmt;

/// A loss scale. Scale the loss, take its gradient, and [`Grads::unscale`] that with the same scaler.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScaler {
    scale: Scale,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Scale {
    None,
    Fixed(f64),
    Dynamic(Dynamic),
}

/// A dynamic scale: its settings, and its states.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Dynamic {
    growth: f64,
    backoff: f64,
    interval: i32,
    min_scale: f64,
    /// The greatest scale whose growth does not overflow f32.
    room: f64,
    /// The scale (f32 scalar).
    scale: StateId,
    /// The number of finite updates in a row since the scale last changed (i32 scalar).
    tracker: StateId,
    /// True if a verdict has been given under the present scale (bool scalar).
    judged: StateId,
    /// True if a gradient was non-finite under the present scale (bool scalar).
    found: StateId,
}

/// Settings of a dynamic [`LossScaler`]; the defaults are PyTorch's, with a floor of 1.
#[derive(Clone, PartialEq, Debug)]
pub struct DynamicScale {
    /// The prefix of its states' names; each scaler of a store needs its own.
    pub name: String,
    /// The first scale.
    pub init: f64,
    /// The factor of the scale after `interval` finite updates in a row; at least 1.
    pub growth: f64,
    /// Its factor after a non-finite update; in `(0, 1]`.
    pub backoff: f64,
    /// The number of finite updates in a row that make it grow.
    pub interval: u32,
    /// The scale never backs off below this; 0 for no floor. Without a floor it can fall below the least normal number
    /// of f32: then no step is taken, and the session reports it.
    pub min_scale: f64,
}

impl Default for DynamicScale {
    fn default() -> Self {
        let name = "loss_scale".into();
        Self { name, init: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, min_scale: 1.0 }
    }
}

/// A loss multiplied by a scale: its gradients are [`Scaled`].
#[derive(Clone, Copy, Debug)]
pub struct ScaledLoss<'t> {
    loss: Tensor<'t>,
    scaled: Tensor<'t>,
    scaler: LossScaler,
}

impl LossScaler {
    /// No scale: gradients pass unchanged, and are still checked for NaN and infinity.
    pub fn none() -> Self {
        Self { scale: Scale::None }
    }

    /// A constant scale. Powers of two change no bit of a gradient that stays in range.
    ///
    /// # Panics
    /// If the scale or its reciprocal is not a positive normal number of f32.
    #[track_caller]
    pub fn fixed(scale: f64) -> Self {
        let usable = |v: f64| v > 0.0 && (v as f32).is_normal();
        assert!(usable(scale) && usable(1.0 / scale), "loss scale: {scale} or its reciprocal is not a normal f32");
        Self { scale: Scale::Fixed(scale) }
    }

    /// A scale that grows while gradients are finite and backs off when they are not (Micikevicius et al. 2018, "Mixed
    /// precision training"; PyTorch's `GradScaler`). Declares `<name>/scale` (f32), `<name>/growth_tracker` (i32),
    /// `<name>/judged` and `<name>/found_inf` (bool).
    ///
    /// # Panics
    /// If a setting is outside its range, or a name is taken.
    #[track_caller]
    pub fn dynamic(store: &mut Store, settings: DynamicScale) -> Self {
        let DynamicScale { name, init, growth, backoff, interval, min_scale } = settings;
        let positive = |v: f64| v as f32 > 0.0 && (v as f32).is_finite();
        assert!(positive(init), "loss scale: init is {init}, and must be positive and finite in f32");
        assert!(positive(growth) && growth >= 1.0, "loss scale: growth is {growth}, and must be at least 1 and finite");
        assert!(positive(backoff) && backoff <= 1.0, "loss scale: backoff is {backoff}, and must be in (0, 1]");
        let counted = i32::try_from(interval).ok().filter(|interval| *interval > 0);
        let interval =
            counted.unwrap_or_else(|| panic!("loss scale: interval is {interval}, and must be in 1 ..= {}", i32::MAX));
        assert!(
            min_scale >= 0.0 && min_scale <= init,
            "loss scale: min_scale is {min_scale}, and must be in [0, init]"
        );
        // A bound to check before growing, so that no infinity arises: a device may compute as if there were none.
        let factor = growth as f32;
        let mut room = f32::MAX / factor;
        while !(room * factor).is_finite() {
            room = room.next_down();
        }
        while room < f32::MAX && (room.next_up() * factor).is_finite() {
            room = room.next_up();
        }
        let no = Array::zeros([], DType::Bool);
        let scale = store.state(&format!("{name}/scale"), &Array::new([], vec![init as f32]));
        let tracker = store.state(&format!("{name}/growth_tracker"), &Array::zeros([], DType::I32));
        let judged = store.state(&format!("{name}/judged"), &no);
        let found = store.state(&format!("{name}/found_inf"), &no);
        let room = room.into();
        let dynamic = Dynamic { growth, backoff, interval, min_scale, room, scale, tracker, judged, found };
        Self { scale: Scale::Dynamic(dynamic) }
    }

    /// The constant scale; `None` without one.
    pub fn scale_value(self) -> Option<f64> {
        match self.scale {
            Scale::Fixed(scale) => Some(scale),
            Scale::None | Scale::Dynamic(_) => None,
        }
    }

    /// The states of a dynamic scale: the scale (f32 scalar) and the growth tracker (i32 scalar).
    pub fn states(self) -> Option<(StateId, StateId)> {
        self.as_dynamic().map(|d| (d.scale, d.tracker))
    }

    /// The state of a dynamic scale, and its value on a tape now.
    #[track_caller]
    pub(crate) fn noted(self, tape: &Tape) -> Option<(StateId, NodeId)> {
        self.as_dynamic().map(|d| (d.scale, tape.state(d.scale).id))
    }

    fn as_dynamic(self) -> Option<Dynamic> {
        match self.scale {
            Scale::Dynamic(dynamic) => Some(dynamic),
            Scale::None | Scale::Fixed(_) => None,
        }
    }

    /// The scale in force on a tape: a number, or an f32 scalar.
    #[track_caller]
    fn factor(self, tape: &Tape) -> Option<Operand<'_>> {
        match self.scale {
            Scale::None => None,
            Scale::Fixed(scale) => Some(scale.into()),
            Scale::Dynamic(d) => Some(tape.state(d.scale).into()),
        }
    }

    /// `loss * scale`.
    #[track_caller]
    pub fn scale(self, loss: Tensor<'_>) -> ScaledLoss<'_> {
        let tape = loss.tape();
        if let Some(d) = self.as_dynamic() {
            tape.note_scale(d.scale);
        }
        let scaled = match self.factor(tape) {
            None => loss,
            Some(Operand::Value(scale)) => loss * scale,
            Some(Operand::Tensor(scale)) => loss * scale.cast(loss.dtype()),
        };
        ScaledLoss { loss, scaled, scaler: self }
    }

    /// Refuses to unscale by another value than the loss was scaled by.
    ///
    /// # Panics
    /// If the scale has changed on this tape since a loss was scaled by it.
    #[track_caller]
    pub(crate) fn check_window(self, tape: &Tape) {
        let same = self.as_dynamic().is_none_or(|d| tape.scale_is_noted(d.scale));
        assert!(same, "unscale: {}{}", Pitfall::ScaleChangesInsideWindow, tape.recorded_at());
    }

    /// `gradient / scale`, as a multiplication by `1 / scale` rounded to f32.
    #[track_caller]
    pub(crate) fn unscaled<'t>(self, gradient: Tensor<'t>) -> Tensor<'t> {
        match self.factor(gradient.tape()) {
            None => gradient,
            Some(Operand::Value(scale)) => gradient * (1.0 / scale) as f32 as f64,
            Some(Operand::Tensor(scale)) => gradient * scale.recip().cast(gradient.dtype()),
        }
    }

    /// Bool scalar: true if a dynamic scale is in the range of scales; a run reports one that is not.
    #[track_caller]
    pub(crate) fn is_sound(self, tape: &Tape) -> Option<Tensor<'_>> {
        let scale = tape.state(self.as_dynamic()?.scale);
        let sound = Range::Scale.has_on_tape(scale);
        // The alarm taps the check, not the scale, which could then not be updated in place.
        let what = format!("unscale: the loss scale is not {}, and the step was skipped", Range::Scale);
        tape.alarm("unscale/bad_scale", !sound, Bad::True, what);
        Some(sound)
    }

    /// Notes a verdict given under the present scale.
    #[track_caller]
    pub(crate) fn judge(self, finite: Tensor<'_>) {
        if let Some(d) = self.as_dynamic() {
            let tape = finite.tape();
            tape.assign(d.judged, tape.scalar(1.0, DType::Bool));
            tape.assign(d.found, tape.state(d.found).or(!finite));
        }
    }

    /// Adapts a dynamic scale to the findings since the last update. Call it once per update, after every optimizer has
    /// stepped:
    ///
    /// ```text
    /// something not finite:  scale = max(min_scale, scale * backoff), tracker = 0
    /// otherwise:             tracker += 1; at the interval scale *= growth if that stays finite, and tracker = 0
    /// ```
    ///
    /// If nothing has been unscaled since the last update, nothing changes. Without a dynamic scale, this does nothing.
    #[track_caller]
    pub fn update(self, tape: &Tape) {
        let Some(d) = self.as_dynamic() else { return };
        tape.layout.state(d.scale);
        tape.event(Event::ScalerUpdate(d.scale));
        let [scale, tracker, judged, found] = [d.scale, d.tracker, d.judged, d.found].map(|state| tape.state(state));
        let parameters = [
            ("growth", d.growth.to_string()),
            ("backoff", d.backoff.to_string()),
            ("interval", d.interval.to_string()),
            ("min_scale", d.min_scale.to_string()),
        ];
        tape.pass("scaler_update", &parameters, &[scale, tracker, judged, found], || {
            let counted = tracker + 1.0;
            let due = counted.equals(f64::from(d.interval));
            let smaller = (scale * d.backoff).maximum(d.min_scale);
            let grows = due.and(scale.less_equal(d.room));
            // A product that would overflow is not computed at all, not even in the branch that is not taken.
            let larger = grows.select(scale, tape.scalar(0.0, DType::F32)) * d.growth;
            let adapted = found.select(smaller, grows.select(larger, scale));
            let restarted = found.or(due).select(tape.scalar(0.0, DType::I32), counted);
            let (scale, tracker) = (judged.select(adapted, scale), judged.select(restarted, tracker));
            tape.assign(d.scale, scale);
            tape.assign(d.tracker, tracker);
            let no = tape.scalar(0.0, DType::Bool);
            tape.assign(d.judged, no);
            tape.assign(d.found, no);
            vec![scale, tracker]
        });
    }

    /// The effect of unscaling on the tags of gradients.
    pub(crate) fn actions(self) -> &'static [Action] {
        match self.scale {
            Scale::None => &[Action::FiniteCheck],
            Scale::Fixed(_) | Scale::Dynamic(_) => &[Action::FiniteCheck, Action::Unscale],
        }
    }
}

impl fmt::Display for LossScaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scale {
            Scale::None => write!(f, "none"),
            Scale::Fixed(scale) => write!(f, "{scale}"),
            Scale::Dynamic(d) => write!(f, "state {}", d.scale.index()),
        }
    }
}

impl<'t> ScaledLoss<'t> {
    /// The gradient of the scaled loss: see [`Tensor::grad`].
    #[track_caller]
    pub fn grad(self, params: &ParamSet) -> Grads<'t, Scaled> {
        let tape = self.loss.tape;
        tape.layout.check(params);
        self.loss.check_loss();
        let scaled = self.scaler != LossScaler::none();
        let site = tape.site();
        let grads = tape.in_scaled_sweep(scaled, || tape.at_site(site, || Grads::of(self.scaled, params)));
        let history = History::born(tape, self.scaler, grads.present());
        history.borrow_mut().loss = Some(self.loss.id);
        Grads { scaler: self.scaler, history, ..grads }
    }
}
