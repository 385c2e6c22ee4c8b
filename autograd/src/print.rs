//! Programs as text: one line per node, grouped by scope, with the turns of a loop folded where they are alike.
//!
//! Nodes without information of their own are written where they are used: constants, inputs, states and parameters by
//! name, and movement that only repeats or adds and drops dimensions of extent 1.

use crate::{
    Shape,
    collective::Way,
    node::{Node, NodeId, ScopeId},
    op::{Op, Reduce},
    program::Program,
};
use std::{collections::HashMap, fmt, fmt::Write, ops::Range};

/// The number of inputs of one node that are listed before the middle is left out.
const MAX_ARGS: usize = 6;

impl Reduce {
    /// The name in messages and printed tapes.
    pub fn name(self) -> &'static str {
        match self {
            Reduce::Sum => "sum",
            Reduce::Max => "reduce_max",
            Reduce::Norm => "norm",
        }
    }
}

impl Op {
    /// The name in messages and printed tapes.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Const(_) => "const",
            Op::Input(_) => "input",
            Op::State(_) => "state",
            Op::Iota(_) => "iota",
            Op::Table(_) => "table",
            Op::Random { .. } => "random",
            Op::Unary(unary) => unary.name(),
            Op::Binary(binary) => binary.name(),
            Op::Select => "select",
            Op::Cast(_) => "cast",
            Op::Reduce(reduce, _) => reduce.name(),
            Op::ArgMax(_) => "argmax",
            Op::ArgSort(..) => "argsort",
            Op::CumSum { .. } => "cumsum",
            Op::Reshape(_) => "reshape",
            Op::Permute(_) => "permute",
            Op::Expand(_) => "expand",
            Op::Slice { .. } => "slice",
            Op::Assemble { .. } => "assemble",
            Op::Gather(_) => "gather",
            Op::ScatterAdd { .. } => "scatter_add",
            Op::SegmentReduce(Reduce::Sum, _) => "segment_sum",
            Op::SegmentReduce(Reduce::Max, _) => "segment_max",
            Op::SegmentReduce(Reduce::Norm, _) => "segment_norm",
            Op::SegmentBroadcast(_) => "segment_broadcast",
            Op::MatMul { .. } => "matmul",
            Op::Exchange(way, _) => way.name(),
            Op::Part(part) => part.name(),
            Op::Conv2d(_) => "conv2d",
            Op::ConvInputGrad(..) => "conv_input_grad",
            Op::ConvWeightGrad(..) => "conv_weight_grad",
            Op::Sequence { .. } => "sequence",
            Op::SequenceGrad { .. } => "sequence_grad",
            Op::Attention(..) => "attention",
            Op::AttentionGrad(..) => "attention_grad",
            Op::Detach => "detach",
            Op::Barrier(_) => "barrier",
            Op::Recomputed => "recomputed",
            Op::Hook(_) => "hook",
            Op::Custom { .. } => "custom",
        }
    }

    /// The attributes that tell this op from others of its name; `loose` leaves out attributes that differ between
    /// turns of a loop.
    pub(crate) fn attributes(&self, loose: bool) -> String {
        match self {
            Op::Reduce(_, axes) => format!(" over {axes:?}"),
            Op::ArgMax(axis) | Op::Gather(axis) | Op::ScatterAdd { axis, .. } => format!(" axis {axis}"),
            Op::ArgSort(axis, false) => format!(" axis {axis}"),
            Op::ArgSort(axis, true) => format!(" axis {axis} from the largest"),
            Op::CumSum { axis, reverse: false } => format!(" axis {axis}"),
            Op::CumSum { axis, reverse: true } => format!(" axis {axis} from the end"),
            Op::Conv2d(conv) | Op::ConvInputGrad(conv, _) | Op::ConvWeightGrad(conv, _) => conv.attributes(),
            Op::Random { .. } if loose => String::new(),
            Op::Random { stream, .. } => format!(" stream {stream:016x}"),
            Op::Permute(order) => format!(" {order:?}"),
            Op::Slice { axis, .. } if loose => format!(" axis {axis}"),
            Op::Slice { axis, start, len: 1, .. } => format!(" axis {axis} at {start}"),
            Op::Slice { axis, start, len, step: 1 } => format!(" axis {axis} at {start}..{}", start + len),
            Op::Slice { axis, start, len, step } => format!(" axis {axis}: {len} from {start} by {step}"),
            Op::Assemble { axis, places, .. } => format!(" axis {axis}, {} parts", places.len()),
            Op::SegmentReduce(_, s) | Op::SegmentBroadcast(s) => format!(" of {}", s.ranges.len()),
            Op::Exchange(Way::Reduce(reduce), _) => format!(" by {} of", reduce.name()),
            Op::Custom { out, outs, .. } => format!(" output {out} of {outs}"),
            Op::Sequence { cell, out } | Op::SequenceGrad { cell, out } => {
                format!(" {}: {} of", cell.name(), self.fused_outputs()[*out].0)
            }
            Op::Attention(scores, out) | Op::AttentionGrad(scores, out) => {
                format!("{}: {} of", scores.attributes(), self.fused_outputs()[*out].0)
            }
            _ => String::new(),
        }
    }
}

