//! Rules that look at learning rates, clips, precision and the size of updates.

use super::{Evidence, Found, Remedy, model::leak};
use crate::{
    diagnosis::signs::Signs,
    layers::{Fan, Init},
    numbers::median,
    train::{Edit, LossScale, Precision, Transform},
};
use wgrad::Tuning;

/// A finding about the optimizer or a pass.
fn found(place: &str, since: usize, evidence: Vec<Evidence>, remedies: Vec<Remedy>) -> Option<Found> {
    Some(Found { place: vec![place.into()], since, evidence, remedies })
}

/// A remedy for each factor, which multiplies the learning rate by it.
fn rates(name: &'static str, factors: &[f64]) -> Vec<Remedy> {
    let of = |factor: &f64| {
        let advice = format!("multiply the learning rate by {factor:.0e}");
        Remedy::new(name, advice, vec![Edit::Tune(Tuning::Rate(*factor))])
    };
    factors.iter().map(of).collect()
}

pub(super) fn overflow(s: &Signs<'_>) -> Option<Found> {
    if !s.is_half() {
        return None;
    }
    let measured = s.begin()?;
    let beyond = |site: &&crate::SiteMeasure| {
        site.values.is_some_and(|values| values.non_finite > 0.0 || values.max >= 65504.0) && site.scores.is_none()
    };
    let over: Vec<String> = measured.sites.iter().filter(beyond).map(|site| site.path.clone()).collect();
    if !over.is_empty() && s.is_sick() {
        let evidence =
            vec![Evidence::new("sites with values beyond the largest f16, 65504", over.len() as f64, 0.0, 0.0)];
        let z: Vec<String> = Signs::activations(measured).into_iter().map(|site| site.path.clone()).collect();
        let all = s.trace.first.iter().map(|(path, _)| path.clone()).collect();
        let normed = Edit::Sites(z, Transform::Normalise);
        let remedies = vec![
            Remedy::new("norm", "normalise the inputs of activations", vec![normed]),
            Remedy::new(
                "init",
                "draw first weights by He's initializer",
                vec![Edit::Init(all, Init::He { fan: Fan::In })],
            ),
            Remedy::new("full-precision", "compute in f32", vec![Edit::Precision(Precision::F32)]),
        ];
        return Some(Found { place: over, since: 0, evidence, remedies });
    }
    let scale = s.trace.updates.first()?.loss_scale;
    let constant = s.trace.updates.iter().all(|update| update.loss_scale == scale);
    if s.taken() >= 0.5 || !constant || scale <= 1.0 {
        return None;
    }
    let evidence = vec![
        Evidence::new("share of updates that were taken", s.taken(), 0.5, 1.0),
        Evidence::new("loss scale, which stays as it is", scale, 1.0, 65536.0),
    ];
    let remedy =
        Remedy::new("dynamic-scale", "let the loss scale adapt itself", vec![Edit::LossScale(LossScale::Auto)]);
    found("trainer/loss_scale", 0, evidence, vec![remedy])
}

pub(super) fn underflow(s: &Signs<'_>) -> Option<Found> {
    if !s.is_half() || s.trace.updates.first()?.loss_scale > 1.0 || !s.is_sick() {
        return None;
    }
    let measured = s.begin()?;
    let zeros: Vec<f64> =
        Signs::activations(measured).into_iter().filter_map(|site| site.flow.as_ref()).map(|flow| flow.zeros).collect();
    let share = zeros.iter().copied().fold(0.0, f64::max);
    if share <= 0.5 {
        return None;
    }
    let evidence = vec![Evidence::new("largest share of gradients that are 0 at a site", share, 0.0, 0.5)];
    let remedy = Remedy::new(
        "loss-scale",
        "multiply the loss by a scale that adapts itself",
        vec![Edit::LossScale(LossScale::Auto)],
    );
    found("trainer/loss_scale", 0, evidence, vec![remedy])
}

pub(super) fn momentum(s: &Signs<'_>) -> Option<Found> {
    let momentum = s.reading.momentum();
    let window = 1.0 / (1.0 - momentum) / s.steps as f64;
    if momentum <= 0.95 || window <= 0.2 || !s.is_sick() {
        return None;
    }
    let evidence = vec![
        Evidence::new("momentum", momentum, 0.0, 0.99),
        Evidence::new("averaging window of momentum, 1 / (1 - momentum), over the steps of the run", window, 0.0, 0.2),
    ];
    let lower = Remedy::new("lower-momentum", "lower the momentum to 0.9", vec![Edit::Tune(Tuning::Momentum(0.9))]);
    found("optimizer/momentum", s.blew_up().unwrap_or(0), evidence, [vec![lower], rates("lower-rate", &[0.1])].concat())
}

