//! The nodes that measure an update: the taps that a monitored step has in addition.

use super::probe;
use super::{Detail, FLOW, Histogram, UNITS, VALUES};
use std::sync::Arc;
use wgrad::{DType, Flat, Grads, Layout, Param, Program, StateId, Tape, Tensor, op::Segments};

/// The argument at which tanh is 0.97.
const TANH_FLAT: f64 = 2.092_295_719_650_229_5;
/// The argument at which the logistic function is 0.97. At its negative, the function is 0.03.
const SIGMOID_FLAT: f64 = 3.476_098_685_110_138;

/// Records measurements under a prefix.
#[derive(Clone)]
pub(crate) struct Recorder {
    /// The first part of all taps' names.
    pub prefix: String,
    /// The parameters that are trained.
    pub params: Arc<[Param]>,
    /// True if gradients are counted by magnitude.
    pub histograms: bool,
    /// The detail of measurements.
    pub detail: Detail,
}

/// The parameters before an update, to measure the difference that it makes.
pub(crate) struct Before<'t> {
    values: Flat<'t>,
    members: Vec<(StateId, Arc<Segments>)>,
}

impl Recorder {
    fn tap(&self, tape: &Tape, what: &str, value: Tensor<'_>) {
        tape.tap(&format!("{}/{what}", self.prefix), value);
    }

    /// Taps the measures of each present parameter's gradient.
    #[track_caller]
    pub fn gradients<'t>(&self, grads: &Grads<'t>) -> Before<'t> {
        let tape = grads.tape();
        if self.detail == Detail::Flow {
            return Before { values: Flat::new(vec![]), members: vec![] };
        }
        let (mut order, mut members, mut values) = (vec![], vec![], vec![]);
        let mut columns: Vec<Vec<Tensor<'t>>> = vec![vec![]; super::GRADIENT];
        let mut histograms = vec![];
        for &(arena, g) in grads.flat().parts() {
            let (which, segments) = self.members(tape.layout(), arena, grads);
            if which.is_empty() {
                continue;
            }
            order.extend(which);
            let p = tape.state(arena);
            let (size, count) = (g.abs(), |of: Tensor<'t>| of.cast(DType::F32).segment_sum(&segments));
            let measures = [
                g.segment_norm(&segments),
                g.segment_sum(&segments),
                size.segment_sum(&segments),
                size.segment_max(&segments),
                count(g.equals(0.0)),
                count(g.is_finite()),
                p.segment_norm(&segments),
            ];
            for (column, measure) in columns.iter_mut().zip(measures) {
                column.push(measure.cast(DType::F32));
            }
            if self.histograms {
                histograms.push(histogram(g, &segments));
            }
            values.push((arena, p));
            members.push((arena, segments));
        }
        self.tap(tape, "params", tape.table(&order, DType::U32));
        self.tap(tape, "gradients", joined(tape, columns.concat()));
        if self.histograms {
            self.tap(tape, "histograms", joined(tape, histograms));
        }
        Before { values: Flat::new(values), members }
    }

    /// The parameters of an arena that have a gradient: their indices among the trained parameters, and their segments.
    fn members(&self, layout: &Layout, arena: StateId, grads: &Grads<'_>) -> (Vec<f64>, Arc<Segments>) {
        let own =
            |(_, param): &(usize, &Param)| layout.param(**param).arena == arena && grads.present().contains(**param);
        let mut members: Vec<(usize, &Param)> = self.params.iter().enumerate().filter(own).collect();
        members.sort_by_key(|(_, param)| layout.param(**param).offset);
        let range = |(_, param): &(usize, &Param)| {
            let decl = layout.param(**param);
            (decl.offset, decl.shape.numel())
        };
        let ranges = members.iter().map(range).collect();
        let segments = Segments { total: layout.state(arena).shape.numel(), ranges };
        (members.iter().map(|(at, _)| *at as f64).collect(), Arc::new(segments))
    }

    /// Taps the norm of the gradient that the optimizer gets.
    #[track_caller]
    pub fn applied(&self, grads: &Grads<'_>) {
        self.tap(grads.tape(), "applied_norm", grads.norm());
    }

    /// Taps the norm of the difference that the update made to each parameter.
    #[track_caller]
    pub fn updated<'t>(&self, tape: &'t Tape, before: &Before<'t>) {
        if self.detail == Detail::Flow {
            return;
        }
        let of = |(arena, segments): &(StateId, Arc<Segments>)| {
            let old = before.values.get(*arena).expect("measured before");
            (tape.state(*arena) - old).segment_norm(segments).cast(DType::F32)
        };
        self.tap(tape, "updates", joined(tape, before.members.iter().map(of).collect()));
    }

    /// Taps the measures of a probed tensor, and of the gradient that reaches it.
    #[track_caller]
    pub fn site<'t>(&self, path: &str, x: Tensor<'t>) -> Tensor<'t> {
        let is = |name: &str| path.rsplit('/').next() == Some(name);
        if !x.dtype().is_float() || x.numel() == 0 || (self.detail == Detail::Flow && !is("z")) {
            return x;
        }
        if self.detail == Detail::Full {
            self.values(path, x, is("z"), is("scores"));
        }
        if !x.requires_grad() {
            return x;
        }
        let (name, in_time) = (format!("{}/flow/{path}", self.prefix), path.ends_with("time/z"));
        x.on_grad(move |g| {
            g.tape().tap_scaled(&name, flow(g.cast(DType::F32), in_time));
            g
        })
    }
}

