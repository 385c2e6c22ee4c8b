//! A program under construction, from another whose values it computes too.

use crate::{
    DType, Shape, Site,
    lints::Drawing,
    node::{Node, NodeId},
    op::{Op, Place},
    program::Program,
    recorded::TapDecl,
};
use std::sync::Arc;

/// Scalars that are shown together.
pub(super) const TOGETHER: usize = 64;

/// The nodes so far.
#[derive(Default)]
pub(super) struct Rewriting {
    pub nodes: Vec<Node>,
}

impl Program {
    /// The program that shows the same and changes nothing: no state is assigned, and nothing that is wrong is told of.
    pub fn without_commits(self) -> Self {
        let taps = self.taps.clone();
        aside(self, taps)
    }
}

/// A program that leaves no trace but its taps.
pub(crate) fn aside(program: Program, taps: Vec<TapDecl>) -> Program {
    let drawing = Drawing::default();
    let (commits, passes, alarms, lints, events, shared) = (vec![], vec![], vec![], vec![], vec![], vec![]);
    Program { commits, taps, passes, alarms, lints, drawing, events, shared, unreached: vec![], ..program }
}

impl Rewriting {
    /// Copies the nodes of a program. `after` may record more behind each of them: it is told of the node and of its name here,
    /// which all names together are the result.
    pub fn copy(&mut self, program: &Program, after: &mut dyn FnMut(&mut Self, NodeId, NodeId)) -> Vec<NodeId> {
        let mut names: Vec<NodeId> = vec![];
        while names.len() < program.nodes.len() {
            // The outputs of an operation follow one another.
            let start = names.len();
            for node in &program.nodes[start..start + program.nodes[start].op.outputs().0] {
                let inputs = node.inputs.iter().map(|id| names[id.index()]).collect();
                self.nodes.push(Node { inputs, ..node.clone() });
                names.push(NodeId(self.nodes.len() as u32 - 1));
            }
            (start..names.len()).for_each(|at| after(self, NodeId(at as u32), names[at]));
        }
        names
    }

    /// Records an operation in the scope and at the line of another.
    pub fn push(&mut self, op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType, like: &Node) -> NodeId {
        let (scope, site) = (like.scope, like.site);
        self.nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// A number in each element of a shape.
    pub fn filled(&mut self, value: f64, shape: &Shape, dtype: DType, like: &Node) -> NodeId {
        let one = self.push(Op::Const(value.to_bits()), &[], &Shape::scalar(), dtype, like);
        let ones = Shape::from(vec![1; shape.rank()]);
        let one = self.push(Op::Reshape(ones.clone()), &[one], &ones, dtype, like);
        self.push(Op::Expand(shape.clone()), &[one], shape, dtype, like)
    }

    /// A tap of scalars of f32, as one vector.
    pub fn together(&mut self, name: String, scalars: &[NodeId], program: &Program) -> TapDecl {
        let (like, len) = (program.nodes[0].clone(), scalars.len());
        let places: Arc<[Place]> = (0..len).map(|start| Place { start, step: 1 }).collect();
        let mut part = |id: &NodeId| self.push(Op::Reshape([1].into()), &[*id], &[1].into(), DType::F32, &like);
        let parts: Vec<NodeId> = scalars.iter().map(&mut part).collect();
        let node = self.push(Op::Assemble { axis: 0, len, places }, &parts, &[len].into(), DType::F32, &like);
        TapDecl { name, node, site: program.nodes.first().map_or(Site::caller(), |node| node.site) }
    }
}
