//! Rules that read the recorded program.

use super::{Evidence, Found, Remedy, data::scale_inputs};
use crate::{
    diagnosis::{reading::layers, signs::Signs},
    train::{Edit, Spot, Transform},
};
use wgrad::Weighting;

/// The places of operations: scopes, and source lines.
fn places(spots: &[Spot]) -> Vec<String> {
    let mut all: Vec<String> = vec![];
    for spot in spots {
        for place in [spot.scope.clone(), spot.site.to_string()] {
            if !place.is_empty() && !all.contains(&place) {
                all.push(place);
            }
        }
    }
    all
}

pub(super) fn unguarded(s: &Signs<'_>) -> Option<Found> {
    let spots = s.reading.unguarded();
    if spots.is_empty() {
        return None;
    }
    let lines: Vec<String> = spots.iter().map(|spot| spot.site.to_string()).collect();
    let bad = s.trace.updates.iter().position(|update| !update.loss.is_finite() || !update.taken);
    let advice = format!("add an eps, or use the guarded function, at {}", lines.join(", "));
    let remedy = Remedy::new("guard", advice, vec![Edit::Operations(spots.clone())]);
    Some(Found {
        place: places(&spots),
        since: bad.unwrap_or(0),
        evidence: vec![Evidence::new("operations without a guard", spots.len() as f64, 0.0, 0.0)],
        // Large inputs can cause the fault too.
        remedies: [vec![remedy], if s.input_size() > 10.0 { vec![scale_inputs(s)] } else { vec![] }].concat(),
    })
}

pub(super) fn cut(s: &Signs<'_>) -> Option<Found> {
    let cut = s.reading.cut()?;
    let place = [places(&cut.spots), layers(&cut.params), cut.params.clone()].concat();
    let count = Evidence::new("parameters behind a cut", cut.params.len() as f64, 0.0, 0.0);
    let line = cut.spots.first().map_or(String::new(), |spot| spot.site.to_string());
    let remedy = Remedy::new("attach", format!("leave out the detach at {line}"), vec![Edit::Operations(cut.spots)]);
    Some(Found { place, since: 0, evidence: vec![count], remedies: vec![remedy] })
}

pub(super) fn unused(s: &Signs<'_>) -> Option<Found> {
    let unused = s.reading.unused();
    if unused.is_empty() {
        return None;
    }
    let count = Evidence::new("parameters that the loss does not reach", unused.len() as f64, 0.0, 0.0);
    let advice = format!("remove {}, or use what they compute", layers(&unused).join(", "));
    Some(Found {
        place: unused,
        since: 0,
        evidence: vec![count],
        remedies: vec![Remedy::new("remove", advice, vec![])],
    })
}

pub(super) fn double_softmax(s: &Signs<'_>) -> Option<Found> {
    if !s.reading.double_softmax() {
        return None;
    }
    let sites: Vec<String> = s.begin().map_or(vec![], |measured| {
        Signs::named(measured, "logits").into_iter().map(|site| site.path.clone()).collect()
    });
    let place = sites.iter().cloned().chain(s.reading.logits_site()).collect();
    let evidence = vec![Evidence::new("soft-max before the cross-entropy, which has its own", 1.0, 0.0, 0.0)];
    let remedy = Remedy::new(
        "logits",
        "pass the logits, not the soft-max output, to the cross-entropy",
        vec![Edit::Sites(sites, Transform::Log)],
    );
    Some(Found { place, since: 0, evidence, remedies: vec![remedy] })
}

