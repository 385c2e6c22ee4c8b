//! Vectors of kind `op`: one operation, and the gradient of `sum_k <cot_k, out_k>` with respect to some inputs.

mod basic;
mod loss;
mod movement;
mod nn;
mod recurrent;
mod reduction;
mod resampling;
mod second_order;

use super::{
    Attempt, Attributes, Refusal,
    kind::{Results, Vector},
};
use std::collections::BTreeMap;
use wgrad::{Array, Flat, Grads, Param, ParamSet, StateId, Store, Tape, Tensor};

/// An operation that vectors can name.
pub struct Operation {
    name: &'static str,
    form: Form,
}

/// The inputs and results of an operation, and the function that records it.
#[derive(Clone, Copy)]
pub enum Form {
    /// `y` of `x`.
    Unary(for<'t> fn(Tensor<'t>) -> Tensor<'t>),
    /// `y` of `a` and `b`.
    Binary(for<'t> fn(Tensor<'t>, Tensor<'t>) -> Tensor<'t>),
    /// `y` of any inputs and attributes.
    One(for<'t> fn(&Call<'t, '_>) -> Attempt<Tensor<'t>>),
    /// Several results.
    Several(for<'t> fn(&Call<'t, '_>) -> Attempt<Outputs<'t>>),
    /// `y`, by a gradient pass, which needs parameters for the gradients that it changes.
    PassOne(for<'t> fn(&Call<'t, '_>) -> Attempt<Tensor<'t>>),
    /// Several results, by a gradient pass.
    Pass(for<'t> fn(&Call<'t, '_>) -> Attempt<Outputs<'t>>),
}

/// Named results.
pub type Outputs<'t> = Vec<(String, Tensor<'t>)>;

/// The operations by subject.
const TABLES: [&[Operation]; 8] = [
    basic::OPERATIONS,
    reduction::OPERATIONS,
    movement::OPERATIONS,
    nn::OPERATIONS,
    resampling::OPERATIONS,
    loss::OPERATIONS,
    recurrent::OPERATIONS,
    second_order::OPERATIONS,
];

/// A row of a table.
const fn op(name: &'static str, form: Form) -> Operation {
    Operation { name, form }
}

fn find(name: &str) -> Attempt<&'static Operation> {
    let mut all = TABLES.iter().copied().flatten();
    all.find(|operation| operation.name == name).ok_or_else(|| Refusal::Operation(name.into()))
}

/// The arguments of an operation.
pub struct Call<'t, 'a> {
    /// The tape that records the operation.
    pub tape: &'t Tape,
    /// The attributes of the operation.
    pub attrs: Attributes<'a>,
    /// The inputs by name.
    pub inputs: BTreeMap<String, Tensor<'t>>,
    /// A parameter of the same shape for each input whose gradient is computed; empty for an operation that is no pass.
    params: BTreeMap<String, Param>,
}

