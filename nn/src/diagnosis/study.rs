//! A run that can be made again from its start, unchanged or with edits.

use super::{Diagnosis, reading::Reading};
use super::{Forecast, Warning};
use crate::{
    error::Result,
    monitor::{Detail, LossAlert, LossWatch, Measurement, MonitorConfig, Update},
    train::{Edit, Failure, FlightConfig, FlightRecorder, Spike, Trainer, TrainerConfig, write_edits},
};
use wgrad::{Array, Data, Program, Session, Tape};

/// The named inputs of a micro-batch.
pub type MicroBatch = Vec<(String, Array)>;

/// Gives the micro-batches of one update after another.
pub type Batches<E> = Box<dyn FnMut() -> std::result::Result<Vec<MicroBatch>, E>>;

/// Gives the metric of a session on held-out data.
pub type Judge<E> = Box<dyn FnMut(&mut Session) -> std::result::Result<f64, E>>;

/// A run before its first step.
pub struct Opened<E = crate::Error> {
    /// The trainer.
    pub trainer: Trainer,
    /// The session, which holds the states on their device.
    pub session: Session,
    /// The batches.
    pub batches: Batches<E>,
    /// The metric of the run, if that is not its loss.
    pub judge: Option<Judge<E>>,
}

impl<E> std::fmt::Debug for Opened<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("trainer", &self.trainer).finish_non_exhaustive()
    }
}

/// The settings that a study asks of the trainer's configuration.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Setup {
    /// The value of [`TrainerConfig::monitor`].
    pub monitor: Option<MonitorConfig>,
    /// The value of [`TrainerConfig::edits`].
    pub edits: Vec<Edit>,
}

impl Setup {
    /// A configuration with these settings. The trainer does not check its loss: the diagnosis itself ends the run at a
    /// non-finite loss.
    #[must_use]
    pub fn of(&self, config: TrainerConfig) -> TrainerConfig {
        let Setup { monitor, edits } = self.clone();
        TrainerConfig { monitor, edits, check_loss: false, give_up: None, ..config }
    }
}

/// The approximate number of measurements of a run.
const LOOKS: usize = 40;

/// A run that can be made again from its start.
pub struct Study<F> {
    open: F,
    steps: usize,
    traced: Option<Trace>,
}

impl<F> std::fmt::Debug for Study<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Study").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl<F, E> Study<F>
where
    F: FnMut(&Setup) -> std::result::Result<Opened<E>, E>,
    E: From<crate::Error>,
{
    /// A study of a run of `steps` updates. `open` declares and opens the run. Each call must give the same run but for
    /// the setup, with the same batches from the first one on.
    pub fn new(steps: usize, open: F) -> Self {
        Self { open, steps, traced: None }
    }

    /// Makes the run, and looks for its faults.
    ///
    /// # Errors
    /// The errors of the closure that opens the run, and of its device.
    pub fn diagnose(&mut self) -> std::result::Result<Diagnosis, E> {
        self.diagnose_watched(&mut |_| true)
    }

    /// As [`Study::diagnose`], and calls `watch` with the run so far after each step; `false` stops the run there. The
    /// last updates may be missing from it, as they are still on their way.
    ///
    /// # Errors
    /// As [`Study::diagnose`].
    pub fn diagnose_watched(&mut self, watch: &mut dyn FnMut(&Trace) -> bool) -> std::result::Result<Diagnosis, E> {
        let trace = self.replay(&[], self.steps, watch)?;
        let diagnosis = Diagnosis::of(&trace, self.steps);
        self.traced = Some(trace);
        Ok(diagnosis)
    }

    /// The run that was diagnosed.
    pub fn trace(&self) -> Option<&Trace> {
        self.traced.as_ref()
    }

    /// Replays the run with each remedy of the first finding until one cures. The finding then lists that remedy first,
    /// with the proof.
    ///
    /// # Errors
    /// As [`Study::diagnose`].
    pub fn prove(&mut self, diagnosis: &mut Diagnosis) -> std::result::Result<(), E> {
        self.prove_within(diagnosis, self.steps, &mut |_, _| true)
    }

    /// As [`Study::prove`], with replays of at most `horizon` updates. `watch` gets the remedy's name and the replay so
    /// far after each step; `false` stops the proof, and the diagnosis keeps what is known.
    ///
    /// # Errors
    /// As [`Study::diagnose`].
    pub fn prove_within(
        &mut self,
        diagnosis: &mut Diagnosis,
        horizon: usize,
        watch: &mut dyn FnMut(&str, &Trace) -> bool,
    ) -> std::result::Result<(), E> {
        let Some(trace) = self.traced.take() else { return Ok(()) };
        if let Some(finding) = diagnosis.findings.first_mut()
            && let Some((at, proof)) = self.proof(&trace, finding, horizon.min(self.steps), watch)?
        {
            let remedy = finding.remedies.remove(at);
            finding.remedies.insert(0, remedy);
            finding.proof = Some(proof);
        }
        self.traced = Some(trace);
        Ok(())
    }

    /// Makes the first `until` updates of the run, with edits.
    pub(super) fn replay(
        &mut self,
        edits: &[Edit],
        until: usize,
        watch: &mut dyn FnMut(&Trace) -> bool,
    ) -> std::result::Result<Trace, E> {
        let every = self.steps.div_ceil(LOOKS).max(1);
        let monitor = Some(MonitorConfig { every, detail: Detail::Full, histograms: true, ..MonitorConfig::default() });
        let mut opened = (self.open)(&Setup { monitor, edits: edits.to_vec() })?;
        trace(&mut opened, edits, until, watch)
    }
}

