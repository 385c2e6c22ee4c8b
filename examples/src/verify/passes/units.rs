//! Adaptive clipping, centralization and noise.

use super::{Pass, present, recorded, without_leading, zeros};
use crate::verify::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{Agc, Array, Centralize, Draw, Flat, Grads, Noise, Tensor};

pub const PASSES: &[Pass] = &[
    Pass { name: "agc_unitwise", run: agc },
    Pass { name: "agc_per_tensor", run: agc_per_tensor },
    Pass { name: "centralize", run: centralize },
    Pass { name: "gradient_noise", run: noise },
];

/// Runs a pass over the gradient `g` of a parameter with the value `w`; its result is `o`.
fn at_weight(vector: &Vector<'_>, pass: impl for<'t> Fn(Grads<'t>) -> Grads<'t>) -> Attempt<Results> {
    let inputs = vector.inputs("in/")?;
    let w = super::find(&inputs, "w")?.clone();
    recorded(
        vector,
        &inputs,
        &[w],
        |_, _| (),
        |r, ()| {
            r.out("o", present(&pass(r.given(&[(r.params[0], r.input("g")?)])), r.params[0]));
            Ok(())
        },
    )
}

fn agc(vector: &Vector<'_>) -> Attempt<Results> {
    let attrs = vector.attrs();
    let (clipping, eps) = (attrs.number("clipping")?, attrs.number("eps")?);
    let (div_eps, p) = (attrs.number("div_eps")?, attrs.number("norm_type")?);
    at_weight(vector, |grads| grads.agc(Agc::new(clipping).eps(eps).div_eps(div_eps).p(p)))
}

fn agc_per_tensor(vector: &Vector<'_>) -> Attempt<Results> {
    let attrs = vector.attrs();
    let (factor, eps, param_eps) = (attrs.number("clip_factor")?, attrs.number("eps")?, attrs.number("param_eps")?);
    at_weight(vector, |grads| grads.agc_per_tensor(factor, eps, param_eps))
}

fn centralize(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let least = attrs.extent("min_ndim")?;
    let what = Centralize::new().min_ndim(if attrs.flag("conv_only")? { least.max(4) } else { least });
    let (_, g) = super::find(&inputs, "g")?;
    recorded(
        vector,
        &inputs,
        &[("g".into(), zeros(g))],
        |_, _| (),
        |r, ()| {
            let grads = r.given(&[(r.params[0], r.input("g")?)]);
            r.out("o", present(&grads.centralize_with(&what), r.params[0]));
            Ok(())
        },
    )
}

/// Noise with given normal numbers `z`: for one update, or for updates 0, 1, .. along the first dimension.
fn noise(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (noise, leading) = match attrs.text("schedule")? {
        "fixed" => (Noise::fixed(attrs.number("sigma")?), 0),
        "neelakantan2015" => {
            let (eta, gamma, t0) = (attrs.number("eta")?, attrs.number("gamma")?, attrs.number("t0")?);
            (Noise::Annealed { eta, gamma, t0 }, 1)
        }
        other => return Err(Refusal::Unsupported(format!("noise by the schedule {other:?}"))),
    };
    let (_, g) = super::find(&inputs, "g")?;
    let (updates, shape) = without_leading(g, leading)?;
    let param = ("p".to_string(), Array::zeros(&shape[..], g.dtype()));
    recorded(
        vector,
        &inputs,
        &[param],
        |_, _| (),
        |r, ()| {
            let (g, z, param) = (r.input("g")?, r.input("z")?, r.params[0]);
            let decl = r.tape.layout().param(param).clone();
            let len = r.tape.layout().state(decl.arena).shape.numel();
            let mut rows = vec![];
            let count = updates.first().copied().unwrap_or(1);
            for t in 0..count {
                let [g, z] = [g, z].map(|x| if leading == 1 { x.index(0, t) } else { x });
                let z = z.reshape([decl.shape.numel()]);
                let z = Flat::new(vec![(decl.arena, z.pad(0, decl.offset, len - decl.offset - z.numel()))]);
                let updates = r.tape.scalar(t as f64, wgrad::DType::U32);
                let grads = r.given(&[(param, g)]).add_noise(noise, Draw::Given { z, updates });
                rows.push((present(&grads, param), noise.sigma(updates, g.dtype())));
            }
            if leading == 0 {
                r.out("o", rows[0].0);
                return Ok(());
            }
            let (rows, sigmas): (Vec<Tensor<'_>>, Vec<Tensor<'_>>) = rows.into_iter().unzip();
            r.out("o", Tensor::stack(&rows));
            r.out("sigma", Tensor::stack(&sigmas));
            Ok(())
        },
    )
}
