//! The inputs of a loss, and its results.

use crate::train::Edit;
use std::{cell::RefCell, collections::BTreeMap};
use wgrad::{Array, Site, Tape, Tensor};

/// The inputs of a micro-batch on a tape.
pub struct Inputs<'t> {
    pub(super) tape: &'t Tape,
    pub(super) named: Vec<(String, Tensor<'t>)>,
    /// The inputs that the loss has asked for, and the lines that asked.
    pub(super) asked: RefCell<Asked>,
}

/// Names of inputs, and the lines that ask for them.
pub(super) type Asked = BTreeMap<String, Site>;

impl<'t> Inputs<'t> {
    #[track_caller]
    pub(crate) fn declare(tape: &'t Tape, arrays: &[(&str, &Array)]) -> Self {
        let mut named = Vec::with_capacity(arrays.len());
        for (name, array) in arrays {
            named.push((name.to_string(), tape.input_like(name, array)));
        }
        Self { tape, named, asked: RefCell::default() }
    }

    /// Changes an input as an edit asks.
    #[track_caller]
    pub(super) fn edit(&mut self, edit: &Edit) {
        let Edit::Input { name, shift, scale } = edit else { return };
        for (known, x) in &mut self.named {
            if known == name && x.dtype().is_float() {
                *x = (*x - *shift) * *scale;
            }
        }
    }

    /// The tape.
    pub fn tape(&self) -> &'t Tape {
        self.tape
    }

    /// An input by its name, with the shape and type of the micro-batch's data.
    ///
    /// # Panics
    /// If neither this micro-batch nor an earlier one has such an input.
    #[track_caller]
    pub fn get(&self, name: &str) -> Tensor<'t> {
        self.asked.borrow_mut().entry(name.into()).or_insert(Site::caller());
        // Panic outside a closure, so that the message names the caller's line.
        let Some((_, found)) = self.named.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
            panic!("trainer: the micro-batch has no input {name:?}: it has {}", known.join(", "))
        };
        *found
    }
}

/// The loss of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'t> {
    pub(crate) value: Tensor<'t>,
    pub(crate) tokens: Option<Tensor<'t>>,
}

impl<'t> Loss<'t> {
    /// A loss that is a mean over `tokens` tokens (u32 scalar), for [`wgrad::Weighting::TokenWeighted`].
    pub fn over_tokens(value: Tensor<'t>, tokens: Tensor<'t>) -> Self {
        Self { value, tokens: Some(tokens) }
    }

    /// The loss, changed as an edit asks.
    #[track_caller]
    pub(crate) fn edited(self, edit: &Edit) -> Self {
        match edit {
            Edit::Loss(factor) => Self { value: self.value * *factor, ..self },
            _ => self,
        }
    }

    /// The loss; 0 if it is the mean over no token, which is NaN.
    #[track_caller]
    pub(super) fn or_nothing(self) -> Tensor<'t> {
        self.tokens.map_or(self.value, |tokens| tokens.equals(0.0).select(self.value.zeros_like(), self.value))
    }
}

impl<'t> From<Tensor<'t>> for Loss<'t> {
    fn from(value: Tensor<'t>) -> Self {
        Self { value, tokens: None }
    }
}
