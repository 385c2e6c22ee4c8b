//! Hooks, tied weights and checkpoints.

use super::{Pass, find, present, recorded, without_leading};
use crate::verify::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};
use wgrad::{Accumulator, Array, Tensor, Weighting};

pub const PASSES: &[Pass] = &[
    Pass { name: "hooks", run: hooks },
    Pass { name: "hook_vs_post_accumulate", run: post_accumulate },
    Pass { name: "weight_tying", run: weight_tying },
    Pass { name: "checkpoint_mlp", run: checkpoint_mlp },
];

/// The change that a hook makes to a gradient, with a number as its setting.
type Change = for<'t> fn(Tensor<'t>, f64) -> Tensor<'t>;

/// The hooks that vectors can name.
const CHANGES: [(&str, Change); 5] = [
    ("scale", |g, k| g * k),
    ("add", |g, k| g + k),
    ("none", |g, _| g),
    ("clamp", |g, k| g.clamp(-k, k)),
    ("clip_norm", |g, k| g * (k / (g.norm() + 1e-6)).minimum(1.0)),
];

fn change(name: &str) -> Attempt<Change> {
    let found = CHANGES.iter().find(|(change, _)| *change == name);
    found.map(|(_, change)| *change).ok_or_else(|| Refusal::Unsupported(format!("hook {name:?}")))
}

/// Hooks on `x`, `W` and `h = tanh(W x)`, with the loss `sum(h h) + sum(h)`.
fn hooks(vector: &Vector<'_>) -> Attempt<Results> {
    let inputs = vector.inputs("in/")?;
    let mut of: BTreeMap<&str, Vec<(usize, Change, f64)>> = BTreeMap::new();
    for (i, hook) in vector.attrs().list("hooks")?.iter().enumerate() {
        let parts = hook.as_array().map(Vec::as_slice);
        let Some([tensor, name, number]) = parts else {
            return Err(Refusal::Unsupported(format!("hook {hook}: a tensor, a name and a number")));
        };
        let (Some(tensor), Some(name), Some(number)) = (tensor.as_str(), name.as_str(), number.as_f64()) else {
            return Err(Refusal::Unsupported(format!("hook {hook}: a tensor, a name and a number")));
        };
        of.entry(tensor).or_default().push((i, change(name)?, number));
    }
    if let Some(other) = of.keys().find(|tensor| !["x", "W", "h"].contains(tensor)) {
        return Err(Refusal::Unsupported(format!("hook on {other:?}")));
    }
    recorded(
        vector,
        &inputs,
        &[],
        |_, _| (),
        |r, ()| {
            let [x, w] = ["x", "W"].map(|name| r.input(name).map(|tensor| with_hooks(tensor, of.get(name))));
            let (x, w) = (x?, w?);
            let h = with_hooks(w.matmul(x).tanh(), of.get("h"));
            let found = ((h * h).sum() + h.sum()).grad_wrt(&[x, w]);
            for (name, gradient) in ["gx", "gW"].iter().zip(found) {
                r.out(name, gradient.expect("the loss depends on both"));
            }
            Ok(())
        },
    )
}

/// A tensor with hooks, which also tap the gradients that they see.
fn with_hooks<'t>(tensor: Tensor<'t>, hooks: Option<&Vec<(usize, Change, f64)>>) -> Tensor<'t> {
    hooks.into_iter().flatten().fold(tensor, |tensor, &(i, change, number)| {
        tensor.on_grad(move |g| {
            g.tape().tap(&format!("out/seen{i}"), g);
            change(g, number)
        })
    })
}

