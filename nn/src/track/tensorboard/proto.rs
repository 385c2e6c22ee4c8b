//! The messages of event files, as TensorBoard's public definitions number their fields (`event.proto`,
//! `summary.proto`, `tensor.proto` and `plugins/hparams/plugin_data.proto`), without messages and fields that are never
//! written.

use prost::{Message, Oneof};
use std::collections::BTreeMap;

/// A record of an event file.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum What {
    /// The version of the format; only the first record has it.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
    #[prost(oneof = "Shown", tags = "2, 4, 5, 8")]
    pub shown: Option<Shown>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Shown {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "5")]
    Histogram(Counts),
    #[prost(message, tag = "8")]
    Tensor(Texts),
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(int32, tag = "1")]
    pub height: i32,
    #[prost(int32, tag = "2")]
    pub width: i32,
    /// 3 for red, green and blue.
    #[prost(int32, tag = "3")]
    pub colorspace: i32,
    /// A PNG file.
    #[prost(bytes = "vec", tag = "4")]
    pub encoded: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Counts {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    /// The right edge of each bucket.
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

/// A tensor of texts.
#[derive(Clone, PartialEq, Message)]
pub struct Texts {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Extents>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

/// The type of texts.
pub const STRING: i32 = 7;

#[derive(Clone, PartialEq, Message)]
pub struct Extents {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Extent>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Extent {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PluginData {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

/// A message to the page of hyper-parameters.
#[derive(Clone, PartialEq, Message)]
pub struct HyperParameters {
    #[prost(oneof = "Session", tags = "2, 3, 4")]
    pub session: Option<Session>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Session {
    #[prost(message, tag = "2")]
    Experiment(Experiment),
    #[prost(message, tag = "3")]
    Start(Start),
    #[prost(message, tag = "4")]
    End(End),
}

#[derive(Clone, PartialEq, Message)]
pub struct Experiment {
    #[prost(message, repeated, tag = "4")]
    pub parameters: Vec<Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(string, tag = "1")]
    pub name: String,
    /// 1 for texts, 2 for flags, 3 for numbers.
    #[prost(int32, tag = "4")]
    pub dtype: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(message, optional, tag = "1")]
    pub name: Option<MetricName>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetricName {
    #[prost(string, tag = "2")]
    pub tag: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Start {
    #[prost(btree_map = "string, message", tag = "1")]
    pub parameters: BTreeMap<String, Any>,
    #[prost(double, tag = "5")]
    pub seconds: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct End {
    /// 1 for a run that reached its end, 2 for one that did not.
    #[prost(int32, tag = "1")]
    pub status: i32,
    #[prost(double, tag = "2")]
    pub seconds: f64,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(oneof = "Kind", tags = "2, 3, 4")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Flag(bool),
}
