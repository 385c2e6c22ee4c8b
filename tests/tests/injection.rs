//! Faults at run time: what is put into a step skips it, or reaches nothing; and a step that ignores the verdict is found.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{TestError, TestRunner},
};
use std::collections::BTreeMap;
use wgrad_tests::{
    injection::{Outcome, injection},
    proptest_config,
};

#[test]
fn faults_both_reach_gradients_and_are_masked() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..400 {
        let case = injection(10, false).new_tree(&mut runner).expect("a case").current();
        let outcome = case.check().unwrap_or_else(|why| panic!("{why}\n{case:?}"));
        *seen.entry(format!("{outcome:?}")).or_default() += 1;
    }
    println!("{seen:?}");
    let of = |outcome: Outcome| seen.get(&format!("{outcome:?}")).copied().unwrap_or(0);
    assert!(of(Outcome::Skipped) > 100 && of(Outcome::Taken) > 10, "{seen:?}");
}

#[test]
fn a_step_that_ignores_the_verdict_is_found_and_made_small() {
    let mut runner = TestRunner::new(proptest_config(512));
    let found = runner.run(&injection(10, true), |case| case.check().map(drop).map_err(TestCaseError::fail));
    let Err(TestError::Fail(why, case)) = found else { panic!("{found:?}") };
    assert!(why.message().contains("params/f"), "{why}");
    assert!(case.recipe.steps.len() <= 2, "{case:?}");
}
