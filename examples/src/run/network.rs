//! Networks behind a trainer: micro-batches, held-out data, and what hooks see of the layers.

use super::{Data, Example, Feed, Names, Settings, data::split};
use crate::{Result, cli::Training, device::Place, history::Observed};
use wgrad::{Array, DType, Layout, Lint, Optimizer, Param, ParamSet, Program, Session, Store, Tape, Taps, Tensor};
use wgrad_nn::{Loss, Trainer, TrainerConfig, checkpoint::Metadata, data::Batch};

/// A model with its loss and its metric.
pub trait Network: Clone + 'static {
    /// What a batch is trained on: the mean loss, or what is to be minimised instead, where the mean loss is tapped as
    /// [`LOSS`].
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// The mean metric of a batch of held-out data.
    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// The gradient `g` of an activation's input that is probed as `z`, as the table of flows has it: a number, or one for each
    /// time step.
    fn flow<'t>(&self, g: Tensor<'t>) -> Tensor<'t> {
        g.abs().mean()
    }

    /// Adds to a trainer what its configuration has no word for.
    fn train(&self, trainer: Trainer) -> Trainer {
        trainer
    }

    /// Lines to show after a run that has ended; `held_out` is a batch of held-out data.
    ///
    /// # Errors
    /// If the device fails.
    fn remarks(&self, _session: &mut Session, _held_out: &Batch) -> Result<Vec<String>> {
        Ok(vec![])
    }
}

/// The tap of a loss that is not what is minimised.
pub const LOSS: &str = "example/loss";

/// How a network is trained.
pub struct Plan<D> {
    /// How long, and what it is judged by.
    pub settings: Settings,
    /// What a run that goes on from a file must have in common with this one.
    pub identity: Vec<(&'static str, String)>,
    /// The command line's options of training.
    pub training: Training,
    /// What is done to gradients. Watching, precision and accumulation are set from the rest.
    pub trainer: TrainerConfig,
    /// What batches are taken from.
    pub data: D,
    /// Held-out data, in batches.
    pub held_out: Vec<Batch>,
    /// Decides the order of batches.
    pub seed: u64,
}

/// A network in training.
struct Trained<N> {
    network: N,
    settings: Settings,
    identity: Vec<(&'static str, String)>,
    names: Names,
    accumulate: usize,
    trainer: Trainer,
    feed: Box<dyn Feed>,
    held_out: Vec<Batch>,
    /// The weights whose gradients' norms are shown, by their place among those of all parameters.
    weights: Vec<usize>,
    /// What each micro-batch of the update under way has shown of the layers, as the loss scale has it.
    flows: Vec<Vec<f64>>,
    /// Mean losses of micro-batches of the update under way, where they are tapped.
    losses: Vec<f64>,
    lints: Vec<Lint>,
}

/// The prefix of taps of mean |dL/dz|.
const FLOW: &str = "flow/";

/// The parameters with at least two dimensions: their places among `params`, and their paths.
fn weights(layout: &Layout, params: &[Param]) -> (Vec<usize>, Vec<String>) {
    let of = |(at, param): (usize, &Param)| {
        let decl = layout.param(*param);
        (decl.shape.rank() >= 2).then(|| (at, decl.path.clone()))
    };
    params.iter().enumerate().filter_map(of).unzip()
}

/// The trainer of a network.
fn trainer<N: Network, D>(
    store: &mut Store,
    network: &N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: &Plan<D>,
) -> Trainer {
    let config = TrainerConfig {
        accumulate: plan.training.accumulate,
        precision: plan.training.precision.into(),
        profile: true,
        // A loss that is not finite is for the verdict to tell.
        check_loss: false,
        give_up: None,
        seed: plan.seed,
        ..plan.trainer.clone()
    };
    let trained = network.clone();
    network.train(Trainer::new(store, params, optimizer, config, move |batch| {
        let watched = trained.clone();
        let loss = || trained.loss(batch.get("x"), batch.get("y"));
        Loss::from(batch.tape().with_probe(move |path, z| watch_flow(&watched, path, z), loss))
    }))
}

/// Taps what a network tells of the gradient of each activation's input, in f32 whatever its type.
fn watch_flow<'t, N: Network>(network: &N, path: &str, z: Tensor<'t>) -> Tensor<'t> {
    let Some(layer) = path.strip_suffix("z").map(|path| path.trim_end_matches('/').to_string()) else { return z };
    let network = network.clone();
    z.on_grad(move |g| {
        g.tape().tap(&format!("{FLOW}{layer}"), network.flow(g.cast(DType::F32)));
        g
    })
}

/// What the numbers of a program's flows stand for, first to last: the sweep meets the last layer first.
fn flows(program: &Program) -> Vec<String> {
    let taps = program.taps().iter().rev().filter_map(|tap| Some((tap.name.strip_prefix(FLOW)?, tap.node)));
    let named = taps.flat_map(|(layer, node)| match program.node(node).shape.numel() {
        1 => vec![layer.to_string()],
        steps => (1..=steps).map(|step| step.to_string()).collect(),
    });
    named.collect()
}

/// Records one update of a network: its program, and the store that it is over.
///
/// # Errors
/// If the data has no batch.
pub fn program<N: Network, D: Data>(
    mut store: Store,
    network: &N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<D>,
) -> Result<(Store, Program)> {
    let trainer = trainer(&mut store, network, params, optimizer, &plan);
    let mut feed = plan.data.feed(plan.settings.batch, plan.seed)?;
    let program = record(&store, &trainer, &first(&mut *feed, plan.training.accumulate)?);
    Ok((store, program))
}

