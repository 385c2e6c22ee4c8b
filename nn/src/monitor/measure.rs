//! Measurements: from taps to numbers with names.

use super::Update;
use super::{FLOW, GRADIENT, UNITS, VALUES};
use std::collections::HashMap;
use wgrad::{Array, Param, ParamSet, Taps};

/// The measurements of an update.
#[derive(Clone, PartialEq, Debug)]
pub struct Measurement {
    /// The update that was measured.
    pub update: Update,
    /// The norm of the gradient that the optimizer got, after all clips and other passes.
    pub applied_norm: f64,
    /// The parameters that have a gradient, in the order of declaration.
    pub params: Vec<ParamMeasure>,
    /// The groups of the configuration, by name.
    pub groups: Vec<(String, GradMeasure)>,
    /// The sites of the first micro-batch, in the order of the forward pass: its float inputs as `inputs/<name>`, and
    /// the tensors that the model probes ([`wgrad::Tensor::probe`]).
    pub sites: Vec<SiteMeasure>,
}

/// A parameter, and its gradient.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamMeasure {
    /// The parameter.
    pub param: Param,
    /// Its path.
    pub path: String,
    /// The measurements.
    pub grad: GradMeasure,
    /// The counts of its gradient by magnitude and sign, if the configuration asks for them.
    pub histogram: Option<Histogram>,
}

/// The gradient of some elements, without the loss scale, before noise and clips; and the elements themselves.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct GradMeasure {
    /// The number of elements.
    pub elements: usize,
    /// The Euclidean norm of the gradient.
    pub norm: f64,
    /// The mean of the gradient.
    pub mean: f64,
    /// The mean magnitude of the gradient.
    pub mean_abs: f64,
    /// The standard deviation of the gradient, from its norm and its mean: it loses digits if the mean is far larger.
    pub std: f64,
    /// The largest magnitude of the gradient.
    pub max: f64,
    /// The share of elements whose gradient is exactly 0, in [0, 1].
    pub zeros: f64,
    /// The share of elements whose gradient is NaN or infinite, in [0, 1].
    pub non_finite: f64,
    /// The Euclidean norm of the parameters before the update.
    pub param_norm: f64,
    /// The Euclidean norm of the difference that the update made to them.
    pub update_norm: f64,
}

impl GradMeasure {
    /// The norm of the gradient over that of the parameters.
    pub fn grad_ratio(&self) -> f64 {
        self.norm / self.param_norm
    }

    /// The norm of the update over that of the parameters: about 1e-3 is usual.
    pub fn update_ratio(&self) -> f64 {
        self.update_norm / self.param_norm
    }

    /// The measures of several parameters together.
    pub fn joined<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let parts: Vec<&Self> = parts.collect();
        let elements: usize = parts.iter().map(|part| part.elements).sum();
        let norm = |of: fn(&Self) -> f64| parts.iter().map(|part| of(part).powi(2)).sum::<f64>().sqrt();
        let mean = |of: fn(&Self) -> f64| {
            parts.iter().map(|part| of(part) * part.elements as f64).sum::<f64>() / elements.max(1) as f64
        };
        let (norm_of_all, mean_of_all) = (norm(|part| part.norm), mean(|part| part.mean));
        Self {
            elements,
            norm: norm_of_all,
            mean: mean_of_all,
            mean_abs: mean(|part| part.mean_abs),
            std: deviation(norm_of_all.powi(2) / elements.max(1) as f64, mean_of_all),
            // Keep a NaN, which `f64::max` would drop.
            max: parts.iter().map(|part| part.max).fold(0.0, |a, b| if a.is_nan() || b <= a { a } else { b }),
            zeros: mean(|part| part.zeros),
            non_finite: mean(|part| part.non_finite),
            param_norm: norm(|part| part.param_norm),
            update_norm: norm(|part| part.update_norm),
        }
    }
}

/// A standard deviation from a mean square and a mean.
fn deviation(square: f64, mean: f64) -> f64 {
    let variance = square - mean * mean;
    // Rounding may leave a negative variance; NaN stays.
    if variance < 0.0 { 0.0 } else { variance.sqrt() }
}

/// Counts of a gradient's elements by magnitude and sign.
///
/// Magnitudes are in bins of two octaves: below [`Histogram::EDGES`]`[0]`, from each edge to the next, and from the
/// last one on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// The number of negative elements by bin, smallest magnitudes first.
    pub negative: Vec<u64>,
    /// The number of elements that are 0.
    pub zeros: u64,
    /// The number of positive elements by bin, smallest magnitudes first.
    pub positive: Vec<u64>,
    /// The number of elements that are NaN or infinite.
    pub non_finite: u64,
}

