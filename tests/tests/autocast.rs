//! Contractions in half precision as a policy of recording.

use wgrad::{Array, Conv2d, DType, Program, Store, Tape, Tensor};
use wgrad_tests::{Machine, Tolerance, compare, reference};

const F32: DType = DType::F32;

/// The types of the results of all contractions.
fn contractions(program: &Program) -> Vec<(&'static str, DType)> {
    let names = ["matmul", "conv2d", "conv_input_grad", "conv_weight_grad"];
    let nodes = program.nodes().iter().filter(|node| names.contains(&node.op.name()));
    nodes.map(|node| (node.op.name(), node.dtype)).collect()
}

fn model<'t>(t: &'t Tape) -> (Tensor<'t>, [Tensor<'t>; 2]) {
    let (x, w) = (t.input("x", [3, 4], F32), t.input("w", [2, 4], F32));
    ((x.matmul_t(w).tanh() * 3.0).sum(), [x, w])
}

#[test]
fn contractions_are_in_half_forwards_and_backwards_and_nothing_else_is() {
    let t = Tape::default();
    let (loss, leaves) = t.autocast(DType::F16, || model(&t));
    // The sweep runs outside the policy: what it differentiates decides.
    let gradients = loss.grad_wrt(&leaves);
    for (i, g) in gradients.iter().enumerate() {
        let g = g.expect("reached");
        assert_eq!(g.dtype(), F32);
        t.tap(&format!("d{i}"), g);
    }
    t.tap("loss", loss);
    let program = t.finish();
    assert_eq!(contractions(&program), [("matmul", DType::F16); 3]);
    let other = program.nodes().iter().filter(|node| !["matmul", "cast"].contains(&node.op.name()));
    let halves: Vec<&str> = other.filter(|node| node.dtype == DType::F16).map(|node| node.op.name()).collect();
    assert!(halves.iter().all(|name| ["permute", "reshape"].contains(name)), "{halves:?}\n{program}");

    let value = |n: usize| Array::new([n / 4, 4], (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>());
    let inputs = [("x".to_string(), value(12)), ("w".to_string(), value(8))];
    let want = reference(&program, &[], &inputs);
    let mut cpu = Machine::poisoned(2, Store::new());
    let step = cpu.session.compile(program).expect("the plan compiles");
    for ((name, have), (.., want)) in cpu.run(&step, &inputs).taps.iter().zip(&want.taps) {
        compare(name, &have.to_f64(), want, Tolerance(2e-3)).unwrap();
    }
}

#[test]
fn convolutions_are_too() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [1, 2, 4, 4], F32), t.input("w", [3, 2, 3, 3], F32));
    let y = t.autocast(DType::F16, || x.conv2d(w, Conv2d::same(3)));
    assert_eq!(y.dtype(), F32);
    for (i, g) in (y * y).sum().grad_wrt(&[x, w]).into_iter().enumerate() {
        t.tap(&format!("d{i}"), g.expect("reached"));
    }
    let kinds = contractions(&t.finish());
    let half = DType::F16;
    assert_eq!(kinds, [("conv2d", half), ("conv_input_grad", half), ("conv_weight_grad", half)]);
}

#[test]
fn it_ends_where_it_ends_and_can_be_switched_off_within() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [3, 4], F32), t.input("w", [4, 4], F32));
    let (half, inner) = t.autocast(DType::F16, || (x.matmul(w), t.autocast(F32, || x.matmul_t(w))));
    let after = x.matmul(w);
    [half, inner, after].iter().enumerate().for_each(|(i, y)| t.tap(&i.to_string(), *y));
    assert_eq!(contractions(&t.finish()), [("matmul", DType::F16), ("matmul", F32), ("matmul", F32)]);
}

#[test]
fn other_types_are_left_alone() {
    let t = Tape::default();
    let x = t.input("x", [2, 2], DType::F64);
    assert_eq!(t.autocast(DType::F16, || x.matmul(x)).dtype(), DType::F64);
}

#[test]
fn small_gradients_are_lost_in_half_unless_the_loss_is_scaled() {
    let gradient = |scale: f64| {
        let t = Tape::default();
        let (x, w) = (t.input("x", [1, 1], F32), t.input("w", [1, 1], F32));
        let loss = t.autocast(DType::F16, || x.matmul(w)).sum() * 1e-9;
        t.tap("dw", (loss * scale).grad_wrt(&[w])[0].expect("reached") / scale);
        let mut cpu = Machine::poisoned(1, Store::new());
        let step = cpu.session.compile(t.finish()).expect("the plan compiles");
        let one = |name: &str| (name.to_string(), Array::new([1, 1], vec![1.0f32]));
        cpu.run(&step, &[one("x"), one("w")]).tap("dw").item(0)
    };
    assert_eq!(gradient(1.0), 0.0);
    assert!((gradient(65536.0) - 1e-9).abs() < 1e-12);
}

#[test]
#[should_panic(expected = "autocast: contractions in f64")]
fn only_halves_are_offered() {
    Tape::default().autocast(DType::F64, || ());
}
