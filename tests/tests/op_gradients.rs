//! Every op: its gradient and its second derivatives agree with finite differences, on shapes that are empty, of extent
//! 1, odd, broadcast and strided, at the leaves and in the middle of a graph; and the CPU computes the same.

use std::collections::BTreeSet;
use wgrad::{
    Array, Cell, DType, Recurrence, Shape, Tensor,
    op::{Binary, Op, Reduce, Segments, Unary},
};
use wgrad_tests::Gradcheck;

type Function = Box<dyn for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>>;

/// A line of the table: a function, and the arguments that it is checked on.
struct Row {
    name: String,
    check: Gradcheck,
    f: Function,
}

fn row(name: &str, check: Gradcheck, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t> + 'static) -> Row {
    let name = format!("{name} of {:?}", check.shapes);
    Row { name, check, f: Box::new(f) }
}

/// Shapes that most ops should meet.
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

fn unary() -> Vec<Row> {
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
            row("is_finite", any(), |x| x[0].is_finite().select(x[0] * x[0], x[0])),
            row("casts", any(), |x| {
                x[0] * (x[0].cast(DType::I32).cast(DType::F64) + x[0].cast(DType::Bool).cast(DType::F64))
            }),
            row("detach", any(), |x| x[0].detach() * 0.0 + x[0].sin()),
            row("barrier", any(), |x| x[0].barrier() * x[0].sin()),
            row("hook", any(), |x| x[0].on_grad(|g| g * 1.0).sin()),
            row("abs", any(), |x| x[0].abs() * x[0]),
            row("relu", any(), |x| x[0].relu() * x[0]),
            row("sigmoid", any(), |x| x[0].sigmoid()),
        ]);
    }
    rows
}

fn binary() -> Vec<Row> {
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
                row("max", any(), |x| x[0].maximum(x[1])),
                row("min", any(), |x| x[0].minimum(x[1]) * x[1]),
                row("less", any(), |x| x[0].less(x[1]).select(x[0] * x[1], x[1])),
                row("equal", any(), |x| x[0].equals(x[1]).select(x[0] * 2.0, x[1] * x[0])),
            ]);
        }
    }
    rows
}

