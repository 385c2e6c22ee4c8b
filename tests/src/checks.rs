//! The checks that apply to every operation of the catalogue.

use crate::{Machine, Setting, Tolerance, catalogue::Row, compare, gpu, reference, same_bits};
use approx::relative_eq;
use wgrad::{Array, DType, Data, Program, Shape, Store, Tape, Tensor, plan::Grouping};

/// A check of a row.
pub struct Check {
    /// The name of the check's column in the table of operations.
    pub name: &'static str,
    /// Runs the check on a row; `None` if it does not apply to the row.
    pub run: fn(&Row) -> Option<Result<(), String>>,
}

/// All checks.
pub const CHECKS: &[Check] = &[
    Check { name: "gradient", run: |row| Some(row.check.differences(Setting::Leaf, false, &row.f)) },
    Check { name: "second order", run: |row| Some(row.check.differences(Setting::Leaf, true, &row.f)) },
    Check { name: "mid-graph", run: |row| Some(row.check.differences(Setting::MidGraph, true, &row.f)) },
    Check { name: "views", run: |row| Some(row.check.differences(Setting::Strided, true, &row.f)) },
    Check { name: "f64", run: |row| Some(agrees(row, DType::F64, &Grouping::default())) },
    Check { name: "f32", run: |row| Some(agrees(row, DType::F32, &Grouping::default())) },
    Check { name: "f16", run: |row| Some(agrees(row, DType::F16, &Grouping::default())) },
    Check { name: "unfused", run: |row| Some(agrees(row, DType::F64, &Grouping::none())) },
    Check { name: "same bits", run: |row| Some(same_on_any_threads(row)) },
    Check { name: "empty", run: |row| sized(row, |shape| shape.numel() == 0) },
    Check { name: "one", run: |row| sized(row, |shape| shape.numel() == 1) },
    Check { name: "odd", run: |row| sized(row, |shape| shape.iter().any(|&n| n > 1 && n % 2 == 1)) },
    Check { name: "special floats", run: |row| Some(special(row)) },
];

/// The checks on a GPU. They include first derivatives only, because each kernel takes time to compile; random tapes
/// test second derivatives.
pub const GPU_CHECKS: &[Check] = &[
    Check { name: "f32", run: |row| Some(agrees_on(on_gpu, row, DType::F32, 1, &Grouping::default())) },
    Check { name: "f16", run: |row| Some(agrees_on(on_gpu, row, DType::F16, 1, &Grouping::default())) },
    Check { name: "unfused", run: |row| Some(agrees_on(on_gpu, row, DType::F32, 0, &Grouping::none())) },
    Check { name: "special floats", run: |row| Some(special_on(on_gpu, row, DType::F32)) },
];

/// Opens a device.
type Device = fn() -> Machine;

fn on_cpu() -> Machine {
    Machine::poisoned(1, Store::new())
}

fn on_gpu() -> Machine {
    Machine::on_gpu(gpu().expect("the caller has asked"), Store::new())
}

/// Marks a row with an argument of this size; the other checks have run on the row.
fn sized(row: &Row, size: impl Fn(&Shape) -> bool) -> Option<Result<(), String>> {
    row.check.shapes.iter().any(size).then_some(Ok(()))
}

/// The program of the result and its derivatives up to `order`, in a float type.
pub(crate) fn values(row: &Row, dtype: DType, order: usize) -> Program {
    let t = Tape::default();
    let floats = row.check.shapes.iter().enumerate();
    let x: Vec<Tensor<'_>> = floats.map(|(i, shape)| t.input(&format!("x{i}"), shape, dtype)).collect();
    let indices = row.check.indices.iter().enumerate().map(|(i, index)| t.input_like(&format!("index{i}"), index));
    let args: Vec<Tensor<'_>> = x.iter().copied().chain(indices).collect();
    let y = (row.f)(&args);
    t.tap("y", y);
    let mut scalar = (y * weights(y)).sum();
    for k in 1..=order {
        let mut slope = t.scalar(0.0, dtype);
        for (i, g) in scalar.grad_wrt(&x).into_iter().enumerate() {
            let Some(g) = g else { continue };
            t.tap(&format!("d{k}x{i}"), g);
            slope += (g * weights(g)).sum();
        }
        scalar = slope;
    }
    t.finish()
}

/// Weights of both signs, a different one for each element.
fn weights(y: Tensor<'_>) -> Tensor<'_> {
    (y.tape().iota(y.numel()).cast(y.dtype()) * 0.7 + 0.3).cos().reshape(y.shape())
}

/// The row's arguments by name, with the given values of the float arguments.
fn inputs(row: &Row, program: &Program, floats: &[Array]) -> Vec<(String, Array)> {
    let floats = floats.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.clone()));
    let indices = row.check.indices.iter().enumerate().map(|(i, x)| (format!("index{i}"), x.clone()));
    floats.chain(indices).filter(|(name, _)| program.inputs().iter().any(|input| input.name == *name)).collect()
}

