//! The gradient check itself: right gradients pass, planted wrong ones are found, with the rule, the input and the
//! place; kinks are skipped and counted, and excuse nothing else.

use approx::abs_diff_eq;
use proptest::prelude::*;
use wgrad::{
    Array, Cell, DType, Param, Recurrence, Session, Store, Tape, Tensor,
    testing::{
        Along, Checked, Gradcheck, GradcheckError, Order, Source, array, assert_detects_wrong_gradient, assert_rejects,
        broadcastable, gradcheck, shape_up_to, view,
    },
};
use wgrad_nn::{Builder, Init, Linear};
use wgrad_tests::{Machine, proptest_config};

fn session() -> Session {
    Machine::new(1, Store::new()).session
}

fn vector(values: &[f64]) -> Array {
    Array::new([values.len()], values.to_vec())
}

fn matrix(rows: usize, columns: usize, phase: f64) -> Array {
    Array::new([rows, columns], (0..rows * columns).map(|i| (i as f64 * 0.9 + phase).sin()).collect::<Vec<f64>>())
}

/// The ways to look for a fault.
fn modes() -> [Gradcheck; 2] {
    [Gradcheck::new(), Gradcheck::new().random_directions(2)]
}

/// `sin(x)`, with another rule.
fn sine<'t>(x: Tensor<'t>, rule: impl for<'u> Fn(Tensor<'u>, Tensor<'u>) -> Tensor<'u> + 'static) -> Tensor<'t> {
    x.tape().custom_vjp(&[x], |x| vec![x[0].sin()], move |v| vec![v.cotangents[0].map(|g| rule(g, v.inputs[0]))])[0]
}

#[test]
fn right_gradients_pass_in_both_orders() {
    let arrays = [matrix(2, 3, 0.4), matrix(3, 2, 1.1), Array::new([2, 1], vec![1u32, 0])];
    let checked = Gradcheck::new().second_order().check(&mut session(), &arrays, |x| {
        x[0].matmul(x[1]).softmax(1).gather(x[2], 1) * x[0].norm_axes(&[1]).reshape([2, 1])
    });
    assert_eq!(checked.expect("the gradient is right"), Checked { compared: 24, kinks: 0 });
    let along = Gradcheck::new().random_directions(3);
    let checked = along.check(&mut session(), &arrays, |x| x[0].matmul(x[1]).log_softmax(1).gather(x[2], 1));
    assert_eq!(checked.expect("the gradient is right"), Checked { compared: 6, kinks: 0 });
}

#[test]
fn an_input_that_is_not_used_has_no_gradient() {
    let x = [vector(&[0.3, 0.5]), vector(&[1.0, 2.0])];
    let checked = gradcheck(&mut session(), &x, |x| x[0].exp()).expect("the gradient is right");
    assert_eq!(checked, Checked { compared: 4, kinks: 0 });
    let none = gradcheck(&mut session(), &[vector(&[])], |x| x[0].exp()).expect("there is nothing to check");
    assert_eq!(none, Checked::default());
}

#[test]
fn a_wrong_factor_is_found() {
    for check in modes() {
        let found = assert_rejects(&check, &mut session(), &[vector(&[0.3, -0.8]), vector(&[1.0, 2.0])], |x| {
            x[0] * sine(x[1].exp(), |g, x| g * x.cos() * 1.0001)
        });
        assert_eq!((found.op(), &found.input, found.order), (Some("custom"), &Source::Input(1), Order::First));
        assert!(abs_diff_eq!(found.analytic / found.numeric, 1.0001, epsilon = 1e-7), "{found}");
        let text = found.to_string();
        assert!(text.contains("the gradient rule of custom") && text.contains("gradcheck.rs:"), "{text}");
    }
}

#[test]
fn a_missing_element_is_found_where_it_is() {
    for check in modes() {
        let found = assert_rejects(&check, &mut session(), &[matrix(2, 3, 0.7)], |x| {
            sine(x[0], |g, x| {
                let last = x.tape().iota(6).equals(5.0).reshape([2, 3]);
                last.select(g.zeros_like(), g * x.cos())
            })
        });
        assert_eq!((found.op(), found.input), (Some("custom"), Source::Input(0)));
        match found.index {
            Along::Element(index) => assert_eq!((index, found.analytic), (vec![1, 2], 0.0)),
            Along::Direction(direction) => assert_eq!(direction, 0),
        }
    }
}

