//! Edits: changes of a run, to make it again with one difference and without a change of its code.
//!
//! An edit acts on the settings of the trainer or of the optimizer, on the program while it is recorded, or on the
//! first values of states. The default of [`crate::TrainerConfig::edits`] is none.

use super::{Loss, LossScale, Precision, TrainerConfig};
use crate::{
    layers::{Init, of_steps, unrolled as in_steps},
    random::generator,
};
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};
use wgrad::{
    Array, NodeId, Optimizer, ParamSet, Result, Session, Site, Store, Tape, Tensor, Tuning, Weighting,
    op::{Binary, Op, Unary},
};

/// A change of a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Changes a setting of the optimizer.
    Tune(Tuning),
    /// Sets [`TrainerConfig::clip_norm`].
    ClipNorm(Option<f64>),
    /// Sets [`TrainerConfig::clip_value`].
    ClipValue(Option<f64>),
    /// Sets [`TrainerConfig::agc`].
    Agc(Option<f64>),
    /// Removes [`TrainerConfig::noise`].
    NoNoise,
    /// Sets [`TrainerConfig::loss_scale`].
    LossScale(LossScale),
    /// Sets [`TrainerConfig::precision`].
    Precision(Precision),
    /// Sets [`TrainerConfig::weighting`].
    Weighting(Weighting),
    /// Multiplies the loss by this factor.
    Loss(f64),
    /// Multiplies the gradients of the parameters below these paths by this factor.
    ScaleGrad(Vec<String>, f64),
    /// Trains all parameters of the store.
    Unfreeze,
    /// Replaces a float input by `(x - shift) * scale`.
    Input {
        /// The name of the input.
        name: String,
        /// The number that is subtracted.
        shift: f64,
        /// The factor of the difference.
        scale: f64,
    },
    /// Changes the tensors that are probed at these sites.
    Sites(Vec<String>, Transform),
    /// Replaces operations while they are recorded.
    Operations(Vec<Spot>),
    /// Removes dropout.
    NoDropout,
    /// Adds the gradient of this weight times [`crate::omega`] to that of the loss, for every plain recurrence, which
    /// is recorded step by step. The reported loss stays as it is.
    Omega(f64),
    /// Replaces the first values of the parameters of these paths: matrices by an initializer's values, vectors by 0
    /// unless all their elements are 1.
    Init(Vec<String>, Init),
    /// Multiplies the first values of the parameters of these paths by this factor.
    Times(Vec<String>, f64),
    /// Leaves out the batch of this update, counted from 0.
    Skip(usize),
}

/// The edit of a tensor at a site.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Transform {
    /// Normalises the tensor, without parameters: rows by their mean and deviation, images by those of all their
    /// channels.
    Normalise,
    /// Adds the tensor at the site before, if it has the same shape.
    Shortcut,
    /// Divides rows by their root mean square.
    Unit,
    /// Multiplies the tensor by this factor.
    Times(f64),
    /// Takes the logarithm of the tensor, which turns probabilities into logits.
    Log,
    /// Replaces the tanh or sigmoid of the tensor by a rectifier.
    Rectify,
    /// Makes the rectifier of the tensor leaky: a hundredth of negative elements passes.
    Leak,
}

/// An operation to replace: a detach is left out, and an operation with a pole gets a guarded argument.
#[derive(Clone, PartialEq, Debug)]
pub struct Spot {
    /// The operation.
    pub op: Op,
    /// The line that records it.
    pub site: Site,
    /// The scope that it is recorded in.
    pub scope: String,
}

/// The smallest argument of a guarded logarithm, and the number that is added to a guarded divisor.
const GUARD: f64 = 1e-6;

/// The slope of a leaky rectifier where it is negative (Maas et al. 2013).
const LEAK: f64 = 0.01;

impl Edit {
    /// Applies the edit to the settings of a trainer.
    fn set(&self, config: &mut TrainerConfig, store: &Store) {
        match self {
            Edit::ClipNorm(bound) => config.clip_norm = *bound,
            Edit::ClipValue(bound) => config.clip_value = *bound,
            Edit::Agc(factor) => config.agc = *factor,
            Edit::NoNoise => config.noise = None,
            Edit::LossScale(scale) => config.loss_scale = scale.clone(),
            Edit::Precision(precision) => config.precision = *precision,
            Edit::Weighting(weighting) => config.weighting = *weighting,
            Edit::ScaleGrad(paths, factor) => config.scale_grad.push((below(store, paths), *factor)),
            _ => {}
        }
    }

