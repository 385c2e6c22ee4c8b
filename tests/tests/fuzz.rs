//! The fuzzer finds what is planted, makes it small, and finds it again from the seed that it told.

use proptest::prelude::*;
use std::{sync::atomic::AtomicBool, time::Duration};
use wgrad::testing::{Kind, Recipe, recipe};
use wgrad_tests::{
    Property,
    fuzz::{Found, Fuzz, Tried, silence_panics},
    lossy_steps,
};

fn sound() -> Property {
    Property::new("no_tape_has_fifty_steps", 640, recipe(12), |recipe: &Recipe| {
        prop_assert!(recipe.steps.len() < 50);
        Ok(())
    })
}

/// The fault: tapes with an error function.
fn planted() -> Vec<Property> {
    let check = |recipe: &Recipe| {
        prop_assert!(recipe.steps.iter().all(|step| step.kind != Kind::Erf), "an error function");
        Ok(())
    };
    vec![sound(), Property::new("no_tape_has_an_error_function", 640, recipe(12), check)]
}

fn panicking() -> Vec<Property> {
    let check = |recipe: &Recipe| {
        assert!(recipe.steps.iter().all(|step| step.kind != Kind::Erf), "an error function");
        Ok(())
    };
    vec![Property::new("no_tape_has_an_error_function", 640, recipe(12), check)]
}

fn fuzz(properties: fn() -> Vec<Property>, seed: u64, threads: usize, time: Duration) -> (Tried, Vec<Found>) {
    Fuzz { properties, seed, threads, time, tapes: u64::MAX, stop: &AtomicBool::new(false) }.run(|_| {})
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_planted_fault_is_found_shrunk_and_found_again() {
    let (tried, found) = fuzz(planted, 1, 1, LONG);
    let [first] = &found[..] else { panic!("{found:?}") };
    assert_eq!(first.failure.property, "no_tape_has_an_error_function");
    assert!(first.failure.why.starts_with("an error function at "), "{}", first.failure.why);
    assert_eq!(first.failure.case.matches("Step {").count(), 1, "{}", first.failure.case);
    assert!(first.failure.case.contains("Step { kind: Kind::Erf") && first.failure.case.contains("erf x0"));

    // The same seed tries the same tapes; the seed of the round finds it in its first round.
    let again = fuzz(planted, 1, 1, LONG);
    assert_eq!((&again.0.tapes, &again.1[0].failure), (&tried.tapes, &first.failure));
    let (tried, found) = fuzz(planted, first.seed, 1, LONG);
    assert_eq!((found[0].seed, &found[0].failure), (first.seed, &first.failure));
    assert_eq!(tried.tapes[0], ("no_tape_has_fifty_steps", 10), "one round");
}

/// The fault: a gradient by the newest value of the parameters alone that the loss reads.
#[test]
fn a_gradient_that_loses_what_was_read_before_a_step_is_found_and_shrunk() {
    silence_panics();
    let (_, found) = fuzz(|| vec![lossy_steps()], 1, 1, LONG);
    let [found] = &found[..] else { panic!("{found:?}") };
    let case = &found.failure.case;
    assert!(case.matches("Step {").count() <= 1 && case.matches("Interlude {").count() == 1, "{case}");
}

#[test]
fn several_threads_share_the_rounds() {
    let (_, found) = fuzz(planted, 1, 3, LONG);
    let (_, again) = fuzz(planted, found[0].seed, 1, LONG);
    assert_eq!(again[0].failure, found[0].failure);
}

#[test]
fn a_panic_is_a_failure_that_says_where() {
    silence_panics();
    let (_, found) = fuzz(panicking, 1, 1, LONG);
    let why = &found[0].failure.why;
    assert!(why.contains("an error function") && why.contains("fuzz.rs:"), "{why}");
    assert_eq!(found[0].failure.case.matches("Step {").count(), 1, "{}", found[0].failure.case);
}

#[test]
fn without_a_fault_the_time_ends_it() {
    let (tried, found) = fuzz(|| vec![sound()], 1, 2, Duration::from_millis(200));
    assert!(found.is_empty() && tried.total() > 10 && tried.time < Duration::from_secs(20), "{tried:?}");
    let stop = AtomicBool::new(true);
    let stopped =
        Fuzz { properties: planted, seed: 1, threads: 1, time: LONG, tapes: u64::MAX, stop: &stop }.run(|_| {});
    assert_eq!((stopped.0.total(), stopped.1.len()), (0, 0));
}

#[test]
fn without_a_fault_the_number_of_tapes_ends_it() {
    let stop = AtomicBool::new(false);
    let few = Fuzz { properties: || vec![sound()], seed: 1, threads: 1, time: LONG, tapes: 25, stop: &stop };
    let (tried, found) = few.run(|_| {});
    assert_eq!((tried.total(), found.len()), (25, 0));
}
