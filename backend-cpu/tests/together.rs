//! Kernels that go through the same rows together: what the reference computes, with the same bits on any number of threads,
//! of which many have the kernels run one after the other.

use approx::relative_eq;
use proptest::prelude::*;
use wgrad::{Array, DType, Data, Program, Session, Shape, Store, Tape};
use wgrad_cpu::{CpuBackend, reference};

fn values(name: &str, shape: &Shape) -> Array {
    let seed = name.bytes().fold(1, |seed, byte| (seed * 31 + usize::from(byte)) % 1009);
    let value = |i: usize| ((i * 7919 + seed * 104_729) as f64 * 0.37).sin();
    Array::new(shape, Data::from_f64(DType::F32, &(0..shape.numel()).map(value).collect::<Vec<_>>()))
}

/// A normalisation and all of its gradients, and what else is summed over rows of what it reads and gives.
fn program(rows: usize, width: usize) -> (Program, Vec<(&'static str, Array)>) {
    let t = Tape::default();
    let mut inputs = vec![];
    let mut input = |name: &'static str, shape: &[usize]| {
        inputs.push((name, values(name, &shape.into())));
        t.input(name, shape, DType::F32)
    };
    let (x, dy) = (input("x", &[rows, width]), input("dy", &[rows, width]));
    let (gain, bias) = (input("gain", &[width]), input("bias", &[width]));
    let y = x.layer_norm(1, Some(gain), Some(bias), 1e-5);
    t.tap("y", y);
    for gradient in y.vjp(dy, &[x, gain, bias]) {
        t.tap_each("gradient", gradient.expect("it depends on it"));
    }
    t.tap("sum", (y * dy).sum_axes(&[0]));
    (t.finish(), inputs)
}

fn run(threads: usize, program: &Program, inputs: &[(&str, &Array)]) -> Vec<Vec<f64>> {
    let device = CpuBackend::splitting(threads).expect("threads");
    let mut session = Session::new(Box::new(device), Store::new()).expect("session");
    let step = session.compile(program.clone()).expect("compiles");
    session.run(&step, inputs).expect("runs");
    let taps = session.taps().expect("taps").remove(0);
    taps.iter().map(|(_, value)| value.to_f64()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn rows_and_what_is_reduced_over_them_are_what_they_are_alone(rows in 1usize..=90, width in 1usize..=15) {
        let (program, inputs) = program(rows, width);
        let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
        let alone = run(1, &program, &inputs);
        for threads in [2, 3, 8] {
            prop_assert_eq!(&run(threads, &program, &inputs), &alone, "{} threads", threads);
        }
        let want = reference::run(&program, &[], &inputs).expect("runs").taps;
        for (got, (name, _, want)) in alone.iter().zip(&want) {
            let near = relative_eq!(got[..], want[..], epsilon = 1e-4, max_relative = 1e-4);
            prop_assert!(near, "{}: {:?}, not {:?}", name, got, want);
        }
    }
}
