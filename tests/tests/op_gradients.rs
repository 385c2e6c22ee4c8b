//! Every op: its gradient and its second derivatives agree with finite differences, on shapes that are empty, of extent
//! 1, odd, broadcast and strided, at the leaves and in the middle of a graph; and the CPU computes the same.

use approx::abs_diff_eq;
use std::collections::BTreeSet;
use wgrad::{
    Array, DType, Tensor,
    op::{Binary, Op, Reduce, Unary},
};
use wgrad_tests::{Gradcheck, catalogue::catalogue};

/// The name of an op in the catalogue; a new op does not compile here until it has one.
fn listed(op: &Op) -> &'static str {
    match op {
        Op::Const(_) | Op::Input(_) | Op::Iota(_) | Op::Table(_) | Op::Random { .. } => op.name(),
        // States are inputs that live longer: tests of programs have them.
        Op::State(_) => "input",
        Op::Unary(_) | Op::Binary(_) => op.name(),
        Op::Reduce(Reduce::Sum | Reduce::Max | Reduce::Norm, _) | Op::ArgMax(_) | Op::CumSum { .. } => op.name(),
        Op::ArgSort(..) => op.name(),
        // Exchanges with other ranks: `replicas.rs` has them.
        Op::Exchange(..) => op.name(),
        // Stretches that ranks share out: `sharded.rs` has them.
        Op::Part(_) => op.name(),
        Op::Select | Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) => op.name(),
        Op::Slice { .. } | Op::Assemble { .. } | Op::Gather(_) | Op::ScatterAdd { .. } => op.name(),
        Op::SegmentReduce(Reduce::Sum | Reduce::Max | Reduce::Norm, _) => op.name(),
        Op::SegmentBroadcast(_) | Op::MatMul { .. } => op.name(),
        Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..) => op.name(),
        Op::Sequence { .. } | Op::SequenceGrad { .. } | Op::Attention(..) | Op::AttentionGrad(..) => op.name(),
        Op::Detach | Op::Barrier(_) | Op::Recomputed | Op::Hook(_) | Op::Custom { .. } => op.name(),
    }
}

#[test]
fn the_catalogue_has_every_op() {
    let seen: BTreeSet<&str> = catalogue()
        .iter()
        .flat_map(|row| row.check.program(&row.f).nodes().iter().map(|node| listed(&node.op)).collect::<Vec<_>>())
        .collect();
    let elementwise = Unary::ALL.iter().map(|op| op.name()).chain(Binary::ALL.iter().map(|op| op.name()));
    let others = [
        "argmax",
        "argsort",
        "assemble",
        "attention",
        "attention_grad",
        "barrier",
        "cast",
        "const",
        "conv2d",
        "conv_input_grad",
        "conv_weight_grad",
        "cumsum",
        "custom",
        "detach",
        "expand",
        "gather",
        "hook",
        "input",
        "iota",
        "matmul",
        "norm",
        "permute",
        "random",
        "recomputed",
        "reduce_max",
        "reshape",
        "scatter_add",
        "segment_broadcast",
        "segment_max",
        "segment_norm",
        "segment_sum",
        "select",
        "sequence",
        "sequence_grad",
        "slice",
        "table",
        "sum",
    ];
    assert_eq!(seen, others.into_iter().chain(elementwise).collect());
}

fn wrong<'t>(x: Tensor<'t>, rule: impl for<'u> Fn(Tensor<'u>, Tensor<'u>) -> Tensor<'u> + 'static) -> Tensor<'t> {
    x.tape().custom_vjp(&[x], |x| vec![x[0].sin()], move |v| vec![v.cotangents[0].map(|g| rule(g, v.inputs[0]))])[0]
}

#[test]
fn a_wrong_rule_is_detected() {
    let check = || Gradcheck::new([[2usize, 3]]);
    assert!(check().run(|x| wrong(x[0], |g, x| g * x.cos())).is_ok(), "the right rule");
    assert!(check().run(|x| wrong(x[0], |g, x| g * x.cos() * 1.0001)).is_err(), "off by a factor");
    assert!(check().run(|x| wrong(x[0], |g, x| g * x.cos() + g.index(0, 0) * 0.001)).is_err(), "a term too many");
    let cut = check().run(|x| wrong(x[0], |g, x| g * x.cos().detach())).expect_err("right, but its own derivative");
    assert!(cut.contains("the second derivative"), "the first derivative is right: {cut}");
    let missing = check().run(|x| x[0].tape().custom_vjp(&[x[0]], |x| vec![x[0].sin()], |_| vec![None])[0]);
    assert!(missing.is_err(), "no gradient where there is one");
}

#[test]
fn the_slope_of_pow_in_its_base_depends_on_a_power_of_0() {
    // d2 (x^p) / dx dp at p = 0 is 1 / x.
    let t = wgrad::Tape::default();
    let (x, p) = (t.input("x", [], DType::F64), t.input("p", [], DType::F64));
    let dx = x.pow(p).grad_wrt(&[x])[0].expect("reached");
    t.tap("d2", dx.grad_wrt(&[p])[0].expect("reached"));
    let inputs = [("x".to_string(), Array::scalar(0.8)), ("p".to_string(), Array::scalar(0.0))];
    let outcome = wgrad_tests::reference(&t.finish(), &[], &inputs);
    assert!(abs_diff_eq!(outcome.taps[0].2[0], 1.0 / 0.8, epsilon = 1e-12), "{outcome:?}");
}

#[test]
fn every_node_names_a_line_of_its_caller() {
    // A gradient node names the line of the node that it differentiates.
    let mut inside = BTreeSet::new();
    for row in catalogue() {
        let program = row.check.program(&row.f);
        let sites = program.nodes().iter().map(|node| (node.op.name(), node.site.to_string()));
        inside.extend(sites.filter(|(_, site)| site.contains("autograd")));
    }
    assert!(inside.is_empty(), "{inside:#?}");
}