impl<'t, 'a> Call<'t, 'a> {
    /// An input.
    pub fn input(&self, name: &str) -> Attempt<Tensor<'t>> {
        self.optional(name).ok_or_else(|| Refusal::Input(name.into()))
    }

    /// The input of this name, if there is one.
    pub fn optional(&self, name: &str) -> Option<Tensor<'t>> {
        self.inputs.get(name).copied()
    }

    /// Another call on the same tape.
    fn with(&self, inputs: BTreeMap<String, Tensor<'t>>, attrs: Attributes<'a>) -> Self {
        Self { tape: self.tape, attrs, inputs, params: BTreeMap::new() }
    }

    /// The same as [`Call::gradients`], with given values of the parameters: triples of name, value and gradient.
    fn gradients_at(&self, tensors: &[(&str, Tensor<'t>, Tensor<'t>)]) -> Attempt<(Grads<'t>, Vec<Param>)> {
        let layout = self.tape.layout();
        let mut arenas: BTreeMap<StateId, Vec<(usize, Tensor<'t>)>> = BTreeMap::new();
        for (name, value, _) in tensors {
            let param = self.params.get(*name).ok_or_else(|| Refusal::Input(name.to_string()))?;
            let decl = layout.param(*param);
            arenas.entry(decl.arena).or_default().push((decl.offset, value.reshape([value.numel()])));
        }
        let flat = |(arena, values): (StateId, Vec<(usize, Tensor<'t>)>)| {
            let len = layout.state(arena).shape.numel();
            let placed = values.into_iter().map(|(at, value)| value.pad(0, at, len - at - value.numel()));
            (arena, sum(placed).expect("an arena is there for a value"))
        };
        let values = Flat::new(arenas.into_iter().map(flat).collect());
        let gradients: Vec<(&str, Tensor<'t>)> = tensors.iter().map(|(name, _, gradient)| (*name, *gradient)).collect();
        self.tape.with_params(&values, || self.gradients(&gradients))
    }

    /// Makes tensors the gradients of parameters, as the gradient of `sum <param, tensor>`, so that a pass can change
    /// them. Each parameter has the name and shape of an input.
    fn gradients(&self, tensors: &[(&str, Tensor<'t>)]) -> Attempt<(Grads<'t>, Vec<Param>)> {
        let param = |name: &str| self.params.get(name).copied().ok_or_else(|| Refusal::Input(name.into()));
        let params: Vec<Param> = tensors.iter().map(|(name, _)| param(name)).collect::<Attempt<_>>()?;
        let products = params.iter().zip(tensors).map(|(param, (_, tensor))| self.tape.param(*param).dot(*tensor));
        let loss = sum(products).ok_or_else(|| Refusal::Unsupported("pass over no gradients".into()))?;
        Ok((loss.grad(&params.iter().copied().collect::<ParamSet>()), params))
    }
}

/// The sum of some tensors; `None` if there are none.
fn sum<'t>(tensors: impl IntoIterator<Item = Tensor<'t>>) -> Option<Tensor<'t>> {
    tensors.into_iter().reduce(|a, b| a + b)
}

/// The gradients of a scalar; zeros for a tensor that the scalar does not depend on.
fn gradients<'t>(of: Tensor<'t>, wrt: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    of.grad_wrt(wrt).into_iter().zip(wrt).map(|(gradient, x)| gradient.unwrap_or_else(|| x.zeros_like())).collect()
}

/// Records an operation.
fn record<'t>(operation: &Operation, call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let y = |y: Tensor<'t>| vec![("y".to_string(), y)];
    Ok(match operation.form {
        Form::Unary(f) => y(f(call.input("x")?)),
        Form::Binary(f) => y(f(call.input("a")?, call.input("b")?)),
        Form::One(f) | Form::PassOne(f) => y(f(call)?),
        Form::Several(f) | Form::Pass(f) => f(call)?,
    })
}

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    let operation = find(&vector.case.op)?;
    let (inputs, cotangents) = (vector.inputs("in/")?, vector.inputs("cot/")?);
    let (mut store, mut params) = (Store::new(), BTreeMap::new());
    if matches!(operation.form, Form::Pass(_) | Form::PassOne(_)) {
        for (name, value) in inputs.iter().filter(|(name, _)| vector.case.diff.contains(name)) {
            params.insert(name.clone(), store.param(name, &Array::zeros(value.shape(), value.dtype())));
        }
    }
    let mut session = vector.session(store)?;
    let tape = Tape::new(session.layout().clone());
    let declared = |prefix: &str, (name, value): &(String, Array)| {
        (name.clone(), tape.input_like(&format!("{prefix}{name}"), value))
    };
    let call = Call {
        tape: &tape,
        attrs: vector.attrs(),
        inputs: inputs.iter().map(|input| declared("in/", input)).collect(),
        params,
    };
    let outputs = record(operation, &call)?;
    let mut loss = None;
    for cotangent in &cotangents {
        let (name, cotangent) = declared("cot/", cotangent);
        let (_, output) = outputs.iter().find(|(output, _)| *output == name).ok_or_else(|| {
            Refusal::Misfit(format!("it has a cotangent for {name:?}, and the operation no such result"))
        })?;
        loss = sum(loss.into_iter().chain([output.dot(cotangent)]));
    }
    for (name, output) in &outputs {
        tape.tap(&format!("out/{name}"), *output);
    }
    let wrt: Vec<Tensor<'_>> = vector.case.diff.iter().map(|name| call.input(name)).collect::<Attempt<_>>()?;
    let gradients = match loss {
        Some(loss) => gradients(loss, &wrt),
        None => wrt.iter().map(|x| x.zeros_like()).collect(),
    };
    for (name, gradient) in vector.case.diff.iter().zip(gradients) {
        tape.tap(&format!("grad/{name}"), gradient);
    }
    drop(call);
    let step = session.compile(tape.finish())?;
    let named = |prefix: &'static str, values: &'_ [(String, Array)]| -> Vec<(String, Array)> {
        values.iter().map(|(name, value)| (format!("{prefix}{name}"), value.clone())).collect()
    };
    let given: Vec<(String, Array)> = [named("in/", &inputs), named("cot/", &cotangents)].concat();
    let given: Vec<(&str, &Array)> = given.iter().map(|(name, value)| (name.as_str(), value)).collect();
    session.run(&step, &given)?;
    session.wait()?;
    let taps = session.taps()?;
    Ok(taps.iter().flat_map(|taps| taps.iter()).map(|(name, value)| (name.into(), value.clone())).collect())
}
