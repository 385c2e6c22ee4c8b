//! The precision of functions of rows and their gradients, compared with results of 50 digits and more, on rows of
//! numbers that `tests/precision/rows.py` draws.

use super::{Point, least_normal, points, ulps, ulps_flushed};
use crate::Machine;
use std::{collections::BTreeMap, fmt::Write};
use wgrad::{Array, CrossEntropy, DType, Data, Reduction, Store, Tensor};
use wgrad_wgpu::Gpu;

/// The magnitude whose unit in the last place measures an error.
#[derive(Clone, Copy, PartialEq)]
enum Relative {
    /// The element itself.
    Element,
    /// The element itself; rows whose norm is subnormal are not measured.
    Normal,
    /// The largest cotangent, divided by the divisor of the row.
    Slope { is_centred: bool },
    /// The largest element of the row of results.
    Row,
    /// The element, or 1 if it is smaller. For normalised rows, 1 is the standard deviation; for shares, their sum.
    One,
    /// The mean magnitude of the row.
    Magnitudes,
    /// The result, or the row's maximum if that is larger.
    Maximum,
}

impl Relative {
    fn text(self) -> &'static str {
        match self {
            Self::Element => "each element",
            Self::Normal => "each element (a)",
            Self::Slope { .. } => "the largest cotangent, divided (e)",
            Self::Row => "the largest element",
            Self::One => "each element, at least 1 (b)",
            Self::Magnitudes => "the mean magnitude (c)",
            Self::Maximum => "the result or the row's maximum (d)",
        }
    }
}

/// A function of rows, which lie along the last axis of its first argument.
struct Function {
    operation: &'static str,
    /// The name of its file of points.
    points: &'static str,
    /// Records the value and, if there is one, the gradient.
    record: for<'t> fn(&[Tensor<'t>]) -> Vec<Tensor<'t>>,
    /// The measure of errors in the value, and in the gradient.
    relative: &'static [Relative],
    /// True if the allowed error grows with the distance between the largest and the least element, beyond a distance
    /// of 4.
    grows: bool,
}

/// The bounds in units in the last place: of f64 and f32, and of f16, whose results are rounded once.
const MOST: f64 = 8.0;
const MOST_OF_HALVES: f64 = 1.0;
/// The number that normalisations add to the mean square.
const EPS: f64 = 1e-5;
/// The factor of the bound on a GPU.
const GPU: f64 = 2.0;

/// A value, and the gradient of its sum.
fn with_slope<'t>(x: Tensor<'t>, y: Tensor<'t>) -> Vec<Tensor<'t>> {
    with_gradient(x, y, y.ones_like())
}

fn with_gradient<'t>(x: Tensor<'t>, y: Tensor<'t>, g: Tensor<'t>) -> Vec<Tensor<'t>> {
    vec![y, y.vjp(g, &[x])[0].expect("it depends on x")]
}

/// The cross-entropy of each row against the class that the second argument names.
fn cross_entropy<'t>(x: &[Tensor<'t>], label_smoothing: f64) -> Vec<Tensor<'t>> {
    let options = CrossEntropy { reduction: Reduction::None, label_smoothing, ..CrossEntropy::default() };
    let target = x[1].cast(DType::U32).reshape([x[1].shape()[0]]);
    with_slope(x[0], x[0].cross_entropy_with(target, &options))
}

/// Batch normalisation with each row as the batch of a channel.
fn by_channel<'t>(x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [x, g] = [x[0], x[1]];
    let y = x.permute(&[1, 0]).batch_norm(None, None, EPS).y.permute(&[1, 0]);
    with_gradient(x, y, g)
}

