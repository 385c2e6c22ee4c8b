//! Sequences on the GPU as one kernel: the values and gradients of the reference and of the decomposition, for sizes and
//! places in memory of all sorts, with the kernels of real GPUs too; and which sequences are decomposed instead.

use wgrad::{Array, Cell, DType, Program, Recurrence, Shape, Store, Tape, Tensor, op::Op, plan::Kind};
use wgrad_tests::{Machine, Outputs, Tolerance, compare, gpus, reference, same_bits};
use wgrad_wgpu::Gpu;

const CELLS: [Cell; 4] = [Cell::Tanh, Cell::Sigmoid, Cell::Irnn, Cell::Lstm];

/// Names and shapes of what a recurrence reads.
fn shapes(cell: Cell, [time, batch, hidden]: [usize; 3]) -> Vec<(&'static str, Shape)> {
    let wide = cell.gates() * hidden;
    let mut shapes: Vec<(&str, Shape)> =
        vec![("z", [time, batch, wide].into()), ("w_hh", [wide, hidden].into()), ("h0", [batch, hidden].into())];
    shapes.extend((cell == Cell::Lstm).then(|| ("c0", [batch, hidden].into())));
    shapes.extend((cell == Cell::Gru).then(|| ("b_hh", [wide].into())));
    shapes
}

/// How inputs come to lie in memory where they are not in order.
fn moved<'t>(t: &'t Tape, name: &str, shape: &Shape) -> Tensor<'t> {
    match (name, shape.rank()) {
        // Turned: each step's rows lie far apart.
        ("z", _) => t.input(name, [shape[1], shape[0], shape[2]], DType::F32).permute(&[1, 0, 2]),
        // From an odd number on.
        ("h0", _) => {
            let flat = t.input(name, [shape.numel() + 1], DType::F32);
            flat.slice(0, 1, shape.numel()).reshape(shape.clone())
        }
        // Repeated.
        ("c0", _) => t.input(name, [1, shape[1]], DType::F32).broadcast_to(shape.clone()),
        _ => t.input(name, shape.clone(), DType::F32),
    }
}

/// The states of all steps, and the gradients of a loss that reads them (and, of an LSTM, the memories too if it is to).
fn program(cell: Cell, extents: [usize; 3], in_order: bool, memories: bool) -> Program {
    let t = Tape::default();
    let declare = |(name, shape): (&str, Shape)| match in_order {
        true => t.input(name, shape, DType::F32),
        false => moved(&t, name, &shape),
    };
    let x: Vec<Tensor<'_>> = shapes(cell, extents).into_iter().map(declare).collect();
    let last = |of: Cell| (cell == of).then(|| x[3]);
    let recurrence = Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0: last(Cell::Lstm), b_hh: last(Cell::Gru) };
    let (h, c) = recurrence.run();
    t.tap("h", h);
    let mut loss = (h * h.sin()).sum();
    if let Some(c) = c.filter(|_| memories) {
        t.tap("c", c);
        loss += c.sin().sum();
    }
    for g in loss.grad_wrt(&x) {
        t.tap_each("gradient", g.expect("the loss depends on it"));
    }
    t.finish()
}

fn inputs(program: &Program) -> Vec<(String, Array)> {
    let value = |which: usize, i: usize| ((i * 37 + which * 11) as f64 * 0.61).sin() as f32;
    let inputs = program.inputs().iter().enumerate().map(|(which, input)| {
        // Weights as small as those of a layer, so that states do not saturate.
        let scale = if input.name == "w_hh" { 1.0 / (input.shape[1].max(1) as f32).sqrt() } else { 1.0 };
        let values: Vec<f32> = (0..input.shape.numel()).map(|i| value(which, i) * scale).collect();
        (input.name.clone(), Array::new(input.shape.clone(), values))
    });
    inputs.collect()
}

fn run(gpu: &Gpu, program: &Program, inputs: &[(String, Array)]) -> Outputs {
    let mut machine = Machine::on_gpu(gpu, Store::new());
    let step = machine.session.compile(program.clone()).expect("the plan compiles");
    machine.run(&step, inputs)
}

