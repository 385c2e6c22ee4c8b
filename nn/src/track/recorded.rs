//! A recorded step to look at: its nodes with the ranges of their values, and the times of its kernels.

use super::json::number;
use crate::train::flight::settled;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use wgrad::{Array, NodeId, Program, Session, ValueRange, op::Op, plan::Cost};

/// A recorded step, with its measurements.
#[derive(Clone, Debug)]
pub struct Recorded {
    program: Program,
    moment: String,
    ranges: Vec<Option<ValueRange>>,
    chain: Vec<NodeId>,
    costs: Vec<Cost>,
}

/// The number of runs whose median is a kernel's time, and the number of warm-up runs before them.
const RUNS: usize = 5;
const WARM: usize = 2;

/// The most nodes that are shown one by one.
const MOST: usize = 20_000;

impl Recorded {
    /// A step without measurements.
    pub fn new(program: &Program) -> Self {
        Self { program: program.clone(), moment: String::new(), ranges: vec![], chain: vec![], costs: vec![] }
    }

    /// Adds the ranges of the step's values, computed from the present states of a session. `moment` names the moment
    /// of these states in words, such as `after the last step`.
    ///
    /// ```
    /// # use wgrad::{Array, Session, Step};
    /// # use wgrad_nn::track::{Recorded, Tracker};
    /// # fn look(tracker: &mut Tracker, session: &mut Session, step: &Step, x: &Array) -> Result<(), wgrad::Error> {
    /// let (inputs, moment) = ([("x", x)], "after the last step");
    /// let recorded = Recorded::new(step).with_ranges(session, &inputs, moment)?.with_times(session, &inputs)?;
    /// tracker.tape(0, recorded);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::ranges`].
    pub fn with_ranges(
        mut self,
        session: &mut Session,
        inputs: &[(&str, &Array)],
        moment: &str,
    ) -> wgrad::Result<Self> {
        self.ranges = session.ranges(&self.program, inputs)?;
        self.moment = moment.into();
        Ok(self)
    }

    /// Adds the time of each kernel, the median of 5 runs, if the device measures times. The states stay as they were.
    ///
    /// # Errors
    /// As [`Session::compile`] and [`Session::run`].
    pub fn with_times(mut self, session: &mut Session, inputs: &[(&str, &Array)]) -> wgrad::Result<Self> {
        self.costs = costs(session, &self.program, inputs)?;
        Ok(self)
    }

    /// Adds the chain of nodes from a cause to the loss.
    #[must_use]
    pub fn with_chain(mut self, chain: impl IntoIterator<Item = NodeId>) -> Self {
        self.chain = chain.into_iter().collect();
        self
    }

    /// The step as JSON, without its printed text. A node is
    /// `[id, formula, type and shape, line, scope, phase, operands, range]`, with scope and phase by their places in
    /// the lists; a range is null, or `[low, high, NaN, infinite]`, with null for an end if no element is finite. A
    /// kernel is `[kernel, over, computes, recorded in, times, milliseconds]`.
    pub(super) fn json(&self) -> Map<String, Value> {
        let Self { program, moment, ranges, chain, costs } = self;
        let live = program.live();
        let used = live.iter().filter(|live| **live).count();
        let (mut scopes, mut phases) = (Names::default(), Names::default());
        let formulas = program.formulas();
        let mut node = |id: NodeId| -> Value {
            let (node, place) = (program.node(id), program.place(id));
            let formula = match node.op {
                Op::Input(_) | Op::State(_) => place.what.clone(),
                Op::Const(bits) => format!("const {}", f64::from_bits(bits)),
                _ => formulas[id.index()].clone(),
            };
            let operands: Vec<usize> = node.inputs.iter().map(|id| id.index()).collect();
            let range = ranges.get(id.index()).copied().flatten().map(|range| {
                let end = |value: f64| if value.is_finite() { number(value) } else { Value::Null };
                json!([end(range.low), end(range.high), range.nan, range.infinite])
            });
            json!([
                id.index(),
                formula,
                format!("{}{}", node.dtype, node.shape),
                format!("{}:{}", node.site.file(), node.site.line()),
                scopes.place(&place.scope),
                phases.place(&place.phase.to_string()),
                operands,
                range,
            ])
        };
        let shown =
            if used <= MOST { program.ids().filter(|id| live[id.index()]).map(&mut node).collect() } else { vec![] };
        let ms = |cost: &Cost| number(1e3 * cost.seconds);
        let kernel = |cost: &Cost| -> Value {
            json!([cost.kernel, cost.over, cost.computes, cost.recorded_in, cost.kernels.len(), ms(cost)])
        };
        let mut all = Map::new();
        let mut put = |name: &str, value: Value| _ = all.insert(name.into(), value);
        put("moment", moment.clone().into());
        put("used", used.into());
        put("nodes", shown.into());
        put("scopes", scopes.all.into());
        put("phases", phases.all.into());
        put("chain", chain.iter().map(|id| id.index()).collect());
        put("kernels", costs.iter().map(kernel).collect());
        all
    }
}

/// Texts, each once.
#[derive(Default)]
struct Names {
    all: Vec<String>,
    places: HashMap<String, usize>,
}

impl Names {
    fn place(&mut self, name: &str) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        self.all.push(name.into());
        self.places.insert(name.into(), self.all.len() - 1);
        self.all.len() - 1
    }
}

/// The time of a step by kernels; empty if the device does not measure it.
fn costs(session: &mut Session, program: &Program, inputs: &[(&str, &Array)]) -> wgrad::Result<Vec<Cost>> {
    let step = session.compile(program.clone())?;
    if !session.watch(&step)? {
        return Ok(vec![]);
    }
    let present = session.snapshot()?;
    let runs = session.rewound(&present, |session| {
        for _ in 0..WARM + RUNS {
            session.run(&step, inputs)?;
            // A broken step may report an error in each run, which is ignored.
            settled(session)?;
        }
        session.kernel_times(&step)
    })?;
    let (program, plan) = session.plan(&step);
    let median = |kernel: usize| {
        let mut times: Vec<f64> = runs[WARM..].iter().map(|seconds| seconds[kernel]).collect();
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let seconds: Vec<f64> = (0..plan.kernels.len()).map(median).collect();
    Ok(plan.costs(&program, &seconds))
}
