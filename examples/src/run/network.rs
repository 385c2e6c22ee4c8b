//! Networks with a trainer: micro-batches, held-out data, and the flow of gradients through the layers.

use super::{
    Data, Example, Feed, Names, Seen, Settings,
    data::{split, stretch},
    measured,
};
use crate::{Error, Result, cli::Training, device::Place, history::Observed, ranks::Share};
use wgrad::{Array, Layout, Lint, Optimizer, Param, ParamSet, Program, Session, Store, Tape, Taps, Tensor};
use wgrad_nn::{
    Detail, FlowMeasure, Loss, Measurement, MonitorConfig, Trainer, TrainerConfig,
    checkpoint::Metadata,
    data::Batch,
    diagnosis::{Opened, Setup},
    track::Recorded,
};

/// A model with its loss and its metric.
pub trait Network: Clone + 'static {
    /// The loss of a batch.
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t>;

    /// True if the value to minimise is a sum over the batch, and not a mean.
    fn is_sum(&self) -> bool {
        false
    }

    /// The mean metric of a batch of held-out data.
    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t>;

    /// Adds passes and hooks to a trainer that its configuration does not offer.
    fn train(&self, trainer: Trainer) -> Trainer {
        trainer
    }

    /// Lines to print at the end of a run; `held_out` is a batch of held-out data.
    ///
    /// # Errors
    /// If the device fails.
    fn remarks(&self, _session: &mut Session, _held_out: &Batch) -> Result<Vec<String>> {
        Ok(vec![])
    }
}

/// The loss of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Objective<'t> {
    /// The value to minimise: the mean loss, or another value.
    pub value: Tensor<'t>,
    /// The mean loss, which the run shows, if it minimises another value.
    pub mean: Option<Tensor<'t>>,
}

impl<'t> From<Tensor<'t>> for Objective<'t> {
    fn from(value: Tensor<'t>) -> Self {
        Self { value, mean: None }
    }
}

/// The tap of the mean loss, if the run minimises another value.
const LOSS: &str = "example/loss";

