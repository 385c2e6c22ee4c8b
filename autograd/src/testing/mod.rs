//! Proptest strategies for fuzzing code that runs or transforms programs: shapes, arrays, single operations and whole
//! random tapes.
//!
//! A backend is tested by recording a [`Recipe`] and comparing its results with those of the reference interpreter; a
//! gradient rule by comparing the recorded gradient with finite differences of the recipe's [`Mode::Explicit`] form. A
//! failing recipe shrinks to a short tape, and its `Debug` form shows that tape.
//!
//! ```
//! use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
//! use wgrad::{Tape, testing::{Mode, recipe}};
//! let mut runner = TestRunner::deterministic();
//! let recipe = recipe(8).new_tree(&mut runner).unwrap().current();
//! let tape = Tape::default();
//! let recorded = recipe.record(&tape, Mode::Plain);
//! tape.tap("loss", recorded.loss);
//! let program = tape.finish();
//! assert_eq!(recipe.arrays(&program).len(), program.inputs().len());
//! ```

mod gradcheck;
mod grouping;
mod inject;
mod recipe;
mod record;
mod shapes;
mod shrink;
mod view;

pub use gradcheck::{
    Along, Checked, Directions, Gradcheck, GradcheckError, Mismatch, Order, Source, Suspect,
    assert_detects_wrong_gradient, assert_rejects, central_difference, gradcheck,
};
pub use grouping::grouping;
pub use inject::{Guarded, INJECTED, INJECTED_AT, INJECTED_NAN, INJECTED_NODE, injectable, injected};
pub use recipe::{Kind, Leaf, Recipe, Step, operation, recipe, recipe_of, step};
pub use record::{Mode, Recorded};
pub use shapes::{
    array, away_from_zero, broadcastable, matmul_shapes, shape, shape_up_to, special_array, special_floats,
};
pub use view::{View, strided_view, view};