impl Recorder {
    /// Taps the measures of a tensor's elements.
    #[track_caller]
    fn values(&self, path: &str, x: Tensor<'_>, is_activated: bool, is_scores: bool) {
        let tape = x.tape();
        let wide = x.detach().cast(DType::F32);
        let mut all = measures(wide).to_vec();
        if is_activated {
            all.extend(units(wide));
        }
        tape.tap_each(&format!("{}/site/{path}", self.prefix), Tensor::stack(&all));
        if is_scores {
            let (low, high) = probe::range(x);
            let all = [low, high, probe::entropy(x)].map(|value| value.cast(DType::F32));
            tape.tap_each(&format!("{}/scores/{path}", self.prefix), Tensor::stack(&all));
        }
    }

    /// The sites of a measured program that a gradient reaches, first to last, each with the number of its time steps;
    /// 0 for a site without time steps.
    pub fn flows(&self, program: &Program) -> Vec<(String, usize)> {
        let prefix = format!("{}/flow/", self.prefix);
        let of = program.taps().iter().rev().filter_map(|tap| {
            let path = tap.name.strip_prefix(&*prefix)?;
            Some((path.to_string(), program.node(tap.node).shape.numel() - FLOW))
        });
        of.collect()
    }
}

/// Concatenates vectors.
#[track_caller]
fn joined<'t>(tape: &'t Tape, parts: Vec<Tensor<'t>>) -> Tensor<'t> {
    if parts.is_empty() { tape.full([0], 0.0, DType::F32) } else { Tensor::concat(&parts, 0) }
}

/// The share of elements that are true.
#[track_caller]
fn share(of: Tensor<'_>) -> Tensor<'_> {
    of.cast(DType::F32).mean()
}

/// The measures of a tensor in f32.
#[track_caller]
fn measures(x: Tensor<'_>) -> [Tensor<'_>; VALUES] {
    let norm = x.norm() / (x.numel() as f64).sqrt();
    [norm, x.mean(), x.abs().max(), share(x.is_finite())]
}

/// The measures of the input of an activation, in f32.
#[track_caller]
fn units(x: Tensor<'_>) -> [Tensor<'_>; UNITS] {
    let size = x.abs();
    let largest = match x.rank() {
        0 | 1 => x,
        4 => x.max_axes(&[0, 2, 3]),
        rank => x.max_axes(&(0..rank - 1).collect::<Vec<_>>()),
    };
    let flat = [TANH_FLAT, SIGMOID_FLAT].map(|from| share(size.greater(from)));
    [share(x.equals(0.0)), flat[0], flat[1], share(largest.less_equal(0.0))]
}

/// The measures of a gradient in f32.
#[track_caller]
fn flow(g: Tensor<'_>, in_time: bool) -> Tensor<'_> {
    let size = g.abs();
    let all = Tensor::stack(&[size.mean(), g.norm(), share(g.equals(0.0)), share(g.is_finite())]);
    if !in_time {
        return all;
    }
    let others: Vec<usize> = (1..g.rank()).collect();
    Tensor::concat(&[all, size.mean_axes(&others)], 0)
}

/// The number of each segment's elements in each bin: see [`Histogram`].
#[track_caller]
fn histogram<'t>(g: Tensor<'t>, segments: &Arc<Segments>) -> Tensor<'t> {
    let tape = g.tape();
    let (size, count) = (g.abs(), segments.ranges.len());
    let one = |holds: Tensor<'t>| holds.cast(DType::F32);
    let edges = Histogram::EDGES.iter().map(|edge| one(size.greater_equal(*edge)));
    let bin = edges.reduce(|sum, above| sum + above).expect("there are edges");
    let signed = bin + one(g.greater(0.0)) * Histogram::BINS as f64;
    let constant = |bin: usize| tape.full(g.shape(), bin as f64, DType::F32);
    let zero = g.equals(0.0).select(constant(2 * Histogram::BINS), signed);
    let bin = g.is_finite().select(zero, constant(2 * Histogram::BINS + 1));
    // Elements in the gaps between segments have bins of their own, before those of all segments.
    let numbers: Vec<f64> = (1..=count).map(|segment| (segment * Histogram::ALL) as f64).collect();
    let first = tape.table(&numbers, DType::F32).segment_broadcast(segments);
    let ones = tape.full(g.shape(), 1.0, DType::F32);
    let counts = ones.scatter_add((first + bin).cast(DType::U32), 0, (count + 1) * Histogram::ALL);
    counts.slice(0, Histogram::ALL, count * Histogram::ALL)
}
