//! Training: one recorded step, run until the task is solved, the steps are used up, or somebody stops it.

use super::{
    config::{Config, Update, name_of},
    model::Model,
};
use crate::{
    Error, Result,
    cli::Common,
    device::Place,
    interrupt,
    report::{Ending, History, Identity, Observed, Report},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wgrad::{
    Array, ClipNorm, NonFinite, Operand, Optimizer, ParamSet, Session, Severity, StateId, Step, Store, Tape, Tensor,
};
use wgrad_nn::{
    ClipWatch,
    checkpoint::{self, Metadata},
    data::Task,
    omega,
    optim::{Adam, AdamConfig, Sgd, SgdConfig},
};

/// Where a run is saved, and where it goes on from.
#[derive(Clone, Default, Debug)]
pub struct Files {
    /// Written when the run ends or is interrupted, and at every evaluation.
    pub save: Option<PathBuf>,
    /// Read before the first step.
    pub resume: Option<PathBuf>,
}

/// A clip that leaves out a step whose norm is not finite: the report tells of it.
fn skipping<'t>(max_norm: impl Into<Operand<'t>>) -> ClipNorm<'t> {
    ClipNorm::new(max_norm).non_finite(NonFinite::Skip)
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The judgement.
    pub report: Report,
    /// What it is based on.
    pub history: History,
    /// The bound on the gradient norm that was learned, if one was.
    pub bound: Option<f64>,
    /// How long it took, without building and evaluation of the model before the first step.
    pub seconds: f64,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// Whether a run shows its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Warnings on standard error, unless the result is JSON; and a progress bar, if that is a terminal.
    Bar,
    /// Nothing.
    Silent,
}

/// A model with everything that trains it, before it moves to a device.
struct Recipe {
    model: Model,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    /// The logarithm of the bound on the gradient norm, where it is learned.
    bound: Option<StateId>,
}

/// How much the logarithm of a learned bound changes in one update: little, since the bound that serves one update best is
/// larger than the one that serves many.
const BOUND_RATE: f64 = 0.01;

impl Recipe {
    fn new(store: &mut Store, config: &Config, data: &dyn Task, seed: u64) -> Self {
        let model = Model::new(store, config, data, seed);
        let params = store.params();
        let optimizer: Box<dyn Optimizer> = match config.update {
            Update::Sgd(lr) => Box::new(Sgd::new(store, &params, SgdConfig { lr: lr.into(), ..SgdConfig::default() })),
            Update::Adam(lr) => {
                Box::new(Adam::new(store, &params, AdamConfig { lr: lr.into(), ..AdamConfig::default() }))
            }
        };
        let start = config.clip.filter(|_| config.learn_clip);
        let bound = start.map(|start| store.state("meta-clip/log_max_norm", &Array::new([], vec![start.ln() as f32])));
        Self { model, params, optimizer, bound }
    }

    /// Records one training step, forward to optimizer.
    fn step(&self, t: &Tape, config: &Config, example: (&Array, &Array)) {
        let (x, y) = (t.input_like("x", example.0), t.input_like("y", example.1));
        let (hidden, outputs) = t.with_probe(watch_flow, || match config.omega {
            Some(_) => self.model.unrolled(x),
            None => self.model.forward(x),
        });
        let loss = self.model.loss(outputs, y);
        t.tap("loss", loss);
        let objective = match config.omega {
            Some(weight) => loss + omega(loss, &self.model.recurrent, &hidden) * weight,
            None => loss,
        };
        let raw = objective.grad(&self.params);
        let log_bound = self.bound.map(|bound| t.state(bound));
        let grads = match (log_bound, config.clip) {
            (Some(log_bound), _) => raw.clone().clip_by_global_norm(skipping(log_bound.exp())),
            (None, Some(max_norm)) => raw.clone().clip_by_global_norm(skipping(max_norm)),
            (None, None) => raw.clone(),
        };
        t.tap("grad_norm", raw.norm());
        t.tap("applied_norm", grads.norm());
        self.optimizer.step(grads);
        if let (Some(state), Some(log_bound)) = (self.bound, log_bound) {
            self.learn_bound(t, state, log_bound, (x, y));
        }
    }

