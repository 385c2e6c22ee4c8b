//! Derivatives of derivatives, through operations, networks and gradient passes.

use super::{
    Call,
    Form::{One, Pass, PassOne, Several},
    Operation, Outputs, find, gradients, op, record, sum,
};
use crate::verify::{Attempt, Refusal};
use std::collections::BTreeMap;
use wgrad::{Agc, ClipNorm, Tensor};

pub const OPERATIONS: &[Operation] = &[
    op("double_backward", One(double_backward)),
    op("tanh_mlp_grad_penalty", Several(grad_penalty)),
    op("hvp_tanh_mlp_ce", Several(hessian_vector_product)),
    op("tanh_derivatives", Several(tanh_derivatives)),
    op("vjp_clip_global_norm", Pass(clip_global_norm)),
    op("vjp_centralize", PassOne(centralize)),
    op("vjp_agc_unitwise", PassOne(agc)),
    op("meta_clip_sgd", Pass(meta_clip_sgd)),
];

/// `sum_k <v_k, d<u, op> / dk>` over the inputs `k` that `wrt` names.
fn double_backward<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let operation = find(call.attrs.text("inner_op")?)?;
    let wrt = call.attrs.texts("wrt")?;
    let inner = |name: &String| name != "u" && !wrt.iter().any(|wrt| name.strip_prefix("v_") == Some(wrt));
    let inputs = call.inputs.iter().filter(|(name, _)| inner(name)).map(|(name, x)| (name.clone(), *x));
    let inner = call.with(inputs.collect::<BTreeMap<_, _>>(), call.attrs.object("inner_attrs")?);
    let outputs = record(operation, &inner)?;
    let [(_, y)] = outputs[..] else {
        return Err(Refusal::Unsupported("double backward of an operation with several results".into()));
    };
    let inputs: Vec<Tensor<'t>> = wrt.iter().map(|name| call.input(name)).collect::<Attempt<_>>()?;
    let first = gradients(y.dot(call.input("u")?), &inputs);
    let products = wrt.iter().zip(first).map(|(name, g)| Ok(g.dot(call.input(&format!("v_{name}"))?)));
    let products: Vec<Tensor<'t>> = products.collect::<Attempt<_>>()?;
    sum(products).ok_or_else(|| Refusal::Unsupported("double backward with respect to nothing".into()))
}

/// `tanh(x w1^T + b1) w2^T + b2`.
fn tanh_mlp<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let hidden = (call.input("x")?.matmul_t(call.input("w1")?) + call.input("b1")?).tanh();
    Ok(hidden.matmul_t(call.input("w2")?) + call.input("b2")?)
}

/// `mean_i (|gx_i| - 1)^2` with the gradient `gx` of the network's sum (Gulrajani et al. 2017).
fn grad_penalty<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let gx = gradients(tanh_mlp(call)?.sum(), &[call.input("x")?])[0];
    let loss = (gx.norm_axes(&[1]) - 1.0).square().mean();
    Ok(vec![("loss".into(), loss), ("gx".into(), gx)])
}

/// The loss of a classifier, its gradient, and its Hessian times `v`.
fn hessian_vector_product<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    const PARAMS: [&str; 4] = ["w1", "b1", "w2", "b2"];
    let loss = tanh_mlp(call)?.cross_entropy(call.input("target")?);
    let params: Vec<Tensor<'t>> = PARAMS.iter().map(|name| call.input(name)).collect::<Attempt<_>>()?;
    let first = gradients(loss, &params);
    let mut along = vec![];
    for (name, gradient) in PARAMS.iter().zip(&first) {
        along.push(gradient.dot(call.input(&format!("v_{name}"))?));
    }
    let second = gradients(sum(along).expect("four of them"), &params);
    let named = |prefix: &'static str, values: Vec<Tensor<'t>>| {
        PARAMS.iter().zip(values).map(move |(name, value)| (format!("{prefix}{name}"), value))
    };
    Ok([("loss".to_string(), loss)].into_iter().chain(named("g_", first)).chain(named("hvp_", second)).collect())
}

/// The first three derivatives of the hyperbolic tangent.
fn tanh_derivatives<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let x = call.input("x")?;
    let mut derivatives = vec![x.tanh()];
    for order in 0..3 {
        derivatives.push(gradients(derivatives[order].sum(), &[x])[0]);
    }
    Ok((1..=3).map(|order| (format!("d{order}"), derivatives[order])).collect())
}

/// Clips `g0`, `g1`, .. by their global norm.
fn clip_global_norm<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let eps = match call.attrs.text("convention")? {
        "torch" => 1e-6,
        "optax" => 0.0,
        other => return Err(Refusal::Unsupported(format!("clipping by the global norm as in {other:?}"))),
    };
    let clip = ClipNorm::new(call.attrs.number("max_norm")?).p(call.attrs.number("norm_type")?).eps(eps);
    let tensors: Vec<(&str, Tensor<'t>)> = call.inputs.iter().map(|(name, g)| (name.as_str(), *g)).collect();
    let (grads, params) = call.gradients(&tensors)?;
    let total_norm = grads.norm();
    let clipped = grads.clip_by_global_norm(clip);
    let mut outputs = vec![("total_norm".to_string(), total_norm)];
    for ((name, _), param) in tensors.iter().zip(params) {
        let suffix = name.strip_prefix('g').unwrap_or(name);
        outputs.push((format!("o{suffix}"), clipped.get(param).expect("every gradient is present")));
    }
    Ok(outputs)
}

/// Centralizes `g`.
fn centralize<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let (grads, params) = call.gradients(&[("g", call.input("g")?)])?;
    Ok(grads.centralize().get(params[0]).expect("the gradient is present"))
}

/// Clips `g` adaptively, relative to the weight `w`.
fn agc<'t>(call: &Call<'t, '_>) -> Attempt<Tensor<'t>> {
    let agc = Agc::new(call.attrs.number("clipping")?).eps(call.attrs.number("eps")?);
    let (grads, params) = call.gradients_at(&[("w", call.input("w")?, call.input("g")?)])?;
    Ok(grads.agc(agc).get(params[0]).expect("the gradient is present"))
}

/// `|theta - lr clip(g) - t|^2` with the gradient `g` of `sum tanh(A theta)^2`: the loss after a clipped step.
fn meta_clip_sgd<'t>(call: &Call<'t, '_>) -> Attempt<Outputs<'t>> {
    let theta = call.input("theta")?;
    let inner = call.input("A")?.matmul(theta).tanh().square().sum();
    let (grads, params) = call.gradients(&[("theta", gradients(inner, &[theta])[0])])?;
    let clipped = grads.clip_by_global_norm(call.attrs.number("max_norm")?);
    let step = clipped.get(params[0]).expect("the gradient is present") * call.attrs.number("lr")?;
    Ok(vec![("y".into(), (theta - step - call.input("t")?).square().sum())])
}
