//! A recorded program in which one node is moved by itself, as the gradient rules see it.
//!
//! Equal nodes are merged, so other nodes may read the nodes inside a composition with a rule of its own. The rule
//! answers for its arguments only: so the inside is copied, and the copy computes from the arguments alone.

use crate::{
    NodeId, Program,
    node::Node,
    op::{InputId, Op},
    recorded::{InputDecl, TapDecl},
};
use std::collections::{BTreeSet, HashMap};

/// The input that stands for the node that is moved.
pub(super) const MOVED: &str = "the node that is moved";

/// The inputs of a node that its gradient should flow on to: the inputs that it does flow to, the input of a `Detach`,
/// and the values that a composition with a rule of its own reads besides its arguments.
pub(super) fn answerable(nodes: &[Node], node: &Node) -> Vec<NodeId> {
    match node.op {
        Op::Detach => node.inputs.to_vec(),
        Op::Custom { args, .. } => {
            let inside = inside(nodes, node, args);
            let read = inside.iter().flat_map(|id| &nodes[id.index()].inputs).chain(&node.inputs[args..]);
            let besides = read.filter(|id| !inside.contains(id)).copied();
            node.inputs[..args].iter().copied().chain(besides).collect()
        }
        _ => node.differentiated().to_vec(),
    }
}

/// The nodes between the arguments and the outputs of a composition, with all outputs of each op.
fn inside(nodes: &[Node], custom: &Node, args: usize) -> BTreeSet<NodeId> {
    let (args, outputs) = custom.inputs.split_at(args);
    let (mut open, mut cone) = (outputs.to_vec(), BTreeSet::new());
    while let Some(id) = open.pop() {
        if !args.contains(&id) && cone.insert(id) {
            open.extend(&nodes[id.index()].inputs);
        }
    }
    let mut inside: BTreeSet<NodeId> = BTreeSet::new();
    for id in cone {
        let node = &nodes[id.index()];
        if node.inputs.iter().any(|input| args.contains(input) || inside.contains(input)) {
            let (outputs, out) = node.op.outputs();
            let first = id.0 - out as u32;
            inside.extend((first..first + outputs as u32).map(NodeId));
        }
    }
    inside
}

/// A program that taps the value and reads one node from an input instead.
pub(super) fn moving(program: &Program, moved: NodeId, value: NodeId) -> Program {
    let mut inputs = program.inputs.clone();
    let Node { shape, dtype, scope, site, .. } = program.node(moved).clone();
    let op = Op::Input(InputId(inputs.len() as u32));
    inputs.push(InputDecl { name: MOVED.into(), shape: shape.clone(), dtype, site });
    let mut nodes = vec![Node { op, inputs: [].into(), shape, dtype, scope, site }];
    let mut to: Vec<NodeId> = vec![];
    for (i, node) in program.nodes.iter().enumerate() {
        let read = |id: &NodeId| to[id.index()];
        let inputs: Box<[NodeId]> = match node.op {
            // Gradients go to the original, so the original is read.
            Op::Recomputed => [read(&node.inputs[0])].into(),
            Op::Custom { args, .. } => {
                let mut copies: HashMap<NodeId, NodeId> = HashMap::new();
                for id in inside(&program.nodes, node, args) {
                    let original = program.node(id);
                    let own = |id: &NodeId| copies.get(id).copied().unwrap_or_else(|| read(id));
                    let copy = Node { inputs: original.inputs.iter().map(own).collect(), ..original.clone() };
                    copies.insert(id, push(&mut nodes, copy));
                }
                let outputs = node.inputs[args..].iter().map(|id| copies.get(id).copied().unwrap_or_else(|| read(id)));
                node.inputs[..args].iter().map(read).chain(outputs).collect()
            }
            _ => node.inputs.iter().map(read).collect(),
        };
        let op = if node.op == Op::Recomputed { Op::Detach } else { node.op.clone() };
        let own = push(&mut nodes, Node { op, inputs, ..node.clone() });
        to.push(if i == moved.index() { NodeId(0) } else { own });
    }
    let taps = vec![TapDecl { name: "value".into(), node: to[value.index()], site: program.node(value).site }];
    Program { nodes, inputs, taps, passes: vec![], commits: vec![], ..program.clone() }
}

fn push(nodes: &mut Vec<Node>, node: Node) -> NodeId {
    nodes.push(node);
    NodeId(nodes.len() as u32 - 1)
}
