//! Training steps of random tapes: what the suites record that fuzz the planner and the devices.

use crate::{
    Machine, Outputs, Point, Tolerance, compare,
    run::{NUDGE, NUDGES},
};
use proptest::{bool::weighted, prelude::*, sample::select};
use std::{fmt, sync::Arc};
use wgrad::{
    Array, DType, Data, Program, Shape, StateId, Store, Tape, Tensor,
    plan::Grouping,
    testing::{Kind, Mode, Recipe, Recorded, recipe},
};
use wgrad_cpu::reference::Outcome;

/// A tapped value as the reference gives it.
type Tap = (String, Shape, Vec<f64>);

/// What becomes of the states in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// They stay.
    None,
    /// Each is written as it is read, element by element.
    Scaled,
    /// The first is turned around, so that no element is read where it is written.
    Reversed,
    /// The first follows its gradient, if there is one.
    Descent,
}

/// A random tape in a training step: its leaves live in a store, the first as a state, the others as parameters. A state
/// of the first leaf's shape follows it, one step behind, wherever the first changes.
#[derive(Clone)]
pub struct Training {
    /// The tape.
    pub recipe: Recipe,
    /// Whether there is a loss, with its gradients. The values that the loss would be made of are shown otherwise.
    pub gradients: bool,
    /// Whether the gradients of a slope of the loss are there as well.
    pub second: bool,
    /// What becomes of the states.
    pub update: Update,
}

/// A recipe of up to this many steps, without sequences, alone but for what becomes of the states: what fails here is
/// small.
pub fn tape(steps: usize) -> impl Strategy<Value = Training> {
    let updates = select(vec![Update::None, Update::Scaled, Update::Reversed]);
    (updates, recipe(steps)).prop_map(|(update, recipe)| {
        let recipe = recipe.without(&[Kind::Sequence]);
        Training { recipe, gradients: false, second: false, update }
    })
}

/// A training step of a recipe of up to this many steps. It shrinks to the recipe alone.
pub fn training(steps: usize) -> impl Strategy<Value = Training> {
    let updates = select(vec![Update::None, Update::Scaled, Update::Reversed, Update::Descent]);
    // The parts first: without them, what is left of the recipe in the end is nearly all that is recorded. A sequence
    // is many nodes, too.
    let parts = (weighted(0.5), weighted(0.6), weighted(0.6), updates);
    (parts, recipe(steps)).prop_map(|((sequences, gradients, second, update), recipe)| {
        let recipe = if sequences { recipe } else { recipe.without(&[Kind::Sequence]) };
        Training { recipe, gradients, second, update }
    })
}

impl Training {
    /// The same without the steps of some kinds.
    #[must_use]
    pub fn without(self, kinds: &[Kind]) -> Self {
        Self { recipe: self.recipe.without(kinds), ..self }
    }

