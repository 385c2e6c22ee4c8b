//! The tape: an append-only, hash-consed list of nodes, with the scope and source line of each.
//!
//! A node's inputs always have smaller ids than the node, so id order is a topological order, and a range of ids is a
//! stretch of the program.

mod call;
pub(crate) mod hook;
mod leaves;
mod scopes;
pub(crate) mod versions;

pub use call::Call;
pub use hook::Vjp;
pub use scopes::Entered;

use crate::{
    DType, Site, Tensor,
    lints::facts::Facts,
    node::{Checkpoint, Node, NodeId, Scope, ScopeId},
    op::{HookId, Op, RuleId, Typed},
    random::fnv1a,
    recorded::{Alarm, Event, InputDecl, Pass, PassKind, TapDecl},
    store::{Layout, Param, ParamSet, StateId},
};
use call::Named;
use hook::{HookFns, OwnRule, Probe, Rewrite, RuleFn};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
};
use versions::Versions;

/// The circumstances that the next node is recorded in.
#[derive(Default)]
pub(crate) struct Here {
    pub scope: Option<ScopeId>,
    pub site: Option<Site>,
    /// The function that is being recorded.
    pub named: Option<Named>,
    pub autocast: Option<DType>,
    /// True if `autocast` has made anything compute in f16.
    pub half: bool,
    pub probe: Option<Probe>,
    pub rewrite: Option<Rewrite>,
}

/// The values of states.
#[derive(Default)]
pub(crate) struct States {
    /// The current value of each state: the last one assigned.
    pub now: BTreeMap<StateId, NodeId>,
    /// The values that replace states within [`Tape::with_params`], the innermost last.
    pub rebound: Vec<BTreeMap<StateId, NodeId>>,
    pub versions: Versions,
}

/// The functions of the host that run while gradients are recorded.
#[derive(Default)]
pub(crate) struct Closures {
    pub param_hooks: HashMap<Param, HookId>,
    pub hooks: Vec<HookFns>,
    pub rules: Vec<RuleFn>,
    pub own_rules: HashMap<(&'static str, Box<[usize]>), RuleId>,
}

/// The use of random numbers.
#[derive(Default)]
pub(crate) struct Chance {
    /// The number of random streams of each path.
    pub streams: HashMap<String, u64>,
    /// The counters that gradient noise is drawn at.
    pub noise: Vec<StateId>,
    /// The counters that advance with every run.
    pub advanced: Vec<StateId>,
    /// The keys that all ranks must have in common.
    pub shared: Vec<StateId>,
}

/// The notes of passes, accumulators and scalers. The tape keeps them for the program, and reads none of them itself.
#[derive(Default)]
pub(crate) struct Training {
    pub passes: Vec<Pass>,
    pub unreached: Vec<Param>,
    /// The taps that may be errors.
    pub alarms: Vec<Alarm>,
    /// The effects of runs on windows of accumulators.
    pub events: Vec<(Event, Site)>,
    /// The losses whose gradients go into each accumulator.
    pub accumulated: Vec<(StateId, NodeId)>,
    /// The value of each loss scale that a loss was last multiplied by.
    pub scaled_by: BTreeMap<StateId, NodeId>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub nodes: Vec<Node>,
    seen: HashMap<(Op, Box<[NodeId]>, DType), NodeId>,
    barriers: u32,
    pub checkpoints: Vec<Checkpoint>,
    pub scopes: Vec<Scope>,
    scope_ids: HashMap<Scope, ScopeId>,
    pub inputs: Vec<InputDecl>,
    pub taps: Vec<TapDecl>,
    pub here: Here,
    pub states: States,
    pub closures: Closures,
    pub chance: Chance,
    pub training: Training,
    pub facts: Facts,
}

/// A program while it is being recorded.
///
/// ```
/// use wgrad::{DType, Tape};
/// let t = Tape::default();
/// let x = t.input("x", [3], DType::F64);
/// let y = (x * x).sum();
/// let dx = y.grad_wrt(&[x])[0].expect("y reaches x");
/// t.tap("dx", dx);
/// println!("{}", t.finish());
/// ```
pub struct Tape {
    pub(crate) layout: Arc<Layout>,
    pub(crate) ranks: usize,
    pub(crate) inner: RefCell<Inner>,
}

impl Default for Tape {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Tape {
    /// An empty tape over the states and parameters that a store declares.
    pub fn new(layout: Arc<Layout>) -> Self {
        Self::for_ranks(layout, 1)
    }

    /// As [`Tape::new`], for a program that `ranks` ranks run together.
    pub fn for_ranks(layout: Arc<Layout>, ranks: usize) -> Self {
        let root = Scope { parent: ScopeId(0), name: String::new(), turn: None };
        Self { layout, ranks, inner: RefCell::new(Inner { scopes: vec![root], ..Inner::default() }) }
    }

