//! Gradients and values where functions have kinks, poles or no value: zeros, ties, infinities, NaN. The conventions are
//! those of `gradient-passes.md`, section 9.

use wgrad::{Array, DType, Store, Tape, Tensor};
use wgrad_tests::{Machine, Tolerance, compare, reference};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// Requires values and gradients of `f(x).sum()`, on the CPU in every float type and on the reference.
fn expect(what: &str, x: &[f64], f: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t>, value: &[f64], gradient: &[f64]) {
    for (dtype, tolerance) in [(DType::F64, 1e-6), (DType::F32, 1e-6), (DType::F16, 2e-3)] {
        let tolerance = Tolerance(tolerance);
        let t = Tape::default();
        let input = t.input("x", [x.len()], dtype);
        let y = f(input);
        t.tap("y", y);
        t.tap("dx", y.sum().grad_wrt(&[input])[0].expect("reached"));
        let program = t.finish();
        let inputs = [("x".to_string(), Array::new([x.len()], x.to_vec()).cast(dtype))];
        let mut cpu = Machine::poisoned(1, Store::new());
        let step = cpu.session.compile(program.clone()).expect("the plan compiles");
        let have = cpu.run(&step, &inputs);
        let want = reference(&program, &[], &inputs);
        for (k, (name, want_here)) in [("y", value), ("dx", gradient)].into_iter().enumerate() {
            compare(&format!("{what}: {name} of {dtype}"), &have.tap(name).to_f64(), want_here, tolerance).unwrap();
            compare(&format!("{what}: {name} of the reference"), &want.taps[k].2, want_here, tolerance).unwrap();
        }
    }
}

#[test]
fn kinks() {
    expect("relu", &[0.0, -0.0, 1.0, -1.0], |x| x.relu(), &[0.0, 0.0, 1.0, 0.0], &[0.0, 0.0, 1.0, 0.0]);
    expect("abs", &[0.0, -2.0], |x| x.abs(), &[0.0, 2.0], &[0.0, -1.0]);
    expect("max, tied", &[3.0], |x| x.maximum(x.detach()), &[3.0], &[0.5]);
    expect("max, tied on the right", &[3.0], |x| x.detach().maximum(x), &[3.0], &[0.5]);
    expect("min, tied", &[3.0], |x| x.minimum(x.detach()), &[3.0], &[0.5]);
    expect(
        "max of a row",
        &[1.0, 5.0, 5.0, 5.0],
        |x| x.max_axes(&[0]),
        &[5.0],
        &[0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0],
    );
    expect(
        "first of equal maxima",
        &[1.0, 5.0, 5.0],
        |x| x.gather(x.argmax(0).reshape([1]), 0),
        &[5.0],
        &[0.0, 1.0, 0.0],
    );
}

#[test]
fn poles() {
    expect("sqrt", &[0.0, 4.0], |x| x.sqrt(), &[0.0, 2.0], &[INF, 0.25]);
    expect("guarded sqrt", &[0.0, 4.0], |x| x.guarded_sqrt(), &[0.0, 2.0], &[0.0, 0.25]);
    expect("norm of zeros", &[0.0, 0.0], |x| x.norm(), &[0.0], &[0.0, 0.0]);
    expect("norm", &[3.0, -4.0, 0.0], |x| x.norm(), &[5.0], &[0.6, -0.8, 0.0]);
    expect("norm, all negative", &[-3.0, -4.0], |x| x.norm(), &[5.0], &[-0.6, -0.8]);
    expect("log", &[0.0], |x| x.log(), &[-INF], &[INF]);
    expect("recip", &[0.0], |x| x.recip(), &[INF], &[-INF]);
    expect("not taken", &[0.0, 1.0], |x| x.equals(0.0).select(x * 2.0, x.recip()), &[0.0, 1.0], &[NAN, -1.0]);
}