const FUNCTIONS: &[Function] = &[
    Function {
        operation: "softmax",
        points: "softmax",
        record: |x| with_gradient(x[0], x[0].softmax(1), x[1]),
        relative: &[Relative::Element, Relative::Row],
        grows: true,
    },
    Function {
        operation: "log_softmax",
        points: "log_softmax",
        record: |x| with_gradient(x[0], x[0].log_softmax(1), x[1]),
        relative: &[Relative::Element, Relative::Row],
        grows: false,
    },
    Function {
        operation: "logsumexp",
        points: "logsumexp",
        record: |x| with_slope(x[0], x[0].logsumexp(1)),
        relative: &[Relative::Maximum, Relative::Element],
        grows: false,
    },
    Function {
        operation: "cross_entropy",
        points: "cross_entropy",
        record: |x| cross_entropy(x, 0.0),
        relative: &[Relative::Element, Relative::Element],
        grows: false,
    },
    Function {
        operation: "cross_entropy, smoothed by 0.1",
        points: "cross_entropy_smoothed",
        record: |x| cross_entropy(x, 0.1),
        relative: &[Relative::Element, Relative::One],
        grows: false,
    },
    Function {
        operation: "softmax_entropy",
        points: "softmax_entropy",
        record: |x| with_slope(x[0], x[0].softmax_entropy(1)),
        relative: &[Relative::Element, Relative::Row],
        grows: false,
    },
    Function {
        operation: "bce_with_logits",
        points: "bce_with_logits",
        record: |x| with_slope(x[0], x[0].bce_with_logits(x[1], Reduction::None)),
        relative: &[Relative::Element, Relative::Element],
        grows: false,
    },
    Function {
        operation: "mse",
        points: "mse",
        record: |x| with_slope(x[0], x[0].mse_with(x[1], Reduction::None)),
        relative: &[Relative::Element, Relative::Element],
        grows: false,
    },
    Function {
        operation: "layer_norm",
        points: "standardized",
        record: |x| with_gradient(x[0], x[0].layer_norm(1, None, None, EPS), x[1]),
        relative: &[Relative::One, Relative::Slope { is_centred: true }],
        grows: false,
    },
    Function {
        operation: "group_norm",
        points: "standardized",
        record: |x| {
            let groups = x[0].reshape([1, x[0].shape()[0], x[0].shape()[1]]);
            let y = groups.group_norm(x[0].shape()[0], None, None, EPS).reshape(x[0].shape());
            with_gradient(x[0], y, x[1])
        },
        relative: &[Relative::One, Relative::Slope { is_centred: true }],
        grows: false,
    },
    Function {
        operation: "rms_norm",
        points: "rms",
        record: |x| with_gradient(x[0], x[0].rms_norm(1, None, EPS), x[1]),
        relative: &[Relative::Element, Relative::Slope { is_centred: false }],
        grows: false,
    },
    Function {
        operation: "batch_norm",
        points: "standardized_moderate",
        record: by_channel,
        relative: &[Relative::One, Relative::Slope { is_centred: true }],
        grows: false,
    },
    Function {
        operation: "var_axes",
        points: "variance",
        record: |x| with_slope(x[0], x[0].var_axes(&[1])),
        relative: &[Relative::Element, Relative::Row],
        grows: false,
    },
    Function {
        operation: "mean",
        points: "mean",
        record: |x| vec![x[0].mean_axes(&[1])],
        relative: &[Relative::Magnitudes],
        grows: false,
    },
    Function {
        operation: "norm",
        points: "norm",
        record: |x| with_slope(x[0], x[0].norm_axes(&[1])),
        relative: &[Relative::Element, Relative::Normal],
        grows: false,
    },
];

/// The largest error of a result, and its point.
#[derive(Clone, PartialEq, Debug)]
pub struct Worst {
    /// The operation, and `value` or `gradient`.
    pub what: String,
    /// The type of arguments and results.
    pub dtype: DType,
    /// The error in units in the last place.
    pub error: f64,
    /// The arguments, the row of results, and the truth.
    pub at: String,
}

/// The error of an element, in units in the last place of the magnitude that `relative` names.
fn error(relative: Relative, point: &Point, k: usize, have: &[f64], i: usize, flushes: bool) -> f64 {
    let (dtype, truth) = (point.dtype, point.truths[k][i]);
    let apart = if flushes { ulps_flushed(dtype, have[i], truth) } else { ulps(dtype, have[i], truth) };
    let x = &point.inputs[0];
    let largest = |of: &mut dyn Iterator<Item = f64>| of.filter(|v| v.is_finite()).map(f64::abs).fold(0.0, f64::max);
    let size = match relative {
        Relative::Element => return apart,
        Relative::Normal if norm(x.iter().copied()) < least_normal(dtype) => return 0.0,
        Relative::Normal => return apart,
        Relative::Slope { is_centred } => {
            let mean = if is_centred { x.iter().sum::<f64>() / x.len() as f64 } else { 0.0 };
            largest(&mut point.inputs[1].iter().copied()) / divisor(x.iter().map(|v| v - mean))
        }
        Relative::Row => largest(&mut point.truths[k].iter().map(|truth| truth.high)),
        Relative::One => 1.0,
        Relative::Magnitudes => x.iter().map(|v| v.abs() / x.len() as f64).sum(),
        Relative::Maximum => largest(&mut x.iter().copied()),
    };
    if !(apart.is_finite() && size > truth.high.abs()) {
        return apart;
    }
    let step = match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        _ => 2f64.powi(-10),
    };
    let power = f64::from_bits(size.max(least_normal(dtype)).to_bits() & (0x7ff << 52));
    ((have[i] - truth.high) - truth.low).abs() / (power * step)
}

