//! What the planner makes of well-known programs, exactly: which kernels, how many, and where they write.

use std::sync::Arc;
use wgrad::{
    Array, Cell, DType, Optimizer, Program, Store, Tape, Tensor,
    op::Op,
    plan::{Form, Grouping, Home, Instr, Kernel, Kind, Plan},
};
use wgrad_nn::{
    Builder, Gpt, GptConfig, Init, Linear, Recurrent, RecurrentInit,
    optim::{Sgd, SgdConfig},
};

const F32: DType = DType::F32;

/// The plan of a program for a device that has a kernel for every op, and the program as it is planned.
fn planned(store: &Store, f: impl FnOnce(&Tape)) -> (Program, Plan) {
    let tape = Tape::new(Arc::new(store.layout().clone()));
    f(&tape);
    let program = tape.finish().lowered(true, |_, _| true);
    let plan = Plan::new(&program);
    (program, plan)
}

/// The names of the kernels, in order.
fn names(plan: &Plan) -> Vec<&'static str> {
    plan.kernels.iter().map(Kernel::name).collect()
}

/// The forms of the loops, in order; all kernels must be loops.
fn forms(plan: &Plan) -> Vec<Form> {
    let form = |kernel: &Kernel| match &kernel.kind {
        Kind::Loop(body) => body.form(),
        kind => panic!("{kind:?} is no loop"),
    };
    plan.kernels.iter().map(form).collect()
}

/// Whether a kernel does nothing but copy.
fn copies(kernel: &Kernel) -> bool {
    let Kind::Loop(body) = &kernel.kind else { return false };
    body.values.iter().all(|value| matches!(value.instr, Instr::Load(_)))
}

#[test]
fn a_softmax_over_rows_is_one_kernel() {
    for (shape, axis) in [(vec![5, 7], 1), (vec![5, 7], 0), (vec![2, 3, 4], 1)] {
        let (_, plan) = planned(&Store::new(), |t| t.tap("y", t.input("x", shape, F32).softmax(axis)));
        assert_eq!(forms(&plan), [Form::Row]);
    }
}

#[test]
fn the_gradient_of_a_softmax_is_one_kernel() {
    let (program, plan) = planned(&Store::new(), |t| {
        let x = t.input("x", [5, 7], F32);
        let loss = x.softmax(1).log().sum();
        t.tap("dx", loss.grad_wrt(&[x])[0].expect("reached"));
    });
    assert_eq!(forms(&plan), [Form::Row], "{}", plan.describe(&program));
}

/// `(x - mean) / sqrt(variance + 1e-5) * scale + shift`, over the last of two dimensions.
fn layer_norm<'t>(x: Tensor<'t>, scale: Tensor<'t>, shift: Tensor<'t>) -> Tensor<'t> {
    let wide = |statistic: Tensor<'t>| statistic.reshape([x.shape()[0], 1]);
    let deviation = (x.var_axes(&[1]) + 1e-5).sqrt();
    (x - wide(x.mean_axes(&[1]))) / wide(deviation) * scale + shift
}

#[test]
fn a_layer_norm_is_a_row_kernel_and_the_sums_for_its_parameters() {
    let (program, plan) = planned(&Store::new(), |t| {
        let x = [t.input("x", [6, 9], F32), t.input("scale", [9], F32), t.input("shift", [9], F32)];
        let y = layer_norm(x[0], x[1], x[2]);
        t.tap("y", y);
        y.vjp(t.input("dy", [6, 9], F32), &x).into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
    });
    assert_eq!(forms(&plan), [Form::Row, Form::Reduce], "{}", plan.describe(&program));
}

#[test]
fn a_product_with_bias_and_activation_is_one_kernel() {
    let (program, plan) = planned(&Store::new(), |t| {
        let [x, w, b] = [("x", vec![5, 4]), ("w", vec![3, 4]), ("b", vec![3])].map(|(n, shape)| t.input(n, shape, F32));
        t.tap("y", (x.matmul_t(w) + b).tanh());
    });
    assert_eq!(names(&plan), ["matmul"], "{}", plan.describe(&program));
    let Kind::MatMul(matmul) = &plan.kernels[0].kind else { panic!("{:?}", plan.kernels[0]) };
    assert_eq!((matmul.m, matmul.k, matmul.n), (5, 4, 3));
    assert_eq!(matmul.epilogue.form(), Form::Map);
}