    /// The same in another float type.
    #[must_use]
    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { recipe: self.recipe.with_dtype(dtype), ..self }
    }

    /// A store that holds the leaves.
    pub fn store(&self) -> Store {
        let mut store = Store::new();
        for i in 0..self.recipe.leaves.len() {
            if i == 0 {
                store.state("x0", &self.recipe.leaf(0));
                store.state("before", &self.recipe.leaf(0));
            } else {
                store.param(&format!("x{i}"), &self.recipe.leaf(i));
            }
        }
        store
    }

    /// The states' first values.
    pub fn states(&self) -> Vec<Data> {
        self.store().into_parts().1
    }

    /// The inputs of the recorded program.
    pub fn inputs(&self, program: &Program) -> Vec<(String, Array)> {
        self.recipe.arrays(program)
    }

    /// Runs the step several times on a device that holds the store.
    ///
    /// # Panics
    /// If it cannot be compiled or run.
    pub fn train(&self, mut machine: Machine, runs: usize) -> Vec<Outputs> {
        let program = self.record();
        let inputs = self.inputs(&program);
        let step = machine.session.compile(program).expect("the plan compiles");
        (0..runs).map(|_| machine.run(&step, &inputs)).collect()
    }

    /// Compares what a device gives with the reference, run by run, each from the state in which the device's run began.
    ///
    /// # Errors
    /// The first difference.
    pub fn agrees_with_reference(&self, outputs: &[Outputs], tolerance: Tolerance) -> Result<(), String> {
        let program = self.record();
        let inputs = self.inputs(&program);
        let mut states = self.states();
        for (run, have) in outputs.iter().enumerate() {
            let point = Point { program: &program, states: &states, inputs: &inputs };
            agree(&have.outcome(), &point.reference(), &point, tolerance).map_err(|why| format!("run {run}: {why}"))?;
            states = have.states.iter().map(|state| state.data().clone()).collect();
        }
        Ok(())
    }

    /// Requires of each branch in which a device's first run in f32 differs from the reference that rounding may decide it:
    /// the reference takes it close to the point or where each value on the way is moved a little, or the CPU does in the
    /// same types.
    ///
    /// # Errors
    /// The first branch that is none of these.
    pub fn branches_as_reference(&self, outputs: &[Outputs], grouping: &Grouping) -> Result<(), String> {
        /// How far rounding may move a value in f32, relatively, by the end of a tape.
        const FAR: f64 = 1e-5;
        let program = self.record();
        let (states, inputs) = (self.states(), self.inputs(&program));
        let point = Point { program: &program, states: &states, inputs: &inputs };
        let (have, want) = (outputs[0].outcome(), point.reference());
        let same = |((name, _, have), (.., want)): (&Tap, &Tap)| !name.starts_with("branch") || have == want;
        if have.taps.iter().zip(&want.taps).all(same) {
            return Ok(());
        }
        let mut near = point.near(FAR);
        // Sums of the same numbers in two orders are equal, wherever the leaves are moved to.
        near.extend(
            (1..=NUDGES as u32).map(|seed| Point { program: &self.record_as(Mode::Moved(seed)), ..point }.reference()),
        );
        near.push(self.train(Machine::new(1, self.store()).grouped(grouping), 1)[0].outcome());
        ties(&have, &want, &near)
    }

    /// Records the step. It taps `loss`, each `gradient` and each `second` derivative, or each `value`; and `branch`es,
    /// whatever is discrete about the values.
    pub fn record(&self) -> Program {
        self.record_as(Mode::Plain)
    }

    fn record_as(&self, mode: Mode) -> Program {
        let store = self.store();
        let layout = store.layout();
        let tape = Tape::new(Arc::new(layout.clone()));
        let states: Vec<StateId> = layout.states().map(|(id, _)| id).filter(|id| !layout.is_arena(*id)).collect();
        let (first, before) = (states[0], states[1]);
        let leaves: Vec<Tensor<'_>> =
            std::iter::once(tape.state(first)).chain(layout.params().map(|(id, _)| tape.param(id))).collect();
        let Recorded { loss, unused, leaves, branches, .. } = self.recipe.record_over(&leaves, mode);
        branches.iter().for_each(|b| tape.tap_each("branch", *b));
        let gradients = if self.gradients { loss.grad_wrt(&leaves) } else { vec![None; leaves.len()] };
        if self.gradients {
            tape.tap("loss", loss);
            gradients.iter().flatten().for_each(|g| tape.tap_each("gradient", *g));
            let slope = gradients.iter().flatten().map(|g| (*g * 0.3).sin().sum()).reduce(|a, b| a + b);
            if let Some(slope) = slope.filter(|_| self.second) {
                slope.grad_wrt(&leaves).iter().flatten().for_each(|g| tape.tap_each("second", *g));
            }
        } else {
            unused.iter().for_each(|x| tape.tap_each("value", *x));
        }
        self.update(&tape, &store, (first, before), gradients[0]);
        tape.finish()
    }

    fn update(&self, tape: &Tape, store: &Store, (first, before): (StateId, StateId), gradient: Option<Tensor<'_>>) {
        let x = tape.state(first);
        let next = match (self.update, gradient) {
            (Update::None, _) => return,
            (Update::Reversed, _) => {
                let turned = (0..x.rank()).filter(|&d| x.shape()[d] > 0);
                turned.fold(x, |x, d| x.slice_step(d, x.shape()[d] - 1, x.shape()[d], -1)) * 0.9 + x
            }
            (Update::Descent, Some(g)) => x - g * 0.01,
            (Update::Descent | Update::Scaled, _) => x * 0.9,
        };
        tape.assign(first, next);
        tape.assign(before, x);
        for arena in store.params().arenas(store.layout()) {
            tape.assign(arena, tape.state(arena) * 0.9);
        }
    }
}

