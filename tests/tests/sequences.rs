//! Sequences as one op: the same values and gradients as step by step, whatever a loss reads of them; and programs
//! lowered for devices that have no kernel for them.

use wgrad::{Array, Cell, DType, Program, Recurrence, Shape, Store, Tape, Tensor, op::Op};
use wgrad_nn::{Builder, Recurrent, RecurrentInit};
use wgrad_tests::{Machine, Tolerance, compare, reference};

const CELLS: [Cell; 5] = [Cell::Tanh, Cell::Sigmoid, Cell::Irnn, Cell::Lstm, Cell::Gru];
const HIDDEN: usize = 3;

/// Names and shapes of what a recurrence reads.
fn shapes(cell: Cell, time: usize, batch: usize) -> Vec<(&'static str, Shape)> {
    let wide = cell.gates() * HIDDEN;
    let mut shapes: Vec<(&str, Shape)> =
        vec![("z", [time, batch, wide].into()), ("w_hh", [wide, HIDDEN].into()), ("h0", [batch, HIDDEN].into())];
    shapes.extend((cell == Cell::Lstm).then(|| ("c0", [batch, HIDDEN].into())));
    shapes.extend((cell == Cell::Gru).then(|| ("b_hh", [wide].into())));
    shapes
}

fn inputs(cell: Cell, time: usize, batch: usize) -> Vec<(String, Array)> {
    let value = |which: usize, i: usize| ((i * 37 + which * 11) as f64 * 0.61).sin();
    let array = |(which, (name, shape)): (usize, (&str, Shape))| {
        let values: Vec<f64> = (0..shape.numel()).map(|i| value(which, i)).collect();
        (name.to_string(), Array::new(shape, values))
    };
    shapes(cell, time, batch).into_iter().enumerate().map(array).collect()
}

fn declare(t: &Tape, cell: Cell, time: usize, batch: usize) -> (Recurrence<'_>, Vec<Tensor<'_>>) {
    let declared = |(name, shape): (&str, Shape)| t.input(name, shape, DType::F64);
    let x: Vec<Tensor<'_>> = shapes(cell, time, batch).into_iter().map(declared).collect();
    let last = |of: Cell| (cell == of).then(|| x[3]);
    let recurrence = Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0: last(Cell::Lstm), b_hh: last(Cell::Gru) };
    (recurrence, x)
}

/// Hidden states and memories of all steps.
type States<'t> = (Vec<Tensor<'t>>, Vec<Tensor<'t>>);

fn states<'t>(recurrence: &Recurrence<'t>, unrolled: bool) -> States<'t> {
    if unrolled {
        let steps = recurrence.unrolled();
        return (steps.iter().map(|(h, _)| *h).collect(), steps.iter().filter_map(|(_, c)| *c).collect());
    }
    let (h, c) = recurrence.run();
    let steps = |x: Tensor<'t>| (0..x.shape()[0]).map(|t| x.index(0, t)).collect();
    (steps(h), c.map_or(vec![], steps))
}

/// What a loss makes of the states.
type Loss = for<'a, 't> fn(&'a States<'t>) -> Tensor<'t>;

