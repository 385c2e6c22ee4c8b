//! Probable mistakes in a recorded program, which are reported, not refused. They are found while it is recorded, or in
//! the finished list of nodes and passes.

pub(crate) mod facts;
mod random;
mod states;

pub use facts::Lint;
pub(crate) use facts::{Drawing, Facts, Mark};
pub(crate) use random::{Draws, same_on_all_ranks};

use crate::{
    Site, Tensor,
    grads::Grads,
    node::{Node, NodeId},
    op::{Binary, Op, Reduce, Unary},
    pass_state::Action,
    pitfall::{Pitfall, Severity},
    program::Program,
    recorded::{Pass, PassKind},
    store::{Layout, Param, ParamSet},
    tape::Tape,
};
use std::collections::{BTreeMap, HashSet};

impl Tape {
    /// Notes a lint at the caller's line.
    #[track_caller]
    pub(crate) fn note(&self, pitfall: Pitfall, severity: Severity, message: String) {
        let site = Some(self.site());
        self.inner.borrow_mut().facts.notes.push(Lint { pitfall, severity, message, site });
    }

    /// Marks a tensor.
    pub(crate) fn mark(&self, x: Tensor<'_>, mark: Mark) {
        self.inner.borrow_mut().facts.marks.push((x.id, mark));
    }

    /// Remembers a loss whose gradient is taken.
    pub(crate) fn mark_loss(&self, loss: Tensor<'_>) {
        self.inner.borrow_mut().facts.losses.push(loss.id);
    }

    /// True if any of these tensors is computed from one with this mark.
    pub(crate) fn comes_from(&self, x: &[Tensor<'_>], mark: Mark) -> bool {
        let inner = self.inner.borrow();
        let mut marked = inner.facts.marks.iter().filter(|(_, m)| *m == mark).peekable();
        if marked.peek().is_none() {
            return false;
        }
        let above = ancestors(&inner.nodes, x.iter().map(|x| x.id));
        marked.any(|(id, _)| above[id.index()])
    }

    /// Records a gradient, with a lint for each tap in its hooks if the loss is scaled.
    pub(crate) fn in_scaled_sweep<R>(&self, scaled: bool, f: impl FnOnce() -> R) -> R {
        let before = std::mem::replace(&mut self.inner.borrow_mut().facts.scaled_sweep, scaled);
        let result = f();
        self.inner.borrow_mut().facts.scaled_sweep = before;
        result
    }

    /// Notes a lint about a tap in a hook, if it is of a gradient that carries a loss scale.
    pub(crate) fn note_scaled_tap(&self, name: &str, site: Site) {
        let facts = &mut self.inner.borrow_mut().facts;
        if facts.scaled_sweep {
            let what = format!("tap {name:?} in a hook is of gradients that are multiplied by the loss scale");
            let message = format!("{what}; divide by it, or compare ratios only");
            facts.notes.push(Lint {
                pitfall: Pitfall::MisplacedProbe,
                severity: Severity::Warning,
                message,
                site: Some(site),
            });
        }
    }
}

impl<'t, S> Grads<'t, S> {
    /// Notes new findings that are not errors.
    #[track_caller]
    pub(crate) fn note_found(&self, before: &BTreeMap<Pitfall, Severity>) {
        for (pitfall, severity) in self.history.borrow().state.found() {
            // Only the step shows if a clip by value stays alone; the rule on finished programs reports it.
            let known = pitfall == Pitfall::ClipByValueAlone || severity == Severity::Error;
            if !known && before.get(&pitfall) != Some(&severity) {
                self.tape.note(pitfall, severity, format!("{}; {}", pitfall.what(), pitfall.cure()));
            }
        }
    }
}

/// The names of some parameters: the first three, and the number of the others.
pub(crate) fn names(layout: &Layout, params: impl IntoIterator<Item = Param>) -> String {
    let all: Vec<String> = params.into_iter().map(|param| layout.param(param).path.clone()).collect();
    match all.len() {
        0..=3 => all.join(", "),
        n => format!("{} and {} more", all[..3].join(", "), n - 3),
    }
}

/// The nodes that some nodes are computed from, and these themselves.
fn ancestors(nodes: &[Node], roots: impl IntoIterator<Item = NodeId>) -> Vec<bool> {
    let mut above = vec![false; nodes.len()];
    roots.into_iter().for_each(|root| above[root.index()] = true);
    for i in (0..nodes.len()).rev() {
        // Nothing flows back through a detached value.
        if above[i] && nodes[i].op != Op::Detach {
            nodes[i].inputs.iter().for_each(|input| above[input.index()] = true);
        }
    }
    above
}

impl Program {
    /// The program's probable mistakes, in the order of the pitfalls' numbers: warnings and lints, since errors have
    /// been refused while it was recorded. Only a run can show mistakes that depend on values.
    pub fn lints(&self) -> &[Lint] {
        &self.lints
    }

