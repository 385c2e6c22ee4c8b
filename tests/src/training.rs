//! Training steps of random tapes, which test the planner and the devices.

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

/// A tapped value in the form of the reference's: name, shape, elements.
type Tap = (String, Shape, Vec<f64>);

/// The update of the states in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// The states stay.
    None,
    /// Each state is written as it is read, element by element.
    Scaled,
    /// The first state is reversed, so that elements are read at other positions than they are written.
    Reversed,
    /// The first state follows its gradient, if there is one.
    Descent,
}

/// A random tape in a training step. Its leaves are in a store: the first as a state, the others as parameters. If the
/// first state changes, another state of its shape gets its old value.
#[derive(Clone)]
pub struct Training {
    /// The tape.
    pub recipe: Recipe,
    /// True if the loss and its gradients are recorded and tapped. Otherwise the values are tapped that the loss would
    /// be made of.
    pub gradients: bool,
    /// True if the gradients of a slope of the loss are recorded as well.
    pub second: bool,
    /// The update of the states.
    pub update: Update,
}

/// A recipe of up to this many steps, without sequences and gradients, but with an update of the states. Failing cases
/// are small.
pub fn tape(steps: usize) -> impl Strategy<Value = Training> {
    let updates = select(vec![Update::None, Update::Scaled, Update::Reversed]);
    (updates, recipe(steps)).prop_map(|(update, recipe)| {
        let recipe = recipe.without(&[Kind::Sequence]);
        Training { recipe, gradients: false, second: false, update }
    })
}

/// A training step with a recipe of up to this many steps. It shrinks to the recipe alone.
pub fn training(steps: usize) -> impl Strategy<Value = Training> {
    let updates = select(vec![Update::None, Update::Scaled, Update::Reversed, Update::Descent]);
    // The parts shrink first. Without them, the rest of the recipe is nearly all that is recorded. Sequences shrink
    // with them, because a sequence is many nodes.
    let parts = (weighted(0.5), weighted(0.6), weighted(0.6), updates);
    (parts, recipe(steps)).prop_map(|((sequences, gradients, second, update), recipe)| {
        let recipe = if sequences { recipe } else { recipe.without(&[Kind::Sequence]) };
        Training { recipe, gradients, second, update }
    })
}

impl Training {
    /// The same training step without the tape's steps of some kinds.
    #[must_use]
    pub fn without(self, kinds: &[Kind]) -> Self {
        Self { recipe: self.recipe.without(kinds), ..self }
    }

    /// The same training step in another float type.
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

    /// The initial values of the states.
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
    /// If the step cannot be compiled or run.
    pub fn train(&self, mut machine: Machine, runs: usize) -> Vec<Outputs> {
        let program = self.record();
        let inputs = self.inputs(&program);
        let step = machine.session.compile(program).expect("the plan compiles");
        (0..runs).map(|_| machine.run(&step, &inputs)).collect()
    }

    /// Compares a device's runs with the reference. For each run, the reference starts from the states in which the
    /// device's run started.
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

    /// Checks that rounding may decide each branch in which a device's first run in f32 differs from the reference. The
    /// reference must take the device's branch near the point, or with slightly moved intermediate values; or the CPU
    /// must take it in the same types.
    ///
    /// # Errors
    /// The first branch that rounding does not decide.
    pub fn branches_as_reference(&self, outputs: &[Outputs], grouping: &Grouping) -> Result<(), String> {
        /// The relative distance by which rounding may move a value in f32 by the end of a tape.
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
        // Exact sums of the same numbers in two orders are equal wherever the leaves move, so intermediate values are
        // moved too.
        near.extend(
            (1..=NUDGES as u32).map(|seed| Point { program: &self.record_as(Mode::Moved(seed)), ..point }.reference()),
        );
        near.push(self.train(Machine::new(1, self.store()).grouped(grouping), 1)[0].outcome());
        ties(&have, &want, &near)
    }

    /// Records the step. It taps `loss`, each `gradient` and each `second` derivative, or each `value`; and as `branch`
    /// each discrete decision about the values.
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

/// Compares two outcomes of a program at a point. A tapped `branch` may differ if rounding decides it; nothing else is
/// compared then, because the branches lead to other values. In narrow types, any branch may differ; in f64, only one
/// that the reference takes both ways near the point.
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

/// Checks that, for each element of a branch in which two outcomes differ, both values occur among the outcomes nearby.
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

/// Prints the recipe as Rust and the other fields, then the program if it can be recorded.
impl fmt::Debug for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recipe, gradients, second, update } = self;
        writeln!(f, "Training {{ recipe, gradients: {gradients}, second: {second}, update: Update::{update:?} }}")?;
        writeln!(f, "{} steps in recipe = {recipe:?}", recipe.steps.len())?;
        // A thread that is panicking prints the failing cases, and a second panic there would abort the process, so
        // another thread records.
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

/// True if a node is computed: neither a leaf nor a view of a value.
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