    /// The declarations of the store that the tape is recorded over.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    // Recording.

    /// Appends a node, or finds the equal one: same op, inputs and dtype compute the same value.
    #[track_caller]
    pub(crate) fn push_typed(&self, op: Op, inputs: Box<[NodeId]>, (shape, dtype): Typed) -> Tensor<'_> {
        let mut inner = self.inner.borrow_mut();
        let key = (op, inputs, dtype);
        if let Some(&id) = inner.seen.get(&key) {
            return Tensor { tape: self, id };
        }
        let id = NodeId(inner.nodes.len() as u32);
        let (op, inputs, _) = key.clone();
        inner.seen.insert(key, id);
        let scope = inner.here.scope.unwrap_or(ScopeId(0));
        let site = inner.here.site.unwrap_or(Site::caller());
        inner.nodes.push(Node { op, inputs, shape, dtype, scope, site });
        Tensor { tape: self, id }
    }

    /// Appends an op, its shape inferred.
    ///
    /// # Panics
    /// If the inputs do not fit the op, naming the op and their shapes at the caller's line.
    #[track_caller]
    pub(crate) fn push(&self, op: Op, x: &[Tensor<'_>]) -> Tensor<'_> {
        for x in x {
            self.own(*x, op.name());
        }
        if let Some(other) = self.rewritten(&op, x) {
            return other;
        }
        let typed: Vec<Typed> = x.iter().map(|x| (x.shape(), x.dtype())).collect();
        match op.infer(&typed) {
            Ok((shape, dtype)) => {
                // The size in bytes must fit an isize: otherwise the arithmetic of strides would wrap.
                let bytes = shape.iter().try_fold(dtype.size() as isize, |n, &d| n.checked_mul(d.try_into().ok()?));
                self.require(bytes.is_some(), op.name(), x, || format!("{dtype}{shape} is larger than memory can be"));
                self.push_typed(op, x.iter().map(|x| x.id).collect(), (shape, dtype))
            }
            Err(why) => panic!("{}", self.refusal(op.name(), x, &why)),
        }
    }

    /// The node of a tensor of this tape.
    #[track_caller]
    pub(crate) fn own(&self, x: Tensor<'_>, what: &str) -> NodeId {
        assert!(std::ptr::eq(x.tape, self), "{what}: the tensor belongs to another tape{}", self.recorded_at());
        x.id
    }

    /// The end of a message: the line that nodes are attributed to.
    #[track_caller]
    pub(crate) fn recorded_at(&self) -> String {
        format!(" (recorded at {})", self.site())
    }

    /// The line that nodes are attributed to.
    #[track_caller]
    pub fn site(&self) -> Site {
        self.inner.borrow().here.site.unwrap_or(Site::caller())
    }

    /// A node that has been recorded.
    ///
    /// # Panics
    /// If the tape has fewer nodes.
    #[track_caller]
    pub fn node(&self, id: NodeId) -> Node {
        assert!(id.0 < self.len(), "node {id}: the tape has {} nodes", self.len());
        self.inner.borrow().nodes[id.index()].clone()
    }

    /// The tensor of a node that has been recorded.
    ///
    /// # Panics
    /// If the tape has fewer nodes.
    #[track_caller]
    pub fn tensor(&self, id: NodeId) -> Tensor<'_> {
        assert!(id.0 < self.len(), "tensor {id}: the tape has {} nodes", self.len());
        Tensor { tape: self, id }
    }

    pub(crate) fn len(&self) -> u32 {
        self.inner.borrow().nodes.len() as u32
    }

    // The values that a program shows of itself.

    /// Delivers the value to the host after each run, under this name, without waiting for it.
    ///
    /// # Panics
    /// If something is tapped under this name already; if the value is another tape's.
    #[track_caller]
    pub fn tap(&self, name: &str, value: Tensor<'_>) {
        let site = Site::caller();
        self.push_tap(name, value);
        self.note_scaled_tap(name, site);
    }

    #[track_caller]
    fn push_tap(&self, name: &str, value: Tensor<'_>) {
        let node = self.own(value, "tap");
        let site = Site::caller();
        if let Some(first) = self.tapped(name) {
            panic!(
                "tap {name:?}: a tap of this name exists already (recorded at {first}): choose another name, or use \
                 `tap_each` (recorded at {site})"
            );
        }
        self.inner.borrow_mut().taps.push(TapDecl { name: name.into(), node, site });
    }

    /// As [`Tape::tap`], for a value that may be recorded several times, as in a hook that several sweeps run. The
    /// first is tapped under the name, the second as `<name>#2`.
    ///
    /// # Panics
    /// If the value is another tape's.
    #[track_caller]
    pub fn tap_each(&self, name: &str, value: Tensor<'_>) {
        self.tap(&self.free_tap(name), value);
    }

    /// As [`Tape::tap_each`], for a gradient of a scaled loss that the reader will divide by the scale. A hook that
    /// taps it otherwise gets a lint ([`crate::Pitfall::MisplacedProbe`]).
    ///
    /// # Panics
    /// If the value is another tape's.
    #[track_caller]
    pub fn tap_scaled(&self, name: &str, value: Tensor<'_>) {
        self.push_tap(&self.free_tap(name), value);
    }

    /// The name, with a number appended if it is taken.
    fn free_tap(&self, name: &str) -> String {
        let (mut free, mut count) = (name.to_string(), 1);
        while self.tapped(&free).is_some() {
            count += 1;
            free = format!("{name}#{count}");
        }
        free
    }

    /// The place where something is tapped under this name.
    fn tapped(&self, name: &str) -> Option<Site> {
        self.inner.borrow().taps.iter().find(|tap| tap.name == name).map(|tap| tap.site)
    }

    /// Forgets the taps so far.
    #[cfg(feature = "testing")]
    pub(crate) fn forget_taps(&self) {
        let inner = &mut *self.inner.borrow_mut();
        inner.taps.clear();
        inner.training.alarms.clear();
    }

    /// Records a gradient pass as a region: the nodes that `f` records, under the pass's name, with its parameters. The
    /// pass works on `inputs`; the tensors that `f` returns are its outputs.
    #[track_caller]
    pub fn pass<'t>(
        &'t self,
        name: &'static str,
        parameters: &[(&'static str, String)],
        inputs: &[Tensor<'t>],
        f: impl FnOnce() -> Vec<Tensor<'t>>,
    ) -> Vec<Tensor<'t>> {
        self.pass_over(name, parameters, inputs, (ParamSet::default(), PassKind::Other), f)
    }

    /// As [`Tape::pass`], for a pass over the gradients of some parameters, or a step of them.
    #[track_caller]
    pub(crate) fn pass_over<'t>(
        &'t self,
        name: &'static str,
        parameters: &[(&'static str, String)],
        inputs: &[Tensor<'t>],
        (params, kind): (ParamSet, PassKind),
        f: impl FnOnce() -> Vec<Tensor<'t>>,
    ) -> Vec<Tensor<'t>> {
        let start = self.len();
        let outputs = self.scoped(name, f);
        let pass = Pass {
            name,
            parameters: parameters.to_vec(),
            params,
            kind,
            inputs: inputs.iter().map(|x| self.own(*x, name)).collect(),
            outputs: outputs.iter().map(|x| self.own(*x, name)).collect(),
            nodes: start..self.len(),
            site: self.site(),
        };
        self.inner.borrow_mut().training.passes.push(pass);
        outputs
    }

    pub(crate) fn new_barrier(&self) -> Op {
        let mut inner = self.inner.borrow_mut();
        inner.barriers += 1;
        Op::Barrier(inner.barriers - 1)
    }

    /// A random stream: the FNV-1a hash of `<name>:<scope path>:<n>`, the n-th under this name in this scope.
    pub(crate) fn new_stream(&self, name: &str) -> u64 {
        let path = format!("{name}:{}", self.scope_path());
        let mut inner = self.inner.borrow_mut();
        let count = inner.chance.streams.entry(path.clone()).or_default();
        *count += 1;
        fnv1a(&format!("{path}:{}", *count - 1))
    }

    pub(crate) fn new_hook(&self, fns: HookFns) -> HookId {
        let mut inner = self.inner.borrow_mut();
        inner.closures.hooks.push(fns);
        HookId(inner.closures.hooks.len() as u32 - 1)
    }

    pub(crate) fn new_rule(&self, rule: RuleFn) -> RuleId {
        let mut inner = self.inner.borrow_mut();
        inner.closures.rules.push(rule);
        RuleId(inner.closures.rules.len() as u32 - 1)
    }

    /// The library's own rule of this name for some axes: the same id each time, so that equal compositions are merged.
    pub(crate) fn own_rule(&self, name: &'static str, axes: &[usize], rule: OwnRule) -> RuleId {
        let known = self.inner.borrow().closures.own_rules.get(&(name, axes.into())).copied();
        known.unwrap_or_else(|| {
            let of: Box<[usize]> = axes.into();
            let id = self.new_rule(Rc::new(move |vjp| rule(&of, &vjp)));
            self.inner.borrow_mut().closures.own_rules.insert((name, axes.into()), id);
            id
        })
    }
}