/// Runs a program on a device whose memory is filled with garbage before.
fn run(device: Device, program: &Program, grouping: &Grouping, inputs: &[(String, Array)]) -> Vec<(String, Array)> {
    let mut machine = device().grouped(grouping);
    let step = machine.session.compile(program.clone()).expect("the plan compiles");
    machine.run(&step, inputs).taps
}

/// Checks that the CPU agrees with the reference.
fn agrees(row: &Row, dtype: DType, grouping: &Grouping) -> Result<(), String> {
    // In f16, rounding errors grow too large in second derivatives.
    let order = if dtype == DType::F16 { 1 } else { 2 };
    agrees_on(on_cpu, row, dtype, order, grouping)?;
    agrees_on(|| Machine::splitting(2, Store::new()), row, dtype, order, grouping)
        .map_err(|why| format!("cut up, {why}"))
}

/// Checks that a device agrees with the reference, in values and derivatives up to an order.
fn agrees_on(device: Device, row: &Row, dtype: DType, order: usize, grouping: &Grouping) -> Result<(), String> {
    let program = values(row, dtype, order);
    let floats: Vec<Array> = row.check.numbers().iter().map(|x| x.cast(dtype)).collect();
    let inputs = inputs(row, &program, &floats);
    let want = reference(&program, &[], &inputs);
    for ((name, have), (.., want)) in run(device, &program, grouping, &inputs).iter().zip(&want.taps) {
        compare(name, &have.to_f64(), want, Tolerance::of(dtype))
            .map_err(|why| format!("{dtype}: {why}\n{program}"))?;
    }
    Ok(())
}

/// Checks that the bits are the same on one, two and three threads, with many small tasks.
fn same_on_any_threads(row: &Row) -> Result<(), String> {
    let program = values(row, DType::F32, 2);
    let floats: Vec<Array> = row.check.numbers().iter().map(|x| x.cast(DType::F32)).collect();
    let inputs = inputs(row, &program, &floats);
    let taps = |threads: usize| {
        let mut cpu = Machine::splitting(threads, Store::new());
        let step = cpu.session.compile(program.clone()).expect("the plan compiles");
        cpu.run(&step, &inputs).taps
    };
    let one = taps(1);
    for threads in [2, 3] {
        for ((name, have), (_, want)) in taps(threads).iter().zip(&one) {
            if !same_bits(have, want) {
                return Err(format!("{name} has other bits on {threads} threads: {have:?} and {want:?}\n{program}"));
            }
        }
    }
    Ok(())
}

/// Numbers that functions may treat specially. None is so large or small that f32 and f64 would differ, so only f64 has
/// subnormal numbers.
pub fn special_floats(dtype: DType) -> Vec<f64> {
    let mut floats = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 2.5];
    if dtype == DType::F64 {
        floats.extend([5e-324, -5e-324]);
    }
    floats
}

/// Checks that the CPU and the reference have NaN, infinities and finite numbers in the same places. For rows that
/// weigh, only the first argument has special floats, and only the values are compared.
fn special(row: &Row) -> Result<(), String> {
    [DType::F64, DType::F32].into_iter().try_for_each(|dtype| special_on(on_cpu, row, dtype))
}

fn special_on(device: Device, row: &Row, dtype: DType) -> Result<(), String> {
    let (program, special) = (values(row, dtype, usize::from(!row.weighs)), special_floats(dtype));
    let mut machine = device();
    let step = machine.session.compile(program.clone()).expect("the plan compiles");
    for turn in 0..special.len() {
        // Each argument starts at another special float, so that all kinds of pairs occur.
        let mut floats: Vec<Array> = row.check.numbers().iter().map(|x| x.cast(dtype)).collect();
        for (i, x) in floats.iter_mut().enumerate().filter(|(i, _)| !row.weighs || *i == 0) {
            let value = |k: usize| special[(k * (i + 1) + turn * (2 * i + 1)) % special.len()];
            let values: Vec<f64> = (0..x.shape().numel()).map(value).collect();
            *x = Array::new(x.shape(), Data::from_f64(dtype, &values));
        }
        let inputs = inputs(row, &program, &floats);
        let want = reference(&program, &[], &inputs);
        for ((name, have), (_, shape, want)) in machine.run(&step, &inputs).taps.iter().zip(&want.taps) {
            // The reference computes in f64, so its values are rounded to the type.
            let want = Array::new(shape, Data::from_f64(dtype, want)).to_f64();
            for (i, (h, w)) in have.to_f64().into_iter().zip(want).enumerate() {
                if !(h.is_nan() && w.is_nan() || relative_eq!(h, w, epsilon = 1e-4, max_relative = 1e-4)) {
                    return Err(format!("{dtype}: {name}[{i}] of {floats:?}: {h} instead of {w}\n{program}"));
                }
            }
        }
    }
    Ok(())
}
