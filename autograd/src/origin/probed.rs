//! A program that tells of each of its values whether it is finite, and commits nothing.

use super::rewriting::{Rewriting, TOGETHER, aside};
use crate::{
    DType, Shape, Site,
    node::{Node, NodeId},
    op::{Binary, Op, Reduce, Unary},
    program::Program,
    recorded::TapDecl,
};

/// A question about a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Question {
    /// True if the value of a node has an element that is not finite.
    Value(NodeId),
    /// True if what a selection takes from one of its branches has.
    Taken(NodeId, usize),
}

/// The place where the answers of a probed program are.
pub(super) struct Answers {
    /// The meaning of each element of each vector of answers: -1 for finite, 0 for not.
    pub asked: Vec<Vec<Question>>,
    /// The values that are shown whole, since they may hold these infinities by design.
    pub whole: Vec<(NodeId, Meant)>,
}

/// The same values, each followed by what tells whether it is finite, in place of commits and taps.
pub(super) fn probed(program: &Program) -> (Program, Answers) {
    let (live, meant) = (program.live(), by_design(program));
    let (mut probing, mut answers, mut whole) = (Rewriting::default(), vec![], vec![]);
    let names = probing.copy(program, &mut |probing, id, name| {
        let node = program.node(id);
        let is_asked = live[id.index()] && node.dtype.is_float() && node.shape.numel() > 0;
        if !is_asked || matches!(node.op, Op::Const(_)) {
            return;
        }
        if meant[id.index()] != [false; 2] {
            whole.push((id, meant[id.index()]));
        } else {
            answers.push((Question::Value(id), probing.ask(name, node)));
        }
        if node.op == Op::Select {
            let zero = probing.filled(0.0, &node.shape, node.dtype, node);
            let [condition, a, b] =
                <[NodeId; 3]>::try_from(&*probing.nodes[name.index()].inputs).expect("it has three");
            for (branch, of) in [(1, [condition, a, zero]), (2, [condition, zero, b])] {
                let taken = probing.push(Op::Select, &of, &node.shape, node.dtype, node);
                answers.push((Question::Taken(id, branch), probing.ask(taken, node)));
            }
        }
    });
    let (mut taps, mut asked) = (vec![], vec![]);
    for (at, together) in answers.chunks(TOGETHER).enumerate() {
        let scalars: Vec<NodeId> = together.iter().map(|(_, id)| *id).collect();
        taps.push(probing.together(format!("origin/{at}"), &scalars, program));
        asked.push(together.iter().map(|(question, _)| *question).collect());
    }
    let site = program.nodes.first().map_or(Site::caller(), |node| node.site);
    let shown = whole.iter().map(|(id, _): &(NodeId, Meant)| (format!("origin/whole/{id}"), names[id.index()]));
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

impl Rewriting {
    /// Records the answer: the largest of -1 where an element is finite and 0 where it is not.
    fn ask(&mut self, value: NodeId, like: &Node) -> NodeId {
        let shape = &like.shape;
        let finite = self.push(Op::Unary(Unary::IsFinite), &[value], shape, DType::Bool, like);
        let finite = self.push(Op::Cast(DType::F32), &[finite], shape, DType::F32, like);
        let mut answer = self.push(Op::Unary(Unary::Neg), &[finite], shape, DType::F32, like);
        if shape.rank() > 0 {
            let all = (0..shape.rank()).collect();
            answer = self.push(Op::Reduce(Reduce::Max, all), &[answer], &Shape::scalar(), DType::F32, like);
        }
        answer
    }
}

/// Infinities that are meant: whether negative ones, and whether positive ones.
pub(super) type Meant = [bool; 2];

/// The infinities that each node may hold that are meant: constants, and what is computed from them until a function makes them
/// finite.
fn by_design(program: &Program) -> Vec<Meant> {
    const NONE: Meant = [false; 2];
    let any = |[negative, positive]: Meant| negative || positive;
    let of = |bits: u64| [f64::NEG_INFINITY, f64::INFINITY].map(|infinite| f64::from_bits(bits) == infinite);
    let both = |a: Meant, b: Meant| [a[0] || b[0], a[1] || b[1]];
    let negated = |[negative, positive]: Meant| [positive, negative];
    let mut meant: Vec<Meant> = vec![];
    for node in &program.nodes {
        let input = |at: usize| meant[node.inputs[at].index()];
        let all = || node.inputs.iter().fold(NONE, |all, id| both(all, meant[id.index()]));
        meant.push(match &node.op {
            Op::Const(bits) => of(*bits),
            Op::Table(bits) => bits.iter().fold(NONE, |all, bits| both(all, of(*bits))),
            Op::Unary(unary) if unary.ends_infinity() => NONE,
            // These compare, or take the largest of many.
            Op::Binary(Binary::Max | Binary::Lt | Binary::Eq) | Op::Reduce(..) | Op::ArgMax(_) | Op::ArgSort(..) => {
                NONE
            }
            Op::Unary(Unary::Neg) => negated(input(0)),
            Op::Binary(Binary::Sub) => both(input(0), negated(input(1))),
            // Most often by a constant, whose sign decides.
            Op::Binary(Binary::Mul | Binary::Div) => match constant(program, node.inputs[1]) {
                Some(factor) if factor > 0.0 => input(0),
                Some(factor) if factor < 0.0 => negated(input(0)),
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
