//! The place where two devices part: the first operation of a program that they compute differently.

use crate::{
    Array, DType, NodePlace,
    error::Result,
    node::{Node, NodeId},
    op::{Binary, InputId, Op, Reduce},
    origin::rewriting::aside,
    program::Program,
    recorded::{InputDecl, TapDecl},
    session::Session,
};
use std::fmt;

/// Computes the values that a program taps, in the order of the taps, as f64: another device, or a reference.
pub type Judge<'a> = dyn FnMut(&Program, &[(&str, &Array)]) -> Result<Vec<Vec<f64>>> + 'a;

/// The kind of a parting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartingOf {
    /// An operation by itself, on the same operands.
    Operation,
    /// The whole program on the device, although each operation is right by itself: the plan of kernels is to blame.
    Plan,
}

/// The first node on which a device and a judge part.
#[derive(Clone, PartialEq, Debug)]
pub struct Parting {
    /// The node.
    pub place: NodePlace,
    /// The kind: the node by itself, or the plan.
    pub of: PartingOf,
    /// The position of the worst element, in row-major order.
    pub element: usize,
    /// That element on the device.
    pub have: f64,
    /// That element as it should be.
    pub want: f64,
    /// The number of elements that differ.
    pub count: usize,
    /// The number of elements.
    pub elements: usize,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, of, element, have, want, count, elements } = self;
        let what = match of {
            PartingOf::Operation => "The first operation that the device computes differently",
            PartingOf::Plan => {
                "Each operation is right by itself, but the planned program is not; the first difference is at"
            }
        };
        write!(
            f,
            "{what}: {place}\n  {count} of {elements} elements; element {element} is {have:.7e}, and should be {want:.7e}"
        )
    }
}

/// The difference that results may have, as a share of their scale, by rounding and by another order of the formulas.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 4e-3,
        DType::U32 | DType::I32 | DType::Bool => 0.0,
    }
}

/// Results below this are too small to be told apart: some devices have no subnormal numbers.
const SMALLEST: f64 = 1e-37;

impl Session {
    /// Runs each operation of a program by itself on this device and by a judge, on the operands that it has in a run
    /// from the present states, and finds the first one that differs by more than rounding. If none does, compares the
    /// results of the whole program with its operations one by one. `None` if all agree. No state changes.
    ///
    /// A judge that is a reference tells a fault of the device from one of the model: a model with a non-finite loss
    /// computes the same on both.
    ///
    /// # Errors
    /// As [`Session::compile`] and [`Session::run`]; as the judge.
    pub fn parting(
        &mut self,
        program: &Program,
        inputs: &[(&str, &Array)],
        judge: &mut Judge<'_>,
    ) -> Result<Option<Parting>> {
        let all: Vec<NodeId> = (0..program.nodes().len() as u32).map(NodeId).collect();
        let values = self.values(program, &all, inputs)?;
        let apart = Apart::of(program);
        let given = |of: &dyn Fn(&Array) -> Array| -> Vec<(String, Array)> {
            apart.operands.iter().map(|id| (operand(*id), of(&values[id.index()]))).collect()
        };
        fn named(given: &[(String, Array)]) -> Vec<(&str, &Array)> {
            given.iter().map(|(name, array)| (name.as_str(), array)).collect()
        }
        let (plain, sizes) = (given(&Array::clone), given(&magnitudes));
        let step = self.compile(apart.program.clone())?;
        let have = self.run_aside(&step, &named(&plain))?;
        let want = judge(&apart.program, &named(&plain))?;
        let scales = judge(&apart.sums(program), &named(&sizes))?;
        let mut scales = scales.iter();
        for ((id, have), want) in apart.results.iter().zip(have.iter()).zip(&want) {
            let node = program.node(*id);
            let scale = if is_sum(&node.op) { scales.next() } else { None };
            let (mut have, is_padded) = (have.1.to_f64(), is_padded(&node.op));
            if is_padded && !node.inputs.iter().all(|input| is_finite(&values[input.index()])) {
                // A device may multiply a non-finite value by the zeros of a padding, which gives NaN; another leaves
                // these products out.
                let spread = have.iter_mut().zip(want).filter(|(have, _)| !have.is_finite());
                spread.for_each(|(have, want)| *have = *want);
            }
            let differs = difference(node, &have, want, scale.map(Vec::as_slice));
            if let Some(worst) = differs {
                return Ok(Some(worst.at(program, *id, PartingOf::Operation)));
            }
        }
        self.plan_parts(program, inputs, &values)
    }

