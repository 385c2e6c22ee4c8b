//! The trainer: everything between a loss and the parameters, in the right order, from a configuration.

mod config;
mod inputs;
mod measured;
mod recording;

pub use config::{LossScale, Precision, TrainerConfig};
pub use inputs::{Inputs, Loss};

use crate::{
    layers::buffers::Buffers,
    monitor::{Profile, Update},
    optim::{Ema, EmaConfig},
    train::{Landscape, edit::edited, flight::Before},
};
use inputs::Asked;
use measured::Monitor;
use std::{cell::RefCell, collections::BTreeMap, fmt, rc::Rc};
use wgrad::{
    Accumulator, Array, DType, DynamicScale, FiniteGuard, Flat, Grads, InputDecl, Lint, LossScaler, Noise, OnGiveUp,
    Optimizer, ParamSet, Result, Rng, Scaled, Session, Shape, Site, StateId, Step, Store, Tape, Taps, Weighting,
};

pub(crate) type LossFn = Rc<dyn for<'t> Fn(&Inputs<'t>) -> Loss<'t>>;
type PassesFn = Box<dyn for<'t> Fn(Grads<'t>) -> Grads<'t>>;
type AfterFn = Box<dyn for<'t> Fn(&Inputs<'t>)>;

/// The position of a trainer in its run.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    present: Option<usize>,
    begun: usize,
    made: usize,
}

impl Place {
    /// True if nothing has been run since another place.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        (self.present, self.made) == (other.present, other.made)
    }

    /// The number of updates that have been made since another place.
    pub(crate) fn since(&self, other: &Self) -> usize {
        self.made - other.made
    }
}

/// Sums over the micro-batches of a window.
#[derive(Clone, Copy)]
struct Window {
    /// The sum of weighted losses (f32 scalar).
    loss: StateId,
    /// The sum of weights (f32 scalar).
    weight: StateId,
}

/// The values of buffers at the beginning of a window, to restore if its update is skipped.
#[derive(Default)]
struct Kept {
    /// For each buffer, the state that keeps its value.
    states: BTreeMap<StateId, StateId>,
    /// The buffers that the micro-batches recorded so far update.
    moved: RefCell<Vec<StateId>>,
}

/// The key of a micro-batch's program: its inputs, and true if it measures.
type Key = (Vec<(String, Shape, DType)>, bool);

/// A compiled program, and its key.
type Compiled<K> = (K, Step);

/// The program of an update without measurements, and the one with them.
type UpdatePrograms = [Option<Compiled<(ParamSet, usize)>>; 2];

/// The number of shapes of micro-batches that are kept compiled.
const SHAPES: usize = 64;

/// Trains a model. An update consists of the loss, the loss scale, accumulation, all-reduce over the ranks that train
/// together, unscaling, finite check, factors of some parameters, noise, centralization, adaptive clip, clips,
/// optimizer, average and scale update, in this order, which the rules of [`wgrad::PassState`] demand. All of it is on
/// the tape, so a step waits for nothing.
///
/// Each micro-batch updates the buffers, such as running statistics ([`crate::Buffers`]), which must be declared before
/// the trainer. If the step is skipped, they are as they were before it. Over several ranks, they become their mean.
///
/// ```
/// use wgrad::{Array, DType, Session, Store};
/// use wgrad_cpu::CpuBackend;
/// use wgrad_nn::{Builder, Init, Linear, Schedule, Trainer, TrainerConfig, optim::{AdamW, AdamWConfig}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut store = Store::new();
/// let model = Linear::new(Builder::new(&mut store, 0), 3, 2, &Init::XavierUniform { gain: 1.0 });
/// let params = store.params();
/// let lr = Schedule::warmup(1e-3, 100).into();
/// let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr, ..Default::default() });
/// let config = TrainerConfig { clip_norm: Some(1.0), accumulate: 2, ..Default::default() };
/// let mut trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
///     model.forward(batch.get("x")).cross_entropy(batch.get("y")).into()
/// });
/// let mut session = Session::new(Box::new(CpuBackend::new(1)?), store)?;
/// let (x, y) = (Array::zeros([4, 3], DType::F32), Array::zeros([4], DType::U32));
/// for _ in 0..6 {
///     trainer.step(&mut session, &[("x", &x), ("y", &y)])?;
///     for update in trainer.updates(&session.taps()?) {
///         println!("loss {:.3}, gradient norm {:.3}", update.loss, update.grad_norm);
///     }
/// }
/// trainer.flush(&mut session)?; // the rest of a window that the data cut short
/// # Ok(())
/// # }
/// ```
pub struct Trainer {
    config: TrainerConfig,
    /// The line that made the trainer, which errors name for all that it records besides the loss.
    site: Site,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    scaler: LossScaler,
    /// `None` if one micro-batch makes an update.
    window: Option<(Accumulator<Scaled>, Window)>,
    buffers: Buffers,
    kept: Kept,
    guard: Option<FiniteGuard>,
    noise: Option<(Noise, Rng)>,
    ema: Option<Ema>,
    loss: LossFn,
    passes: Option<PassesFn>,
    after: Option<AfterFn>,
    micro_batches: Vec<Compiled<Key>>,
    /// The inputs that the loss has asked for.
    asked: RefCell<Asked>,
    /// The programs of a full window, and of one that the data cut short. Their keys are the parameters that
    /// micro-batches had reached when the program was recorded, and the number of buffers that they had updated.
    updates: [UpdatePrograms; 2],
    /// The number of micro-batches in the window; `None` before the session has been asked.
    present: Option<usize>,
    /// The number of updates that this trainer has made.
    made: usize,
    /// The measurements, if there are any.
    monitor: Option<Monitor>,
}

