//! Pascanu's regulariser against the paper's formula, worked out by hand.

use approx::abs_diff_eq;
use wgrad::{Array, DType, Session, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{Builder, Cell, Init, Recurrent, RecurrentInit, omega};

const TIME: usize = 4;
const BATCH: usize = 2;
const HIDDEN: usize = 3;

/// What the formula is made of: the regulariser, its gradient, and errors and activations `[time, batch, hidden]`.
struct Parts {
    omega: f64,
    gradient: Vec<f64>,
    errors: Vec<f64>,
    h: Vec<f64>,
    w: Vec<f64>,
}

fn parts(cell: Cell) -> Parts {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 5).with_dtype(DType::F64);
    let init = RecurrentInit::normal(0.7);
    let layer = Recurrent::new(b.at("rnn"), cell, 2, HIDDEN, &init);
    let readout = b.param("readout", [HIDDEN], &Init::Normal(1.0));
    let params = store.params();
    let x = Array::new([TIME, BATCH, 2], (0..TIME * BATCH * 2).map(|i| (i as f64 * 1.7).sin()).collect::<Vec<f64>>());
    let mut session = Session::new(Box::new(CpuBackend::poisoned(1).expect("threads")), store).expect("session");
    let record = |t: &Tape| {
        let outputs = layer.unrolled(t.input_like("x", &x));
        let loss = (outputs.last * t.param(readout)).sum().square();
        let value = omega(loss, &layer, &outputs);
        t.tap("omega", value);
        let gradient = value.grad(&params);
        t.tap("gradient", gradient.get(layer.weight_hh).expect("reached"));
        assert_eq!(gradient.present().len(), 1, "errors and activations are constants: weight_hh alone is reached");
        let errors: Vec<Tensor<'_>> = loss.grad_wrt(&outputs.steps()).into_iter().flatten().collect();
        t.tap("errors", Tensor::stack(&errors));
        t.tap("h", outputs.stacked());
    };
    let step = session.record(record).expect("compiles");
    session.run(&step, &[("x", &x)]).expect("runs");
    let w = session.read_param(layer.weight_hh).expect("reads").to_f64();
    let taps = session.taps().expect("taps").remove(0);
    let all = |name: &str| taps.get(name).expect("tapped").to_f64();
    Parts { omega: all("omega")[0], gradient: all("gradient"), errors: all("errors"), h: all("h"), w }
}

/// The slope of an activation, given its value.
type Slope = fn(f64) -> f64;

/// `mean (|e_(t+1) diag(slope) W| / |e_(t+1)| - 1)^2`, for given weights.
fn formula(parts: &Parts, w: &[f64], slope: Slope) -> f64 {
    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    let mut sum = 0.0;
    for row in BATCH..TIME * BATCH {
        let range = row * HIDDEN..(row + 1) * HIDDEN;
        let (e, h) = (&parts.errors[range.clone()], &parts.h[range]);
        let back: Vec<f64> =
            (0..HIDDEN).map(|j| (0..HIDDEN).map(|i| e[i] * slope(h[i]) * w[i * HIDDEN + j]).sum()).collect();
        sum += (norm(&back) / norm(e) - 1.0).powi(2);
    }
    sum / ((TIME - 1) * BATCH) as f64
}

#[test]
fn value_and_immediate_gradient_are_the_papers() {
    let slopes: [(Cell, Slope); 3] =
        [(Cell::Tanh, |h| 1.0 - h * h), (Cell::Sigmoid, |h| h * (1.0 - h)), (Cell::Irnn, |h| (h > 0.0) as u8 as f64)];
    for (cell, slope) in slopes {
        let parts = parts(cell);
        let value = formula(&parts, &parts.w, slope);
        assert!(
            value > 1e-3 && abs_diff_eq!(parts.omega, value, epsilon = 1e-12),
            "{cell:?}: {} and {value}",
            parts.omega
        );
        for i in 0..parts.w.len() {
            let moved = |by: f64| {
                let mut w = parts.w.clone();
                w[i] += by;
                formula(&parts, &w, slope)
            };
            let numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!(
                abs_diff_eq!(parts.gradient[i], numeric, epsilon = 1e-8),
                "{cell:?} {i}: {} and {numeric}",
                parts.gradient[i]
            );
        }
    }
}

#[test]
#[should_panic(expected = "lstm has gates")]
fn a_gated_layer_is_refused() {
    let mut store = Store::new();
    let layer = Recurrent::new(Builder::new(&mut store, 0).at("l"), Cell::Lstm, 2, 3, &RecurrentInit::of(Cell::Lstm));
    let t = Tape::new(store.into_parts().0);
    let outputs = layer.unrolled(t.input("x", [3, 1, 2], DType::F32));
    omega(outputs.last.sum(), &layer, &outputs);
}

#[test]
#[should_panic(expected = "needs the outputs of `unrolled`")]
fn steps_without_errors_of_their_own_are_refused() {
    let mut store = Store::new();
    let layer = Recurrent::new(Builder::new(&mut store, 0).at("l"), Cell::Tanh, 2, 3, &RecurrentInit::of(Cell::Tanh));
    let t = Tape::new(store.into_parts().0);
    let outputs = layer.forward(t.input("x", [3, 1, 2], DType::F32));
    omega(outputs.last.sum(), &layer, &outputs);
}
