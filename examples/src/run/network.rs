//! Networks behind a trainer: batches of a data set, micro-batches, held-out data, and what hooks see of the layers.

use super::{Example, Names, Settings};
use crate::{Result, cli::Training, device::Place, history::Observed};
use wgrad::{Array, Layout, Lint, Optimizer, Param, ParamSet, Program, Session, Store, Tape, Taps, Tensor};
use wgrad_nn::{
    Loss, Trainer, TrainerConfig,
    checkpoint::Metadata,
    data::{Batch, Dataset, Loader, LoaderConfig, Position},
};

/// A model with its loss and its metric.
pub trait Network: Clone + 'static {
    /// The mean loss of a batch in training.
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// The mean metric of a batch of held-out data.
    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// Lines to show after a run that has ended; `held_out` is a batch of held-out data.
    ///
    /// # Errors
    /// If the device fails.
    fn remarks(&self, _session: &mut Session, _held_out: &Batch) -> Result<Vec<String>> {
        Ok(vec![])
    }
}

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
    loader: Loader,
    /// Opens the loader again, at another position.
    reopen: Box<dyn Fn(Position) -> wgrad_nn::Result<Loader>>,
    held_out: Vec<Batch>,
    /// The weights whose gradients' norms are shown, by their place among those of all parameters.
    weights: Vec<usize>,
    /// What the last micro-batch has shown of the layers, as the loss scale has it.
    flow: Vec<f64>,
    lints: Vec<Lint>,
}

/// The prefix of taps of mean |dL/dz|.
const FLOW: &str = "flow/";

/// Taps mean |dL/dz| of each activation's input, in f32 whatever its type.
fn watch_flow<'t>(path: &str, z: Tensor<'t>) -> Tensor<'t> {
    let Some(layer) = path.strip_suffix("/z").map(str::to_string) else { return z };
    z.on_grad(move |g| {
        g.tape().tap(&format!("{FLOW}{layer}"), g.cast(wgrad::DType::F32).abs().mean());
        g
    })
}

/// The parameters with at least two dimensions: their places among `params`, and their paths.
pub fn weights(layout: &Layout, params: &[Param]) -> (Vec<usize>, Vec<String>) {
    let of = |(at, param): (usize, &Param)| {
        let decl = layout.param(*param);
        (decl.shape.rank() >= 2).then(|| (at, decl.path.clone()))
    };
    params.iter().enumerate().filter_map(of).unzip()
}

/// The parts of a batch that are micro-batches.
///
/// # Panics
/// If they do not divide it.
fn parts(batch: &Batch, count: usize) -> Vec<Batch> {
    let part = |array: &Array, at: usize| {
        let (shape, size) = (array.shape(), array.shape().numel() / count);
        Array::new(shape.with(0, shape[0] / count), array.data().slice(at * size..(at + 1) * size))
    };
    (0..count).map(|at| Batch { x: part(&batch.x, at), y: part(&batch.y, at) }).collect()
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
    let network = network.clone();
    Trainer::new(store, params, optimizer, config, move |batch| {
        let loss = || network.loss(batch.get("x"), batch.get("y"));
        Loss::from(batch.tape().with_probe(watch_flow, loss))
    })
}

/// Records one update of a network: its program, and the store that it is over.
pub fn program<N: Network, D: Dataset>(
    mut store: Store,
    network: &N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: &Plan<D>,
) -> (Store, Program) {
    let trainer = trainer(&mut store, network, params, optimizer, plan);
    let samples: Vec<usize> = (0..plan.settings.batch).collect();
    let micro = parts(&plan.data.batch(&samples, 0), plan.training.accumulate).remove(0);
    let program = record(&store, &trainer, &micro);
    (store, program)
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
pub fn open<N: Network, D: Dataset + Clone>(
    mut store: Store,
    network: N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<D>,
    place: &Place,
) -> Result<(Box<dyn Example>, Session)> {
    let trainer = trainer(&mut store, &network, params, optimizer, &plan);
    let Plan { settings, identity, training, data, held_out, seed, .. } = plan;
    let config = LoaderConfig { batch: settings.batch, keep_last: false, seed, ..LoaderConfig::default() };
    let reopen = Box::new(move |position| Loader::new(data.clone(), config, position));
    let mut loader = reopen(Position::default())?;
    let accumulate = training.accumulate;
    let first = parts(&loader.next().expect("a loader has no end"), accumulate).remove(0);
    loader = reopen(Position::default())?;
    let recorded = record(&store, &trainer, &first);
    let reached: Vec<Param> = params.iter().filter(|param| !recorded.unreached().contains(param)).collect();
    let (weights, weight_names) = weights(store.layout(), &reached);
    // The backward sweep meets the last layer first.
    let flow = recorded.taps().iter().rev().filter_map(|tap| tap.name.strip_prefix(FLOW)).map(str::to_string);
    let names = Names { flow: flow.collect(), weights: weight_names };
    let session = place.session(store)?;
    let flow = vec![f64::NAN; names.flow.len()];
    let lints = recorded.lints().to_vec();
    let trained = Trained {
        network,
        settings,
        identity,
        names,
        accumulate,
        trainer,
        loader,
        reopen,
        held_out,
        weights,
        flow,
        lints,
    };
    Ok((Box::new(trained), session))
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
        let batch = self.loader.next().expect("a loader has no end");
        for micro in parts(&batch, self.accumulate) {
            self.trainer.step(session, &[("x", &micro.x), ("y", &micro.y)])?;
        }
        Ok(())
    }

    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Observed<'_>)) {
        for (value, layer) in self.flow.iter_mut().zip(&self.names.flow) {
            if let Some(flow) = taps.scalar(&format!("{FLOW}{layer}")) {
                *value = flow;
            }
        }
        for update in self.trainer.updates(std::slice::from_ref(taps)) {
            let profile = update.profile.expect("it is asked for");
            // A scale that was too large is no norm of the gradient: such a step is not taken, and a smaller one follows.
            let overflow = !update.taken && update.loss_scale != 1.0;
            let known = |value: f64| if overflow { 0.0 } else { value };
            tell(Observed {
                loss: update.loss,
                grad_norm: known(update.grad_norm),
                applied_norm: if update.taken { profile.applied_norm } else { 0.0 },
                flow: &self.flow.iter().map(|value| value / update.loss_scale).collect::<Vec<_>>(),
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
        let sized = of.map(|(mean, batch)| (mean, batch.x.shape()[0] as f64));
        let (sum, count) = sized.fold((0.0, 0.0), |(sum, count), (mean, size)| (sum + mean * size, count + size));
        Ok(sum / count)
    }

    fn lints(&self) -> Vec<Lint> {
        self.lints.clone()
    }

    fn position(&self) -> Metadata {
        [("position".to_string(), self.loader.position().to_string())].into()
    }

    fn resume(&mut self, metadata: &Metadata, _steps: usize) -> Result<()> {
        let position = metadata.get("position").cloned().unwrap_or_default().parse()?;
        self.loader = (self.reopen)(position)?;
        self.trainer.resume();
        Ok(())
    }

    fn remarks(&mut self, session: &mut Session) -> Result<Vec<String>> {
        self.network.remarks(session, &self.held_out[0])
    }
}
