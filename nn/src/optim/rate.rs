//! The sources of a learning rate: a schedule, a function of the user's own, or a state.

use super::Schedule;
use std::{fmt, sync::Arc};
use wgrad::{DType, Layout, StateId, Tensor, Tuning};

/// The source of a learning rate.
#[derive(Clone, PartialEq, Debug)]
pub enum Rate {
    /// A function of the number of updates made, of a known form.
    Schedule(Schedule),
    /// Any other function of the number of updates made: see [`Rate::function`].
    Function(RateFunction),
    /// The value of a state (a float scalar): written by the host between runs, or assigned on the tape. A gradient
    /// through an update reaches the state. If the value is negative or non-finite, the step is skipped
    /// ([`wgrad::Optimizer::judge`]).
    State(StateId),
}

impl Rate {
    /// A learning rate that a function of the user's own records.
    ///
    /// `record` gets the number of updates made as a float scalar `[]` of the parameters' type. It returns
    /// the rate of the next update, a float scalar `[]` of the same tape. Its nodes are part of the program, so they are
    /// printed, fused, saved and replayed with it; they are in the scope `name`. The function runs while a program is
    /// recorded, never during a run. It may read states and inputs of the tape (`t.tape().state(..)`).
    ///
    /// Each run checks the rate: if it is negative or non-finite, the step is skipped and the session reports it
    /// ([`wgrad::Optimizer::judge`]). Host code cannot tell the rate of a later update
    /// ([`wgrad::Optimizer::rate`] is `None`), so diagnosis does not name it, and no lint finds a first rate of 0.
    /// [`Tuning::Rate`] multiplies the rate, [`Tuning::Warmup`] multiplies it by a rise from `1 / updates` to 1, and
    /// [`Tuning::Hold`] leaves it as it is.
    ///
    /// Recording a step panics if the result is no float scalar.
    ///
    /// ```
    /// use std::f64::consts::LN_2;
    /// use wgrad_nn::optim::{Rate, Sgd, SgdConfig};
    /// # let mut store = wgrad::Store::new();
    /// # let params = store.params();
    /// // The rate halves every `half` updates.
    /// let half = 1000.0;
    /// let lr = Rate::function("halving", move |t| (t * (-LN_2 / half)).exp() * 0.1);
    /// let sgd = Sgd::new(&mut store, &params, SgdConfig { lr, ..Default::default() });
    /// ```
    pub fn function(
        name: impl Into<String>,
        record: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t> + Send + Sync + 'static,
    ) -> Self {
        Rate::Function(RateFunction { name: name.into(), record: Arc::new(record) })
    }

    /// The rate of the update after `updates` others; `None` if only a run can tell.
    pub(super) fn at(&self, updates: u32) -> Option<f64> {
        match self {
            Rate::Schedule(schedule) => Some(schedule.at(updates)),
            Rate::Function(_) | Rate::State(_) => None,
        }
    }

    #[track_caller]
    pub(super) fn check(&self, layout: &Layout) {
        match self {
            Rate::Schedule(schedule) => schedule.check(),
            Rate::Function(_) => {}
            Rate::State(state) => _ = layout.state(*state),
        }
    }

    /// The rate of the next update, a scalar.
    #[track_caller]
    pub(super) fn value<'t>(&self, updates: Tensor<'t>, dtype: DType) -> Tensor<'t> {
        match self {
            Rate::Schedule(schedule) => schedule.lr(updates, dtype),
            Rate::Function(function) => function.value(updates, dtype).cast(dtype),
            Rate::State(state) => {
                let rate = updates.tape().state(*state);
                let (shape, stored) = (rate.shape(), rate.dtype());
                assert!(
                    rate.rank() == 0 && stored.is_float(),
                    "learning rate: the state is {stored}{shape}, and must be a float scalar"
                );
                rate.cast(dtype)
            }
        }
    }

    /// Changes the rate. True if it could be: a rate that is a state is left to its writer.
    pub(super) fn tune(&mut self, tuning: Tuning) -> bool {
        let tuned = match (&*self, tuning) {
            (Rate::Schedule(schedule), Tuning::Rate(factor)) => schedule.times(factor).into(),
            (Rate::Schedule(schedule), Tuning::Warmup(updates)) => schedule.with_warmup(updates).into(),
            (Rate::Schedule(schedule), Tuning::Hold) => schedule.held().into(),
            (Rate::Function(function), Tuning::Rate(factor)) => {
                function.times(format!("{function} * {factor}"), move |t| t.tape().scalar(factor, t.dtype()))
            }
            (Rate::Function(function), Tuning::Warmup(updates)) => {
                let rise = Schedule::warmup(1.0, updates);
                function.times(format!("{function} * {rise}"), move |t| rise.formula(t))
            }
            _ => return false,
        };
        *self = tuned;
        true
    }
}

impl From<Schedule> for Rate {
    fn from(schedule: Schedule) -> Self {
        Rate::Schedule(schedule)
    }
}

impl From<f64> for Rate {
    fn from(base: f64) -> Self {
        Rate::Schedule(base.into())
    }
}

impl From<StateId> for Rate {
    fn from(state: StateId) -> Self {
        Rate::State(state)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Schedule(schedule) => schedule.fmt(f),
            Rate::Function(function) => function.fmt(f),
            Rate::State(state) => write!(f, "state {}", state.index()),
        }
    }
}

/// A function that records a learning rate: see [`Rate::function`]. It is printed by its name. Two are equal if one is a
/// clone of the other.
#[derive(Clone)]
pub struct RateFunction {
    name: String,
    record: Arc<dyn for<'t> Fn(Tensor<'t>) -> Tensor<'t> + Send + Sync>,
}

impl RateFunction {
    /// Records the rate of the next update, a scalar, for parameters of a type.
    #[track_caller]
    pub(super) fn value<'t>(&self, updates: Tensor<'t>, dtype: DType) -> Tensor<'t> {
        let t = updates.cast(dtype);
        let _scope = updates.tape().enter(&self.name);
        let rate = (self.record)(t);
        let (shape, given) = (rate.shape(), rate.dtype());
        assert!(
            rate.rank() == 0 && given.is_float(),
            "learning rate {self}: the function returned {given}{shape}, and must return a float scalar"
        );
        rate
    }

    /// The product with another function.
    fn times(&self, name: String, factor: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t> + Send + Sync + 'static) -> Rate {
        let of = self.clone();
        Rate::function(name, move |t| {
            let rate = (of.record)(t);
            rate * factor(t).cast(rate.dtype())
        })
    }
}

impl PartialEq for RateFunction {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
    }
}

impl fmt::Display for RateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for RateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateFunction").field(&self.name).finish()
    }
}