    /// Records a step of gradient descent on the bound, by the sign of the gradient: that of the loss that the example has
    /// after the update which has just been recorded, through that update and the clipping before it.
    fn learn_bound<'t>(&self, t: &'t Tape, state: StateId, log_bound: Tensor<'t>, (x, y): (Tensor<'t>, Tensor<'t>)) {
        t.scoped("meta-clip", || {
            // The parameters are by now what the optimizer has made of them.
            let loss = self.model.loss(self.model.forward(x).1, y);
            let slope = loss.grad_wrt(&[log_bound])[0].expect("the new parameters depend on the bound");
            let rate = t.scalar(BOUND_RATE, slope.dtype());
            let up = slope.less(0.0).select(rate, rate.zeros_like());
            let down = slope.greater(0.0).select(rate, rate.zeros_like());
            t.assign(state, log_bound + up - down);
        });
    }

    /// Records the metric on held-out data.
    fn evaluation(&self, t: &Tape, example: (&Array, &Array)) {
        let (x, y) = (t.input_like("x", example.0), t.input_like("y", example.1));
        let (_, outputs) = self.model.forward(x);
        t.tap("metric", self.model.metric(outputs, y));
    }
}

/// Taps dL/dz of every time step, from the gradient of what enters the activations.
fn watch_flow<'t>(_path: &str, z: Tensor<'t>) -> Tensor<'t> {
    z.on_grad(|g| {
        g.tape().tap("flow", g.abs().mean_axes(&[1, 2]));
        g
    })
}

/// The program of one training step, and the store that it is over.
pub fn program(config: &Config, seed: u64) -> (Store, wgrad::Program) {
    let data = config.data(seed);
    let mut store = Store::new();
    let recipe = Recipe::new(&mut store, config, &*data, seed);
    let batch = data.train(config.batch, 0);
    let tape = Tape::new(store.layout().clone().into());
    recipe.step(&tape, config, (&batch.x, &batch.y));
    (store, tape.finish())
}

/// Fails if a checkpoint cannot be put there. What is there stays as it is.
fn probe(path: &Path) -> io::Result<()> {
    let text = path.to_string_lossy();
    if path.is_dir() || text.ends_with(std::path::is_separator) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    // A checkpoint is written beside the path, then renamed.
    let beside = path.with_file_name(format!(".wgrad-{}", std::process::id()));
    File::create_new(&beside)?;
    fs::remove_file(&beside)
}

/// A run in progress.
struct Run<'a> {
    config: &'a Config,
    common: &'a Common,
    data: Box<dyn Task>,
    session: Session,
    training: Step,
    evaluation: Step,
    held_out: wgrad_nn::data::Batch,
    history: History,
    bound: Option<StateId>,
    /// The steps that were made, of which the history has all that have arrived.
    made: usize,
    /// After how many steps this process has saved last.
    saved: Option<usize>,
    /// Time per training step made by this process.
    times: Vec<Duration>,
    /// How often this process has clipped.
    clips: ClipWatch,
}

/// Opens and reads all that a run needs, so that nothing is trained for one that cannot start or cannot be saved.
///
/// # Errors
/// As [`run`].
pub fn check(config: &Config, common: &Common, place: &Place, files: &Files) -> Result<()> {
    Run::open(config, common, place, files).map(drop)
}

/// Trains, and judges.
///
/// # Errors
/// If a file cannot be read or written, or the device fails: [`Error::Saved`] where the run can be gone on with.
pub fn run(config: &Config, common: &Common, place: &Place, files: &Files, watch: Watch) -> Result<Finished> {
    let mut run = Run::open(config, common, place, files)?;
    let finished = run.finish(files, watch);
    finished.map_err(|error| match (run.saved, &files.save) {
        (Some(steps), Some(path)) => Error::Saved { source: Box::new(error), steps, path: path.clone() },
        _ => error,
    })
}

