//! Composed operations at the ends of a type's range: what a step on the way does not hold, the result may.

use wgrad::{Array, CrossEntropy, DType, Data, Store, Tape, Tensor};
use wgrad_tests::{Machine, Tolerance, compare, reference};

/// Runs `f` on the CPU and on the reference, and requires values of both.
fn expect<const N: usize>(
    what: &str,
    inputs: [Array; N],
    f: impl for<'t> Fn([Tensor<'t>; N]) -> Tensor<'t>,
    want: &[f64],
) {
    let t = Tape::default();
    let inputs: Vec<(String, Array)> = inputs.into_iter().enumerate().map(|(i, x)| (format!("x{i}"), x)).collect();
    t.tap("y", f(std::array::from_fn(|i| t.input_like(&inputs[i].0, &inputs[i].1))));
    let program = t.finish();
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program.clone()).expect("the plan compiles");
    let have = cpu.run(&step, &inputs).tap("y").to_f64();
    let reference = reference(&program, &[], &inputs).taps.remove(0).2;
    for (who, have) in [("the CPU", have), ("the reference", reference)] {
        let head = &have[..want.len().min(have.len())];
        compare(&format!("{what} on {who}"), head, want, Tolerance(2e-3)).unwrap();
    }
}

fn vector(dtype: DType, values: &[f64]) -> Array {
    Array::new([values.len()], Data::from_f64(dtype, values))
}

/// The gradient of the sum of what `f` gives.
fn slope<'t>(x: Tensor<'t>, f: impl Fn(Tensor<'t>) -> Tensor<'t>) -> Tensor<'t> {
    f(x).sum().grad_wrt(&[x])[0].expect("reached")
}

#[test]
fn means_of_f16_do_not_overflow_on_the_way() {
    let f16s = |n: usize, value: f64| vector(DType::F16, &vec![value; n]);
    expect("mean of many", [f16s(70_000, 1.5)], |[x]| x.mean(), &[1.5]);
    expect("mean of large ones", [f16s(1000, 100.0)], |[x]| x.mean(), &[100.0]);
    let far = vector(DType::F16, &[300.0, -300.0, 0.0, 0.0]);
    expect("variance", [far.clone()], |[x]| x.var_axes(&[0]), &[45_000.0]);
    expect("unbiased variance", [far.clone()], |[x]| x.var_axes_with(&[0], 1.0), &[60_000.0]);
    let far = vector(DType::F16, &[300.0, -300.0]);
    expect("layer_norm", [far.clone()], |[x]| x.layer_norm(1, None, None, 1e-5), &[1.0, -1.0]);
    expect("rms_norm", [far], |[x]| x.rms_norm(1, None, 1e-5), &[1.0, -1.0]);
    expect("softmax", [f16s(70_000, 1.0)], |[x]| x.softmax(0), &[1.0 / 70_000.0]);
    expect("logsumexp", [f16s(70_000, 1.0)], |[x]| x.logsumexp(0), &[1.0 + 70_000f64.ln()]);
    for ignore_index in [None, Some(9)] {
        let options = CrossEntropy { ignore_index, ..CrossEntropy::default() };
        let inputs = [f16s(140_000, 1.0), vector(DType::U32, &[0.0; 70_000])];
        expect(
            "cross_entropy",
            inputs,
            |[x, targets]| x.reshape([70_000, 2]).cross_entropy_with(targets, &options),
            &[2f64.ln()],
        );
    }
}

#[test]
fn gradients_of_activations_neither_overflow_nor_underflow() {
    let f16s = vector(DType::F16, &[300.0, -300.0, 60_000.0]);
    expect("gelu_tanh", [f16s], |[x]| slope(x, |x| x.gelu_tanh()), &[1.0, 0.0, 1.0]);
    let singles = vector(DType::F32, &[1e20, -1e20, f64::INFINITY]);
    expect("gelu_tanh", [singles], |[x]| slope(x, |x| x.gelu_tanh()), &[1.0, 0.0, 1.0]);
    // By way of 1 / e^9.9 the gradient would be less than a half can be.
    let f16s = vector(DType::F16, &[9.9, 8.0, 300.0]);
    expect("softplus", [f16s], |[x]| slope(x, |x| x.softplus() * 1e-3) * 1e3, &[1.0, 1.0, 1.0]);
}

#[test]
fn the_least_integer_has_an_order_and_no_negative() {
    let least = f64::from(i32::MIN);
    let x = || vector(DType::I32, &[0.0, least, 5.0]);
    expect("neg", [x()], |[x]| -x, &[0.0, least, -5.0]);
    expect("abs", [x()], |[x]| x.abs(), &[0.0, least, 5.0]);
    expect("min", [x()], |[x]| x.min(), &[least]);
    expect("argmin", [x()], |[x]| x.argmin(0), &[1.0]);
    expect("minimum", [x()], |[x]| x.minimum(1.0), &[0.0, least, 1.0]);
    expect("min of nothing", [vector(DType::I32, &[])], |[x]| x.min(), &[f64::from(i32::MAX)]);
    let x = || vector(DType::U32, &[3.0, 2.0, f64::from(u32::MAX)]);
    expect("min", [x()], |[x]| x.min(), &[2.0]);
    expect("argmin", [x()], |[x]| x.argmin(0), &[1.0]);
    expect("minimum", [x()], |[x]| x.minimum(2.0), &[2.0, 2.0, 2.0]);
    let bools = vector(DType::Bool, &[1.0, 0.0]);
    expect("min", [bools], |[x]| x.min(), &[0.0]);
}
