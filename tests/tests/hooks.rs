//! Hooks, probes, checkpoints, detached values and custom rules: what they see, in which order, and how often.

use approx::assert_abs_diff_eq;
use std::{cell::RefCell, rc::Rc};
use wgrad::{Array, DType, Program, Store, Tape, Tensor, op::Op};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, reference, same_bits};

const F64: DType = DType::F64;

/// Runs a program with input `x` in f64 on the CPU.
fn run(program: Program, x: &[f64]) -> Outputs {
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program).expect("the plan compiles");
    cpu.run(&step, &[("x".into(), Array::new([x.len()], x.to_vec()))])
}

/// What a function taps, for input `x`.
fn taps(x: &[f64], record: impl for<'t> FnOnce(&'t Tape, Tensor<'t>)) -> Outputs {
    let t = Tape::default();
    record(&t, t.input("x", [x.len()], F64));
    run(t.finish(), x)
}

#[test]
fn a_hook_sees_the_total_gradient_once_per_sweep() {
    let calls = Rc::new(RefCell::new(0));
    let counted = calls.clone();
    let out = taps(&[2.0, 3.0], move |t, x| {
        let hooked = x.on_grad(move |g| {
            *counted.borrow_mut() += 1;
            g.tape().tap_each("seen", g);
            g * 10.0
        });
        // Three uses: 2 h + 1 + cos(h).
        let loss = (hooked * hooked + hooked + hooked.sin()).sum();
        t.tap("dx", loss.grad_wrt(&[x])[0].expect("reached"));
        assert_eq!(*calls.borrow(), 1);
        let _ = (loss * 2.0).grad_wrt(&[x]);
        assert_eq!(*calls.borrow(), 2);
        let _ = x.sum().grad_wrt(&[x]);
        assert_eq!(*calls.borrow(), 2, "a sweep that does not pass the hook does not run it");
    });
    let total = [2.0, 3.0].map(|h: f64| 2.0 * h + 1.0 + h.cos());
    compare("seen", &out.tap("seen").to_f64(), &total, Tolerance::F64).unwrap();
    compare("dx", &out.tap("dx").to_f64(), &total.map(|g| g * 10.0), Tolerance::F64).unwrap();
}

#[test]
fn hooks_run_in_the_order_of_registration() {
    let out = taps(&[1.0], |t, x| {
        let hooked = x.on_grad(|g| g + 1.0).on_grad(|g| g * 2.0).on_grad(|g| g - 5.0);
        t.tap("dx", (hooked * 3.0).sum().grad_wrt(&[x])[0].expect("reached"));
    });
    assert_eq!(out.tap("dx").to_f64(), [(3.0 + 1.0) * 2.0 - 5.0]);
}

#[test]
fn a_hook_may_use_other_tensors_and_no_gradient_flows_to_them() {
    let out = taps(&[3.0, 4.0], |t, x| {
        let (a, b) = (x * 2.0, x.index(0, 1));
        let hooked = x.on_grad_with([a], |g, [a]| g * a).on_grad_with([b, a], |g, [b, a]| g + b - a);
        t.tap("dx", hooked.sum().grad_wrt(&[x])[0].expect("reached"));
        assert!(hooked.sum().grad_wrt(&[a, b]).iter().all(Option::is_none));
    });
    // (1 * 2x) + x1 - 2x = x1.
    assert_eq!(out.tap("dx").to_f64(), [4.0, 4.0]);
}

#[test]
fn a_hooked_gradient_is_the_one_that_goes_on_and_is_differentiated() {
    let out = taps(&[0.7], |t, x| {
        let loss = (x * x).on_grad(|g| g * g).sin().sum();
        let dx = loss.grad_wrt(&[x])[0].expect("reached");
        t.tap("dx", dx);
        t.tap("ddx", dx.sum().grad_wrt(&[x])[0].expect("reached"));
    });
    // dx = cos(x^2)^2 2x; its derivative passes the hook again: the cotangent c of x^2 within it becomes c^2.
    let (x, y) = (0.7f64, 0.49f64);
    assert_abs_diff_eq!(out.tap("dx").item(0), y.cos().powi(2) * 2.0 * x, epsilon = 1e-12);
    let through_hook = (2.0 * x * 2.0 * y.cos() * -y.sin()).powi(2) * 2.0 * x;
    assert_abs_diff_eq!(out.tap("ddx").item(0), 2.0 * y.cos().powi(2) + through_hook, epsilon = 1e-12);
}

