//! A recorded program as data: written to a file, and read again by another process, for another device.

use crate::{
    Array, DType, Shape,
    collective::Way,
    error::{Error, Result},
    handle::kept,
    lints::Drawing,
    node::{Node, NodeId, Scope, ScopeId},
    op::{Op, Share, Typed},
    program::Program,
    recorded::{InputDecl, Pass, PassKind, TapDecl},
    site::Site,
    store::{Param, ParamDecl, ParamSet, StateId, Store},
};
use serde::{Deserialize, Serialize};
use std::{collections::HashSet, sync::Arc};

/// A program with the declarations of its store, without its values. It leaves out the data that only recording and a
/// session's checks need: windows, alarms, lints, and the settings of passes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredProgram {
    ranks: usize,
    states: Vec<Named>,
    params: Vec<StoredParam>,
    inputs: Vec<Named>,
    scopes: Vec<StoredScope>,
    /// The source files that `site` of nodes refers to.
    files: Vec<String>,
    nodes: Vec<StoredNode>,
    /// A state's position, and the node that becomes its value.
    commits: Vec<(usize, u32)>,
    taps: Vec<(String, u32)>,
    passes: Vec<StoredPass>,
    losses: Vec<u32>,
}

/// A name with a shape and a type.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Named {
    name: String,
    shape: Shape,
    dtype: DType,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredParam {
    path: String,
    shape: Shape,
    arena: usize,
    offset: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredScope {
    parent: u32,
    name: String,
    turn: Option<usize>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredNode {
    op: Op,
    inputs: Vec<u32>,
    shape: Shape,
    dtype: DType,
    scope: u32,
    /// A file's position, a line and a column.
    site: (usize, u32, u32),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredPass {
    name: String,
    /// Files of earlier versions have no kind, only the mark of an optimizer's step.
    #[serde(default)]
    kind: Option<PassKind>,
    #[serde(default, skip_serializing)]
    steps: bool,
    nodes: (u32, u32),
}

impl StoredPass {
    fn kind(&self) -> PassKind {
        match self.kind {
            Some(kind) => kind,
            None if self.steps => PassKind::Step,
            None if self.name == "accumulate" => PassKind::Accumulate,
            None => PassKind::Other,
        }
    }
}

/// A bound on the number of elements of a value, beyond any program that could run.
const MOST: usize = match 1usize.checked_shl(34) {
    Some(most) => most,
    None => usize::MAX >> 4,
};

/// A bound on the number of ranks, beyond any world.
const MOST_RANKS: usize = 1 << 16;

impl Program {
    /// The program as data.
    pub fn stored(&self) -> StoredProgram {
        let mut files: Vec<String> = vec![];
        let mut site = |of: Site| {
            let at = files.iter().position(|file| file == of.file()).unwrap_or_else(|| {
                files.push(of.file().into());
                files.len() - 1
            });
            (at, of.line(), of.column())
        };
        let node = |node: &Node| StoredNode {
            op: match &node.op {
                Op::State(state) => Op::State(StateId::foreign(state.index() as u32)),
                op => op.clone(),
            },
            inputs: node.inputs.iter().map(|id| id.0).collect(),
            shape: node.shape.clone(),
            dtype: node.dtype,
            scope: node.scope.0,
            site: site(node.site),
        };
        let nodes = self.nodes.iter().map(node).collect();
        let layout = &self.layout;
        let named = |name: &str, shape: &Shape, dtype| Named { name: name.into(), shape: shape.clone(), dtype };
        let param = |decl: &ParamDecl| StoredParam {
            path: decl.path.clone(),
            shape: decl.shape.clone(),
            arena: decl.arena.index(),
            offset: decl.offset,
        };
        let pass = |of: &Pass| StoredPass {
            name: of.name.into(),
            kind: Some(of.kind),
            steps: false,
            nodes: (of.nodes.start, of.nodes.end),
        };
        StoredProgram {
            ranks: self.ranks,
            states: layout.states().map(|(_, decl)| named(&decl.name, &decl.shape, decl.dtype)).collect(),
            params: layout.params().map(|(_, decl)| param(decl)).collect(),
            inputs: self.inputs.iter().map(|decl| named(&decl.name, &decl.shape, decl.dtype)).collect(),
            scopes: self
                .scopes
                .iter()
                .map(|of| StoredScope { parent: of.parent.0, name: of.name.clone(), turn: of.turn })
                .collect(),
            files,
            nodes,
            commits: self.commits.iter().map(|(state, node)| (state.index(), node.0)).collect(),
            taps: self.taps.iter().map(|tap| (tap.name.clone(), tap.node.0)).collect(),
            passes: self.passes.iter().map(pass).collect(),
            losses: self.losses.iter().map(|id| id.0).collect(),
        }
    }
}

impl StoredProgram {
    /// The names of the states, with the shape and the type of each, in order.
    pub fn states(&self) -> impl Iterator<Item = (&str, &Shape, DType)> {
        self.states.iter().map(|state| (&*state.name, &state.shape, state.dtype))
    }

    /// The names of the inputs, with the shape and the type of each, in order.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Shape, DType)> {
        self.inputs.iter().map(|input| (&*input.name, &input.shape, input.dtype))
    }

    /// Restores the program, over a new store with these values of the states.
    ///
    /// # Errors
    /// [`Error::NoProgram`] if no tape could have recorded it, or if a value does not fit its state.
    pub fn open(self, values: Vec<Array>) -> Result<(Program, Store)> {
        self.opened(values).map_err(|why| Error::NoProgram { why })
    }

    fn opened(self, values: Vec<Array>) -> Checked<(Program, Store)> {
        let store = self.store(values)?;
        let layout = Arc::new(store.layout().clone());
        let scopes = self.read_scopes()?;
        let files: Vec<&'static str> = self.files.iter().map(|file| kept(file)).collect();
        let nodes = self.read_nodes(&store, &files)?;
        let count = nodes.len();
        let at = |id: u32| if (id as usize) < count { Ok(NodeId(id)) } else { Err(format!("there is no node %{id}")) };
        let inputs = self.inputs.iter().map(|input| {
            let site = nodes.iter().find(|node| node.op == Op::Input(self.input_id(&input.name))).map(|node| node.site);
            let Named { name, shape, dtype } = input.clone();
            InputDecl { name, shape, dtype, site: site.unwrap_or(Site::caller()) }
        });
        let inputs = inputs.collect();
        let states: Vec<_> = layout.states().collect();
        let mut commits = vec![];
        for (state, node) in &self.commits {
            let (id, decl) = states.get(*state).ok_or_else(|| format!("there is no state {state}"))?;
            let of = &nodes[at(*node)?.index()];
            let fits = of.shape == decl.shape && of.dtype == decl.dtype && commits.iter().all(|(known, _)| known != id);
            commits.push((*id, at(*node)?));
            check(fits, || format!("%{node} does not become the state {:?}", decl.name))?;
        }
        let mut taps = vec![];
        for (name, node) in &self.taps {
            let is_new = taps.iter().all(|tap: &TapDecl| tap.name != *name);
            check(is_new, || format!("the tap {name:?} is there twice"))?;
            taps.push(TapDecl { name: name.clone(), node: at(*node)?, site: nodes[at(*node)?.index()].site });
        }
        let mut passes = vec![];
        for pass in &self.passes {
            let StoredPass { name, nodes: (start, end), .. } = pass;
            check(start <= end && *end as usize <= count, || format!("the pass {name:?} leaves the program"))?;
            let site = nodes.get(*start as usize).map_or(Site::caller(), |node| node.site);
            passes.push(Pass {
                name: kept(name),
                parameters: vec![],
                params: std::iter::empty::<Param>().collect::<ParamSet>(),
                kind: pass.kind(),
                inputs: vec![],
                outputs: vec![],
                nodes: *start..*end,
                site,
            });
        }
        let losses = self.losses.iter().map(|id| at(*id)).collect::<Checked<_>>()?;
        let program = Program {
            nodes,
            scopes,
            inputs,
            commits,
            taps,
            passes,
            unreached: vec![],
            alarms: vec![],
            lints: vec![],
            losses,
            logits: vec![],
            steep: vec![],
            drawing: Drawing::default(),
            events: vec![],
            layout,
            ranks: self.ranks,
            shared: vec![],
        };
        Ok((program, store))
    }

    fn input_id(&self, name: &str) -> crate::op::InputId {
        crate::op::InputId(self.inputs.iter().position(|input| input.name == name).map_or(u32::MAX, |at| at as u32))
    }

    /// The store of these declarations.
    fn store(&self, values: Vec<Array>) -> Checked<Store> {
        check(values.len() == self.states.len(), || {
            format!("{} values of {} states", values.len(), self.states.len())
        })?;
        let mut names = HashSet::new();
        for (Named { name, shape, dtype }, value) in self.states.iter().zip(&values) {
            let fits = value.shape() == shape && value.dtype() == *dtype;
            check(fits, || {
                format!("the state {name:?} is {dtype}{shape}, and its value {}{}", value.dtype(), value.shape())
            })?;
            check(names.insert(name), || format!("the state {name:?} is declared twice"))?;
        }
        for StoredParam { path, shape, arena, offset } in &self.params {
            let room = self.states.get(*arena).map_or(0, |state| state.shape.numel());
            let end = elements(shape)?.checked_add(*offset);
            check(end.is_some_and(|end| end <= room), || format!("the parameter {path:?} leaves its arena"))?;
        }
        let values: Vec<(String, Array)> = self.states.iter().map(|state| state.name.clone()).zip(values).collect();
        let params = self.params.iter().map(|of| (of.path.clone(), of.shape.clone(), of.arena, of.offset));
        Ok(Store::of_parts(values, params.collect()))
    }

    fn read_scopes(&self) -> Checked<Vec<Scope>> {
        check(!self.scopes.is_empty(), || "it has no root".into())?;
        let mut scopes = vec![];
        for (i, StoredScope { parent, name, turn }) in self.scopes.iter().enumerate() {
            let is_above = (*parent as usize) < i.max(1);
            check(is_above, || format!("the scope {name:?} is within none before it"))?;
            scopes.push(Scope { parent: ScopeId(*parent), name: name.clone(), turn: *turn });
        }
        Ok(scopes)
    }

    fn read_nodes(&self, store: &Store, files: &[&'static str]) -> Checked<Vec<Node>> {
        let states: Vec<_> = store.layout().states().collect();
        let mut nodes: Vec<Node> = vec![];
        for (i, of) in self.nodes.iter().enumerate() {
            let fails = |why: String| format!("%{i} {}: {why}", of.op.name());
            let known = of.inputs.iter().all(|id| (*id as usize) < i);
            check(known, || fails("it reads what comes after it".into()))?;
            let is_placed = (of.scope as usize) < self.scopes.len() && of.site.0 < files.len();
            check(is_placed, || fails("its scope or source file does not exist".into()))?;
            elements(&of.shape).map_err(fails)?;
            let inputs: Vec<Typed> =
                of.inputs.iter().map(|id| (nodes[*id as usize].shape.clone(), nodes[*id as usize].dtype)).collect();
            let mut op = of.op.clone();
            if let Op::State(id) = &mut op {
                *id = states.get(id.index()).ok_or_else(|| fails("there is no such state".into()))?.0;
            }
            let (count, out) = op.outputs();
            check(out < count, || fails("there is no such result".into()))?;
            let typed = self.typed(&op, &inputs, of).map_err(fails)?;
            check(typed == (of.shape.clone(), of.dtype), || fails(format!("it gives {}{}", typed.1, typed.0)))?;
            check(out <= i && count - out <= self.nodes.len() - i, || {
                fails("other outputs of its operation are missing".into())
            })?;
            for (other, node) in self.nodes[i - out..i - out + count].iter().enumerate() {
                let is_part =
                    node.inputs == of.inputs && node.op.outputs() == (count, other) && node.op.name() == op.name();
                check(is_part, || fails("other outputs of its operation are missing".into()))?;
            }
            let (file, line, column) = of.site;
            nodes.push(Node {
                op,
                inputs: of.inputs.iter().map(|id| NodeId(*id)).collect(),
                shape: of.shape.clone(),
                dtype: of.dtype,
                scope: ScopeId(of.scope),
                site: Site::new(files[file], line, column),
            });
        }
        Ok(nodes)
    }

    /// The shape and type of a node's result.
    fn typed(&self, op: &Op, inputs: &[Typed], of: &StoredNode) -> Checked<Typed> {
        let own = || (of.shape.clone(), of.dtype);
        let wants = |count: usize| {
            check(inputs.len() == count, || format!("it reads {} values, and should {count}", inputs.len()))
        };
        match op {
            Op::Const(_) => {
                wants(0)?;
                check(of.shape.rank() == 0, || "a constant is a scalar".into())?;
                return Ok(own());
            }
            Op::Table(values) => {
                wants(0)?;
                return Ok(([values.len()].into(), of.dtype));
            }
            Op::Input(id) => {
                wants(0)?;
                let input = self.inputs.get(id.0 as usize).ok_or("there is no such input")?;
                return Ok((input.shape.clone(), input.dtype));
            }
            Op::State(id) => {
                wants(0)?;
                let state = &self.states[id.index()];
                return Ok((state.shape.clone(), state.dtype));
            }
            Op::Iota(_) => wants(0)?,
            Op::Random { .. } | Op::Binary(_) | Op::Gather(_) | Op::ScatterAdd { .. } | Op::MatMul { .. } => wants(2)?,
            Op::Conv2d(_) | Op::ConvInputGrad(..) | Op::ConvWeightGrad(..) => wants(2)?,
            Op::Select => wants(3)?,
            Op::Assemble { places, .. } => {
                wants(places.len())?;
                check(!inputs.is_empty(), || "it has no parts".into())?;
            }
            Op::SegmentReduce(_, segments) | Op::SegmentBroadcast(segments) => {
                wants(1)?;
                let mut end = 0;
                for (start, len) in &segments.ranges {
                    let next = start.checked_add(*len).filter(|next| *start >= end && *next <= segments.total);
                    end = next.ok_or("its segments overlap, or leave the vector")?;
                }
            }
            Op::Exchange(Way::Gather(ranks) | Way::Scatter(ranks), _) => {
                wants(1)?;
                self.check_ranks(*ranks)?;
            }
            Op::Part(part) => {
                wants(1)?;
                let Share { whole, ranks } = part.share();
                self.check_ranks(ranks)?;
                check(whole <= MOST, || "its vector has too many elements".into())?;
            }
            Op::Custom { args, outs, out, .. } => {
                let all = args.checked_add(*outs).ok_or("it has too many values")?;
                wants(all)?;
                check(out < outs, || "it has no such result".into())?;
            }
            // Fused operations count their inputs themselves.
            op if op.is_fused() => check(!inputs.is_empty(), || "it reads nothing".into())?,
            Op::Hook(_) | Op::Recomputed | Op::Barrier(_) => check(!inputs.is_empty(), || "it reads nothing".into())?,
            _ => wants(1)?,
        }
        op.infer(inputs)
    }

    fn check_ranks(&self, ranks: usize) -> Checked<()> {
        let known = ranks == self.ranks && (1..=MOST_RANKS).contains(&ranks);
        check(known, || format!("it is of {ranks} ranks, and the program of {}", self.ranks))
    }
}

/// A value, or the reason why there is none, as the end of a sentence.
type Checked<T> = std::result::Result<T, String>;

fn check(holds: bool, why: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(why()) }
}

/// The number of elements, if it is at most `MOST`.
fn elements(shape: &Shape) -> Checked<usize> {
    let all = shape.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent));
    all.filter(|all| *all <= MOST).ok_or_else(|| format!("{shape} has too many elements"))
}

impl Store {
    /// A store of these states, and of parameters that are segments of some of them: path, shape, arena and first
    /// element.
    fn of_parts(states: Vec<(String, Array)>, params: Vec<(String, Shape, usize, usize)>) -> Self {
        let mut store = Store::new();
        let ids: Vec<_> = states.iter().map(|(name, value)| store.state(name, value)).collect();
        params.into_iter().for_each(|(path, shape, arena, offset)| store.place(&path, shape, ids[arena], offset));
        store
    }
}
