//! Faults at run time: one element of any value of a program replaced by a number that an input gives.

use crate::{
    DType, Program, Shape,
    node::{Node, NodeId},
    op::{Binary, InputId, Op},
    recorded::{InputDecl, Pass, TapDecl},
};

/// The input that holds the row-major index of the element to replace (u32 scalar). An index out of range replaces
/// nothing.
pub const INJECTED_AT: &str = "injected at";
/// The input that holds the replacement (a scalar of the value's type).
pub const INJECTED: &str = "injected";

/// The same program with one element of a node's value replaced, as the inputs [`INJECTED_AT`] and [`INJECTED`] say.
/// Nodes are given by their position. The nodes on the way to `seen` read the replacement. The nodes after the last of
/// `seen` read the changed values of `seen`, and the original values of all others, such as a constant that the
/// optimizer shares with the model.
///
/// # Panics
/// If there is no such node, or it is not of floats.
pub fn injected(program: &Program, target: usize, seen: &[usize]) -> Program {
    let Node { shape, dtype, scope, site, .. } = program.nodes[target].clone();
    assert!(dtype.is_float(), "injected: %{target} is of {dtype}");
    let mut inputs = program.inputs.clone();
    let first = InputId(inputs.len() as u32);
    inputs.push(InputDecl { name: INJECTED_AT.into(), shape: Shape::scalar(), dtype: DType::U32, site });
    inputs.push(InputDecl { name: INJECTED.into(), shape: Shape::scalar(), dtype, site });
    let last = seen.iter().copied().max().unwrap_or(0);
    let mut nodes: Vec<Node> = vec![];
    // Each node's new id, and the id of its copy that depends on the injected number.
    let mut names: Vec<NodeId> = vec![];
    let mut copies: Vec<Option<NodeId>> = vec![None; program.nodes.len()];
    while names.len() < program.nodes.len() {
        // The outputs of an operation follow one another, and have the same inputs.
        let start = names.len();
        let group = start..start + program.nodes[start].op.outputs().0;
        let new = |nodes: &mut Vec<Node>, i: usize, to: &dyn Fn(&NodeId) -> NodeId| {
            let node = &program.nodes[i];
            nodes.push(Node { inputs: node.inputs.iter().map(to).collect(), ..node.clone() });
            NodeId(nodes.len() as u32 - 1)
        };
        let through = |id: &NodeId| copies[id.index()].filter(|_| start > last && seen.contains(&id.index()));
        for i in group.clone() {
            let name = new(&mut nodes, i, &|id| through(id).unwrap_or(names[id.index()]));
            names.push(name);
        }
        let reads = program.nodes[start].inputs.iter().any(|input| copies[input.index()].is_some());
        if reads && start <= last {
            for i in group.clone() {
                copies[i] = Some(new(&mut nodes, i, &|id| copies[id.index()].unwrap_or(names[id.index()])));
            }
        }
        if group.contains(&target) {
            copies[target] = Some(put_in(&mut nodes, names[target], first, &shape, dtype, (scope, site)));
        }
    }
    let to = |id: &NodeId| copies[id.index()].filter(|_| seen.contains(&id.index())).unwrap_or(names[id.index()]);
    let all = |ids: &[NodeId]| ids.iter().map(to).collect();
    let end = nodes.len() as u32;
    let bound = |id: u32| names.get(id as usize).map_or(end, |id| id.0);
    let passes = program.passes.iter().map(|pass| Pass {
        inputs: all(&pass.inputs),
        outputs: all(&pass.outputs),
        nodes: bound(pass.nodes.start)..bound(pass.nodes.end),
        ..pass.clone()
    });
    let commits = program.commits.iter().map(|(state, id)| (*state, to(id))).collect();
    let taps = program.taps.iter().map(|tap| TapDecl { node: to(&tap.node), ..tap.clone() }).collect();
    let passes = passes.collect();
    Program { nodes, inputs, taps, passes, commits, ..program.clone() }
}

/// Appends `iota == at ? value : x`, and returns its id.
fn put_in(
    nodes: &mut Vec<Node>,
    x: NodeId,
    first: InputId,
    shape: &Shape,
    dtype: DType,
    (scope, site): (crate::ScopeId, crate::Site),
) -> NodeId {
    let mut push = |op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType| {
        let id = NodeId(nodes.len() as u32);
        nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        id
    };
    let (numel, ones) = (shape.numel(), Shape::from(vec![1; shape.rank()]));
    let at = push(Op::Input(first), &[], &Shape::scalar(), DType::U32);
    let value = push(Op::Input(InputId(first.0 + 1)), &[], &Shape::scalar(), dtype);
    let mut spread = |x: NodeId, dtype: DType| {
        let x = push(Op::Reshape(ones.clone()), &[x], &ones, dtype);
        push(Op::Expand(shape.clone()), &[x], shape, dtype)
    };
    let (at, value) = (spread(at, DType::U32), spread(value, dtype));
    let iota = push(Op::Iota(numel), &[], &[numel].into(), DType::U32);
    let place = push(Op::Reshape(shape.clone()), &[iota], shape, DType::U32);
    let hit = push(Op::Binary(Binary::Eq), &[place, at], shape, DType::Bool);
    push(Op::Select, &[hit, value, x], shape, dtype)
}

