//! Elementwise functions, of one tensor and of two that broadcast.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::{DType, Shape};

/// The shapes on which each function is checked.
fn shapes() -> Vec<Shape> {
    vec![[].into(), [0].into(), [1].into(), [3, 2].into(), [2, 0, 3].into(), [1, 5].into(), [2, 1, 3, 2].into()]
}

/// Pairs of shapes that broadcast.
fn pairs() -> Vec<[Shape; 2]> {
    vec![
        [[].into(), [].into()],
        [[3].into(), [].into()],
        [[2, 3].into(), [3].into()],
        [[2, 1].into(), [1, 3].into()],
        [[0, 2].into(), [1, 2].into()],
        [[2, 1, 3].into(), [5, 1].into()],
    ]
}

pub(super) fn unary() -> Vec<Row> {
    let mut rows = vec![];
    for shape in shapes() {
        let any = || Gradcheck::new([shape.clone()]);
        let positive = || any().positive();
        rows.extend([
            row("neg", any(), |x| -x[0]),
            row("recip", positive(), |x| x[0].recip()),
            row("sqrt", positive(), |x| x[0].sqrt()),
            row("exp", any(), |x| x[0].exp()),
            row("log", positive(), |x| x[0].log()),
            row("sin", any(), |x| x[0].sin()),
            row("cos", any(), |x| x[0].cos()),
            row("tanh", any(), |x| x[0].tanh()),
            row("erf", any(), |x| x[0].erf()),
            row("floor", any(), |x| x[0].floor() * x[0]),
            row("ceil", any(), |x| x[0].ceil() * x[0]),
            row("round", any(), |x| (x[0] * 4.0).round() * x[0]),
            row("round: of halves", any(), |x| ((x[0] * 4.0).round() * 0.5).round() * x[0]),
            row("sign", any(), |x| x[0].sign() * x[0].sin()),
            row("is_finite", any(), |x| x[0].is_finite().select(x[0] * x[0], x[0])),
            row("cast", any(), |x| {
                x[0] * (x[0].cast(DType::I32).cast(x[0].dtype()) + x[0].cast(DType::Bool).cast(x[0].dtype()))
            }),
            row("detach", any(), |x| x[0].detach() * 0.0 + x[0].sin()),
            row("barrier", any(), |x| x[0].barrier() * x[0].sin()),
            row("hook", any(), |x| x[0].on_grad(|g| g * 1.0).sin()),
            row("abs", any(), |x| x[0].abs() * x[0]),
            row("relu", any(), |x| x[0].relu() * x[0]),
            row("sigmoid", any(), |x| x[0].sigmoid()),
            row("normal_cdf", any(), |x| x[0].normal_cdf()),
            row("normal_pdf", any(), |x| x[0].normal_pdf()),
            row("expm1", any(), |x| x[0].expm1()),
            row("log1p", positive(), |x| x[0].log1p()),
            row("square", any(), |x| x[0].square()),
            row("rsqrt", positive(), |x| x[0].rsqrt()),
            row("guarded_sqrt", positive(), |x| x[0].guarded_sqrt()),
            row("clamp", any(), |x| x[0].clamp(-0.7, 1.1) * x[0]),
            row("clamp: below", any(), |x| x[0].clamp(0.1, f64::INFINITY) * x[0]),
            row("clamp: above", any(), |x| x[0].clamp(f64::NEG_INFINITY, 0.2) * x[0]),
            row("leaky_relu", any(), |x| x[0].leaky_relu(0.1) * x[0]),
            row("elu", any(), |x| x[0].elu(0.7)),
            row("gelu", any(), |x| x[0].gelu()),
            row("gelu_tanh", any(), |x| x[0].gelu_tanh()),
            row("silu", any(), |x| x[0].silu()),
            row("softplus", any(), |x| x[0].softplus()),
            row("softplus: large", any(), |x| (x[0] * 60.0).softplus() + (x[0] * -60.0).softplus()),
            row("log_sigmoid", any(), |x| x[0].log_sigmoid()),
            row("not", any(), |x| (!x[0].less(0.0)).select(x[0] * x[0], x[0])),
        ]);
    }
    rows
}

pub(super) fn binary() -> Vec<Row> {
    let mut rows = vec![];
    for pair in pairs() {
        for pair in [pair.clone(), [pair[1].clone(), pair[0].clone()]] {
            let any = || Gradcheck::new(pair.clone());
            let positive = || any().positive();
            rows.extend([
                row("add", any(), |x| x[0] + x[1]),
                row("sub", any(), |x| x[0] - x[1]),
                row("mul", any(), |x| x[0] * x[1]),
                row("div", any(), |x| x[0] / x[1]),
                row("pow", positive(), |x| x[0].pow(x[1])),
                row("maximum", any(), |x| x[0].maximum(x[1])),
                row("minimum", any(), |x| x[0].minimum(x[1]) * x[1]),
                row("less", any(), |x| x[0].less(x[1]).select(x[0] * x[1], x[1])),
                row("less_equal", any(), |x| x[0].less_equal(x[1]).select(x[0] * x[1], x[1])),
                row("greater", any(), |x| x[0].greater(x[1]).select(x[0] * x[1], x[1])),
                row("greater_equal", any(), |x| x[0].greater_equal(x[1]).select(x[0] * x[1], x[1])),
                row("not_equals", any(), |x| x[0].not_equals(x[1]).select(x[0] * x[1], x[1])),
                row("and", any(), |x| x[0].less(x[1]).and(x[0].less(0.5)).select(x[0] * x[1], x[1])),
                row("or", any(), |x| x[0].less(x[1]).or(x[0].less(0.5)).select(x[0] * x[1], x[1])),
                row("select", any(), |x| x[0].less(0.0).select(x[0] * x[1], x[1].sin())),
                row("equals", any(), |x| x[0].equals(x[1]).select(x[0] * 2.0, x[1] * x[0])),
            ]);
        }
    }
    rows
}
