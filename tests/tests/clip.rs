//! Clipping by the global norm: formula, bits, special values, its verdict, and the gradient through it.

use approx::{assert_abs_diff_eq, relative_eq};
use proptest::prelude::*;
use wgrad::{Array, ClipNorm, DType, LossScaler, NonFinite, Optimizer, Program, Store, Tape};
use wgrad_nn::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use wgrad_tests::{
    Linear, Machine, MakeOptimizer, Tolerance, compare, proptest_config as config, reference, same_bits,
};

/// Clips given gradients, and taps `g0`, `g1`, .. as they come out.
fn clipped(gradients: &[Array], max_norm: f64) -> (Vec<Array>, f64, f64) {
    let mut store = Store::new();
    let zeros: Vec<Array> = gradients.iter().map(|g| Array::zeros(g.shape(), g.dtype())).collect();
    let model = Linear::new(&mut store, &zeros);
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.record(|t| {
        let grads = model.grads(t).clip_by_global_norm(max_norm);
        for (i, &param) in model.params.iter().enumerate() {
            t.tap(&format!("out{i}"), grads.get(param).expect("present"));
        }
        t.tap("verdict", grads.verdict().expect("a norm is checked"));
    });
    let out = cpu.run(&step.expect("the plan compiles"), &Linear::inputs(gradients));
    let finite = gradients.iter().flat_map(Array::to_f64).all(f64::is_finite);
    assert_eq!(out.tap("verdict").item(0) == 1.0, finite);
    let results = (0..gradients.len()).map(|i| out.tap(&format!("out{i}")).clone()).collect();
    let scalar = |name: &str| out.tap(&format!("clip_by_global_norm/{name}")).item(0);
    (results, scalar("norm"), scalar("coefficient"))
}

fn f32s(values: &[f32]) -> Array {
    Array::new([values.len()], values.to_vec())
}

#[test]
fn within_the_bound_no_bit_changes() {
    let gradients = [f32s(&[0.1, -0.0, 1e-40, -3.3]), Array::new([2, 1], vec![1.0f32 / 3.0, 0.7]), f32s(&[])];
    for max_norm in [3.5, 1e6, f64::INFINITY] {
        let (out, _, coefficient) = clipped(&gradients, max_norm);
        assert_eq!(coefficient, 1.0);
        assert!(out.iter().zip(&gradients).all(|(a, b)| same_bits(a, b)), "{out:?}");
    }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn the_formula_is_g_min_1_max_norm_over_n_plus_eps(
        a in proptest::collection::vec(-3.0..3.0f64, 0..40),
        b in proptest::collection::vec(-3.0..3.0f64, 1..200),
        max_norm in 0.0..20.0f64,
    ) {
        let n = a.iter().chain(&b).map(|g| g * g).sum::<f64>().sqrt();
        let c = (max_norm / (n + 1e-6)).min(1.0);
        let expected = [&a, &b].map(|g| g.iter().map(|g| c * g).collect::<Vec<f64>>());
        for (dtype, tolerance) in [(DType::F64, Tolerance(1e-14)), (DType::F32, Tolerance(1e-6))] {
            let gradients = [&a, &b].map(|g| Array::new([g.len()], g.clone()).cast(dtype));
            let (out, norm, _) = clipped(&gradients, max_norm);
            compare("norm", &[norm], &[n], tolerance).map_err(TestCaseError::fail)?;
            for (out, expected) in out.iter().zip(&expected) {
                compare("g", &out.to_f64(), expected, tolerance).map_err(TestCaseError::fail)?;
            }
        }
    }
}

#[test]
fn parameters_of_both_float_types_share_one_norm() {
    let gradients = [f32s(&[3.0]), Array::new([1], vec![4.0f64])];
    let (out, norm, _) = clipped(&gradients, 1.0);
    assert_eq!(norm, 5.0);
    assert_abs_diff_eq!([out[0].item(0), out[1].item(0)][..], [0.6, 0.8][..], epsilon = 1e-6);
    assert_eq!((out[0].dtype(), out[1].dtype()), (DType::F32, DType::F64));
}