    /// Writes the first values that the edit asks for.
    fn write(&self, session: &mut Session) -> Result<()> {
        let (Edit::Init(paths, _) | Edit::Times(paths, _)) = self else { return Ok(()) };
        let layout = session.layout().clone();
        for (param, decl) in layout.params().filter(|(_, decl)| paths.contains(&decl.path)) {
            let old = session.read_param(param)?;
            let values: Vec<f64> = match self {
                Edit::Times(_, factor) => old.to_f64().into_iter().map(|value| value * factor).collect(),
                // A vector of ones is the weight of a norm.
                Edit::Init(..) if decl.shape.rank() < 2 && old.to_f64().iter().all(|value| *value == 1.0) => continue,
                Edit::Init(..) if decl.shape.rank() < 2 => vec![0.0; decl.shape.numel()],
                Edit::Init(_, init) => init.sample(&decl.shape, &mut generator(0, &decl.path, 0)),
                _ => continue,
            };
            session.write_param(param, &Array::new(decl.shape.clone(), wgrad::Data::from_f64(old.dtype(), &values)))?;
        }
        Ok(())
    }
}

/// The parameters at these paths, and below them.
fn below(store: &Store, paths: &[String]) -> ParamSet {
    store.params_where(|path| {
        paths
            .iter()
            .any(|prefix| path.strip_prefix(&**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    })
}

/// The trained parameters, the optimizer and the settings of a trainer, after all edits of its configuration.
#[track_caller]
pub(crate) fn edited(
    store: &mut Store,
    params: &ParamSet,
    mut optimizer: Box<dyn Optimizer>,
    mut config: TrainerConfig,
) -> (ParamSet, Box<dyn Optimizer>, TrainerConfig) {
    let mut params = params.clone();
    for edit in std::mem::take(&mut config.edits) {
        match &edit {
            Edit::Tune(tuning) => _ = optimizer.tune(*tuning),
            Edit::Unfreeze => {
                let all = store.params();
                if let Some(other) = optimizer.over(store, &all) {
                    (params, optimizer) = (all, other);
                }
            }
            other => other.set(&mut config, store),
        }
        config.edits.push(edit);
    }
    (params, optimizer, config)
}

/// Writes the first values that edits ask for.
///
/// # Errors
/// If the session's device fails.
pub fn write_edits(session: &mut Session, edits: &[Edit]) -> Result<()> {
    edits.iter().try_for_each(|edit| edit.write(session))
}

/// A plain recurrence that an edit has recorded step by step.
struct Steps {
    cell: wgrad::Cell,
    w_hh: NodeId,
    h: Vec<NodeId>,
}

/// Records a loss with edits.
#[track_caller]
pub(crate) fn recorded<'t>(tape: &'t Tape, edits: &[Edit], f: impl FnOnce() -> Loss<'t>) -> Loss<'t> {
    let unrolled = Rc::new(RefCell::new(vec![]));
    let loss = edits.iter().fold(rewritten(tape, edits, unrolled.clone(), f), Loss::edited);
    let weight: f64 = edits.iter().map(|edit| if let Edit::Omega(weight) = edit { *weight } else { 0.0 }).sum();
    let of = |Steps { cell, w_hh, h }: &Steps| {
        let h: Vec<Tensor<'t>> = h.iter().map(|id| tape.tensor(*id)).collect();
        of_steps(loss.value, *cell, tape.tensor(*w_hh), &h) * weight
    };
    let added = unrolled.borrow().iter().map(of).reduce(|sum, one| sum + one);
    let with = |more: Tensor<'t>| loss.value + (more - more.detach()).cast(loss.value.dtype());
    Loss { value: added.map_or(loss.value, with), ..loss }
}

/// Records with the operations, and the tensors at sites, that the edits ask for.
fn rewritten<R>(tape: &Tape, edits: &[Edit], unrolled: Rc<RefCell<Vec<Steps>>>, f: impl FnOnce() -> R) -> R {
    let sites: Vec<(Vec<String>, Transform)> = edits
        .iter()
        .filter_map(|edit| if let Edit::Sites(paths, how) = edit { Some((paths.clone(), *how)) } else { None })
        .collect();
    let spots: Vec<Spot> = edits
        .iter()
        .filter_map(|edit| if let Edit::Operations(spots) = edit { Some(spots.clone()) } else { None })
        .flatten()
        .collect();
    let no_dropout = edits.contains(&Edit::NoDropout);
    // The tensors at edited sites, whose activations may be replaced.
    let activated = Rc::new(RefCell::new(vec![]));
    let known = activated.clone();
    let other_activations = sites.iter().any(|(_, how)| matches!(how, Transform::Rectify | Transform::Leak));
    let regularized = edits.iter().any(|edit| matches!(edit, Edit::Omega(_)));
    let replaced = || match spots.is_empty() && !no_dropout && !other_activations && !regularized {
        true => f(),
        false => tape.with_rewrite(
            move |op, x| {
                let dropped = if no_dropout { undropped(op, x) } else { None };
                let stepwise = || if regularized { stepwise(op, x, &unrolled) } else { None };
                dropped
                    .or_else(|| replacement(&spots, op, x))
                    .or_else(|| activation(&known.borrow(), op, x))
                    .or_else(stepwise)
            },
            f,
        ),
    };
    if sites.is_empty() {
        return replaced();
    }
    let before = Rc::new(Cell::new(None));
    tape.with_probe(
        move |path, x| {
            let own = sites.iter().filter(|(paths, _)| paths.iter().any(|own| own == path));
            own.fold(x, |x, (_, how)| {
                let x = how.of(x, &before);
                activated.borrow_mut().push((x.id(), *how));
                x
            })
        },
        replaced,
    )
}

/// The substitute for an operation at one of these spots.
fn replacement<'t>(spots: &[Spot], op: &Op, x: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    let tape = x.first()?.tape();
    let site = tape.site();
    spots.iter().find(|spot| spot.op == *op && spot.site == site && spot.scope == tape.scope_path())?;
    Some(match op {
        Op::Detach => x[0],
        Op::Unary(Unary::Log) => x[0].maximum(GUARD).log(),
        Op::Unary(Unary::Sqrt) => x[0].guarded_sqrt(),
        Op::Unary(Unary::Recip) => (x[0] + GUARD).recip(),
        Op::Binary(Binary::Div) => x[0] / (x[1] + GUARD),
        _ => return None,
    })
}

/// Records a plain recurrence of more than one step in steps; `None` for another operation.
fn stepwise<'t>(op: &Op, x: &[Tensor<'t>], unrolled: &RefCell<Vec<Steps>>) -> Option<Tensor<'t>> {
    let &Op::Sequence { cell, .. } = op else { return None };
    if cell.gates() > 1 || x[0].shape()[0] < 2 {
        return None;
    }
    let h = in_steps(cell, x);
    unrolled.borrow_mut().push(Steps { cell, w_hh: x[1].id(), h: h.iter().map(|h| h.id()).collect() });
    Some(Tensor::stack(&h))
}

