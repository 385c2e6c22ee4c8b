//! Closures that take part in recording: gradient hooks, gradient rules of compositions, checkpoints and probes.
//!
//! They run while the tape is recorded, never while the program runs: the nodes that they record are part of the
//! program.
//!
//! The rules of gradient hooks:
//!
//! 1. A hook is registered on a tensor that a gradient can flow to; on any other it is refused. It returns the gradient
//!    that it was given, or a replacement.
//! 2. It is given the total gradient of all uses of the hooked tensor, once per reverse sweep.
//! 3. Several run in the order of registration; each is given the result of the one before.
//! 4. A replacement has the gradient's shape and type.
//! 5. A retained gradient is the result of all hooks of its tensor, those registered later too.
//! 6. A hook of a parameter sees the gradient of one sweep, before it is added to anything;
//!    [`crate::Accumulator::on_accumulated`] sees the running sum after the addition.
//! 7. [`Tensor::grad_wrt`] runs hooks of parameters, but not `on_accumulated`: it accumulates nothing.
//! 8. A parameter that is used twice has one gradient, and its hook is called once, even if other parameters are
//!    stepped in between. Without a gradient the hook is not called. A hook is part of the recording, so none is ever
//!    removed.
//! 9. The nodes that a hook records are differentiated like all others. A hook that returns a constant cuts second
//!    derivatives.
//! 10. Hooks run within the sweep: they see the gradient of one micro-batch and one replica, still scaled if the loss
//!     is. A clip there is not the clip of the whole gradient ([`crate::Pitfall::PassOnPartialWindow`]), and a norm
//!     logged there is not the norm of the update ([`crate::Pitfall::MisplacedProbe`]).

use crate::{
    Tensor,
    node::NodeId,
    op::{HookId, Op, RuleId},
    store::Param,
    tape::Tape,
};
use std::{ops::Range, rc::Rc};

/// One registered hook: a function of the total cotangent and of the tensors that the hook was registered with.
type HookFn = Rc<dyn for<'t> Fn(Tensor<'t>, &[Tensor<'t>]) -> Tensor<'t>>;

/// The hooks of one tensor, in the order in which they were registered.
#[derive(Clone, Default)]
pub(crate) struct HookFns {
    /// The hooks, each with the range of the node's inputs that it takes.
    fns: Vec<(HookFn, Range<usize>)>,
    /// The names under which the gradient is tapped after all hooks.
    retained: Vec<String>,
}

impl HookFns {
    /// Appends a hook that takes the node's inputs from `start` on, not counting the first.
    fn push<const N: usize>(
        &mut self,
        start: usize,
        hook: impl for<'a> Fn(Tensor<'a>, [Tensor<'a>; N]) -> Tensor<'a> + 'static,
    ) {
        let call: HookFn = Rc::new(move |g, x| hook(g, x.try_into().expect("as many as were registered")));
        self.fns.push((call, start..start + N));
    }
}

/// Panics if a hook's result does not have the shape and type of the gradient.
#[track_caller]
pub(crate) fn check_replacement(g: Tensor<'_>, replaced: Tensor<'_>) {
    assert!(
        replaced.shape() == g.shape() && replaced.dtype() == g.dtype(),
        "a hook must keep shape and type: {}{} became {}{}{}",
        g.dtype(),
        g.shape(),
        replaced.dtype(),
        replaced.shape(),
        g.tape().recorded_at()
    );
}

/// The arguments of a composition's gradient rule.
pub struct Vjp<'a, 't> {
    /// The arguments of the composition.
    pub inputs: &'a [Tensor<'t>],
    /// The outputs of the composition.
    pub outputs: &'a [Tensor<'t>],
    /// The cotangents of the outputs; `None` for an output that nothing flows back to.
    pub cotangents: &'a [Option<Tensor<'t>>],
}

pub(crate) type RuleFn = Rc<dyn for<'a, 't> Fn(Vjp<'a, 't>) -> Vec<Option<Tensor<'t>>>>;

/// The gradient rule of a composition of the library over some axes.
pub(crate) type OwnRule = for<'v, 'a, 't> fn(&[usize], &'v Vjp<'a, 't>) -> Vec<Option<Tensor<'t>>>;

/// The handler of tensors that modules mark as worth watching.
pub(crate) type Probe = Rc<dyn for<'t> Fn(&str, Tensor<'t>) -> Tensor<'t>>;

/// The handler of [`Tape::with_rewrite`], which may replace operations.
pub(crate) type Rewrite = Rc<dyn for<'t> Fn(&Op, &[Tensor<'t>]) -> Option<Tensor<'t>>>;

