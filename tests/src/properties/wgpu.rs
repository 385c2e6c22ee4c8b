//! Properties of the GPU on random tapes: it agrees with the reference for any plan, and repeats its bits. Without a
//! GPU, nothing is checked.

use super::{Property, devices::CASTS};
use crate::{Machine, Outputs, Tolerance, Training, gpu, same_bits, separate_gpu, tape, training};
use proptest::{prelude::*, test_runner::TestCaseResult};
use wgrad::{DType, plan::Grouping, testing::Kind, testing::grouping};

/// Runs a case on the GPU, if there is one, and compares it with the reference.
fn agrees(case: &Training, grouping: &Grouping, runs: usize, tolerance: Tolerance) -> TestCaseResult {
    let Some(gpu) = gpu() else { return Ok(()) };
    let have = case.train(Machine::on_gpu(gpu, case.store()).grouped(grouping), runs);
    case.agrees_with_reference(&have, tolerance).map_err(TestCaseError::fail)?;
    match tolerance == Tolerance::F32 {
        true => case.branches_as_reference(&have, grouping).map_err(TestCaseError::fail),
        // f16 is too coarse for a comparison of branches.
        false => Ok(()),
    }
}

fn repeats(case: &Training) -> TestCaseResult {
    let Some(gpu) = gpu() else { return Ok(()) };
    let run = || case.train(Machine::on_gpu(gpu, case.store()), 2);
    same(&run(), &run())
}

/// Checks that kernels that are merged into one dispatch have the bits of separate dispatches.
fn merges(case: &Training, grouping: &Grouping) -> TestCaseResult {
    let (Some(gpu), Some(separate)) = (gpu(), separate_gpu()) else { return Ok(()) };
    let [merged, each] = [gpu, separate].map(|gpu| case.train(Machine::on_gpu(gpu, case.store()).grouped(grouping), 2));
    same(&merged, &each)
}

/// Checks that all runs have the same bits.
fn same(a: &[Outputs], b: &[Outputs]) -> TestCaseResult {
    prop_assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        for (a, b) in a.taps.iter().zip(&b.taps) {
            prop_assert!(a.0 == b.0 && same_bits(&a.1, &b.1), "{:?} and {:?}", a, b);
        }
        for (a, b) in a.states.iter().zip(&b.states) {
            prop_assert!(same_bits(a, b), "{:?} and {:?}", a, b);
        }
    }
    Ok(())
}

pub(super) fn properties() -> Vec<Property> {
    let plain = |case: Training| case.with_dtype(DType::F32).without(&CASTS);
    let small = tape(6).prop_map(plain);
    let single = || training(8).prop_map(plain);
    let f16s = training(8).prop_map(|case| {
        let mut case = case.with_dtype(DType::F32);
        let sines = [Kind::Sin, Kind::Cos, Kind::CastFloat];
        case.recipe.steps.iter_mut().filter(|s| sines.contains(&s.kind)).for_each(|s| s.kind = Kind::CastHalf);
        case
    });
    vec![
        Property::new("the_gpu_runs_short_tapes", 64, (small, grouping()), |(case, grouping)| {
            agrees(case, grouping, 2, Tolerance::F32)
        }),
        Property::new("the_gpu_runs_any_plan_in_f32", 48, (single(), grouping()), |(case, grouping)| {
            agrees(case, grouping, 1, Tolerance::F32)
        }),
        Property::new("the_gpu_agrees_with_the_reference", 48, single(), |case| {
            agrees(case, &Grouping::default(), 1, Tolerance::F32)
        }),
        Property::new("the_gpu_runs_any_plan_with_f16", 32, (f16s, grouping()), |(case, grouping)| {
            agrees(case, grouping, 1, Tolerance::F16)
        }),
        Property::new("the_gpu_repeats_its_bits", 16, single(), repeats),
        Property::new("merged_kernels_have_the_same_bits", 24, (single(), grouping()), |(case, grouping)| {
            merges(case, grouping)
        }),
    ]
}
