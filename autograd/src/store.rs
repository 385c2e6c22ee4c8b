//! The store: everything that outlives a step. Parameters lie one after another in arenas, one flat vector per dtype.

use crate::{
    Array, DType, Data, Shape, Tensor,
    handle::{Handle, StoreId},
    op::{Segments, Share},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{collections::BTreeMap, sync::Arc};

/// Segments of an arena start at multiples of this many elements; the padding between them is zero, always.
pub const ALIGN: usize = 128;

/// Names a state of one store. Another store refuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StateId(Handle);

/// Serializes the position: the reader of a program puts in the states of its own store.
impl Serialize for StateId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.index().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StateId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self::foreign)
    }
}

impl StateId {
    /// The state at a position of a store that is not known.
    pub(crate) fn foreign(index: u32) -> Self {
        Self(Handle::foreign(index))
    }

    /// Its position in the order of declaration.
    pub fn index(self) -> usize {
        self.0.index()
    }
}

/// Names a parameter of one store. Another store refuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Param(Handle);

/// A declared state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateDecl {
    /// Its name, unique in the store.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// The vector that it is each rank's stretch of, if ranks share it out: see [`Store::shard`].
    pub share: Option<Share>,
}

/// A declared parameter: a segment of an arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamDecl {
    /// Its path, such as `rnn/weight_hh`, unique in the store.
    pub path: String,
    /// Its shape.
    pub shape: Shape,
    /// The arena that holds it.
    pub arena: StateId,
    /// The start of its segment, in elements.
    pub offset: usize,
}

/// The declarations of a store, without the values. Two are equal if they are of the same store.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Layout {
    /// `None` for a tape over no store.
    store: Option<StoreId>,
    states: Vec<(StateId, StateDecl)>,
    params: Vec<(Param, ParamDecl)>,
    /// The states of [`Store::like_arenas`], [`Store::like_shares`] and [`Store::like_segments`].
    per_param: Vec<StateId>,
}

impl Layout {
    /// A state's declaration.
    ///
    /// # Panics
    /// If the state is another store's.
    #[track_caller]
    pub fn state(&self, state: StateId) -> &StateDecl {
        let here = self.states.get(state.index());
        match here {
            Some((id, decl)) if *id == state => decl,
            _ => state.0.refuse("state", self.store, here.map(|(id, _)| id.0)),
        }
    }

    /// A parameter's declaration.
    ///
    /// # Panics
    /// If the parameter is another store's.
    #[track_caller]
    pub fn param(&self, param: Param) -> &ParamDecl {
        let here = self.params.get(param.0.index());
        match here {
            Some((id, decl)) if *id == param => decl,
            _ => param.0.refuse("parameter", self.store, here.map(|(id, _)| id.0)),
        }
    }

    /// Refuses parameters of another store.
    ///
    /// # Panics
    /// If there is one among them.
    #[track_caller]
    pub fn check(&self, params: &ParamSet) {
        for param in params.iter() {
            self.param(param);
        }
    }

    /// True if a program over these declarations means the same over the others: they are equal, in the same order,
    /// whatever their stores.
    pub(crate) fn serves(&self, other: &Self) -> bool {
        let states = self.states.iter().map(|(_, state)| state).eq(other.states.iter().map(|(_, state)| state));
        let place = |(_, param): &(Param, ParamDecl)| {
            (param.path.clone(), param.shape.clone(), param.arena.index(), param.offset)
        };
        states && self.params.iter().map(place).eq(other.params.iter().map(place))
    }

    /// The store, for messages.
    pub(crate) fn owner(&self) -> String {
        self.store.map_or("no store".into(), |store| store.to_string())
    }

    /// The start of a parameter's segment in its arena, and its length.
    pub(crate) fn place(&self, param: Param) -> (usize, usize) {
        let decl = self.param(param);
        (decl.offset, decl.shape.numel())
    }

    /// All states, in the order of declaration.
    pub fn states(&self) -> impl Iterator<Item = (StateId, &StateDecl)> {
        self.states.iter().map(|(id, decl)| (*id, decl))
    }

    /// All parameters, in the order of declaration.
    pub fn params(&self) -> impl Iterator<Item = (Param, &ParamDecl)> {
        self.params.iter().map(|(id, decl)| (*id, decl))
    }

    /// True if a state is an arena of parameters.
    pub fn is_arena(&self, state: StateId) -> bool {
        self.params.iter().any(|(_, p)| p.arena == state)
    }

    /// True if a state has elements for each parameter of an arena, in the arena's order: it was declared by
    /// [`Store::like_arenas`], [`Store::like_shares`] or [`Store::like_segments`].
    pub fn is_per_param(&self, state: StateId) -> bool {
        self.per_param.contains(&state)
    }

    /// The segments of an arena, in the order of its parameters.
    ///
    /// # Panics
    /// As [`Layout::state`].
    #[track_caller]
    pub fn segments(&self, arena: StateId) -> Arc<Segments> {
        let total = self.state(arena).shape.numel();
        let members = self.params.iter().filter(|(_, p)| p.arena == arena);
        Arc::new(Segments { total, ranges: members.map(|(_, p)| (p.offset, p.shape.numel())).collect() })
    }