impl Histogram {
    /// The edges between bins: 2^-30, 2^-28, .., 2^6.
    pub const EDGES: [f64; 19] = {
        let mut edges = [1.0 / (1u64 << 30) as f64; 19];
        let mut i = 1;
        while i < edges.len() {
            edges[i] = edges[i - 1] * 4.0;
            i += 1;
        }
        edges
    };
    /// The number of bins of one sign.
    pub(super) const BINS: usize = Self::EDGES.len() + 1;
    /// The number of all bins: negative ones, positive ones, one of zeros, and one of non-finite elements.
    pub(super) const ALL: usize = 2 * Self::BINS + 2;

    fn of(counts: &[f64]) -> Self {
        let counts: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
        let (negative, rest) = counts.split_at(Self::BINS);
        let (positive, rest) = rest.split_at(Self::BINS);
        Self { negative: negative.into(), zeros: rest[0], positive: positive.into(), non_finite: rest[1] }
    }
}

/// A tensor of the forward pass, and the gradient that reaches it.
#[derive(Clone, PartialEq, Debug)]
pub struct SiteMeasure {
    /// Its path.
    pub path: String,
    /// Measures of its elements; `None` if only gradients are measured.
    pub values: Option<ValueMeasure>,
    /// Measures of an activation's input: a site named `z`.
    pub units: Option<UnitMeasure>,
    /// Measures of attention scores.
    pub scores: Option<ScoreMeasure>,
    /// The gradient of the loss of the first micro-batch with respect to it; `None` if none is computed.
    pub flow: Option<FlowMeasure>,
}

/// The elements of a tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ValueMeasure {
    /// Their root mean square.
    pub rms: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, from the root mean square and the mean.
    pub std: f64,
    /// Their largest magnitude.
    pub max: f64,
    /// The share of elements that are NaN or infinite, in [0, 1].
    pub non_finite: f64,
}

/// Shares of the elements of an activation's input, by the activation's effect on them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnitMeasure {
    /// The share of elements that are exactly 0, in [0, 1].
    pub zeros: f64,
    /// The share of elements for which the magnitude of tanh is above 0.97, in [0, 1].
    pub tanh_saturated: f64,
    /// The share of elements for which the logistic function is outside 0.03 to 0.97, in [0, 1].
    pub sigmoid_saturated: f64,
    /// The share of units that are above 0 for no sample and at no place, in [0, 1]: under a rectifier they are dead.
    /// Units are the last dimension, or the channels if there are four dimensions.
    pub off: f64,
}

impl ValueMeasure {
    fn of(columns: &[f64; VALUES]) -> Self {
        let [rms, mean, max, finite] = *columns;
        let (std, non_finite) = (deviation(rms * rms, mean), 1.0 - finite);
        Self { rms, mean, std, max, non_finite }
    }
}

impl UnitMeasure {
    fn of(columns: &[f64; UNITS]) -> Self {
        let [zeros, tanh_saturated, sigmoid_saturated, off] = *columns;
        Self { zeros, tanh_saturated, sigmoid_saturated, off }
    }
}

/// Scores of attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScoreMeasure {
    /// The smallest finite score.
    pub low: f64,
    /// The largest finite score.
    pub high: f64,
    /// The mean entropy of the attention weights that the scores give, in nats.
    pub entropy: f64,
}

/// The gradient that reaches a site, without the loss scale.
#[derive(Clone, PartialEq, Debug)]
pub struct FlowMeasure {
    /// The mean magnitude of its elements.
    pub mean_abs: f64,
    /// Its Euclidean norm.
    pub norm: f64,
    /// The share of elements that are exactly 0, in [0, 1].
    pub zeros: f64,
    /// The share of elements that are NaN or infinite, in [0, 1].
    pub non_finite: f64,
    /// The mean magnitude at each time step of a recurrent layer, first to last; empty for other sites.
    pub steps: Vec<f64>,
}

/// Reads the taps of a [`super::Recorder`] of the same prefix.
pub(crate) struct Reader<'a> {
    /// The first part of all taps' names.
    pub prefix: &'a str,
    /// The parameters that are trained, with path and size.
    pub params: &'a [(Param, String, usize)],
    /// The groups of the configuration.
    pub groups: &'a [(String, ParamSet)],
}