/// The distance between the largest and the least finite element.
fn depth(x: &[f64]) -> f64 {
    let finite = || x.iter().copied().filter(|v| v.is_finite());
    finite().fold(f64::NEG_INFINITY, f64::max) - finite().fold(f64::INFINITY, f64::min)
}

/// The Euclidean norm of a row, to choose how an error is measured.
fn norm(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = x.clone().map(f64::abs).fold(f64::MIN_POSITIVE, f64::max);
    most * x.map(|v| (v / most).powi(2)).sum::<f64>().sqrt()
}

/// The divisor of a normalised row: `sqrt(mean(x^2) + eps)`.
fn divisor(x: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let n = x.len() as f64;
    (norm(x) / n.sqrt()).hypot(EPS.sqrt())
}

/// Measures a function on all rows of its file; rows of the same length run together.
fn measure(function: &Function, types: &[DType], flushes: bool, machine: &mut dyn FnMut() -> Machine) -> Vec<Worst> {
    let mut alike: BTreeMap<(String, Vec<usize>), Vec<Point>> = BTreeMap::new();
    for point in points(&format!("rows/{}", function.points)).into_iter().filter(|point| types.contains(&point.dtype)) {
        let lengths = point.inputs.iter().map(Vec::len).collect();
        alike.entry((point.dtype.to_string(), lengths)).or_default().push(point);
    }
    let mut worst: Vec<Worst> = vec![];
    for ((_, lengths), points) in alike {
        let dtype = points[0].dtype;
        let argument = |(a, len): (usize, &usize)| {
            let values: Vec<f64> = points.iter().flat_map(|point| point.inputs[a].iter().copied()).collect();
            (format!("x{a}"), Array::new([points.len(), *len], Data::from_f64(dtype, &values)))
        };
        let inputs: Vec<(String, Array)> = lengths.iter().enumerate().map(argument).collect();
        let mut machine = machine();
        let step = machine.session.record(|t| {
            let x: Vec<Tensor<'_>> = inputs.iter().map(|(name, array)| t.input_like(name, array)).collect();
            let results = (function.record)(&x);
            results.into_iter().enumerate().for_each(|(k, result)| t.tap(&format!("{k}"), result));
        });
        let out = machine.run(&step.expect("the plan compiles"), &inputs);
        for (k, &relative) in function.relative.iter().enumerate() {
            let have = out.tap(&format!("{k}")).to_f64();
            let what = format!("{} | {}", function.operation, ["value", "gradient"][k]);
            for (point, have) in points.iter().zip(have.chunks(have.len() / points.len())) {
                for i in 0..have.len() {
                    let growth = if function.grows { (depth(&point.inputs[0]) / 4.0).max(1.0) } else { 1.0 };
                    let error = error(relative, point, k, have, i, flushes) / growth;
                    let truths: Vec<f64> = point.truths[k].iter().map(|truth| truth.high).collect();
                    let at = || format!("element {i} of {have:?} for {truths:?}, of {:?}", point.inputs);
                    match worst.iter_mut().find(|worst| worst.what == what && worst.dtype == dtype) {
                        Some(known) if known.error >= error => {}
                        Some(known) => (known.error, known.at) = (error, at()),
                        None => worst.push(Worst { what: what.clone(), dtype, error, at: at() }),
                    }
                }
            }
        }
    }
    worst
}

/// The bound on the errors of a type.
fn most(dtype: DType) -> f64 {
    if dtype == DType::F16 { MOST_OF_HALVES } else { MOST }
}

/// The largest errors of every function on the CPU.
pub fn on_cpu() -> Vec<Worst> {
    let types = [DType::F64, DType::F32, DType::F16];
    let machine = &mut || Machine::poisoned(1, Store::new());
    FUNCTIONS.iter().flat_map(|function| measure(function, &types, false, machine)).collect()
}

/// The largest errors of every function on a GPU.
pub fn on_gpu(gpu: &Gpu) -> Vec<Worst> {
    let machine = &mut || Machine::on_gpu(gpu, Store::new());
    FUNCTIONS.iter().flat_map(|function| measure(function, &[DType::F32, DType::F16], true, machine)).collect()
}

