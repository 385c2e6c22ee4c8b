//! Kernels of sequences: they compute what the ops decompose into, and the same bits on any number of threads.

use super::{ROWS, Sequence, chunks};
use crate::{reference, simd::float::Real, threads::team::Team};
use std::fmt::Debug;
use wgrad::{Array, Cell, DType, Data, Shape, Tape, Tensor, op::Op};

const CELLS: [Cell; 5] = [Cell::Tanh, Cell::Sigmoid, Cell::Irnn, Cell::Lstm, Cell::Gru];

/// An op of the first output, and the shapes of its inputs.
fn op(cell: Cell, backward: bool, [time, batch, hidden]: [usize; 3], dc: bool) -> (Op, Vec<Shape>) {
    let wide = cell.gates() * hidden;
    let (steps, state): (Shape, Shape) = ([time, batch, hidden].into(), [batch, hidden].into());
    let (weights, gates): (Shape, Shape) = ([wide, hidden].into(), [time, batch, 4 * hidden].into());
    if backward {
        let inputs = match cell {
            Cell::Lstm if dc => vec![weights, state, steps.clone(), gates, steps.clone(), steps],
            Cell::Lstm | Cell::Gru => vec![weights, state, steps.clone(), gates, steps],
            _ => vec![weights, steps.clone(), steps],
        };
        return (Op::SequenceGrad { cell, out: 0 }, inputs);
    }
    let mut inputs: Vec<Shape> = vec![[time, batch, wide].into(), weights, state.clone()];
    inputs.extend((cell == Cell::Lstm).then_some(state));
    inputs.extend((cell == Cell::Gru).then(|| [wide].into()));
    (Op::Sequence { cell, out: 0 }, inputs)
}

/// Values of about the size that gates and states have, the weights smaller.
fn values(shapes: &[Shape], dtype: DType) -> Vec<Array> {
    let value = |which: usize, i: usize| ((i * 37 + which * 11) as f64 * 0.61).sin();
    let array = |(which, shape): (usize, &Shape)| {
        let scale = if shape.rank() == 2 { 1.0 / (shape[1] as f64).sqrt() } else { 0.9 };
        let values: Vec<f64> = (0..shape.numel()).map(|i| scale * value(which, i)).collect();
        Array::new(shape, Data::from_f64(dtype, &values))
    };
    shapes.iter().enumerate().map(array).collect()
}

/// The outputs of an op, by its decomposition.
fn expected(op: &Op, inputs: &[Array]) -> Vec<Vec<f64>> {
    let t = Tape::default();
    let named: Vec<(String, &Array)> = inputs.iter().enumerate().map(|(i, x)| (format!("x{i}"), x)).collect();
    let x: Vec<Tensor<'_>> = named.iter().map(|(name, x)| t.input_like(name, x)).collect();
    op.decompose(&x).into_iter().for_each(|y| t.tap_each("y", y));
    let named: Vec<(&str, &Array)> = named.iter().map(|(name, x)| (name.as_str(), *x)).collect();
    let outcome = reference::run(&t.finish(), &[], &named).expect("runs");
    outcome.taps.into_iter().map(|(.., values)| values).collect()
}

/// The outputs of an op, by its kernel on some threads, over memory full of garbage. Where an output may lie over an input
/// it gives the same bits there, too.
fn computed<T: Real + Debug>(
    op: &Op,
    inputs: &[Array],
    of: fn(&Data) -> Vec<T>,
    garbage: T,
    threads: usize,
) -> Vec<Vec<T>> {
    let shapes: Vec<&Shape> = inputs.iter().map(Array::shape).collect();
    let kernel = Sequence::new(op, &shapes).expect("a sequence");
    let data: Vec<Vec<T>> = inputs.iter().map(|x| of(x.data())).collect();
    let mut data: Vec<&[T]> = data.iter().map(Vec::as_slice).collect();
    let (mut outputs, mut scratch) = (vec![], vec![garbage; kernel.scratch()]);
    let t = Tape::default();
    let x: Vec<Tensor<'_>> =
        inputs.iter().enumerate().map(|(i, x)| t.input(&i.to_string(), x.shape(), x.dtype())).collect();
    op.decompose(&x).into_iter().for_each(|y| outputs.push(vec![garbage; y.numel()]));
    let team = Team::new(threads).expect("threads");
    let mut run = |data: &[&[T]], outputs: &mut [Vec<T>]| {
        let mut slices: Vec<&mut [T]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        kernel.run(&team, &mut scratch, data, &mut slices);
    };
    let mut over = outputs.clone();
    run(&data, &mut outputs);
    if let Some((input, output)) = op.overwrites() {
        over[output] = std::mem::take(&mut data[input]).to_vec();
        run(&data, &mut over);
        let bits = |outputs: &[Vec<T>]| format!("{outputs:?}");
        assert_eq!(bits(&over), bits(&outputs), "{op:?} of {shapes:?} over its input");
    }
    outputs
}

