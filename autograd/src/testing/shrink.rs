//! Shrinking recipes: any one edit that makes a failing recipe simpler and leaves it failing is kept, until there is no
//! such edit.
//!
//! Proptest's own trees shrink each part once, in order; here a step may also go after a later one has become simpler.

use super::recipe::{Kind, Leaf, Recipe, Step};
use crate::Shape;
use proptest::{
    strategy::{NewTree, Strategy, ValueTree},
    test_runner::TestRunner,
};

/// The magnitude to which elements shrink.
const SMALL: f64 = 0.1;

/// The recipes of another strategy, which shrink by [`edits`].
#[derive(Debug)]
pub(super) struct Shrinking<S> {
    pub recipes: S,
    /// The kinds of steps, the simplest first.
    pub kinds: &'static [Kind],
}

impl<S: Strategy<Value = Recipe>> Strategy for Shrinking<S> {
    type Tree = Tree;
    type Value = Recipe;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let best = self.recipes.new_tree(runner)?.current();
        Ok(Tree { current: best.clone(), best, kinds: self.kinds, edits: None, next: 0, since: 0 })
    }
}

/// A recipe that shrinks.
#[derive(Debug)]
pub(super) struct Tree {
    /// The simplest that is known to fail.
    best: Recipe,
    /// The edit that is being tried, or the best itself.
    current: Recipe,
    kinds: &'static [Kind],
    /// All edits of the best.
    edits: Option<Vec<Recipe>>,
    /// The index of the next edit. It goes on after an edit that is kept, and wraps around.
    next: usize,
    /// The number of edits in a row that were not kept.
    since: usize,
}

impl Tree {
    /// Goes on to the next edit of the best; to the best itself if all have been tried.
    fn advance(&mut self) -> bool {
        let edits = self.edits.get_or_insert_with(|| edits(&self.best, self.kinds));
        let more = self.since < edits.len();
        self.current = if more { edits[self.next % edits.len()].clone() } else { self.best.clone() };
        (self.next, self.since) = (self.next + 1, self.since + 1);
        more
    }
}

impl ValueTree for Tree {
    type Value = Recipe;

    fn current(&self) -> Recipe {
        self.current.clone()
    }

    fn simplify(&mut self) -> bool {
        if self.current != self.best {
            (self.best, self.edits, self.since) = (self.current.clone(), None, 0);
            // The edit at the index of the one that was kept is of the same part, or of the next one if that part is
            // gone.
            self.next = self.next.saturating_sub(1);
        }
        self.advance()
    }

    fn complicate(&mut self) -> bool {
        // Even if no edit is left, the best differs from the edit that was tried.
        let tried = self.current != self.best;
        self.advance() || tried
    }
}

/// All recipes that are simpler in one place; those that save most come first.
fn edits(recipe: &Recipe, kinds: &[Kind]) -> Vec<Recipe> {
    let mut all = vec![];
    for i in 0..recipe.steps.len() {
        let mut steps = recipe.steps.clone();
        steps.remove(i);
        all.push(Recipe { steps, ..recipe.clone() });
    }
    for i in (0..recipe.leaves.len()).rev().filter(|_| recipe.leaves.len() > 1) {
        let mut leaves = recipe.leaves.clone();
        leaves.remove(i);
        all.push(Recipe { leaves, ..recipe.clone() });
    }
    let parts =
        recipe.leaves.iter().enumerate().flat_map(|(i, leaf)| simpler_leaves(leaf).into_iter().map(move |l| (i, l)));
    all.extend(parts.map(|(i, leaf)| {
        let mut edited = recipe.clone();
        edited.leaves[i] = leaf;
        edited
    }));
    let parts = recipe
        .steps
        .iter()
        .enumerate()
        .flat_map(|(i, step)| simpler_steps(step, kinds).into_iter().map(move |s| (i, s)));
    all.extend(parts.map(|(i, step)| {
        let mut edited = recipe.clone();
        edited.steps[i] = step;
        edited
    }));
    all
}

/// Steps with an earlier kind, the latest value as operand, smaller numbers or fewer bits. Keys stay as they are: they
/// only identify values.
fn simpler_steps(step: &Step, kinds: &[Kind]) -> Vec<Step> {
    let earlier = kinds.iter().take_while(|kind| **kind != step.kind).map(|&kind| Step { kind, ..*step });
    let operands = [Step { a: 0, ..*step }, Step { b: 0, ..*step }];
    let numbers = (0..4).flat_map(|i| {
        let number = step.n[i];
        let fewer = (0..u8::BITS).map(move |bit| number & !(1 << bit));
        [0, number / 2, number.saturating_sub(1)].into_iter().chain(fewer).map(move |number| {
            let mut n = step.n;
            n[i] = number;
            Step { n, ..*step }
        })
    });
    let mut all: Vec<Step> = earlier.chain(operands).chain(numbers).filter(|other| other != step).collect();
    all.dedup();
    all
}

/// Leaves with one dimension less, a smaller one, or elements of few digits.
fn simpler_leaves(leaf: &Leaf) -> Vec<Leaf> {
    let dims = &leaf.shape;
    let without = (0..dims.rank()).map(|d| Shape::from([&dims[..d], &dims[d + 1..]].concat()));
    let smaller = (0..dims.rank()).filter(|&d| dims[d] > 1).flat_map(|d| [dims.with(d, 1), dims.with(d, dims[d] - 1)]);
    let shapes = without.chain(smaller).filter(|shape| shape.numel() <= leaf.values.len());
    let cut = |shape: Shape| Leaf { values: leaf.values[..shape.numel()].to_vec(), shape };
    let mut all: Vec<Leaf> = shapes.map(cut).collect();
    let with = |values| Leaf { values, ..leaf.clone() };
    all.push(with(vec![SMALL; leaf.values.len()]));
    for i in 0..leaf.values.len() {
        for value in [SMALL, leaf.values[i].abs(), (leaf.values[i] * 10.0).round() / 10.0] {
            let mut values = leaf.values.clone();
            // Elements stay clear of the kinks at 0.
            values[i] = if value == 0.0 { SMALL } else { value };
            all.push(with(values));
        }
    }
    all.retain(|other| other != leaf);
    all
}