pub(super) fn noise(s: &Signs<'_>) -> Option<Found> {
    s.reading.setting("add_noise", "sigma").or(s.reading.setting("add_noise", "eta"))?;
    let share = s.applied_share();
    if share <= 5.0 || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("norm of the noisy gradient over that of the gradient", share, 0.5, 5.0)];
    let remedy = Remedy::new("lower-noise", "lower the noise's deviation, or leave it out", vec![Edit::NoNoise]);
    found("trainer/noise", 0, evidence, vec![remedy])
}

pub(super) fn decay(s: &Signs<'_>) -> Option<Found> {
    let decay = s.reading.optimizer("weight_decay")?;
    let rate = s.trace.rates.iter().copied().fold(0.0, f64::max);
    let taken = decay * rate;
    if taken <= 0.01 || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("share of a weight that one update removes by weight decay", taken, 0.0, 0.01)];
    let remedy = Remedy::new("lower-decay", "lower the weight decay to 0.01", vec![Edit::Tune(Tuning::Decay(0.01))]);
    found("optimizer/weight_decay", 0, evidence, vec![remedy])
}

pub(super) fn epsilon(s: &Signs<'_>) -> Option<Found> {
    let eps = s.reading.optimizer("eps")?;
    let measured = s.begin()?;
    let rms = |param: &crate::ParamMeasure| param.grad.norm / (param.grad.elements as f64).sqrt();
    let usual = measured.params.iter().map(rms).fold(0.0, f64::max);
    if usual <= 0.0 || eps <= 3.0 * usual || !s.is_sick() {
        return None;
    }
    let evidence =
        vec![Evidence::new("epsilon over the largest root mean square of a gradient", eps / usual, 0.0, 3.0)];
    let remedy =
        Remedy::new("lower-epsilon", "lower the optimizer's epsilon to 1e-8", vec![Edit::Tune(Tuning::Epsilon(1e-8))]);
    found("optimizer/eps", 0, evidence, vec![remedy])
}

/// The evidence of a pass that leaves little of the gradient.
fn tight(s: &Signs<'_>) -> Option<Vec<Evidence>> {
    let share = s.applied_share();
    let sick = share < 0.01 && s.is_sick();
    sick.then(|| {
        vec![Evidence::new("gradient norm after all passes over the norm before them", share, 0.01, f64::INFINITY)]
    })
}

pub(super) fn agc(s: &Signs<'_>) -> Option<Found> {
    s.reading.setting("agc", "clipping")?;
    let raise = |factor: f64| {
        Remedy::new("raise-agc", format!("raise AGC's factor to {factor}"), vec![Edit::Agc(Some(factor))])
    };
    found("trainer/agc", 0, tight(s)?, vec![raise(0.01), raise(0.1)])
}

pub(super) fn clip(s: &Signs<'_>) -> Option<Found> {
    let by_norm = s.clips();
    if !by_norm && s.reading.setting("clip_by_value", "bound").is_none() {
        return None;
    }
    let evidence = tight(s)?;
    let bound = s.norm();
    let remedy = if by_norm {
        let advice = format!("raise the bound to {bound:.2e}, the median norm of the gradient");
        Remedy::new("raise-clip", advice, vec![Edit::ClipNorm(Some(bound))])
    } else {
        Remedy::new(
            "raise-clip",
            "clip by the norm in place of the value",
            vec![Edit::ClipValue(None), Edit::ClipNorm(Some(bound))],
        )
    };
    found(if by_norm { "trainer/clip_norm" } else { "trainer/clip_value" }, 0, evidence, vec![remedy])
}