/// Checks that a hook sees the gradient of each micro-batch, and a hook of the accumulator their sum.
fn post_accumulate(vector: &Vector<'_>) -> Attempt<Results> {
    let inputs = vector.inputs("in/")?;
    let text = vector.attrs().text("hook")?;
    let unknown = || Refusal::Unsupported(format!("hook {text:?}: a name and a number"));
    let (name, number) = text.split_once(' ').ok_or_else(unknown)?;
    let (change, number) = (change(name)?, number.parse::<f64>().map_err(|_| unknown())?);
    let w = find(&inputs, "w")?.clone();
    let (counts, _) = without_leading(&find(&inputs, "a")?.1, 1)?;
    let count = counts[0];
    // Hooks are called while the program is recorded: call k is for micro-batch k.
    let declare = |store: &mut wgrad::Store, params: &wgrad::ParamSet| {
        let param = params.iter().next().expect("one parameter");
        let calls = AtomicUsize::new(0);
        Accumulator::new(store, params, "acc", Weighting::Sum).on_accumulated(param, move |sum| {
            sum.tape().tap(&format!("post/{}", calls.fetch_add(1, Ordering::Relaxed)), sum);
            sum
        })
    };
    let mut results = recorded(vector, &inputs, &[w], declare, |r, acc: &Accumulator| {
        let (a, param) = (r.input("a")?, r.params[0]);
        let calls = Cell::new(0);
        r.tape.on_param_grad(param, move |g| {
            g.tape().tap(&format!("seen/{}", calls.replace(calls.get() + 1)), g);
            change(g, number)
        });
        for k in 0..count {
            let w = r.tape.param(param);
            acc.add(r.gradient((a.index(0, k) * w * w).sum()));
        }
        r.out("grad", present(&acc.take(r.tape), param));
        Ok(())
    })?;
    for name in ["seen", "post"] {
        let stacked = stacked(&results, name, count)?;
        results.push((format!("out/{name}"), stacked));
    }
    Ok(results)
}

/// The taps of a hook's calls, stacked in the order of the calls.
fn stacked(results: &Results, name: &str, count: usize) -> Attempt<Array> {
    let seen: Vec<&Array> = (0..count)
        .map(|k| {
            let call = results.iter().find(|(tap, _)| *tap == format!("{name}/{k}"));
            call.map(|(_, value)| value).ok_or_else(|| Refusal::Misfit(format!("the hook ran {k} times")))
        })
        .collect::<Attempt<_>>()?;
    let shape: Vec<usize> =
        std::iter::once(count).chain(seen.iter().take(1).flat_map(|s| s.shape().to_vec())).collect();
    let values: Vec<f64> = seen.iter().flat_map(|seen| seen.to_f64()).collect();
    let dtype = seen.first().map_or(wgrad::DType::F64, |seen| seen.dtype());
    Ok(Array::new(&shape[..], values).cast(dtype))
}

/// One table for embedding and output has one gradient, which counts once in the norm.
fn weight_tying(vector: &Vector<'_>) -> Attempt<Results> {
    let inputs = vector.inputs("in/")?;
    let e = find(&inputs, "E")?.clone();
    recorded(
        vector,
        &inputs,
        &[e],
        |_, _| (),
        |r, ()| {
            let table = r.tape.param(r.params[0]);
            let h = table.rows(r.input("idx")?).tanh().mean_axes(&[1]);
            let loss = h.matmul_t(table).cross_entropy(r.input("y")?);
            let grads = r.gradient(loss);
            r.out("loss", loss);
            r.out("gE", present(&grads, r.params[0]));
            r.out("total_norm", grads.norm());
            Ok(())
        },
    )
}

/// Layers `tanh(h W_l^T) * keep_l / keep_prob` with the loss `sum(h h)`; each checkpoint has `segment` layers.
fn checkpoint_mlp(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (layers, segment) = (attrs.extent("layers")?, attrs.extent("segment")?.max(1));
    let keep_prob = attrs.number("keep_prob")?;
    recorded(
        vector,
        &inputs,
        &[],
        |_, _| (),
        |r, ()| {
            let (x, w, keep) = (r.input("x")?, r.input("W")?, r.input("keep")?);
            let mut h = x;
            for start in (0..layers).step_by(segment) {
                h = r.tape.checkpoint(|| {
                    (start..layers.min(start + segment))
                        .fold(h, |h, l| h.matmul_t(w.index(0, l)).tanh() * keep.index(0, l).cast(x.dtype()) / keep_prob)
                });
            }
            let found = (h * h).sum().grad_wrt(&[x, w]);
            r.out("y", h);
            for (name, gradient) in ["gx", "gW"].iter().zip(found) {
                r.out(name, gradient.expect("the loss depends on both"));
            }
            Ok(())
        },
    )
}