impl<'a> Run<'a> {
    /// Trains to the end.
    fn finish(&mut self, files: &Files, watch: Watch) -> Result<Finished> {
        let warns = watch == Watch::Bar && !self.common.json;
        if warns {
            let warnings = self.training.lints().iter().filter(|lint| lint.severity == Severity::Warning);
            warnings.for_each(|lint| eprintln!("{lint}"));
        }
        let bar = self.bar(watch);
        let start = Instant::now();
        let mut value = f64::NAN;
        let mut interrupted = false;
        loop {
            // Before the first step too: a run that goes on from its own end has nothing left to do.
            if self.due() {
                value = self.evaluate()?;
                if let Some(path) = files.save.as_ref().filter(|_| self.has_moved()) {
                    self.save(path)?;
                }
                if self.config.metric.reaches(value, self.config.solved) && self.history.settled() {
                    break;
                }
            }
            // A loss that is not a number has no way back.
            if self.made >= self.config.steps || self.history.last_loss().is_some_and(|loss| !loss.is_finite()) {
                break;
            }
            if interrupt::requested() && self.made > 0 {
                interrupted = true;
                break;
            }
            self.step()?;
            self.show(&bar, value);
        }
        bar.finish_and_clear();
        self.arrive()?;
        if self.history.is_empty() {
            let path = files.resume.as_ref().map_or(String::new(), |path| path.display().to_string());
            return Err(Error::Usage(format!("{path} holds no step, and none was asked for")));
        }
        let evaluated = self.due();
        if !evaluated {
            value = self.evaluate()?;
        }
        if let Some(path) = files.save.as_ref().filter(|_| !evaluated || !self.has_moved()) {
            self.save(path)?;
        }
        let ending = Ending {
            metric: self.config.metric,
            value,
            finite_params: self.finite_params()?,
            ms_per_step: self.ms_per_step(),
        };
        let report = Report::new(self.identity(), &self.history, &ending);
        let bound = self.bound.map(|bound| Ok::<_, Error>(self.session.read(bound)?.item(0).exp())).transpose()?;
        if let Some(lint) = self.clips.lint().filter(|_| warns) {
            eprintln!("{lint}");
        }
        let history = std::mem::take(&mut self.history);
        Ok(Finished { report, bound, history, seconds: start.elapsed().as_secs_f64(), interrupted })
    }

    fn open(config: &'a Config, common: &'a Common, place: &Place, files: &Files) -> Result<Self> {
        let mut run = Self::new(config, common, place)?;
        if let Some(path) = &files.resume {
            run.resume(path)?;
        }
        if let Some(path) = &files.save {
            let probed = probe(path);
            probed.map_err(|source| wgrad_nn::Error::Io { action: "write", path: path.clone(), source })?;
        }
        Ok(run)
    }

    fn new(config: &'a Config, common: &'a Common, place: &Place) -> Result<Self> {
        let data = config.data(common.seed);
        let mut store = Store::new();
        let recipe = Recipe::new(&mut store, config, &*data, common.seed);
        let bound = recipe.bound;
        let mut session = place.session(store)?;
        let batch = data.train(config.batch, 0);
        let held_out = data.held_out(config.held_out);
        let training = session.record(|t| recipe.step(t, config, (&batch.x, &batch.y)))?;
        let evaluation = session.record(|t| recipe.evaluation(t, (&held_out.x, &held_out.y)))?;
        Ok(Self {
            config,
            common,
            data,
            session,
            training,
            evaluation,
            held_out,
            history: History::default(),
            bound,
            made: 0,
            saved: None,
            times: vec![],
            clips: ClipWatch::default(),
        })
    }

    /// Whether the run is at a step after which it is evaluated and saved.
    fn due(&self) -> bool {
        let steps = self.made;
        steps > 0 && (steps.is_multiple_of(self.config.evaluate_every) || steps == self.config.steps)
    }

    /// Whether this process has made a step.
    fn has_moved(&self) -> bool {
        !self.times.is_empty()
    }

    /// Makes one step, and takes in what has arrived of those so far.
    fn step(&mut self) -> Result<()> {
        let batch = self.data.train(self.config.batch, self.made as u64);
        let start = Instant::now();
        self.session.run(&self.training, &[("x", &batch.x), ("y", &batch.y)])?;
        self.made += 1;
        self.times.push(start.elapsed());
        self.observe()
    }

