//! Tracking: the records of a run go to sinks, on a thread of their own.
//!
//! A [`Tracker`] takes updates, measurements and alerts, and hands them to its [`Sink`]s, such as [`Jsonl`]. It never
//! makes a step wait: a record that finds the queue full is dropped, and counted.

mod json;
mod jsonl;
mod page;
mod recorded;
mod run;
mod tensorboard;

pub use jsonl::Jsonl;
pub use page::{Page, Row, SideBySide};
pub use recorded::Recorded;
pub use run::Run;
pub use tensorboard::TensorBoard;

use crate::{
    diagnosis::{Forecast, Warning},
    monitor::{GradMeasure, LossAlert, LossWatch, Measurement, SiteMeasure, Update},
};
use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

/// A record of a run.
#[derive(Clone, Debug)]
pub struct Record {
    /// The number of the update, from 0 on.
    pub step: usize,
    /// The event.
    pub event: Event,
}

/// An event of a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// An update.
    Update(Update),
    /// A measurement of an update.
    Measurement(Box<Measurement>),
    /// An alert.
    Alert(Alert),
    /// A number of the caller's, by name, such as a metric on held-out data.
    Value(String, f64),
    /// A text in Markdown, by name.
    Text(String, String),
    /// The settings of the run.
    Settings {
        /// The settings, by name.
        all: Vec<(String, Setting)>,
        /// The name of the [`Event::Value`] that the run is judged by.
        metric: String,
    },
    /// A recorded step.
    Tape(Box<Recorded>),
    /// The end of the run.
    End(End),
}

/// The end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The run made all its steps, or solved its task earlier.
    Finished,
    /// A loss was non-finite, or an error ended the run.
    Broken,
    /// The run was stopped before its end.
    Interrupted,
}

impl End {
    /// The end of a run that was not stopped.
    pub fn of(is_sound: bool) -> Self {
        if is_sound { End::Finished } else { End::Broken }
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            End::Finished => "finished",
            End::Broken => "broken",
            End::Interrupted => "interrupted",
        }
    }
}

/// A setting of a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Setting {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