impl Tape {
    /// A composition with a gradient rule of its own: `f` maps `inputs` to outputs and runs once, now; `rule` maps the
    /// cotangents of the outputs to one cotangent per input (`None`: no gradient) and runs in each reverse sweep. The
    /// rule is recorded like anything else, so it can be differentiated again.
    ///
    /// ```
    /// # use wgrad::{DType, Tape};
    /// // Identity forward, gradient times ten backward.
    /// let t = Tape::default();
    /// let x = t.input("x", [2], DType::F64);
    /// let y = t.custom_vjp(&[x], |x| vec![x[0]], |v| vec![v.cotangents[0].map(|g| g * 10.0)]);
    /// let dx = y[0].sum().grad_wrt(&[x]);
    /// # assert!(dx[0].is_some());
    /// ```
    ///
    /// # Panics
    /// If `inputs` or the outputs are empty; in a sweep, if the rule gives another number of cotangents than inputs.
    #[track_caller]
    pub fn custom_vjp<'t>(
        &'t self,
        inputs: &[Tensor<'t>],
        f: impl FnOnce(&[Tensor<'t>]) -> Vec<Tensor<'t>>,
        rule: impl for<'a, 'u> Fn(Vjp<'a, 'u>) -> Vec<Option<Tensor<'u>>> + 'static,
    ) -> Vec<Tensor<'t>> {
        let outputs = f(inputs);
        assert!(!inputs.is_empty() && !outputs.is_empty(), "custom_vjp: needs at least one input and one output");
        self.with_rule(self.new_rule(Rc::new(rule)), inputs, &outputs)
    }

    /// The outputs of a composition, differentiated by a rule.
    #[track_caller]
    fn with_rule<'t>(&'t self, rule: RuleId, inputs: &[Tensor<'t>], outputs: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
        let all: Vec<Tensor<'t>> = inputs.iter().chain(outputs).copied().collect();
        let (args, outs) = (inputs.len(), outputs.len());
        // A loop, not a closure: the nodes name the caller's line.
        let mut nodes = Vec::with_capacity(outs);
        for out in 0..outs {
            nodes.push(self.push(Op::Custom { rule, args, outs, out }, &all));
        }
        nodes
    }

    pub(crate) fn run_rule<'t>(
        &'t self,
        rule: RuleId,
        inputs: &[Tensor<'t>],
        outputs: &[Tensor<'t>],
        cotangents: &[Option<Tensor<'t>>],
    ) -> Vec<Option<Tensor<'t>>> {
        let rule = self.inner.borrow().closures.rules[rule.0 as usize].clone();
        let result = rule(Vjp { inputs, outputs, cotangents });
        let (want, have) = (inputs.len(), result.len());
        let line = self.recorded_at();
        assert!(have == want, "custom_vjp: the rule gives {have} cotangents for {want} inputs{line}");
        result
    }

    /// Registers a hook on a parameter: see [`Tensor::on_grad`]. It acts on reads of the parameter that follow,
    /// whatever value the parameter has then; several run in the order in which they were registered, on the total
    /// gradient, once per sweep.
    #[track_caller]
    pub fn on_param_grad(&self, param: Param, hook: impl for<'a> Fn(Tensor<'a>) -> Tensor<'a> + 'static) {
        self.layout.param(param);
        let known = self.inner.borrow().closures.param_hooks.get(&param).copied();
        let mut fns = known.map_or(HookFns::default(), |id| self.inner.borrow().closures.hooks[id.0 as usize].clone());
        fns.push(0, move |g, []| hook(g));
        let id = self.new_hook(fns);
        self.inner.borrow_mut().closures.param_hooks.insert(param, id);
    }

    pub(crate) fn run_hooks<'t>(&'t self, hook: HookId, g: Tensor<'t>, with: &[Tensor<'t>]) -> Tensor<'t> {
        let HookFns { fns, retained } = self.inner.borrow().closures.hooks[hook.0 as usize].clone();
        let total = self.scoped("hook", || {
            fns.iter().fold(g, |g, (f, inputs)| {
                let replaced = f(g, &with[inputs.clone()]);
                self.own(replaced, "hook");
                check_replacement(g, replaced);
                replaced
            })
        });
        retained.iter().for_each(|name| self.tap_each(name, total));
        total
    }

    /// True if a gradient can flow to an input, a state or a parameter that the tensor is, or was computed from. No
    /// gradient flows to constants, random numbers or detached values.
    pub(crate) fn takes_gradients(&self, x: Tensor<'_>) -> bool {
        let nodes = &self.inner.borrow().nodes;
        let (mut seen, mut open) = (std::collections::HashSet::new(), vec![x.id]);
        while let Some(id) = open.pop() {
            let node = &nodes[id.index()];
            if !node.carries() || !seen.insert(id) {
                continue;
            }
            if matches!(node.op, Op::Input(_) | Op::State(_)) {
                return true;
            }
            open.extend(node.differentiated());
        }
        false
    }

    /// Records `f`; a reverse sweep recomputes the nodes that `f` recorded instead of reading them, so that nothing
    /// within needs to be kept between forward and backward (Chen et al. 2016, "Training deep nets with sublinear
    /// memory cost"). Checkpoints nest.
    ///
    /// Gradients are bitwise the same as without a checkpoint. Gradients of gradients agree up to rounding: where
    /// forward and backward compute the same value, a checkpoint computes it twice, and its cotangents are added in
    /// another order.
    ///
    /// Everything recorded within takes effect once: the recomputation uses the same random numbers, a state (the
    /// running statistics of a batch normalisation, say) is assigned once, and hooks run once per sweep. This rules out
    /// [`crate::Pitfall::ChangedRecomputation`].
    pub fn checkpoint<R>(&self, f: impl FnOnce() -> R) -> R {
        let start = self.len();
        let result = f();
        let range = start..self.len();
        self.inner.borrow_mut().checkpoints.push(range);
        result
    }

    /// Records `f` with a handler for [`Tensor::probe`]: it sees each probed tensor with its path, and returns the
    /// tensor to use in its place (the tensor itself, or the tensor with a hook). An outer handler sees that tensor
    /// next.
    pub fn with_probe<R>(
        &self,
        handler: impl for<'t> Fn(&str, Tensor<'t>) -> Tensor<'t> + 'static,
        f: impl FnOnce() -> R,
    ) -> R {
        let before = self.inner.borrow().here.probe.clone();
        let both: Probe = match before.clone() {
            None => Rc::new(handler),
            Some(outer) => Rc::new(move |path, x| {
                let x = handler(path, x);
                outer(path, x)
            }),
        };
        self.inner.borrow_mut().here.probe = Some(both);
        let result = f();
        self.inner.borrow_mut().here.probe = before;
        result
    }

    /// Records `f` with a handler that sees each operation with inputs before it is recorded, and may return a tensor
    /// to use in its place. So a program can be changed while it is recorded, without its source. [`Tape::scope_path`]
    /// and [`Tape::site`] say where the operation is recorded. The handler does not see the operations that it records
    /// itself. Of nested handlers, only the innermost is called.
    ///
    /// ```
    /// use wgrad::{DType, Tape, op::Op};
    /// let t = Tape::default();
    /// let x = t.input("x", [3], DType::F64);
    /// let y = t.with_rewrite(|op, x| (*op == Op::Detach).then(|| x[0]), || x.detach().square().sum());
    /// assert!(y.grad_wrt(&[x])[0].is_some());
    /// ```
    pub fn with_rewrite<R>(
        &self,
        handler: impl for<'t> Fn(&Op, &[Tensor<'t>]) -> Option<Tensor<'t>> + 'static,
        f: impl FnOnce() -> R,
    ) -> R {
        let before = self.inner.borrow_mut().here.rewrite.replace(Rc::new(handler));
        let result = f();
        self.inner.borrow_mut().here.rewrite = before;
        result
    }

    /// A handler's substitute for an operation, if there is one.
    #[track_caller]
    pub(crate) fn rewritten<'t>(&'t self, op: &Op, x: &[Tensor<'_>]) -> Option<Tensor<'t>> {
        let handler = self.inner.borrow_mut().here.rewrite.take()?;
        let own: Vec<Tensor<'t>> = x.iter().map(|x| Tensor { tape: self, id: x.id }).collect();
        let other = self.at_site(self.site(), || handler(op, &own));
        self.inner.borrow_mut().here.rewrite = Some(handler);
        other.inspect(|other| _ = self.own(*other, "rewrite"))
    }

    /// The current scope's path, its parts joined by `/`.
    pub fn scope_path(&self) -> String {
        let mut parts = vec![];
        let mut id = self.current_scope();
        while id.0 != 0 {
            let scope = self.scope(id);
            parts.push(scope.turn.map_or(scope.name.clone(), |turn| format!("{}[{turn}]", scope.name)));
            id = scope.parent;
        }
        parts.reverse();
        parts.join("/")
    }
}