#[test]
fn an_optimizer_with_clipping_is_one_kernel_that_writes_in_place() {
    let mut store = Store::new();
    // As many as a segment: there is no padding, and so nothing to assemble.
    let param = store.param("p", &Array::zeros([128], F32));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let (program, plan) = planned(&store, |t| {
        let loss = (t.param(param) * t.input("g", [128], F32)).sum();
        sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
    });
    assert_eq!(forms(&plan), [Form::Row], "{}", plan.describe(&program));
    assert_eq!(plan.commits, []);
    let arena = store.layout().param(param).arena;
    // Besides the states, what is shown: the norm and the coefficient.
    let written: Vec<usize> = plan.kernels[0].writes.iter().map(|write| write.slot).collect();
    assert!(written.iter().any(|&slot| plan.slots[slot].home == Home::State(arena)));
    let shown = |slot: usize| plan.taps.iter().any(|tap| tap.slot == slot);
    assert!(written.iter().all(|&slot| plan.slots[slot].home != Home::Transient || shown(slot)));
}

/// A stack of linear layers, each with a norm and an activation, and a step of gradient descent.
fn stack(layers: usize) -> (Program, Plan) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let (width, init) = (8, Init::Normal(0.1));
    let layers: Vec<_> = (0..layers)
        .map(|i| {
            let linear = Linear::new(b.at(&format!("linear{i}")), width, width, &init);
            let name = |part: &str| format!("norm{i}/{part}");
            (linear, b.param(&name("scale"), [width], &init), b.param(&name("shift"), [width], &Init::Zeros))
        })
        .collect();
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    planned(&store, |t| {
        let x = t.input("x", [5, width], F32);
        let y = layers.iter().fold(x, |x, (linear, scale, shift)| {
            layer_norm(linear.forward(x), t.param(*scale), t.param(*shift)).tanh()
        });
        let loss = y.square().mean();
        t.tap("loss", loss);
        sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
    })
}

#[test]
fn gradients_are_written_straight_into_the_flat_gradient() {
    let (program, plan) = stack(3);
    assert!(!plan.kernels.iter().any(copies), "{}", plan.describe(&program));
    assert_eq!(plan.commits, []);
}

#[test]
fn the_number_of_kernels_is_linear_in_depth() {
    let kernels: Vec<usize> = (2..=12).map(|layers| stack(layers).1.kernels.len()).collect();
    let per_layer = kernels[1] - kernels[0];
    assert!(kernels.windows(2).all(|pair| pair[1] - pair[0] == per_layer), "{kernels:?}");
}

/// Sums over the same rows that share what they read, one with the next, from the last layer to the first: as many merge
/// as one kernel has buffers for, and the rest is not taken apart for that.
#[test]
fn the_kernels_of_a_decoder_are_linear_in_depth_for_any_number_of_buffers() {
    for buffers in [8, 24] {
        let kernels = [4, 8, 12].map(|layers| {
            let mut store = Store::new();
            let size = GptConfig { layers, heads: 2, width: 8, hidden: 16, context: 4, ..GptConfig::small(5) };
            let model = Gpt::new(Builder::new(&mut store, 0), &size);
            let params = store.params();
            let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
            let tape = Tape::new(Arc::new(store.layout().clone()));
            let [x, y] = ["x", "y"].map(|name| tape.input(name, [3, 4], DType::U32));
            sgd.step(model.loss(x, y, true).grad(&params));
            let program = tape.finish().lowered(true, |_, _| true);
            Plan::with(&program, &Grouping { buffers, ..Grouping::default() }).kernels.len()
        });
        assert_eq!(kernels[1] - kernels[0], kernels[2] - kernels[1], "{kernels:?} with {buffers} buffers");
    }
}

