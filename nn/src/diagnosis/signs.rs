//! The signs of a run: the numbers that the rules compare with their bounds.

use super::{reading::Reading, study::Trace};
use crate::{
    monitor::{Measurement, SiteMeasure},
    numbers::median,
};
use wgrad::{
    DType,
    op::{Binary, Op, Unary},
};

/// The share by which the loss must fall for a run to count as one that learns.
const LEARNS: f64 = 0.38;

/// The number of updates after which a run should have learned something.
const ENOUGH: usize = 50;

/// The signs of a run, with its program.
pub struct Signs<'a> {
    /// The run.
    pub trace: &'a Trace,
    /// Its program.
    pub reading: Reading<'a>,
    /// The number of updates that the run was to make.
    pub steps: usize,
}

impl<'a> Signs<'a> {
    /// The signs of a run that was to make `steps` updates.
    pub fn new(trace: &'a Trace, steps: usize) -> Self {
        Self { trace, reading: Reading::new(&trace.program), steps }
    }

    // The loss.

    /// The losses, oldest first.
    pub fn losses(&self) -> Vec<f64> {
        self.trace.updates.iter().map(|update| update.loss).collect()
    }

    /// The first loss.
    pub fn first_loss(&self) -> f64 {
        self.trace.updates.first().map_or(f64::NAN, |update| update.loss)
    }

    /// The median loss over the last tenth of a run's updates.
    pub fn last_loss(&self) -> f64 {
        let losses = self.losses();
        median(losses[losses.len() - losses.len().div_ceil(10)..].to_vec())
    }

    /// The loss of a guess, or the first loss if that is lower. A guess gives equal shares if the loss is over classes,
    /// and 0 if the loss is one of squared differences.
    pub fn start(&self) -> f64 {
        let first = self.first_loss();
        if let Some(guess) = self.trace.guess.filter(|guess| *guess < 1.0 && *guess > 0.0) {
            return first * guess;
        }
        let chance = self.reading.classes().map(|classes| (classes as f64).ln());
        chance
            .filter(|chance| first.is_nan() || (first > 0.3 * chance && *chance > 0.0))
            .map_or(first, |chance| first.min(chance))
    }

    /// The share of [`Signs::start`] by which the loss fell: 0 if the run broke off, negative if the loss rose.
    pub fn learned(&self) -> f64 {
        if self.died().is_some() {
            return 0.0;
        }
        let start = self.start();
        (start - self.last_loss()) / start.abs()
    }

    /// The first update whose loss is non-finite.
    pub fn died(&self) -> Option<usize> {
        self.trace.updates.iter().position(|update| !update.loss.is_finite())
    }

    /// True if the run broke, blew up or did not learn.
    pub fn is_sick(&self) -> bool {
        if self.died().is_some() || self.blew_up().is_some() {
            return true;
        }
        // A short run, or one that was stopped, has had no chance to learn.
        let learned = self.learned();
        !self.trace.stopped && self.trace.updates.len() >= ENOUGH && (learned.is_nan() || learned < LEARNS)
    }

    /// The first update at which the loss, or the gradient norm, is far above its first values.
    pub fn blew_up(&self) -> Option<usize> {
        let start = self.first_loss().abs();
        let norms: Vec<f64> = self.trace.updates.iter().take(5).map(|update| update.grad_norm).collect();
        let norm = median(norms);
        let far = |update: &crate::Update| {
            !update.loss.is_finite() || update.loss > 10.0 * start || update.grad_norm > 1e3 * norm.max(1e-30)
        };
        self.trace.updates.iter().position(far)
    }

    // Gradients and updates.

