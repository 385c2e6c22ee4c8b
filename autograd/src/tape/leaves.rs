//! The leaves of a tape: constants, inputs, and states, which a program assigns once.

use super::Tape;
use crate::{
    Array, DType, Shape, Tensor,
    node::NodeId,
    op::{InputId, Op},
    recorded::InputDecl,
    store::{Flat, ParamSet, StateId},
};
use std::collections::BTreeMap;

impl Tape {
    // Leaves.

    /// A scalar constant, rounded to a float type.
    ///
    /// # Panics
    /// If an integer type, or bool, does not hold the value.
    #[track_caller]
    pub fn scalar(&self, value: f64, dtype: DType) -> Tensor<'_> {
        let exact = dtype.is_float() || Array::new([], vec![value]).cast(dtype).item(0) == value;
        self.require(exact, &format!("constant {value}"), &[], || format!("{dtype} does not hold it"));
        self.push_typed(Op::Const(value.to_bits()), [].into(), (Shape::scalar(), dtype))
    }

    /// A tensor filled with one value.
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Tensor<'_> {
        let _call = self.call("full", &[]);
        self.scalar(value, dtype).broadcast_to(shape)
    }

    /// A constant vector, rounded to a float type. It becomes part of the program; for data, use an input.
    ///
    /// # Panics
    /// If an integer type, or bool, does not hold a value.
    #[track_caller]
    pub fn table(&self, values: &[f64], dtype: DType) -> Tensor<'_> {
        let held = Array::new([values.len()], values.to_vec()).cast(dtype).to_f64();
        let lost = values.iter().zip(held).find(|(value, held)| !dtype.is_float() && **value != *held);
        self.require(lost.is_none(), "table", &[], || {
            format!("{dtype} does not hold {}", lost.map_or(0.0, |(lost, _)| *lost))
        });
        let bits = values.iter().map(|value| value.to_bits()).collect();
        self.push_typed(Op::Table(bits), [].into(), ([values.len()].into(), dtype))
    }

    /// `0, 1, .., len - 1` (u32).
    #[track_caller]
    pub fn iota(&self, len: usize) -> Tensor<'_> {
        self.push(Op::Iota(len), &[])
    }

    /// Host data that each run supplies under this name.
    ///
    /// # Panics
    /// If the tape has an input of this name already: for the same data, use the same tensor.
    #[track_caller]
    pub fn input(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Tensor<'_> {
        let (shape, site) = (shape.into(), self.site());
        let first = self.inner.borrow().inputs.iter().find(|i| i.name == name).map(|i| i.site);
        if let Some(first) = first {
            let at = self.recorded_at();
            panic!(
                "input {name:?} of {dtype}{shape}: an input of this name exists already (recorded at {first}): reuse \
                 that tensor{at}"
            );
        }
        let id = {
            let inputs = &mut self.inner.borrow_mut().inputs;
            inputs.push(InputDecl { name: name.into(), shape: shape.clone(), dtype, site });
            InputId(inputs.len() as u32 - 1)
        };
        self.push_typed(Op::Input(id), [].into(), (shape, dtype))
    }

    /// As [`Tape::input`], but gives the input of this name if there is one: for programs whose parts do not know of
    /// each other.
    #[cfg(feature = "testing")]
    #[track_caller]
    pub fn shared_input(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Tensor<'_> {
        let shape = shape.into();
        let known = self.inner.borrow().inputs.iter().position(|i| i.name == name);
        match known {
            Some(known) => self.push_typed(Op::Input(InputId(known as u32)), [].into(), (shape, dtype)),
            None => self.input(name, shape, dtype),
        }
    }

    /// An input with the shape and type of an array.
    #[track_caller]
    pub fn input_like(&self, name: &str, array: &Array) -> Tensor<'_> {
        self.input(name, array.shape(), array.dtype())
    }

    // State: single assignment within a program.

    /// The latest value of a state on this tape: the value assigned last, else its value when the program starts.
    #[track_caller]
    pub fn state(&self, state: StateId) -> Tensor<'_> {
        let (rebound, current) = {
            let inner = self.inner.borrow();
            (
                inner.states.rebound.iter().rev().find_map(|r| r.get(&state).copied()),
                inner.states.now.get(&state).copied(),
            )
        };
        if let Some(id) = rebound.or(current) {
            return Tensor { tape: self, id };
        }
        let decl = self.layout.state(state);
        self.push_typed(Op::State(state), [].into(), (decl.shape.clone(), decl.dtype))
    }

    /// Makes `value` the state's value: for later reads on this tape at once, for later runs when the program ends.
    ///
    /// # Panics
    /// If the shape or type is not the state's, or within [`Tape::with_params`] of that state.
    #[track_caller]
    pub fn assign(&self, state: StateId, value: Tensor<'_>) {
        let id = self.fitting("assign to", state, value);
        let rebound = self.inner.borrow().states.rebound.iter().any(|r| r.contains_key(&state));
        let name = &self.layout.state(state).name;
        assert!(
            !rebound,
            "assign to {name:?}: a state cannot be assigned inside a `with_params` that replaces it; use \
             `Optimizer::update`"
        );
        let site = self.site();
        let mut inner = self.inner.borrow_mut();
        inner.states.now.insert(state, id);
        inner.states.versions.assigned.push((state, id, site));
        inner.facts.assign(state, site);
    }

    /// Remembers the value of a loss scale that a loss is multiplied by.
    #[track_caller]
    pub(crate) fn note_scale(&self, scale: StateId) {
        let id = self.state(scale).id;
        self.inner.borrow_mut().training.scaled_by.insert(scale, id);
    }

    /// True if a loss scale still has the noted value, or if it has scaled no loss on this tape.
    #[track_caller]
    pub(crate) fn scale_is_noted(&self, scale: StateId) -> bool {
        let id = self.state(scale).id;
        self.inner.borrow().training.scaled_by.get(&scale).is_none_or(|noted| *noted == id)
    }

    /// The latest values of the arenas that hold some parameters.
    #[track_caller]
    pub fn arenas(&self, params: &ParamSet) -> Flat<'_> {
        Flat::new(params.arenas(&self.layout).into_iter().map(|arena| (arena, self.state(arena))).collect())
    }

    /// The node of a value for a state. Panics if its shape or type is not the state's.
    #[track_caller]
    pub(crate) fn fitting(&self, what: &str, state: StateId, value: Tensor<'_>) -> NodeId {
        let decl = self.layout.state(state);
        assert!(
            decl.shape == value.shape() && decl.dtype == value.dtype(),
            "{what} {:?} of {}{}: the value is {}{}",
            decl.name,
            decl.dtype,
            decl.shape,
            value.dtype(),
            value.shape()
        );
        self.own(value, what)
    }

    /// Runs `f` with other values for whole arenas: a model on updated parameters, for gradients through an update.
    ///
    /// Within `f`, [`Tensor::grad`] differentiates with respect to these values, and goes no further back. After `f`,
    /// the gradient of its result flows through these values to the parameters that they were computed from.
    ///
    /// # Panics
    /// If a value does not have its arena's shape and type.
    #[track_caller]
    pub fn with_params<'t, R>(&'t self, values: &Flat<'t>, f: impl FnOnce() -> R) -> R {
        // A loop, not a closure: errors name the caller's line.
        let mut bindings = BTreeMap::new();
        for &(arena, value) in values.parts() {
            bindings.insert(arena, self.fitting("with_params", arena, value));
        }
        self.inner.borrow_mut().states.rebound.push(bindings);
        let result = f();
        self.inner.borrow_mut().states.rebound.pop();
        result
    }
}
