//! The numbers that a page shows: thinned, so that a long run's page stays small.

use crate::monitor::{Histogram, Measurement, Update, suggest_max_norm};
use crate::track::json::number;
use serde_json::{Map, Value, json};

/// The most points of a line. If there are more updates, neighbours are joined.
const POINTS: usize = 2048;
/// The most measurements. If there are more, every other one is removed.
pub const MEASUREMENTS: usize = 160;

/// Consecutive updates, joined to one point.
#[derive(Clone, Debug)]
struct Point {
    first: usize,
    count: usize,
    loss: [f64; 2],
    norm: [f64; 2],
    scale: f64,
    clipped: usize,
    skipped: usize,
}

/// The lower of the low ends and the higher of the high ends; NaN stays.
fn span(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    let pick = |a: f64, b: f64, first: bool| if a.is_nan() || (!b.is_nan() && first) { a } else { b };
    [pick(a[0], b[0], a[0] <= b[0]), pick(a[1], b[1], a[1] >= b[1])]
}

impl Point {
    fn of(step: usize, update: &Update) -> Self {
        Self {
            first: step,
            count: 1,
            loss: [update.loss; 2],
            norm: [update.grad_norm; 2],
            scale: update.loss_scale,
            clipped: usize::from(update.clipped == Some(true)),
            skipped: usize::from(!update.taken),
        }
    }

    fn joined(&self, next: &Self) -> Self {
        Self {
            first: self.first,
            count: self.count + next.count,
            loss: span(self.loss, next.loss),
            norm: span(self.norm, next.norm),
            scale: next.scale,
            clipped: self.clipped + next.clipped,
            skipped: self.skipped + next.skipped,
        }
    }
}

/// The updates of a run.
#[derive(Clone, Default, Debug)]
pub struct Updates {
    points: Vec<Point>,
    /// The number of updates that a point stands for.
    stride: usize,
    /// Norms of gradients, one per point, from which a bound is suggested.
    norms: Vec<f64>,
    clips: bool,
}

impl Updates {
    pub fn push(&mut self, step: usize, update: &Update) {
        self.stride = self.stride.max(1);
        self.clips |= update.clipped.is_some();
        let point = Point::of(step, update);
        match self.points.last_mut().filter(|last| last.count < self.stride) {
            Some(last) => *last = last.joined(&point),
            None => {
                self.points.push(point);
                self.norms.push(update.grad_norm);
            }
        }
        if self.points.len() > POINTS {
            self.points = self
                .points
                .chunks(2)
                .map(|pair| pair.iter().skip(1).fold(pair[0].clone(), |a, b| a.joined(b)))
                .collect();
            self.norms = self.norms.iter().step_by(2).copied().collect();
            self.stride *= 2;
        }
    }

    pub fn count(&self) -> usize {
        self.points.iter().map(|point| point.count).sum()
    }

    pub fn json(&self) -> Value {
        let column = |of: &dyn Fn(&Point) -> f64| -> Vec<Value> { self.points.iter().map(|p| number(of(p))).collect() };
        json!({
            "stride": self.stride,
            "step": self.points.iter().map(|point| point.first).collect::<Vec<_>>(),
            "loss": { "low": column(&|p| p.loss[0]), "high": column(&|p| p.loss[1]) },
            "norm": { "low": column(&|p| p.norm[0]), "high": column(&|p| p.norm[1]) },
            "scale": column(&|p| p.scale),
            "clipped": self.points.iter().map(|point| point.clipped).sum::<usize>(),
            "skipped": self.points.iter().map(|point| point.skipped).sum::<usize>(),
            "clips": self.clips,
            "suggested": suggest_max_norm(&self.norms).map(number),
        })
    }
}

/// Numbers by update, thinned evenly.
#[derive(Clone, Default, Debug)]
pub struct Series {
    points: Vec<(usize, f64)>,
    /// One of this many numbers is kept; the last number is always there.
    stride: usize,
    seen: usize,
    last: Option<(usize, f64)>,
}

impl Series {
    pub fn push(&mut self, step: usize, value: f64) {
        self.stride = self.stride.max(1);
        self.last = Some((step, value));
        if self.seen.is_multiple_of(self.stride) {
            self.points.push((step, value));
        }
        self.seen += 1;
        if self.points.len() > POINTS {
            self.points = self.points.iter().step_by(2).copied().collect();
            self.stride *= 2;
        }
    }

    pub fn json(&self) -> Value {
        let last = self.last.filter(|last| self.points.last().is_none_or(|(step, _)| *step != last.0));
        self.points.iter().copied().chain(last).map(|(step, value)| json!([step, number(value)])).collect()
    }
}

/// The measurements of a run.
#[derive(Clone, Default, Debug)]
pub struct Measured {
    all: Vec<Value>,
    /// One of this many measurements is kept.
    stride: usize,
    seen: usize,
    /// The names of the flow's rows, of parameters, and of sites with their measures. All measurements kept have these
    /// names.
    names: Value,
}

