//! Functions of rows are precise: see `tests/precision/rows.py`, and the page of operations for what was measured.

use approx::assert_abs_diff_eq;
use wgrad::{Array, DType, Data, Store, Tensor};
use wgrad_tests::{
    Machine, gpu,
    precision::rows::{on_cpu, on_gpu, over},
};

#[test]
fn functions_of_rows_are_within_their_bounds_on_the_cpu() {
    let over = over(&on_cpu(), false);
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[test]
fn functions_of_rows_are_within_their_bounds_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    let over = over(&on_gpu(gpu), true);
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// A function of one row, on the CPU and on a GPU.
fn both(dtype: DType, row: &[f64], f: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t>) -> Vec<Vec<f64>> {
    let array = Array::new([1, row.len()], Data::from_f64(dtype, row));
    let gpu = gpu().map(|gpu| Machine::on_gpu(gpu, Store::new()));
    let value = |mut machine: Machine| {
        machine.session.eval(&[("x", &array)], |t| f(t.input_like("x", &array))).expect("evaluated").to_f64()
    };
    [Machine::poisoned(1, Store::new())].into_iter().chain(gpu).map(value).collect()
}

#[test]
fn constants_have_no_variance_and_are_normalised_to_0() {
    for (c, n) in [(1000.1, 100), (1449.3, 16), (7.7654321e9, 100), (0.1, 3), (1e-3, 7), (16777213.0, 1000)] {
        let row = vec![c; n];
        let zeros = vec![0.0; n];
        for y in both(DType::F32, &row, |x| x.layer_norm(1, None, None, 1e-5)) {
            assert_eq!(y, zeros, "layer_norm of {n} times {c}");
        }
        for y in both(DType::F32, &row, |x| x.permute(&[1, 0]).batch_norm(None, None, 1e-5).y) {
            assert_eq!(y, zeros, "batch_norm of {n} times {c}");
        }
        for var in both(DType::F32, &row, |x| x.var_axes(&[1])) {
            assert_eq!(var, [0.0], "var_axes of {n} times {c}");
        }
    }
}

#[test]
fn the_entropy_of_a_masked_row_has_a_gradient() {
    let (inf, row) = (f64::INFINITY, [0.0, -f64::INFINITY, 0.0]);
    for h in both(DType::F32, &row, |x| x.softmax_entropy(1)) {
        assert_abs_diff_eq!(h[0], 2f64.ln(), epsilon = 1e-6);
    }
    for dx in both(DType::F32, &[0.0, -inf, 200.0], |x| x.softmax_entropy(1).sum().grad_wrt(&[x])[0].expect("reached"))
    {
        assert_eq!(dx, [0.0; 3]);
    }
}
