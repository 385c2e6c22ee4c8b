//! The tape: an append-only, hash-consed list of nodes, with the scope and source line of each.
//!
//! A node's inputs always have smaller ids than the node, so id order is a topological order, and a range of ids is a
//! stretch of the program.

use crate::{
    Array, DType, Shape, Site, Tensor,
    alarm::Alarm,
    call::Named,
    hook::{HookFns, OwnRule, Probe, Rewrite, RuleFn},
    lints::{Drawing, Facts},
    op::{HookId, InputId, Op, RuleId, Typed},
    program::{InputDecl, Pass, Program, TapDecl},
    random::fnv1a,
    store::{Flat, Layout, Param, ParamSet, StateId},
    versions::Versions,
    window::Event,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Range,
    rc::Rc,
    sync::Arc,
};

/// Names a node of a tape: its position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The node's position on its tape.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("%{}", self.0))
    }
}

/// Names a scope: its position in the list of scopes. The first is the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScopeId(pub(crate) u32);

/// A place in the tree of names that a program is written in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// The scope around it; the root is its own parent.
    pub parent: ScopeId,
    /// The name; empty for the root.
    pub name: String,
    /// The iteration, where the scope is one turn of a loop.
    pub turn: Option<usize>,
}

/// One operation of a program, with its result's shape and type and where it was recorded.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The nodes it reads.
    pub inputs: Box<[NodeId]>,
    /// The shape of its result.
    pub shape: Shape,
    /// The element type of its result.
    pub dtype: DType,
    /// The scope it was recorded in.
    pub scope: ScopeId,
    /// The caller's line that recorded it; for a gradient node, the line of the node it differentiates.
    pub site: Site,
}

impl Node {
    /// The inputs that gradients flow on to.
    pub(crate) fn differentiated(&self) -> &[NodeId] {
        &self.inputs[..self.op.differentiable_inputs(self.inputs.len())]
    }

    /// Whether gradients flow through it. A rule with several outputs runs when the sweep reaches the first, whatever its
    /// type.
    pub(crate) fn carries(&self) -> bool {
        self.dtype.is_float() || matches!(self.op, Op::Custom { .. })
    }
}

/// A stretch of the tape that the reverse sweep recomputes instead of reading.
pub(crate) type Checkpoint = Range<u32>;

