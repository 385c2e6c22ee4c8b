//! The norm at the edges of the number line, where a plain sum of squares overflows, vanishes or hides.

use approx::{abs_diff_eq, relative_eq};
use wgrad::{Array, DType, Data, Session, Store};
use wgrad_cpu::{CpuBackend, reference};

fn norms(values: Data) -> [f64; 2] {
    let x = Array::new([values.len()], values);
    let mut session = Session::new(Box::new(CpuBackend::poisoned(2).expect("threads")), Store::new()).expect("session");
    let step = session
        .record(|t| {
            let x = t.input_like("x", &x);
            t.tap("norm", x.norm());
        })
        .expect("compiles");
    session.run(&step, &[("x", &x)]).expect("runs");
    let planned = session.taps().expect("taps")[0].scalar("norm").expect("tapped");
    [planned, reference::run(&step, &[], &[("x", &x)]).expect("runs").taps[0].2[0]]
}

#[test]
fn large_and_small_values_keep_their_norm() {
    for scale in [1e-300, 1e-160, 1.0, 1e160, 1e300] {
        for norm in norms(vec![3.0 * scale, 0.0, -4.0 * scale].into()) {
            assert!(abs_diff_eq!(norm / scale, 5.0, epsilon = 1e-12), "{scale:e}: {norm:e}");
        }
    }
    for scale in [1e-38f32, 1e-20, 1.0, 1e20, 1e37] {
        for norm in norms(vec![3.0 * scale, 0.0, -4.0 * scale].into()) {
            assert!(abs_diff_eq!(norm / scale as f64, 5.0, epsilon = 1e-5), "{scale:e}: {norm:e}");
        }
    }
}

#[test]
fn a_norm_in_half_overflows_only_itself() {
    for (values, want) in [([3e4, 4e4], 5e4), ([6e-8, 0.0], 2f64.powi(-24)), ([6e4, 6e4], f64::INFINITY)] {
        for norm in norms(Data::from_f64(DType::F16, &values)) {
            assert!(relative_eq!(norm, want, epsilon = 0.0, max_relative = 1e-3), "{values:?}: {norm}");
        }
    }
}

#[test]
fn what_is_not_finite_shows() {
    for (values, want) in [
        (vec![], 0.0),
        (vec![0.0, -0.0], 0.0),
        (vec![1.0, f64::NEG_INFINITY, 2.0], f64::INFINITY),
        (vec![f64::INFINITY, 1.0, f64::NAN], f64::NAN),
        (vec![f64::NAN; 40], f64::NAN),
    ] {
        for dtype in [DType::F64, DType::F32, DType::F16] {
            for norm in norms(Data::from_f64(dtype, &values)) {
                assert!(norm == want || norm.is_nan() && want.is_nan(), "{dtype} {values:?}: {norm}");
            }
        }
    }
}