/// The statistics of a batch, on the host.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct BatchMeasure {
    /// The root mean square of its float inputs that are finite.
    pub rms: f64,
    /// The mean of the same elements.
    pub mean: f64,
    /// Their standard deviation.
    pub std: f64,
    /// The number of elements that are non-finite.
    pub non_finite: usize,
    /// True if there are float inputs, and all elements of each are equal.
    pub constant: bool,
}

/// The record of a run.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The updates, oldest first.
    pub updates: Vec<Update>,
    /// The measurements, each with the number of its update.
    pub measured: Vec<(usize, Measurement)>,
    /// The statistics of the batches.
    pub batches: Vec<BatchMeasure>,
    /// The parameters before the first step: path, and values.
    pub first: Vec<(String, Array)>,
    /// The metric on held-out data after the last step.
    pub metric: Option<f64>,
    /// The recorded program of an update, or of a micro-batch and the update.
    pub program: Program,
    /// If the loss is one of squared differences from a target: the first loss of a model that always gives 0, over the
    /// first loss of this run.
    pub guess: Option<f64>,
    /// Learning rates by update; empty if they are not known.
    pub rates: Vec<f64>,
    /// The highest learning rate of the schedule, whenever it comes.
    pub peak: f64,
    /// True if the run was stopped before its end.
    pub stopped: bool,
    /// The place where the run broke, if its last loss is non-finite.
    pub failure: Option<Failure>,
    /// The place where values grew at the first spike of the loss.
    pub spike: Option<Spike>,
}

impl Trace {
    /// The warnings that appeared before the run broke.
    pub fn warnings(&self) -> Vec<Warning> {
        let (mut forecast, mut measured, mut all) = (Forecast::default(), self.measured.iter().peekable(), vec![]);
        for (step, update) in self.updates.iter().enumerate() {
            all.extend(forecast.update(update));
            while let Some((_, of)) = measured.next_if(|(at, _)| *at <= step) {
                all.extend(forecast.measurement(of));
            }
        }
        all
    }
}

impl BatchMeasure {
    /// The statistics of the float inputs of all micro-batches.
    pub fn of(micro_batches: &[MicroBatch]) -> Self {
        let (mut count, mut sum, mut squares, mut non_finite) = (0usize, 0.0, 0.0, 0);
        let mut constant = true;
        let mut any = false;
        for (name, array) in micro_batches.iter().flatten() {
            let Data::F32(values) = array.data() else { continue };
            // Leave out the targets. Only their name tells them from inputs.
            if name == "y" {
                continue;
            }
            any = true;
            for &value in values {
                if value.is_finite() {
                    let value = f64::from(value);
                    (count, sum, squares) = (count + 1, sum + value, squares + value * value);
                } else {
                    non_finite += 1;
                }
            }
            constant &= values.windows(2).all(|pair| pair[0] == pair[1]);
        }
        let n = count.max(1) as f64;
        let mean = sum / n;
        let std = (squares / n - mean * mean).max(0.0).sqrt();
        Self { rms: (squares / n).sqrt(), mean, std, non_finite, constant: any && constant }
    }
}