    /// Compares the results of a run with the values of its nodes one by one.
    fn plan_parts(
        &mut self,
        program: &Program,
        inputs: &[(&str, &Array)],
        values: &[Array],
    ) -> Result<Option<Parting>> {
        let present = self.snapshot()?;
        let given = self.rewound(&present, |session| {
            let step = session.compile(program.clone())?;
            let taps = session.run_now(&step, inputs);
            let taps = match taps {
                // An alarm that the run has raised does not matter here.
                Err(crate::Error::Late { .. }) => session.taps().unwrap_or_default().pop(),
                taps => Some(taps?),
            };
            let mut given: Vec<(NodeId, Array)> = vec![];
            for tap in program.taps() {
                let value = taps.as_ref().and_then(|taps| taps.get(&tap.name));
                given.extend(value.map(|value| (tap.node, value.clone())));
            }
            for (state, node) in program.commits() {
                given.push((*node, session.read(*state)?));
            }
            Ok::<_, crate::Error>(given)
        })?;
        let mut given = given;
        given.sort_by_key(|(node, _)| *node);
        for (id, have) in given {
            let want = values[id.index()].to_f64();
            let largest = want.iter().filter(|v| v.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
            // Errors of the nodes before it add up.
            let scale = vec![10.0 * largest; want.len()];
            if let Some(worst) = difference(program.node(id), &have.to_f64(), &want, Some(&scale)) {
                return Ok(Some(worst.at(program, id, PartingOf::Plan)));
            }
        }
        Ok(None)
    }
}

/// A program in which each operation stands alone, and reads inputs.
struct Apart {
    program: Program,
    /// The nodes of the other program that are inputs of this one.
    operands: Vec<NodeId>,
    /// The nodes whose results are tapped, in the order of taps.
    results: Vec<NodeId>,
}

/// The name of the input that stands for a node.
fn operand(id: NodeId) -> String {
    format!("parting/{id}")
}

/// True of an operation that computes something from operands.
fn computes(op: &Op) -> bool {
    let is_leaf = matches!(op, Op::Const(_) | Op::Input(_) | Op::State(_) | Op::Table(_) | Op::Iota(_));
    let is_same = matches!(op, Op::Detach | Op::Barrier(_) | Op::Recomputed | Op::Hook(_) | Op::Custom { .. });
    !is_leaf && !is_same
}

/// True of an operation that adds up products or elements: the same over their magnitudes is the measure of its
/// rounding.
fn is_sum(op: &Op) -> bool {
    matches!(
        op,
        Op::Binary(Binary::Add | Binary::Sub)
            | Op::Reduce(Reduce::Sum, _)
            | Op::SegmentReduce(Reduce::Sum, _)
            | Op::CumSum { .. }
            | Op::ScatterAdd { .. }
            | Op::MatMul { .. }
            | Op::Conv2d(_)
            | Op::ConvInputGrad(..)
            | Op::ConvWeightGrad(..)
    )
}

/// True of a sum that zeros around an operand may be part of.
fn is_padded(op: &Op) -> bool {
    matches!(op, Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..))
}

fn is_finite(value: &Array) -> bool {
    value.to_f64().iter().all(|value| value.is_finite())
}

impl Apart {
    fn of(program: &Program) -> Self {
        let included = |id: &NodeId| {
            let node = program.node(*id);
            // The results of one operation stay together.
            computes(&node.op) && (node.shape.numel() > 0 || node.op.outputs().0 > 1)
        };
        let results: Vec<NodeId> = (0..program.nodes().len() as u32).map(NodeId).filter(included).collect();
        Self::with(program, results, |op| op.clone())
    }

    /// The sums alone, for operands that are magnitudes: subtractions become additions.
    fn sums(&self, program: &Program) -> Program {
        let of = self.results.iter().copied().filter(|id| is_sum(&program.node(*id).op)).collect();
        let added = |op: &Op| match op {
            Op::Binary(Binary::Sub) => Op::Binary(Binary::Add),
            op => op.clone(),
        };
        let sums = Self::with(program, of, added);
        // The same inputs, though it may not read all of them.
        Program { inputs: self.program.inputs.clone(), ..Self::renamed(sums, &self.operands) }
    }

