//! Random tapes of segments: a long vector that is cut into segments in two ways, and values of its segments. They test
//! that the planner treats segments as rows, and that kernels of segments are split correctly.

use super::Property;
use crate::{Machine, Point, Tolerance, agree, named, sound};
use proptest::{collection::vec, prelude::*};
use std::sync::Arc;
use wgrad::{
    Array, DType, Data, Program, StateId, Store, Tape, Tensor,
    op::Segments,
    plan::{Grouping, Plan},
    testing::grouping,
};
use wgrad_cpu::reference::Outcome;

/// One step: its kind, its two operands among the values so far, the way to cut, and whether the result is tapped.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: u8,
    a: u8,
    b: u8,
    cut: bool,
    shown: bool,
}

/// A tape over the vectors `x` and `y`. Each of the two ways to cut lists the gap before each segment, and its length.
#[derive(Clone, Debug)]
struct Cuts {
    cuts: [Vec<(usize, usize)>; 2],
    steps: Vec<Step>,
    gradient: bool,
}

fn cuts() -> impl Strategy<Value = Cuts> {
    let operand = || prop_oneof![1 => 0..2u8, 2 => any::<u8>()];
    let step = (0..16u8, operand(), operand(), prop::bool::weighted(0.3), prop::bool::weighted(0.25));
    let step = step.prop_map(|(kind, a, b, cut, shown)| Step { kind, a, b, cut, shown });
    let gap = prop_oneof![4 => Just(0usize), 1 => 1..20usize];
    let len = prop_oneof![1 => Just(0usize), 4 => 1..6usize, 1 => 6..70usize];
    let cut = || vec((gap.clone(), len.clone()), 0..6);
    ([cut(), cut()], vec(step, 1..16), any::<bool>()).prop_map(|(cuts, steps, gradient)| Cuts { cuts, steps, gradient })
}

impl Cuts {
    /// The segments of both ways to cut, for a vector of the same length.
    fn segments(&self) -> [Arc<Segments>; 2] {
        let len = |cut: &Vec<(usize, usize)>| cut.iter().map(|(gap, len)| gap + len).sum::<usize>();
        let total = len(&self.cuts[0]).max(len(&self.cuts[1]));
        self.cuts.each_ref().map(|cut| {
            let mut end = 0;
            let range = |(gap, len): &(usize, usize)| {
                end += gap + len;
                (end - len, *len)
            };
            Arc::new(Segments { total, ranges: cut.iter().map(range).collect() })
        })
    }

    /// Records the tape. It taps all branches only on request, because the taps would restrict the planner.
    fn record(&self, t: &Tape, states: [StateId; 2], branches: bool) {
        let branch = |x: Tensor<'_>| {
            if branches {
                t.tap_each("branch", x)
            }
        };
        let all = self.segments();
        let n = all[0].total;
        let mut flat: Vec<Tensor<'_>> = vec![t.input("x", [n], DType::F64), t.state(states[0])];
        let table = |cut: &Arc<Segments>| (0..cut.ranges.len()).map(|i| i as f64 * 0.3 - 0.5).collect::<Vec<f64>>();
        let mut rows = all.each_ref().map(|cut| vec![t.table(&table(cut), DType::F64)]);
        for (k, step) in self.steps.iter().enumerate() {
            let cut = usize::from(step.cut);
            let segments = &all[cut];
            let pick = |pool: &[Tensor<'_>], key: u8| key as usize % pool.len();
            let (a, b) = (flat[pick(&flat, step.a)], flat[pick(&flat, step.b)]);
            let (r, s) = (rows[cut][pick(&rows[cut], step.a)], rows[cut][pick(&rows[cut], step.b)]);
            let row = match step.kind {
                0 => Some(a.segment_sum(segments)),
                1 => Some((a * b).segment_norm(segments)),
                2 => {
                    let max = a.segment_max(segments);
                    branch(a.equals(max.segment_broadcast(segments)));
                    Some(max.maximum(-3.0))
                }
                3 => Some(r.tanh() * s),
                4 => Some(r + s),
                5 => Some(r * b.sum() * 0.1),
                _ => None,
            };
            if let Some(row) = row {
                let row = if k % 3 == 2 { row.tanh() } else { row };
                if step.shown {
                    t.tap(&format!("rows {k}"), row);
                }
                rows[cut].push(row);
                continue;
            }
            let value = match step.kind {
                6 | 7 => a * r.segment_broadcast(segments),
                8 => r.segment_broadcast(segments) + s.segment_broadcast(segments),
                9 => a - (a.segment_sum(segments) * 0.2).segment_broadcast(segments),
                10 => a.tanh() + b,
                11 => a * b.norm() * 0.1,
                12 => r.segment_broadcast(segments).slice_step(0, n.saturating_sub(1), n, -1) + b,
                13 => {
                    let less = a.less(r.segment_broadcast(segments));
                    branch(less);
                    less.select(a, b * 0.5)
                }
                14 => a * s.sum() + r.segment_broadcast(segments),
                _ => a * b,
            };
            // Some values are bounded, because products of products grow fast.
            let value = if k % 3 == 2 { value.tanh() } else { value };
            if step.shown {
                t.tap(&format!("value {k}"), value);
            }
            flat.push(value);
        }
        let last = *flat.last().expect("there are inputs");
        t.tap("rows", *rows[0].last().expect("there is a table"));
        t.tap("other rows", *rows[1].last().expect("there is a table"));
        if let Some(g) = self.gradient.then(|| last.tanh().sum().grad_wrt(&[flat[0]])[0]).flatten() {
            t.tap_each("gradient", g);
        }
        t.assign(states[0], last);
        t.assign(states[1], t.full([n], 0.25, DType::F64));
    }