#[test]
fn powers() {
    expect("x^0", &[0.0, 2.0], |x| x.pow(0.0), &[1.0, 1.0], &[0.0, 0.0]);
    expect("x^1", &[0.0, 2.0], |x| x.pow(1.0), &[0.0, 2.0], &[1.0, 1.0]);
    expect("x^2", &[0.0, -3.0], |x| x.pow(2.0), &[0.0, 9.0], &[0.0, -6.0]);
    expect("x^0.5", &[0.0, 4.0], |x| x.pow(0.5), &[0.0, 2.0], &[INF, 0.25]);
    expect("0^p", &[2.0, 1.0], |x| x.zeros_like().pow(x), &[0.0, 0.0], &[0.0, 0.0]);
    expect("0^0 in p", &[0.0], |x| x.zeros_like().pow(x), &[1.0], &[0.0]);
    expect("2^p", &[0.0, 3.0], |x| (x.zeros_like() + 2.0).pow(x), &[1.0, 8.0], &[2f64.ln(), 8.0 * 2f64.ln()]);
}

#[test]
fn powers_have_finite_derivatives_of_third_order_at_0() {
    for (power, expected) in [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 6.0)] {
        let t = Tape::default();
        let x = t.input("x", [], DType::F64);
        let mut y = x.pow(power);
        for _ in 0..3 {
            y = y.grad_wrt(&[x])[0].unwrap_or(t.scalar(0.0, DType::F64));
        }
        t.tap("d3", y);
        let out = reference(&t.finish(), &[], &[("x".to_string(), Array::scalar(0.0))]);
        assert_eq!(out.taps[0].2, [expected], "x^{power}");
    }
}

#[test]
fn infinities_and_nan() {
    expect("softmax with -inf", &[-INF, 0.0, 0.0], |x| x.softmax(0).slice(0, 0, 2), &[0.0, 0.5], &[0.0, 0.25, -0.25]);
    expect("logsumexp, large", &[1e4, 1e4], |x| x.logsumexp(0), &[1e4 + 2f64.ln()], &[0.5, 0.5]);
    expect("sigmoid, large", &[-1e4, 1e4], |x| x.sigmoid(), &[0.0, 1.0], &[0.0, 0.0]);
    expect("tanh, large", &[-1e4, 1e4], |x| x.tanh(), &[-1.0, 1.0], &[0.0, 0.0]);
    expect("relu of NaN", &[NAN], |x| x.relu(), &[NAN], &[1.0]);
    let value = |x: &[f64], f: for<'t> fn(Tensor<'t>) -> Tensor<'t>| {
        let mut cpu = Machine::poisoned(1, Store::new());
        let array = Array::new([x.len()], x.to_vec()).cast(DType::F32);
        let y = cpu.session.eval(&[("x", &array)], |t| f(t.input_like("x", &array))).expect("evaluated");
        y.to_f64()
    };
    assert!(value(&[1.0, NAN, 3.0], |x| x.max())[0].is_nan(), "NaN wins a maximum");
    assert!(value(&[NAN, 1.0], |x| x.maximum(0.0))[0].is_nan());
    assert_eq!(value(&[1.0, NAN, 3.0], |x| x.argmax(0)), [1.0], "NaN counts as largest");
    assert_eq!(value(&[], |x| x.max()), [-INF]);
    assert_eq!(value(&[], |x| x.sum()), [0.0]);
    assert_eq!(value(&[1.0, NAN], |x| x.less(2.0)), [1.0, 0.0]);
    assert_eq!(value(&[NAN], |x| x.equals(x)), [0.0]);
    assert_eq!(value(&[NAN], |x| x.less_equal(x)), [0.0]);
    assert_eq!(value(&[1.0, NAN], |x| x.all_finite()), [0.0]);
    assert_eq!(value(&[1.0, -INF], |x| x.all_finite()), [0.0]);
    assert_eq!(value(&[1.0, 2.0], |x| x.all_finite()), [1.0]);
    assert_eq!(value(&[], |x| x.all_finite()), [1.0]);
    assert_eq!(value(&[INF, 1.0], |x| x.norm()), [INF]);
    assert_eq!(value(&[2.9, -2.9], |x| x.cast(DType::I32)), [2.0, -2.0], "truncated");
    assert_eq!(value(&[0.0, -0.0, 0.5, NAN], |x| x.cast(DType::Bool)), [0.0, 0.0, 1.0, 1.0]);
}
