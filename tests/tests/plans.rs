//! Plans of random tapes, whatever the planner may do: they mean what the program means, on a device too, and keep the
//! rules of memory.

use proptest::prelude::*;
use wgrad::{
    Array, DType, Tape, Tensor,
    plan::{Grouping, Plan},
    testing::{Kind, grouping},
};
use wgrad_cpu::reference_plan;
use wgrad_tests::{
    Machine, Tolerance, Training, agree, named, proptest_config as config, reference, sound, tape, training,
};

/// What is computed in another type in between has the tolerance of that type.
const CASTS: [Kind; 2] = [Kind::CastFloat, Kind::CastHalf];

/// Interprets the plan of a training step in f64, and compares it with the program.
fn interpreted(case: &Training, grouping: &Grouping, claimed: bool) -> Result<(), String> {
    let program = case.record();
    let (inputs, states) = (case.inputs(&program), case.states());
    let lowered = program.lowered(grouping.simplify, |_, _| claimed);
    let plan = Plan::with(&lowered, grouping);
    let have = reference_plan::run(&plan, &lowered, &states, &named(&inputs)).expect("the plan runs");
    agree(&have, &reference(&program, &states, &inputs), Tolerance::F64)
        .map_err(|why| format!("{why}\n{}", plan.describe(&lowered)))
}

/// Checks the rules of memory of a training step's plan.
fn is_sound(case: &Training, grouping: &Grouping, claimed: bool) -> Result<(), String> {
    let lowered = case.record().lowered(grouping.simplify, |_, _| claimed);
    let plan = || Plan::with(&lowered, grouping).describe(&lowered).to_string();
    sound(&lowered, grouping).map_err(|why| format!("{why}\n{}", plan()))
}

proptest! {
    #![proptest_config(config(8192))]

    // Most faults of the planner are found here, in tapes of a few nodes.
    #[test]
    fn plans_of_short_tapes_are_right(case in tape(4), grouping in grouping()) {
        let case = case.without(&CASTS);
        interpreted(&case, &grouping, false).map_err(TestCaseError::fail)?;
        is_sound(&case, &grouping, false).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn plans_mean_what_the_program_means(case in training(14), grouping in grouping()) {
        interpreted(&case.without(&CASTS), &grouping, false).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn plans_are_sound(case in training(14), grouping in grouping(), claimed in any::<bool>()) {
        is_sound(&case, &grouping, claimed).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn the_cpu_runs_any_plan_in_f64(case in training(12), grouping in grouping(), cut in any::<bool>()) {
        let case = case.without(&CASTS);
        let device = if cut { Machine::splitting } else { Machine::poisoned };
        let have = case.train(device(1, case.store()).grouped(&grouping), 2);
        case.agrees_with_reference(&have, Tolerance::of(DType::F64)).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn the_cpu_runs_any_plan_in_f32(case in training(10), grouping in grouping(), cut in any::<bool>()) {
        let case = case.with_dtype(DType::F32).without(&CASTS);
        let device = if cut { Machine::splitting } else { Machine::poisoned };
        let have = case.train(device(1, case.store()).grouped(&grouping), 1);
        case.agrees_with_reference(&have, Tolerance::of(DType::F32)).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn fused_equals_unfused(case in training(10), f32s in any::<bool>()) {
        let dtype = if f32s { DType::F32 } else { DType::F64 };
        let case = case.with_dtype(dtype).without(&CASTS);
        let run = |grouping| case.train(Machine::poisoned(1, case.store()).grouped(&grouping), 1)[0].outcome();
        let (fused, unfused) = (run(Grouping::default()), run(Grouping::none()));
        agree(&fused, &unfused, Tolerance::of(dtype)).map_err(TestCaseError::fail)?;
    }
}

/// Groups that merge, of which one computes again what the other sees turned: `second` says how.
#[test]
fn a_group_that_merges_with_another_keeps_its_own_looks() {
    let seconds: [fn(Tensor<'_>) -> Tensor<'_>; 3] =
        [|r| r.transpose(), |r| r.transpose() + 1.0, |r| r.slice_step(0, 4, 5, -1) * 2.0];
    for second in seconds {
        let t = Tape::default();
        let (x, y) = (t.input("x", [5, 5], DType::F64), t.input("y", [5, 5], DType::F64));
        let (squares, product) = (x * x, x * y);
        t.tap("first", squares.sum_axes(&[0]));
        // Its group computes the product again.
        t.tap("second", (squares + product).sum_axes(&[0]));
        // A group with the same rows, of the same input, a level deeper.
        t.tap("third", (x * x.sum() * second(product)).sum_axes(&[0]));
        let program = t.finish();
        let value = |k: f64| Array::new([5, 5], (0..25).map(|i| (i as f64 * k).sin()).collect::<Vec<f64>>());
        let inputs = [("x".to_string(), value(0.7)), ("y".to_string(), value(1.3))];
        let want = reference(&program, &[], &inputs);
        for row_limit in [0, 4, 16 * 1024] {
            let grouping = Grouping { row_limit, ..Grouping::default() };
            let plan = Plan::with(&program, &grouping);
            let have = reference_plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
            agree(&have, &want, Tolerance::F64).unwrap_or_else(|why| panic!("{why}\n{}", plan.describe(&program)));
        }
    }
}

/// What a group computes again is loaded, in turn, from groups before it: here `again` is also computed by a group that
/// others read, and merges into one that comes later than these.
#[test]
fn nothing_is_read_from_a_later_group() {
    for shown in [false, true] {
        let t = Tape::default();
        let (x, y) = (t.input("x", [2, 2], DType::F64), t.input("y", [2, 2], DType::F64));
        let again = y + 1.0;
        t.tap("products", (y * x).sum_axes(&[0]));
        t.tap("sums", (y + again).sum_axes(&[0]));
        if shown {
            t.tap("again", again);
        }
        let scaled = again * y.sum() * 0.1;
        let rows = y + y - (y + y).max_axes(&[1]).reshape([2, 1]);
        t.tap("rows", rows);
        t.tap("scaled", (scaled + rows).sum_axes(&[0]));
        let product = scaled.matmul(rows) * 0.2 + scaled;
        t.tap("squares", product.square().sum_axes(&[0]));
        t.tap("product", product + 1.0);
        t.tap("tanh", again.tanh() + rows);
        let program = t.finish();
        let value = |k: f64| Array::new([2, 2], (0..4).map(|i| (i as f64 * k).sin()).collect::<Vec<f64>>());
        let inputs = [("x".to_string(), value(0.7)), ("y".to_string(), value(1.3))];
        let grouping = Grouping::default();
        sound(&program, &grouping).unwrap_or_else(|why| panic!("{why}"));
        let plan = Plan::with(&program, &grouping);
        let have = reference_plan::run(&plan, &program, &[], &named(&inputs)).expect("the plan runs");
        agree(&have, &reference(&program, &[], &inputs), Tolerance::F64).unwrap_or_else(|why| panic!("{why}"));
    }
}