impl Reader<'_> {
    /// The measurements of an update. `sites` are those of its first micro-batch, whose gradients are still multiplied
    /// by the loss scale. `None` if the update is not measured.
    pub fn measurement(&self, taps: &Taps, update: &Update, sites: Vec<SiteMeasure>) -> Option<Measurement> {
        let of = |what: &str| taps.get(&format!("{}/{what}", self.prefix)).map(|value| value.to_f64());
        let applied_norm = of("applied_norm")?[0];
        let mut params = vec![];
        if let (Some(which), Some(all), Some(updates)) = (of("params"), of("gradients"), of("updates")) {
            let histograms = of("histograms");
            for (at, (&which, &update_norm)) in which.iter().zip(&updates).enumerate() {
                let columns = std::array::from_fn(|column| all[column * updates.len() + at]);
                let counts = histograms.as_ref().map(|all| &all[at * Histogram::ALL..][..Histogram::ALL]);
                params.push(self.param(which as usize, columns, update_norm, counts));
            }
        }
        params.sort_by_key(|measured| measured.param);
        let group = |(name, of): &(String, ParamSet)| {
            let members = params.iter().filter(|measured| of.contains(measured.param));
            (name.clone(), GradMeasure::joined(members.map(|measured| &measured.grad)))
        };
        let groups = self.groups.iter().map(group).collect();
        let sites = sites.into_iter().map(|site| site.unscaled(update.loss_scale)).collect();
        Some(Measurement { update: update.clone(), applied_norm, params, groups, sites })
    }

    fn param(&self, which: usize, columns: [f64; GRADIENT], update_norm: f64, counts: Option<&[f64]>) -> ParamMeasure {
        let (param, path, elements) = self.params[which].clone();
        let [norm, sum, sum_abs, max, zeros, finite, param_norm] = columns;
        let n = elements.max(1) as f64;
        let grad = GradMeasure {
            elements,
            norm,
            mean: sum / n,
            mean_abs: sum_abs / n,
            std: deviation(norm * norm / n, sum / n),
            // The maximum of no elements is minus infinity.
            max: if elements == 0 { 0.0 } else { max },
            zeros: zeros / n,
            non_finite: (elements as f64 - finite) / n,
            param_norm,
            update_norm,
        };
        ParamMeasure { param, path, grad, histogram: counts.map(Histogram::of) }
    }

    /// The sites among the taps of a run, in the order of the forward pass.
    pub fn sites(&self, taps: &Taps) -> Vec<SiteMeasure> {
        let mut kinds = ["site/", "scores/", "flow/"].map(|kind| (kind, vec![], HashMap::<&str, &Array>::new()));
        // There are many names, so each is compared once.
        for (name, value) in taps.iter() {
            let Some(own) = name.strip_prefix(self.prefix).and_then(|rest| rest.strip_prefix('/')) else { continue };
            for (kind, paths, known) in &mut kinds {
                if let Some(path) = own.strip_prefix(*kind) {
                    paths.push(path);
                    known.insert(path, value);
                }
            }
        }
        let [(_, mut paths, values), (_, _, scores), (_, mut swept, flows)] = kinds;
        if paths.is_empty() {
            // The sweep meets the last site first.
            swept.reverse();
            paths = swept;
        }
        let of = |known: &HashMap<&str, &Array>, path: &str| known.get(path).map(|value| value.to_f64());
        let site = |path: &str| {
            let columns = of(&values, path).unwrap_or_default();
            SiteMeasure {
                path: path.into(),
                values: columns.first_chunk().map(ValueMeasure::of),
                units: columns.get(VALUES..).and_then(|rest| rest.first_chunk()).map(UnitMeasure::of),
                scores: of(&scores, path).map(|of| ScoreMeasure { low: of[0], high: of[1], entropy: of[2] }),
                flow: of(&flows, path).map(|of| FlowMeasure::of(&of)),
            }
        };
        paths.into_iter().map(site).collect()
    }
}

impl FlowMeasure {
    fn of(columns: &[f64]) -> Self {
        let (all, steps) = columns.split_at(FLOW);
        let [mean_abs, norm, zeros, finite] = *all else { panic!("as many are tapped") };
        Self { mean_abs, norm, zeros, non_finite: 1.0 - finite, steps: steps.into() }
    }
}

impl SiteMeasure {
    fn unscaled(mut self, scale: f64) -> Self {
        if let Some(flow) = &mut self.flow {
            flow.mean_abs /= scale;
            flow.norm /= scale;
            flow.steps.iter_mut().for_each(|step| *step /= scale);
        }
        self
    }
}
