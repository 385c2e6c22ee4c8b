//! Records as event files, for TensorBoard.

mod picture;
mod proto;

use super::{End, Event, Record, Setting, Sink, of_gradient, of_site, rows_of_flow};
use crate::monitor::{GradMeasure, Histogram, Measurement, Update};
use prost::Message;
use proto::{Counts, Metadata, PluginData, Shown, Summary, Value, What};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// An event file in a folder, as [TensorBoard](https://www.tensorflow.org/tensorboard) reads it.
///
/// Updates and the caller's numbers are scalars, as are the measures of parameters and sites; gradients that are
/// counted by magnitude are histograms; alerts and texts are texts; settings go to the page of hyper-parameters.
///
/// The flow of gradients, `flow`, is a picture. Its rows, from top to bottom, are the inputs of activations or the time
/// steps; its columns, from left to right, are the measurements. Its colours show mean |dL/dz| from 1e-10 (dark) to 1e2
/// (bright); black is 0, red is non-finite. It is drawn anew when the number of measurements has doubled, and at the
/// end.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: BufWriter<File>,
    /// The flow at each measurement.
    flow: Vec<Vec<f64>>,
    /// The names of the flow's rows.
    rows: Vec<String>,
    /// The number of measurements in the last picture.
    drawn: usize,
    /// The number of the last update.
    step: usize,
}

/// TensorBoard's names of the plugins for texts and for hyper-parameters.
const TEXT: &str = "text";
const SETTINGS: &str = "hparams";

impl TensorBoard {
    /// Creates a file in a folder, which is created if it is missing.
    ///
    /// # Errors
    /// If they cannot be created.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let stem = format!("events.out.tfevents.{}", now() as u64);
        let mut attempt = 0;
        loop {
            let path = folder.as_ref().join(format!("{stem}.{attempt}.wgrad"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                file => {
                    let file = BufWriter::new(file?);
                    let mut own = Self { path, file, flow: vec![], rows: vec![], drawn: 0, step: 0 };
                    own.append(0, What::FileVersion("brain.Event:2".into()))?;
                    return Ok(own);
                }
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, step: usize, what: What) -> io::Result<()> {
        let event = proto::Event { wall_time: now(), step: step as i64, what: Some(what) };
        self.file.write_all(&framed(&event.encode_to_vec()))
    }

    fn show(&mut self, step: usize, value: Vec<Value>) -> io::Result<()> {
        if value.is_empty() { Ok(()) } else { self.append(step, What::Summary(Summary { value })) }
    }

    /// Draws the flow so far.
    fn draw(&mut self) -> io::Result<()> {
        self.drawn = self.flow.len();
        let Some(picture) = picture::draw(&self.flow)? else { return Ok(()) };
        let (height, width) = (picture.height as i32, picture.width as i32);
        let image = proto::Image { height, width, colorspace: 3, encoded: picture.png };
        self.show(self.step, vec![shown("flow".into(), Shown::Image(image))])
    }

    fn measured(&mut self, measured: &Measurement) -> io::Result<()> {
        let (rows, flow) = rows_of_flow(measured);
        let mut values = of_measurement(measured);
        if !rows.is_empty() && rows != self.rows {
            values.push(text("flow/rows", &rows.iter().map(|row| format!("- `{row}`\n")).collect::<String>()));
            self.rows = rows;
        }
        self.show(self.step, values)?;
        self.flow.push(flow);
        if self.flow.len() >= 2 * self.drawn { self.draw() } else { Ok(()) }
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A record of an event file: its length, and its bytes, each with a checksum.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let masked = |of: &[u8]| crc32c::crc32c(of).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), bytes, &masked(bytes)].concat()
}

fn shown(tag: String, shown: Shown) -> Value {
    Value { tag, metadata: None, shown: Some(shown) }
}

fn scalar(tag: String, value: f64) -> Value {
    shown(tag, Shown::Scalar(value as f32))
}

fn of_plugin(tag: &str, name: &str, content: Vec<u8>, value: Option<Shown>) -> Value {
    let plugin_data = Some(PluginData { plugin_name: name.into(), content });
    Value { tag: tag.into(), metadata: Some(Metadata { plugin_data }), shown: value }
}

/// A text in Markdown.
fn text(tag: &str, text: &str) -> Value {
    let shape = Some(proto::Extents { dim: vec![proto::Extent { size: 1 }] });
    let tensor = proto::Texts { dtype: proto::STRING, shape, string_val: vec![text.into()] };
    of_plugin(tag, TEXT, vec![], Some(Shown::Tensor(tensor)))
}

/// A message to the page of hyper-parameters.
fn session(tag: &str, session: proto::Session) -> Value {
    let content = proto::HyperParameters { session: Some(session) }.encode_to_vec();
    of_plugin(&format!("_hparams_/{tag}"), SETTINGS, content, None)
}

fn settings(all: &[(String, Setting)], metric: &str) -> Vec<Value> {
    let parameter = |(name, setting): &(String, Setting)| {
        let dtype = match setting {
            Setting::Text(_) => 1,
            Setting::Flag(_) => 2,
            Setting::Number(_) => 3,
        };
        proto::Parameter { name: name.clone(), dtype }
    };
    let value = |(name, setting): &(String, Setting)| {
        let kind = match setting {
            Setting::Text(text) => proto::Kind::Text(text.clone()),
            Setting::Flag(flag) => proto::Kind::Flag(*flag),
            Setting::Number(number) => proto::Kind::Number(*number),
        };
        (name.clone(), proto::Any { kind: Some(kind) })
    };
    let metric = proto::Metric { name: Some(proto::MetricName { tag: metric.into() }) };
    let experiment = proto::Experiment { parameters: all.iter().map(parameter).collect(), metrics: vec![metric] };
    let start = proto::Start { parameters: all.iter().map(value).collect(), seconds: now() };
    vec![
        session("experiment", proto::Session::Experiment(experiment)),
        session("session_start_info", proto::Session::Start(start)),
    ]
}

fn of_update(update: &Update) -> Vec<Value> {
    let Update { loss, grad_norm, clipped, taken, loss_scale, .. } = update;
    let of = |what: &str, value: f64| scalar(format!("update/{what}"), value);
    let mut all = vec![of("loss", *loss), of("grad_norm", *grad_norm), of("taken", f64::from(u8::from(*taken)))];
    all.extend(clipped.map(|clipped| of("clipped", f64::from(u8::from(clipped)))));
    all.extend((*loss_scale != 1.0).then(|| of("loss_scale", *loss_scale)));
    all
}

fn of_measurement(measured: &Measurement) -> Vec<Value> {
    let mut all = vec![scalar("update/applied_norm".into(), measured.applied_norm)];
    for param in &measured.params {
        all.extend(below(&format!("param/{}", param.path), of_gradient(&param.grad)));
        let counts = param.histogram.as_ref().map(|histogram| counts(histogram, &param.grad));
        all.extend(counts.map(|counts| shown(format!("gradient/{}", param.path), Shown::Histogram(counts))));
    }
    for (name, grad) in &measured.groups {
        all.extend(below(&format!("group/{name}"), of_gradient(grad)));
    }
    measured.sites.iter().for_each(|site| all.extend(below(&format!("site/{}", site.path), of_site(site))));
    all
}

/// Scalars whose names begin with another name.
fn below<'a>(
    name: &'a str,
    all: impl IntoIterator<Item = (&'static str, f64)> + 'a,
) -> impl Iterator<Item = Value> + 'a {
    all.into_iter().map(move |(what, value)| scalar(format!("{name}/{what}"), value))
}

