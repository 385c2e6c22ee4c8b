//! Faults at run time: one element of any value of a program replaced by a number that an input gives.

use crate::{
    DType, Program, Shape,
    op::{Binary, InputId, Op},
    program::{InputDecl, Pass, TapDecl},
    tape::{Node, NodeId},
};

/// The input that tells which element of the value is replaced (u32 scalar), counted row-major. One that there is not
/// replaces nothing.
pub const INJECTED_AT: &str = "injected at";
/// The input that tells by what (a scalar of the value's type).
pub const INJECTED: &str = "injected";

/// The same program with one element of a node's value replaced, as the inputs [`INJECTED_AT`] and [`INJECTED`] say, for
/// whatever reads it on the way to the nodes `seen`; nodes are given by their position. All that follows the last of those
/// reads them as they are then, and everything else as it was: a constant, say, that the optimizer shares with the model.
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
    // What each node is called now, and its copy that depends on what is put in.
    let mut names: Vec<NodeId> = vec![];
    let mut copies: Vec<Option<NodeId>> = vec![None; program.nodes.len()];
    while names.len() < program.nodes.len() {
        // The outputs of an operation follow one another, and read the same.
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

/// Appends `iota == at ? value : x`, and gives its name.
fn put_in(
    nodes: &mut Vec<Node>,
    x: NodeId,
    first: InputId,
    shape: &Shape,
    dtype: DType,
    (scope, site): (crate::ScopeId, &'static std::panic::Location<'static>),
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

/// The input of [`injectable`] that tells which node's value is replaced (u32 scalar), by its position in the program that was
/// given; one that there is not replaces nothing.
pub const INJECTED_NODE: &str = "injected node";
/// The input of [`injectable`] that tells whether the element becomes NaN, or is divided by 0 (u32 scalar).
pub const INJECTED_NAN: &str = "injected nan";

/// The same program with one element of any float value replaced by what is not finite, as the inputs [`INJECTED_NODE`],
/// [`INJECTED_AT`] and [`INJECTED_NAN`] say; and of each node the one that stands for it from there on. That one is a division
/// of finite numbers, by 1 where nothing is replaced, and by 0 where something is.
pub fn injectable(program: &Program) -> (Program, Vec<NodeId>) {
    let mut inputs = program.inputs.clone();
    let site = program.nodes[0].site;
    let first = inputs.len() as u32;
    for name in [INJECTED_NODE, INJECTED_AT, INJECTED_NAN] {
        inputs.push(InputDecl { name: name.into(), shape: Shape::scalar(), dtype: DType::U32, site });
    }
    let mut nodes: Vec<Node> = vec![];
    let mut names: Vec<NodeId> = vec![];
    let mut ends: Vec<u32> = vec![];
    while names.len() < program.nodes.len() {
        let start = names.len();
        let group = start..start + program.nodes[start].op.outputs().0;
        let mut made = vec![];
        for node in &program.nodes[group.clone()] {
            // A composition with a rule of its own names outputs that are before it.
            let inputs = node.inputs.iter().map(|id| names[id.index()]).collect();
            nodes.push(Node { inputs, ..node.clone() });
            made.push(NodeId(nodes.len() as u32 - 1));
        }
        for (i, id) in group.zip(made) {
            let node = &program.nodes[i];
            let leaf = matches!(node.op, Op::Const(_) | Op::Table(_));
            let guarded = node.dtype.is_float() && node.shape.numel() > 0 && !leaf;
            names.push(if guarded { divided(&mut nodes, id, i, first, node) } else { id });
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
    (Program { nodes, inputs, taps, passes, commits, ..program.clone() }, names)
}

/// Appends the division that stands for a node's value.
fn divided(nodes: &mut Vec<Node>, x: NodeId, position: usize, first: u32, like: &Node) -> NodeId {
    let (shape, dtype, scalar) = (&like.shape, like.dtype, Shape::scalar());
    let mut push = |op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType| {
        let id = NodeId(nodes.len() as u32);
        let (scope, site) = (like.scope, like.site);
        nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        id
    };
    let ones = Shape::from(vec![1; shape.rank()]);
    let node = push(Op::Input(InputId(first)), &[], &scalar, DType::U32);
    let at = push(Op::Input(InputId(first + 1)), &[], &scalar, DType::U32);
    let nan = push(Op::Input(InputId(first + 2)), &[], &scalar, DType::U32);
    let own = push(Op::Const((position as f64).to_bits()), &[], &scalar, DType::U32);
    let hit = push(Op::Binary(Binary::Eq), &[node, own], &scalar, DType::Bool);
    // A place that there is not, where another node is meant.
    let nowhere = push(Op::Const(f64::from(u32::MAX).to_bits()), &[], &scalar, DType::U32);
    let at = push(Op::Select, &[hit, at, nowhere], &scalar, DType::U32);
    let mut spread = |x: NodeId, dtype: DType| {
        let x = push(Op::Reshape(ones.clone()), &[x], &ones, dtype);
        push(Op::Expand(shape.clone()), &[x], shape, dtype)
    };
    let (at, nan) = (spread(at, DType::U32), spread(nan, DType::U32));
    let [zero, one] = [0.0f64, 1.0].map(|value| {
        let value = push(Op::Const(value.to_bits()), &[], &scalar, dtype);
        let value = push(Op::Reshape(ones.clone()), &[value], &ones, dtype);
        push(Op::Expand(shape.clone()), &[value], shape, dtype)
    });
    let iota = push(Op::Iota(shape.numel()), &[], &[shape.numel()].into(), DType::U32);
    let place = push(Op::Reshape(shape.clone()), &[iota], shape, DType::U32);
    let hit = push(Op::Binary(Binary::Eq), &[place, at], shape, DType::Bool);
    let none = push(Op::Cast(DType::Bool), &[nan], shape, DType::Bool);
    let none = push(Op::Select, &[hit, none, hit], shape, DType::Bool);
    let above = push(Op::Select, &[none, zero, x], shape, dtype);
    let below = push(Op::Select, &[hit, zero, one], shape, dtype);
    push(Op::Binary(Binary::Div), &[above, below], shape, dtype)
}
