//! The recipes of random tapes: each part of a recipe can be recorded and stays in range, and simplification keeps the
//! bits.

use super::Property;
use crate::reference;
use proptest::{prelude::*, test_runner::TestCaseResult};
use wgrad::{
    DType, Program, Tape,
    testing::{Mode, Recipe, recipe},
};

fn record(recipe: &Recipe, mode: Mode) -> Program {
    let t = Tape::default();
    t.tap("loss", recipe.record(&t, mode).loss);
    t.finish()
}

fn records_without((recipe, kept): &(Recipe, u16)) -> TestCaseResult {
    let mut part = recipe.clone();
    part.steps = (0..recipe.steps.len()).filter(|i| kept >> i & 1 == 1).map(|i| recipe.steps[i]).collect();
    for mode in [Mode::Plain, Mode::Explicit] {
        let program = record(&part, mode);
        // All values are small, so that results stay in range in f32 too.
        prop_assert!(program.nodes().iter().all(|node| node.shape.numel() <= 128));
    }
    let program = record(&part, Mode::Plain);
    prop_assert!(reference(&program, &[], &part.arrays(&program)).taps[0].2[0].abs() < 1e4);
    prop_assert_eq!(record(&part.clone().with_dtype(DType::F32), Mode::Plain).nodes().len(), program.nodes().len());
    Ok(())
}

fn simplifies(recipe: &Recipe) -> TestCaseResult {
    let t = Tape::default();
    let recorded = recipe.record(&t, Mode::Plain);
    t.tap("loss", recorded.loss);
    recorded.loss.grad_wrt(&recorded.leaves).iter().flatten().for_each(|g| t.tap_each("gradient", *g));
    let program = t.finish();
    let inputs = recipe.arrays(&program);
    let [simple, kept] = [true, false].map(|simplify| program.lowered(simplify, |_, _| false));
    let live = |program: &Program| program.live().iter().filter(|live| **live).count();
    prop_assert!(live(&simple) <= live(&kept));
    let [have, want] = [simple, kept].map(|program| reference(&program, &[], &inputs));
    for ((name, _, have), (.., want)) in have.taps.iter().zip(&want.taps) {
        prop_assert!(have.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())), "{}", name);
    }
    Ok(())
}

pub(super) fn properties() -> Vec<Property> {
    vec![
        Property::new("a_recipe_without_any_of_its_steps_records", 512, (recipe(12), any::<u16>()), records_without),
        Property::new("a_simplified_tape_gives_the_same_bits", 256, recipe(14), simplifies),
    ]
}
