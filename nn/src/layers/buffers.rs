//! Buffers: states that a forward pass in training updates, and that a skipped step must leave as they were.

use std::collections::BTreeMap;
use wgrad::{DType, Layout, StateId, Tape, Tensor};

/// The prefix of all buffers' names.
pub(crate) const PREFIX: &str = "buffers/";

/// The buffers of a store, such as running statistics: the states that [`crate::Builder::buffer`] declared.
///
/// A [`crate::Trainer`] handles buffers itself. A hand-written step remembers their values before the forward pass,
/// skips itself unless their new values are finite, and settles them by its verdict:
///
/// ```
/// # use wgrad::{DType, Optimizer, Store, Tape};
/// # use wgrad_nn::{BatchNorm, Buffers, Builder, optim::{Sgd, SgdConfig}};
/// # let mut store = Store::new();
/// # let norm = BatchNorm::new(Builder::new(&mut store, 0).at("norm"), 3);
/// # let (params, buffers) = (store.params(), Buffers::of(store.layout()));
/// # let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
/// # let t = &Tape::new(store.into_parts().0);
/// # let x = t.input("x", [4, 3, 2, 2], DType::F32);
/// let before = buffers.remember(t);
/// let loss = norm.forward(x, true).sin().mean();
/// let moved = before.moved(t);
/// let grads = loss.grad(&params).skip_unless(moved.all_finite(t)).check_finite();
/// moved.settle(t, grads.verdict().expect("checked"));
/// sgd.step(grads);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffers {
    states: Vec<StateId>,
}

impl Buffers {
    /// All buffers that have been declared so far.
    pub fn of(layout: &Layout) -> Self {
        Self { states: layout.states().filter(|(_, s)| s.name.starts_with(PREFIX)).map(|(id, _)| id).collect() }
    }

    /// The states, in the order of declaration.
    pub fn states(&self) -> &[StateId] {
        &self.states
    }

    /// The buffers' values at this place of a recording.
    #[track_caller]
    pub fn remember<'t>(&self, tape: &'t Tape) -> Remembered<'t> {
        Remembered { values: self.states.iter().map(|&state| (state, tape.state(state))).collect() }
    }
}

/// Values that buffers had earlier in a recording.
#[derive(Clone, Debug)]
pub struct Remembered<'t> {
    values: Vec<(StateId, Tensor<'t>)>,
}

impl<'t> Remembered<'t> {
    /// Remembers the given values of states.
    pub(crate) fn new(values: Vec<(StateId, Tensor<'t>)>) -> Self {
        Self { values }
    }

    /// The states, with the values they had.
    pub(crate) fn values(&self) -> &[(StateId, Tensor<'t>)] {
        &self.values
    }

    /// The buffers that have been assigned to since.
    #[must_use]
    #[track_caller]
    pub fn moved(self, tape: &'t Tape) -> Self {
        let moved = |(state, value): &(StateId, Tensor<'t>)| tape.state(*state).id() != value.id();
        Self { values: self.values.into_iter().filter(moved).collect() }
    }

    /// Bool scalar: true if the present values of the buffers are finite. The loss and the gradients do not show a
    /// variance that overflows: a quotient by infinity is 0, so they stay finite.
    #[track_caller]
    pub fn all_finite(&self, tape: &'t Tape) -> Tensor<'t> {
        // One check for all buffers of a type takes fewer kernels than one check for each.
        let mut flat: BTreeMap<DType, Vec<Tensor<'t>>> = BTreeMap::new();
        for (state, _) in &self.values {
            let value = tape.state(*state);
            flat.entry(value.dtype()).or_default().push(value.reshape([value.numel()]));
        }
        let finite = flat.values().map(|parts| Tensor::concat(parts, 0).all_finite());
        finite.reduce(Tensor::and).unwrap_or_else(|| tape.scalar(1.0, DType::Bool))
    }

    /// Keeps the buffers' new values if the verdict (bool scalar) is true, as their mean over the ranks that train
    /// together; otherwise restores the values they had.
    #[track_caller]
    pub fn settle(&self, tape: &'t Tape, verdict: Tensor<'t>) {
        for &(state, before) in &self.values {
            let value = tape.state(state);
            let mean = if tape.ranks() == 1 { value } else { value.sum_over_ranks() / tape.ranks() as f64 };
            tape.assign(state, verdict.select(mean, before));
        }
    }
}
