//! Random tapes: the CPU executor agrees with the reference, and a program gives the same bits on any number of threads,
//! run after run.

use proptest::prelude::*;
use wgrad::{DType, testing::Kind};
use wgrad_tests::{Machine, Tolerance, proptest_config as config, same_bits, training};

/// What is computed in another type in between has the tolerance of that type.
const CASTS: [Kind; 2] = [Kind::CastFloat, Kind::CastHalf];

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn cpu_in_f64_agrees_with_the_reference(case in training(14)) {
        let case = case.without(&CASTS);
        let have = case.train(Machine::poisoned(1, case.store()), 3);
        case.agrees_with_reference(&have, Tolerance::F64).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn cpu_in_mixed_types_agrees_with_the_reference(case in training(10)) {
        let case = case.without(&[Kind::CastHalf]);
        let have = case.train(Machine::splitting(1, case.store()), 1);
        case.agrees_with_reference(&have, Tolerance::F32).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn cpu_with_halves_agrees_with_the_reference(case in training(10)) {
        let mut case = case.with_dtype(DType::F32);
        // More of them than the one step in forty that they are otherwise.
        let sines = [Kind::Sin, Kind::Cos, Kind::CastFloat];
        case.recipe.steps.iter_mut().filter(|s| sines.contains(&s.kind)).for_each(|s| s.kind = Kind::CastHalf);
        let have = case.train(Machine::splitting(1, case.store()), 1);
        case.agrees_with_reference(&have, Tolerance::F16).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn cpu_in_f32_agrees_with_the_reference(case in training(10)) {
        let case = case.with_dtype(DType::F32).without(&[Kind::CastHalf]);
        let have = case.train(Machine::poisoned(1, case.store()), 1);
        case.agrees_with_reference(&have, Tolerance::F32).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn threads_and_reruns_change_no_bit(case in training(14)) {
        let case = case.with_dtype(DType::F32);
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
    }
}
