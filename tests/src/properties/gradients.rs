//! Gradients of random tapes: the recorded gradient, and the gradient of a slope (a Hessian-vector product), agree with
//! finite differences along random directions.

use super::Property;
use crate::{Tolerance, compare, reference};
use approx::abs_diff_eq;
use proptest::{prelude::*, test_runner::TestCaseResult};
use std::fmt;
use wgrad::{
    Array, DType, Node, Program, Tape, Tensor,
    op::Op,
    testing::{Kind, Mode, Recipe, Recorded, central_difference, recipe},
};
use wgrad_cpu::reference::Outcome;

/// A tape, and the seed of its directions.
#[derive(Clone)]
struct Differentiated {
    recipe: Recipe,
    seed: u64,
}

/// A tape without the steps of these kinds. The callers leave out casts, which round values and so have no derivative.
fn differentiable(steps: usize, without: &'static [Kind]) -> impl Strategy<Value = Differentiated> {
    (recipe(steps), any::<u64>()).prop_map(|(recipe, seed)| Differentiated { recipe: recipe.without(without), seed })
}

/// Prints the number of nodes, the seed, and the recipe.
impl fmt::Debug for Differentiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = || {
            let tape = Tape::default();
            let unused = self.recipe.record(&tape, Mode::Plain).unused;
            unused.iter().for_each(|x| tape.tap_each("value", *x));
            let program = tape.finish();
            // A view of indices counts as a leaf too.
            let leaf = |node: &Node| match node.op {
                Op::Input(_) | Op::Const(_) | Op::Iota(_) | Op::Table(_) => true,
                Op::Slice { .. } | Op::Reshape(_) | Op::Expand(_) => !node.dtype.is_float(),
                _ => false,
            };
            program.nodes().iter().zip(program.live()).filter(|(node, live)| *live && !leaf(node)).count()
        };
        // Recording may panic, and this thread must not, so another thread records.
        match std::thread::scope(|scope| scope.spawn(nodes).join()) {
            Ok(nodes) => writeln!(f, "{nodes} nodes, without leaves, constants and the weights of the loss;")?,
            Err(_) => writeln!(f, "(recording it panics)")?,
        }
        write!(f, "directions of seed {}: {:?}", self.seed, self.recipe)
    }
}

/// `sum over leaves of gradient . direction`; the directions are inputs.
fn slope<'t>(tape: &'t Tape, gradients: &[Option<Tensor<'t>>], leaves: &[Tensor<'t>], name: &str) -> Tensor<'t> {
    let zero = tape.scalar(0.0, DType::F64);
    leaves.iter().zip(gradients).enumerate().fold(zero, |sum, (i, (leaf, g))| {
        let direction = tape.shared_input(&format!("{name}{i}"), leaf.shape(), leaf.dtype());
        g.map_or(sum, |g| sum + (g * direction).sum())
    })
}

/// Records the loss, its slope along `u`, its slope along `v`, and the slope along `u` of the slope along `v`.
fn differentiated(recipe: &Recipe, mode: Mode) -> Program {
    let tape = Tape::default();
    let Recorded { loss, leaves, branches, frozen, .. } = recipe.record(&tape, mode);
    tape.tap("loss", loss);
    branches.iter().for_each(|b| tape.tap_each("branch", *b));
    frozen.iter().enumerate().for_each(|(i, x)| tape.tap(&format!("frozen{i}"), *x));
    let gradients = loss.grad_wrt(&leaves);
    tape.tap("slope u", slope(&tape, &gradients, &leaves, "u"));
    let along_v = slope(&tape, &gradients, &leaves, "v");
    tape.tap("slope v", along_v);
    tape.tap("curvature", slope(&tape, &along_v.grad_wrt(&leaves), &leaves, "u"));
    tape.finish()
}

fn tap<'o>(outcome: &'o Outcome, name: &str) -> &'o [f64] {
    &outcome.taps.iter().find(|(n, ..)| n == name).expect("tapped").2
}

fn branches(outcome: &Outcome) -> Vec<&[f64]> {
    outcome.taps.iter().filter(|(n, ..)| n.starts_with("branch")).map(|(.., values)| &values[..]).collect()
}

/// A direction for each leaf; all of them together have length 1.
fn directions(recipe: &Recipe, name: &str, seed: u64) -> Vec<(String, Array)> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    };
    let mut all: Vec<Vec<f64>> =
        recipe.leaves.iter().map(|leaf| leaf.values.iter().map(|_| next()).collect()).collect();
    let norm = all.iter().flatten().map(|v| v * v).sum::<f64>().sqrt().max(1e-9);
    all.iter_mut().flatten().for_each(|v| *v /= norm);
    let leaves = recipe.leaves.iter().zip(all).enumerate();
    leaves.map(|(i, (leaf, v))| (format!("{name}{i}"), Array::new(&leaf.shape, v))).collect()
}