pub(super) fn warmup(s: &Signs<'_>) -> Option<Found> {
    let rates = &s.trace.rates;
    let (first, last) = (*rates.first()?, *rates.last()?);
    let share = last / s.trace.peak;
    // A rate that is still far below its peak, but above the first rate, rises still.
    if share >= 0.3 || last <= first || !s.is_sick() {
        return None;
    }
    let evidence =
        vec![Evidence::new("learning rate at the last step over the highest of its schedule", share, 0.3, 1.0)];
    let rise = (s.steps / 10).max(1) as u32;
    let shorter = Remedy::new(
        "shorter-warmup",
        format!("let the learning rate rise over {rise} updates"),
        vec![Edit::Tune(Tuning::Warmup(rise))],
    );
    found("optimizer/lr", 0, evidence, vec![shorter])
}

pub(super) fn decays_early(s: &Signs<'_>) -> Option<Found> {
    let rates = &s.trace.rates;
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let top = rates.iter().position(|rate| *rate == highest)?;
    let fallen = top + rates[top..].iter().position(|rate| *rate < 0.01 * highest)?;
    let share = fallen as f64 / s.steps as f64;
    if share >= 0.3 || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("share of the steps until the learning rate has fallen", share, 0.3, 1.0)];
    let longer = Remedy::new(
        "longer-schedule",
        "let the learning rate fall over all steps of the run, or stay",
        vec![Edit::Tune(Tuning::Hold)],
    );
    found("optimizer/lr", fallen, evidence, vec![longer])
}

pub(super) fn rate_high(s: &Signs<'_>) -> Option<Found> {
    if !s.is_sick() {
        return None;
    }
    let off = |measured: &crate::Measurement| {
        Signs::activations(measured).iter().filter_map(|site| site.units).map(|units| units.off).fold(0.0, f64::max)
    };
    let scores = |measured: &crate::Measurement| {
        let widths = measured.sites.iter().filter_map(|site| site.scores).map(|scores| scores.high - scores.low);
        widths.fold(0.0, f64::max)
    };
    let (begin, end) = (s.begin()?, s.end()?);
    let losses: Vec<f64> = s.losses();
    let highest =
        losses.iter().copied().fold(0.0, |most: f64, loss| if loss.is_nan() { f64::INFINITY } else { most.max(loss) });
    let rose = highest / s.first_loss();
    let first = median(s.trace.updates.iter().take(5).map(|update| update.grad_norm));
    let grew = s.largest_norm() / first;
    let died_out = if s.reading.rectifies() && off(begin) < 0.9 { off(end) } else { 0.0 };
    let widest = s.trace.measured.iter().map(|(_, measured)| scores(measured)).fold(0.0, f64::max);
    let widened = widest / scores(begin).max(1.0);
    let ratio = s.update_ratio();
    let evidence: Vec<Evidence> = [
        ("largest loss over the first", rose, 3.0),
        ("largest norm of the gradient over that of the first steps", grew, 1e3),
        ("largest share of a layer's rectifiers that are off at the end", died_out, 0.9),
        ("growth of the range of attention's scores", widened, 100.0),
        ("largest median norm of an update over that of its parameter", ratio, 0.3),
    ]
    .into_iter()
    .filter(|(_, value, most)| value > most)
    .map(|(what, value, most)| Evidence::new(what, value, 0.0, most))
    .collect();
    if evidence.is_empty() {
        return None;
    }
    let died_at = || s.trace.measured.iter().find(|(_, m)| died_out > 0.9 && off(m) > 0.9).map(|(at, _)| *at);
    let since = s.blew_up().or(s.died()).or_else(died_at).unwrap_or(0);
    let clip = Remedy::new("clip-norm", "clip gradients to the norm 1", vec![Edit::ClipNorm(Some(1.0))]);
    let mut remedies = [rates("lower-rate", &[0.1, 0.03, 0.01, 0.003]), vec![clip]].concat();
    if died_out > 0.9 {
        remedies.push(leak(s));
    }
    found("optimizer/lr", since, evidence, remedies)
}

pub(super) fn rate_low(s: &Signs<'_>) -> Option<Found> {
    let ratio = s.update_ratio();
    if ratio >= 3e-4 || !s.is_sick() || s.died().is_some() {
        return None;
    }
    let evidence = vec![Evidence::new("largest median norm of an update over that of its parameter", ratio, 3e-4, 0.3)];
    // This factor brings updates to the usual ratio, as a whole power of ten.
    let usual = 10f64.powf((5e-3 / ratio.max(1e-12)).log10().round());
    found("optimizer/lr", 0, evidence, rates("raise-rate", &[usual, usual * 10.0, usual / 10.0]))
}
