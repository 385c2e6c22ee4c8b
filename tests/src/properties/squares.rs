//! Random tapes of small square matrices: few sources that many nodes read, transposed and reversed views of them, and
//! sums over either axis. They test the kernels that the planner merges, and the values that it recomputes.

use super::Property;
use crate::{Machine, Point, Tolerance, agree, named, sound};
use proptest::{collection::vec, prelude::*};
use std::sync::Arc;
use wgrad::{
    Array, DType, Data, Program, Rng, Store, Tape, Tensor,
    plan::{Grouping, Plan},
    testing::grouping,
};
use wgrad_cpu::reference::Outcome;

/// One step: its kind, its two operands among the values so far, and whether the result is tapped.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: u8,
    a: u8,
    b: u8,
    shown: bool,
}

/// A tape over the inputs `x` and `y`, which are square matrices of `size` rows.
#[derive(Clone, Debug)]
struct Square {
    size: usize,
    steps: Vec<Step>,
    gradient: bool,
}

fn square() -> impl Strategy<Value = Square> {
    // The first values are read more often than the others.
    let operand = || prop_oneof![1 => 0..2u8, 2 => any::<u8>()];
    let step = (0..15u8, operand(), operand(), prop::bool::weighted(0.25)).prop_map(|(kind, a, b, shown)| Step {
        kind,
        a,
        b,
        shown,
    });
    (1..4usize, vec(step, 1..18), any::<bool>()).prop_map(|(size, steps, gradient)| Square { size, steps, gradient })
}

impl Square {
    /// Records the tape. It taps all branches only on request, because the taps would restrict the planner.
    fn record(&self, t: &Tape, rng: Rng, branches: bool) {
        let branch = |x: Tensor<'_>| {
            if branches {
                t.tap_each("branch", x)
            }
        };
        let n = self.size;
        let mut pool: Vec<Tensor<'_>> = vec![t.input("x", [n, n], DType::F64), t.input("y", [n, n], DType::F64)];
        for (k, step) in self.steps.iter().enumerate() {
            let (a, b) = (pool[step.a as usize % pool.len()], pool[step.b as usize % pool.len()]);
            let column_sums = |x: Tensor<'_>| {
                let sums = x.sum_axes(&[0]);
                t.tap(&format!("sums of {k}"), sums);
            };
            let value = match step.kind {
                0 => a + b,
                1 => a * b,
                2 => a.tanh(),
                3 => a.transpose(),
                4 => a * b.transpose(),
                5 => a.sum_axes(&[0]).reshape([1, n]) * b,
                6 => {
                    let max = a.max_axes(&[1]).reshape([n, 1]);
                    branch(a.equals(max));
                    a - max
                }
                7 => a * b.sum() * 0.1,
                8 => a.slice_step(0, n - 1, n, -1) + b,
                9 => {
                    column_sums(a * b);
                    a + 1.0
                }
                10 => {
                    let sums = a.sum_axes(&[1]);
                    t.tap(&format!("sums of {k}"), sums);
                    sums.tanh().reshape([1, n]) + b * 0.5
                }
                11 => {
                    let less = a.less(b);
                    branch(less);
                    less.select(a, b * 0.5)
                }
                12 => a.dropout(0.5, rng) + b,
                13 => a.dropout(0.5, rng).transpose() * b,
                _ => {
                    column_sums(a + b);
                    a.matmul(b) * 0.2 + a
                }
            };
            // Some values are bounded, because products of products grow fast.
            let value = if k % 4 == 3 { value.tanh() } else { value };
            if step.shown {
                t.tap(&format!("value {k}"), value);
            }
            pool.push(value);
        }
        let last = *pool.last().expect("there are inputs");
        t.tap("last", last);
        if let Some(g) = self.gradient.then(|| last.tanh().sum().grad_wrt(&[pool[0]])[0]).flatten() {
            t.tap_each("gradient", g);
        }
    }

    /// The recorded tape, the states of its store, and its inputs.
    fn program(&self, branches: bool) -> (Program, Vec<Data>, Vec<(String, Array)>) {
        let (store, rng) = store();
        let tape = Tape::new(Arc::new(store.layout().clone()));
        self.record(&tape, rng, branches);
        let program = tape.finish();
        let numel = self.size * self.size;
        let inputs = program.inputs().iter().enumerate().map(|(i, input)| {
            let values: Vec<f64> = (0..numel).map(|k| ((k + 5 * i + 1) as f64 * 0.7311).sin()).collect();
            (input.name.clone(), Array::new([self.size, self.size], values))
        });
        let inputs = inputs.collect();
        (program, store.into_parts().1, inputs)
    }
}

fn store() -> (Store, Rng) {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", 7);
    (store, rng)
}

/// Compares an outcome with the reference. A difference is allowed if rounding decides a branch.
fn is_right(square: &Square, have: &Outcome) -> Result<(), String> {
    let (program, states, inputs) = square.program(false);
    let point = Point { program: &program, states: &states, inputs: &inputs };
    agree(have, &point.reference(), &point, Tolerance::F64).or_else(|why| {
        let (program, states, inputs) = square.program(true);
        let point = Point { program: &program, states: &states, inputs: &inputs };
        if point.has_ties() { Ok(()) } else { Err(why) }
    })
}

/// Checks the plan, interpreted in f64, and its rules of memory.
fn plan_is_right(square: &Square, grouping: &Grouping) -> Result<(), String> {
    let (program, states, inputs) = square.program(false);
    let lowered = program.lowered(grouping.simplify, |_, _| true);
    sound(&lowered, grouping)?;
    let plan = Plan::with(&lowered, grouping);
    let have = wgrad_cpu::reference::plan::run(&plan, &lowered, &states, &named(&inputs)).expect("the plan runs");
    is_right(square, &have)
}

/// Checks the CPU against the reference.
fn cpu_is_right(square: &Square, grouping: &Grouping) -> Result<(), String> {
    let (program, _, inputs) = square.program(false);
    let mut machine = Machine::splitting(2, store().0).grouped(grouping);
    let step = machine.session.compile(program).expect("the plan compiles");
    is_right(square, &machine.run(&step, &inputs).outcome())
}

pub(super) fn properties() -> Vec<Property> {
    vec![
        Property::new("plans_of_square_tapes_are_right", 4096, (square(), grouping()), |(square, grouping)| {
            plan_is_right(square, grouping).map_err(TestCaseError::fail)
        }),
        Property::new("the_cpu_runs_square_tapes", 512, (square(), grouping()), |(square, grouping)| {
            cpu_is_right(square, grouping).map_err(TestCaseError::fail)
        }),
    ]
}