fn check(recipe: &Recipe, seed: u64) -> TestCaseResult {
    let (plain, explicit) = (differentiated(recipe, Mode::Plain), differentiated(recipe, Mode::Explicit));
    let along = directions(recipe, "u", seed);
    let fixed: Vec<(String, Array)> = along.iter().cloned().chain(directions(recipe, "v", seed ^ 0x5eed)).collect();
    let base = reference(&plain, &[], &[recipe.arrays(&plain), fixed.clone()].concat());
    let frozen: Vec<(String, Array)> = base
        .taps
        .iter()
        .filter(|(name, ..)| name.starts_with("frozen"))
        .map(|(name, shape, values)| (name.clone(), Array::new(shape, values.clone())))
        .collect();
    let at = |h: f64| {
        let mut inputs = [recipe.arrays(&explicit), fixed.clone(), frozen.clone()].concat();
        for (name, array) in &mut inputs {
            if let Some((_, u)) = name.strip_prefix('x').and_then(|i| along.iter().find(|(n, _)| n[1..] == *i)) {
                let moved = array.to_f64().iter().zip(u.to_f64()).map(|(x, u)| x + h * u).collect::<Vec<f64>>();
                *array = Array::new(array.shape(), moved);
            }
        }
        reference(&explicit, &[], &inputs)
    };
    const H: f64 = 2e-4;
    let straight = [-H, -H / 2.0, 0.0, H / 2.0, H].iter().all(|&h| branches(&at(h)) == branches(&base));
    prop_assume!(straight, "a kink is near");
    compare("explicit loss", tap(&at(0.0), "loss"), tap(&base, "loss"), Tolerance::F64).map_err(TestCaseError::fail)?;
    for (value, derivative) in [("loss", "slope u"), ("slope v", "curvature")] {
        let (want, error) = central_difference(|h| tap(&at(h), value)[0], H);
        let have = tap(&base, derivative)[0];
        let scale = want.abs().max(tap(&base, value)[0].abs()).max(1.0);
        prop_assume!(error < 1e-3 * scale, "too curved for finite differences");
        prop_assert!(
            abs_diff_eq!(have, want, epsilon = 1e-7 * scale + error),
            "{} is {}, by finite differences {} (error {:.1e})\n{}",
            derivative,
            have,
            want,
            error,
            plain
        );
    }
    Ok(())
}

/// Checks that a recipe with sines in a narrower type has roughly the gradient of the plain sines.
fn passes_through(rounded: &Recipe, kind: Kind, seed: u64, tolerance: Tolerance) -> TestCaseResult {
    let mut exact = rounded.clone();
    exact.steps.iter_mut().filter(|s| s.kind == kind).for_each(|s| s.kind = Kind::Sin);
    let value = |recipe: &Recipe| {
        let program = differentiated(recipe, Mode::Plain);
        let along = [directions(recipe, "u", seed), directions(recipe, "v", !seed)].concat();
        reference(&program, &[], &[recipe.arrays(&program), along].concat())
    };
    let (rounded, exact) = (value(rounded), value(&exact));
    prop_assume!(branches(&rounded) == branches(&exact));
    for name in ["loss", "slope u", "slope v"] {
        compare(name, tap(&rounded, name), tap(&exact, name), tolerance).map_err(TestCaseError::fail)?;
    }
    Ok(())
}

pub(super) fn properties() -> Vec<Property> {
    vec![
        // Rounding has no derivative, so casts are left out here; the next two properties test them.
        Property::new(
            "gradients_and_curvature_agree_with_finite_differences",
            1024,
            differentiable(12, &[Kind::CastFloat, Kind::CastHalf]),
            |case| check(&case.recipe, case.seed),
        ),
        Property::new(
            "rounding_to_f32_passes_gradients_through",
            1024,
            differentiable(10, &[Kind::CastHalf]),
            |case| passes_through(&case.recipe, Kind::CastFloat, case.seed, Tolerance(1e-4)),
        ),
        Property::new(
            "rounding_to_f16_passes_gradients_through",
            1024,
            differentiable(10, &[Kind::CastFloat]),
            |case| passes_through(&case.recipe, Kind::CastHalf, case.seed, Tolerance(0.1)),
        ),
    ]
}
