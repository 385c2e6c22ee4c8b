//! A run as one page that opens from disk.

mod comparison;
mod data;

pub use comparison::{Row, SideBySide};

use super::{Event, Record, Setting, Sink, json::number, rows_of_flow};
use crate::monitor::SiteMeasure;
use data::{Measured, Series, Updates};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The time between two writes of a page whose run goes on.
const BETWEEN: Duration = Duration::from_secs(5);

/// The page without its numbers.
const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(include_str!("charts.js"), include_str!("tape.js"), include_str!("page.js"));

/// The name of the text that is shown first.
const FINDING: &str = "finding";

/// `index.html` in a folder: one file that needs no network, and shows the run so far. It is written every few seconds
/// and at the end, under another name first, so that the file is always whole.
///
/// It shows losses and norms by up to 2,048 points. In a longer run, each point stands for several updates, by their
/// lowest and highest values. It shows up to 160 measurements, evenly spread.
#[derive(Debug)]
pub struct Page {
    path: PathBuf,
    title: String,
    updates: Updates,
    measured: Measured,
    values: BTreeMap<String, Series>,
    alerts: Vec<Value>,
    texts: BTreeMap<String, String>,
    settings: Vec<(String, Setting)>,
    metric: String,
    tape: Option<Value>,
    /// The state of the run.
    state: &'static str,
    began: Instant,
    written: Option<Instant>,
    changed: bool,
}

/// The most alerts that a page lists.
const ALERTS: usize = 500;

/// The numbers of a site, by name.
fn probes(site: &SiteMeasure) -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    let mut put = |name: &'static str, value: f64| _ = all.insert(name, number(value));
    // Masked scores are minus infinity, so scores have no mean.
    if let Some(of) = site.values.as_ref().filter(|_| site.scores.is_none()) {
        [("rms", of.rms), ("mean", of.mean), ("max", of.max)].into_iter().for_each(|(name, value)| put(name, value));
    }
    if let Some(of) = &site.units {
        let units =
            [("dead units", of.off), ("|tanh| > 0.97", of.tanh_saturated), ("sigmoid flat", of.sigmoid_saturated)];
        units.into_iter().for_each(|(name, value)| put(name, value));
    }
    if let Some(of) = &site.scores {
        [("score range", of.high - of.low), ("entropy", of.entropy)]
            .into_iter()
            .for_each(|(name, value)| put(name, value));
    }
    if let Some(of) = &site.flow {
        [("mean |dL/dz|", of.mean_abs), ("|dL/dz|", of.norm)].into_iter().for_each(|(name, value)| put(name, value));
    }
    all
}

impl Page {
    /// A page in a folder, which is created if it is missing.
    ///
    /// # Errors
    /// If there is a page already, which stays as it is; if it cannot be written.
    pub fn create(folder: impl AsRef<Path>, title: &str) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let path = folder.as_ref().join("index.html");
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut page = Self {
            path,
            title: title.into(),
            updates: Updates::default(),
            measured: Measured::default(),
            values: BTreeMap::new(),
            alerts: vec![],
            texts: BTreeMap::new(),
            settings: vec![],
            metric: String::new(),
            tape: None,
            state: "running",
            began: Instant::now(),
            written: None,
            changed: false,
        };
        page.save()?;
        Ok(page)
    }

    fn json(&self) -> Value {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let settings: Map<String, Value> =
            self.settings.iter().map(|(name, setting)| (name.clone(), setting.json())).collect();
        let values: Map<String, Value> = self.values.iter().map(|(name, all)| (name.clone(), all.json())).collect();
        let texts: Map<String, Value> = self
            .texts
            .iter()
            .filter(|(name, _)| *name != FINDING)
            .map(|(name, text)| (name.clone(), text.clone().into()))
            .collect();
        json!({
            "title": self.title,
            "state": self.state,
            "written": since,
            "seconds": self.began.elapsed().as_secs_f64(),
            "count": self.updates.count(),
            "updates": self.updates.json(),
            "measured": self.measured.json(),
            "values": values,
            "metric": self.metric,
            "alerts": self.alerts,
            "finding": self.texts.get(FINDING),
            "texts": texts,
            "settings": settings,
            "tape": self.tape,
        })
    }

    fn save(&mut self) -> io::Result<()> {
        assemble(&self.path, &self.title, &self.json(), SCRIPT)?;
        self.written = Some(Instant::now());
        self.changed = false;
        Ok(())
    }
}

/// Writes a page under another name, then renames it.
fn assemble(path: &Path, title: &str, data: &Value, script: &str) -> io::Result<()> {
    let part = path.with_extension("html.part");
    // Without this, a `</script>` in the data would end the script.
    let data = data.to_string().replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut html = String::with_capacity(HTML.len() + STYLE.len() + script.len() + data.len());
    for (at, piece) in HTML.split("%%").enumerate() {
        html.push_str(match (at % 2, piece) {
            (1, "title") => &title,
            (1, "style") => STYLE,
            (1, "data") => &data,
            (1, "script") => script,
            _ => piece,
        });
    }
    let result = fs::File::create(&part).and_then(|mut file| file.write_all(html.as_bytes()));
    if let Err(error) = result.and_then(|()| fs::rename(&part, path)) {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    Ok(())
}

impl Sink for Page {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let step = record.step;
        self.changed = true;
        match &record.event {
            Event::Update(update) => self.updates.push(step, update),
            Event::Measurement(measured) => self.measured.push(step, measured, rows_of_flow(measured)),
            Event::Alert(alert) if self.alerts.len() < ALERTS => {
                self.alerts.push(json!([step, alert.kind, alert.message]));
            }
            Event::Alert(_) => {}
            Event::Value(name, value) => {
                self.values.entry(name.clone()).or_default().push(step, *value);
            }
            Event::Text(name, text) => _ = self.texts.insert(name.clone(), text.clone()),
            Event::Settings { all, metric } => (self.settings, self.metric) = (all.clone(), metric.clone()),
            Event::Tape(recorded) => self.tape = Some(recorded.json().into()),
            Event::End(end) => {
                self.state = end.name();
                self.save()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let is_due = self.written.is_none_or(|at| at.elapsed() >= BETWEEN);
        if self.changed && is_due { self.save() } else { Ok(()) }
    }
}

/// A page whose run has not ended shows the run as stopped.
impl Drop for Page {
    fn drop(&mut self) {
        if self.state == "running" {
            self.state = "stopped";
            self.changed = true;
        }
        if self.changed {
            // A drop has no caller to report the error to.
            let _ = self.save();
        }
    }
}