#[test]
fn a_missing_term_and_a_transposed_matrix_are_found() {
    for check in modes() {
        let found = assert_rejects(&check, &mut session(), &[vector(&[0.3, 0.4]), vector(&[2.0, 1.0])], |x| {
            // The product rule without its second half.
            let outputs = x[0].tape().custom_vjp(
                &[x[0].sin(), x[1].exp()],
                |x| vec![x[0] * x[1]],
                |v| vec![v.cotangents[0].map(|g| g * v.inputs[1]), None],
            );
            outputs[0].tanh()
        });
        assert_eq!((found.op(), &found.input, found.analytic), (Some("custom"), &Source::Input(1), 0.0));
        let found = assert_rejects(&check, &mut session(), &[matrix(3, 3, 0.2), matrix(3, 3, 1.0)], |x| {
            let outputs = x[0].tape().custom_vjp(
                &[x[0], x[1].tanh()],
                |x| vec![x[0].matmul(x[1])],
                |v| {
                    let g = v.cotangents[0].expect("the output is used");
                    // The second factor's gradient is aᵀ g.
                    vec![Some(g.matmul_t(v.inputs[1])), Some(v.inputs[0].matmul(g))]
                },
            );
            outputs[0]
        });
        assert_eq!((found.op(), found.input), (Some("custom"), Source::Input(1)));
    }
}

#[test]
fn a_detached_branch_is_found_also_beside_a_right_one() {
    for check in modes() {
        let found = assert_rejects(&check, &mut session(), &[vector(&[0.3, 0.4])], |x| {
            let y = x[0].sin();
            y * y.detach() + y
        });
        assert_eq!((found.op(), found.input), (Some("detach"), Source::Input(0)));
        let hooked =
            assert_rejects(&check, &mut session(), &[vector(&[0.3, 0.4])], |x| x[0].sin().on_grad(|g| g * 0.5).exp());
        assert_eq!(hooked.op(), Some("hook"));
    }
}

#[test]
fn a_wrong_second_derivative_is_found_in_the_second_order_only() {
    for check in modes() {
        check.check(&mut session(), &[vector(&[0.3, 0.4])], wrong_sine).expect("the first derivative is right");
        let found = assert_rejects(&check.second_order(), &mut session(), &[vector(&[0.3, 0.4])], wrong_sine);
        assert_eq!((found.op(), found.order), (Some("detach"), Order::Second));
    }
}

/// `sin(x)` with a rule that is right, but whose own derivative is lost.
fn wrong_sine<'t>(x: &[Tensor<'t>]) -> Tensor<'t> {
    sine(x[0], |g, x| g * x.cos().detach())
}

/// A recurrent layer's hidden states.
fn run<'t>(cell: Cell, x: &[Tensor<'t>]) -> Tensor<'t> {
    Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0: None, b_hh: None }.run().0
}

#[test]
fn the_first_order_is_found_through_sequences_and_checkpoints() {
    let z = Array::new([3, 1, 2], vec![0.3, -0.2, 0.5, 0.1, -0.4, 0.6]);
    let inputs = [z, matrix(2, 2, 0.3), matrix(1, 2, 0.8)];
    for cell in [Cell::Irnn, Cell::Tanh] {
        let checked = Gradcheck::new().second_order().check(&mut session(), &inputs, |x| run(cell, x).sin());
        assert_eq!(checked.expect("the gradient is right").compared, 24);
        let found = assert_rejects(&Gradcheck::new(), &mut session(), &inputs, |x| {
            let h = x[0].tape().checkpoint(|| run(cell, &[x[0], x[1], sine(x[2], |g, x| g * x.cos() * 2.0)]));
            h.sin()
        });
        assert_eq!((found.op(), found.input), (Some("custom"), Source::Input(2)));
    }
}