    /// The parameters of an arena, in the order of its segments.
    pub fn members(&self, arena: StateId) -> Vec<Param> {
        self.params().filter(|(_, p)| p.arena == arena).map(|(id, _)| id).collect()
    }
}

/// A set of parameters, as for a gradient or an optimizer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParamSet {
    params: Vec<Param>,
}

impl ParamSet {
    /// The parameters, in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = Param> {
        self.params.iter().copied()
    }

    /// True if a parameter is a member.
    pub fn contains(&self, param: Param) -> bool {
        self.params.binary_search(&param).is_ok()
    }

    /// The number of parameters.
    pub fn len(&self) -> usize {
        self.params.len()
    }

    /// True if the set has no members.
    pub fn is_empty(&self) -> bool {
        self.params.is_empty()
    }

    /// The arenas that hold the members, ascending.
    ///
    /// # Panics
    /// If a member is another store's.
    #[track_caller]
    pub fn arenas(&self, layout: &Layout) -> Vec<StateId> {
        layout.check(self);
        let mut arenas: Vec<StateId> = self.iter().map(|p| layout.param(p).arena).collect();
        arenas.sort_unstable();
        arenas.dedup();
        arenas
    }
}

impl FromIterator<Param> for ParamSet {
    fn from_iter<I: IntoIterator<Item = Param>>(params: I) -> Self {
        let mut params: Vec<Param> = params.into_iter().collect();
        params.sort_unstable();
        params.dedup();
        Self { params }
    }
}

/// One flat vector per arena: parameters, gradients, moments.
#[derive(Clone, Debug)]
pub struct Flat<'t> {
    parts: Vec<(StateId, Tensor<'t>)>,
}

