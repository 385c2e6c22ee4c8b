//! Numbers beside tensors, on either side of an operator, and operators that assign.

use std::panic::{AssertUnwindSafe, catch_unwind};
use wgrad::{Array, DType, Operand, Store, Tape, Tensor};
use wgrad_tests::Machine;

/// The values of tensors, on the CPU.
fn values(inputs: &[(&str, Array)], f: impl for<'t> Fn(&[Tensor<'t>]) -> Vec<Tensor<'t>>) -> Vec<Vec<f64>> {
    let t = Tape::default();
    let x: Vec<Tensor<'_>> = inputs.iter().map(|(name, array)| t.input_like(name, array)).collect();
    f(&x).into_iter().for_each(|y| t.tap_each("y", y));
    let mut machine = Machine::poisoned(1, Store::new());
    let step = machine.session.compile(t.finish()).expect("compiles");
    let inputs: Vec<(String, Array)> = inputs.iter().map(|(name, array)| (name.to_string(), array.clone())).collect();
    machine.run(&step, &inputs).each("y").map(Array::to_f64).collect()
}

#[test]
fn numbers_of_every_type_stand_on_either_side() {
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let x = Array::new([2], vec![3.0, -0.5]).cast(dtype);
        let have = values(&[("x", x)], |x| {
            let x = x[0];
            vec![x + 1, 1 + x, x - 2.0, 2.0 - x, x * 0.5f32, 3 * x, x / 2, 6 / x, x.pow(2), x.maximum(1), (1 - x).abs()]
        });
        let want = [
            [4.0, 0.5],
            [4.0, 0.5],
            [1.0, -2.5],
            [-1.0, 2.5],
            [1.5, -0.25],
            [9.0, -1.5],
            [1.5, -0.25],
            [2.0, -12.0],
            [9.0, 0.25],
            [3.0, 1.0],
            [2.0, 1.5],
        ];
        assert_eq!(have, want, "{dtype}");
    }
}

#[test]
fn integers_take_whole_numbers_and_refuse_others() {
    let (index, offset) = (Array::new([2], vec![3u32, 0]), Array::new([2], vec![-3, 7]));
    let have = values(&[("index", index), ("offset", offset)], |x| vec![x[0] + 1, 2 * x[0], x[1] - 10, x[1] * -1.0]);
    assert_eq!(have, [[4.0, 1.0], [6.0, 0.0], [-13.0, -3.0], [3.0, -7.0]]);
    let t = Tape::default();
    let x = t.input("x", [2], DType::U32);
    for (misuse, number) in
        [(&(|| _ = x + -1) as &dyn Fn(), "-1"), (&|| _ = x * 0.5f32, "0.5"), (&|| _ = 1.5 - x, "1.5")]
    {
        let panic = catch_unwind(AssertUnwindSafe(misuse)).expect_err("refused");
        let text = panic.downcast_ref::<String>().expect("text");
        assert!(text.contains(&format!("constant {number}")) && text.contains("operands.rs"), "{text}");
    }
}

/// A number is the same operand whatever type it was written in, if that holds it exactly.
#[test]
fn equal_numbers_are_one_constant() {
    let t = Tape::default();
    let x = t.input("x", [2], DType::F64);
    let [whole, wide, narrow] = [x + 2, x + 2.0, x + 2.0f32].map(Tensor::id);
    assert_eq!((whole, wide), (wide, narrow));
    assert_ne!((x + 0.1f32).id(), (x + 0.1).id());
    assert_eq!(Operand::from(0.1f32).value(), Some(f64::from(0.1f32)));
    assert_eq!(Operand::from(i32::MIN).value(), Some(-2147483648.0));
}

#[test]
fn assigning_operators_record_a_new_value() {
    let (x, z) = (Array::new([2], vec![3.0, -0.5]), Array::new([], vec![2.0]));
    let have = values(&[("x", x), ("z", z)], |x| {
        let before = x[0];
        let mut y = before;
        y += 1;
        y *= x[1];
        y -= 0.5f32;
        y /= 2.0;
        vec![y, before]
    });
    assert_eq!(have, [[3.75, 0.25], [3.0, -0.5]]);
    let t = Tape::default();
    let mut sum = t.input("sum", [], DType::F64);
    let x = t.input("x", [3], DType::F64);
    for position in 0..3 {
        sum += x.index(0, position);
    }
    assert!(sum.grad_wrt(&[x])[0].is_some());
}

/// An assigning operator is refused in the name of its operator, at the caller's line, and changes nothing.
#[test]
fn a_refused_assignment_leaves_the_tensor() {
    let t = Tape::default();
    let (x, y) = (t.input("x", [2], DType::F64), t.input("y", [3], DType::F64));
    let mut sum = x;
    let line = line!() + 1;
    let panic = catch_unwind(AssertUnwindSafe(|| sum += y)).expect_err("refused");
    let text = panic.downcast_ref::<String>().expect("text");
    assert!(text.starts_with("add of f64[2] and f64[3]"), "{text}");
    assert!(text.contains(&format!("operands.rs:{line}:")), "{text}");
    assert_eq!(sum.id(), x.id());
}