#[test]
fn squares_that_overflow_or_vanish_do_not_spoil_the_norm() {
    for size in [1e30f32, 1e38, 1e-30, 1e-42] {
        let (out, norm, _) = clipped(&[f32s(&[-size, -size, -size, -size])], size as f64);
        // n = 2 size, so the bound of size halves the gradient, but for eps.
        assert!(relative_eq!(norm, 2.0 * size as f64, epsilon = 0.0, max_relative = 1e-5), "{size}: {norm}");
        let expected = size as f64 * (size as f64 / (norm + 1e-6)).min(1.0);
        assert!(relative_eq!(out[0].item(1), -expected, epsilon = 1e-44, max_relative = 1e-5), "{size}: {out:?}");
    }
}

#[test]
fn zero_stays_zero() {
    for max_norm in [0.0, 1.0] {
        let (out, norm, _) = clipped(&[f32s(&[0.0, 0.0]), f32s(&[])], max_norm);
        assert_eq!((out[0].to_f64(), norm), (vec![0.0, 0.0], 0.0));
    }
    let (out, ..) = clipped(&[f32s(&[2.0, -7.0])], 0.0);
    assert_eq!(out[0].to_f64(), [0.0, 0.0], "a bound of 0 lets nothing pass");
}

#[test]
fn a_bound_that_is_negative_or_nan_or_not_a_scalar_is_refused() {
    let refused = |clip: fn(&Linear, &Tape)| {
        let mut store = Store::new();
        let model = Linear::new(&mut store, &[f32s(&[1.0])]);
        let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| clip(&model, &tape)));
        let message = caught.expect_err("it must panic").downcast::<String>().expect("a message");
        assert!(message.contains("max_norm"), "{message}");
    };
    refused(|model, t| drop(model.grads(t).clip_by_global_norm(-1.0)));
    refused(|model, t| drop(model.grads(t).clip_by_global_norm(f64::NAN)));
    refused(|model, t| drop(model.grads(t).clip_by_global_norm(t.full([2], 1.0, DType::F32))));
}

/// A verdict of false leaves everything that an optimizer owns as it was, bit for bit.
fn skips(verdict_by: &str, bad: f32, optimizer: MakeOptimizer) {
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0, -2.0, 0.5]), f32s(&[4.0])]);
    let params = store.params();
    let optimizer = optimizer(&mut store, &params);
    let mut cpu = Machine::poisoned(1, store);
    let scaler = LossScaler::fixed(1024.0);
    let step = cpu.session.record(|t| {
        let grads = match verdict_by {
            "clip" => model.grads(t).clip_by_global_norm(ClipNorm::new(1.0).non_finite(NonFinite::Skip)),
            "check" => model.grads(t).check_finite().clip_by_global_norm(1.0),
            _ => scaler.scale(model.loss(t)).grad(&params).unscale(&scaler).clip_by_global_norm(1.0),
        };
        optimizer.step(grads);
    });
    let step = step.expect("the plan compiles");
    let good = [f32s(&[0.3, 0.1, -0.2]), f32s(&[0.5])];
    let spoilt = [f32s(&[0.3, bad, -0.2]), f32s(&[0.5])];
    let start = cpu.states();
    cpu.run(&step, &Linear::inputs(&good));
    let moved = cpu.states();
    assert!(start.iter().zip(&moved).all(|(a, b)| !same_bits(a, b)), "a finite step moves every state");
    cpu.run(&step, &Linear::inputs(&spoilt));
    assert!(cpu.states_are(&moved), "{verdict_by}, {bad}: something moved");
    cpu.run(&step, &Linear::inputs(&good));
    assert!(!cpu.states_are(&moved), "training goes on");
    assert!(cpu.states().iter().flat_map(Array::to_f64).all(f64::is_finite));
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for verdict_by in ["clip", "check", "unscale"] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            skips(verdict_by, bad, |store, params| {
                Box::new(Sgd::new(store, params, SgdConfig { momentum: 0.9, ..SgdConfig::default() }))
            });
            skips(verdict_by, bad, |store, params| Box::new(Adam::new(store, params, AdamConfig::default())));
        }
    }
}