/// The first micro-batch.
fn first(feed: &mut dyn Feed, accumulate: usize) -> Result<Batch> {
    let batch = feed.next()?;
    Ok(split(&batch, feed.axis(), accumulate).remove(0))
}

/// Records a micro-batch, and the update where it takes more of them.
fn record(store: &Store, trainer: &Trainer, micro: &Batch) -> Program {
    let tape = Tape::new(store.layout().clone().into());
    trainer.record_micro_batch(&tape, &[("x", &micro.x), ("y", &micro.y)]);
    if trainer.config().accumulate > 1 {
        trainer.record_update(&tape, false);
    }
    tape.finish()
}

/// Moves a network to a device, with everything that trains it.
///
/// # Errors
/// If the data has no batch, or the device fails.
pub fn open<N: Network, D: Data>(
    mut store: Store,
    network: N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<D>,
    place: &Place,
) -> Result<(Box<dyn Example>, Session)> {
    let trainer = trainer(&mut store, &network, params, optimizer, &plan);
    let Plan { settings, identity, training, data, held_out, seed, .. } = plan;
    let accumulate = training.accumulate;
    let mut feed = data.feed(settings.batch, seed)?;
    let recorded = record(&store, &trainer, &first(&mut *feed, accumulate)?);
    feed.resume(&Metadata::new(), 0)?;
    let reached: Vec<Param> = params.iter().filter(|param| !recorded.unreached().contains(param)).collect();
    let (weights, weight_names) = weights(store.layout(), &reached);
    let names = Names { flow: flows(&recorded), weights: weight_names };
    let session = place.session(store)?;
    let lints = recorded.lints().to_vec();
    let trained = Trained {
        network,
        settings,
        identity,
        names,
        accumulate,
        trainer,
        feed,
        held_out,
        weights,
        flows: vec![],
        losses: vec![],
        lints,
    };
    Ok((Box::new(trained), session))
}

/// Mean |dL/dz| of a batch from those of its micro-batches, each of which had a loss of its own that was multiplied by a scale.
fn mean(flows: &[Vec<f64>], width: usize, scale: f64) -> Vec<f64> {
    let count = flows.len() as f64;
    (0..width).map(|at| flows.iter().map(|flow| flow[at]).sum::<f64>() / (count * count * scale)).collect()
}

impl<N: Network> Example for Trained<N> {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn identity(&self) -> Vec<(&'static str, String)> {
        self.identity.clone()
    }

    fn step(&mut self, session: &mut Session) -> Result<()> {
        let batch = self.feed.next()?;
        for micro in split(&batch, self.feed.axis(), self.accumulate) {
            self.trainer.step(session, &[("x", &micro.x), ("y", &micro.y)])?;
        }
        Ok(())
    }

    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Observed<'_>)) {
        let mut told: Vec<&Array> = taps.iter().filter(|(name, _)| name.starts_with(FLOW)).map(|(_, g)| g).collect();
        told.reverse();
        if !told.is_empty() {
            self.flows.push(told.iter().flat_map(|g| g.to_f64()).collect());
        }
        self.losses.extend(taps.scalar(LOSS));
        for update in self.trainer.updates(std::slice::from_ref(taps)) {
            let profile = update.profile.expect("it is asked for");
            // A scale that was too large is no norm of the gradient: such a step is not taken, and a smaller one follows.
            let overflow = !update.taken && update.loss_scale != 1.0;
            let known = |value: f64| if overflow { 0.0 } else { value };
            let losses = std::mem::take(&mut self.losses);
            let loss = losses.iter().sum::<f64>() / losses.len() as f64;
            tell(Observed {
                loss: if losses.is_empty() { update.loss } else { loss },
                grad_norm: known(update.grad_norm),
                applied_norm: if update.taken { profile.applied_norm } else { 0.0 },
                flow: &mean(&std::mem::take(&mut self.flows), self.names.flow.len(), update.loss_scale),
                weights: &self.weights.iter().map(|at| profile.norms[*at]).collect::<Vec<_>>(),
            });
        }
    }

    fn evaluate(&mut self, session: &mut Session) -> Result<f64> {
        let network = &self.network;
        for Batch { x, y } in &self.held_out {
            session.run_cached("evaluation", &[("x", x), ("y", y)], |t| {
                t.tap("metric", network.metric(t.input_like("x", x), t.input_like("y", y)));
            })?;
        }
        session.wait()?;
        let means = session.taps()?;
        let of = means.iter().filter_map(|taps| taps.scalar("metric")).zip(&self.held_out);
        let sized = of.map(|(mean, batch)| (mean, batch.y.shape()[0] as f64));
        let (sum, count) = sized.fold((0.0, 0.0), |(sum, count), (mean, size)| (sum + mean * size, count + size));
        Ok(sum / count)
    }

    fn lints(&self) -> Vec<Lint> {
        self.lints.clone()
    }

    fn position(&self) -> Metadata {
        self.feed.position()
    }

    fn resume(&mut self, metadata: &Metadata, steps: usize) -> Result<()> {
        self.feed.resume(metadata, steps)?;
        self.trainer.resume();
        Ok(())
    }

    fn remarks(&mut self, session: &mut Session) -> Result<Vec<String>> {
        self.network.remarks(session, &self.held_out[0])
    }
}
