//! Modules: what they compute, that their gradients are right, and what they refuse.

mod attention;
mod channel_norms;
mod gradients;
mod kv_cache;
mod recurrent_stack;
mod rotary;
mod statistics;
mod towers;
mod training;
mod values;

use approx::assert_relative_eq;
use wgrad::{Array, DType, Session, Shape, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::Builder;

/// A session over what was declared.
fn session(store: Store) -> Session {
    Session::new(Box::new(CpuBackend::poisoned(1).expect("one thread")), store).expect("a device with room")
}

/// A module of f64 parameters, and the session that holds them.
fn declared<M>(declare: impl FnOnce(Builder<'_>) -> M) -> (M, Session) {
    let mut store = Store::new();
    let module = declare(Builder::new(&mut store, 5).with_dtype(DType::F64));
    (module, session(store))
}

/// Numbers between -1.5 and 1.5 without a pattern that a normalisation would hide.
fn numbers(shape: impl Into<Shape>, turn: usize) -> Array {
    let shape = shape.into();
    let number = |i: usize| 1.5 * ((i * i + 3 * i + 1) as f64 * 0.7 + turn as f64).sin();
    Array::new(&shape, (0..shape.numel()).map(number).collect::<Vec<f64>>())
}

/// Replaces the parameter at a path.
fn write(session: &mut Session, path: &str, values: &[f64]) {
    let found = session.layout().params().find(|(_, p)| p.path == path).map(|(id, p)| (id, p.shape.clone()));
    let (id, shape) = found.expect("declared");
    session.write_param(id, &Array::new(shape, values.to_vec())).expect("of its shape");
}

/// The values of the parameter at a path.
fn read(session: &mut Session, path: &str) -> Vec<f64> {
    let found = session.layout().params().find(|(_, p)| p.path == path).map(|(id, _)| id);
    session.read_param(found.expect("declared")).expect("readable").to_f64()
}

/// What a function gives.
fn eval(session: &mut Session, x: &Array, f: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t>) -> Array {
    session.eval(&[("x", x)], |t: &Tape| f(t.input_like("x", x))).expect("it runs")
}

/// Requires of two lists of numbers that they are the same up to rounding in f64.
#[track_caller]
fn assert_close(have: &[f64], want: &[f64]) {
    assert_relative_eq!(*have, *want, epsilon = 1e-12, max_relative = 1e-12);
}