fn reductions() -> Vec<Row> {
    let mut rows = vec![];
    let cases: [(Shape, &'static [usize]); 8] = [
        ([].into(), &[]),
        ([5].into(), &[0]),
        ([3, 5].into(), &[0]),
        ([3, 5].into(), &[1]),
        ([2, 3, 4].into(), &[0, 2]),
        ([2, 3, 4].into(), &[1]),
        ([2, 1, 3, 2].into(), &[0, 1, 2, 3]),
        ([3, 0].into(), &[0]),
    ];
    for (shape, axes) in cases {
        let any = || Gradcheck::new([shape.clone()]);
        rows.push(row("sum", any(), move |x| x[0].sum_axes(axes)));
        rows.push(row("max over axes", any(), move |x| x[0].max_axes(axes)));
        rows.push(row("norm", any(), move |x| x[0].norm_axes(axes)));
        rows.push(row("variance", any(), move |x| if x[0].numel() > 0 { x[0].var_axes(axes) } else { x[0] }));
    }
    rows.push(row("sum of nothing", Gradcheck::new([[3usize, 0]]), |x| x[0].sum_axes(&[1])));
    rows.push(row("argmax", Gradcheck::new([[3usize, 5]]), |x| x[0].gather(x[0].argmax(1).reshape([3, 1]), 1)));
    for axis in [0, 1] {
        rows.push(row("softmax", Gradcheck::new([[3usize, 4]]), move |x| x[0].softmax(axis)));
        rows.push(row("logsumexp", Gradcheck::new([[3usize, 4]]), move |x| x[0].logsumexp(axis)));
    }
    rows
}

fn movement() -> Vec<Row> {
    let matrix = || Gradcheck::new([[3usize, 4]]);
    let pair = |a: [usize; 2], b: [usize; 2]| Gradcheck::new([a, b]);
    vec![
        row("reshape", matrix(), |x| x[0].reshape([2, 1, 6])),
        row("reshape to a scalar", Gradcheck::new([[1usize, 1]]), |x| x[0].reshape([])),
        row("reshape of a transpose", matrix(), |x| x[0].transpose().reshape([2, 6])),
        row("reshape of nothing", Gradcheck::new([[0usize, 4]]), |x| x[0].reshape([3, 0])),
        row("permute", Gradcheck::new([[2usize, 3, 1, 2]]), |x| x[0].permute(&[3, 0, 2, 1])),
        row("expand", Gradcheck::new([[2usize, 1, 3]]), |x| x[0].broadcast_to([4, 2, 5, 3])),
        row("expand to nothing", Gradcheck::new([[2usize, 1]]), |x| x[0].broadcast_to([2, 0])),
        row("reshape of an expand", Gradcheck::new([[2usize, 1]]), |x| x[0].broadcast_to([2, 3]).reshape([6])),
        row("slice", matrix(), |x| x[0].slice(1, 1, 2)),
        row("slice of nothing", matrix(), |x| x[0].slice(0, 0, 0)),
        row("slice backwards", matrix(), |x| x[0].slice_step(1, 3, 2, -2)),
        row("slice with a stride", matrix(), |x| x[0].slice_step(1, 0, 2, 3)),
        row("slices that overlap", matrix(), |x| x[0].slice(1, 0, 3) * x[0].slice(1, 1, 3)),
        row("slices that interleave", matrix(), |x| x[0].slice_step(1, 0, 2, 2) * x[0].slice_step(1, 1, 2, 2)),
        row("slices of two axes", matrix(), |x| x[0].slice(0, 1, 1).sum() * x[0].slice(1, 2, 1)),
        row("slices and the whole", matrix(), |x| x[0] * x[0].slice(0, 0, 1) + x[0].slice(0, 2, 1)),
        row("empty and full slices", matrix(), |x| {
            Tensor::concat(&[x[0].slice(1, 0, 0), x[0].slice(1, 0, 2), x[0].slice(1, 2, 0), x[0].slice(1, 3, 1)], 1)
        }),
        row("index", matrix(), |x| x[0].index(0, 2)),
        row("concat", pair([2, 3], [2, 2]), |x| Tensor::concat(&[x[0], x[1], x[0]], 1)),
        row("concat with nothing", pair([2, 3], [0, 3]), |x| Tensor::concat(&[x[1], x[0], x[1]], 0)),
        row("stack", pair([2, 3], [2, 3]), |x| Tensor::stack(&[x[0], x[1]])),
        row("pad", matrix(), |x| x[0].pad(0, 2, 1).pad(1, 0, 1)),
        row("pad of nothing", Gradcheck::new([[2usize, 0]]), |x| x[0].pad(1, 1, 1)),
    ]
}

fn index(shape: impl Into<Shape>, values: &[u32]) -> Array {
    Array::new(shape, values.to_vec())
}

fn indexing() -> Vec<Row> {
    let ranges: Box<[(usize, usize)]> = [(0, 2), (2, 0), (3, 4)].into();
    let segments = std::sync::Arc::new(Segments { total: 8, ranges });
    let (sum, broadcast) = (segments.clone(), segments);
    let matrix = |indices: Array| Gradcheck::new([[3usize, 4]]).indices(vec![indices]);
    vec![
        row("gather rows", matrix(index([2, 4], &[0, 2, 1, 0, 2, 2, 0, 1])), |x| x[0].gather(x[1], 0)),
        row("gather columns", matrix(index([3, 3], &[3, 0, 0, 1, 1, 1, 2, 3, 0])), |x| x[0].gather(x[1], 1)),
        row("gather nothing", matrix(index([3, 0], &[])), |x| x[0].gather(x[1], 1)),
        row("rows", matrix(index([2, 2], &[0, 2, 2, 1])), |x| x[0].rows(x[1])),
        row("scatter_add", matrix(index([3, 4], &[0, 1, 0, 1, 1, 1, 0, 0, 4, 0, 1, 4])), |x| {
            x[0].scatter_add(x[1], 0, 5)
        }),
        row("scatter_add along rows", matrix(index([3, 4], &[0, 1, 0, 1, 1, 1, 0, 0, 2, 0, 1, 2])), |x| {
            x[0].scatter_add(x[1], 1, 3)
        }),
        row("cross_entropy", matrix(index([3], &[3, 0, 2])), |x| x[0].cross_entropy(x[1])),
        row("segment_sum", Gradcheck::new([[8usize]]), move |x| x[0].segment_sum(&sum)),
        row("segment_broadcast", Gradcheck::new([[3usize]]), move |x| x[0].segment_broadcast(&broadcast)),
        row("random", Gradcheck::new([[3usize, 3]]), |x| {
            let t = x[0].tape();
            let words = t.random(t.table(&[1.0, 2.0], DType::U32), t.scalar(3.0, DType::U32), 4, [3, 3]);
            words.cast(DType::F64) * 2f64.powi(-32) * x[0] * x[0]
        }),
        row("iota", Gradcheck::new([[3usize]]), |x| x[0].tape().iota(3).cast(DType::F64) * x[0] * x[0]),
    ]
}

fn products() -> Vec<Row> {
    let pair = |a: &[usize], b: &[usize]| Gradcheck::new([Shape::from(a), Shape::from(b)]);
    let mut rows = vec![];
    for (m, k, n) in [(2, 3, 4), (1, 5, 1), (3, 1, 2), (2, 0, 3), (0, 2, 2)] {
        rows.push(row("matmul", pair(&[m, k], &[k, n]), |x| x[0].matmul(x[1])));
        rows.push(row("matmul_t", pair(&[m, k], &[n, k]), |x| x[0].matmul_t(x[1])));
        rows.push(row("transposed matmul", pair(&[k, m], &[k, n]), |x| x[0].transpose().matmul(x[1])));
    }
    rows.extend([
        row("batched matmul", pair(&[2, 2, 3], &[2, 3, 2]), |x| x[0].matmul(x[1])),
        row("batched matmul_t", pair(&[2, 1, 2, 3], &[2, 1, 2, 3]), |x| x[0].matmul_t(x[1])),
        row("matmul with one matrix", pair(&[2, 2, 3], &[3, 2]), |x| x[0].matmul(x[1])),
        row("matmul with a broadcast batch", pair(&[2, 1, 2, 3], &[3, 3, 2]), |x| x[0].matmul(x[1])),
        row("matmul with itself", Gradcheck::new([[3usize, 3]]), |x| x[0].matmul(x[0]).matmul_t(x[0])),
    ]);
    rows
}

fn control() -> Vec<Row> {
    let pair = || Gradcheck::new([[2usize, 3], [2, 3]]);
    vec![
        row("select", pair(), |x| x[0].less(0.0).select(x[0] * x[1], x[1].sin())),
        row("custom", pair(), |x| {
            let outputs = x[0].tape().custom_vjp(
                x,
                |x| vec![x[0] * x[1], x[0].sin()],
                |v| {
                    let (x, y) = (v.inputs[0], v.inputs[1]);
                    let (first, second) = (v.cotangents[0], v.cotangents[1]);
                    let (first, second) = (first.expect("used"), second.expect("used"));
                    vec![Some(first * y + second * x.cos()), Some(first * x)]
                },
            );
            outputs[0] - outputs[1]
        }),
        row("checkpoint", pair(), |x| x[0].tape().checkpoint(|| (x[0] * x[1]).tanh().exp()) * x[0]),
    ]
}

/// What a loss reads of a sequence.
#[derive(Clone, Copy)]
enum Reads {
    /// Every hidden state.
    Steps,
    /// The last hidden state.
    Last,
    /// The last hidden state, and an LSTM's last memory, or the first hidden state.
    Both,
}

fn sequences() -> Vec<Row> {
    let mut rows = vec![];
    let cases = [
        (Cell::Tanh, [3, 2, 3], Reads::Steps),
        (Cell::Tanh, [2, 1, 1], Reads::Last),
        (Cell::Tanh, [2, 0, 2], Reads::Steps),
        (Cell::Sigmoid, [2, 3, 2], Reads::Steps),
        (Cell::Sigmoid, [1, 2, 1], Reads::Last),
        (Cell::Irnn, [3, 2, 2], Reads::Both),
        (Cell::Irnn, [1, 1, 3], Reads::Last),
        (Cell::Lstm, [2, 2, 2], Reads::Both),
        (Cell::Lstm, [3, 1, 1], Reads::Steps),
        (Cell::Lstm, [1, 2, 1], Reads::Last),
        (Cell::Lstm, [2, 0, 1], Reads::Both),
        (Cell::Gru, [2, 2, 2], Reads::Steps),
        (Cell::Gru, [3, 1, 1], Reads::Last),
        (Cell::Gru, [1, 2, 2], Reads::Both),
        (Cell::Gru, [2, 1, 0], Reads::Steps),
    ];
    for (cell, [time, batch, hidden], reads) in cases {
        let wide = cell.gates() * hidden;
        let mut shapes: Vec<Shape> = vec![[time, batch, wide].into(), [wide, hidden].into(), [batch, hidden].into()];
        shapes.extend((cell == Cell::Lstm).then(|| [batch, hidden].into()));
        shapes.extend((cell == Cell::Gru).then(|| [wide].into()));
        rows.push(row(&format!("{} sequence", cell.name()), Gradcheck::new(shapes), move |x| {
            let of = |kind: Cell| (cell == kind).then(|| x[3]);
            let (c0, b_hh) = (of(Cell::Lstm), of(Cell::Gru));
            let (h, c) = Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0, b_hh }.run();
            match reads {
                Reads::Steps => h,
                Reads::Last => h.index(0, time - 1),
                Reads::Both => h.index(0, time - 1) + c.unwrap_or(h).index(0, time - 1) * h.index(0, 0),
            }
        }));
    }
    rows
}