/// The plan of a network's training.
pub struct Plan<D> {
    /// The length of the run, and its metric.
    pub settings: Settings,
    /// The settings that a resumed run must share with the saved run.
    pub identity: Vec<(&'static str, String)>,
    /// The command line's training options.
    pub training: Training,
    /// The passes on gradients. The other fields of the plan set the monitor, the precision and the accumulation.
    pub trainer: TrainerConfig,
    /// The data of the batches.
    pub data: D,
    /// Held-out data, in batches.
    pub held_out: Vec<Batch>,
    /// The seed of the order of batches.
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
    /// The share of this rank in each micro-batch.
    share: Share,
    /// The indices, among all parameters, of the weights whose gradient norms are shown.
    weights: Vec<usize>,
    /// The mean losses of the micro-batches of the current update, as far as they are tapped as [`LOSS`].
    losses: Vec<f64>,
    /// The flow of the last measured update, which also counts for later updates until the next measurement.
    flow: Vec<f64>,
    /// The recorded update, without its measurements.
    program: Program,
    /// The last micro-batch, with the rows of all ranks.
    last: Option<Batch>,
    place: Place,
}

/// The parameters with at least two dimensions: their indices in `params`, and their paths.
fn weights(layout: &Layout, params: &[Param]) -> (Vec<usize>, Vec<String>) {
    let of = |(at, param): (usize, &Param)| {
        let decl = layout.param(*param);
        (decl.shape.rank() >= 2).then(|| (at, decl.path.clone()))
    };
    params.iter().enumerate().filter_map(of).unzip()
}

/// A configuration that measures the numbers that a run prints. It does not check the loss, because the verdict tells
/// of a non-finite loss.
fn shown(config: TrainerConfig) -> TrainerConfig {
    let flow = MonitorConfig { every: 1, detail: Detail::Flow, ..MonitorConfig::default() };
    TrainerConfig { profile: true, monitor: Some(flow), check_loss: false, give_up: None, ..config }
}

/// The trainer of a network.
fn trainer<N: Network, D>(
    store: &mut Store,
    network: &N,
    params: &ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: &Plan<D>,
    setup: &Setup,
) -> Trainer {
    let config = TrainerConfig {
        accumulate: plan.training.accumulate,
        precision: plan.training.precision.into(),
        seed: plan.seed,
        ..plan.trainer.clone()
    };
    let config = match setup.monitor {
        Some(_) => TrainerConfig { profile: true, ..setup.of(config) },
        None => shown(config),
    };
    let (trained, rows) = (network.clone(), plan.settings.batch / plan.training.accumulate);
    network.train(Trainer::new(store, params, optimizer, config, move |batch| {
        let (x, y) = (batch.get("x"), batch.get("y"));
        let Objective { value, mean } = trained.loss(x, y);
        let (own, ranks) = (y.shape()[0], x.tape().ranks());
        let factor = Share::factor(own, rows, ranks);
        if let Some(mean) = mean {
            x.tape().tap(LOSS, over_ranks(times(mean, factor)));
        }
        let of_sum = (ranks > 1).then_some(ranks as f64);
        Loss::from(times(value, if trained.is_sum() { of_sum } else { factor }))
    }))
}

/// The tensor times a factor, if there is one.
#[track_caller]
fn times(x: Tensor<'_>, factor: Option<f64>) -> Tensor<'_> {
    factor.map_or(x, |factor| x * factor)
}

/// The mean over all ranks.
#[track_caller]
fn over_ranks(x: Tensor<'_>) -> Tensor<'_> {
    match x.tape().ranks() {
        1 => x,
        ranks => x.sum_over_ranks() / ranks as f64,
    }
}

/// The names of the numbers in a program's flow, first to last: layers, or time steps.
fn flows(trainer: &Trainer, program: &Program) -> Vec<String> {
    let named = trainer.flow_sites(program).into_iter().flat_map(|(path, steps)| match steps {
        0 => vec![path.trim_end_matches('z').trim_end_matches('/').to_string()],
        steps => (1..=steps).map(|step| step.to_string()).collect(),
    });
    named.collect()
}

/// Records one update of a network; returns its program, and the store of its states.
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
    let trainer = trainer(&mut store, network, params, optimizer, &plan, &Setup::default());
    let mut feed = plan.data.feed(plan.settings.batch, plan.seed)?;
    let program = record(&store, &trainer, &first(&mut *feed, plan.training.accumulate)?);
    Ok((store, program))
}

/// The first micro-batch.
fn first(feed: &mut dyn Feed, accumulate: usize) -> Result<Batch> {
    let batch = feed.next()?;
    Ok(split(&batch, feed.axis(), accumulate).remove(0))
}

/// Records a micro-batch. If an update takes several micro-batches, the update is recorded after it.
fn record(store: &Store, trainer: &Trainer, micro: &Batch) -> Program {
    let tape = Tape::for_ranks(store.layout().clone().into(), store.shards());
    trainer.record_micro_batch(&tape, &micro.inputs());
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
    setup: &Setup,
) -> Result<(Box<dyn Example>, Session)> {
    let trainer = trainer(&mut store, &network, params, optimizer, &plan, setup);
    let Plan { settings, identity, training, data, held_out, seed, .. } = plan;
    let accumulate = training.accumulate;
    let mut feed = data.feed(settings.batch, seed)?;
    let micro = first(&mut *feed, accumulate)?;
    let recorded = record(&store, &trainer, &micro);
    feed.resume(&Metadata::new(), 0)?;
    let plain = Tape::for_ranks(store.layout().clone().into(), store.shards());
    trainer.record_plain(&plain, &micro.inputs());
    let reached: Vec<Param> = params.iter().filter(|param| !recorded.unreached().contains(param)).collect();
    let (weights, weight_names) = weights(store.layout(), &reached);
    let names = Names { flow: flows(&trainer, &recorded), weights: weight_names };
    let session = place.session(store)?;
    let trained = Trained {
        network,
        settings,
        identity,
        names,
        accumulate,
        trainer,
        feed,
        held_out,
        share: Share::default(),
        weights,
        losses: vec![],
        flow: vec![],
        program: plain.finish(),
        last: None,
        place: place.clone(),
    };
    Ok((Box::new(trained), session))
}

/// The mean magnitude of the gradient at the inputs of activations, for each layer or each time step.
fn flow(measured: &Measurement, share: f64) -> Vec<f64> {
    let is_activated = |path: &str| path.rsplit('/').next() == Some("z");
    let flows = measured.sites.iter().filter(|site| is_activated(&site.path)).filter_map(|site| site.flow.as_ref());
    let of = |flow: &FlowMeasure| if flow.steps.is_empty() { vec![flow.mean_abs] } else { flow.steps.clone() };
    flows.flat_map(of).map(|mean| mean * share).collect()
}

/// The metric on held-out data. Each rank computes that of its share, and all get that of all.
fn evaluate<N: Network>(
    network: &N,
    held_out: &[Batch],
    axis: usize,
    share: Share,
    session: &mut Session,
) -> Result<f64> {
    let own = held_out.iter().map(|batch| stretch(batch, axis, share.rows(batch["y"].shape()[0])));
    let own: Vec<Batch> = own.filter(|batch| batch["y"].shape()[0] > 0).collect();
    for batch in &own {
        session.run_cached("evaluation", &batch.inputs(), |t| {
            let input = |name: &str| t.input_like(name, &batch[name]);
            t.tap("metric", network.metric(input("x"), input("y")));
        })?;
    }
    session.wait()?;
    let means = session.taps()?;
    let of = means.iter().filter_map(|taps| taps.scalar("metric")).zip(&own);
    let sized = of.map(|(mean, batch)| (mean, batch["y"].shape()[0] as f64));
    let (sum, count) = sized.fold((0.0, 0.0), |(sum, count), (mean, size)| (sum + mean * size, count + size));
    if share.ranks == 1 {
        return Ok(sum / count);
    }
    let own = Array::new([2], vec![sum as f32, count as f32]);
    session.run_cached("evaluation of all ranks", &[("own", &own)], |t| {
        t.tap("all", t.input_like("own", &own).sum_over_ranks());
    })?;
    session.wait()?;
    let taps = session.taps()?;
    let all = taps.last().and_then(|taps| taps.get("all")).expect("tapped by the run");
    Ok(all.item(0) / all.item(1))
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

    fn join(&mut self, share: Share) -> Result<()> {
        let (rows, ranks) = (self.settings.batch / self.accumulate, share.ranks);
        if ranks > rows {
            let of = if self.accumulate == 1 { "batch" } else { "micro-batch" };
            return Err(Error::Usage(format!("--ranks: {ranks} ranks cannot share a {of} of {rows} rows")));
        }
        self.share = share;
        Ok(())
    }

    fn step(&mut self, session: &mut Session) -> Result<()> {
        let batch = self.feed.next()?;
        let axis = self.feed.axis();
        for micro in split(&batch, axis, self.accumulate) {
            let own = stretch(&micro, axis, self.share.rows(micro["y"].shape()[0]));
            self.trainer.step(session, &own.inputs())?;
            self.last = Some(micro);
        }
        Ok(())
    }

    fn observe(&mut self, taps: &Taps, tell: &mut dyn FnMut(Seen<'_>)) {
        let runs = std::slice::from_ref(taps);
        // A micro-batch measures the gradient of its own mean loss, and each rank that of its rows. This factor converts
        // it to the mean loss of the whole batch.
        let share = 1.0 / (self.accumulate * self.share.ranks) as f64;
        let measured = self.trainer.measurements(runs);
        if let Some(measured) = measured.first() {
            self.flow = flow(measured, share);
        }
        self.losses.extend(taps.scalar(LOSS));
        for update in self.trainer.updates(runs) {
            let profile = update.profile.as_ref().expect("it is asked for");
            // An overflow of the loss scale does not tell the norm of the gradient. The step is skipped, and a smaller
            // scale follows.
            let overflow = !update.taken && update.loss_scale != 1.0;
            let known = |value: f64| if overflow { 0.0 } else { value };
            let losses = std::mem::take(&mut self.losses);
            let loss = losses.iter().sum::<f64>() / losses.len() as f64;
            let weights: Vec<f64> = self.weights.iter().map(|at| profile.norms[*at]).collect();
            let observed = Observed {
                loss: if losses.is_empty() { update.loss } else { loss },
                grad_norm: known(update.grad_norm),
                applied_norm: if update.taken { profile.applied_norm } else { 0.0 },
                flow: &self.flow,
                weights: &weights,
            };
            tell(Seen { observed, update: &update, measured: measured.first() });
        }
    }

    fn evaluate(&mut self, session: &mut Session) -> Result<f64> {
        evaluate(&self.network, &self.held_out, self.feed.axis(), self.share, session)
    }

    fn opened(self: Box<Self>, session: Session) -> Opened<Error> {
        let Self { trainer, mut feed, accumulate, network, held_out, .. } = *self;
        let axis = feed.axis();
        let batches = move || {
            let batch = feed.next()?;
            Ok(split(&batch, feed.axis(), accumulate).into_iter().map(|micro| micro.into_iter().collect()).collect())
        };
        let judge = move |session: &mut Session| evaluate(&network, &held_out, axis, Share::default(), session);
        Opened { trainer, session, batches: Box::new(batches), judge: Some(Box::new(judge)) }
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn measured(&self, session: &mut Session, moment: &str) -> Result<Option<Recorded>> {
        // A step of ranks that share states out cannot be made by one of them.
        let Some(batch) = self.last.as_ref().filter(|_| self.program.ranks() == 1) else { return Ok(None) };
        Ok(Some(measured(session, &self.program, &batch.inputs(), moment, &self.place)?))
    }

    fn lints(&self) -> Vec<Lint> {
        self.program.lints().to_vec()
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