#[test]
fn a_hook_on_a_tied_parameter_runs_once_on_the_sum() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([2], vec![0.5f64, -1.0]));
    let untouched = store.param("u", &Array::new([3], vec![1.0f64; 3]));
    let calls = Rc::new(RefCell::new(vec![]));
    let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
    for k in 0..2 {
        let calls = calls.clone();
        tape.on_param_grad(w, move |g| {
            calls.borrow_mut().push(k);
            if k == 0 { g + 1.0 } else { g * 10.0 }
        });
    }
    let never = calls.clone();
    tape.on_param_grad(untouched, move |g| {
        never.borrow_mut().push(9);
        g
    });
    // Used twice: w * 3 and w * w.
    let loss = (tape.param(w) * 3.0).sum() + (tape.param(w) * tape.param(w)).sum();
    let grads = loss.grad(&store.params());
    assert_eq!(*calls.borrow(), [0, 1], "each hook once, in order, and none without a gradient");
    tape.tap("dw", grads.get(w).expect("present"));
    tape.tap("flat", grads.flat().tensors()[0]);
    assert!(grads.get(untouched).is_none());
    let mut cpu = Machine::poisoned(1, store);
    let step = cpu.session.compile(tape.finish()).expect("the plan compiles");
    let out = cpu.run(&step, &[]);
    let expected = [(3.0 + 2.0 * 0.5 + 1.0) * 10.0, (3.0 - 2.0 + 1.0) * 10.0];
    assert_eq!(out.tap("dw").to_f64(), expected);
    assert_eq!(out.tap("flat").to_f64()[..2], expected);
    assert!(out.tap("flat").to_f64()[2..].iter().all(|&v| v == 0.0), "padding and absent parameters are zero");
}

#[test]
fn probes_see_paths_and_change_nothing_without_a_handler() {
    let t = Tape::default();
    let x = t.input("x", [2], F64);
    assert_eq!(x.probe("alone").id(), x.id());
    let seen = Rc::new(RefCell::new(vec![]));
    let paths = seen.clone();
    let record = || t.scoped("layer", || t.scoped_turn("step", 3, || (x * 2.0).probe("h")));
    let plain = record();
    let probed = t.with_probe(
        move |path, x| {
            paths.borrow_mut().push(path.to_string());
            x.tape().tap(path, x);
            x
        },
        record,
    );
    assert_eq!(probed.id(), plain.id());
    assert_eq!(record().id(), plain.id(), "the handler is gone");
    assert_eq!(*seen.borrow(), ["layer/step[3]/h"]);
    assert_eq!(run(t.finish(), &[1.0, 2.0]).tap("layer/step[3]/h").to_f64(), [2.0, 4.0]);
}

/// Records `depth` layers, each in a checkpoint of its own, all in one more.
fn layers<'t>(t: &'t Tape, x: Tensor<'t>, checkpoints: bool, depth: usize) -> Tensor<'t> {
    let within = |f: &dyn Fn() -> Tensor<'t>| if checkpoints { t.checkpoint(f) } else { f() };
    within(&|| (0..depth).fold(x, |x, k| within(&|| (x * (1.1 + k as f64)).sin() * x.tanh() + x.maximum(x * x))))
}

#[test]
fn checkpoints_change_no_bit_of_a_gradient() {
    let gradient = |checkpoints: bool| {
        taps(&[0.3, -0.8, 1.7], move |t, x| {
            let loss = (layers(t, x, checkpoints, 3) * x).sum();
            let dx = loss.grad_wrt(&[x])[0].expect("reached");
            t.tap("loss", loss);
            t.tap("dx", dx);
            t.tap("ddx", (dx * dx).sum().grad_wrt(&[x])[0].expect("reached"));
        })
    };
    let (plain, checkpointed) = (gradient(false), gradient(true));
    assert!(same_bits(plain.tap("loss"), checkpointed.tap("loss")));
    assert!(same_bits(plain.tap("dx"), checkpointed.tap("dx")));
    assert!(same_bits(plain.tap("ddx"), checkpointed.tap("ddx")));
}

#[test]
fn a_sweep_reads_nothing_within_a_checkpoint_but_its_result() {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([2, 2], vec![0.1f64, 0.2, 0.3, 0.4]));
    let t = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let x = t.input("x", [2, 2], F64);
    let start = t.scalar(17.0, F64).id().index();
    // The first thing within reads leaves only: an input and a parameter.
    let y = t.checkpoint(|| x.matmul(t.param(w)).tanh().exp().sin());
    let end = y.id().index();
    let grads = (y * y).sum().grad(&store.params());
    t.tap("dw", grads.flat().tensors()[0]);
    let program = t.finish();
    let movement = |op: &Op| matches!(op, Op::Slice { .. } | Op::Reshape(_));
    for (i, node) in program.nodes().iter().enumerate().skip(end + 1).filter(|(i, _)| program.live()[*i]) {
        // The value of a recomputed node is its copy's; the original is only where its gradient goes.
        let read = &node.inputs[(node.op == Op::Recomputed) as usize..];
        for input in read {
            let inside = input.index() > start && input.index() < end;
            let kept = inside && !program.node(*input).inputs.is_empty() && !movement(&program.node(*input).op);
            assert!(!kept, "%{i} reads {input} of the checkpoint\n{program}");
        }
    }
}

