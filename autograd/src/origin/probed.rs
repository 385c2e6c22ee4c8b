//! A program that tells of each of its values whether it is finite, and commits nothing.

use crate::{
    DType, Shape, Site,
    lints::Drawing,
    op::{Binary, Op, Place, Reduce, Unary},
    program::{Program, TapDecl},
    tape::{Node, NodeId},
};
use std::sync::Arc;

/// What is asked of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Question {
    /// Whether the value of a node has an element that is not finite.
    Value(NodeId),
    /// Whether what a selection takes from one of its branches has.
    Taken(NodeId, usize),
}

/// Where the answers of a probed program are.
pub(super) struct Answers {
    /// What each element of each vector of answers is about: -1 for finite, 0 for not.
    pub asked: Vec<Vec<Question>>,
    /// The values that are shown whole, since they may hold these infinities by design.
    pub whole: Vec<(NodeId, Meant)>,
}

/// How many answers are shown together.
const TOGETHER: usize = 64;

/// A program under construction.
struct Probing {
    nodes: Vec<Node>,
    /// The scalars that answer, f32.
    answers: Vec<(Question, NodeId)>,
}

/// The same values, each followed by what tells whether it is finite, in place of commits and taps.
pub(super) fn probed(program: &Program) -> (Program, Answers) {
    let (live, meant) = (program.live(), by_design(program));
    let mut probing = Probing { nodes: vec![], answers: vec![] };
    let (mut names, mut whole): (Vec<NodeId>, Vec<(NodeId, Meant)>) = (vec![], vec![]);
    while names.len() < program.nodes.len() {
        // The outputs of an operation follow one another.
        let start = names.len();
        for node in &program.nodes[start..start + program.nodes[start].op.outputs().0] {
            let inputs = node.inputs.iter().map(|id| names[id.index()]).collect();
            probing.nodes.push(Node { inputs, ..node.clone() });
            names.push(NodeId(probing.nodes.len() as u32 - 1));
        }
        for i in start..names.len() {
            let (id, node) = (NodeId(i as u32), &program.nodes[i]);
            if !live[i] || !node.dtype.is_float() || node.shape.numel() == 0 || matches!(node.op, Op::Const(_)) {
                continue;
            }
            if meant[i] != [false; 2] {
                whole.push((id, meant[i]));
            } else {
                probing.ask(Question::Value(id), names[i], node);
            }
            if node.op == Op::Select {
                let zero = probing.zeros(node);
                let [condition, a, b] = [0, 1, 2].map(|input| names[node.inputs[input].index()]);
                for (branch, of) in [(1, [condition, a, zero]), (2, [condition, zero, b])] {
                    let taken = probing.push(Op::Select, &of, &node.shape, node.dtype, node);
                    probing.ask(Question::Taken(id, branch), taken, node);
                }
            }
        }
    }
    let mut taps = vec![];
    let site = program.nodes.first().map_or(Site::caller(), |node| node.site);
    let mut asked = vec![];
    let answers = std::mem::take(&mut probing.answers);
    for (at, together) in answers.chunks(TOGETHER).enumerate() {
        let places: Arc<[Place]> = (0..together.len()).map(|start| Place { start, step: 1 }).collect();
        let like = program.nodes[0].clone();
        let parts: Vec<NodeId> = together
            .iter()
            .map(|(_, id)| probing.push(Op::Reshape([1].into()), &[*id], &[1].into(), DType::F32, &like))
            .collect();
        let len = together.len();
        let node = probing.push(Op::Assemble { axis: 0, len, places }, &parts, &[len].into(), DType::F32, &like);
        taps.push(TapDecl { name: format!("origin/{at}"), node, site });
        asked.push(together.iter().map(|(question, _)| *question).collect());
    }
    let shown = whole.iter().map(|(id, _)| (format!("origin/whole/{id}"), names[id.index()]));
    taps.extend(shown.map(|(name, node)| TapDecl { name, node, site }));
    let probed = aside(Program { nodes: probing.nodes, ..program.clone() }, taps);
    (probed, Answers { asked, whole })
}

/// The same program that shows these values and nothing else.
pub(super) fn showing(program: &Program, of: &[NodeId]) -> Program {
    let tap = |(at, id): (usize, &NodeId)| TapDecl {
        name: format!("origin/value/{at}"),
        node: *id,
        site: program.node(*id).site,
    };
    aside(program.clone(), of.iter().enumerate().map(tap).collect())
}