    /// Takes in what has arrived of the steps. A GPU may be a step or two beyond one whose loss is not a number: they do
    /// not count.
    fn observe(&mut self) -> Result<()> {
        for taps in self.session.taps()? {
            if self.history.last_loss().is_some_and(|loss| !loss.is_finite()) {
                continue;
            }
            self.clips.observe(&taps);
            let scalar = |name| taps.scalar(name).expect("tapped by the step");
            self.history.push(Observed {
                loss: scalar("loss"),
                grad_norm: scalar("grad_norm"),
                applied_norm: scalar("applied_norm"),
                flow: &taps.get("flow").expect("tapped by the step").to_f64(),
            });
        }
        Ok(())
    }

    /// Waits for all steps so far.
    fn arrive(&mut self) -> Result<()> {
        self.session.wait()?;
        self.observe()
    }

    /// The metric on held-out data.
    fn evaluate(&mut self) -> Result<f64> {
        self.arrive()?;
        self.session.run(&self.evaluation, &[("x", &self.held_out.x), ("y", &self.held_out.y)])?;
        self.session.wait()?;
        let taps = self.session.taps()?;
        Ok(taps.last().and_then(|taps| taps.scalar("metric")).expect("tapped by the evaluation"))
    }

    fn finite_params(&mut self) -> Result<bool> {
        let layout = self.session.layout().clone();
        for (arena, _) in layout.states().filter(|(id, _)| layout.is_arena(*id)) {
            if self.session.read(arena)?.to_f64().iter().any(|v| !v.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn ms_per_step(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }

    fn identity(&self) -> Identity {
        Identity {
            example: "rnn",
            case: name_of(self.config.case),
            fix: name_of(self.config.fix),
            device: self.session.device(),
            seed: self.common.seed,
        }
    }

    // Files.

    /// What a run that goes on from a file has in common with the one that wrote it; the tensors do not tell.
    fn data_identity(&self) -> [(&'static str, String); 3] {
        let (task, length) = (name_of(self.config.task), self.config.length.to_string());
        [("task", task), ("length", length), ("seed", self.common.seed.to_string())]
    }

    fn save(&mut self, path: &PathBuf) -> Result<()> {
        let history = serde_json::to_string(&self.history).expect("integers serialize");
        let entries = self.data_identity().into_iter().chain([("history", history)]);
        let metadata: Metadata = entries.map(|(key, value)| (key.to_string(), value)).collect();
        checkpoint::save(&mut self.session, path, &metadata)?;
        self.saved = Some(self.history.len());
        Ok(())
    }

    fn resume(&mut self, path: &PathBuf) -> Result<()> {
        let metadata = checkpoint::load(&mut self.session, path)?;
        let entry = |key: &str| metadata.get(key).cloned().unwrap_or_default();
        for (what, wanted) in self.data_identity() {
            let saved = entry(what);
            if saved != wanted {
                return Err(Error::OtherRun { path: path.display().to_string(), what, saved, wanted });
            }
        }
        self.history = History::restore(&entry("history"), self.config.length).ok_or_else(|| Error::OtherRun {
            path: path.display().to_string(),
            what: "history",
            saved: "none that can be read".into(),
            wanted: "to go on from it".into(),
        })?;
        self.made = self.history.len();
        Ok(())
    }

    // Progress.

    fn bar(&self, watch: Watch) -> ProgressBar {
        let target = if watch == Watch::Bar { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(self.config.steps as u64), target);
        let style = ProgressStyle::with_template("{bar:20.cyan} {pos}/{len}  {wide_msg}");
        bar.set_style(style.expect("the template is sound"));
        bar.set_position(self.history.len() as u64);
        bar.reset_eta();
        bar
    }

    fn show(&self, bar: &ProgressBar, value: f64) {
        if bar.is_hidden() {
            return;
        }
        bar.set_position(self.history.len() as u64);
        let (loss, _) = self.history.recent_loss();
        let clipped = 100.0 * self.history.clipped as f64 / self.history.len() as f64;
        let (norm, rate) = (self.history.grad_norm_max(), bar.per_sec());
        // Unknown before the first evaluation.
        let metric = if value.is_nan() { String::new() } else { format!("  {} {value:.3}", self.config.metric.name) };
        bar.set_message(format!(
            "{rate:.0} steps/s  loss {loss:.4}{metric}  largest norm {norm:.1e}  clipped {clipped:.0} %"
        ));
    }
}