#[test]
fn kinks_are_skipped_and_counted() {
    let count = |values: &[f64], f: fn(Tensor<'_>) -> Tensor<'_>| {
        gradcheck(&mut session(), &[vector(values)], |x| f(x[0])).expect("the gradient is right elsewhere")
    };
    assert_eq!(count(&[0.0, 1.0, -1.0], |x| x.relu() * 2.0), Checked { compared: 2, kinks: 1 });
    // A tie at the top: neither of the two can move; the others can.
    assert_eq!(count(&[2.0, 1.0, 2.0, 0.5], |x| x.max()), Checked { compared: 2, kinks: 2 });
    assert_eq!(
        count(&[0.5, 0.7, 0.7], |x| x.index(0, 0).maximum(x.index(0, 1)) + x.index(0, 2)),
        Checked { compared: 3, kinks: 0 }
    );
    assert_eq!(
        count(&[0.7, 0.7, 0.2], |x| x.index(0, 0).maximum(x.index(0, 1)) + x.index(0, 2)),
        Checked { compared: 1, kinks: 2 }
    );
    // The first row's norm is 0; the second's is not, though one of its elements is.
    assert_eq!(count(&[0.0, 0.0, 0.0, 3.0], norms), Checked { compared: 2, kinks: 2 });
    assert_eq!(count(&[0.0, 1.0], |x| x.less(0.5).select(x * 3.0, x)), Checked { compared: 2, kinks: 0 });
    assert_eq!(count(&[0.5, 1.0], |x| x.less(0.5).select(x * 3.0, x)), Checked { compared: 1, kinks: 1 });
    assert_eq!(count(&[1.0, 1.5], |x| x * x.cast(DType::I32).cast(DType::F64)), Checked { compared: 1, kinks: 1 });
}

fn norms(x: Tensor<'_>) -> Tensor<'_> {
    x.reshape([2, 2]).norm_axes(&[1])
}

#[test]
fn a_kink_nearby_only_shortens_the_reach() {
    let near = vector(&[2e-4, 1.0]);
    let checked = gradcheck(&mut session(), &[near], |x| x[0].abs()).expect("the gradient is right");
    assert_eq!(checked, Checked { compared: 2, kinks: 0 });
    let nearer = vector(&[2e-7, 1.0]);
    let checked = gradcheck(&mut session(), &[nearer], |x| x[0].abs()).expect("the gradient is right");
    assert_eq!(checked, Checked { compared: 1, kinks: 1 });
}

#[test]
fn a_cell_that_rests_at_its_kink_is_counted() {
    let checked = gradcheck(&mut session(), &[Array::new([1, 1, 2], vec![0.0, 1.0])], |x| {
        let t = x[0].tape();
        let (w_hh, h0) = (t.full([2, 2], 0.5, DType::F64), t.full([1, 2], 0.0, DType::F64));
        Recurrence { cell: Cell::Irnn, z: x[0], w_hh, h0, c0: None, b_hh: None }.run().0
    });
    assert_eq!(checked.expect("the gradient is right elsewhere"), Checked { compared: 1, kinks: 1 });
}

#[test]
fn where_all_are_kinks_nothing_is_said() {
    let found = gradcheck(&mut session(), &[vector(&[0.0, 0.0])], |x| x[0].relu());
    assert!(matches!(found, Err(GradcheckError::NothingCompared { kinks: 2 })), "{found:?}");
}

#[test]
fn a_kink_excuses_no_wrong_gradient_elsewhere() {
    for check in modes() {
        // The kink of relu is in reach of nothing but the first element.
        let found = assert_rejects(&check, &mut session(), &[vector(&[0.0]), vector(&[0.5, 0.6])], |x| {
            x[0].relu() + sine(x[1], |g, x| g * x.cos() + 1e-4)
        });
        assert_eq!((found.op(), found.input), (Some("custom"), Source::Input(1)));
    }
    // Steep, curved, and wrong, without a kink anywhere.
    let found =
        assert_rejects(&Gradcheck::new(), &mut session(), &[vector(&[0.02])], |x| x[0].recip().on_grad(|g| g * 1.001));
    assert_eq!(found.op(), Some("hook"));
}

#[test]
fn narrow_types_and_infinite_values_are_refused() {
    let narrow = Array::new([2], vec![1.0f32, 2.0]);
    let found = gradcheck(&mut session(), &[vector(&[1.0]), narrow], |x| x[0]).expect_err("f32");
    assert_eq!(found.to_string(), "input 1 is f32: gradients are checked in f64");
    let found = gradcheck(&mut session(), &[vector(&[1.0])], |x| x[0].cast(DType::F32)).expect_err("f32");
    assert_eq!(found.to_string(), "the result is f32: gradients are checked in f64");
    let found = gradcheck(&mut session(), &[vector(&[1.0])], |x| x[0].cast(DType::F32).cast(DType::F64));
    assert!(matches!(found, Err(GradcheckError::NotF64 { dtype: DType::F32, .. })), "{found:?}");
    let found = gradcheck(&mut session(), &[vector(&[0.0])], |x| x[0].log());
    assert!(matches!(found, Err(GradcheckError::NonFinite { .. })), "{found:?}");
}

#[test]
fn planted_faults_are_detected_in_every_mode() {
    for check in modes() {
        let inputs = [matrix(2, 3, 0.4), vector(&[0.5, -0.2, 0.8]), vector(&[3.0]), Array::new([1], vec![1u32])];
        assert_detects_wrong_gradient(&check, &mut session(), &inputs, |x| (x[0] * x[1]).softmax(1) * x[0].relu());
    }
}

#[test]
#[should_panic(expected = "without a fault, the check fails: the first derivative by input 0 at [0]")]
fn a_control_of_a_wrong_function_panics() {
    assert_detects_wrong_gradient(&Gradcheck::new(), &mut session(), &[vector(&[0.5])], |x| x[0].detach());
}

#[test]
#[should_panic(expected = "is not detected")]
fn a_control_of_a_check_that_is_too_loose_panics() {
    let loose = Gradcheck::new().atol(1e6);
    assert_detects_wrong_gradient(&loose, &mut session(), &[vector(&[0.5])], |x| x[0].sin());
}

/// A layer of one's own: `x * sigmoid(scale * x)`.
struct Swish {
    scale: Param,
}

impl Swish {
    fn new(mut b: Builder<'_>, width: usize) -> Self {
        Self { scale: b.param("scale", [width], &Init::Normal(1.0)) }
    }

    fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        x * (x * x.tape().param(self.scale)).sigmoid()
    }
}

#[test]
fn a_layer_of_ones_own_is_checked_by_its_parameters() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1).with_dtype(DType::F64);
    let first = Linear::new(b.at("first"), 3, 4, &Init::Normal(0.5));
    let swish = Swish::new(b.at("swish"), 4);
    let (params, scale) = (store.params(), swish.scale);
    let mut session = Machine::new(1, store).session;
    let before = session.read_param(scale).expect("the session lives");
    let check = Gradcheck::new().second_order();
    let checked =
        check.check_params(&mut session, &params, &[matrix(2, 3, 0.1)], |_, x| swish.forward(first.forward(x[0])));
    assert_eq!(checked.expect("the gradient is right"), Checked { compared: 2 * (12 + 4 + 4 + 6), kinks: 0 });
    assert_eq!(session.read_param(scale).expect("the session lives"), before);
    let some = session.layout().params().filter(|(_, p)| p.path.starts_with("swish")).map(|(id, _)| id).collect();
    let found = check.check_params(&mut session, &some, &[matrix(2, 3, 0.1)], |t: &Tape, x| {
        t.on_param_grad(scale, |g| g * 2.0);
        swish.forward(first.forward(x[0]))
    });
    match found {
        Err(GradcheckError::Mismatch(found)) => {
            assert_eq!((found.op(), found.input), (Some("hook"), Source::Param("swish/scale".into())));
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(proptest_config(48))]

    #[test]
    fn gradients_pass_through_any_view((shape, view, values) in shape_up_to(3, 12).prop_flat_map(|shape| {
        view(shape.clone()).prop_flat_map(move |view| {
            (Just(shape.clone()), Just(view.clone()), array(view.leaf_shape().clone(), DType::F64))
        })
    })) {
        let check = Gradcheck::new().random_directions(2);
        let checked = check.check(&mut session(), &[values], |x| view.apply(x[0]).sin())?;
        prop_assert!(checked.kinks == 0 && shape == *view.shape());
    }

    #[test]
    fn gradients_of_broadcast_arguments((a, b) in broadcastable().prop_flat_map(|(a, b)| {
        (array(a, DType::F64), array(b, DType::F64))
    })) {
        Gradcheck::new().random_directions(2).check(&mut session(), &[a, b], |x| x[0] * x[1].exp())?;
    }
}