    fn with(program: &Program, results: Vec<NodeId>, op: impl Fn(&Op) -> Op) -> Self {
        let mut operands: Vec<NodeId> =
            results.iter().flat_map(|id| program.node(*id).inputs.iter().copied()).collect();
        operands.sort_unstable();
        operands.dedup();
        let position = |id: &NodeId| NodeId(operands.binary_search(id).expect("collected above") as u32);
        let decl = |id: &NodeId| {
            let node = program.node(*id);
            InputDecl { name: operand(*id), shape: node.shape.clone(), dtype: node.dtype, site: node.site }
        };
        let leaf = |(at, id): (usize, &NodeId)| Node {
            op: Op::Input(InputId(at as u32)),
            inputs: [].into(),
            ..program.node(*id).clone()
        };
        let mut nodes: Vec<Node> = operands.iter().enumerate().map(leaf).collect();
        let mut taps = vec![];
        for id in &results {
            let node = program.node(*id);
            let inputs = node.inputs.iter().map(position).collect();
            let name = format!("parting/result/{id}");
            taps.push(TapDecl { name, node: NodeId(nodes.len() as u32), site: node.site });
            nodes.push(Node { op: op(&node.op), inputs, ..node.clone() });
        }
        let inputs = operands.iter().map(decl).collect();
        let program = Program { nodes, inputs, ..aside(program.clone(), taps) };
        Self { program, operands, results }
    }

    /// The program of some of the operands, which reads them at their positions among all operands.
    fn renamed(own: Self, all: &[NodeId]) -> Program {
        let mut program = own.program;
        for (node, id) in program.nodes.iter_mut().zip(&own.operands) {
            node.op = Op::Input(InputId(all.binary_search(id).expect("they are among them") as u32));
        }
        program
    }
}

/// The magnitudes of floats; other types as they are.
fn magnitudes(value: &Array) -> Array {
    if !value.dtype().is_float() {
        return value.clone();
    }
    let sizes: Vec<f64> = value.to_f64().into_iter().map(f64::abs).collect();
    Array::new(value.shape().clone(), crate::Data::from_f64(value.dtype(), &sizes))
}

/// The worst element of a result.
struct Worst {
    element: usize,
    have: f64,
    want: f64,
    count: usize,
    elements: usize,
}

impl Worst {
    fn at(self, program: &Program, id: NodeId, of: PartingOf) -> Parting {
        let Self { element, have, want, count, elements } = self;
        Parting { place: program.place(id), of, element, have, want, count, elements }
    }
}

/// The worst element of a result that is wrong by more than rounding. `scales` has, for each element, the sum of the
/// magnitudes that were added up to it.
fn difference(node: &Node, have: &[f64], want: &[f64], scales: Option<&[f64]>) -> Option<Worst> {
    let share = tolerance(node.dtype);
    let largest = want.iter().filter(|v| v.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
    // Inside a fused operation, sums may cancel unseen.
    let (share, floor) = if node.op.is_fused() { (10.0 * share, largest) } else { (share, 0.0) };
    let range = match node.dtype {
        DType::F16 => 60_000.0,
        DType::F64 => f64::MAX,
        _ => 3e38,
    };
    // Values within a fused operation may be larger than its result.
    let range = if node.op.is_fused() { range * 1e-6 } else { range };
    let mut worst: Option<(f64, usize)> = None;
    let mut count = 0;
    for (at, (have, want)) in have.iter().zip(want).enumerate() {
        let scale = scales.map_or(want.abs(), |scales| scales[at].abs()).max(floor);
        // If terms of a sum leave the range of the type, the order decides whether the sum is finite.
        let (is_finite, is_small) = (have.is_finite() && want.is_finite(), scale < range && want.abs() < range);
        if have == want || (have.is_nan() && want.is_nan()) || !(is_finite || is_small) {
            continue;
        }
        let off = (have - want).abs() / (scale + SMALLEST);
        let allowed = share + if scale < 100.0 * SMALLEST { 1.0 } else { 0.0 };
        if off <= allowed && off.is_finite() {
            continue;
        }
        count += 1;
        if worst.is_none_or(|(known, _)| off > known || off.is_nan()) {
            worst = Some((off, at));
        }
    }
    worst.map(|(_, element)| Worst { element, have: have[element], want: want[element], count, elements: want.len() })
}
