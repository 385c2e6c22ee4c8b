//! Facts that a recorded program shows before its first run: trained parameters, cut gradients, operations without a
//! guard, sums in place of means, and the settings of passes.

use crate::train::Spot;
use std::collections::HashSet;
use wgrad::{
    NodeId, Param, PassKind, Program,
    op::{Binary, Op, Reduce, Unary},
};

/// A recorded program, read for its faults.
pub struct Reading<'p> {
    program: &'p Program,
    /// True for the nodes that the gradients of the losses flow to.
    reached: Vec<bool>,
    /// True for all nodes that the losses are computed from, those behind a cut of the gradient too.
    wide: Vec<bool>,
}

/// The place where gradients are cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The operations that cut.
    pub spots: Vec<Spot>,
    /// The parameters that no gradient reaches because of the cut.
    pub params: Vec<String>,
}

impl<'p> Reading<'p> {
    /// Reads a program.
    pub fn new(program: &'p Program) -> Self {
        let roots = program.losses();
        Self { program, reached: ancestors(program, roots, true), wide: ancestors(program, roots, false) }
    }

    /// The paths of parameters that a step updates, or would if they had a gradient.
    pub fn trained(&self) -> Vec<String> {
        let stepped =
            self.program.passes().iter().filter(|pass| matches!(pass.kind, PassKind::Accumulate | PassKind::Step));
        let mut all: Vec<Param> = stepped.flat_map(|pass| pass.params.iter()).collect();
        all.extend(self.program.unreached());
        self.program
            .layout()
            .params()
            .filter(|(param, _)| all.contains(param))
            .map(|(_, decl)| decl.path.clone())
            .collect()
    }

    /// The paths of parameters that the loss depends on, but that are not trained.
    pub fn frozen(&self) -> Vec<String> {
        let trained = self.trained();
        let layout = self.program.layout();
        let rest = layout.params().filter(|(_, decl)| !trained.contains(&decl.path));
        rest.filter(|(param, _)| self.reads(*param).iter().any(|i| self.wide[*i]))
            .map(|(_, decl)| decl.path.clone())
            .collect()
    }

    /// The nodes that read a parameter: slices of its arena.
    fn reads(&self, param: Param) -> Vec<usize> {
        let decl = self.program.layout().param(param);
        let is =
            |op: &Op| matches!(op, Op::Slice { start, len, .. } if (*start, *len) == (decl.offset, decl.shape.numel()));
        let nodes = self.program.nodes().iter().enumerate();
        let of = |node: &wgrad::Node| is(&node.op) && self.program.node(node.inputs[0]).op == Op::State(decl.arena);
        nodes.filter(|(_, node)| of(node)).map(|(i, _)| i).collect()
    }

    /// The place where gradients are cut on their way to parameters that the loss depends on.
    pub fn cut(&self) -> Option<Cut> {
        let (mut spots, mut params) = (vec![], vec![]);
        for &param in self.program.unreached() {
            let reads = self.reads(param);
            if !reads.iter().any(|i| self.wide[*i]) {
                continue;
            }
            params.push(self.program.layout().param(param).path.clone());
            for (i, node) in self.program.nodes().iter().enumerate() {
                if node.op != Op::Detach || !self.reached[i] {
                    continue;
                }
                let above = ancestors(self.program, &node.inputs, true);
                let spot = self.spot(i);
                if reads.iter().any(|i| above[*i]) && !spots.contains(&spot) {
                    spots.push(spot);
                }
            }
        }
        (!params.is_empty() && !spots.is_empty()).then_some(Cut { spots, params })
    }

    /// The paths of parameters whose gradient is asked for, but on which the loss does not depend at all.
    pub fn unused(&self) -> Vec<String> {
        let of = |param: &&Param| !self.reads(**param).iter().any(|i| self.wide[*i]);
        self.program
            .unreached()
            .iter()
            .filter(of)
            .map(|param| self.program.layout().param(*param).path.clone())
            .collect()
    }

    /// Operations without a guard whose derivative can be infinite while their value is finite.
    pub fn unguarded(&self) -> Vec<Spot> {
        self.program.steep().iter().map(|id| self.spot(id.index())).collect()
    }

    fn spot(&self, i: usize) -> Spot {
        let node = &self.program.nodes()[i];
        Spot { op: node.op.clone(), site: node.site, scope: self.scope(node) }
    }