#[test]
fn a_slope_that_rounding_hides_is_refused_not_passed() {
    for check in modes() {
        let large = |by: f64| check.check(&mut session(), &[vector(&[0.3, 0.7])], |x| sine(x[0], |g, _| g * 0.0) + by);
        assert!(matches!(large(0.0), Err(GradcheckError::Mismatch(_))), "the rule is wrong");
        assert!(matches!(large(1e14), Err(GradcheckError::TooCoarse { .. })), "{:?}", large(1e14));
        // Nothing moves that far out.
        let far = check.check(&mut session(), &[vector(&[1e14])], |x| x[0] * 2.0);
        assert!(matches!(far, Err(GradcheckError::TooCoarse { .. })), "{far:?}");
    }
}

/// `x^2 k + k`, and some of what checkers weigh results with, under a rule that is wrong.
fn with_constants<'t>(x: Tensor<'t>, k: f64) -> Tensor<'t> {
    let weights = |x: Tensor<'t>| ((x.tape().iota(3).cast(DType::F64) * 0.7 + 0.3).cos() * 0.5 + 1.0) * k;
    let table = |x: Tensor<'t>| x.tape().table(&[k, 1.0, 0.5], DType::F64);
    x.tape().custom_vjp(
        &[x],
        |x| vec![x[0].square() * k + k + weights(x[0]) + table(x[0]) * x[0]],
        |v| vec![v.cotangents[0].map(|g| g * v.inputs[0] * 3.0)],
    )[0]
}