    /// The recorded tape, its store, and its inputs.
    fn program(&self, branches: bool) -> (Program, Store, Vec<(String, Array)>) {
        let n = self.segments()[0].total;
        let values = |k: f64| (0..n).map(|i| ((i + 1) as f64 * k).sin()).collect::<Vec<f64>>();
        let mut store = Store::new();
        let states = [("y", 0.7311), ("z", 1.3)].map(|(name, k)| store.state(name, &Array::new([n], values(k))));
        let tape = Tape::new(Arc::new(store.layout().clone()));
        self.record(&tape, states, branches);
        (tape.finish(), store, vec![("x".to_string(), Array::new([n], values(0.377)))])
    }
}

/// Compares an outcome with the reference. A difference is allowed if rounding decides a branch.
fn is_right(case: &Cuts, have: &Outcome) -> Result<(), String> {
    let check = |branches: bool, f: &dyn Fn(Point<'_>) -> Result<(), String>| {
        let (program, store, inputs) = case.program(branches);
        let states: Vec<Data> = store.into_parts().1;
        f(Point { program: &program, states: &states, inputs: &inputs })
    };
    let agrees = |point: Point<'_>| agree(have, &point.reference(), &point, Tolerance(1e-11));
    check(false, &agrees)
        .or_else(|why| check(true, &|point: Point<'_>| if point.has_ties() { Ok(()) } else { Err(why.clone()) }))
}

/// Checks the plan, interpreted in f64, and its rules of memory.
fn plan_is_right(case: &Cuts, grouping: &Grouping) -> Result<(), String> {
    let (program, store, inputs) = case.program(false);
    let lowered = program.lowered(grouping.simplify, |_, _| true);
    let states = store.into_parts().1;
    let plan = Plan::with(&lowered, grouping);
    let described = |why: String| format!("{why}\n{}", plan.describe(&lowered));
    sound(&lowered, grouping).map_err(described)?;
    let have = wgrad_cpu::reference::plan::run(&plan, &lowered, &states, &named(&inputs)).expect("the plan runs");
    is_right(case, &have).map_err(described)
}

/// Checks the CPU against the reference, and against itself with other numbers of threads.
fn cpu_is_right(case: &Cuts, grouping: &Grouping) -> Result<(), String> {
    let mut outcomes = vec![];
    for (threads, splits) in [(1, true), (2, true), (3, true), (1, false), (2, false)] {
        let (program, store, inputs) = case.program(false);
        let machine = if splits { Machine::splitting } else { Machine::poisoned };
        let mut machine = machine(threads, store).grouped(grouping);
        let step = machine.session.compile(program).expect("the plan compiles");
        outcomes.push(machine.run(&step, &inputs).outcome());
    }
    is_right(case, &outcomes[0])?;
    is_right(case, &outcomes[3])?;
    let bits = |outcome: &Outcome| {
        let values = outcome.taps.iter().map(|(.., values)| values).chain(&outcome.states);
        values.flatten().map(|v| v.to_bits()).collect::<Vec<u64>>()
    };
    let same = |a: usize, b: usize| bits(&outcomes[a]) == bits(&outcomes[b]);
    if same(0, 1) && same(0, 2) && same(3, 4) { Ok(()) } else { Err("threads change bits".into()) }
}

pub(super) fn properties() -> Vec<Property> {
    vec![
        Property::new("plans_of_segmented_tapes_are_right", 4096, (cuts(), grouping()), |(case, grouping)| {
            plan_is_right(case, grouping).map_err(TestCaseError::fail)
        }),
        Property::new("the_cpu_runs_segmented_tapes", 512, (cuts(), grouping()), |(case, grouping)| {
            cpu_is_right(case, grouping).map_err(TestCaseError::fail)
        }),
    ]
}