impl Measured {
    pub fn push(&mut self, step: usize, measured: &Measurement, flow: (Vec<String>, Vec<f64>)) {
        self.stride = self.stride.max(1);
        self.seen += 1;
        if !(self.seen - 1).is_multiple_of(self.stride) {
            return;
        }
        let params: Vec<&str> = measured.params.iter().map(|param| &*param.path).collect();
        let sites: Vec<Value> = measured
            .sites
            .iter()
            .map(|site| json!([site.path, super::probes(site).keys().collect::<Vec<_>>()]))
            .collect();
        let names = json!({ "flow": flow.0, "params": params, "sites": sites });
        if names != self.names {
            // Columns are found by the places of their names, so measurements of different programs cannot be kept
            // together.
            self.names = names;
            self.all.clear();
        }
        let param = |of: &crate::ParamMeasure| -> Value {
            let g = &of.grad;
            [g.norm, g.mean_abs, g.max, g.zeros, g.param_norm, g.update_norm].into_iter().map(number).collect()
        };
        let counts = |of: &Histogram| -> Value {
            let (negative, positive) = (of.negative.iter().rev(), of.positive.iter());
            negative.chain([&of.zeros]).chain(positive).copied().collect()
        };
        let histograms: Vec<Value> =
            measured.params.iter().map(|param| param.histogram.as_ref().map_or(Value::Null, counts)).collect();
        self.all.push(json!({
            "step": step,
            "applied": number(measured.applied_norm),
            "flow": flow.1.into_iter().map(number).collect::<Vec<_>>(),
            "params": measured.params.iter().map(param).collect::<Vec<_>>(),
            "histograms": if histograms.iter().all(Value::is_null) { Value::Null } else { histograms.into() },
            "sites": measured.sites.iter().map(|site| super::probes(site).into_values().collect()).collect::<Vec<Value>>(),
        }));
        if self.all.len() > MEASUREMENTS {
            let mut at = 0;
            self.all.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.stride *= 2;
        }
    }

    pub fn json(&self) -> Value {
        let mut all = Map::new();
        all.insert("names".into(), self.names.clone());
        all.insert("all".into(), self.all.clone().into());
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(loss: f64, grad_norm: f64) -> Update {
        Update { run: 0, loss, grad_norm, clipped: Some(grad_norm > 1.0), taken: true, loss_scale: 1.0, profile: None }
    }

    #[test]
    fn a_short_run_keeps_every_update_and_a_long_one_its_extremes() {
        let mut updates = Updates::default();
        (0..POINTS).for_each(|step| updates.push(step, &update(step as f64, 0.5)));
        let json = updates.json();
        assert_eq!((json["stride"].as_u64(), json["loss"]["low"].as_array().map(Vec::len)), (Some(1), Some(POINTS)));
        assert_eq!(json["loss"]["low"], json["loss"]["high"]);
        for step in POINTS..100_000 {
            updates.push(step, &update(if step == 77_777 { 1e9 } else { 1.0 }, if step == 5_000 { 7.0 } else { 0.5 }));
        }
        let json = updates.json();
        assert_eq!((updates.count(), json["stride"].as_u64(), json["clipped"].as_u64()), (100_000, Some(64), Some(1)));
        let most = |of: &Value| of.as_array().expect("a list").iter().filter_map(Value::as_f64).fold(0.0, f64::max);
        assert_eq!([most(&json["loss"]["high"]), most(&json["norm"]["high"])], [1e9, 7.0]);
        assert!(json["step"].as_array().expect("a list").len() <= POINTS);
    }

    #[test]
    fn numbers_are_thinned_evenly_and_the_last_one_stays() {
        let mut series = Series::default();
        (0..20_000).for_each(|step| series.push(step, step as f64));
        let points = series.json();
        let steps: Vec<u64> =
            points.as_array().expect("a list").iter().map(|point| point[0].as_u64().expect("a number")).collect();
        let gap = steps[1] - steps[0];
        assert!(steps.len() <= POINTS + 1 && steps[..steps.len() - 1].windows(2).all(|two| two[1] - two[0] == gap));
        assert_eq!((steps[0], steps.last()), (0, Some(&19_999)));
    }

    #[test]
    fn what_is_not_a_number_hides_nothing() {
        assert_eq!(span([1.0, 2.0], [0.5, 3.0]), [0.5, 3.0]);
        assert!(span([f64::NAN; 2], [1.0; 2])[1].is_nan() && span([1.0; 2], [f64::NAN; 2])[1].is_nan());
        assert_eq!(
            [number(f64::NAN), number(0.1), number(1e-45), number(f64::INFINITY)],
            ["NaN".into(), Value::from(0.1), Value::from(1e-45), "inf".into()]
        );
    }
}
