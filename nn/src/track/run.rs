//! A run as read from its file of metrics.

use super::{Alert, End, Setting};
use crate::{
    error::{Error, Result},
    monitor::Update,
};
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

/// A run as read from the file of a [`super::Jsonl`], to compare it with another run.
#[derive(Clone, Default, Debug)]
pub struct Run {
    /// Its settings, by name.
    pub settings: Vec<(String, Setting)>,
    /// The name of the value that it is judged by.
    pub metric: String,
    /// Its updates, oldest first. The file lacks the numbers of runs, which are 0 here, and profiles.
    pub updates: Vec<(usize, Update)>,
    /// Numbers of the caller's by name, in the order in which the names first appear.
    pub values: Vec<(String, Vec<(usize, f64)>)>,
    /// The rows of its flow: the inputs of activations, or time steps.
    pub flow_rows: Vec<String>,
    /// Mean |dL/dz| of each row, by update.
    pub flow: Vec<(usize, Vec<f64>)>,
    /// Its alerts, each with its update.
    pub alerts: Vec<(usize, Alert)>,
    /// The finding of a diagnosis, in words.
    pub finding: Option<String>,
    /// Its end; `None` if the run goes on, or was killed.
    pub end: Option<End>,
}

/// Reads a number, or the text of one that JSON lacks.
fn float(of: &Value) -> Option<f64> {
    match of.as_str() {
        None => of.as_f64(),
        Some("NaN") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
    }
}

fn setting(of: &Value) -> Option<Setting> {
    match of {
        Value::Bool(flag) => Some(Setting::Flag(*flag)),
        _ => float(of).map(Setting::Number).or(of.as_str().map(|text| Setting::Text(text.into()))),
    }
}

impl Run {
    /// Reads a file. It leaves out a last line that was cut short, and lines of a kind that this version does not know.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::Metrics`] for the first line that is not a line of metrics.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |source| Error::Io { action: "read", path: path.into(), source };
        let mut reader = BufReader::new(File::open(path).map_err(io)?);
        let (mut run, mut bytes) = (Self::default(), vec![]);
        for line in 1.. {
            bytes.clear();
            reader.read_until(b'\n', &mut bytes).map_err(io)?;
            if bytes.pop() != Some(b'\n') {
                break;
            }
            let refused = |why: &str| Error::Metrics { path: path.into(), line, why: why.into() };
            let object: Value = serde_json::from_slice(&bytes).map_err(|_| refused("it is no JSON"))?;
            run.take(&object).ok_or_else(|| refused("it is not a line that a run writes"))?;
        }
        Ok(run)
    }

    fn take(&mut self, object: &Value) -> Option<()> {
        let text = |key: &str| object.get(key)?.as_str().map(str::to_string);
        let number = |key: &str| float(object.get(key)?);
        let step = object.get("step")?.as_u64()? as usize;
        match object.get("kind")?.as_str()? {
            "update" => {
                let clipped = object.get("clipped")?.as_bool();
                let (loss, grad_norm, loss_scale) = (number("loss")?, number("grad_norm")?, number("loss_scale")?);
                let taken = object.get("taken")?.as_bool()?;
                self.updates
                    .push((step, Update { run: 0, loss, grad_norm, clipped, taken, loss_scale, profile: None }));
            }
            "measurement" => {
                let mut rows = vec![];
                for (path, site) in object.get("sites")?.as_object()? {
                    if path.rsplit('/').next() != Some("z") {
                        continue;
                    }
                    match (site.get("flow_steps").and_then(Value::as_array), site.get("flow_mean_abs")) {
                        (Some(steps), _) => {
                            for (at, value) in steps.iter().enumerate() {
                                rows.push((format!("{path}[{at}]"), float(value)?));
                            }
                        }
                        (None, Some(mean)) => rows.push((path.clone(), float(mean)?)),
                        (None, None) => {}
                    }
                }
                let (names, values): (Vec<String>, Vec<f64>) = rows.into_iter().unzip();
                if names != self.flow_rows {
                    (self.flow_rows, self.flow) = (names, vec![]);
                }
                self.flow.push((step, values));
            }
            "value" => {
                let (name, value) = (text("name")?, number("value")?);
                match self.values.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, all)) => all.push((step, value)),
                    None => self.values.push((name, vec![(step, value)])),
                }
            }
            "alert" => self.alerts.push((step, Alert { kind: text("alert")?, message: text("message")? })),
            "text" if text("name")? == "finding" => self.finding = text("text"),
            "settings" => {
                self.metric = text("metric")?;
                let all = object.get("settings")?.as_object()?;
                let all = all.iter().map(|(name, of)| Some((name.clone(), setting(of)?)));
                self.settings = all.collect::<Option<_>>()?;
            }
            "end" => {
                let name = text("end")?;
                self.end =
                    Some([End::Finished, End::Broken, End::Interrupted].into_iter().find(|end| end.name() == name)?);
            }
            _ => {}
        }
        Some(())
    }

    /// A setting by its name.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, setting)| setting)
    }

    /// The last value of the metric that it is judged by.
    pub fn judged(&self) -> Option<f64> {
        let (_, all) = self.values.iter().find(|(name, _)| *name == self.metric)?;
        all.last().map(|(_, value)| *value)
    }
}
