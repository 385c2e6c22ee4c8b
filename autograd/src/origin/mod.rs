//! The place where a run breaks: the first node whose value is not finite, and what brought it there.

mod flags;
mod growth;
mod probed;
mod ranges;
pub(crate) mod rewriting;

use crate::{
    Array, Site,
    error::Result,
    node::NodeId,
    op::Op,
    program::Program,
    recorded::PassKind,
    session::{Session, Step},
};
use flags::{Flags, Found};
pub use growth::{Grown, Growth, Sizes};
use probed::Answers;
use std::fmt;

/// A part of a training step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The model and its loss.
    Forward,
    /// The reverse sweep.
    Backward,
    /// A gradient pass, by its name.
    Pass(&'static str),
    /// The step of an optimizer, by its name.
    Update(&'static str),
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Forward => f.write_str("the forward pass"),
            Phase::Backward => f.write_str("the backward sweep"),
            Phase::Pass(name) => write!(f, "the pass {name}"),
            Phase::Update(name) => write!(f, "the update of {name}"),
        }
    }
}

/// Elements of a value that are not finite, and the range of those that are.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct ValueRange {
    /// The number of elements.
    pub elements: usize,
    /// The number that are NaN.
    pub nan: usize,
    /// The number that are infinite.
    pub infinite: usize,
    /// The smallest finite one; infinity where none is finite.
    pub low: f64,
    /// The largest finite one; minus infinity where none is finite.
    pub high: f64,
}

impl ValueRange {
    fn of(value: &Array) -> Self {
        let empty = Self { low: f64::INFINITY, high: f64::NEG_INFINITY, ..Self::default() };
        value.to_f64().into_iter().fold(empty, |range, v| Self {
            elements: range.elements + 1,
            nan: range.nan + usize::from(v.is_nan()),
            infinite: range.infinite + usize::from(v.is_infinite()),
            low: if v.is_finite() { range.low.min(v) } else { range.low },
            high: if v.is_finite() { range.high.max(v) } else { range.high },
        })
    }

    /// The number of elements that are not finite.
    pub fn non_finite(&self) -> usize {
        self.nan + self.infinite
    }
}

impl fmt::Display for ValueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        for (count, what) in [(self.nan, "NaN"), (self.infinite, "infinite")] {
            if count > 0 {
                parts.push(format!("{count} of {} {what}", self.elements));
            }
        }
        if self.low <= self.high {
            parts.push(format!("from {:.4e} to {:.4e}", self.low, self.high));
        }
        f.write_str(&parts.join(", "))
    }
}

/// A node in words.
#[derive(Clone, PartialEq, Debug)]
pub struct NodePlace {
    /// The node.
    pub node: NodeId,
    /// The operation with its attributes; of an input or a state, its name.
    pub what: String,
    /// The path of its scope, the parts joined by `/`; empty at the root.
    pub scope: String,
    /// The line that recorded it; of a node of the reverse sweep, the line of what it differentiates.
    pub site: Site,
    /// The part of the step that it belongs to.
    pub phase: Phase,
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.what)?;
        if !self.scope.is_empty() {
            write!(f, " in {}", self.scope)?;
        }
        write!(f, " ({}:{})", self.site.file(), self.site.line())
    }
}

/// The first node of a run whose value is not finite and reaches what the run gives.
#[derive(Clone, PartialEq, Debug)]
pub struct Origin {
    /// The node.
    pub place: NodePlace,
    /// The range of its value.
    pub value: ValueRange,
    /// The parameters that hold what is not finite, by path, where the node is an arena of parameters.
    pub params: Vec<String>,
    /// Its inputs.
    pub operands: Vec<(NodePlace, ValueRange)>,
    /// The nodes from it to what the run gives, each computed from the one before it. The first is the node itself.
    pub chain: Vec<NodePlace>,
    /// The last node of the chain, in words: a tap, a state that is assigned, or a check.
    pub reaches: String,
}

impl Origin {
    /// True if the operation made it from finite operands; else it came with the data, a state or a parameter.
    pub fn is_produced(&self) -> bool {
        !self.operands.is_empty()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, value, params, operands, chain, reaches } = self;
        writeln!(f, "The first value that is not finite, in {}: {place}", place.phase)?;
        writeln!(f, "  its value: {value}")?;
        match (operands.is_empty(), params.is_empty()) {
            (true, true) => writeln!(f, "  the step receives this value; it does not compute it")?,
            (true, false) => writeln!(f, "  the step receives this value: parameters {}", params.join(", "))?,
            (false, _) => {
                for (place, range) in operands {
                    writeln!(f, "  computed from {place}: {range}")?;
                }
            }
        }
        for place in &chain[1..] {
            writeln!(f, "  then {place}")?;
        }
        write!(f, "  and so {reaches}")
    }
}

impl Session {
    /// Runs a step from the states as they are, looks at every value, and finds the first one, in the order of the program,
    /// that is not finite and reaches what the step gives: a tap, a state, or a check of what is finite. `None` if none does.
    /// Nothing is committed, and no other run is affected.
    ///
    /// A value that is meant to be infinite is not blamed: a constant, and what it is masked with until a function makes it
    /// finite again. Neither is one that a [`crate::Tensor::select`] does not take.
    ///
    /// It takes the state of before the run that failed. A step that is skipped leaves that; else see
    /// [`Session::read`] and [`Session::write`]. It takes the time and memory of a run without fused kernels, once, and two
    /// compilations. Ranks call it together.
    ///
    /// ```
    /// # use wgrad::{Array, DType, Session};
    /// # fn look(session: &mut Session) -> Result<(), wgrad::Error> {
    /// let step = session.record(|t| {
    ///     let x = t.input("x", [3], DType::F32);
    ///     t.tap("loss", (x.log() * 2.0).sum());
    /// })?;
    /// let x = Array::new([3], vec![1f32, 0.0, 2.0]);
    /// let origin = session.first_non_finite(&step, &[("x", &x)])?.expect("the logarithm of 0");
    /// assert!(origin.place.what == "log" && origin.is_produced());
    /// assert_eq!((origin.value.infinite, origin.operands[0].1.low), (1, 0.0));
    /// println!("{origin}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::compile`] and [`Session::run`], but for errors of earlier runs, which stay for who asks.
    pub fn first_non_finite(&mut self, step: &Step, inputs: &[(&str, &Array)]) -> Result<Option<Origin>> {
        self.probe(step)?.first_non_finite(self, inputs)
    }