#[test]
fn an_inner_checkpoint_is_recomputed_from_the_recomputation_of_the_outer() {
    let t = Tape::default();
    let x = t.input("x", [2], F64);
    let y = t.checkpoint(|| {
        let h = x.tanh();
        t.checkpoint(|| h.erf().exp())
    });
    t.tap("dx", (y * y).sum().grad_wrt(&[x])[0].expect("reached"));
    let program = t.finish();
    let live = program.live();
    // How many barriers lie between a value and the leaves.
    let mut barriers = vec![0; program.nodes().len()];
    for (i, node) in program.nodes().iter().enumerate() {
        let deepest = node.inputs.iter().map(|input| barriers[input.index()]).max().unwrap_or(0);
        barriers[i] = deepest + matches!(node.op, Op::Barrier(_)) as usize;
    }
    let mut depths = vec![];
    for (i, node) in program.nodes().iter().enumerate().filter(|(i, _)| live[*i]) {
        if node.op.name() == "erf" {
            depths.push(barriers[i]);
        }
    }
    assert_eq!(depths, [0, 2], "{program}");
}

#[test]
fn detach_is_a_constant_to_the_sweep() {
    let out = taps(&[1.5, -2.0], |t, x| {
        assert!(x.detach().sum().grad_wrt(&[x])[0].is_none());
        t.tap("dx", (x.detach() * x).sum().grad_wrt(&[x])[0].expect("reached"));
    });
    assert_eq!(out.tap("dx").to_f64(), [1.5, -2.0]);
}

#[test]
fn a_rule_is_told_which_outputs_nothing_flows_back_to() {
    for used in [0, 1] {
        let told = Rc::new(RefCell::new(vec![]));
        let record = told.clone();
        let out = taps(&[0.4], move |t, x| {
            let both = t.custom_vjp(
                &[x],
                |x| vec![x[0] * 2.0, x[0] * 3.0],
                move |v| {
                    record.borrow_mut().extend(v.cotangents.iter().map(Option::is_some));
                    assert_eq!((v.inputs.len(), v.outputs.len()), (1, 2));
                    vec![v.cotangents.iter().flatten().copied().reduce(|a, b| a + b)]
                },
            );
            t.tap("y", both[used]);
            t.tap("dx", (both[used] * 7.0).sum().grad_wrt(&[x])[0].expect("reached"));
        });
        assert_eq!(*told.borrow(), [used == 0, used == 1]);
        assert_eq!(out.tap("dx").to_f64(), [7.0], "the rule decides, not the composition");
        assert_eq!(out.tap("y").to_f64(), [0.4 * (2.0 + used as f64)]);
    }
}

#[test]
fn a_rule_runs_though_the_first_output_is_an_integer() {
    let out = taps(&[0.4, 2.0, 1.0], |t, x| {
        let both = t.custom_vjp(
            &[x],
            |x| vec![x[0].argmax(0), x[0].max()],
            |v| {
                assert!(v.cotangents[0].is_none());
                vec![v.cotangents[1].map(|g| g.broadcast_to([3]) * 5.0)]
            },
        );
        let found = both[0].cast(F64);
        t.tap("dx", (both[1] * found).grad_wrt(&[x])[0].expect("the second output is reached"));
    });
    assert_eq!(out.tap("dx").to_f64(), [5.0; 3]);
}

#[test]
fn a_rule_with_several_inputs_may_leave_some_without_a_gradient() {
    let t = Tape::default();
    let (x, y) = (t.input("x", [1], F64), t.input("y", [1], F64));
    let z = t.custom_vjp(&[x, y], |x| vec![x[0] * x[1]], |v| vec![None, v.cotangents[0]])[0];
    let found = z.sum().grad_wrt(&[x, y]);
    assert!(found[0].is_none() && found[1].is_some());
    t.tap("dy", found[1].expect("just seen"));
    let inputs = [("x".to_string(), Array::new([1], vec![3.0])), ("y".to_string(), Array::new([1], vec![4.0]))];
    assert_eq!(reference(&t.finish(), &[], &inputs).taps[0].2, [1.0]);
}
