//! Plans of random tapes, with any options of the planner: they compute what the program computes, and keep the rules
//! of memory.

use super::{Property, devices::CASTS};
use crate::{Point, Tolerance, Training, agree, named, sound, tape, training};
use proptest::prelude::*;
use wgrad::{
    plan::{Grouping, Plan},
    testing::grouping,
};
use wgrad_cpu::reference::plan;

/// Interprets the plan of a training step in f64, and compares it with the program.
fn interpreted(case: &Training, grouping: &Grouping) -> Result<(), String> {
    let program = case.record();
    let (inputs, states) = (case.inputs(&program), case.states());
    let lowered = program.lowered(grouping.simplify, |_, _| false);
    let plan = Plan::with(&lowered, grouping);
    let have = plan::run(&plan, &lowered, &states, &named(&inputs)).expect("the plan runs");
    let point = Point { program: &program, states: &states, inputs: &inputs };
    agree(&have, &point.reference(), &point, Tolerance::F64)
        .map_err(|why| format!("{why}\n{}", plan.describe(&lowered)))
}

/// Checks the rules of memory of a training step's plan.
fn is_sound(case: &Training, grouping: &Grouping, claimed: bool) -> Result<(), String> {
    let lowered = case.record().lowered(grouping.simplify, |_, _| claimed);
    let plan = || Plan::with(&lowered, grouping).describe(&lowered).to_string();
    sound(&lowered, grouping).map_err(|why| format!("{why}\n{}", plan()))
}

pub(super) fn properties() -> Vec<Property> {
    let short = tape(4).prop_map(|case| case.without(&CASTS));
    let long = training(14).prop_map(|case| case.without(&CASTS));
    vec![
        // This property finds most faults of the planner, in tapes of a few nodes.
        Property::new("plans_of_short_tapes_are_right", 8192, (short, grouping()), |(case, grouping)| {
            interpreted(case, grouping).map_err(TestCaseError::fail)?;
            is_sound(case, grouping, false).map_err(TestCaseError::fail)
        }),
        Property::new("plans_mean_what_the_program_means", 1024, (long, grouping()), |(case, grouping)| {
            interpreted(case, grouping).map_err(TestCaseError::fail)
        }),
        Property::new(
            "plans_are_sound",
            1024,
            (training(14), grouping(), any::<bool>()),
            |(case, grouping, claimed)| is_sound(case, grouping, *claimed).map_err(TestCaseError::fail),
        ),
    ]
}
