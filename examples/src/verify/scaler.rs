//! Vectors of kind `scaler`: the course of a dynamic loss scale, and the gradients and the verdict of unscaling.

use super::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{Array, DType, Data, DynamicScale, Error, Grads, LossScaler, Param, Scaled, Store, Tape};

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    match vector.case.op.as_str() {
        "dynamic_loss_scale" => dynamic_loss_scale(vector),
        "unscale_check" => unscale_check(vector),
        other => Err(Refusal::Operation(other.into())),
    }
}

/// Scaled gradients that are inputs. A hook puts them in the place of the loss's own gradients.
fn given<'t>(tape: &'t Tape, scaler: LossScaler, gradients: &[(Param, String, Array)]) -> Option<Grads<'t, Scaled>> {
    for (param, name, value) in gradients.iter().cloned() {
        tape.on_param_grad(param, move |g| g.tape().input_like(&name, &value));
    }
    let loss = gradients.iter().map(|(param, ..)| tape.param(*param).sum()).reduce(|a, b| a + b)?;
    Some(scaler.scale(loss).grad(&gradients.iter().map(|(param, ..)| *param).collect()))
}

/// The scale and the growth tracker after each update; the input `found_inf` tells which updates are non-finite.
fn dynamic_loss_scale(vector: &Vector<'_>) -> Attempt<Results> {
    let attrs = vector.attrs();
    attrs.only(&["init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale"], &vector.case.op)?;
    let found = vector.tensors.array(&format!("{}/in/found_inf", vector.case.id))?.to_f64();
    let interval = attrs.extent("growth_interval")?;
    let interval =
        u32::try_from(interval).map_err(|_| Refusal::Misfit(format!("no scale waits {interval} updates")))?;
    let floors = attrs.object("min_scale")?;
    let (mut results, mut trackers): (Results, Vec<Vec<f64>>) = (vec![], vec![]);
    // Each floor has its own trajectory. A floor without an expected result is left out, because it may not fit the
    // first scale.
    for name in floors.0.keys().filter(|name| vector.case.expect.contains_key(&format!("out/{name}"))) {
        let settings = DynamicScale {
            init: attrs.number("init_scale")?,
            growth: attrs.number("growth_factor")?,
            backoff: attrs.number("backoff_factor")?,
            interval,
            min_scale: floors.number_or(name, 0.0)?,
            ..DynamicScale::default()
        };
        let (scales, tracker) = trajectory(vector, settings, &found)?;
        results.push((format!("out/{name}"), Array::new([found.len()], Data::from_f64(DType::F32, &scales))));
        trackers.push(tracker);
    }
    let tracker = trackers.pop().ok_or_else(|| Refusal::Misfit("it expects no scale".into()))?;
    if trackers.iter().any(|other| *other != tracker) {
        return Err(Refusal::Misfit("the growth tracker depends on the floor".into()));
    }
    results.push(("out/growth_tracker".into(), Array::new([found.len()], Data::from_f64(DType::I32, &tracker))));
    Ok(results)
}

fn trajectory(vector: &Vector<'_>, settings: DynamicScale, found: &[f64]) -> Attempt<(Vec<f64>, Vec<f64>)> {
    let value = |v: f64| Array::new([1], Data::from_f64(DType::F32, &[v]));
    let mut store = Store::new();
    let param = store.param("p", &value(0.0));
    let scaler = LossScaler::dynamic(&mut store, settings.clone());
    let states = scaler.states().expect("it is dynamic");
    let mut session = vector.session(store)?;
    let step = session.record(|t| {
        let grads = given(t, scaler, &[(param, "g".into(), value(0.0))]).expect("one gradient");
        let grads = grads.unscale(&scaler);
        t.tap("verdict", grads.verdict().expect("unscaling gives a verdict"));
        scaler.update(t);
        t.tap("scale", t.state(states.0));
        t.tap("tracker", t.state(states.1));
    })?;
    let (mut scales, mut trackers) = (vec![], vec![]);
    for found in found {
        session.run(&step, &[("g", &value(if *found == 0.0 { 1.0 } else { f64::INFINITY }))])?;
        match session.wait() {
            // The vector asks for a scale of 0, which is otherwise an error.
            Err(Error::Late { .. }) if settings.min_scale == 0.0 => {}
            other => other?,
        }
        for taps in session.taps()? {
            let tapped = |name| taps.scalar(name).expect("it is tapped");
            if tapped("verdict") == *found {
                return Err(Refusal::Misfit("the verdict is not what was put in".into()));
            }
            scales.push(tapped("scale"));
            trackers.push(tapped("tracker"));
        }
    }
    Ok((scales, trackers))
}

/// Unscaled gradients, and the verdict on non-finite ones.
fn unscale_check(vector: &Vector<'_>) -> Attempt<Results> {
    let attrs = vector.attrs();
    attrs.only(&["scale"], &vector.case.op)?;
    let init = attrs.number("scale")?;
    let mut store = Store::new();
    let declare =
        |(name, value): (String, Array)| (store.param(&name, &Array::zeros(value.shape(), value.dtype())), name, value);
    let gradients: Vec<(Param, String, Array)> = vector.inputs("in/")?.into_iter().map(declare).collect();
    let settings = DynamicScale { init, min_scale: init.min(1.0), ..DynamicScale::default() };
    let scaler = LossScaler::dynamic(&mut store, settings);
    let mut session = vector.session(store)?;
    let step = session.record(|t| {
        let Some(grads) = given(t, scaler, &gradients) else { return };
        let grads = grads.unscale(&scaler);
        for (param, name, _) in &gradients {
            t.tap(&format!("out/{name}"), grads.get(*param).expect("the loss reaches it"));
        }
        t.tap("out/found_inf", !grads.verdict().expect("unscaling gives a verdict"));
    })?;
    let inputs: Vec<(&str, &Array)> = gradients.iter().map(|(_, name, value)| (name.as_str(), value)).collect();
    session.run(&step, &inputs)?;
    session.wait()?;
    let taps = session.taps()?;
    Ok(taps.iter().flat_map(|taps| taps.iter()).map(|(name, value)| (name.into(), value.clone())).collect())
}