/// The input of [`injectable`] that holds the position, in the given program, of the node whose value is replaced (u32
/// scalar). A position out of range replaces nothing.
pub const INJECTED_NODE: &str = "injected node";
/// The input of [`injectable`] that chooses the replacement (u32 scalar): infinity if it is 0, else NaN.
pub const INJECTED_NAN: &str = "injected nan";

/// The value of a node that [`injectable`] guards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guarded {
    /// The node's position in the given program.
    pub node: usize,
    /// The node that replaces it in the new program.
    pub stands: NodeId,
    /// The division of finite numbers whose result is injected.
    pub division: NodeId,
}

/// The same program with one element of a float value replaced by a non-finite number, 1 or 0 divided by 0, as the
/// inputs [`INJECTED_NODE`], [`INJECTED_AT`] and [`INJECTED_NAN`] say. Only values at positions that are `wanted` can
/// be replaced, and no constants.
pub fn injectable(program: &Program, wanted: impl Fn(usize) -> bool) -> (Program, Vec<Guarded>) {
    let mut inputs = program.inputs.clone();
    let site = program.nodes[0].site;
    let first = inputs.len() as u32;
    for name in [INJECTED_NODE, INJECTED_AT, INJECTED_NAN] {
        inputs.push(InputDecl { name: name.into(), shape: Shape::scalar(), dtype: DType::U32, site });
    }
    let mut nodes: Vec<Node> = vec![];
    let (mut names, mut ends, mut guarded): (Vec<NodeId>, Vec<u32>, Vec<Guarded>) = (vec![], vec![], vec![]);
    while names.len() < program.nodes.len() {
        let start = names.len();
        // The outputs of an operation follow one another.
        let group = start..start + program.nodes[start].op.outputs().0;
        let mut made = vec![];
        for node in &program.nodes[group.clone()] {
            let inputs = node.inputs.iter().map(|id| names[id.index()]).collect();
            nodes.push(Node { inputs, ..node.clone() });
            made.push(NodeId(nodes.len() as u32 - 1));
        }
        for (i, id) in group.zip(made) {
            let node = &program.nodes[i];
            let constant = matches!(node.op, Op::Const(_) | Op::Table(_));
            if node.dtype.is_float() && node.shape.numel() > 0 && !constant && wanted(i) {
                let guard = guard(&mut nodes, id, i, first, node);
                names.push(guard.stands);
                guarded.push(guard);
            } else {
                names.push(id);
            }
            ends.push(nodes.len() as u32);
        }
    }
    let all = |ids: &[NodeId]| ids.iter().map(|id| names[id.index()]).collect();
    let bound = |id: u32| if id == 0 { 0 } else { ends[id as usize - 1] };
    let passes = program.passes.iter().map(|pass| Pass {
        inputs: all(&pass.inputs),
        outputs: all(&pass.outputs),
        nodes: bound(pass.nodes.start)..bound(pass.nodes.end),
        ..pass.clone()
    });
    let commits = program.commits.iter().map(|(state, id)| (*state, names[id.index()])).collect();
    let taps = program.taps.iter().map(|tap| TapDecl { node: names[tap.node.index()], ..tap.clone() }).collect();
    let passes = passes.collect();
    (Program { nodes, inputs, taps, passes, commits, ..program.clone() }, guarded)
}

/// Appends `iota == at ? numerator / denominator : x`, where the denominator is 0 if this node is meant, and else 1.
fn guard(nodes: &mut Vec<Node>, x: NodeId, position: usize, first: u32, like: &Node) -> Guarded {
    let (shape, dtype, scalar) = (&like.shape, like.dtype, Shape::scalar());
    let mut push = |op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType| {
        let id = NodeId(nodes.len() as u32);
        let (scope, site) = (like.scope, like.site);
        nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        id
    };
    let [node, at, nan] = [0, 1, 2].map(|n| push(Op::Input(InputId(first + n)), &[], &scalar, DType::U32));
    let [own, nowhere] =
        [position as f64, f64::from(u32::MAX)].map(|value| push(Op::Const(value.to_bits()), &[], &scalar, DType::U32));
    let [zero, one] = [0.0f64, 1.0].map(|value| push(Op::Const(value.to_bits()), &[], &scalar, dtype));
    let meant = push(Op::Binary(Binary::Eq), &[node, own], &scalar, DType::Bool);
    let at = push(Op::Select, &[meant, at, nowhere], &scalar, DType::U32);
    let nan = push(Op::Cast(DType::Bool), &[nan], &scalar, DType::Bool);
    let numerator = push(Op::Select, &[nan, zero, one], &scalar, dtype);
    let denominator = push(Op::Select, &[meant, zero, one], &scalar, dtype);
    let division = push(Op::Binary(Binary::Div), &[numerator, denominator], &scalar, dtype);
    let ones = Shape::from(vec![1; shape.rank()]);
    let mut spread = |x: NodeId, dtype: DType| {
        let x = push(Op::Reshape(ones.clone()), &[x], &ones, dtype);
        push(Op::Expand(shape.clone()), &[x], shape, dtype)
    };
    let (at, put_in) = (spread(at, DType::U32), spread(division, dtype));
    let iota = push(Op::Iota(shape.numel()), &[], &[shape.numel()].into(), DType::U32);
    let place = push(Op::Reshape(shape.clone()), &[iota], shape, DType::U32);
    let hit = push(Op::Binary(Binary::Eq), &[place, at], shape, DType::Bool);
    let stands = push(Op::Select, &[hit, put_in, x], shape, dtype);
    Guarded { node: position, stands, division }
}