/// Parameters that are states of their own, each with two moments: independent updates share kernels, as many as bind
/// their buffers.
#[test]
fn updates_of_small_states_share_kernels() {
    const STATES: usize = 60;
    for (buffers, most) in [(8, 7 * STATES), (24, 3 * STATES)] {
        let mut store = Store::new();
        let zeros = Array::new([16], vec![0f32; 16]);
        let ids: Vec<_> = (0..STATES)
            .map(|i| ["value", "mean", "square"].map(|kind| store.state(&format!("{i}/{kind}"), &zeros)))
            .collect();
        let tape = Tape::new(Arc::new(store.layout().clone()));
        let values: Vec<Tensor<'_>> = ids.iter().map(|[value, ..]| tape.state(*value)).collect();
        let out = values.iter().fold(tape.input("x", [16], F32), |x, value| (x * *value).tanh());
        let gradients = out.square().mean().grad_wrt(&values);
        for ((gradient, value), [id, mean, square]) in gradients.into_iter().zip(&values).zip(ids) {
            let gradient = gradient.expect("reached");
            let first = tape.state(mean) * 0.9 + gradient * 0.1;
            let second = tape.state(square) * 0.99 + gradient.square() * 0.01;
            tape.assign(mean, first);
            tape.assign(square, second);
            tape.assign(id, *value - first / (second.sqrt() + 1e-8));
        }
        let program = tape.finish().lowered(true, |_, _| true);
        let plan = Plan::with(&program, &Grouping { buffers, ..Grouping::default() });
        assert!(plan.kernels.len() <= most, "{} kernels with {buffers} buffers", plan.kernels.len());
    }
}

#[test]
fn without_grouping_there_is_a_kernel_per_node() {
    let (program, _) = stack(2);
    let plan = Plan::with(&program, &Grouping::none());
    for kernel in &plan.kernels {
        assert_eq!(kernel.nodes.len(), 1, "{kernel:?}");
    }
    // What is no look at another value, nor there from the start.
    let live = program.live();
    let computes = |op: &Op| {
        !matches!(
            op,
            Op::Const(_)
                | Op::Input(_)
                | Op::State(_)
                | Op::Iota(_)
                | Op::Table(_)
                | Op::Reshape(_)
                | Op::Permute(_)
                | Op::Expand(_)
                | Op::Slice { .. }
                | Op::Detach
                | Op::Custom { .. }
        )
    };
    let nodes = (0..live.len()).filter(|&i| live[i] && computes(&program.nodes()[i].op)).count();
    assert_eq!(plan.kernels.len(), nodes, "{}", plan.describe(&program));
}

#[test]
fn a_fused_sequence_has_as_many_nodes_and_kernels_for_any_number_of_steps() {
    let recorded = |time: usize| {
        let mut store = Store::new();
        let init = RecurrentInit::normal(0.1);
        let lstm = Recurrent::new(Builder::new(&mut store, 1), Cell::Lstm, 3, 4, &init);
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
        let (program, plan) = planned(&store, |t| {
            let loss = lstm.forward(t.input("x", [time, 2, 3], F32)).last.square().sum();
            sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
        });
        (program.nodes().len(), plan.kernels.len())
    };
    assert_eq!(recorded(5), recorded(50));
    assert_eq!(recorded(5), recorded(500));
}

#[test]
fn the_gates_of_a_sequence_and_their_gradients_lie_where_its_input_was() {
    for (cell, ops) in [(Cell::Tanh, 2), (Cell::Lstm, 2), (Cell::Gru, 0)] {
        let mut store = Store::new();
        let recurrent = Recurrent::new(Builder::new(&mut store, 1), cell, 3, 4, &RecurrentInit::normal(0.1));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
        let (program, plan) = planned(&store, |t| {
            let loss = recurrent.forward(t.input("x", [5, 2, 3], F32)).last.square().sum();
            sgd.step(loss.grad(&params));
        });
        let over = |kernel: &&Kernel| match &kernel.kind {
            Kind::Op(op) => op.overwrites().is_some_and(|(x, y)| kernel.reads[x].slot == kernel.writes[y].slot),
            _ => false,
        };
        assert_eq!(plan.kernels.iter().filter(over).count(), ops, "{cell:?}: {}", plan.describe(&program));
    }
}