impl fmt::Debug for Trainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer").field("config", &self.config).field("optimizer", &self.optimizer.name()).finish()
    }
}

impl Trainer {
    /// Declares the trainer's states in the store, under the configuration's name. `loss` records the mean loss of a
    /// micro-batch, once for each shape of its inputs.
    ///
    /// Each recording has a tape of its own lifetime, so a loss must accept all lifetimes: write the closure in the call,
    /// or call an `fn` in it. The compiler refuses a closure that is first bound to a variable.
    ///
    /// # Panics
    /// If the name is taken; if `accumulate` is 0; if a setting is outside its range, as its pass or the scaler says.
    #[allow(clippy::manual_map, reason = "within a closure the caller's line would be lost")]
    #[track_caller]
    pub fn new(
        store: &mut Store,
        params: &ParamSet,
        optimizer: impl Optimizer + 'static,
        config: TrainerConfig,
        loss: impl for<'t> Fn(&Inputs<'t>) -> Loss<'t> + 'static,
    ) -> Self {
        let (params, optimizer, config) = edited(store, params, Box::new(optimizer), config);
        let params = &params;
        let TrainerConfig { name, accumulate, weighting, .. } = &config;
        let scaled = config.scale_grad.iter().map(|(params, _)| params);
        for params in scaled.chain([params, &config.head, optimizer.states().params()]) {
            store.layout().check(params);
        }
        assert!(*accumulate > 0, "trainer: accumulate is 0, and must be at least 1");
        let monitor = Monitor::new(store, params, &config);
        let scale_name = format!("{name}/loss_scale");
        let scaler = match (&config.loss_scale, config.precision) {
            (LossScale::None, _) | (LossScale::Auto, Precision::F32) => LossScaler::none(),
            (LossScale::Fixed(scale), _) => LossScaler::fixed(*scale),
            (LossScale::Dynamic(settings), _) => LossScaler::dynamic(store, settings.clone()),
            (LossScale::Auto, Precision::F16) => {
                LossScaler::dynamic(store, DynamicScale { name: scale_name, ..DynamicScale::default() })
            }
        };
        let window = if *accumulate > 1 || *weighting == Weighting::TokenWeighted {
            let accumulator = Accumulator::new(store, params, &format!("{name}/accumulator"), *weighting);
            let accumulator = accumulator.micro_batches(store, *accumulate);
            let zero = Array::zeros([], DType::F32);
            let loss = store.state(&format!("{name}/window/loss"), &zero);
            let weight = store.state(&format!("{name}/window/weight"), &zero);
            Some((accumulator, Window { loss, weight }))
        } else {
            None
        };
        let buffers = Buffers::of(store.layout());
        let mut kept = Kept::default();
        for &buffer in buffers.states().iter().filter(|_| window.is_some()) {
            let decl = store.layout().state(buffer).clone();
            let copy = store.state(&format!("{name}/window/{}", decl.name), &Array::zeros(decl.shape, decl.dtype));
            kept.states.insert(buffer, copy);
        }
        let guard = match config.give_up {
            Some(most) => Some(FiniteGuard::new(store, &format!("{name}/guard"), Some(most), OnGiveUp::Error)),
            None => None,
        };
        let noise = match config.noise {
            Some(noise) => Some((noise, Rng::new(store, &format!("{name}/noise"), config.seed))),
            None => None,
        };
        let ema = match config.ema {
            Some(decay) => Some(Ema::new(store, params, EmaConfig { name: format!("{name}/ema"), decay })),
            None => None,
        };
        let (params, loss) = (params.clone(), Rc::new(loss));
        let (micro_batches, updates, present) = (vec![], [[None, None], [None, None]], None);
        let site = Site::caller();
        Self {
            config,
            site,
            params,
            optimizer,
            scaler,
            window,
            buffers,
            kept,
            guard,
            noise,
            ema,
            loss,
            passes: None,
            after: None,
            micro_batches,
            asked: RefCell::default(),
            updates,
            present,
            made: 0,
            monitor,
        }
    }

    /// Adds passes of the caller's. They get the gradient after the configuration's passes, and the optimizer gets
    /// their result.
    #[must_use]
    pub fn with_passes(self, passes: impl for<'t> Fn(Grads<'t>) -> Grads<'t> + 'static) -> Self {
        Self { passes: Some(Box::new(passes)), ..self }
    }

    /// Records more after each update, on its tape. The parameters then have their updated values, and gradients flow
    /// through the update.
    ///
    /// # Panics
    /// If more than one micro-batch makes an update, as an update then has no inputs.
    #[must_use]
    #[track_caller]
    pub fn after_update(self, record: impl for<'t> Fn(&Inputs<'t>) + 'static) -> Self {
        assert!(
            self.window.is_none(),
            "trainer: the update of several micro-batches has no inputs to record more with"
        );
        Self { after: Some(Box::new(record)), ..self }
    }

    /// The configuration.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &dyn Optimizer {
        &*self.optimizer
    }

    /// The landscape of the trainer's loss over the trained parameters: curvature and noise around a session's values.
    pub fn landscape(&self) -> Landscape {
        Landscape::shared(&self.params, self.loss.clone())
    }

    /// The averages of the parameters, one flat vector per arena; `None` without [`TrainerConfig::ema`]. A model runs
    /// on them within [`Tape::with_params`].
    #[track_caller]
    pub fn averages<'t>(&self, tape: &'t Tape) -> Option<Flat<'t>> {
        self.ema.as_ref().map(|ema| ema.averages(tape))
    }

    /// Runs a micro-batch, and the update if that completes a window. True if it did.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`]; [`wgrad::Error::MissingInput`] if a micro-batch lacks an input that
    /// others had and that the loss asks for. A micro-batch that could not be run is not in the window. If the update
    /// could not be run, the micro-batches stay in the window, and the next step or flush makes it first.
    #[track_caller]
    pub fn step(&mut self, session: &mut Session, inputs: &[(&str, &Array)]) -> Result<bool> {
        self.step_with(session, inputs, &mut |_, _, _| Ok(()))
    }

    /// As [`Trainer::step`], and calls `before` with each program before its run.
    #[track_caller]
    pub(crate) fn step_with(
        &mut self,
        session: &mut Session,
        inputs: &[(&str, &Array)],
        before: Before<'_>,
    ) -> Result<bool> {
        if self.window.is_some() && self.present(session)? == self.config.accumulate {
            self.check_inputs(inputs)?;
            self.close(session, false, before)?;
        }
        let present = self.present(session)?;
        let micro_batch = self.micro_batch(session, inputs, present == 0 && self.is_measured())?;
        before(session, &micro_batch, inputs)?;
        session.run(&micro_batch, inputs)?;
        if self.window.is_none() {
            self.count_update();
            return Ok(true);
        }
        self.present = Some(present + 1);
        if present + 1 < self.config.accumulate {
            return Ok(false);
        }
        self.close(session, false, before)?;
        Ok(true)
    }

    /// Makes the update of a window that the data cut short, as the mean over its micro-batches. True if there were
    /// any.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    ///
    /// # Panics
    /// If the window is that of a checkpoint, and no micro-batch has followed: only recorded micro-batches tell the
    /// parameters that have a gradient.
    #[track_caller]
    pub fn flush(&mut self, session: &mut Session) -> Result<bool> {
        self.flush_with(session, &mut |_, _, _| Ok(()))
    }

    /// As [`Trainer::flush`], and calls `before` with the program before its run.
    #[track_caller]
    pub(crate) fn flush_with(&mut self, session: &mut Session, before: Before<'_>) -> Result<bool> {
        if self.present(session)? == 0 {
            return Ok(false);
        }
        self.close(session, true, before)?;
        Ok(true)
    }

    /// The trainer's position, for [`Trainer::go_to`].
    pub(crate) fn place(&self) -> Place {
        Place { present: self.present, begun: self.monitor.as_ref().map_or(0, Monitor::begun), made: self.made }
    }

    /// Returns to a position. The session must have the states of that position.
    pub(crate) fn go_to(&mut self, place: Place) {
        (self.present, self.made) = (place.present, place.made);
        if let Some(monitor) = &mut self.monitor {
            monitor.go_to(place.begun);
        }
    }

    /// True if an update takes a program of its own, after those of its micro-batches: [`Trainer::record_update`].
    pub fn has_windows(&self) -> bool {
        self.window.is_some()
    }

    /// The lints of the programs that have been recorded so far.
    pub fn lints(&self) -> Vec<Lint> {
        let steps = self
            .micro_batches
            .iter()
            .map(|(_, step)| step)
            .chain(self.updates.iter().flatten().flatten().map(|(_, step)| step));
        steps.flat_map(|step| step.lints()).cloned().collect()
    }

    /// The updates among these runs, oldest first. The taps of other programs are ignored.
    pub fn updates(&self, taps: &[Taps]) -> Vec<Update> {
        taps.iter().filter_map(|taps| self.read(taps)).collect()
    }

    /// Continues from the states of the session, after a checkpoint has been loaded into it; also in the middle of a
    /// window.
    pub fn resume(&mut self) {
        self.present = None;
    }

    fn read(&self, taps: &Taps) -> Option<Update> {
        let scalar = |what: &str| taps.scalar(&format!("{}/{what}", self.config.name));
        let taken = scalar("taken")? != 0.0;
        let (loss, grad_norm) = (scalar("loss")?, scalar("grad_norm")?);
        let clipped = self.config.clip_norm.and_then(|_| taps.scalar("clip_by_global_norm/clipped"));
        let loss_scale = scalar("loss_scale").or(self.scaler.scale_value()).unwrap_or(1.0);
        let norms = taps.get(&format!("{}/norms", self.config.name));
        let profile = norms.zip(scalar("applied_norm"));
        let profile = profile.map(|(norms, applied_norm)| Profile { norms: norms.to_f64(), applied_norm });
        let clipped = clipped.map(|clipped| clipped != 0.0);
        Some(Update { run: taps.run, loss, grad_norm, clipped, taken, loss_scale, profile })
    }

    #[track_caller]
    fn close(&mut self, session: &mut Session, last: bool, before: Before<'_>) -> Result<()> {
        let watched = self.is_measured();
        // A program that was recorded before micro-batches reached further parameters would leave their gradients out.
        let present = self.window.as_ref().map(|(accumulator, _)| accumulator.present()).unwrap_or_default();
        let reached = (present, self.kept.moved.borrow().len());
        let update = match &self.updates[usize::from(last)][usize::from(watched)] {
            Some((known, update)) if *known == reached => update.clone(),
            _ => {
                let tape = Tape::for_ranks(session.layout().clone(), session.ranks());
                {
                    let _call = tape.at(self.site);
                    self.record_watched_update(&tape, last, self.recorder(watched));
                }
                session.compile(tape.finish())?
            }
        };
        let (_, update) = self.updates[usize::from(last)][usize::from(watched)].insert((reached, update));
        before(session, update, &[])?;
        session.run(update, &[])?;
        self.present = Some(0);
        self.count_update();
        Ok(())
    }

    /// The number of micro-batches that are in the window. It is read from the device once, and then counted here.
    pub(crate) fn present(&mut self, session: &mut Session) -> Result<usize> {
        let present = match (self.present, &self.window) {
            (Some(present), _) => present,
            (None, None) => 0,
            (None, Some((accumulator, _))) => {
                let counter = accumulator.counter().expect("windows have a length");
                session.read(counter)?.item(0) as usize
            }
        };
        self.present = Some(present);
        Ok(present)
    }

    /// Refuses a micro-batch without an input that the loss asks for, if others had it.
    fn check_inputs(&self, inputs: &[(&str, &Array)]) -> Result<()> {
        let asked = self.asked.borrow();
        let missing = asked.iter().find(|(name, _)| inputs.iter().all(|(given, _)| given != name));
        let Some((name, site)) = missing else { return Ok(()) };
        let known = self.micro_batches.iter().flat_map(|(_, step)| step.inputs()).find(|input| input.name == *name);
        known.map_or(Ok(()), |input| Err(InputDecl { site: *site, ..input.clone() }.missing()))
    }

    /// The program of a micro-batch of these shapes, with measurements if it is watched.
    #[track_caller]
    fn micro_batch(&mut self, session: &mut Session, inputs: &[(&str, &Array)], watched: bool) -> Result<Step> {
        self.check_inputs(inputs)?;
        let shapes: Vec<(String, Shape, DType)> =
            inputs.iter().map(|(name, array)| (name.to_string(), array.shape().clone(), array.dtype())).collect();
        let key = (shapes, watched);
        let compiled = match self.micro_batches.iter().position(|(known, _)| *known == key) {
            Some(position) => self.micro_batches.remove(position),
            None => {
                let tape = Tape::for_ranks(session.layout().clone(), session.ranks());
                self.record_loss(Inputs::declare(&tape, inputs), self.recorder(watched));
                (key, session.compile(tape.finish())?)
            }
        };
        self.micro_batches.truncate(SHAPES - 1);
        self.micro_batches.insert(0, compiled);
        Ok(self.micro_batches[0].1.clone())
    }
}