fn table() -> Vec<Row> {
    [unary(), binary(), reductions(), movement(), indexing(), products(), sequences(), control()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn every_rule_agrees_with_finite_differences() {
    let failures: Vec<(String, String)> =
        table().into_iter().filter_map(|row| Some((row.name, row.check.run(&row.f).err()?))).collect();
    let names: Vec<&String> = failures.iter().map(|(name, _)| name).collect();
    assert!(failures.is_empty(), "{names:#?} fail, the first with {}", failures[0].1);
}

/// The name of an op in the table above; a new op does not compile here until it has one.
fn listed(op: &Op) -> &'static str {
    match op {
        Op::Const(_) | Op::Input(_) | Op::Iota(_) | Op::Random { .. } => op.name(),
        // States are inputs that live longer: tests of programs have them.
        Op::State(_) => "input",
        Op::Unary(u) => match u {
            Unary::Neg | Unary::Recip | Unary::Sqrt | Unary::Exp | Unary::Log => u.name(),
            Unary::Sin | Unary::Cos | Unary::Tanh | Unary::Erf | Unary::IsFinite => u.name(),
        },
        Op::Binary(b) => match b {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Pow => b.name(),
            Binary::Max | Binary::Lt | Binary::Eq => b.name(),
        },
        Op::Reduce(Reduce::Sum | Reduce::Max | Reduce::Norm, _) | Op::ArgMax(_) => op.name(),
        Op::Select | Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) => op.name(),
        Op::Slice { .. } | Op::Assemble { .. } | Op::Gather(_) | Op::ScatterAdd { .. } => op.name(),
        Op::SegmentSum(_) | Op::SegmentBroadcast(_) | Op::MatMul { .. } => op.name(),
        Op::Sequence { .. } | Op::SequenceGrad { .. } => op.name(),
        Op::Detach | Op::Barrier(_) | Op::Recomputed | Op::Hook(_) | Op::Custom { .. } => op.name(),
    }
}