fn losses() -> [(&'static str, Loss); 4] {
    [
        ("every step", |(h, _)| {
            h.iter().enumerate().map(|(t, h)| h.sin().sum() * (t as f64 + 1.0)).reduce(|a, b| a + b).expect("a step")
        }),
        ("the last step", |(h, _)| h[h.len() - 1].square().sum()),
        ("the memory alone", |(h, c)| c.last().unwrap_or(&h[0]).sin().sum()),
        ("states and memories", |(h, c)| {
            let memory = c.first().unwrap_or(&h[0]).sin() * *c.last().unwrap_or(&h[0]);
            (h[h.len() - 1] * h[0] + memory).sum()
        }),
    ]
}

/// The gradient of a loss, and of the gradient's squared norm, with respect to all that the recurrence reads.
fn program(cell: Cell, time: usize, batch: usize, unrolled: bool, checkpoint: bool, loss: Loss) -> Program {
    let t = Tape::default();
    let (recurrence, x) = declare(&t, cell, time, batch);
    let states = match checkpoint {
        true => t.checkpoint(|| states(&recurrence, unrolled)),
        false => states(&recurrence, unrolled),
    };
    let loss = loss(&states);
    t.tap("loss", loss);
    let zero = t.scalar(0.0, DType::F64);
    let mut norm = zero;
    for (x, g) in x.iter().zip(loss.grad_wrt(&x)) {
        let g = g.unwrap_or_else(|| x.zeros_like());
        t.tap_each("gradient", g);
        norm += g.square().sum();
    }
    t.tap("norm", norm);
    for (x, g) in x.iter().zip(norm.grad_wrt(&x)) {
        t.tap_each("second", g.unwrap_or_else(|| x.zeros_like()));
    }
    t.finish()
}

fn same(what: &str, have: &Program, want: &Program, inputs: &[(String, Array)]) {
    let (have, want) = (reference(have, &[], inputs), reference(want, &[], inputs));
    assert_eq!(have.taps.len(), want.taps.len());
    for ((name, _, have), (.., want)) in have.taps.iter().zip(&want.taps) {
        compare(&format!("{what}: {name}"), have, want, Tolerance::F64).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn one_op_has_the_gradients_of_the_steps() {
    for (cell, [time, batch]) in
        CELLS.iter().flat_map(|c| [[3, 2], [1, 2], [4, 1], [2, 0]].map(|extents| (*c, extents)))
    {
        for (reads, loss) in losses() {
            let what = format!("{cell:?}, {time} steps of {batch}, {reads}");
            let whole = program(cell, time, batch, false, false, loss);
            let steps = program(cell, time, batch, true, false, loss);
            same(&what, &whole, &steps, &inputs(cell, time, batch));
        }
    }
}

#[test]
fn a_checkpointed_sequence_is_recomputed() {
    for cell in CELLS {
        let loss = losses()[3].1;
        let kept = program(cell, 3, 2, false, false, loss);
        let recomputed = program(cell, 3, 2, false, true, loss);
        let count = |p: &Program| p.nodes().iter().filter(|n| matches!(n.op, Op::Sequence { out: 0, .. })).count();
        assert!(count(&recomputed) > count(&kept), "{cell:?}");
        same(&format!("{cell:?}"), &recomputed, &kept, &inputs(cell, 3, 2));
    }
}

#[test]
fn first_derivatives_need_no_decomposition() {
    for cell in CELLS {
        let t = Tape::default();
        let (recurrence, x) = declare(&t, cell, 7, 2);
        let (h, c) = recurrence.run();
        let loss = (h * c.unwrap_or(h)).sum();
        let gradients = loss.grad_wrt(&x);
        gradients.into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
        let program = t.finish();
        let products = program.nodes().iter().filter(|node| matches!(node.op, Op::MatMul { .. })).count();
        assert_eq!(
            products, 2,
            "the weights' gradient is a product of the first step and one of all others:\n{program}"
        );
        assert!(program.nodes().len() < 50, "{program}");
    }
}

/// A training step of a layer, with states, a pass, taps, an unreached parameter and a checkpoint.
fn training(cell: Cell, time: usize) -> (Program, Store, Vec<(String, Array)>) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 3).with_dtype(DType::F64);
    let layer = Recurrent::new(b.at("layer"), cell, 2, HIDDEN, &RecurrentInit::normal(0.6));
    b.param("idle", [4], &wgrad_nn::Init::Zeros);
    let params = store.params();
    let x = Array::new([time, 2, 2], (0..4 * time).map(|i| (i as f64 * 0.7).cos()).collect::<Vec<f64>>());
    let t = Tape::new(std::sync::Arc::new(store.layout().clone()));
    let out = t.checkpoint(|| layer.forward(t.input_like("x", &x)));
    let loss = out.last.square().sum();
    t.tap("loss", loss);
    let gradient = loss.grad(&params).clip_by_global_norm(0.1);
    for (state, g) in gradient.flat().parts() {
        t.assign(*state, t.state(*state) - *g * 0.1);
    }
    (t.finish(), store, vec![("x".to_string(), x)])
}

#[test]
fn a_lowered_program_does_the_same() {
    for cell in CELLS {
        let (program, store, inputs) = training(cell, 4);
        let want = reference(&program, store.values(), &inputs);
        for claimed in [false, true] {
            let lowered = program.lowered(false, |_, _| claimed);
            let fused = lowered.nodes().iter().filter(|node| node.op.is_fused()).count();
            assert_eq!(fused > 0, claimed, "{lowered}");
            assert_eq!(lowered.inputs(), program.inputs());
            assert_eq!(lowered.unreached(), program.unreached());
            assert_eq!(lowered.commits().len(), program.commits().len());
            let names = |p: &Program| p.passes().iter().map(|pass| pass.name).collect::<Vec<_>>();
            assert_eq!(names(&lowered), names(&program));
            for (i, node) in lowered.nodes().iter().enumerate() {
                assert!(node.inputs.iter().all(|input| input.index() < i));
                let (outputs, out) = node.op.outputs();
                let group = &lowered.nodes()[i - out..i - out + outputs];
                assert!(group.iter().all(|other| other.inputs == node.inputs), "the outputs of an op stay together");
            }
            let have = reference(&lowered, store.values(), &inputs);
            assert_eq!((have.taps, have.states), (want.taps.clone(), want.states.clone()), "{cell:?}");
        }
        // The first lowering leaves what it found out too late that nobody reads.
        let again = program.lowered(false, |_, _| false).lowered(false, |_, _| false);
        assert_eq!(again.to_string(), again.lowered(false, |_, _| false).to_string(), "there is nothing left to lower");
    }
}

#[test]
fn a_device_runs_what_it_does_not_claim() {
    for cell in CELLS {
        let (program, store, inputs) = training(cell, 5);
        let want = reference(&program, store.values(), &inputs);
        let mut machine = Machine::poisoned(2, store);
        let step = machine.session.compile(program.clone()).expect("compiles");
        assert_eq!(step.to_string(), program.to_string(), "the step shows the program as it was recorded");
        let have = machine.run(&step, &inputs);
        compare("loss", &have.tap("loss").to_f64(), &want.taps[0].2, Tolerance::F64).expect("as the reference");
        for (have, want) in have.states.iter().zip(&want.states) {
            compare("state", &have.to_f64(), want, Tolerance::F64).expect("as the reference");
        }
    }
}

#[test]
fn lowering_is_linear() {
    let nodes = |time: usize| training(Cell::Lstm, time).0.lowered(false, |_, _| false).nodes().len();
    let (short, middle, long) = (nodes(10), nodes(20), nodes(30));
    assert_eq!(long - middle, middle - short);
}