    /// Finds the program's probable mistakes.
    pub(crate) fn with_lints(mut self, facts: Facts) -> Self {
        let mut walk = Walk { program: &self, facts, found: vec![], steep: vec![] };
        RULES.iter().for_each(|rule| rule(&mut walk));
        // A rule's finding in the finished program is more exact than a note made while recording, so it comes first.
        let mut found = walk.found;
        found.append(&mut walk.facts.notes);
        let (Facts { drawn, losses, marks, .. }, steep) = (walk.facts, walk.steep);
        self.steep = steep;
        self.drawing = Drawing::of(&self, drawn);
        self.losses = losses;
        self.logits = marks.into_iter().filter(|(_, mark)| *mark == Mark::Logits).map(|(id, _)| id).collect();
        self.note_lints(found);
        self
    }

    /// Adds findings, at most one lint of each pitfall for a line.
    pub(crate) fn note_lints(&mut self, found: Vec<Lint>) {
        for lint in found {
            if self.lints.iter().all(|known| (known.pitfall, known.site) != (lint.pitfall, lint.site)) {
                self.lints.push(lint);
            }
        }
        self.lints.sort_by_key(|lint| lint.pitfall);
    }
}

/// The effect of a pass on the tags of gradients.
fn action(pass: &Pass) -> Option<Action> {
    match pass.kind {
        PassKind::Step => Some(Action::Step),
        PassKind::Accumulate => Some(Action::Backward),
        PassKind::AllReduce => Some(Action::AllReduce),
        // Without a scale, the pass returns its inputs.
        PassKind::Unscale => (!pass.outputs.starts_with(&pass.inputs)).then_some(Action::Unscale),
        kind => kind.judged(),
    }
}

/// A pass of the caller's own may be a clip.
fn clips(pass: &Pass) -> bool {
    matches!(action(pass), Some(Action::ClipNorm | Action::Agc | Action::ClipValue | Action::Own))
}

/// A finished program, and the findings in it.
struct Walk<'p> {
    program: &'p Program,
    facts: Facts,
    found: Vec<Lint>,
    /// Operations that may have a non-finite gradient, without a guard.
    steep: Vec<NodeId>,
}