#[test]
fn scaled_values_that_overflow_skip_the_step_though_the_gradient_is_finite() {
    // 1e36 * 1024 is infinite in f32: unscaling would give infinity, clipping zero.
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[f32s(&[1.0])]);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let mut cpu = Machine::poisoned(1, store);
    let scaler = LossScaler::fixed(1024.0);
    let step = cpu.session.record(|t| {
        let grads = scaler.scale(model.loss(t)).grad(&params).unscale(&scaler);
        t.tap("verdict", grads.verdict().expect("checked"));
        sgd.step(grads.clip_by_global_norm(1.0));
    });
    let step = step.expect("the plan compiles");
    let before = cpu.states();
    let out = cpu.run(&step, &Linear::inputs(&[f32s(&[1e36])]));
    assert_eq!(out.tap("verdict").item(0), 0.0);
    assert!(cpu.states_are(&before));
}

#[test]
fn a_power_of_two_as_loss_scale_changes_no_bit() {
    let run = |scaler: LossScaler| {
        let mut store = Store::new();
        let model = wgrad_tests::Mlp::new(&mut store, DType::F32);
        let mut cpu = Machine::poisoned(1, store);
        let step = cpu.session.record(|t| {
            let grads = scaler.scale(model.loss(t)).grad(&model.params()).unscale(&scaler);
            t.tap("flat", grads.flat().tensors()[0]);
        });
        let out = cpu.run(&step.expect("the plan compiles"), &model.batch(0));
        out.tap("flat").clone()
    };
    let plain = run(LossScaler::none());
    assert!(plain.to_f64().iter().any(|&g| g != 0.0));
    assert!(same_bits(&plain, &run(LossScaler::fixed(65536.0))));
}

/// The loss `sum(u * clip(g))` for a gradient `g` that is a parameter's own value, and its gradients to `g` and to the
/// bound, as the reference computes them.
fn through(g: &[f64], u: &[f64], max_norm: f64) -> (f64, Vec<f64>, f64) {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([g.len()], g.to_vec()));
    let t = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let (value, bound) = (t.param(p), t.input("max_norm", [], DType::F64));
    // The gradient of sum(p * p) / 2 is p.
    let grads = (value * value * 0.5).sum().grad(&store.params()).clip_by_global_norm(bound);
    let loss = (grads.get(p).expect("present") * t.input("u", [g.len()], DType::F64)).sum();
    let found = loss.grad_wrt(&[value, bound]);
    t.tap("loss", loss);
    t.tap("dg", found[0].expect("reached"));
    t.tap("dmax", found[1].expect("reached"));
    let program: Program = t.finish();
    let inputs = [("max_norm".into(), Array::scalar(max_norm)), ("u".into(), Array::new([u.len()], u.to_vec()))];
    let out = reference(&program, &store.into_parts().1, &inputs);
    let tap = |name: &str| out.taps.iter().find(|(n, ..)| n == name).expect("tapped").2.clone();
    (tap("loss")[0], tap("dg"), tap("dmax")[0])
}

#[test]
fn the_gradient_through_the_clip_is_the_specified_one() {
    let (g, u) = ([0.6, -1.1, 2.0], [0.3, 0.9, -0.4]);
    let n = g.iter().map(|g| g * g).sum::<f64>().sqrt();
    let dot: f64 = g.iter().zip(&u).map(|(g, u)| g * u).sum();
    let (_, inside, d_inside) = through(&g, &u, 5.0);
    compare("unclipped", &inside, &u, Tolerance::F64).unwrap();
    assert_eq!(d_inside, 0.0);
    let c = 0.7 / (n + 1e-6);
    let expected: Vec<f64> = g.iter().zip(&u).map(|(g, u)| c * u - c / (n + 1e-6) * (dot / n) * g).collect();
    let (_, clipped, d_max) = through(&g, &u, 0.7);
    compare("clipped", &clipped, &expected, Tolerance::F64).unwrap();
    assert_abs_diff_eq!(d_max, dot / (n + 1e-6), epsilon = 1e-12);
    let h = 1e-5;
    let difference = (through(&g, &u, 0.7 + h).0 - through(&g, &u, 0.7 - h).0) / (2.0 * h);
    assert_abs_diff_eq!(d_max, difference, epsilon = 1e-9);
}

#[test]
fn the_gradient_through_the_clip_is_finite_at_zero() {
    let (_, dg, d_max) = through(&[0.0, 0.0], &[0.3, 0.9], 0.7);
    assert_eq!(dg, [0.3, 0.9]);
    assert_eq!(d_max, 0.0);
}
