//! The subject of a check: a function with its inputs and parameters, recorded as one scalar over inputs of a program.

use super::error::{GradcheckError, Order, Source};
use crate::{Array, DType, Flat, Param, ParamSet, Program, Session, Shape, Tape, Tensor, op::Place};

/// A function of inputs and parameters.
pub(super) struct Subject<'a, F> {
    inputs: &'a [Array],
    /// The parameters that are sources too, with their values.
    params: Vec<(Param, String, Array)>,
    f: F,
}

/// Arrays for the inputs of a program.
pub(super) struct Arrays(Vec<(String, Array)>);

impl Arrays {
    pub fn named(&self) -> Vec<(&str, &Array)> {
        self.0.iter().map(|(name, array)| (name.as_str(), array)).collect()
    }
}

/// A recording.
pub(super) struct Recorded<'t> {
    /// The variables of a derivative: the float inputs, then the parameters.
    pub leaves: Vec<Tensor<'t>>,
    /// A scalar.
    pub value: Tensor<'t>,
}

impl<'a, F: for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>> Subject<'a, F> {
    pub fn new(session: &mut Session, params: &ParamSet, inputs: &'a [Array], f: F) -> Result<Self, GradcheckError> {
        for (i, input) in inputs.iter().enumerate().filter(|(_, input)| input.dtype().is_float()) {
            wide(|| format!("input {i}"), input.dtype())?;
        }
        let read = |param: Param| {
            let path = session.layout().param(param).path.clone();
            let value = session.read_param(param)?;
            wide(|| format!("parameter {path:?}"), value.dtype())?;
            Ok((param, path, value))
        };
        let params = params.iter().map(read).collect::<Result<_, GradcheckError>>()?;
        Ok(Self { inputs, params, f })
    }

    /// The variables of a derivative, with their values.
    pub fn sources(&self) -> impl Iterator<Item = (Source, &Array)> {
        let inputs = self.inputs.iter().enumerate().filter(|(_, input)| input.dtype().is_float());
        let inputs = inputs.map(|(i, input)| (Source::Input(i), input));
        inputs.chain(self.params.iter().map(|(_, path, value)| (Source::Param(path.clone()), value)))
    }

    /// The name of a source in the program.
    fn name(source: &Source) -> String {
        match source {
            Source::Input(i) => format!("input {i}"),
            Source::Param(path) => format!("param {path}"),
        }
    }

    /// All arrays as given.
    pub fn arrays(&self) -> Arrays {
        let inputs = self.inputs.iter().enumerate().map(|(i, input)| (Self::name(&Source::Input(i)), input.clone()));
        let params =
            self.params.iter().map(|(_, path, value)| (Self::name(&Source::Param(path.clone())), value.clone()));
        Arrays(inputs.chain(params).collect())
    }

    /// All arrays, with source number `s` moved by `h` times a direction.
    pub fn moved(&self, s: usize, direction: &[f64], h: f64) -> Arrays {
        let (source, array) = self.sources().nth(s).expect("a source");
        let mut arrays = self.arrays();
        let name = Self::name(&source);
        let place = arrays.0.iter_mut().find(|(n, _)| *n == name).expect("every source has a name");
        place.1 = shifted(array, direction, h);
        arrays
    }

    /// Records the function's elements summed with weights, or the slope of this sum in a fixed direction.
    pub fn record<'t>(&self, tape: &'t Tape, order: Order) -> Result<Recorded<'t>, GradcheckError> {
        let x: Vec<Tensor<'t>> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| tape.input_like(&Self::name(&Source::Input(i)), input))
            .collect();
        let moved: Vec<(Param, Tensor<'t>)> = self
            .params
            .iter()
            .map(|(param, path, value)| (*param, tape.input_like(&Self::name(&Source::Param(path.clone())), value)))
            .collect();
        let y = tape.with_params(&arenas(tape, &moved), || (self.f)(tape, &x));
        // The function may tap values of its own, which the check does not need.
        tape.forget_taps();
        wide(|| "the result".into(), y.dtype())?;
        let floats = x.into_iter().filter(|x| x.dtype().is_float());
        let leaves: Vec<Tensor<'t>> = floats.chain(moved.into_iter().map(|(_, x)| x)).collect();
        let value = (y * generic(tape, &y.shape(), 0.3)).sum();
        if order == Order::First {
            return Ok(Recorded { leaves, value });
        }
        let mut slope = tape.scalar(0.0, DType::F64);
        for (i, g) in value.grad_wrt(&leaves).into_iter().enumerate() {
            if let Some(g) = g {
                slope += (g * generic(tape, &g.shape(), i as f64)).sum();
            }
        }
        // Hooks may have tapped values, too.
        tape.forget_taps();
        Ok(Recorded { leaves, value: slope })
    }

    /// A program that taps the value.
    pub fn value(&self, session: &Session, order: Order) -> Result<Program, GradcheckError> {
        let tape = Tape::new(session.layout().clone());
        let value = self.record(&tape, order)?.value;
        tape.tap("value", value);
        Ok(tape.finish())
    }

    /// The recorded derivative by each source; `None` if the value does not depend on it.
    pub fn gradients(&self, session: &mut Session, order: Order) -> Result<Vec<Option<Vec<f64>>>, GradcheckError> {
        let tape = Tape::new(session.layout().clone());
        let Recorded { leaves, value } = self.record(&tape, order)?;
        let gradients = value.grad_wrt(&leaves);
        let reached: Vec<bool> = gradients.iter().map(Option::is_some).collect();
        tape.forget_taps();
        gradients.into_iter().flatten().for_each(|g| tape.tap_each("gradient", g));
        let mut program = tape.finish();
        program.commits.clear();
        let step = session.compile(program)?;
        let taps = session.run_now(&step, &self.arrays().named())?;
        let mut found = taps.iter().map(|(_, g)| g.to_f64());
        Ok(reached.into_iter().map(|reached| reached.then(|| found.next().expect("tapped"))).collect())
    }
}

/// The arenas with some parameters replaced.
fn arenas<'t>(tape: &'t Tape, moved: &[(Param, Tensor<'t>)]) -> Flat<'t> {
    let set: ParamSet = moved.iter().map(|(param, _)| *param).collect();
    tape.arenas(&set).map(|arena, value| {
        let parts: Vec<(Place, Tensor<'t>)> = tape
            .layout
            .members(arena)
            .into_iter()
            .map(|member| {
                let decl = tape.layout.param(member);
                let own = moved.iter().find(|(param, _)| *param == member);
                let numel = decl.shape.numel();
                let part = own.map_or_else(|| value.slice(0, decl.offset, numel), |(_, x)| x.reshape([numel]));
                (Place { start: decl.offset, step: 1 }, part)
            })
            .collect();
        Tensor::assemble(&parts, 0, value.numel())
    })
}

/// Numbers from 0.5 to 1.5, no two alike, in a shape.
fn generic<'t>(tape: &'t Tape, shape: &Shape, phase: f64) -> Tensor<'t> {
    ((tape.iota(shape.numel()).cast(DType::F64) * 0.7 + phase).cos() * 0.5 + 1.0).reshape(shape)
}

/// An array moved by `h` times a direction.
pub(super) fn shifted(array: &Array, direction: &[f64], h: f64) -> Array {
    Array::new(array.shape(), array.to_f64().iter().zip(direction).map(|(x, d)| x + h * d).collect::<Vec<f64>>())
}

fn wide(what: impl Fn() -> String, dtype: DType) -> Result<(), GradcheckError> {
    if dtype == DType::F64 { Ok(()) } else { Err(GradcheckError::NotF64 { what: what(), dtype }) }
}
