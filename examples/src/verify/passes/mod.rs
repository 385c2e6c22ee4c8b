//! Vectors of kind `pass`: gradient passes, on given gradients or on the gradients of small losses.

mod accumulate;
mod clip;
mod finite;
mod hooks;
mod units;

use super::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{Array, DType, Grads, Param, ParamSet, Store, Tape, Tensor};

/// A pass that vectors can name, and the function that runs one.
struct Pass {
    name: &'static str,
    run: fn(&Vector<'_>) -> Attempt<Results>,
}

/// The passes by subject.
const TABLES: [&[Pass]; 5] = [clip::PASSES, units::PASSES, accumulate::PASSES, finite::PASSES, hooks::PASSES];

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    let mut all = TABLES.iter().copied().flatten();
    let pass = all.find(|pass| pass.name == vector.case.op);
    (pass.ok_or_else(|| Refusal::Operation(vector.case.op.clone()))?.run)(vector)
}

/// A program while it is recorded, over a store with some parameters.
struct Recording<'t> {
    tape: &'t Tape,
    /// The parameters, in the order of their declaration.
    params: Vec<Param>,
    inputs: &'t [(String, Array)],
}

impl<'t> Recording<'t> {
    /// An input of the vector.
    fn input(&self, name: &str) -> Attempt<Tensor<'t>> {
        let (name, array) = find(self.inputs, name)?;
        Ok(self.tape.input_like(name, array))
    }

    /// Taps a result of the vector.
    fn out(&self, name: &str, value: Tensor<'t>) {
        self.tape.tap(&format!("out/{name}"), value);
    }

    /// All parameters.
    fn all(&self) -> ParamSet {
        self.params.iter().copied().collect()
    }

    /// The gradient of a loss with respect to all parameters.
    fn gradient(&self, loss: Tensor<'t>) -> Grads<'t> {
        loss.grad(&self.all()).even_if_absent()
    }

    /// Makes tensors the gradients of parameters, as the gradient of `sum <param, tensor>`, so that a pass can change
    /// them. Parameters that are not listed have no gradient.
    fn given(&self, gradients: &[(Param, Tensor<'t>)]) -> Grads<'t> {
        // The sum needs one type, even if the parameters have several.
        let products = gradients.iter().map(|(param, g)| self.tape.param(*param).dot(*g));
        let products: Vec<Tensor<'t>> = products.collect();
        let dtype = products.iter().map(|product| product.dtype()).min().unwrap_or(DType::F32);
        let start = self.tape.scalar(0.0, dtype);
        self.gradient(products.into_iter().fold(start, |sum, product| sum + product.cast(dtype)))
    }
}

fn find<'a>(inputs: &'a [(String, Array)], name: &str) -> Attempt<&'a (String, Array)> {
    inputs.iter().find(|(input, _)| input == name).ok_or_else(|| Refusal::Input(name.into()))
}

/// A parameter's gradient.
fn present<'t>(grads: &Grads<'t>, param: Param) -> Tensor<'t> {
    grads.get(param).expect("the gradient is present")
}

/// Zeros of the shape and type of an array: a parameter whose value does not matter.
fn zeros(array: &Array) -> Array {
    Array::zeros(array.shape(), array.dtype())
}

/// Declares parameters and the states of a pass, records a program, and runs it once.
fn recorded<D>(
    vector: &Vector<'_>,
    inputs: &[(String, Array)],
    params: &[(String, Array)],
    declare: impl FnOnce(&mut Store, &ParamSet) -> D,
    record: impl FnOnce(&Recording<'_>, &D) -> Attempt<()>,
) -> Attempt<Results> {
    let mut store = Store::new();
    let params: Vec<Param> = params.iter().map(|(name, value)| store.param(name, value)).collect();
    let declared = declare(&mut store, &params.iter().copied().collect());
    let mut session = vector.session(store)?;
    let tape = Tape::new(session.layout().clone());
    record(&Recording { tape: &tape, params, inputs }, &declared)?;
    let step = session.compile(tape.finish())?;
    let used: Vec<(&str, &Array)> = inputs
        .iter()
        .filter(|(name, _)| step.inputs().iter().any(|input| input.name == *name))
        .map(|(name, array)| (name.as_str(), array))
        .collect();
    session.run(&step, &used)?;
    session.wait()?;
    let taps = session.taps()?;
    Ok(taps.iter().flat_map(|taps| taps.iter()).map(|(name, value)| (name.into(), value.clone())).collect())
}

/// The extents of an input's first `dims` dimensions, and those of the others.
fn without_leading(array: &Array, dims: usize) -> Attempt<(Vec<usize>, Vec<usize>)> {
    let shape = array.shape();
    if shape.rank() < dims {
        return Err(Refusal::Unsupported(format!("gradients of shape {shape}, without {dims} leading dimensions")));
    }
    Ok((shape[..dims].to_vec(), shape[dims..].to_vec()))
}