#[test]
fn the_table_has_every_op() {
    let seen: BTreeSet<&str> = table()
        .iter()
        .flat_map(|row| row.check.program(&row.f).nodes().iter().map(|node| listed(&node.op)).collect::<Vec<_>>())
        .collect();
    let all = [
        "add",
        "argmax",
        "assemble",
        "barrier",
        "cast",
        "const",
        "cos",
        "custom",
        "detach",
        "div",
        "equal",
        "erf",
        "exp",
        "expand",
        "gather",
        "hook",
        "input",
        "iota",
        "is_finite",
        "less",
        "log",
        "matmul",
        "max",
        "mul",
        "neg",
        "norm",
        "permute",
        "pow",
        "random",
        "recip",
        "recomputed",
        "reduce_max",
        "reshape",
        "scatter_add",
        "segment_broadcast",
        "segment_sum",
        "select",
        "sequence",
        "sequence_grad",
        "sin",
        "slice",
        "sqrt",
        "sub",
        "sum",
        "tanh",
    ];
    assert_eq!(seen, all.into_iter().collect());
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
    assert!((outcome.taps[0].2[0] - 1.0 / 0.8).abs() < 1e-12, "{outcome:?}");
}

#[test]
fn every_node_names_a_line_of_its_caller() {
    // A gradient node names the line of the node that it differentiates.
    let mut inside = BTreeSet::new();
    for row in table() {
        let program = row.check.program(&row.f);
        let sites = program.nodes().iter().map(|node| (node.op.name(), node.site.to_string()));
        inside.extend(sites.filter(|(_, site)| site.contains("autograd")));
    }
    assert!(inside.is_empty(), "{inside:#?}");
}