/// Compares two outcomes of a program at a point. What is tapped as `branch` may differ where rounding decides it, and
/// nothing else is compared then: what follows is another program. In narrow types any branch may; in f64, one that the
/// reference takes both ways close to the point.
///
/// # Errors
/// The first difference.
pub fn agree(have: &Outcome, want: &Outcome, point: &Point<'_>, tolerance: Tolerance) -> Result<(), String> {
    let pairs = || have.taps.iter().zip(&want.taps);
    if let Some(((name, shape, _), (_, expected, _))) = pairs().find(|((_, have, _), (_, want, _))| have != want) {
        return Err(format!("{name} has shape {shape} instead of {expected}"));
    }
    if pairs().any(|((name, _, have), (.., want))| name.starts_with("branch") && have != want) {
        return if tolerance == Tolerance::F64 { ties(have, want, &point.near(NUDGE)) } else { Ok(()) };
    }
    for ((name, _, have), (.., want)) in pairs() {
        compare(name, have, want, tolerance)?;
        if name == "loss" && !have[0].is_finite() {
            return Err(format!("the loss is {}", have[0]));
        }
    }
    let mut states = have.states.iter().zip(&want.states).enumerate();
    states.try_for_each(|(i, (have, want))| compare(&format!("state {i}"), have, want, tolerance))
}

/// Requires of each element of a branch in which two outcomes differ that both values are taken near by.
fn ties(have: &Outcome, want: &Outcome, near: &[Outcome]) -> Result<(), String> {
    for (tap, ((name, _, have), (.., want))) in have.taps.iter().zip(&want.taps).enumerate() {
        let differ = (0..want.len()).filter(|&i| name.starts_with("branch") && have[i] != want[i]);
        for i in differ {
            let taken = |value| near.iter().any(|near| near.taps[tap].2[i] == value);
            if !(taken(have[i]) && taken(want[i])) {
                return Err(format!("{name}[{i}], tap {tap}: {} instead of {}, and no tie", have[i], want[i]));
            }
        }
    }
    Ok(())
}

/// The recipe as Rust and the parts, then the recorded program, if it can be recorded.
impl fmt::Debug for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipe, gradients, second, update } = self;
        writeln!(f, "Training {{ recipe, gradients: {gradients}, second: {second}, update: Update::{update:?} }}")?;
        writeln!(f, "{} steps in recipe = {recipe:?}", recipe.steps.len())?;
        // Failing cases are printed by a thread that is panicking already: a second panic there would abort it.
        match std::thread::scope(|scope| scope.spawn(|| self.record()).join()) {
            Ok(program) => {
                let computes = |(i, live): (usize, bool)| live && is_computed(&program, i);
                let count = program.live().into_iter().enumerate().filter(|x| computes(*x)).count();
                writeln!(f, "the step, {count} compute nodes:\n{program}")
            }
            Err(_) => writeln!(f, "(recording the step panics)"),
        }
    }
}

/// Whether a node is computed: neither a leaf, nor another look at a value.
fn is_computed(program: &Program, i: usize) -> bool {
    use wgrad::op::Op;
    !matches!(
        program.nodes()[i].op,
        Op::Const(_)
            | Op::Input(_)
            | Op::State(_)
            | Op::Iota(_)
            | Op::Table(_)
            | Op::Detach
            | Op::Barrier(_)
            | Op::Hook(_)
            | Op::Recomputed
            | Op::Custom { .. }
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Expand(_)
            | Op::Slice { .. }
    )
}
