//! Properties of the CPU on random tapes: it agrees with the reference for any plan, fused agrees with unfused, and no
//! bit depends on the number of threads.

use super::Property;
use crate::{Machine, Point, Tolerance, Training, agree, same_bits, training};
use proptest::{prelude::*, test_runner::TestCaseResult};
use wgrad::{DType, plan::Grouping, testing::Kind, testing::grouping};

/// The casts to other float types, which would need the tolerance of those types.
pub(crate) const CASTS: [Kind; 2] = [Kind::CastFloat, Kind::CastHalf];

/// A training step on a tape of up to this many steps, all in one type.
fn in_type(dtype: DType, steps: usize) -> impl Strategy<Value = Training> {
    training(steps).prop_map(move |case| case.with_dtype(dtype).without(&CASTS))
}

/// A training step in f32 with more f16 values than usual, where one step in forty is a cast to f16.
fn with_f16(steps: usize) -> impl Strategy<Value = Training> {
    training(steps).prop_map(|case| {
        let mut case = case.with_dtype(DType::F32);
        let sines = [Kind::Sin, Kind::Cos, Kind::CastFloat];
        case.recipe.steps.iter_mut().filter(|s| sines.contains(&s.kind)).for_each(|s| s.kind = Kind::CastHalf);
        case
    })
}

/// Compares runs on the CPU with the reference; `cut` makes the CPU split kernels into parts.
fn agrees(case: &Training, grouping: &Grouping, cut: bool, runs: usize, tolerance: Tolerance) -> TestCaseResult {
    let device = if cut { Machine::splitting } else { Machine::poisoned };
    let have = case.train(device(1, case.store()).grouped(grouping), runs);
    case.agrees_with_reference(&have, tolerance).map_err(TestCaseError::fail)
}

pub(super) fn properties() -> Vec<Property> {
    let mixed = training(10).prop_map(|case| case.without(&[Kind::CastHalf]));
    let single = training(10).prop_map(|case| case.with_dtype(DType::F32).without(&[Kind::CastHalf]));
    vec![
        Property::new(
            "the_cpu_runs_any_plan_in_f64",
            1024,
            (in_type(DType::F64, 12), grouping(), any::<bool>()),
            |(case, grouping, cut)| agrees(case, grouping, *cut, 2, Tolerance::F64),
        ),
        Property::new(
            "the_cpu_runs_any_plan_in_f32",
            1024,
            (in_type(DType::F32, 10), grouping(), any::<bool>()),
            |(case, grouping, cut)| agrees(case, grouping, *cut, 1, Tolerance::F32),
        ),
        Property::new(
            "the_cpu_runs_any_plan_with_f16",
            512,
            (with_f16(10), grouping(), any::<bool>()),
            |(case, grouping, cut)| agrees(case, grouping, *cut, 1, Tolerance::F16),
        ),
        Property::new("cpu_in_f64_agrees_with_the_reference", 1024, in_type(DType::F64, 14), |case| {
            agrees(case, &Grouping::default(), false, 3, Tolerance::F64)
        }),
        Property::new("cpu_in_mixed_types_agrees_with_the_reference", 1024, mixed, |case| {
            agrees(case, &Grouping::default(), true, 1, Tolerance::F32)
        }),
        Property::new("cpu_with_f16_agrees_with_the_reference", 1024, with_f16(10), |case| {
            agrees(case, &Grouping::default(), true, 1, Tolerance::F16)
        }),
        Property::new("cpu_in_f32_agrees_with_the_reference", 1024, single, |case| {
            agrees(case, &Grouping::default(), false, 1, Tolerance::F32)
        }),
        Property::new("fused_equals_unfused", 1024, (training(10), any::<bool>()), |(case, f32s)| {
            let dtype = if *f32s { DType::F32 } else { DType::F64 };
            let case = case.clone().with_dtype(dtype).without(&CASTS);
            let run = |grouping| case.train(Machine::poisoned(1, case.store()).grouped(&grouping), 1)[0].outcome();
            let (fused, unfused) = (run(Grouping::default()), run(Grouping::none()));
            let (program, states) = (case.record(), case.states());
            let point = Point { program: &program, states: &states, inputs: &case.inputs(&program) };
            agree(&fused, &unfused, &point, Tolerance::of(dtype)).map_err(TestCaseError::fail)
        }),
        Property::new(
            "threads_and_reruns_change_no_bit",
            1024,
            training(14).prop_map(|case| case.with_dtype(DType::F32)),
            same_on_any_threads,
        ),
    ]
}

fn same_on_any_threads(case: &Training) -> TestCaseResult {
    let run = |threads| case.train(Machine::splitting(threads, case.store()), 2);
    let one = run(1);
    for other in [run(1), run(2), run(3)] {
        for (a, b) in one.iter().zip(&other) {
            for (a, b) in a.taps.iter().zip(&b.taps) {
                prop_assert!(a.0 == b.0 && same_bits(&a.1, &b.1), "{:?} and {:?}", a, b);
            }
            for (a, b) in a.states.iter().zip(&b.states) {
                prop_assert!(same_bits(a, b), "{:?} and {:?}", a, b);
            }
        }
    }
    Ok(())
}