fn f32s(data: &Data) -> Vec<f32> {
    if let Data::F32(values) = data { values.clone() } else { panic!("f32") }
}

fn f64s(data: &Data) -> Vec<f64> {
    if let Data::F64(values) = data { values.clone() } else { panic!("f64") }
}

/// The largest difference, relative to the largest value; infinite where one of the two is NaN.
fn distance(have: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    assert_eq!(have.iter().map(Vec::len).collect::<Vec<_>>(), want.iter().map(Vec::len).collect::<Vec<_>>());
    let scale = want.iter().flatten().fold(1.0f64, |scale, v| scale.max(v.abs()));
    let apart = |(h, w): (&f64, &f64)| if (h - w).is_nan() { f64::INFINITY } else { (h - w).abs() / scale };
    have.iter().flatten().zip(want.iter().flatten()).map(apart).fold(0.0, f64::max)
}

fn cases(extents: &[[usize; 3]]) -> Vec<(Op, Vec<Shape>)> {
    let mut cases = vec![];
    for (cell, &extents) in CELLS.iter().flat_map(|cell| extents.iter().map(move |extents| (*cell, extents))) {
        cases.extend([op(cell, false, extents, false), op(cell, true, extents, false)]);
        cases.extend((cell == Cell::Lstm).then(|| op(cell, true, extents, true)));
    }
    cases
}

#[test]
fn kernels_compute_what_the_ops_decompose_into() {
    let extents =
        [[1, 1, 1], [3, 1, 5], [2, 2, 1], [4, 3, 2], [1, 5, 7], [3, 17, 4], [2, 33, 19], [2, 0, 3], [2, 3, 0]];
    for (op, shapes) in cases(&extents) {
        let inputs = values(&shapes, DType::F64);
        let have = computed(&op, &inputs, f64s, f64::NAN, 2);
        let error = distance(&have, &expected(&op, &inputs));
        assert!(error < 1e-13, "{op:?} of {shapes:?} is off by {error:e}");
        let inputs = values(&shapes, DType::F32);
        let have = computed(&op, &inputs, f32s, f32::NAN, 2);
        let have: Vec<Vec<f64>> = have.iter().map(|y| y.iter().map(|&v| v as f64).collect()).collect();
        let error = distance(&have, &expected(&op, &inputs));
        assert!(error < 2e-6, "{op:?} of {shapes:?} in f32 is off by {error:e}");
    }
}

#[test]
fn a_kernel_that_computes_another_cell_is_found_out() {
    let extents = [3, 4, 5];
    for (cell, other) in [(Cell::Tanh, Cell::Sigmoid), (Cell::Tanh, Cell::Irnn)] {
        for backward in [false, true] {
            let (op, shapes) = op(cell, backward, extents, false);
            let wrong =
                if backward { Op::SequenceGrad { cell: other, out: 0 } } else { Op::Sequence { cell: other, out: 0 } };
            let inputs = values(&shapes, DType::F64);
            assert!(distance(&computed(&wrong, &inputs, f64s, f64::NAN, 1), &expected(&op, &inputs)) > 1e-3);
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    // Large enough for several threads to be used.
    for (op, shapes) in cases(&[[3, 33, 128], [40, 3, 100], [9, 20, 80]]) {
        let inputs = values(&shapes, DType::F32);
        let runs = [1, 2, 3, 5].map(|threads| computed(&op, &inputs, f32s, f32::NAN, threads));
        let bits = |run: &Vec<Vec<f32>>| run.iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(runs.iter().all(|run| bits(run) == bits(&runs[0])), "{op:?} of {shapes:?}");
        assert!(runs[0].iter().flatten().all(|v| v.is_finite()), "{op:?} of {shapes:?}");
    }
}

#[test]
fn nan_reaches_the_end() {
    for cell in CELLS {
        let (op, shapes) = op(cell, false, [4, 2, 3], false);
        let mut inputs = values(&shapes, DType::F32);
        let mut z = inputs[0].to_f64();
        z[0] = f64::NAN;
        inputs[0] = Array::new(&shapes[0], Data::from_f64(DType::F32, &z));
        let h = &computed(&op, &inputs, f32s, 0.0, 1)[0];
        let row = |row: usize| &h[(3 * 2 + row) * 3..][..3];
        assert!(row(0).iter().all(|v| v.is_nan()) && row(1).iter().all(|v| v.is_finite()), "{cell:?}: {h:?}");
    }
}

#[test]
fn chunks_cover_the_batch_and_are_no_single_rows() {
    for batch in 1..200 {
        let chunks = chunks(batch);
        assert!(chunks[0].start == 0 && chunks[chunks.len() - 1].end == batch);
        assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(chunks.iter().all(|rows| rows.len() <= ROWS && (rows.len() > 1 || batch == 1)), "{chunks:?}");
    }
    assert_eq!(chunks(32), [0..16, 16..32]);
}
