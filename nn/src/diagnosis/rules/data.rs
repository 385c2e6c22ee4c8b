//! Rules that look at batches.

use super::{Evidence, Found, Remedy};
use crate::{diagnosis::signs::Signs, numbers::median, train::Edit};

/// The names of the float inputs, from the first measurement.
fn inputs(s: &Signs<'_>) -> Vec<String> {
    let sites = s.begin().map_or(&[][..], |measured| &measured.sites);
    sites.iter().filter_map(|site| site.path.strip_prefix("inputs/").map(String::from)).collect()
}

/// The paths of the inputs.
fn places(s: &Signs<'_>) -> Vec<String> {
    inputs(s).into_iter().map(|name| format!("inputs/{name}")).collect()
}

/// The remedy that brings the inputs to mean 0 and deviation 1.
pub(super) fn scale_inputs(s: &Signs<'_>) -> Remedy {
    let mean = median(s.trace.batches.iter().map(|batch| batch.mean));
    let std = median(s.trace.batches.iter().map(|batch| batch.std)).max(1e-12);
    // Targets that are floats are inputs of the program too, and stay as they are.
    let name = inputs(s).into_iter().find(|name| name != "y").unwrap_or("x".into());
    let advice = format!("subtract {mean:.3e} from the inputs, and divide them by {std:.3e}");
    Remedy::new("scale-inputs", advice, vec![Edit::Input { name, shift: mean, scale: 1.0 / std }])
}

pub(super) fn nan_input(s: &Signs<'_>) -> Option<Found> {
    let at = s.trace.batches.iter().position(|batch| batch.non_finite > 0)?;
    let count = s.trace.batches[at].non_finite;
    let harmed = s.trace.updates.get(at).is_none_or(|update| !update.loss.is_finite() || !update.taken);
    if !harmed {
        return None;
    }
    let remedies = vec![
        Remedy::new("skip-step", format!("leave out the batch of step {at}"), vec![Edit::Skip(at)]),
        Remedy::new("clean-data", "check the data for values that are not finite", vec![]),
    ];
    let evidence = vec![Evidence::new("elements of the batch that are not finite", count as f64, 0.0, 0.0)];
    Some(Found { place: places(s), since: at, evidence, remedies })
}

pub(super) fn input_constant(s: &Signs<'_>) -> Option<Found> {
    if s.trace.batches.is_empty() || !s.trace.batches.iter().all(|batch| batch.constant) {
        return None;
    }
    let evidence = vec![Evidence::new("standard deviation of the inputs", s.trace.batches[0].std, 1e-6, f64::INFINITY)];
    let remedy = Remedy::new("data", "feed the data: every input is the same number", vec![]);
    Some(Found { place: places(s), since: 0, evidence, remedies: vec![remedy] })
}

pub(super) fn outlier(s: &Signs<'_>) -> Option<Found> {
    let usual = s.input_size();
    let far = |rms: f64| rms > 20.0 * usual || rms < usual / 20.0;
    let at = s.trace.batches.iter().position(|batch| usual > 0.0 && far(batch.rms))?;
    if !s.is_sick() {
        return None;
    }
    let before = median(s.trace.updates.iter().take(at.max(1)).map(|update| update.grad_norm));
    let bound = if before.is_finite() && before > 0.0 { before } else { 1.0 };
    let skip = Remedy::new("skip-step", format!("leave out the batch of step {at}"), vec![Edit::Skip(at)]);
    let clip = Remedy::new(
        "clip-norm",
        format!("clip gradients to the norm {bound:.2e} that they had before"),
        vec![Edit::ClipNorm(Some(bound))],
    );
    // A recurrent network without a clip needs one whatever the data is.
    let first = if s.is_recurrent() && !s.clips() { vec![clip, skip] } else { vec![skip, clip] };
    let clean = Remedy::new("clean-data", format!("check the batch of step {at}"), vec![]);
    let evidence = vec![Evidence::new(
        "root mean square of the batch over the median",
        s.trace.batches[at].rms / usual,
        0.05,
        20.0,
    )];
    Some(Found { place: places(s), since: at, evidence, remedies: [first, vec![clean]].concat() })
}

pub(super) fn input_scale(s: &Signs<'_>) -> Option<Found> {
    let size = s.input_size();
    if size <= 10.0 || !s.is_sick() {
        return None;
    }
    let evidence = vec![Evidence::new("median root mean square of the inputs", size, 0.1, 10.0)];
    Some(Found { place: places(s), since: s.blew_up().unwrap_or(0), evidence, remedies: vec![scale_inputs(s)] })
}

pub(super) fn labels(s: &Signs<'_>) -> Option<Found> {
    let share = s.last_loss() / s.start();
    if !s.is_sick() || s.died().is_some() || share < 0.9 {
        return None;
    }
    let evidence = vec![
        Evidence::new("last loss over that of a guess", share, 0.0, 0.9),
        Evidence::new("median norm of an update over that of its parameter", s.update_ratio(), 1e-4, 1e-1),
    ];
    let remedy = Remedy::new("data", "check that targets belong to their inputs: there is nothing to learn", vec![]);
    Some(Found { place: vec!["inputs/y".into()], since: 0, evidence, remedies: vec![remedy] })
}