/// How many kernels of a program are sequences.
fn sequences(gpu: &Gpu, program: &Program) -> usize {
    let machine = Machine::on_gpu(gpu, Store::new());
    let (_, plan) = machine.session.plan(program);
    let is_sequence = |kind: &Kind| matches!(kind, Kind::Op(Op::Sequence { .. } | Op::SequenceGrad { .. }));
    plan.kernels.iter().filter(|kernel| is_sequence(&kernel.kind)).count()
}

#[test]
fn sequences_agree_with_the_reference() {
    let extents = [
        [1, 1, 1],
        [3, 2, 3],
        [2, 0, 3],
        [4, 1, 4],
        [5, 9, 8],
        [3, 10, 5],
        [2, 17, 36],
        [1, 33, 20],
        [3, 3, 132],
        [2, 5, 67],
    ];
    for (i, extents) in extents.into_iter().enumerate() {
        for (j, cell) in CELLS.into_iter().chain([Cell::Lstm]).enumerate() {
            // Each size meets both kinds of places in memory, and so does each cell.
            let (in_order, memories) = ((i + j) % 2 == 0, j == CELLS.len());
            let program = program(cell, extents, in_order, memories);
            let inputs = inputs(&program);
            let want = reference(&program, &[], &inputs);
            for gpu in gpus() {
                assert_eq!(sequences(gpu, &program), 2, "{cell:?} {extents:?} is claimed, and so is its gradient");
                for ((name, have), (.., want)) in run(gpu, &program, &inputs).taps.iter().zip(&want.taps) {
                    compare(name, &have.to_f64(), want, Tolerance::F32)
                        .unwrap_or_else(|why| panic!("{cell:?} {extents:?}, in order: {in_order}: {why}"));
                }
            }
        }
    }
}

/// More steps than one kernel makes: on a renderer that stops loops, the rest would be missing.
#[test]
fn long_sequences_go_on_where_a_kernel_ends() {
    for (cell, extents) in [(Cell::Tanh, [3000, 1, 32]), (Cell::Lstm, [700, 2, 32]), (Cell::Irnn, [1200, 9, 16])] {
        let program = program(cell, extents, true, true);
        let inputs = inputs(&program);
        let mut cpu = Machine::new(2, Store::new());
        let step = cpu.session.compile(program.clone()).unwrap();
        let want = cpu.run(&step, &inputs);
        for gpu in gpus() {
            for ((name, have), (_, want)) in run(gpu, &program, &inputs).taps.iter().zip(&want.taps) {
                compare(name, &have.to_f64(), &want.to_f64(), Tolerance(1e-3))
                    .unwrap_or_else(|why| panic!("{cell:?} {extents:?}: {why}"));
            }
        }
    }
}

#[test]
fn a_sequence_is_its_decomposition_and_repeats_its_bits() {
    for gpu in gpus() {
        for cell in CELLS {
            let program = program(cell, [6, 11, 24], true, true);
            let inputs = inputs(&program);
            let (one, two) = (run(gpu, &program, &inputs), run(gpu, &program, &inputs));
            let steps = run(gpu, &program.lowered(true, |_, _| false), &inputs);
            for (((name, one), (_, two)), (_, steps)) in one.taps.iter().zip(&two.taps).zip(&steps.taps) {
                assert!(same_bits(one, two), "{cell:?}: {name}");
                compare(name, &one.to_f64(), &steps.to_f64(), Tolerance::F32).unwrap();
            }
        }
    }
}

#[test]
fn what_has_no_kernel_is_decomposed() {
    for (i, gpu) in gpus().into_iter().enumerate() {
        assert_eq!(sequences(gpu, &program(Cell::Gru, [2, 2, 2], true, false)), 0);
        // A step of more iterations than an invocation makes; and, of a real GPU, weights that are too many for each
        // workgroup to read.
        let large = if i == 0 { 2048 } else { 300 };
        assert_eq!(sequences(gpu, &program(Cell::Lstm, [2, 2, large], true, false)), 0);
    }
}