/// A histogram with the edges of its bins. Non-finite elements are in no bin.
fn counts(histogram: &Histogram, of: &GradMeasure) -> Counts {
    let edges = Histogram::EDGES;
    let largest = of.max.max(2.0 * edges[edges.len() - 1]);
    // The upper edges of bins, lowest first: of negative elements, of zeros, of positive elements.
    let negative =
        (0..histogram.negative.len()).rev().map(|bin| bin.checked_sub(1).map_or(-f64::MIN_POSITIVE, |b| -edges[b]));
    let positive = (0..histogram.positive.len()).map(|bin| edges.get(bin).copied().unwrap_or(largest));
    let bucket_limit: Vec<f64> = negative.chain([f64::MIN_POSITIVE]).chain(positive).collect();
    let all = histogram.negative.iter().rev().chain([&histogram.zeros]).chain(&histogram.positive);
    let bucket: Vec<f64> = all.map(|count| *count as f64).collect();
    let finite = of.elements as f64 - histogram.non_finite as f64;
    let (sum, sum_squares) = (of.mean * of.elements as f64, of.norm * of.norm);
    Counts { min: -of.max, max: of.max, num: finite, sum, sum_squares, bucket_limit, bucket }
}

impl Sink for TensorBoard {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let step = record.step;
        self.step = self.step.max(step);
        match &record.event {
            Event::Update(update) => self.show(step, of_update(update)),
            Event::Measurement(measured) => self.measured(measured),
            Event::Alert(alert) => self.show(step, vec![text(&format!("alert/{}", alert.kind), &alert.message)]),
            Event::Value(name, value) => self.show(step, vec![scalar(format!("value/{name}"), *value)]),
            Event::Text(name, of) => self.show(step, vec![text(name, of)]),
            Event::Settings { all, metric } => self.show(step, settings(all, &format!("value/{metric}"))),
            Event::Tape(_) => Ok(()),
            Event::End(end) => {
                if self.drawn < self.flow.len() {
                    self.draw()?;
                }
                let status = if *end == End::Finished { 1 } else { 2 };
                let end = proto::End { status, seconds: now() };
                self.show(step, vec![session("session_end_info", proto::Session::End(end))])
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::framed;

    #[test]
    fn a_record_has_its_length_and_masked_checksums() {
        let bytes = framed(b"abc");
        assert_eq!(&bytes[..8], &3u64.to_le_bytes());
        assert_eq!(bytes.len(), 8 + 4 + 3 + 4);
        // RFC 3720, B.4: 32 bytes of zeros have the checksum 8a9136aa.
        let zeros = framed(&[0; 32]);
        let masked = u32::from_le_bytes(zeros[44..48].try_into().expect("four bytes"));
        assert_eq!(masked.wrapping_sub(0xa282_ead8).rotate_left(15), 0x8a91_36aa);
    }
}