/// The new activation of a tensor that one of these sites has given; `None` if it stays as it is.
fn activation<'t>(sites: &[(NodeId, Transform)], op: &Op, x: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    let z = *x.last()?;
    let mut id = z.id();
    // A measurement may have put hooks between the site and the activation.
    while let wgrad::Node { op: Op::Hook(_), inputs, .. } = &z.tape().node(id) {
        id = inputs[0];
    }
    let (_, how) = sites.iter().find(|(site, _)| *site == id)?;
    match (how, op) {
        (Transform::Rectify, Op::Unary(Unary::Tanh | Unary::Sigmoid)) => Some(z.relu()),
        // A rectifier is `z <= 0 ? 0 : z`.
        (Transform::Leak, Op::Select) => Some(x[0].select(z * LEAK, z)),
        _ => None,
    }
}

/// The input of a dropout: `bernoulli ? x / (1 - p) : 0` is `x`.
fn undropped<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Tensor<'t>> {
    if *op != Op::Select {
        return None;
    }
    let tape = x[0].tape();
    let mut open = vec![x[0].id()];
    let mut random = false;
    // Walk from the comparison with a uniform number down to the random words.
    for _ in 0..8 {
        let Some(id) = open.pop() else { break };
        let node = tape.node(id);
        random |= matches!(node.op, Op::Random { .. });
        open.extend(node.inputs.iter().take(1));
    }
    let kept = tape.node(x[1].id());
    (random && kept.op == Op::Binary(Binary::Div)).then(|| tape.tensor(kept.inputs[0]))
}

impl Transform {
    /// The tensor that takes the place of `x`. `before` is the tensor at the site before.
    #[track_caller]
    fn of<'t>(self, x: Tensor<'t>, before: &Cell<Option<NodeId>>) -> Tensor<'t> {
        match self {
            Transform::Normalise if x.rank() == 4 => x.group_norm(1, None, None, 1e-5),
            Transform::Normalise => x.layer_norm(1, None, None, 1e-5),
            Transform::Unit => x.rms_norm(1, None, 1e-5),
            Transform::Times(factor) => x * factor,
            Transform::Log => x.maximum(1e-12).log(),
            Transform::Rectify | Transform::Leak => x,
            Transform::Shortcut => {
                let tape = x.tape();
                let other = before.get().map(|id| tape.tensor(id)).filter(|other| other.shape() == x.shape());
                let sum = other.map_or(x, |other| x + other);
                before.set(Some(sum.id()));
                sum
            }
        }
    }
}