#[derive(Default)]
pub(crate) struct Inner {
    pub nodes: Vec<Node>,
    seen: HashMap<(Op, Box<[NodeId]>, DType), NodeId>,
    pub scopes: Vec<Scope>,
    scope_ids: HashMap<Scope, ScopeId>,
    scope: Option<ScopeId>,
    pub site: Option<Site>,
    /// The function that is being recorded.
    pub named: Option<Named>,
    pub autocast: Option<DType>,
    /// Whether anything was computed in half precision because of it.
    pub half: bool,
    inputs: Vec<InputDecl>,
    states: BTreeMap<StateId, NodeId>,
    pub rebound: Vec<BTreeMap<StateId, NodeId>>,
    pub versions: Versions,
    pub param_hooks: HashMap<Param, HookId>,
    pub unreached: Vec<Param>,
    pub taps: Vec<TapDecl>,
    /// The taps that may be errors.
    pub alarms: Vec<Alarm>,
    pub passes: Vec<Pass>,
    /// What runs will do to windows of accumulators, and the losses whose gradients go into each.
    pub events: Vec<(Event, Site)>,
    pub accumulated: Vec<(StateId, NodeId)>,
    pub hooks: Vec<HookFns>,
    pub rules: Vec<RuleFn>,
    own_rules: HashMap<(&'static str, Box<[usize]>), RuleId>,
    pub probe: Option<Probe>,
    pub rewrite: Option<Rewrite>,
    pub checkpoints: Vec<Checkpoint>,
    barriers: u32,
    /// The counters that gradient noise is drawn at, and those that move with every run.
    pub noise: Vec<StateId>,
    pub advanced: Vec<StateId>,
    /// The keys that all ranks must have in common.
    pub shared: Vec<StateId>,
    /// The value of each loss scale that a loss was last multiplied by.
    scaled_by: BTreeMap<StateId, NodeId>,
    /// How many random streams each path has, by path.
    streams: HashMap<String, u64>,
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

/// A scope that is being recorded in, until this is dropped: see [`Tape::enter`].
#[must_use = "the scope ends where this is dropped"]
pub struct Entered<'t> {
    tape: &'t Tape,
    before: Option<ScopeId>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.tape.inner.borrow_mut().scope = self.before;
    }
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("before", &self.before).finish_non_exhaustive()
    }
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

    /// As [`Tape::new`], for a program that so many ranks run together.
    pub fn for_ranks(layout: Arc<Layout>, ranks: usize) -> Self {
        let root = Scope { parent: ScopeId(0), name: String::new(), turn: None };
        Self { layout, ranks, inner: RefCell::new(Inner { scopes: vec![root], ..Inner::default() }) }
    }

    /// The declarations of the store that it is recorded over.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The program recorded so far, without the closures that recorded it.
    pub fn finish(self) -> Program {
        let inner = self.inner.into_inner();
        Program {
            nodes: inner.nodes,
            scopes: inner.scopes,
            inputs: inner.inputs,
            commits: inner.states.into_iter().collect(),
            taps: inner.taps,
            alarms: inner.alarms,
            passes: inner.passes,
            unreached: inner.unreached,
            lints: vec![],
            losses: vec![],
            logits: vec![],
            steep: vec![],
            events: inner.events,
            drawing: Drawing::default(),
            shared: if self.ranks > 1 { inner.shared } else { vec![] },
            layout: self.layout,
            ranks: self.ranks,
        }
        .without_idle_commits()
        .with_lints(inner.facts)
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
        let scope = inner.scope.unwrap_or(ScopeId(0));
        let site = inner.site.unwrap_or(Site::caller());
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
                // A signed size, as pointers are: more would wrap in the arithmetic of strides.
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
        assert!(std::ptr::eq(x.tape, self), "{what}: a tensor of another tape{}", self.recorded_at());
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
        self.inner.borrow().site.unwrap_or(Site::caller())
    }

    /// A node that has been recorded.
    ///
    /// # Panics
    /// If there are not so many.
    #[track_caller]
    pub fn node(&self, id: NodeId) -> Node {
        self.inner.borrow().nodes[id.index()].clone()
    }

    /// The tensor of a node that has been recorded.
    ///
    /// # Panics
    /// If there are not so many.
    #[track_caller]
    pub fn tensor(&self, id: NodeId) -> Tensor<'_> {
        assert!(id.0 < self.len(), "tensor {id}: the tape has {} nodes", self.len());
        Tensor { tape: self, id }
    }

    pub(crate) fn len(&self) -> u32 {
        self.inner.borrow().nodes.len() as u32
    }

    // Leaves.

    /// A scalar constant, rounded to a float type.
    ///
    /// # Panics
    /// If an integer type, or bool, does not hold the value.
    #[track_caller]
    pub fn scalar(&self, value: f64, dtype: DType) -> Tensor<'_> {
        let exact = dtype.is_float() || Array::new([], vec![value]).cast(dtype).item(0) == value;
        self.require(exact, &format!("constant {value}"), &[], || format!("{dtype} does not hold it"));
        self.push_typed(Op::Const(value.to_bits()), [].into(), (Shape::scalar(), dtype))
    }

    /// A tensor filled with one value.
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Tensor<'_> {
        let _call = self.call("full", &[]);
        self.scalar(value, dtype).broadcast_to(shape)
    }

    /// A constant vector, rounded to a float type: for facts of the program, which are part of it. Give data as an input.
    ///
    /// # Panics
    /// If an integer type, or bool, does not hold a value.
    #[track_caller]
    pub fn table(&self, values: &[f64], dtype: DType) -> Tensor<'_> {
        let held = Array::new([values.len()], values.to_vec()).cast(dtype).to_f64();
        let lost = values.iter().zip(held).find(|(value, held)| !dtype.is_float() && **value != *held);
        self.require(lost.is_none(), "table", &[], || {
            format!("{dtype} does not hold {}", lost.map_or(0.0, |(lost, _)| *lost))
        });
        let bits = values.iter().map(|value| value.to_bits()).collect();
        self.push_typed(Op::Table(bits), [].into(), ([values.len()].into(), dtype))
    }

    /// `0, 1, .., len - 1` (u32).
    #[track_caller]
    pub fn iota(&self, len: usize) -> Tensor<'_> {
        self.push(Op::Iota(len), &[])
    }

    /// Host data that each run supplies under this name.
    ///
    /// # Panics
    /// If the tape has an input of this name already: what is to be the same data is the same tensor.
    #[track_caller]
    pub fn input(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Tensor<'_> {
        let (shape, site) = (shape.into(), self.site());
        let first = self.inner.borrow().inputs.iter().find(|i| i.name == name).map(|i| i.site);
        if let Some(first) = first {
            let at = self.recorded_at();
            panic!("input {name:?} of {dtype}{shape}: the name is taken, at {first}: use that tensor again{at}");
        }
        let id = {
            let inputs = &mut self.inner.borrow_mut().inputs;
            inputs.push(InputDecl { name: name.into(), shape: shape.clone(), dtype, site });
            InputId(inputs.len() as u32 - 1)
        };
        self.push_typed(Op::Input(id), [].into(), (shape, dtype))
    }

    /// As [`Tape::input`], or the input of this name: for programs put together from parts that do not know of each other.
    #[cfg(feature = "testing")]
    #[track_caller]
    pub fn shared_input(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Tensor<'_> {
        let shape = shape.into();
        let known = self.inner.borrow().inputs.iter().position(|i| i.name == name);
        match known {
            Some(known) => self.push_typed(Op::Input(InputId(known as u32)), [].into(), (shape, dtype)),
            None => self.input(name, shape, dtype),
        }
    }

    /// An input with the shape and type of an array.
    #[track_caller]
    pub fn input_like(&self, name: &str, array: &Array) -> Tensor<'_> {
        self.input(name, array.shape(), array.dtype())
    }

    // State: single assignment within a program.

    /// The latest value of a state on this tape: what was assigned last, else its value when the program starts.
    #[track_caller]
    pub fn state(&self, state: StateId) -> Tensor<'_> {
        let (rebound, current) = {
            let inner = self.inner.borrow();
            (inner.rebound.iter().rev().find_map(|r| r.get(&state).copied()), inner.states.get(&state).copied())
        };
        if let Some(id) = rebound.or(current) {
            return Tensor { tape: self, id };
        }
        let decl = self.layout.state(state);
        self.push_typed(Op::State(state), [].into(), (decl.shape.clone(), decl.dtype))
    }

    /// Makes `value` the state's value: for later reads on this tape at once, for later runs when the program ends.
    ///
    /// # Panics
    /// If the shape or type is not the state's, or within [`Tape::with_params`] of that state.
    #[track_caller]
    pub fn assign(&self, state: StateId, value: Tensor<'_>) {
        let id = self.fitting("assign to", state, value);
        let rebound = self.inner.borrow().rebound.iter().any(|r| r.contains_key(&state));
        let name = &self.layout.state(state).name;
        assert!(
            !rebound,
            "assign to {name:?}: it has another value within `with_params`; use `Optimizer::update` there"
        );
        let site = self.site();
        let mut inner = self.inner.borrow_mut();
        inner.states.insert(state, id);
        inner.versions.assigned.push((state, id, site));
        inner.facts.assign(state, site);
    }

    /// Remembers the value of a loss scale that a loss is multiplied by.
    #[track_caller]
    pub(crate) fn note_scale(&self, scale: StateId) {
        let id = self.state(scale).id;
        self.inner.borrow_mut().scaled_by.insert(scale, id);
    }

    /// Whether a loss scale still has the value that was noted; true where no loss was scaled on this tape.
    #[track_caller]
    pub(crate) fn scale_is_noted(&self, scale: StateId) -> bool {
        let id = self.state(scale).id;
        self.inner.borrow().scaled_by.get(&scale).is_none_or(|noted| *noted == id)
    }

    /// The latest values of the arenas that hold some parameters.
    #[track_caller]
    pub fn arenas(&self, params: &ParamSet) -> Flat<'_> {
        Flat::new(params.arenas(&self.layout).into_iter().map(|arena| (arena, self.state(arena))).collect())
    }

    /// The node of a value for a state.
    #[track_caller]
    pub(crate) fn fitting(&self, what: &str, state: StateId, value: Tensor<'_>) -> NodeId {
        let decl = self.layout.state(state);
        assert!(
            decl.shape == value.shape() && decl.dtype == value.dtype(),
            "{what} {:?} of {}{}: the value is {}{}",
            decl.name,
            decl.dtype,
            decl.shape,
            value.dtype(),
            value.shape()
        );
        self.own(value, what)
    }

    /// Runs `f` with other values for whole arenas: a model on updated parameters, for gradients through an update.
    ///
    /// [`Tensor::grad`] within `f` is by these values, and goes no further back; after it, of what `f` has returned, it goes
    /// through these values to the parameters that they were computed from.
    ///
    /// # Panics
    /// If a value does not have its arena's shape and type.
    #[track_caller]
    pub fn with_params<'t, R>(&'t self, values: &Flat<'t>, f: impl FnOnce() -> R) -> R {
        // A loop, not a closure: what does not fit is refused at the caller's line.
        let mut bindings = BTreeMap::new();
        for &(arena, value) in values.parts() {
            bindings.insert(arena, self.fitting("with_params:", arena, value));
        }
        self.inner.borrow_mut().rebound.push(bindings);
        let result = f();
        self.inner.borrow_mut().rebound.pop();
        result
    }

    // Scopes.

    /// Records what `f` does under a name.
    pub fn scoped<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter(name);
        f()
    }

    /// As [`Tape::scoped`], of all that is recorded until the result is dropped: what is refused there names the line of
    /// who calls a `#[track_caller]` function, which it does not within a closure.
    pub fn enter(&self, name: &str) -> Entered<'_> {
        self.entered(self.child_scope(self.current_scope(), name, None))
    }

    /// Records what `f` does as turn `turn` of a loop of this name; the printer folds turns that are alike.
    pub fn scoped_turn<R>(&self, name: &str, turn: usize, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter_turn(name, turn);
        f()
    }

    /// As [`Tape::scoped_turn`], until the result is dropped: see [`Tape::enter`].
    pub fn enter_turn(&self, name: &str, turn: usize) -> Entered<'_> {
        self.entered(self.child_scope(self.current_scope(), name, Some(turn)))
    }

    pub(crate) fn current_scope(&self) -> ScopeId {
        self.inner.borrow().scope.unwrap_or(ScopeId(0))
    }

    pub(crate) fn child_scope(&self, parent: ScopeId, name: &str, turn: Option<usize>) -> ScopeId {
        let inner = &mut *self.inner.borrow_mut();
        let scope = Scope { parent, name: name.into(), turn };
        *inner.scope_ids.entry(scope).or_insert_with_key(|scope| {
            inner.scopes.push(scope.clone());
            ScopeId(inner.scopes.len() as u32 - 1)
        })
    }

    pub(crate) fn scope(&self, id: ScopeId) -> Scope {
        self.inner.borrow().scopes[id.0 as usize].clone()
    }

    pub(crate) fn in_scope<R>(&self, scope: ScopeId, f: impl FnOnce() -> R) -> R {
        let _scope = self.entered(scope);
        f()
    }

    fn entered(&self, scope: ScopeId) -> Entered<'_> {
        Entered { tape: self, before: self.inner.borrow_mut().scope.replace(scope) }
    }

    /// Records contractions of f32 tensors in half precision (Micikevicius et al. 2018, "Mixed precision training"):
    ///
    /// | what | with `F16` |
    /// |---|---|
    /// | `matmul`, `matmul_t`, `conv1d`, `conv2d`; with them a recurrent layer's product of its inputs, and `attention`'s of values where it masks or drops weights | operands and result rounded to f16, products summed wider; the result is f32 again |
    /// | `attention` | queries, keys and values rounded to f16; scores, soft-max and sums in f32; the result rounded to f16, and f32 again |
    /// | their gradients, of activations and of weights | computed and rounded likewise, in a sweep recorded within or without |
    /// | several gradients of one value or weight | summed in f32, rounded once |
    /// | elementwise operations, `dot`, sums, means, norms, soft-max, losses, embeddings, a recurrent layer's steps | f32, and so are their gradients |
    /// | parameters, and their gradients in the arena | f32, holding what the gradients' halves can hold |
    /// | contractions of f64, or of halves | left as they are |
    ///
    /// So what flows back from layer to layer is rounded to halves at each contraction: below 2^-25 (3e-8) it is lost, from
    /// 65520 on it is infinite. Scale the loss, and unscale the gradients, which makes an overflow a step not taken:
    ///
    /// ```
    /// # use wgrad::{DType, LossScaler, Optimizer, ParamSet, Tape, Tensor};
    /// # fn update<'t>(t: &'t Tape, model: &dyn Fn() -> Tensor<'t>, params: &ParamSet, scaler: &LossScaler, sgd: &dyn Optimizer) {
    /// let loss = t.autocast(DType::F16, || model());
    /// sgd.step(scaler.scale(loss).grad(params).unscale(scaler));
    /// scaler.update(t);
    /// # }
    /// ```
    ///
    /// Within, `F32` switches it off, and the innermost policy holds.
    ///
    /// # Panics
    /// If the type is neither f16 nor f32.
    #[track_caller]
    pub fn autocast<R>(&self, dtype: DType, f: impl FnOnce() -> R) -> R {
        let half = match dtype {
            DType::F16 => Some(dtype),
            DType::F32 => None,
            _ => panic!("autocast: contractions in {dtype}: needs f16, or f32 for none{}", self.recorded_at()),
        };
        let before = std::mem::replace(&mut self.inner.borrow_mut().autocast, half);
        let result = f();
        self.inner.borrow_mut().autocast = before;
        result
    }

    /// The type that a contraction of these is to be computed in, if that is another than theirs.
    pub(crate) fn autocasts(&self, a: Tensor<'_>, b: Tensor<'_>) -> Option<DType> {
        let half = self.inner.borrow().autocast?;
        let casts = a.dtype() == DType::F32 && b.dtype() == DType::F32;
        self.inner.borrow_mut().half |= casts;
        casts.then_some(half)
    }

    // What a program shows of itself.

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
                "tap {name:?}: the name is taken, at {first}: give each its own, or use `tap_each` (recorded at {site})"
            );
        }
        self.inner.borrow_mut().taps.push(TapDecl { name: name.into(), node, site });
    }

    /// As [`Tape::tap`], for what may be recorded several times, as a hook is that several sweeps run: the first is tapped
    /// under the name, the second as `<name>#2`.
    ///
    /// # Panics
    /// If the value is another tape's.
    #[track_caller]
    pub fn tap_each(&self, name: &str, value: Tensor<'_>) {
        self.tap(&self.free_tap(name), value);
    }

    /// As [`Tape::tap_each`], of a gradient that a hook of a scaled loss shows, for who divides it by the scale: of any other
    /// tap there is a lint ([`crate::Pitfall::P24`]).
    ///
    /// # Panics
    /// If the value is another tape's.
    #[track_caller]
    pub fn tap_scaled(&self, name: &str, value: Tensor<'_>) {
        self.push_tap(&self.free_tap(name), value);
    }

    /// The name, or that with a number if it is taken.
    fn free_tap(&self, name: &str) -> String {
        let (mut free, mut count) = (name.to_string(), 1);
        while self.tapped(&free).is_some() {
            count += 1;
            free = format!("{name}#{count}");
        }
        free
    }

    /// Where something is tapped under this name.
    fn tapped(&self, name: &str) -> Option<Site> {
        self.inner.borrow().taps.iter().find(|tap| tap.name == name).map(|tap| tap.site)
    }

    /// Forgets what has been tapped so far.
    #[cfg(feature = "testing")]
    pub(crate) fn forget_taps(&self) {
        let inner = &mut *self.inner.borrow_mut();
        inner.taps.clear();
        inner.alarms.clear();
    }

    /// Records a gradient pass as a region: what `f` records, under the pass's name, with its parameters. The nodes
    /// it returns are the region's outputs; `inputs` are what it works on.
    #[track_caller]
    pub fn pass<'t>(
        &'t self,
        name: &'static str,
        parameters: &[(&'static str, String)],
        inputs: &[Tensor<'t>],
        f: impl FnOnce() -> Vec<Tensor<'t>>,
    ) -> Vec<Tensor<'t>> {
        self.pass_over(name, parameters, inputs, (ParamSet::default(), false), f)
    }

    /// As [`Tape::pass`], of a pass that is about the gradients of some parameters, or steps them.
    #[track_caller]
    pub(crate) fn pass_over<'t>(
        &'t self,
        name: &'static str,
        parameters: &[(&'static str, String)],
        inputs: &[Tensor<'t>],
        (params, steps): (ParamSet, bool),
        f: impl FnOnce() -> Vec<Tensor<'t>>,
    ) -> Vec<Tensor<'t>> {
        let start = self.len();
        let outputs = self.scoped(name, f);
        let pass = Pass {
            name,
            parameters: parameters.to_vec(),
            params,
            steps,
            inputs: inputs.iter().map(|x| self.own(*x, name)).collect(),
            outputs: outputs.iter().map(|x| self.own(*x, name)).collect(),
            nodes: start..self.len(),
            site: self.site(),
        };
        self.inner.borrow_mut().passes.push(pass);
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
        let count = inner.streams.entry(path.clone()).or_default();
        *count += 1;
        fnv1a(&format!("{path}:{}", *count - 1))
    }

    pub(crate) fn new_hook(&self, fns: HookFns) -> HookId {
        let mut inner = self.inner.borrow_mut();
        inner.hooks.push(fns);
        HookId(inner.hooks.len() as u32 - 1)
    }

    pub(crate) fn new_rule(&self, rule: RuleFn) -> RuleId {
        let mut inner = self.inner.borrow_mut();
        inner.rules.push(rule);
        RuleId(inner.rules.len() as u32 - 1)
    }

    /// A rule of the library's own for some axes: the same one each time, so that equal compositions are one.
    pub(crate) fn own_rule(&self, name: &'static str, axes: &[usize], rule: OwnRule) -> RuleId {
        let known = self.inner.borrow().own_rules.get(&(name, axes.into())).copied();
        known.unwrap_or_else(|| {
            let of: Box<[usize]> = axes.into();
            let id = self.new_rule(Rc::new(move |vjp| rule(&of, &vjp)));
            self.inner.borrow_mut().own_rules.insert((name, axes.into()), id);
            id
        })
    }
}
