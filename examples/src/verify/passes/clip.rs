//! Clipping by norms and by value.

use super::{Pass, Recording, present, recorded, zeros};
use crate::verify::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{Array, ClipGroups, ClipNorm, Grads, NonFinite, Param, ParamSet, Tensor};

pub const PASSES: &[Pass] = &[
    Pass { name: "clip_global_norm", run: global_norm },
    Pass { name: "clip_global_norm_tied", run: tied },
    Pass { name: "clip_group_norm", run: group_norm },
    Pass { name: "clip_block_rms", run: block_rms },
    Pass { name: "clip_value", run: value },
];

/// The given gradients of a vector: one per input, named `g0`, `g1`, ..
fn gradients<'t>(r: &Recording<'t>) -> Attempt<Grads<'t>> {
    let pairs: Vec<(Param, Tensor<'t>)> = r
        .inputs
        .iter()
        .zip(&r.params)
        .map(|((name, _), param)| Ok((*param, r.input(name)?)))
        .collect::<Attempt<_>>()?;
    Ok(r.given(&pairs))
}

/// Taps each gradient under `prefix` and the number in its input's name.
fn outputs<'t>(r: &Recording<'t>, prefix: &str, grads: &Grads<'t>) {
    for ((name, _), param) in r.inputs.iter().zip(&r.params) {
        r.out(&format!("{prefix}{}", name.strip_prefix('g').unwrap_or(name)), present(grads, *param));
    }
}

/// A parameter for each input, then `frozen` parameters without a gradient.
fn params(inputs: &[(String, Array)], frozen: usize) -> Vec<(String, Array)> {
    let dtype = inputs.first().map_or(wgrad::DType::F32, |(_, array)| array.dtype());
    let present = inputs.iter().map(|(name, array)| (name.clone(), zeros(array)));
    present.chain((0..frozen).map(|i| (format!("frozen{i}"), Array::zeros([2], dtype)))).collect()
}

fn global_norm(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (max_norm, p, eps) = (attrs.number("max_norm")?, attrs.number("norm_type")?, attrs.number("eps")?);
    let params = params(&inputs, attrs.list("frozen")?.len());
    recorded(
        vector,
        &inputs,
        &params,
        |_, _| (),
        |r, ()| {
            let grads = gradients(r)?;
            r.out("total_norm", grads.p_norm(p));
            // For a non-finite norm, the vectors hold the values of plain arithmetic.
            let clip = ClipNorm::new(max_norm).p(p).non_finite(NonFinite::Propagate);
            outputs(r, "o", &grads.clone().clip_by_global_norm(clip.eps(eps)));
            outputs(r, "optax_o", &grads.clip_by_global_norm(clip.eps(0.0)));
            Ok(())
        },
    )
}

/// A parameter that is used twice. The `wrong` results are those of a list that names the parameter twice: both entries
/// count in the norm, and the gradient is scaled twice.
fn tied(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let clip = ClipNorm::new(attrs.number("max_norm")?).p(attrs.number("norm_type")?).eps(attrs.number("eps")?);
    let p = attrs.number("norm_type")?;
    let (_, g) = super::find(&inputs, "g")?;
    let params = ["once", "twice"].map(|name| (name.to_string(), zeros(g)));
    recorded(
        vector,
        &inputs,
        &params,
        |_, _| (),
        |r, ()| {
            let g = r.input("g")?;
            let param = r.params[0];
            let uses = (r.tape.param(param) * (g * 0.5)).sum() + r.tape.param(param).dot(g * 0.5);
            let grads = uses.grad(&ParamSet::from_iter([param]));
            r.out("total_norm", grads.p_norm(p));
            r.out("o", present(&grads.clip_by_global_norm(clip), param));
            let twice = r.given(&[(r.params[0], g), (r.params[1], g)]);
            r.out("wrong_total_norm", twice.p_norm(p));
            let once = twice.clone().clip_by_global_norm(clip);
            // The gradient is scaled again by the factor of the clip by both norms.
            let norm = twice.p_norm(p);
            let factor = (attrs.number("max_norm")? / (norm + attrs.number("eps")?)).minimum(1.0);
            r.out("wrong_o", present(&once.scale_grad(&ParamSet::from_iter([param]), factor), param));
            Ok(())
        },
    )
}

fn group_norm(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let bounds = attrs.numbers("max_norm")?;
    let names: Option<Vec<Vec<&str>>> = attrs
        .list("groups")?
        .iter()
        .map(|group| group.as_array()?.iter().map(serde_json::Value::as_str).collect())
        .collect();
    let names = names.filter(|names| names.len() == bounds.len());
    let names = names.ok_or_else(|| Refusal::Unsupported("groups other than lists of names, one per bound".into()))?;
    let (p, eps) = (attrs.number("norm_type")?, attrs.number("eps")?);
    recorded(
        vector,
        &inputs,
        &params(&inputs, 0),
        |_, _| (),
        |r, ()| {
            let mut clip = ClipGroups::new().p(p).eps(eps).keep_rest();
            for (group, bound) in names.iter().zip(&bounds) {
                let members = inputs.iter().zip(&r.params).filter(|((name, _), _)| group.contains(&name.as_str()));
                clip = clip.group(&members.map(|(_, param)| *param).collect(), *bound);
            }
            let grads = gradients(r)?;
            for (i, group) in names.iter().enumerate() {
                let members = inputs.iter().zip(&r.params).filter(|((name, _), _)| group.contains(&name.as_str()));
                let members: Vec<(Param, Tensor<'_>)> =
                    members.map(|(_, param)| (*param, present(&grads, *param))).collect();
                r.out(&format!("norm{i}"), r.given(&members).p_norm(p));
            }
            outputs(r, "o", &grads.clip_by_group_norm(&clip));
            Ok(())
        },
    )
}

/// Runs a pass over one gradient `g`; its result is `o`.
fn one(vector: &Vector<'_>, pass: impl for<'t> Fn(Grads<'t>) -> Grads<'t>) -> Attempt<Results> {
    let inputs = vector.inputs("in/")?;
    let (_, g) = super::find(&inputs, "g")?;
    recorded(
        vector,
        &inputs,
        &[("g".into(), zeros(g))],
        |_, _| (),
        |r, ()| {
            r.out("o", present(&pass(r.given(&[(r.params[0], r.input("g")?)])), r.params[0]));
            Ok(())
        },
    )
}

fn block_rms(vector: &Vector<'_>) -> Attempt<Results> {
    let threshold = vector.attrs().number("threshold")?;
    one(vector, |grads| grads.clip_by_block_rms(threshold))
}

fn value(vector: &Vector<'_>) -> Attempt<Results> {
    let bound = vector.attrs().number("clip_value")?;
    one(vector, |grads| grads.clip_by_value(bound))
}
