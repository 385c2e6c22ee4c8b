//! Dropout: what it keeps, how often, and when it does nothing.

use crate::open;
use approx::{abs_diff_eq, relative_eq};
use wgrad::{Array, DType, Rng, Store};
use wgrad_nn::Dropout;

/// What a dropout makes of ones in three runs, the last of which draws the numbers of the second again; and the gradient.
fn run(p: f64, training: bool, dtype: DType, len: usize) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "dropout", 11);
    let dropout = Dropout::new(p, rng);
    let mut session = open(store);
    let record = |advance: bool| {
        move |t: &wgrad::Tape| {
            let x = t.input("x", [len], dtype);
            let y = dropout.forward(x, training);
            t.tap("y", y);
            t.tap("dx", y.sum().grad_wrt(&[x])[0].expect("reached"));
            if advance {
                rng.advance(t);
            }
        }
    };
    let [moving, standing] = [true, false].map(|advance| session.record(record(advance)).expect("it compiles"));
    let ones = Array::new([len], vec![1.0; len]).cast(dtype);
    let mut out = vec![];
    for step in [&moving, &standing, &standing] {
        session.run(step, &[("x", &ones)]).expect("it runs");
        session.wait().expect("it runs");
        let taps = session.taps().expect("it runs").pop().expect("delivered");
        out.push((taps.get("y").expect("tapped").to_f64(), taps.get("dx").expect("tapped").to_f64()));
    }
    let gradient = out[0].1.clone();
    (out.into_iter().map(|(y, _)| y).collect(), gradient)
}

#[test]
fn elements_are_zero_or_scaled_up_and_so_is_the_gradient() {
    for (p, dtype) in [(0.25, DType::F32), (0.5, DType::F64), (0.9, DType::F32)] {
        let len = 20_000;
        let (y, gradient) = run(p, true, dtype, len);
        let kept = Array::new([], vec![1.0]).cast(dtype).item(0) / (1.0 - p);
        assert!(y[0].iter().all(|y| *y == 0.0 || relative_eq!(*y, kept, epsilon = 0.0, max_relative = 1e-6)));
        assert_eq!(y[0], gradient, "of ones, the mask either way");
        let zeros = y[0].iter().filter(|y| **y == 0.0).count() as f64 / len as f64;
        let deviation = (p * (1.0 - p) / len as f64).sqrt();
        assert!(abs_diff_eq!(zeros, p, epsilon = 4.5 * deviation), "{p}: {zeros}");
        assert_ne!(y[0], y[1], "the counter has moved");
        assert_eq!(y[1], y[2], "and stands");
    }
}

#[test]
fn outside_training_and_at_zero_it_is_the_tensor_itself() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "dropout", 11);
    let t = wgrad::Tape::new(store.into_parts().0);
    let x = t.input("x", [3], DType::F32);
    assert_eq!(Dropout::new(0.5, rng).forward(x, false).id(), x.id());
    assert_eq!(Dropout::new(0.0, rng).forward(x, true).id(), x.id());
    assert_eq!(Dropout::new(0.5, rng).p(), 0.5);
}

#[test]
fn probabilities_out_of_range_are_refused() {
    for p in [1.0, -0.1, f64::NAN] {
        let made = std::panic::catch_unwind(|| Dropout::new(p, Rng::new(&mut Store::new(), "dropout", 1)));
        let text = *made.expect_err("it is refused").downcast::<String>().expect("a text");
        assert!(text.contains("is not a probability below 1"), "{text}");
    }
}