    /// The values of some nodes of a program, computed from the states as they are. Nothing is committed, and no other run is
    /// affected.
    ///
    /// # Errors
    /// As [`Session::compile`] and [`Session::run`], but for errors of earlier runs, which stay for who asks.
    ///
    /// # Panics
    /// If the program has no such node.
    #[track_caller]
    pub fn values(&mut self, program: &Program, nodes: &[NodeId], inputs: &[(&str, &Array)]) -> Result<Vec<Array>> {
        let have = program.nodes().len();
        for node in nodes {
            assert!(node.index() < have, "values: {node} of a program of {have} nodes");
        }
        let showing = self.compile(probed::showing(program, nodes))?;
        Ok(self.run_aside(&showing, inputs)?.iter().map(|(_, value)| value.clone()).collect())
    }

    /// Compiles what [`Session::first_non_finite`] runs, for who asks several times.
    ///
    /// # Errors
    /// As [`Session::compile`].
    pub fn probe(&mut self, step: &Step) -> Result<Probe> {
        let program: &Program = step;
        let (probed, answers) = probed::probed(program);
        Ok(Probe { program: program.clone(), probed: self.compile(probed)?, answers })
    }
}

/// A step whose every value is looked at: see [`Session::first_non_finite`].
pub struct Probe {
    program: Program,
    probed: Step,
    answers: Answers,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("nodes", &self.program.nodes().len()).finish_non_exhaustive()
    }
}

impl Probe {
    /// As [`Session::first_non_finite`].
    ///
    /// # Errors
    /// As that.
    pub fn first_non_finite(&self, session: &mut Session, inputs: &[(&str, &Array)]) -> Result<Option<Origin>> {
        let Some(found) = self.find(session, inputs)? else { return Ok(None) };
        let (program, first) = (&self.program, found.chain[0]);
        let node = program.node(first);
        let mut operands: Vec<NodeId> = vec![];
        for &operand in &node.inputs {
            if !operands.contains(&operand) {
                operands.push(operand);
            }
        }
        let mut values = session.values(program, &[&[first][..], &operands].concat(), inputs)?.into_iter();
        let value = values.next().expect("the first of them");
        let operands = operands.iter().zip(values).map(|(id, value)| (program.place(*id), ValueRange::of(&value)));
        Ok(Some(Origin {
            place: program.place(first),
            value: ValueRange::of(&value),
            params: params(program, &node.op, &value),
            operands: operands.collect(),
            chain: found.chain.iter().map(|id| program.place(*id)).collect(),
            reaches: found.reaches,
        }))
    }

    /// The chain of [`Origin::chain`] alone, by one run; empty where there is none.
    ///
    /// # Errors
    /// As [`Session::first_non_finite`].
    pub fn chain(&self, session: &mut Session, inputs: &[(&str, &Array)]) -> Result<Vec<NodeId>> {
        Ok(self.find(session, inputs)?.map_or(vec![], |found| found.chain))
    }

    fn find(&self, session: &mut Session, inputs: &[(&str, &Array)]) -> Result<Option<Found>> {
        let taps = session.run_aside(&self.probed, inputs)?;
        Ok(Flags::read(&self.program, &self.answers, &taps).first(&self.program))
    }
}

/// The paths of parameters that hold elements which are not finite, where the value is that of an arena.
fn params(program: &Program, op: &Op, value: &Array) -> Vec<String> {
    let (Op::State(state), layout) = (op, program.layout()) else { return vec![] };
    if !layout.is_arena(*state) {
        return vec![];
    }
    let values = value.to_f64();
    let bad = |start: usize, len: usize| values[start..start + len].iter().any(|v| !v.is_finite());
    let of = layout.params().filter(|(_, decl)| decl.arena == *state && bad(decl.offset, decl.shape.numel()));
    of.map(|(_, decl)| decl.path.clone()).collect()
}

impl Program {
    /// A node in words.
    ///
    /// # Panics
    /// If the program has no such node.
    #[track_caller]
    pub fn place(&self, id: NodeId) -> NodePlace {
        let node = self.node(id);
        let name = match &node.op {
            Op::Input(input) => format!("input {:?}", self.inputs()[input.0 as usize].name),
            Op::State(state) => format!("state {:?}", self.layout().state(*state).name),
            op => format!("{}{}", op.name(), op.attributes(false)),
        };
        let parts = self.scope_path(node.scope).into_iter();
        let scope: Vec<String> = parts
            .map(|scope| scope.turn.map_or(scope.name.clone(), |turn| format!("{}[{turn}]", scope.name)))
            .collect();
        let phase = match self.passes().iter().rev().find(|pass| pass.nodes.contains(&id.0)) {
            Some(pass) if pass.kind == PassKind::Step => Phase::Update(pass.name),
            Some(pass) => Phase::Pass(pass.name),
            None if scope.iter().any(|part| part == "backward") => Phase::Backward,
            None => Phase::Forward,
        };
        NodePlace { node: id, what: name, scope: scope.join("/"), site: node.site, phase }
    }
}
