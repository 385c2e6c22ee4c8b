//! Records as lines of JSON.

use super::{Event, Record, Sink, json::exact, of_gradient, of_site};
use crate::monitor::{Measurement, Update};
use serde_json::{Map, Value, json};
use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A file with one JSON object on each line: `step`, `kind` (`update`, `measurement`, `alert`, `value`, `text`,
/// `settings`, `tape`, `end`), and the fields of the kind. Numbers that JSON lacks are the texts `NaN`, `inf` and
/// `-inf`.
#[derive(Debug)]
pub struct Jsonl {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Jsonl {
    /// Creates a file.
    ///
    /// # Errors
    /// If the file exists already, and then it stays as it is; if it cannot be created.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path: path.as_ref().into(), file: BufWriter::new(file) })
    }

    /// Opens a file to continue it, such as that of a resumed run, or creates it. A last line that was cut short is
    /// removed.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let whole = whole_lines(&mut file)?;
        file.set_len(whole)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.as_ref().into(), file: BufWriter::new(file) })
    }
}

/// The number of bytes of a file's complete lines.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 1 << 16;
    let mut end = file.metadata()?.len();
    let mut block = vec![];
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

impl Sink for Jsonl {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        writeln!(self.file, "{}", Value::Object(object(record)))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// An object with these numbers.
fn numbers(of: impl IntoIterator<Item = (&'static str, f64)>) -> Map<String, Value> {
    of.into_iter().map(|(name, value)| (name.to_string(), exact(value))).collect()
}

fn object(record: &Record) -> Map<String, Value> {
    let mut all = Map::new();
    let mut put = |name: &str, value: Value| all.insert(name.into(), value);
    put("step", record.step.into());
    match &record.event {
        Event::Update(update) => {
            put("kind", "update".into());
            all.extend(of_update(update));
        }
        Event::Measurement(measured) => {
            put("kind", "measurement".into());
            all.extend(of_measurement(measured));
        }
        Event::Alert(alert) => {
            put("kind", "alert".into());
            put("alert", alert.kind.clone().into());
            put("message", alert.message.clone().into());
        }
        Event::Value(name, value) => {
            put("kind", "value".into());
            put("name", name.clone().into());
            put("value", exact(*value));
        }
        Event::Text(name, text) => {
            put("kind", "text".into());
            put("name", name.clone().into());
            put("text", text.clone().into());
        }
        Event::Settings { all: settings, metric } => {
            put("kind", "settings".into());
            put("metric", metric.clone().into());
            put("settings", settings.iter().map(|(name, setting)| (name.clone(), setting.json())).collect());
        }
        Event::Tape(recorded) => {
            put("kind", "tape".into());
            all.extend(recorded.json());
        }
        Event::End(end) => {
            put("kind", "end".into());
            put("end", end.name().into());
        }
    }
    all
}

fn of_update(update: &Update) -> Map<String, Value> {
    let Update { loss, grad_norm, clipped, taken, loss_scale, .. } = update;
    let mut all = numbers([("loss", *loss), ("grad_norm", *grad_norm), ("loss_scale", *loss_scale)]);
    all.insert("clipped".into(), json!(clipped));
    all.insert("taken".into(), json!(taken));
    all
}

fn of_measurement(measured: &Measurement) -> Map<String, Value> {
    let mut all = numbers([("applied_norm", measured.applied_norm)]);
    let params = measured.params.iter().map(|param| {
        let mut of = numbers(of_gradient(&param.grad));
        if let Some(histogram) = &param.histogram {
            let (negative, positive) = (&histogram.negative, &histogram.positive);
            let (zeros, non_finite) = (histogram.zeros, histogram.non_finite);
            let counts =
                json!({ "negative": negative, "zeros": zeros, "positive": positive, "non_finite": non_finite });
            of.insert("histogram".into(), counts);
        }
        (param.path.clone(), Value::Object(of))
    });
    all.insert("params".into(), params.collect::<Map<_, _>>().into());
    let groups = measured.groups.iter().map(|(name, grad)| (name.clone(), Value::Object(numbers(of_gradient(grad)))));
    all.insert("groups".into(), groups.collect::<Map<_, _>>().into());
    let sites = measured.sites.iter().map(|site| {
        let mut of = numbers(of_site(site));
        if let Some(flow) = site.flow.as_ref().filter(|flow| !flow.steps.is_empty()) {
            of.insert("flow_steps".into(), flow.steps.iter().map(|step| exact(*step)).collect());
        }
        (site.path.clone(), Value::Object(of))
    });
    all.insert("sites".into(), sites.collect::<Map<_, _>>().into());
    all
}