    /// The first measurement.
    pub fn begin(&self) -> Option<&'a Measurement> {
        self.trace.measured.first().map(|(_, measured)| measured)
    }

    /// The last measurement.
    pub fn end(&self) -> Option<&'a Measurement> {
        self.trace.measured.last().map(|(_, measured)| measured)
    }

    /// The norm of the gradient that the optimizer got over that of the gradient before all passes: the median over
    /// measurements.
    pub fn applied_share(&self) -> f64 {
        let of = |(_, measured): &(usize, Measurement)| measured.applied_norm / measured.update.grad_norm;
        median(self.trace.measured.iter().map(of))
    }

    /// The norm of an update over that of its parameter: the median over weight matrices, and the largest over
    /// measurements.
    pub fn update_ratio(&self) -> f64 {
        let weight =
            |path: &str| self.trace.first.iter().any(|(known, value)| known == path && value.shape().rank() > 1);
        let of = |(_, measured): &(usize, Measurement)| {
            let own = measured.params.iter().filter(|param| param.grad.param_norm > 0.0 && weight(&param.path));
            median(own.map(|param| param.grad.update_ratio()))
        };
        self.trace.measured.iter().map(of).fold(0.0, f64::max)
    }

    /// The share of updates that were taken.
    pub fn taken(&self) -> f64 {
        let taken = self.trace.updates.iter().filter(|update| update.taken).count();
        taken as f64 / self.trace.updates.len().max(1) as f64
    }

    /// The median norm of the gradient.
    pub fn norm(&self) -> f64 {
        median(self.trace.updates.iter().map(|update| update.grad_norm))
    }

    /// The largest finite norm of the gradient.
    pub fn largest_norm(&self) -> f64 {
        self.trace.updates.iter().map(|update| update.grad_norm).filter(|norm| norm.is_finite()).fold(0.0, f64::max)
    }

    // Sites.

    /// The inputs of activations, first to last, without those of recurrent layers.
    pub fn activations(measured: &'a Measurement) -> Vec<&'a SiteMeasure> {
        measured.sites.iter().filter(|site| name(&site.path) == "z" && !site.path.ends_with("time/z")).collect()
    }

    /// The sites of this name.
    pub fn named(measured: &'a Measurement, wanted: &str) -> Vec<&'a SiteMeasure> {
        measured.sites.iter().filter(|site| name(&site.path) == wanted).collect()
    }

    /// The mean magnitude of the gradient at the inputs of activations over the first third of layers, over that of the
    /// last third. `None` of fewer than three.
    pub fn flow_ratio(measured: &Measurement) -> Option<f64> {
        let flows = Signs::activations(measured).into_iter().filter_map(|site| site.flow.as_ref());
        thirds(&flows.map(|flow| flow.mean_abs).collect::<Vec<_>>())
    }

    /// The same ratio over the time steps of a recurrent layer.
    pub fn time_ratio(measured: &Measurement) -> Option<f64> {
        measured
            .sites
            .iter()
            .filter_map(|site| site.flow.as_ref())
            .find(|flow| !flow.steps.is_empty())
            .and_then(|flow| thirds(&flow.steps))
    }

    /// The root mean squares of the inputs of activations, first to last.
    pub fn signal(measured: &Measurement) -> Vec<f64> {
        Signs::activations(measured).into_iter().filter_map(|site| site.values.map(|values| values.rms)).collect()
    }

    // The program.

    /// True if the forward pass is computed in f16.
    pub fn is_half(&self) -> bool {
        self.reading.has(|op| *op == Op::Cast(DType::F16))
    }

    /// True if activations saturate at large inputs of either sign.
    pub fn saturates(&self) -> bool {
        self.reading.has(|op| matches!(op, Op::Unary(Unary::Tanh | Unary::Sigmoid)))
    }

    /// True if the model has a recurrent layer.
    pub fn is_recurrent(&self) -> bool {
        self.begin().is_some_and(|measured| Signs::time_ratio(measured).is_some())
    }

    /// True if gradients are clipped by their norm.
    pub fn clips(&self) -> bool {
        self.reading.setting("clip_by_global_norm", "max_norm").is_some()
    }

    /// The median root mean square of a batch's inputs; 0 if they are no floats.
    pub fn input_size(&self) -> f64 {
        median(self.trace.batches.iter().map(|batch| batch.rms))
    }
}

/// The last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The mean of the first third over that of the last third; `None` of fewer than three numbers.
fn thirds(values: &[f64]) -> Option<f64> {
    let third = values.len() / 3;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (third > 0).then(|| mean(&values[..third]) / mean(&values[values.len() - third..]))
}

impl Reading<'_> {
    /// True if the program has a rectifier: a value that is 0 where its input is not positive.
    pub fn rectifies(&self) -> bool {
        self.any(|reading, node| {
            node.op == Op::Select
                && reading.constant(node.inputs[1]) == Some(0.0)
                && reading.op(node.inputs[0]) == Op::Binary(Binary::Max)
                && reading.inputs(node.inputs[0]).iter().all(|id| {
                    matches!(reading.op(*id), Op::Binary(Binary::Lt | Binary::Eq))
                        && reading.inputs(*id)[0] == node.inputs[2]
                })
        })
    }

    /// True if two tensors that are both computed from data are added on the way to the first loss over classes, or to
    /// any loss.
    pub fn has_shortcuts(&self) -> bool {
        let (data, before) = (self.data(), self.before_logits());
        let adds = |reading: &Self, node: &wgrad::Node| {
            node.op == Op::Binary(Binary::Add)
                && node.shape.rank() >= 2
                && node.inputs[0] != node.inputs[1]
                && node
                    .inputs
                    .iter()
                    .all(|id| data[id.index()] && before[id.index()] && !matches!(reading.op(*id), Op::Expand(_)))
        };
        self.any(adds)
    }
}