/// Makes a run from its start.
///
/// # Errors
/// The errors of its batches and its judge, and of its device.
fn trace<E: From<crate::Error>>(
    opened: &mut Opened<E>,
    edits: &[Edit],
    until: usize,
    watch: &mut dyn FnMut(&Trace) -> bool,
) -> std::result::Result<Trace, E> {
    let Opened { trainer, session, batches, judge } = opened;
    write_edits(session, edits).map_err(crate::Error::from)?;
    let first = first_values(session).map_err(E::from)?;
    let mut trace = Trace {
        updates: vec![],
        measured: vec![],
        batches: vec![],
        first,
        metric: None,
        program: Tape::new(session.layout().clone()).finish(),
        guess: None,
        rates: vec![],
        peak: (0..=24).filter_map(|power| trainer.optimizer().rate(1 << power)).fold(0.0, f64::max),
        stopped: false,
        failure: None,
        spike: None,
    };
    let mut watch_loss = LossWatch::default();
    let mut recorder = edits.is_empty().then(|| FlightRecorder::new(FlightConfig::default()));
    for step in 0..until {
        let micro_batches = batches()?;
        if step == 0 {
            trace.program = program(trainer, session, &micro_batches[0]);
            trace.guess = guess(session, &trace.program, &micro_batches[0]).map_err(E::from)?;
        }
        trace.batches.push(BatchMeasure::of(&micro_batches));
        trace.rates.extend(trainer.optimizer().rate(step as u32));
        if edits.contains(&Edit::Skip(step)) {
            continue;
        }
        for micro in &micro_batches {
            let named: Vec<(&str, &Array)> = micro.iter().map(|(name, array)| (name.as_str(), array)).collect();
            let stepped = match &mut recorder {
                Some(recorder) => recorder.step(trainer, session, &named),
                None => trainer.step(session, &named),
            };
            stepped.map_err(crate::Error::from)?;
        }
        let known = trace.updates.len();
        let ended = take_in(trainer, session, &mut trace).map_err(E::from)?;
        let alerts: Vec<LossAlert> =
            trace.updates[known..].iter().flat_map(|update| watch_loss.push(update.loss)).collect();
        let has_spike = alerts.iter().any(|alert| matches!(alert, LossAlert::Spike { .. }));
        if let Some(recorder) = recorder.as_ref().filter(|_| has_spike && trace.spike.is_none()) {
            trace.spike = recorder.replay(trainer, session).map_err(crate::Error::from)?.spike;
        }
        if ended || !watch(&trace) {
            trace.stopped = !ended;
            break;
        }
    }
    session.wait().map_err(crate::Error::from)?;
    let ended = take_in(trainer, session, &mut trace).map_err(E::from)?;
    if let Some(recorder) = recorder.filter(|_| ended) {
        trace.failure = recorder.replay(trainer, session).map_err(crate::Error::from)?.failure;
    }
    if let Some(judge) = judge {
        trace.metric = Some(judge(session)?);
    }
    Ok(trace)
}

/// Adds the taps that have arrived to the trace. True if a loss is non-finite; later taps are then ignored.
fn take_in(trainer: &mut Trainer, session: &mut Session, trace: &mut Trace) -> Result<bool> {
    let over = |trace: &Trace| trace.updates.last().is_some_and(|last| !last.loss.is_finite());
    for taps in session.taps()? {
        if over(trace) {
            break;
        }
        let one = std::slice::from_ref(&taps);
        let at = trace.updates.len();
        trace.updates.extend(trainer.updates(one));
        trace.measured.extend(trainer.measurements(one).into_iter().map(|measured| (at, measured)));
    }
    Ok(over(trace))
}

fn first_values(session: &mut Session) -> Result<Vec<(String, Array)>> {
    let layout = session.layout().clone();
    let read = |(param, decl): (wgrad::Param, &wgrad::ParamDecl)| Ok((decl.path.clone(), session.read_param(param)?));
    layout.params().map(read).collect()
}

/// The value of [`Trace::guess`]. A model that gives 0 has the target itself as its difference from the target.
fn guess(session: &mut Session, program: &Program, micro: &MicroBatch) -> Result<Option<f64>> {
    let Some((target, difference)) = Reading::new(program).target() else { return Ok(None) };
    let named: Vec<(&str, &Array)> = micro.iter().map(|(name, array)| (name.as_str(), array)).collect();
    let squares = |array: &Array| array.to_f64().iter().map(|value| value * value).sum::<f64>();
    let values = session.values(program, &[target, difference], &named)?;
    let ratio = squares(&values[0]) / squares(&values[1]);
    Ok(ratio.is_finite().then_some(ratio))
}

/// The program of an update.
fn program(trainer: &Trainer, session: &Session, micro: &MicroBatch) -> Program {
    let tape = Tape::for_ranks(session.layout().clone(), session.ranks());
    let named: Vec<(&str, &Array)> = micro.iter().map(|(name, array)| (name.as_str(), array)).collect();
    trainer.record_micro_batch(&tape, &named);
    if trainer.has_windows() {
        trainer.record_update(&tape, false);
    }
    tape.finish()
}