/// A program that leaves no trace but its taps.
pub(crate) fn aside(program: Program, taps: Vec<TapDecl>) -> Program {
    let drawing = Drawing::default();
    let (commits, passes, alarms, lints, events, shared) = (vec![], vec![], vec![], vec![], vec![], vec![]);
    Program { commits, taps, passes, alarms, lints, drawing, events, shared, unreached: vec![], ..program }
}

impl Probing {
    fn push(&mut self, op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType, like: &Node) -> NodeId {
        let (scope, site) = (like.scope, like.site);
        self.nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Zeros of a node's shape and type.
    fn zeros(&mut self, like: &Node) -> NodeId {
        let zero = self.push(Op::Const(0f64.to_bits()), &[], &Shape::scalar(), like.dtype, like);
        let ones = Shape::from(vec![1; like.shape.rank()]);
        let zero = self.push(Op::Reshape(ones.clone()), &[zero], &ones, like.dtype, like);
        self.push(Op::Expand(like.shape.clone()), &[zero], &like.shape, like.dtype, like)
    }

    /// Records the answer: the largest of -1 where an element is finite and 0 where it is not.
    fn ask(&mut self, question: Question, value: NodeId, like: &Node) {
        let shape = &like.shape;
        let finite = self.push(Op::Unary(Unary::IsFinite), &[value], shape, DType::Bool, like);
        let finite = self.push(Op::Cast(DType::F32), &[finite], shape, DType::F32, like);
        let mut answer = self.push(Op::Unary(Unary::Neg), &[finite], shape, DType::F32, like);
        if shape.rank() > 0 {
            let all = (0..shape.rank()).collect();
            answer = self.push(Op::Reduce(Reduce::Max, all), &[answer], &Shape::scalar(), DType::F32, like);
        }
        self.answers.push((question, answer));
    }
}

/// Infinities that are meant: whether negative ones, and whether positive ones.
pub(super) type Meant = [bool; 2];

/// Which infinities each node may hold that are meant: constants, and what is computed from them until a function makes them
/// finite.
fn by_design(program: &Program) -> Vec<Meant> {
    const NONE: Meant = [false; 2];
    let any = |[negative, positive]: Meant| negative || positive;
    let of = |bits: u64| [f64::NEG_INFINITY, f64::INFINITY].map(|infinite| f64::from_bits(bits) == infinite);
    let both = |a: Meant, b: Meant| [a[0] || b[0], a[1] || b[1]];
    let turned = |[negative, positive]: Meant| [positive, negative];
    let mut meant: Vec<Meant> = vec![];
    for node in &program.nodes {
        let input = |at: usize| meant[node.inputs[at].index()];
        let all = || node.inputs.iter().fold(NONE, |all, id| both(all, meant[id.index()]));
        meant.push(match &node.op {
            Op::Const(bits) => of(*bits),
            Op::Table(bits) => bits.iter().fold(NONE, |all, bits| both(all, of(*bits))),
            // What maps infinities to numbers, or takes the largest of many.
            Op::Unary(
                Unary::Exp
                | Unary::Expm1
                | Unary::Tanh
                | Unary::Erf
                | Unary::Sigmoid
                | Unary::NormalCdf
                | Unary::NormalPdf
                | Unary::Recip
                | Unary::IsFinite,
            )
            | Op::Binary(Binary::Max | Binary::Lt | Binary::Eq)
            | Op::Reduce(..)
            | Op::ArgMax(_) => NONE,
            Op::Unary(Unary::Neg) => turned(input(0)),
            Op::Binary(Binary::Sub) => both(input(0), turned(input(1))),
            // Most often by a constant, whose sign decides.
            Op::Binary(Binary::Mul | Binary::Div) => match constant(program, node.inputs[1]) {
                Some(factor) if factor > 0.0 => input(0),
                Some(factor) if factor < 0.0 => turned(input(0)),
                _ => [any(all()); 2],
            },
            Op::Binary(Binary::Pow) | Op::MatMul { .. } | Op::Unary(_) => [any(all()); 2],
            // The value is one of its inputs.
            Op::Custom { args, out, .. } => input(args + out),
            Op::Recomputed => input(1),
            Op::Hook(_) => input(0),
            _ => all(),
        });
    }
    meant
}

/// The number that a constant repeats.
fn constant(program: &Program, mut id: NodeId) -> Option<f64> {
    loop {
        let node = program.node(id);
        match &node.op {
            Op::Const(bits) => return Some(f64::from_bits(*bits)),
            Op::Reshape(_) | Op::Expand(_) | Op::Cast(_) => id = node.inputs[0],
            _ => return None,
        }
    }
}