impl<'t> Tensor<'t> {
    /// Gives one gradient rule to outputs that were recorded from this tensor over some axes, and returns the first of
    /// them. The rule, known by its name, loses fewer digits than the rules of the steps.
    #[track_caller]
    pub(crate) fn composed(self, name: &'static str, axes: &[usize], outputs: &[Self], rule: OwnRule) -> Self {
        self.tape.with_rule(self.tape.own_rule(name, axes, rule), &[self], outputs)[0]
    }

    /// Registers a hook on the gradient of this tensor: use the tensor that is returned. In each reverse sweep the hook
    /// is given the total gradient of all uses of the returned tensor, and its result flows on in place of that. On a
    /// tensor that has hooks already, the new one is appended: hooks run in the order in which they were registered.
    ///
    /// ```
    /// # use wgrad::{DType, Tape};
    /// let t = Tape::default();
    /// let x = t.input("x", [3], DType::F64);
    /// let h = x.tanh().on_grad(|g| g.clamp(-0.1, 0.1)).retain_grad("h/gradient");
    /// let dx = (h * h).sum().grad_wrt(&[x]);
    /// # assert!(dx[0].is_some());
    /// ```
    ///
    /// # Panics
    /// If no gradient can flow to the tensor: it is of integers, detached, or computed from constants alone; in a
    /// sweep, if the hook changes the gradient's shape or type.
    #[track_caller]
    pub fn on_grad(self, hook: impl for<'a> Fn(Tensor<'a>) -> Tensor<'a> + 'static) -> Self {
        self.on_grad_with([], move |g, []| hook(g))
    }

    /// A hook that uses other tensors of the tape; no gradient flows to them from here.
    #[track_caller]
    pub fn on_grad_with<const N: usize>(
        self,
        with: [Tensor<'t>; N],
        hook: impl for<'a> Fn(Tensor<'a>, [Tensor<'a>; N]) -> Tensor<'a> + 'static,
    ) -> Self {
        let (mut fns, mut inputs) = self.hooks("on_grad");
        inputs.extend(with.map(|x| self.tape.own(x, "on_grad_with")));
        fns.push(inputs.len() - 1 - N, hook);
        self.hooked(fns, inputs)
    }

    /// True if a gradient can flow to this tensor, so that [`Tensor::on_grad`] may be called: it is of floats, neither
    /// detached nor computed from constants alone.
    pub fn requires_grad(self) -> bool {
        self.dtype().is_float() && self.tape.takes_gradients(self)
    }

    /// Shows the gradient of this tensor to the host, as a tap of this name: use the tensor that is returned. It is the
    /// gradient after all of the tensor's hooks, those registered later too. Each reverse sweep that reaches the tensor
    /// taps once: the second as `<name>#2`.
    ///
    /// For the gradient of a parameter, see [`crate::Grads::get`].
    ///
    /// # Panics
    /// If no gradient can flow to the tensor: see [`Tensor::on_grad`].
    #[track_caller]
    pub fn retain_grad(self, name: &str) -> Self {
        let (mut fns, inputs) = self.hooks("retain_grad");
        fns.retained.push(name.into());
        self.hooked(fns, inputs)
    }

    /// The hooks of this tensor, and the inputs of the node that holds them.
    #[track_caller]
    fn hooks(self, what: &str) -> (HookFns, Vec<NodeId>) {
        let (dtype, line) = (self.dtype(), self.tape.recorded_at());
        assert!(dtype.is_float(), "{what}: {dtype} has no gradient{line}");
        assert!(
            self.tape.takes_gradients(self),
            "{what}: no gradient flows to this {dtype}{}, which is detached or computed from constants alone{line}",
            self.shape()
        );
        let node = self.tape.node(self.id);
        // A hooked tensor gets one node with the longer list, so that hooks run in the order of registration.
        match node.op {
            Op::Hook(id) => (self.tape.inner.borrow().closures.hooks[id.0 as usize].clone(), node.inputs.into_vec()),
            _ => (HookFns::default(), vec![self.id]),
        }
    }

    #[track_caller]
    fn hooked(self, fns: HookFns, inputs: Vec<NodeId>) -> Self {
        let hook = Op::Hook(self.tape.new_hook(fns));
        let inputs: Vec<Tensor<'t>> = inputs.into_iter().map(|id| Tensor { tape: self.tape, id }).collect();
        self.tape.push(hook, &inputs)
    }

    /// Marks this tensor as worth watching, under the current scope and this name; use the tensor that is returned.
    /// It is the same one unless the recording has a handler: see [`Tape::with_probe`].
    #[track_caller]
    pub fn probe(self, name: &str) -> Self {
        let handler = self.tape.inner.borrow().here.probe.clone();
        let Some(handler) = handler else { return self };
        let scope = self.tape.scope_path();
        let path = if scope.is_empty() { name.to_string() } else { format!("{scope}/{name}") };
        handler(&path, self)
    }
}