/// A stretch of nodes that were recorded in one turn of a loop, or in one scope outside loops.
struct Block {
    scope: ScopeId,
    nodes: Vec<NodeId>,
}

struct Printer<'p> {
    program: &'p Program,
    /// The parameter that a node reads, by node.
    params: HashMap<NodeId, &'p str>,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program) -> Self {
        let mut params = HashMap::new();
        let by_place: HashMap<_, _> =
            program.layout().params().map(|(_, p)| ((p.arena, p.offset), (&*p.path, &p.shape))).collect();
        for (i, node) in program.nodes().iter().enumerate() {
            let id = NodeId(i as u32);
            if let Op::Slice { start, .. } = node.op
                && let Op::State(arena) = program.node(node.inputs[0]).op
                && let Some((path, shape)) = by_place.get(&(arena, start))
            {
                if node.shape == **shape {
                    params.insert(id, *path);
                }
            } else if let Op::Reshape(_) = node.op
                && let slice = program.node(node.inputs[0])
                && let Op::Slice { start, .. } = slice.op
                && let Op::State(arena) = program.node(slice.inputs[0]).op
                && let Some((path, shape)) = by_place.get(&(arena, start))
                && node.shape == **shape
            {
                params.insert(id, *path);
            }
        }
        Self { program, params }
    }

    /// The text of a node where it is used, if it needs no line of its own.
    fn inline(&self, id: NodeId) -> Option<String> {
        let node = self.program.node(id);
        if let Some(path) = self.params.get(&id) {
            return Some(path.to_string());
        }
        match &node.op {
            Op::Const(bits) => Some(format!("{}", f64::from_bits(*bits))),
            Op::Input(input) => Some(self.program.inputs()[input.0 as usize].name.clone()),
            Op::State(state) => Some(self.program.layout().state(*state).name.clone()),
            Op::Expand(_) => Some(self.arg(node.inputs[0])),
            Op::Recomputed => Some(self.arg(node.inputs[1])),
            Op::Reshape(to) => {
                let from = &self.program.node(node.inputs[0]).shape;
                let squeezed = |s: &Shape| s.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
                (squeezed(from) == squeezed(to)).then(|| self.arg(node.inputs[0]))
            }
            _ => None,
        }
    }

    fn arg(&self, id: NodeId) -> String {
        self.inline(id).unwrap_or_else(|| id.to_string())
    }

    /// The operation and its operands.
    fn formula(&self, id: NodeId) -> String {
        let node = self.program.node(id);
        let transposed = |i: usize| matches!(node.op, Op::MatMul { ta, tb } if [ta, tb][i]);
        let mut args: Vec<String> = node.inputs.iter().map(|&input| self.arg(input)).collect();
        args.iter_mut().enumerate().filter(|(i, _)| transposed(*i)).for_each(|(_, arg)| arg.push('ᵀ'));
        if args.len() > MAX_ARGS {
            args.splice(2..args.len() - 1, ["..".to_string()]);
        }
        format!("{}{} {}", node.op.name(), node.op.attributes(false), args.join(", ")).trim_end().to_string()
    }

    fn line(&self, id: NodeId) -> String {
        let node = self.program.node(id);
        format!("{:<6} {:<16} {}", id.to_string(), format!("{}{}", node.dtype, node.shape), self.formula(id))
    }

    /// The outermost loop turn around a scope, or the scope itself.
    fn block_scope(&self, mut scope: ScopeId) -> ScopeId {
        let mut block = scope;
        while scope.0 != 0 {
            let decl = self.program.scope(scope);
            if decl.turn.is_some() {
                block = scope;
            }
            scope = decl.parent;
        }
        block
    }

    fn blocks(&self) -> Vec<Block> {
        let live = self.program.live();
        let mut blocks: Vec<Block> = vec![];
        for (i, node) in self.program.nodes().iter().enumerate() {
            let id = NodeId(i as u32);
            // A slice that only a parameter's reshape reads is that parameter.
            let part_of_param = matches!(node.op, Op::Slice { .. })
                && self.params.contains_key(&NodeId(id.0 + 1))
                && self.program.nodes()[i + 1].inputs[0] == id;
            if !live[i] || part_of_param || self.inline(id).is_some() {
                continue;
            }
            let scope = self.block_scope(node.scope);
            match blocks.last_mut() {
                Some(block) if block.scope == scope => block.nodes.push(id),
                _ => blocks.push(Block { scope, nodes: vec![id] }),
            }
        }
        blocks
    }

    /// A key that is equal for blocks that are turns of one loop and do the same.
    fn signature(&self, block: &Block) -> String {
        let mut text = self.path(block.scope, true);
        for &id in &block.nodes {
            let Node { op, shape, dtype, scope, .. } = self.program.node(id);
            let _ = write!(text, ";{}{}{dtype}{shape}{}", op.name(), op.attributes(true), self.path(*scope, true));
        }
        text
    }

    /// A scope's path; `loose` leaves out the numbers of turns.
    fn path(&self, scope: ScopeId, loose: bool) -> String {
        let parts: Vec<String> = self
            .program
            .scope_path(scope)
            .iter()
            .map(|s| match s.turn {
                Some(_) if loose => format!("{}[]", s.name),
                Some(turn) => format!("{}[{turn}]", s.name),
                None => s.name.clone(),
            })
            .collect();
        parts.join("/")
    }

    fn header(&self, blocks: &[Block]) -> String {
        let path = self.path(blocks[0].scope, false);
        match self.program.scope(blocks[0].scope).turn {
            Some(first) if blocks.len() > 1 => {
                let last = self.program.scope(blocks[blocks.len() - 1].scope).turn.unwrap_or(first);
                let stem = path.strip_suffix(&format!("[{first}]")).unwrap_or(&path);
                format!("{stem}[{first} .. {last}]: {} turns alike, here the first", blocks.len())
            }
            _ if path.is_empty() => "program".to_string(),
            _ => path,
        }
    }

    fn pass_at(&self, nodes: &[NodeId]) -> Option<String> {
        let inside = |range: &Range<u32>| nodes.iter().all(|id| range.contains(&id.0));
        let pass = self.program.passes().iter().find(|pass| inside(&pass.nodes))?;
        Some(pass.to_string())
    }
}