    /// The scope that a node was recorded in.
    fn scope(&self, node: &wgrad::Node) -> String {
        let name =
            |scope: &&wgrad::Scope| scope.turn.map_or(scope.name.clone(), |turn| format!("{}[{turn}]", scope.name));
        self.program.scope_path(node.scope).iter().map(name).collect::<Vec<_>>().join("/")
    }

    /// True if a loss over classes is given probabilities, the output of a soft-max, in place of logits.
    pub fn double_softmax(&self) -> bool {
        self.program.logits().iter().any(|id| self.is_share(*id))
    }

    /// The source line of the loss over classes.
    pub fn logits_site(&self) -> Option<String> {
        self.program.logits().first().map(|id| self.program.node(*id).site.to_string())
    }

    /// The node that a value's elements come from, before operations that only move or cast them.
    fn moved(&self, mut id: NodeId) -> NodeId {
        loop {
            let node = self.program.node(id);
            id = match node.op {
                Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Slice { .. } | Op::Cast(_) | Op::Hook(_) => {
                    node.inputs[0]
                }
                Op::Custom { args, out, .. } => node.inputs[args + out],
                _ => return id,
            };
        }
    }

    /// The constant that all elements of a value have, if there is one.
    pub(super) fn constant(&self, id: NodeId) -> Option<f64> {
        match self.program.node(self.moved(id)).op {
            Op::Const(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// True if a value is an exponential divided by another value, as the output of a soft-max is.
    fn is_share(&self, id: NodeId) -> bool {
        let node = self.program.node(self.moved(id));
        let is = |id, wanted: Unary| self.program.node(self.moved(id)).op == Op::Unary(wanted);
        match node.op {
            Op::Binary(Binary::Div) => is(node.inputs[0], Unary::Exp),
            Op::Binary(Binary::Mul) => is(node.inputs[0], Unary::Exp) && is(node.inputs[1], Unary::Recip),
            _ => false,
        }
    }

    /// The number of samples, if the loss is a plain sum over several; `None` if it is a mean.
    pub fn summed(&self) -> Option<usize> {
        self.program.losses().iter().find_map(|loss| self.summed_from(*loss, [1.0; 2], 0))
    }

    /// [`Reading::summed`] of a part of a loss. `factor` is the product of all constants that multiply the part, `last`
    /// the one nearest to it.
    fn summed_from(&self, id: NodeId, [factor, last]: [f64; 2], depth: usize) -> Option<usize> {
        if depth > 24 {
            return None;
        }
        let node = self.program.node(id);
        let x = &node.inputs;
        let next = |id, last| self.summed_from(id, [factor, last], depth + 1);
        let by = |id, by: f64| self.summed_from(id, [factor * by.abs(), by.abs()], depth + 1);
        match &node.op {
            Op::Unary(Unary::Neg) | Op::Cast(_) | Op::Reshape(_) | Op::Hook(_) => next(x[0], last),
            Op::Custom { args, out, .. } => next(x[args + out], last),
            Op::Select => next(x[2], last),
            Op::Binary(Binary::Add | Binary::Sub) => next(x[0], 1.0).or_else(|| next(x[1], 1.0)),
            Op::Binary(Binary::Mul) => match (self.constant(x[0]), self.constant(x[1])) {
                (_, Some(factor)) => by(x[0], factor),
                (Some(factor), _) => by(x[1], factor),
                // The other factor is the scale of the loss, which is divided out again.
                _ => next(x[0], 1.0),
            },
            Op::Binary(Binary::Div) => match self.constant(x[1]) {
                Some(divisor) => by(x[0], 1.0 / divisor),
                // The divisor is a count that is known only at run time.
                None => None,
            },
            Op::Reduce(Reduce::Sum, axes) => {
                let shape = &self.program.node(x[0]).shape;
                let batch = if axes.contains(&0) { shape[0] } else { 1 };
                let count: usize = axes.iter().map(|axis| shape[*axis]).product();
                let is_mean = (last * count as f64 - 1.0).abs() < 1e-3;
                let data = ancestors(self.program, x, true);
                let has_input =
                    self.program.nodes().iter().zip(data).any(|(node, above)| above && matches!(node.op, Op::Input(_)));
                (batch > 1 && has_input && !is_mean && factor >= 0.5).then_some(batch)
            }
            _ => None,
        }
    }

    /// The largest weight of a mean in a loss that is a sum of several means; `None` if the loss is one mean.
    pub fn largest_weight(&self) -> Option<f64> {
        let mut weights = vec![];
        self.program.losses().iter().for_each(|loss| self.weigh(*loss, 1.0, 0, &mut weights));
        (weights.len() > 1).then(|| weights.into_iter().fold(0.0, f64::max))
    }

    fn weigh(&self, id: NodeId, factor: f64, depth: usize, weights: &mut Vec<f64>) {
        if depth > 24 {
            return;
        }
        let node = self.program.node(id);
        let x = &node.inputs;
        let mut next = |id, factor| self.weigh(id, factor, depth + 1, weights);
        match &node.op {
            Op::Unary(Unary::Neg) | Op::Cast(_) | Op::Reshape(_) | Op::Hook(_) => next(x[0], factor),
            Op::Custom { args, out, .. } => next(x[args + out], factor),
            Op::Select => next(x[2], factor),
            Op::Binary(Binary::Add | Binary::Sub) => {
                next(x[0], factor);
                next(x[1], factor);
            }
            Op::Binary(Binary::Mul) => match (self.constant(x[0]), self.constant(x[1])) {
                (_, Some(by)) => next(x[0], factor * by.abs()),
                (Some(by), _) => next(x[1], factor * by.abs()),
                _ => next(x[0], factor),
            },
            Op::Binary(Binary::Div) => {
                if let Some(by) = self.constant(x[1]) {
                    next(x[0], factor / by.abs());
                }
            }
            Op::Reduce(Reduce::Sum, axes) => {
                let shape = &self.program.node(x[0]).shape;
                let count: usize = axes.iter().map(|axis| shape[*axis]).product();
                weights.push(factor * count as f64);
            }
            _ => {}
        }
    }

    /// True if the update sums the gradients of micro-batches in place of their mean.
    pub fn sums_micro_batches(&self) -> bool {
        self.setting("accumulate", "weighting").is_some_and(|weighting| weighting == "Sum")
    }

    /// The smallest share of a new batch in running statistics, with the path of their buffer.
    pub fn statistics(&self) -> Option<(String, f64)> {
        let layout = self.program.layout();
        let mut least: Option<(String, f64)> = None;
        for node in self.program.nodes() {
            if node.op != Op::Binary(Binary::Mul) {
                continue;
            }
            let Some(kept) = self.constant(node.inputs[1]) else { continue };
            let Op::State(state) = self.program.node(self.moved(node.inputs[0])).op else { continue };
            let Some(path) = layout.state(state).name.strip_prefix(crate::layers::buffers::PREFIX) else { continue };
            if least.as_ref().is_none_or(|(_, known)| 1.0 - kept < *known) {
                least = Some((path.into(), 1.0 - kept));
            }
        }
        least
    }

    /// The value of a pass's setting, as it is printed.
    pub fn setting(&self, pass: &str, name: &str) -> Option<&'p str> {
        let own = self.program.passes().iter().filter(|own| own.name == pass);
        own.flat_map(|own| &own.parameters).find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// A number of the optimizer's settings.
    pub fn optimizer(&self, name: &str) -> Option<f64> {
        let step = self.step()?;
        step.parameters.iter().find(|(known, _)| *known == name)?.1.parse().ok()
    }

    fn step(&self) -> Option<&'p wgrad::Pass> {
        self.program.passes().iter().find(|pass| pass.kind == PassKind::Step)
    }

    /// The momentum of SGD, or Adam's decay rate of the mean of gradients; 0 if the optimizer has neither.
    pub fn momentum(&self) -> f64 {
        let betas = self.step().and_then(|step| step.parameters.iter().find(|(name, _)| *name == "betas"));
        let first = betas.and_then(|(_, text)| text.trim_start_matches('(').split(',').next()?.trim().parse().ok());
        first.or(self.optimizer("momentum")).unwrap_or(0.0)
    }

    /// The target and the difference, if the loss is a mean or a sum of squared differences from a target without
    /// parameters.
    pub fn target(&self) -> Option<(NodeId, NodeId)> {
        let mut id = *self.program.losses().first()?;
        for _ in 0..24 {
            let node = self.program.node(self.moved(id));
            let x = &node.inputs;
            id = match node.op {
                Op::Unary(Unary::Neg) | Op::Reduce(Reduce::Sum, _) => x[0],
                Op::Binary(Binary::Mul) if x[0] == x[1] => {
                    let difference = self.moved(x[0]);
                    let sides = &self.program.node(difference).inputs;
                    let is_difference = self.op(difference) == Op::Binary(Binary::Sub);
                    let target = sides.iter().find(|side| is_difference && self.is_data(**side))?;
                    return Some((*target, difference));
                }
                Op::Binary(Binary::Mul | Binary::Div) if self.constant(x[1]).is_some() => x[0],
                _ => return None,
            };
        }
        None
    }

    /// True if a value is computed from inputs, and from no state.
    fn is_data(&self, id: NodeId) -> bool {
        let above = ancestors(self.program, &[id], false);
        let mut own = self.program.nodes().iter().zip(&above).filter(|(_, above)| **above).peekable();
        own.peek().is_some() && own.all(|(node, _)| !matches!(node.op, Op::State(_)))
    }

    /// The number of classes of a loss over classes: the last one, if there are several.
    pub fn classes(&self) -> Option<usize> {
        self.program.logits().last().and_then(|id| self.program.node(*id).shape.last().copied())
    }

    /// True if the forward pass has an operation.
    pub fn has(&self, wanted: impl Fn(&Op) -> bool) -> bool {
        self.program.nodes().iter().zip(&self.wide).any(|(node, on_the_way)| *on_the_way && wanted(&node.op))
    }

    /// True if a node on the way to a loss is `wanted`.
    pub(super) fn any(&self, wanted: impl Fn(&Self, &wgrad::Node) -> bool) -> bool {
        self.program.nodes().iter().zip(&self.wide).any(|(node, on_the_way)| *on_the_way && wanted(self, node))
    }

    /// The operation of a node.
    pub(super) fn op(&self, id: NodeId) -> Op {
        self.program.node(id).op.clone()
    }

    /// The inputs of a node.
    pub(super) fn inputs(&self, id: NodeId) -> &[NodeId] {
        &self.program.node(id).inputs
    }

    /// True for the nodes that are computed from inputs.
    pub(super) fn data(&self) -> Vec<bool> {
        let mut below = vec![false; self.program.nodes().len()];
        for (i, node) in self.program.nodes().iter().enumerate() {
            below[i] = matches!(node.op, Op::Input(_)) || node.inputs.iter().any(|id| below[id.index()]);
        }
        below
    }

    /// True for the inputs of losses over classes and the nodes that these are computed from; for all nodes if there is
    /// no such loss.
    pub(super) fn before_logits(&self) -> Vec<bool> {
        match self.program.logits() {
            [] => vec![true; self.program.nodes().len()],
            logits => ancestors(self.program, logits, false),
        }
    }

    /// The largest probability at which the forward pass drops a value at random; `None` if it has no dropout.
    pub fn drops(&self) -> Option<f64> {
        let mut most: Option<f64> = None;
        for (i, node) in self.program.nodes().iter().enumerate() {
            if !self.wide[i] || node.op != Op::Select {
                continue;
            }
            let kept = self.program.node(node.inputs[1]);
            if kept.op != Op::Binary(Binary::Div) || !self.is_random(node.inputs[0]) {
                continue;
            }
            if let Some(share) = self.constant(kept.inputs[1]) {
                most = Some(most.unwrap_or(0.0).max(1.0 - share));
            }
        }
        most
    }

    fn is_random(&self, mut id: NodeId) -> bool {
        for _ in 0..8 {
            let node = self.program.node(id);
            if matches!(node.op, Op::Random { .. }) {
                return true;
            }
            let Some(next) = node.inputs.first() else { return false };
            id = *next;
        }
        false
    }
}

/// True for `roots` and the nodes that they are computed from. With `by_gradient`, the walk stops at a cut gradient.
fn ancestors(program: &Program, roots: &[NodeId], by_gradient: bool) -> Vec<bool> {
    let nodes = program.nodes();
    let mut above = vec![false; nodes.len()];
    roots.iter().for_each(|root| above[root.index()] = true);
    for i in (0..nodes.len()).rev() {
        if above[i] && !(by_gradient && nodes[i].op == Op::Detach) {
            nodes[i].inputs.iter().for_each(|input| above[input.index()] = true);
        }
    }
    above
}

/// The layers of some parameters: their paths without the last part, each once.
pub fn layers(params: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    let parent = |path: &String| path.rsplit_once('/').map_or(path.clone(), |(parent, _)| parent.to_string());
    params.iter().map(parent).filter(|layer| seen.insert(layer.clone())).collect()
}