/// The rules on finished programs.
const RULES: [fn(&mut Walk<'_>); 9] = [
    unclipped_loops,
    value_alone,
    narrow_clips,
    scaled_groups,
    early_passes,
    probes,
    infinite_slopes,
    states::ungated_states,
    random::still_generators,
];

impl<'p> Walk<'p> {
    fn report(&mut self, pitfall: Pitfall, site: Site, message: String) {
        let severity = pitfall.severity();
        self.found.push(Lint { pitfall, severity, message, site: Some(site) });
    }

    fn names(&self, params: impl IntoIterator<Item = Param>) -> String {
        names(&self.program.layout, params)
    }

    fn steps(&self) -> impl Iterator<Item = &'p Pass> + use<'p> {
        self.program.passes.iter().filter(|pass| pass.kind == PassKind::Step)
    }

    /// The passes that have made these gradients, the last one first, and all flat vectors on the way.
    fn history(&self, flats: &[NodeId]) -> (Vec<&'p Pass>, Vec<NodeId>) {
        let mut flats = flats.to_vec();
        let mut passes = vec![];
        for pass in self.program.passes.iter().rev() {
            let made = pass.outputs.iter().any(|out| flats.contains(out));
            if made
                && pass.kind != PassKind::Step
                && (action(pass).is_some() || pass.kind == PassKind::TakeAccumulated || !pass.params.is_empty())
            {
                flats.extend(&pass.inputs);
                passes.push(pass);
            }
        }
        (passes, flats)
    }

    /// The flat gradients that a value is computed from, other than by way of a pass.
    fn looks_at(&self, value: NodeId) -> Vec<NodeId> {
        let program = self.program;
        let passes = &program.passes;
        if passes.iter().any(|pass| pass.outputs.contains(&value)) {
            return vec![]; // A pass taps its own outputs on purpose.
        }
        let is_flat = |id: &NodeId| passes.iter().any(|pass| pass.inputs.contains(id) || pass.outputs.contains(id));
        let inside = |id: NodeId| passes.iter().any(|pass| pass.nodes.contains(&id.0));
        let (mut next, mut seen, mut flats) = (vec![value], HashSet::new(), vec![]);
        while let Some(id) = next.pop() {
            if is_flat(&id) {
                flats.push(id);
            } else if seen.insert(id) && !inside(id) && is_look(&program.node(id).op) {
                next.extend(&program.node(id).inputs);
            }
        }
        flats
    }

    /// The place where the first of some flat vectors was gathered.
    fn origin(&self, flats: &[NodeId]) -> Site {
        let first = flats.last().expect("gradients of something");
        self.program.node(*first).site
    }
}

/// P35: a recurrent or attention model that is trained without a clip.
fn unclipped_loops(walk: &mut Walk<'_>) {
    for step in walk.steps() {
        let (passes, flats) = walk.history(&step.inputs);
        if flats.is_empty() || passes.iter().any(|pass| clips(pass)) {
            continue;
        }
        let nodes = walk.program.nodes();
        let above = ancestors(nodes, step.inputs.iter().copied());
        let marked = |mark| walk.facts.marks.iter().any(|(id, m)| *m == mark && above[id.index()]);
        let model = match (marked(Mark::Recurrent), marked(Mark::Attention)) {
            (true, _) => "a recurrent layer",
            (_, true) => "attention",
            _ => continue,
        };
        let text = format!("{model} is trained, and nothing clips its gradients; clip them by their global norm");
        walk.report(Pitfall::NoClip, walk.origin(&flats), text);
    }
}

/// P20: a clip by value without a clip by norm.
fn value_alone(walk: &mut Walk<'_>) {
    for step in walk.steps() {
        let (passes, _) = walk.history(&step.inputs);
        let by = |wanted| passes.iter().find(|pass| action(pass) == Some(wanted));
        if let (Some(clip), None) = (by(Action::ClipValue), by(Action::ClipNorm).or(by(Action::Own))) {
            let text =
                "gradients are clipped by value alone, which turns them; clip by norm, which keeps the direction";
            walk.report(Pitfall::ClipByValueAlone, clip.site, text.into());
        }
    }
}

/// P42: parameters that a step updates and its clip leaves out.
fn narrow_clips(walk: &mut Walk<'_>) {
    let steps: Vec<_> = walk.steps().map(|step| (step, walk.history(&step.inputs))).collect();
    let norm = |passes: &[&Pass]| passes.iter().any(|pass| action(pass) == Some(Action::ClipNorm));
    let some = steps.iter().any(|(_, (passes, _))| norm(passes));
    for (step, (passes, flats)) in &steps {
        let missed = |clip: &Pass| -> ParamSet { step.params.iter().filter(|p| !clip.params.contains(*p)).collect() };
        let missed = passes.iter().filter(|p| action(p) == Some(Action::ClipNorm)).map(|p| (p.site, missed(p)));
        let partly: Vec<_> = missed.filter(|(_, missed)| !missed.is_empty()).collect();
        for (site, missed) in partly {
            let text = format!(
                "a clip leaves out {}, which the same step updates; clip all of them",
                walk.names(missed.iter())
            );
            walk.report(Pitfall::PartialClip, site, text);
        }
        if some && !flats.is_empty() && !passes.iter().any(|pass| clips(pass)) {
            let text = format!(
                "{} is stepped without the clip that others have; clip all of them",
                walk.names(step.params.iter())
            );
            walk.report(Pitfall::PartialClip, walk.origin(flats), text);
        }
    }
}

/// P43: `scale_grad` of some parameters, and a clip by the norm of all.
fn scaled_groups(walk: &mut Walk<'_>) {
    for step in walk.steps() {
        let (passes, _) = walk.history(&step.inputs);
        let Some(clip) = passes.iter().position(|pass| pass.kind == PassKind::ClipGlobalNorm) else { continue };
        for (i, pass) in passes.iter().enumerate().filter(|(_, pass)| pass.kind == PassKind::ScaleGroup) {
            let some = pass.params.len() < passes[clip].params.len();
            // The last pass comes first.
            let effect = if i > clip {
                "before the clip by the global norm, which then scales all others differently"
            } else {
                "after the clip by the global norm, whose bound then no longer holds"
            };
            if some {
                let whose = walk.names(pass.params.iter());
                let text = format!("the gradients of {whose} are scaled {effect}; change their learning rate instead");
                walk.report(Pitfall::ScaledAroundClip, pass.site, text);
            }
        }
    }
}

/// P9 and P17: passes on the wrong side of the mean over replicas.
fn early_passes(walk: &mut Walk<'_>) {
    for pass in &walk.program.passes {
        let (before, _) = walk.history(&pass.inputs);
        let reduced = before.iter().find(|pass| action(pass) == Some(Action::AllReduce));
        let text = match action(pass) {
            Some(Action::Backward) => {
                "each micro-batch is all-reduced by itself; all-reduce what the window has added up"
            }
            Some(Action::AllReduce) => "gradients are all-reduced that have been already; all-reduce once in a window",
            _ => continue,
        };
        if let Some(reduced) = reduced {
            walk.report(Pitfall::RepeatedAllReduce, reduced.site, text.into());
        }
        let noise = before.iter().find(|pass| matches!(action(pass), Some(Action::Noise { .. })));
        if let (Some(noise), Some(Action::AllReduce)) = (noise, action(pass)) {
            let text =
                "noise is added before the mean over replicas, which averages it away; add it after the all-reduce";
            walk.found.push(Lint {
                pitfall: Pitfall::NoiseOfOneReplica,
                severity: Severity::Warning,
                message: text.into(),
                site: Some(noise.site),
            });
        }
    }
}

/// P24: taps and probes of gradients that are not complete yet, and probes of clipped ones.
fn probes(walk: &mut Walk<'_>) {
    let program = walk.program;
    let before = |wanted: Action| -> Vec<NodeId> {
        let passes = program.passes.iter().filter(|pass| action(pass) == Some(wanted));
        passes.flat_map(|pass| walk.history(&pass.inputs).1).collect()
    };
    let kinds = [
        (before(Action::Unscale), "still carry the loss scale; probe them after `unscale`"),
        (before(Action::AllReduce), "are of one replica; probe them after the all-reduce"),
        (before(Action::Backward), "are of one micro-batch; probe what the accumulator gives"),
    ];
    let mut shown: Vec<(String, Vec<NodeId>, Site)> = vec![];
    for pass in program.passes.iter().filter(|pass| pass.kind == PassKind::Probe) {
        let name = format!("probe {:?}", pass.parameters[0].1);
        if walk.history(&pass.inputs).0.iter().any(|pass| clips(pass)) {
            let text = format!("{name} is of gradients that have been clipped; probe them before the clip");
            walk.found.push(Lint {
                pitfall: Pitfall::MisplacedProbe,
                severity: Severity::Warning,
                message: text,
                site: Some(pass.site),
            });
        }
        shown.push((name, pass.inputs.clone(), pass.site));
    }
    if kinds.iter().any(|(flats, _)| !flats.is_empty()) {
        shown.extend(program.taps.iter().map(|tap| (format!("tap {:?}", tap.name), walk.looks_at(tap.node), tap.site)));
    }
    for (name, flats, site) in shown {
        if let Some((_, what)) = kinds.iter().find(|(before, _)| flats.iter().any(|flat| before.contains(flat))) {
            walk.report(Pitfall::MisplacedProbe, site, format!("{name} is of gradients that {what}"));
        }
    }
}

/// True if an op may be part of a look at a gradient, such as a norm, a maximum, a mean or a histogram.
fn is_look(op: &Op) -> bool {
    let leaf =
        matches!(op, Op::Const(_) | Op::Input(_) | Op::State(_) | Op::Iota(_) | Op::Table(_) | Op::Random { .. });
    !leaf && !matches!(op, Op::MatMul { .. }) && !op.is_fused()
}

/// P38: compositions that have a point with a finite value and a non-finite gradient.
fn infinite_slopes(walk: &mut Walk<'_>) {
    let program = walk.program;
    let above = ancestors(program.nodes(), walk.facts.losses.iter().copied());
    let recorded_by_a_pass = |i: usize| program.passes.iter().any(|pass| pass.nodes.contains(&(i as u32)));
    let backward = |node: &Node| program.scope_path(node.scope).iter().any(|scope| scope.name == "backward");
    for (i, node) in program.nodes().iter().enumerate() {
        if !above[i] || recorded_by_a_pass(i) || backward(node) {
            continue;
        }
        let input = |k: usize| node.inputs[k];
        let text = match node.op {
            Op::Unary(Unary::Sqrt) if square_of(program, input(0)) => {
                "the square root of a square has an infinite slope at 0; use `abs` or `norm`, or add an eps inside the root"
            }
            Op::Unary(Unary::Log) if share_of(program, input(0)) => {
                "the logarithm of a soft-max is infinite where it underflows to 0; use `log_softmax`, `cross_entropy` or `softmax_entropy`"
            }
            Op::Binary(Binary::Div) if magnitude(program, input(1)) => {
                "the divisor can be 0, because it is a norm, a square or an absolute value; add an eps to it"
            }
            Op::Unary(Unary::Recip) if magnitude(program, input(0)) => {
                "the reciprocal's input can be 0, because it is a norm, a square or an absolute value; add an eps to it"
            }
            _ => continue,
        };
        walk.steep.push(NodeId(i as u32));
        walk.report(Pitfall::NonFiniteGradient, node.site, text.into());
    }
}

/// The node that an element comes from, however it was moved.
fn moved(program: &Program, mut id: NodeId) -> NodeId {
    loop {
        let node = program.node(id);
        match node.op {
            Op::Reshape(_) | Op::Permute(_) | Op::Expand(_) | Op::Slice { .. } | Op::Gather(_) | Op::Cast(_) => {
                id = node.inputs[0]
            }
            Op::Custom { args, out, .. } => id = node.inputs[args + out],
            _ => return id,
        }
    }
}

fn constant(program: &Program, id: NodeId) -> Option<f64> {
    match program.node(moved(program, id)).op {
        Op::Const(bits) => Some(f64::from_bits(bits)),
        _ => None,
    }
}

/// True if a value is `x * x`, or `x^2`; a sum or a multiple of such, or its maximum with 0.
fn square_of(program: &Program, id: NodeId) -> bool {
    let node = program.node(moved(program, id));
    let x = &node.inputs;
    let is = |k: usize, wanted: fn(f64) -> bool| constant(program, x[k]).is_some_and(wanted);
    match node.op {
        Op::Binary(Binary::Mul) if x[0] == x[1] => {
            // A function that is never 0 does not reach the infinite slope.
            !matches!(program.node(moved(program, x[0])).op, Op::Unary(Unary::Exp) | Op::Const(_))
        }
        Op::Binary(Binary::Pow) => is(1, |p| p == 2.0),
        Op::Binary(Binary::Mul | Binary::Div) if is(1, |c| c != 0.0) => square_of(program, x[0]),
        Op::Binary(Binary::Max) if is(1, |c| c == 0.0) => square_of(program, x[0]),
        // As in a variance: the mean square less the square of the mean.
        Op::Binary(Binary::Sub) => square_of(program, x[0]) && square_of(program, kept(program, x[1])),
        Op::Select if is(1, |c| c == 0.0) => square_of(program, x[2]),
        Op::Reduce(Reduce::Sum, _) => square_of(program, x[0]),
        _ => false,
    }
}

/// If a value is `-max(-x, -c)`, which bounds x from above, the x; else the value itself.
fn kept(program: &Program, id: NodeId) -> NodeId {
    let input = |id: NodeId, wanted: fn(&Op) -> bool| {
        let node = program.node(moved(program, id));
        wanted(&node.op).then(|| node.inputs[0])
    };
    let negation: fn(&Op) -> bool = |op| matches!(op, Op::Unary(Unary::Neg));
    let largest = input(id, negation).and_then(|x| input(x, |op| matches!(op, Op::Binary(Binary::Max))));
    largest.and_then(|x| input(x, negation)).unwrap_or(id)
}

/// True if a value is `e^x` divided by something, as in a soft-max.
fn share_of(program: &Program, id: NodeId) -> bool {
    let node = program.node(moved(program, id));
    let is_exp = |id| matches!(program.node(moved(program, id)).op, Op::Unary(Unary::Exp));
    match node.op {
        Op::Binary(Binary::Div) => is_exp(node.inputs[0]),
        Op::Binary(Binary::Mul) => {
            let recip = matches!(program.node(moved(program, node.inputs[1])).op, Op::Unary(Unary::Recip));
            is_exp(node.inputs[0]) && recip
        }
        _ => false,
    }
}

/// True if a value is a magnitude, which is 0 where its argument is: a norm, a square, `|x|`.
fn magnitude(program: &Program, id: NodeId) -> bool {
    let node = program.node(moved(program, id));
    let negated =
        |a: NodeId, b: NodeId| matches!(program.node(b).op, Op::Unary(Unary::Neg)) && program.node(b).inputs[0] == a;
    match node.op {
        Op::Reduce(Reduce::Norm, _) => true,
        Op::Binary(Binary::Max) => negated(node.inputs[0], node.inputs[1]),
        Op::Unary(Unary::Sqrt) => square_of(program, node.inputs[0]),
        _ => square_of(program, id),
    }
}

impl Tape {
    /// The parameters whose rows have been picked by index.
    pub(crate) fn looked_up(&self) -> Vec<Param> {
        let inner = self.inner.borrow();
        let mut places = vec![];
        for node in inner.nodes.iter().filter(|node| matches!(node.op, Op::Gather(0))) {
            let mut id = node.inputs[0];
            while matches!(inner.nodes[id.index()].op, Op::Reshape(_) | Op::Cast(_) | Op::Hook(_)) {
                id = inner.nodes[id.index()].inputs[0];
            }
            let node = &inner.nodes[id.index()];
            if let Op::Slice { start, len, .. } = node.op {
                places.push((start, len));
            }
        }
        let is_table = |decl: &crate::store::ParamDecl| places.contains(&(decl.offset, decl.shape.numel()));
        self.layout.params().filter(|(_, decl)| is_table(decl)).map(|(param, _)| param).collect()
    }
}