#[test]
fn constants_in_common_with_the_checker_are_not_blamed() {
    for check in [modes()[0].clone(), modes()[1].clone(), Gradcheck::new().second_order()] {
        for k in [1.0, 0.0, 0.5, 2.0, 0.7, 0.3, -1.0] {
            let found =
                assert_rejects(&check, &mut session(), &[vector(&[0.5, -0.25, 0.75])], |x| with_constants(x[0], k));
            assert_eq!(found.op(), Some("custom"), "{k}: {found}");
        }
    }
}

#[test]
fn what_a_rule_has_in_common_with_the_rest_of_a_function_is_not_blamed() {
    let x = [vector(&[0.5, -0.25]), vector(&[0.75, 0.5])];
    for check in modes() {
        // The square within is the one without.
        let found = assert_rejects(&check, &mut session(), &x, |x| {
            let wrong = x[0].tape().custom_vjp(
                &[x[0]],
                |x| vec![x[0].square().sin()],
                |v| vec![v.cotangents[0].map(|g| g * v.inputs[0])],
            )[0];
            wrong * x[0].square()
        });
        assert_eq!(found.op(), Some("custom"), "{found}");
        // A rule that is right beside one that is not.
        let found = assert_rejects(&check, &mut session(), &x, |x| {
            let right = x[0].tape().custom_vjp(
                &[x[0]],
                |x| vec![x[0].square().sin()],
                |v| vec![v.cotangents[0].map(|g| g * v.inputs[0].square().cos() * v.inputs[0] * 2.0)],
            )[0];
            right * x[0].square() + x[0].square().exp() * x[1].on_grad(|g| g * 0.5)
        });
        assert_eq!((found.op(), &found.input), (Some("hook"), &Source::Input(1)), "{found}");
        // What is no argument has no gradient.
        let found = assert_rejects(&check, &mut session(), &x, |x| {
            let hidden = x[1].sin();
            x[0].tape().custom_vjp(
                &[x[0]],
                |x| vec![x[0] * hidden],
                |v| vec![v.cotangents[0].map(|g| g * v.outputs[0] / v.inputs[0])],
            )[0]
        });
        assert_eq!((found.op(), &found.input), (Some("custom"), &Source::Input(1)), "{found}");
    }
}
