//! Finding the operation whose gradient rule is wrong.
//!
//! From the value backwards, the recorded cotangent of each node is compared with the derivative by differences when
//! the node is moved by itself. The first wrong cotangent has consumers whose own cotangents are right: the rule of one
//! of them is wrong.

use super::{
    Gradcheck, GradcheckError, Suspect,
    decisions::Observed,
    differences::{Verdict, direction},
    dot,
    error::Order,
    moved::{MOVED, answerable, moving},
    one_hot,
    subject::{Recorded, Subject, shifted},
};
use crate::{Array, DType, NodeId, Program, Session, Tape, Tensor, node::Node, op::Op};

/// The number of a node's elements that are tried if a kink lies in the node's random direction.
const SINGLE: usize = 16;

impl Gradcheck {
    /// The operation whose rule is wrong. `None` if kinks are near all nodes that would show it.
    pub(super) fn blame<F: for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>>(
        &self,
        session: &mut Session,
        subject: &Subject<'_, F>,
        order: Order,
    ) -> Result<Option<Suspect>, GradcheckError> {
        let tape = Tape::new(session.layout().clone());
        let Recorded { value, leaves } = subject.record(&tape, order)?;
        let nodes: Vec<NodeId> = carriers(&tape, &leaves, value.id);
        let tensors: Vec<Tensor<'_>> = nodes.iter().map(|&id| Tensor { tape: &tape, id }).collect();
        let cotangents = value.grad_wrt(&tensors);
        let end = value.id;
        for (i, (x, g)) in tensors.iter().zip(&cotangents).enumerate() {
            tape.tap(&format!("value{i}"), *x);
            tape.tap(&format!("cotangent{i}"), g.unwrap_or(x.zeros_like()));
        }
        let mut program = tape.finish();
        program.commits.clear();
        let step = session.compile(program.clone())?;
        let shown = session.run_now(&step, &subject.arrays().named())?;
        let shown: Vec<&Array> = shown.iter().map(|(_, array)| array).collect();
        // Differences of narrower values, such as an f32 loss scale, are too coarse.
        let wide = |(i, _): &(usize, &NodeId)| shown[2 * i].dtype() == DType::F64;
        for (i, &node) in nodes.iter().enumerate().rev().filter(wide) {
            let (at, cotangent) = (shown[2 * i], shown[2 * i + 1].to_f64());
            if node != end && self.is_wrong(session, subject, moving(&program, node, end), at, &cotangent)? {
                let suspect = consumer(&program, &nodes, node);
                let Node { op, site, .. } = program.node(suspect);
                return Ok(Some(Suspect { op: op.name(), node: suspect, site: *site }));
            }
        }
        Ok(None)
    }

    /// True if differences contradict the cotangent when its node is moved.
    fn is_wrong<F: for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>>(
        &self,
        session: &mut Session,
        subject: &Subject<'_, F>,
        program: Program,
        at: &Array,
        cotangent: &[f64],
    ) -> Result<bool, GradcheckError> {
        let numel = at.shape().numel();
        if numel == 0 {
            return Ok(false);
        }
        let observed = Observed::new(program)?;
        let step = session.compile(observed.program.clone())?;
        let arrays = subject.arrays();
        let mut run = |moved: &Array| {
            let inputs: Vec<(&str, &Array)> = arrays.named().into_iter().chain([(MOVED, moved)]).collect();
            session.run_now(&step, &inputs)
        };
        let base = run(at)?;
        let single = (0..numel.min(SINGLE)).map(|i| one_hot(i, numel));
        for direction in std::iter::once(direction(self.seed, &[], numel)).chain(single) {
            let numeric = self.numeric(&observed, &base, |h| Ok(run(&shifted(at, &direction, h))?))?;
            // A wrong element shows in a direction that moves all elements. Another direction is tried only after a
            // kink.
            if let Some(numeric) = numeric {
                return Ok(matches!(self.judge(dot(cotangent, &direction), numeric), Verdict::Wrong { .. }));
            }
        }
        Ok(false)
    }
}

/// The float nodes through which the gradient of a value by some leaves flows, or should flow, in the order of the
/// tape. The nodes inside a composition with a rule of its own are left out: the rule stands for them. So are nodes
/// that do not depend on the leaves, such as a constant that the function shares with the checker.
fn carriers(tape: &Tape, leaves: &[Tensor<'_>], value: NodeId) -> Vec<NodeId> {
    let nodes = &tape.inner.borrow().nodes[..=value.index()];
    let answerable: Vec<Vec<NodeId>> = nodes.iter().map(|node| answerable(nodes, node)).collect();
    let mut depends = vec![false; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        let on_leaf = leaves.iter().any(|leaf| leaf.id.index() == i);
        depends[i] = node.dtype.is_float() && (on_leaf || answerable[i].iter().any(|input| depends[input.index()]));
    }
    let mut carries = vec![false; nodes.len()];
    carries[value.index()] = true;
    for i in (0..nodes.len()).rev() {
        carries[i] &= depends[i];
        if carries[i] {
            answerable[i].iter().for_each(|input| carries[input.index()] = true);
        }
    }
    (0..=value.0).map(NodeId).filter(|id| carries[id.index()]).collect()
}

/// The node whose rule is wrong, given the last node whose cotangent is wrong. Rules that come with the function are
/// suspected before those of this crate. A hook is suspected itself, because the cotangent of its node is its own
/// result.
fn consumer(program: &Program, carriers: &[NodeId], wrong: NodeId) -> NodeId {
    if matches!(program.node(wrong).op, Op::Hook(_)) {
        return wrong;
    }
    let reads = |id: &&NodeId| answerable(&program.nodes, program.node(**id)).contains(&wrong);
    let foreign = |id: &NodeId| matches!(program.node(*id).op, Op::Custom { .. } | Op::Detach);
    let readers: Vec<NodeId> = carriers.iter().filter(reads).copied().collect();
    let suspect = readers.iter().find(|id| foreign(id)).or(readers.first());
    *suspect.expect("a node that carries a gradient has a consumer that does")
}
