//! Half precision: every value stored in f16 is rounded once, and arithmetic is wider.

use wgrad::{Array, DType, Data, Store, Tape, Tensor, f16};
use wgrad_tests::{Machine, reference};

/// The values of `f(x)`, which the CPU and the reference agree on exactly.
fn value(x: Array, f: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t>) -> Array {
    let t = Tape::default();
    t.tap("y", f(t.input_like("x", &x)));
    let (program, inputs) = (t.finish(), [("x".to_string(), x)]);
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program.clone()).expect("the plan compiles");
    let have = cpu.run(&step, &inputs).tap("y").clone();
    for (have, want) in have.to_f64().into_iter().zip(&reference(&program, &[], &inputs).taps[0].2) {
        assert!(have == *want || have.is_nan() && want.is_nan(), "{have} on the CPU, {want} on the reference");
    }
    have
}

fn f16s(values: &[f64]) -> Array {
    Array::new([values.len()], Data::from_f64(DType::F16, values))
}

#[test]
fn casts_to_and_from_every_type() {
    let tie = 1.0 + 2f64.powi(-11);
    let wide = Array::new([6], vec![tie, tie + 2f64.powi(-40), 65519.99, 65520.0, -1e-7, 2f64.powi(-26)]);
    let rounded = value(wide, |x| x.cast(DType::F16));
    let next = 1.0 + 2f64.powi(-10);
    assert_eq!(rounded, f16s(&[1.0, next, 65504.0, f64::INFINITY, -2.0 * 2f64.powi(-24), 0.0]));
    let single = Array::new([3], vec![0.1f32, -70000.0, f32::NAN]);
    assert_eq!(value(single.clone(), |x| x.cast(DType::F16)).item(0), f16::from_f32(0.1).to_f64());
    assert_eq!(value(single.clone(), |x| x.cast(DType::F16)).item(1), f64::NEG_INFINITY);
    assert!(value(single, |x| x.cast(DType::F16)).item(2).is_nan());
    let unsigned = Array::new([3], vec![2049u32, 2051, u32::MAX]);
    assert_eq!(value(unsigned, |x| x.cast(DType::F16)), f16s(&[2048.0, 2052.0, f64::INFINITY]));
    let signed = Array::new([2], vec![-2049i32, 7]);
    assert_eq!(value(signed, |x| x.cast(DType::F16)), f16s(&[-2048.0, 7.0]));
    assert_eq!(value(Array::new([2], vec![true, false]), |x| x.cast(DType::F16)), f16s(&[1.0, 0.0]));
    let x = || f16s(&[0.1, -2.5, 0.0]);
    let tenth = f16::from_f64(0.1);
    assert_eq!(value(x(), |x| x.cast(DType::F32)), Array::new([3], vec![tenth.to_f32(), -2.5, 0.0]));
    assert_eq!(value(x(), |x| x.cast(DType::F64)), Array::new([3], vec![tenth.to_f64(), -2.5, 0.0]));
    assert_eq!(value(x(), |x| x.cast(DType::I32)), Array::new([3], vec![0, -2, 0]));
    assert_eq!(value(f16s(&[2.5]), |x| x.cast(DType::U32)), Array::new([1], vec![2u32]));
    assert_eq!(value(x(), |x| x.cast(DType::Bool)), Array::new([3], vec![true, true, false]));
}

#[test]
fn each_result_is_rounded_and_each_sum_is_wider() {
    // 2048 + 1 is a tie, each time; a sum in one node is rounded at its end.
    assert_eq!(value(f16s(&[2048.0]), |x| x + 1.0 + 1.0).item(0), 2048.0);
    assert_eq!(value(f16s(&[2048.0, 1.0, 1.0]), |x| x.sum()).item(0), 2050.0);
    assert_eq!(value(f16s(&[300.0]), |x| x * x / x).item(0), f64::INFINITY);
    assert_eq!(value(f16s(&[300.0; 4]), |x| x.reshape([1, 4]).matmul(x.reshape([4, 1]))).item(0), f64::INFINITY);
    assert_eq!(value(f16s(&[100.0, -100.0, 1.0]), |x| x.dot(x)).item(0), 20000.0);
    // However long the sum.
    let long: Vec<f64> = (0..1500).map(|i| (i % 3) as f64 - 1.0).collect();
    assert_eq!(value(f16s(&long), |x| x.reshape([1, 1500]).matmul(x.reshape([1500, 1]))).item(0), 1000.0);
    let scattered = value(f16s(&[2048.0, 1.0, 1.0]), |x| x.scatter_add((x * 0.0).cast(DType::U32), 0, 2));
    assert_eq!(scattered, f16s(&[2050.0, 0.0]));
    // A constant is rounded too.
    assert_eq!(value(f16s(&[1.0]), |x| x * 0.1).item(0), f16::from_f64(0.1).to_f64());
    assert_eq!(value(f16s(&[1.0, f64::INFINITY]), |x| x.is_finite()), Array::new([2], vec![true, false]));
    assert_eq!(value(f16s(&[]), |x| x.max()).item(0), f64::NEG_INFINITY);
}

#[test]
fn gradients_pass_through_casts() {
    let t = Tape::default();
    let x = t.input("x", [2], DType::F32);
    let y = (x.cast(DType::F16) * x.cast(DType::F16)).cast(DType::F32).sum();
    let g = y.grad_wrt(&[x])[0].expect("reached");
    assert_eq!(g.dtype(), DType::F32);
    t.tap("g", g);
    let (program, x) = (t.finish(), Array::new([2], vec![0.1f32, -3.0]));
    assert!(program.to_string().contains("f16[2]"), "{program}");
    let tenth = f16::from_f64(0.1).to_f64();
    assert_eq!(reference(&program, &[], &[("x".to_string(), x)]).taps[0].2, [2.0 * tenth, -6.0]);
}

#[test]
#[should_panic(expected = "parameter \"w\": f16 loses small updates")]
fn half_parameters_are_refused() {
    Store::new().param("w", &Array::zeros([2], DType::F16));
}