impl Setting {
    fn json(&self) -> serde_json::Value {
        match self {
            Setting::Number(value) => json::exact(*value),
            Setting::Text(text) => text.clone().into(),
            Setting::Flag(flag) => (*flag).into(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Number(value) => write!(f, "{value}"),
            Setting::Text(text) => f.write_str(text),
            Setting::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// A message about a run that needs attention.
#[derive(Clone, PartialEq, Debug)]
pub struct Alert {
    /// Its kind, such as that of [`LossAlert::name`].
    pub kind: String,
    /// The message, in words.
    pub message: String,
}

impl From<&LossAlert> for Alert {
    fn from(alert: &LossAlert) -> Self {
        Self { kind: alert.name().into(), message: alert.to_string() }
    }
}

impl From<&Warning> for Alert {
    fn from(warning: &Warning) -> Self {
        Self { kind: "forecast".into(), message: warning.to_string() }
    }
}

/// A destination of records. A sink that fails gets no more of them.
pub trait Sink: Send {
    /// The sink's name in messages, such as the path of its file.
    fn name(&self) -> String;

    /// Takes a record.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write(&mut self, record: &Record) -> io::Result<()>;

    /// Writes out all records that it holds. The tracker calls it whenever the queue is empty, and at the end.
    ///
    /// # Errors
    /// If they cannot be written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A sink that has failed.
#[derive(Debug)]
pub struct SinkError {
    /// The sink.
    pub sink: String,
    /// Its error.
    pub error: io::Error,
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sink, self.error)
    }
}

impl std::error::Error for SinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The outcome of tracking.
#[derive(Debug, Default)]
pub struct Tracked {
    /// The number of records that found the queue full, and went to no sink.
    pub dropped: u64,
    /// The sinks that have failed.
    pub errors: Vec<SinkError>,
}

/// State that the thread and its owner share.
#[derive(Default)]
struct Shared {
    dropped: AtomicU64,
    errors: Mutex<Vec<SinkError>>,
}

/// Hands the records of a run to sinks.
///
/// ```
/// use wgrad_nn::track::{Jsonl, Tracker};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("metrics.jsonl");
/// let mut tracker = Tracker::new(vec![Box::new(Jsonl::create(&path)?)], 1024);
/// tracker.value(0, "accuracy", 0.5);
/// let tracked = tracker.finish();
/// assert!(tracked.dropped == 0 && tracked.errors.is_empty());
/// assert_eq!(std::fs::read_to_string(&path)?, "{\"step\":0,\"kind\":\"value\",\"name\":\"accuracy\",\"value\":0.5}\n");
/// # Ok(())
/// # }
/// ```
pub struct Tracker {
    /// `None` once the tracker is finished.
    queue: Option<SyncSender<Record>>,
    worker: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    watch: LossWatch,
    forecast: Forecast,
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

impl Tracker {
    /// A tracker whose queue has room for `capacity` records.
    ///
    /// # Panics
    /// If the capacity is 0; if the operating system gives no thread.
    #[track_caller]
    pub fn new(sinks: Vec<Box<dyn Sink>>, capacity: usize) -> Self {
        assert!(capacity > 0, "tracker: a queue for 0 records, and at least 1 is needed");
        let (queue, records) = sync_channel(capacity);
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let worker = std::thread::Builder::new().name("tracker".into()).spawn(move || work(sinks, &records, &own));
        let worker = Some(worker.expect("the operating system gives a thread"));
        Self { queue: Some(queue), worker, shared, watch: LossWatch::default(), forecast: Forecast::default() }
    }

    /// The same tracker with another watch over the loss.
    #[must_use]
    pub fn with_watch(mut self, watch: LossWatch) -> Self {
        self.watch = watch;
        self
    }

    /// Takes an update. The alerts and warnings that it causes are recorded too, and returned.
    pub fn update(&mut self, step: usize, update: &Update) -> Vec<Alert> {
        self.record(step, Event::Update(update.clone()));
        let alerts = self.watch.push(update.loss);
        let alerts: Vec<Alert> =
            alerts.iter().map(Alert::from).chain(self.forecast.update(update).as_ref().map(Alert::from)).collect();
        for alert in &alerts {
            self.record(step, Event::Alert(alert.clone()));
        }
        alerts
    }

    /// Takes a measurement of the last update. The warning that it causes is recorded too, and returned.
    pub fn measurement(&mut self, step: usize, measurement: &Measurement) -> Option<Alert> {
        self.record(step, Event::Measurement(Box::new(measurement.clone())));
        let alert = self.forecast.measurement(measurement).as_ref().map(Alert::from);
        if let Some(alert) = &alert {
            self.record(step, Event::Alert(alert.clone()));
        }
        alert
    }

    /// Takes an alert of the caller's.
    pub fn alert(&mut self, step: usize, kind: &str, message: &str) {
        self.record(step, Event::Alert(Alert { kind: kind.into(), message: message.into() }));
    }

    /// Takes a number of the caller's.
    pub fn value(&mut self, step: usize, name: &str, value: f64) {
        self.record(step, Event::Value(name.into(), value));
    }

    /// Takes a text in Markdown, by name.
    pub fn text(&mut self, step: usize, name: &str, text: &str) {
        self.record(step, Event::Text(name.into(), text.into()));
    }

    /// Takes the settings of the run, before its first step, and the name of the value that the run is judged by.
    pub fn settings(&mut self, all: Vec<(String, Setting)>, metric: &str) {
        self.record(0, Event::Settings { all, metric: metric.into() });
    }

    /// Takes a recorded step as it is after `steps` updates. If there are several, a [`Page`] shows the last one.
    pub fn tape(&mut self, steps: usize, recorded: Recorded) {
        self.record(steps, Event::Tape(Box::new(recorded)));
    }

    /// Takes the end of the run, after `steps` updates.
    pub fn end(&mut self, steps: usize, end: End) {
        self.record(steps, Event::End(end));
    }

    /// Puts a record into the queue if there is room.
    fn record(&mut self, step: usize, event: Event) {
        let queue = self.queue.as_ref().expect("it is not finished");
        if queue.try_send(Record { step, event }).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of records that found the queue full so far.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// The sinks that have failed since the last call.
    pub fn errors(&mut self) -> Vec<SinkError> {
        std::mem::take(&mut *self.shared.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all that is in the queue has been written.
    pub fn finish(mut self) -> Tracked {
        self.close();
        Tracked { dropped: self.dropped(), errors: self.errors() }
    }

    fn close(&mut self) {
        self.queue = None;
        if let Some(worker) = self.worker.take() {
            // The panic of a sink has printed its own message.
            let _ = worker.join();
        }
    }
}

/// A tracker that is dropped writes the records in its queue too.
impl Drop for Tracker {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes records until the queue is closed.
fn work(mut sinks: Vec<Box<dyn Sink>>, records: &Receiver<Record>, shared: &Shared) {
    let each = |sinks: &mut Vec<Box<dyn Sink>>, f: &mut dyn FnMut(&mut dyn Sink) -> io::Result<()>| {
        sinks.retain_mut(|sink| {
            let result = f(&mut **sink);
            result
                .map_err(|error| {
                    let failed = SinkError { sink: sink.name(), error };
                    shared.errors.lock().unwrap_or_else(PoisonError::into_inner).push(failed);
                })
                .is_ok()
        });
    };
    while let Ok(record) = records.recv() {
        each(&mut sinks, &mut |sink| sink.write(&record));
        while let Ok(record) = records.try_recv() {
            each(&mut sinks, &mut |sink| sink.write(&record));
        }
        each(&mut sinks, &mut |sink| sink.flush());
    }
}

/// The rows of a picture of the flow, and mean |dL/dz| of each: the inputs of activations, or the time steps of a
/// recurrent layer.
fn rows_of_flow(measured: &Measurement) -> (Vec<String>, Vec<f64>) {
    let sites = measured.sites.iter().filter(|site| site.path.rsplit('/').next() == Some("z"));
    let of = |site: &SiteMeasure| -> Vec<(String, f64)> {
        let Some(flow) = &site.flow else { return vec![] };
        match flow.steps.len() {
            0 => vec![(site.path.clone(), flow.mean_abs)],
            _ => flow.steps.iter().enumerate().map(|(t, value)| (format!("{}[{t}]", site.path), *value)).collect(),
        }
    };
    sites.flat_map(of).unzip()
}

/// The measures of a gradient, as sinks name them.
fn of_gradient(of: &GradMeasure) -> [(&'static str, f64); 9] {
    [
        ("norm", of.norm),
        ("mean", of.mean),
        ("mean_abs", of.mean_abs),
        ("std", of.std),
        ("max", of.max),
        ("zeros", of.zeros),
        ("non_finite", of.non_finite),
        ("param_norm", of.param_norm),
        ("update_norm", of.update_norm),
    ]
}

/// The measures of a site, as sinks name them; those of time steps are left out.
fn of_site(site: &SiteMeasure) -> Vec<(&'static str, f64)> {
    let mut all = vec![];
    if let Some(of) = &site.values {
        all.extend([("rms", of.rms), ("mean", of.mean), ("std", of.std), ("max", of.max)]);
        all.push(("non_finite", of.non_finite));
    }
    if let Some(of) = &site.units {
        all.extend([("zeros", of.zeros), ("tanh_saturated", of.tanh_saturated)]);
        all.extend([("sigmoid_saturated", of.sigmoid_saturated), ("off", of.off)]);
    }
    if let Some(of) = &site.scores {
        all.extend([("score_low", of.low), ("score_high", of.high), ("entropy", of.entropy)]);
    }
    if let Some(of) = &site.flow {
        all.extend([("flow_mean_abs", of.mean_abs), ("flow_norm", of.norm)]);
        all.extend([("flow_zeros", of.zeros), ("flow_non_finite", of.non_finite)]);
    }
    all
}