impl fmt::Display for crate::Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters: Vec<String> = self.parameters.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        write!(f, "{}({})", self.name, parameters.join(", "))
    }
}

impl Program {
    /// The operation and the operands of each node, as in the printed program: parameters, inputs and states by name,
    /// constants by value.
    pub fn formulas(&self) -> Vec<String> {
        let printer = Printer::new(self);
        self.ids().map(|id| printer.formula(id)).collect()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = Printer::new(self);
        for input in self.inputs() {
            writeln!(f, "input  {}: {}{}", input.name, input.dtype, input.shape)?;
        }
        for (_, param) in self.layout().params() {
            writeln!(f, "param  {}: {}{}", param.path, self.layout().state(param.arena).dtype, param.shape)?;
        }
        let blocks = printer.blocks();
        let mut rest = &blocks[..];
        while let Some(first) = rest.first() {
            let signature = printer.signature(first);
            let looped = self.scope(first.scope).turn.is_some();
            let alike = |block: &&Block| looped && printer.signature(block) == signature;
            let count = rest.iter().take_while(alike).count().max(1);
            let pass = printer.pass_at(&first.nodes);
            let header = printer.header(&rest[..count]);
            match pass {
                Some(pass) => writeln!(f, "\n{header}  -- pass {pass}")?,
                None => writeln!(f, "\n{header}")?,
            }
            for &id in &first.nodes {
                writeln!(f, "  {}", printer.line(id))?;
            }
            rest = &rest[count..];
        }
        writeln!(f)?;
        for (state, node) in self.commits() {
            writeln!(f, "commit {} <- {}", self.layout().state(*state).name, printer.arg(*node))?;
        }
        for tap in self.taps() {
            writeln!(f, "tap    {} <- {}", tap.name, printer.arg(tap.node))?;
        }
        for param in self.unreached() {
            writeln!(f, "no gradient reaches {}", self.layout().param(*param).path)?;
        }
        let live = self.live().iter().filter(|live| **live).count();
        writeln!(f, "{live} nodes in use, {} recorded", self.nodes().len())
    }
}
