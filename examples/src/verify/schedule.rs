//! Vectors of kind `schedule`: the learning rate, or the strength of gradient noise, at each of the first updates.

use super::{
    Attempt, Attributes, Refusal,
    kind::{Results, Vector},
};
use wgrad::Store;
use wgrad_nn::Schedule;

/// The results of a vector.
///
/// # Errors
/// The reason that the vector cannot be run.
pub fn run(vector: &Vector<'_>) -> Attempt<Results> {
    let schedule = schedule(&vector.case.op, vector.attrs())?;
    let count = vector.tensors.expected(&format!("{}/out/lr", vector.case.id))?.shape.numel();
    // The formula is elementwise, so a vector of update counts gives the whole curve.
    let curve = vector.session(Store::new())?.eval(&[], |t| schedule.lr(t.iota(count), vector.dtype()))?;
    Ok(vec![("out/lr".into(), curve)])
}

/// The schedule that a vector names.
fn schedule(name: &str, attrs: Attributes<'_>) -> Attempt<Schedule> {
    let number = |name| attrs.number(name);
    let count = |name: &str| {
        let count = attrs.extent(name)?;
        u32::try_from(count).map_err(|_| Refusal::Misfit(format!("no schedule has {count} updates")))
    };
    let init = || attrs.number_or("init", 0.0);
    let only = |own: &[&str]| attrs.only(own, name);
    Ok(match name {
        "linear_warmup" => {
            only(&["base", "warmup", "offset"])?;
            Schedule::Warmup { base: number("base")?, steps: count("warmup")?, offset: count("offset")? }
        }
        "linear_warmup_factor" => {
            only(&["base", "warmup", "start_factor"])?;
            Schedule::WarmupFactor { base: number("base")?, steps: count("warmup")?, factor: number("start_factor")? }
        }
        "warmup_linear" => {
            only(&["base", "warmup", "total", "init", "end"])?;
            let (base, end) = (number("base")?, number("end")?);
            Schedule::WarmupLinear { base, steps: count("warmup")?, total: count("total")?, init: init()?, end }
        }
        "warmup_cosine" => {
            only(&["base", "warmup", "total", "init", "end"])?;
            let (base, end) = (number("base")?, number("end")?);
            Schedule::WarmupCosine { base, steps: count("warmup")?, total: count("total")?, init: init()?, end }
        }
        "noise_sigma" => {
            only(&["eta", "gamma"])?;
            Schedule::Annealed { eta: number("eta")?, gamma: number("gamma")? }
        }
        other => return Err(Refusal::Operation(other.into())),
    })
}