/// The errors above their bounds; the bounds are larger on a GPU.
pub fn over(worst: &[Worst], on_gpu: bool) -> Vec<String> {
    let bound = |dtype: DType| most(dtype) * if on_gpu && dtype != DType::F16 { GPU } else { 1.0 };
    let over = worst.iter().filter(|worst| worst.error.is_nan() || worst.error > bound(worst.dtype));
    over.map(|Worst { what, dtype, error, at }| format!("{what} of {dtype}: {error} at {at}")).collect()
}

/// The section of the page of operations, from the errors on the CPU.
pub fn section(worst: &[Worst]) -> String {
    let mut page = format!(
        "\n## Precision of rows\n\nThe largest error of functions of rows and of their gradients, in units in the last place \
         of what the third column names, rounded up; over rows of all scales, with large offsets, confident, masked and \
         constant ones (`tests/precision/rows.py`), against results of 400 digits. On the CPU it is at most {MOST}, of f16, \
         which is computed in f32 and rounded once, {MOST_OF_HALVES}. On wgpu it is at most {} and {MOST_OF_HALVES}, where \
         subnormal numbers may be 0.\n\n\
         - (a): where the norm is no subnormal number.\n\
         - (b): an element is a difference from the mean, which is as good as its own digits; or of two shares.\n\
         - (c): a sum may cancel; it must not leave the type's range. So it is with `sum`.\n\
         - (d): the two may cancel: `logsumexp([-log 2, -log 2])` is 0.\n\
         - (e): of the cotangent, divided as the row is, the gradient is what its mean and the row's own direction leave.\n\
         - (f): divided by a quarter of the distance between the largest and the least element, where that is more than 4: the \
         difference from the maximum is rounded before the exponential is taken.\n\n\
         `batch_norm` and `var_axes` take squares: their rows must not differ from the mean by more than the root of the largest \
         number. The other norms may. Weight and bias come on top: they may cancel what they are added to.\n\n\
         | operation | result | relative to | f64 | f32 | f16 |\n|---|---|---|---:|---:|---:|\n",
        GPU * MOST
    );
    for function in FUNCTIONS {
        for (k, relative) in function.relative.iter().enumerate() {
            let what = format!("{} | {}", function.operation, ["value", "gradient"][k]);
            let far = if function.grows { " (f)" } else { "" };
            write!(page, "| {what} | {}{far} |", relative.text()).expect("text can be written");
            for dtype in [DType::F64, DType::F32, DType::F16] {
                let found = worst.iter().find(|worst| worst.what == what && worst.dtype == dtype);
                write!(page, " {} |", found.expect("measured").error.ceil()).expect("text can be written");
            }
            page.push('\n');
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{super::Double, *};

    fn point(x: &[f64], truth: f64) -> Point {
        Point { dtype: DType::F32, inputs: vec![x.to_vec()], truths: vec![vec![Double::from(truth)]] }
    }

    #[test]
    fn errors_are_relative_to_what_is_named() {
        let off = 0.5 + f64::from(f32::EPSILON);
        let of = |relative, x: &[f64]| error(relative, &point(x, 0.5), 0, &[off], 0, false);
        assert_eq!(of(Relative::Element, &[1.0]), 2.0);
        assert_eq!(of(Relative::One, &[1.0]), 1.0);
        assert_eq!(of(Relative::Maximum, &[-4.0]), 0.25);
        assert_eq!(of(Relative::Magnitudes, &[3.0, -1.0]), 0.5);
        assert_eq!(of(Relative::Row, &[8.0]), 2.0);
        assert_eq!(of(Relative::Normal, &[8.0]), 2.0);
        assert_eq!(of(Relative::Normal, &[1e-40]), 0.0);
    }

    #[test]
    fn what_is_over_its_bound_is_told() {
        let worst = |dtype, error| Worst { what: "f | value".into(), dtype, error, at: "here".into() };
        assert!(over(&[worst(DType::F32, 8.0), worst(DType::F16, 1.0)], false).is_empty());
        assert_eq!(over(&[worst(DType::F32, 8.1), worst(DType::F16, 1.1)], false).len(), 2);
        assert_eq!(over(&[worst(DType::F32, 15.0), worst(DType::F16, 1.1)], true).len(), 1);
        assert_eq!(over(&[worst(DType::F64, f64::NAN)], false).len(), 1);
    }
}