pub(super) fn sum_not_mean(s: &Signs<'_>) -> Option<Found> {
    let found = |evidence, place: &str, mean| Found {
        place: vec![place.into()],
        since: s.blew_up().unwrap_or(0),
        evidence: vec![evidence],
        remedies: vec![mean, Remedy::new("lower-rate", "divide the learning rate by their number", vec![])],
    };
    if let Some(samples) = s.reading.summed() {
        let evidence = Evidence::new("samples that the loss is a sum over", samples as f64, 1.0, 1.0);
        let mean = Remedy::new("mean", "take the mean over the samples", vec![Edit::Loss(1.0 / samples as f64)]);
        return Some(found(evidence, "loss", mean));
    }
    if s.reading.sums_micro_batches() {
        let evidence = Evidence::new("weight of each micro-batch in the update", 1.0, 0.0, 0.5);
        let mean = Remedy::new("mean", "accumulate with Weighting::Mean", vec![Edit::Weighting(Weighting::Mean)]);
        return Some(found(evidence, "accumulate", mean));
    }
    None
}

pub(super) fn batch_statistics(s: &Signs<'_>) -> Option<Found> {
    let (buffer, share) = s.reading.statistics()?;
    let left = (1.0 - share).powi(s.steps as i32);
    // With a usual share, the first values are left because the run is short.
    if left <= 0.5 || share > 0.01 {
        return None;
    }
    let evidence = vec![
        Evidence::new("share of the first values left in running statistics", left, 0.0, 0.5),
        Evidence::new("share of a batch in running statistics", share, 1.0 / s.steps as f64, 1.0),
    ];
    let advice = format!("raise the momentum of {buffer} to 0.1, or use a norm without running statistics");
    let remedies = vec![Remedy::new("statistics", advice, vec![]), Remedy::new("other-norm", "use layer norm", vec![])];
    Some(Found { place: vec![buffer], since: 0, evidence, remedies })
}

pub(super) fn dropout(s: &Signs<'_>) -> Option<Found> {
    let p = s.reading.drops().filter(|p| *p > 0.8 && s.is_sick())?;
    let remedy = Remedy::new("lower-dropout", "drop 0.1 to 0.5 of the values", vec![Edit::NoDropout]);
    Some(Found {
        place: vec!["dropout".into()],
        since: 0,
        evidence: vec![Evidence::new("probability that a value is dropped", p, 0.0, 0.8)],
        remedies: vec![remedy],
    })
}

pub(super) fn frozen(s: &Signs<'_>) -> Option<Found> {
    let frozen = s.reading.frozen();
    if frozen.is_empty() || !s.is_sick() {
        return None;
    }
    let evidence = vec![
        Evidence::new("parameters that are not trained", frozen.len() as f64, 0.0, 0.0),
        Evidence::new("share of the loss that was lost", s.learned(), 0.38, 1.0),
    ];
    let remedy = Remedy::new("unfreeze", format!("train {} too", layers(&frozen).join(", ")), vec![Edit::Unfreeze]);
    Some(Found { place: frozen, since: 0, evidence, remedies: vec![remedy] })
}

pub(super) fn imbalance(s: &Signs<'_>) -> Option<Found> {
    let weight = s.reading.largest_weight().filter(|weight| *weight > 10.0)?;
    // The heavy loss reaches the part of the model with by far the largest gradient.
    let measured = s.begin()?;
    let top = |path: &str| path.split('/').next().unwrap_or(path).to_string();
    let mut parts: Vec<(String, f64)> = vec![];
    for param in &measured.params {
        let part = top(&param.path);
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, squares)) => *squares += param.grad.norm.powi(2),
            None => parts.push((part, param.grad.norm.powi(2))),
        }
    }
    let (heavy, _) = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.clone();
    let factor = 1.0 / weight;
    let remedies = vec![
        Remedy::new(
            "scale-grad",
            format!("multiply the gradient of {heavy} by {factor:.0e}"),
            vec![Edit::ScaleGrad(vec![heavy.clone()], factor)],
        ),
        Remedy::new("loss-weight", "give each loss a weight of about 1", vec![]),
    ];
    let evidence = vec![Evidence::new("largest weight of a loss in the sum", weight, 0.1, 10.0)];
    Some(Found { place: vec![heavy], since: 0, evidence, remedies })
}