impl<'t> Flat<'t> {
    /// Collects one vector per arena.
    pub fn new(parts: Vec<(StateId, Tensor<'t>)>) -> Self {
        Self { parts }
    }

    /// The vectors, with the arena of each.
    pub fn parts(&self) -> &[(StateId, Tensor<'t>)] {
        &self.parts
    }

    /// The vectors alone.
    pub fn tensors(&self) -> Vec<Tensor<'t>> {
        self.parts.iter().map(|(_, x)| *x).collect()
    }

    /// Applies a function to each vector.
    pub fn map(&self, f: impl Fn(StateId, Tensor<'t>) -> Tensor<'t>) -> Self {
        Self { parts: self.parts.iter().map(|&(arena, x)| (arena, f(arena, x))).collect() }
    }

    /// As [`Flat::map`], for a function with state of its own.
    pub(crate) fn map_mut(&self, mut f: impl FnMut(StateId, Tensor<'t>) -> Tensor<'t>) -> Self {
        Self { parts: self.parts.iter().map(|&(arena, x)| (arena, f(arena, x))).collect() }
    }

    /// The vector of an arena.
    pub fn get(&self, arena: StateId) -> Option<Tensor<'t>> {
        self.parts.iter().find(|(a, _)| *a == arena).map(|(_, x)| *x)
    }
}

/// Declares everything that outlives a step, with first values; a [`crate::Session`] takes it over.
///
/// ```
/// use wgrad::{Array, Store};
/// let mut store = Store::new();
/// let weight = store.param("linear/weight", &Array::new([2, 3], vec![0.5f32; 6]));
/// let count = store.state("count", &Array::scalar(0.0));
/// # let _ = (weight, count);
/// ```
pub struct Store {
    id: StoreId,
    layout: Layout,
    values: Vec<Data>,
    arenas: BTreeMap<DType, StateId>,
    closed: bool,
    /// The number of ranks that share out what optimizers keep.
    ranks: usize,
}

impl Default for Store {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    /// An empty store. Its handles are its own: another store refuses them, even if it declares the same.
    #[track_caller]
    pub fn new() -> Self {
        let id = StoreId::fresh();
        let layout = Layout { store: Some(id), ..Layout::default() };
        Self { id, layout, values: vec![], arenas: BTreeMap::new(), closed: false, ranks: 1 }
    }

    /// Declares a state with its first value.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn state(&mut self, name: &str, value: &Array) -> StateId {
        assert!(self.layout.states().all(|(_, s)| s.name != name), "state {name:?} is declared twice");
        let decl = StateDecl { name: name.into(), shape: value.shape().clone(), dtype: value.dtype(), share: None };
        let id = StateId(Handle::new(self.id, self.values.len(), name));
        self.layout.states.push((id, decl));
        self.values.push(value.data().clone());
        id
    }

    /// Declares a parameter with its first value, in the arena of its dtype.
    ///
    /// # Panics
    /// If the path is taken or has a colon in it, the type is not f32 or f64, or a state with the arenas' lengths has
    /// been declared already.
    #[track_caller]
    pub fn param(&mut self, path: &str, value: &Array) -> Param {
        assert!(self.layout.params().all(|(_, p)| p.path != path), "parameter {path:?} is declared twice");
        assert!(!path.contains(':'), "parameter {path:?}: a path is made of names joined by `/`, without colons");
        assert!(value.dtype().is_float(), "parameter {path:?}: {} has no gradient", value.dtype());
        let narrow = value.dtype() == DType::F16;
        assert!(
            !narrow,
            "parameter {path:?}: f16 loses small updates: declare it in f32, and cast it where it is used"
        );
        assert!(!self.closed, "parameter {path:?}: declare all parameters before the optimizer");
        let dtype = value.dtype();
        let arena = match self.arenas.get(&dtype) {
            Some(arena) => *arena,
            None => self.state(&format!("params/{dtype}"), &Array::zeros([0], dtype)),
        };
        self.arenas.insert(dtype, arena);
        let values = &mut self.values[arena.index()];
        let offset = values.len();
        values.append_padded(value.data(), ALIGN);
        self.layout.states[arena.index()].1.shape = [values.len()].into();
        let id = Param(Handle::new(self.id, self.layout.params.len(), path));
        self.layout.params.push((id, ParamDecl { path: path.into(), shape: value.shape().clone(), arena, offset }));
        id
    }

    /// Declares a parameter that is a segment of an existing state.
    pub(crate) fn place(&mut self, path: &str, shape: Shape, arena: StateId, offset: usize) {
        self.arenas.insert(self.layout.state(arena).dtype, arena);
        self.closed = true;
        let id = Param(Handle::new(self.id, self.layout.params.len(), path));
        self.layout.params.push((id, ParamDecl { path: path.into(), shape, arena, offset }));
    }

    /// All parameters declared so far.
    pub fn params(&self) -> ParamSet {
        self.params_where(|_| true)
    }

    /// The parameters whose path a predicate accepts.
    pub fn params_where(&self, accept: impl Fn(&str) -> bool) -> ParamSet {
        self.layout.params().filter(|(_, p)| accept(&p.path)).map(|(id, _)| id).collect()
    }

    /// Declares one zero-filled state per arena that holds members of `params`, each as long as its arena. No parameter
    /// can be declared afterwards.
    #[track_caller]
    pub fn like_arenas(&mut self, name: &str, params: &ParamSet) -> Vec<(StateId, StateId)> {
        self.per_arena(name, params, |layout, arena| (layout.state(arena).shape.numel(), None))
    }

    /// Declares one zero-filled state per arena that holds members of `params`, with one element per segment.
    #[track_caller]
    pub fn like_segments(&mut self, name: &str, params: &ParamSet) -> Vec<(StateId, StateId)> {
        self.per_arena(name, params, |layout, arena| (layout.members(arena).len(), None))
    }

    /// The flat states of optimizers that are declared from here on are shared out among this many ranks: each has a part
    /// of them in its memory, computes that part of the new parameters, and gets the others from the other ranks. All
    /// bits are those of the same ranks without this. A session must be one of as many ranks. 1 shares nothing out.
    ///
    /// Each element of a state is one rank's, so a rule that needs whole parameters, such as Muon's, is refused:
    /// [`crate::OptimizerStates::declare`]. This is stage 1 of ZeRO (Rajbhandari et al. 2020).
    ///
    /// # Panics
    /// If the number is 0.
    #[track_caller]
    pub fn shard(&mut self, ranks: usize) {
        assert!(ranks > 0, "shard: there is at least one rank");
        self.ranks = ranks;
    }

    /// The number of ranks that share out the flat states of optimizers declared from here on.
    pub fn shards(&self) -> usize {
        self.ranks
    }

    /// As [`Store::like_arenas`], shared out among the ranks of [`Store::shard`]: each state is as long as a rank's part.
    #[track_caller]
    pub fn like_shares(&mut self, name: &str, params: &ParamSet) -> Vec<(StateId, StateId)> {
        let ranks = self.ranks;
        if ranks == 1 {
            return self.like_arenas(name, params);
        }
        self.per_arena(name, params, |layout, arena| {
            let share = Share { whole: layout.state(arena).shape.numel(), ranks };
            (share.part(), Some(share))
        })
    }

    #[track_caller]
    fn per_arena(
        &mut self,
        name: &str,
        params: &ParamSet,
        of: impl Fn(&Layout, StateId) -> (usize, Option<Share>),
    ) -> Vec<(StateId, StateId)> {
        self.closed = true;
        let mut declared = vec![];
        for arena in params.arenas(&self.layout) {
            let dtype = self.layout.state(arena).dtype;
            let (len, share) = of(&self.layout, arena);
            let state = self.state(&format!("{name}/{dtype}"), &Array::zeros([len], dtype));
            self.layout.states[state.index()].1.share = share;
            self.layout.per_param.push(state);
            declared.push((arena, state));
        }
        declared
    }

    /// The declarations.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The first values of all states, in the order of declaration.
    pub fn values(&self) -> &[Data] {
        &self.values
    }

    /// The declarations and the first values, in the order of declaration.
    pub fn into_parts(self) -> (Arc<Layout>, Vec<Data>) {
        (Arc::new(self.layout), self.values)
    }
}
