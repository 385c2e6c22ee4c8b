//! Lowering: the program that a device is given. Fused ops that the device has no kernel for become their
//! decompositions, or, over f16, the same op over f32. Nodes that nothing depends on, and arithmetic that changes
//! nothing, are left out.

use crate::{
    DType, Program, Tape, Tensor,
    node::{NodeId, ScopeId},
    op::{Op, Typed, fused},
    recorded::{Pass, TapDecl},
    simplify::simplified,
};

/// The state of a copy of a program to another tape, node by node.
struct Lowering<'p, 't, F> {
    program: &'p Program,
    tape: &'t Tape,
    claims: F,
    simplify: bool,
    rank: usize,
    /// For each scope of the program, the scope on the new tape.
    scopes: Vec<ScopeId>,
    /// For each node that is used and has been visited, the new tensor.
    made: Vec<Option<Tensor<'t>>>,
}

impl Program {
    /// The same program with every fused op that is not claimed replaced by its decomposition, recorded in the scope
    /// and at the line of the op. Inputs keep their order. Nodes that no commit, tap or pass depends on are left out,
    /// but an op of several outputs keeps all of them. (In the printed parameters of passes, nodes have their old
    /// names.)
    ///
    /// With `simplify`, constants are folded and identities dropped, which changes no bit of any result, except that
    /// `x^2` becomes `x * x`, where a device's power may differ in the last place.
    ///
    /// Stretches that ranks share out ([`Op::Part`]) become those of rank 0.
    #[must_use]
    pub fn lowered(&self, simplify: bool, claims: impl Fn(&Op, &[Typed]) -> bool) -> Program {
        self.lowered_for(0, simplify, claims)
    }

    /// As [`Program::lowered`], for one of its ranks.
    #[must_use]
    pub(crate) fn lowered_for(&self, rank: usize, simplify: bool, claims: impl Fn(&Op, &[Typed]) -> bool) -> Program {
        let tape = Tape::for_ranks(self.layout.clone(), self.ranks);
        let mut scopes: Vec<ScopeId> = vec![ScopeId(0)];
        for scope in &self.scopes[1..] {
            // A scope's parent precedes it.
            scopes.push(tape.child_scope(scopes[scope.parent.0 as usize], &scope.name, scope.turn));
        }
        let used = self.used();
        let made = vec![None; self.nodes.len()];
        let mut lowering = Lowering { program: self, tape: &tape, claims, simplify, rank, scopes, made };
        let mut starts = Vec::with_capacity(self.nodes.len() + 1);
        for (i, used) in used.into_iter().enumerate() {
            starts.push(tape.len());
            if used {
                lowering.node(NodeId(i as u32));
            }
        }
        starts.push(tape.len());
        let made: Vec<Option<NodeId>> = lowering.made.into_iter().map(|made| Some(made?.id)).collect();
        let to = |id: &NodeId| made[id.index()].expect("a used node has been made");
        let all = |ids: &[NodeId]| ids.iter().map(to).collect();
        let commits = self.commits.iter().map(|(state, id)| (*state, to(id))).collect();
        let taps = self.taps.iter().map(|tap| TapDecl { node: to(&tap.node), ..tap.clone() }).collect();
        let passes = self.passes.iter().map(|pass| Pass {
            inputs: all(&pass.inputs),
            outputs: all(&pass.outputs),
            nodes: starts[pass.nodes.start as usize]..starts[pass.nodes.end as usize],
            ..pass.clone()
        });
        let (inputs, passes, unreached) = (self.inputs.clone(), passes.collect(), self.unreached.clone());
        let lints = self.lints.clone();
        Program { inputs, commits, taps, passes, unreached, lints, ..tape.finish() }
    }

    /// Marks the nodes that a commit, a tap or a pass depends on, and the other outputs of their ops.
    fn used(&self) -> Vec<bool> {
        let mut used = self.live();
        for id in self.passes.iter().flat_map(|pass| pass.inputs.iter().chain(&pass.outputs)) {
            used[id.index()] = true;
        }
        for i in (0..used.len()).rev() {
            if used[i] {
                let (outputs, out) = self.nodes[i].op.outputs();
                // The outputs of an op read the same inputs, and follow one another.
                used[i - out..i - out + outputs].fill(true);
                self.nodes[i].inputs.iter().for_each(|input| used[input.index()] = true);
            }
        }
        used
    }
}

impl<'t, F: Fn(&Op, &[Typed]) -> bool> Lowering<'_, 't, F> {
    /// True if the device has a kernel for a fused op over inputs of these types.
    fn is_claimed(&self, op: &Op, x: &[Tensor<'t>], dtype: impl Fn(Tensor<'t>) -> DType) -> bool {
        let typed: Vec<Typed> = x.iter().map(|x| (x.shape(), dtype(*x))).collect();
        (self.claims)(op, &typed)
    }

    /// Records the new form of a node. Its inputs have been visited.
    fn node(&mut self, id: NodeId) {
        if self.made[id.index()].is_some() {
            return; // It was made with the first output of its op.
        }
        let node = self.program.node(id);
        let x: Vec<Tensor<'t>> =
            node.inputs.iter().map(|input| self.made[input.index()].expect("inputs come first")).collect();
        let tape = self.tape;
        tape.in_scope(self.scopes[node.scope.0 as usize], || {
            tape.at_site(node.site, || {
                if node.op.is_fused() && !self.is_claimed(&node.op, &x, Tensor::dtype) {
                    let wide = self.is_claimed(&node.op, &x, Tensor::wide).then(|| fused::widened(&node.op, &x));
                    let outputs = wide.flatten().unwrap_or_else(|| node.op.decompose(&x));
                    let first = id.index() - node.op.outputs().1;
                    outputs.into_iter().enumerate().for_each(|(k, y)| self.made[first + k] = Some(y));
                } else if let Op::Part(part) = node.op {
                    self.made[id.index()] = Some(part.at(self.rank, x[0]));
                } else if let Some(simple) = self.simplify.then(|| simplified(&node.op, &x)).flatten() {
                    self.made[id.index()] = Some(simple);
                } else {
                    let inputs = x.iter().map(|x| x.id).collect();
                    let typed = (node.shape.clone(), node.dtype);
                    self.made[id.index()] = Some(tape.push_typed(node.op.clone(), inputs, typed));
                }
            });
        });
    }
}
