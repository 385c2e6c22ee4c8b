//! Accumulation over micro-batches, and the mean over replicas.

use super::{Pass, Recording, find, present, recorded, without_leading};
use crate::verify::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{Accumulator, Array, Grads, ParamSet, Store, Tensor, Weighting};

pub const PASSES: &[Pass] = &[
    Pass { name: "accumulate", run: accumulate },
    Pass { name: "accumulate_vs_full", run: versus_full },
    Pass { name: "allreduce_mean", run: all_reduce },
    Pass { name: "clip_before_allreduce", run: clip_before },
];

/// One accumulator for each weighting.
struct All {
    mean: Accumulator,
    tokens: Accumulator,
    sum: Accumulator,
}

impl All {
    fn new(store: &mut Store, params: &ParamSet, name: &str) -> Self {
        let mut of = |kind, weighting| Accumulator::new(store, params, &format!("{name}/{kind}"), weighting);
        Self {
            mean: of("mean", Weighting::Mean),
            tokens: of("tokens", Weighting::TokenWeighted),
            sum: of("sum", Weighting::Sum),
        }
    }

    /// Adds gradients to each accumulator; the one by tokens needs their number.
    fn add<'t>(&self, grads: &Grads<'t>, tokens: Option<Tensor<'t>>) {
        self.mean.add(grads.clone());
        self.sum.add(grads.clone());
        if let Some(tokens) = tokens {
            self.tokens.add_tokens(grads.clone(), tokens);
        }
    }
}

/// The extents of an input's first `dims` dimensions, and a zero parameter with the shape of the others.
fn inner(inputs: &[(String, Array)], name: &str, dims: usize) -> Attempt<(Vec<usize>, Array)> {
    let (_, g) = find(inputs, name)?;
    let (extents, shape) = without_leading(g, dims)?;
    Ok((extents, Array::zeros(&shape[..], g.dtype())))
}

fn accumulate(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (extents, param) = inner(&inputs, "gk", 1)?;
    let (count, window) = (attrs.extent("micro_batches")?, attrs.extent("window")?);
    if count != extents[0] {
        return Err(Refusal::Misfit(format!("it has {} gradients for {count} micro-batches", extents[0])));
    }
    let weighted = find(&inputs, "n").is_ok();
    recorded(
        vector,
        &inputs,
        &[("p".into(), param)],
        |store, params| All::new(store, params, "acc"),
        |r, all| {
            let (gk, param) = (r.input("gk")?, r.params[0]);
            let tokens = if weighted { Some(r.input("n")?) } else { None };
            for k in 0..count {
                all.add(&r.given(&[(param, gk.index(0, k))]), tokens.map(|tokens| tokens.index(0, k)));
            }
            let sum = present(&all.sum.take(r.tape), param);
            r.out("sum", sum);
            r.out("mean", present(&all.mean.take(r.tape), param));
            r.out("wrong_over_window", sum / window as f64);
            if weighted {
                r.out("token_weighted", present(&all.tokens.take(r.tape), param));
            }
            Ok(())
        },
    )
}

/// Compares micro-batches of several lengths with the batch that they make up.
fn versus_full(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let sizes = attrs.extents("micro_sizes")?;
    let w = find(&inputs, "W")?.clone();
    recorded(
        vector,
        &inputs,
        &[w],
        |store, params| All::new(store, params, "acc"),
        |r, all| {
            let (x, y, param) = (r.input("x")?, r.input("y")?, r.params[0]);
            let loss = |start: usize, len: usize| {
                x.slice(0, start, len).matmul_t(r.tape.param(param)).cross_entropy(y.slice(0, start, len))
            };
            r.out("full", present(&r.gradient(loss(0, x.shape()[0])), param));
            let mut start = 0;
            for len in sizes {
                all.add(&r.gradient(loss(start, len)), Some(r.tape.scalar(len as f64, wgrad::DType::U32)));
                start += len;
            }
            r.out("token_weighted", present(&all.tokens.take(r.tape), param));
            r.out("mean_of_means", present(&all.mean.take(r.tape), param));
            Ok(())
        },
    )
}

/// The mean of the gradients of all replicas.
fn mean<'t>(r: &Recording<'t>, ranks: Vec<Grads<'t>>) -> Attempt<Tensor<'t>> {
    let mut ranks = ranks.into_iter();
    let first = ranks.next().ok_or_else(|| Refusal::Unsupported("mean over no replicas".into()))?;
    Ok(present(&first.all_reduce_on_tape(&ranks.collect::<Vec<_>>()), r.params[0]))
}

fn all_reduce(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (extents, param) = inner(&inputs, "g", 2)?;
    let (ranks, count) = (attrs.extent("ranks")?, attrs.extent("micro_batches")?);
    if extents != [ranks, count] {
        return Err(Refusal::Misfit(format!("its gradients are of {extents:?}, not of {ranks} times {count}")));
    }
    let declare = |store: &mut Store, params: &ParamSet| -> Vec<All> {
        (0..ranks).map(|rank| All::new(store, params, &format!("rank{rank}"))).collect()
    };
    recorded(vector, &inputs, &[("p".into(), param)], declare, |r, all| {
        let (g, n, param) = (r.input("g")?, r.input("n")?, r.params[0]);
        for (rank, all) in all.iter().enumerate() {
            for k in 0..count {
                all.add(&r.given(&[(param, g.index(0, rank).index(0, k))]), Some(n.index(0, rank).index(0, k)));
            }
        }
        r.out("mean", mean(r, all.iter().map(|all| all.mean.take(r.tape)).collect())?);
        let weighted: Vec<Grads<'_>> = all.iter().map(|all| all.tokens.take(r.tape)).collect();
        // These gradients keep only their values, without the numbers of tokens.
        let unweighted = weighted.iter().map(|grads| r.given(&[(param, present(grads, param))])).collect();
        r.out("mean_of_rank_token_means", mean(r, unweighted)?);
        r.out("token_weighted", mean(r, weighted)?);
        Ok(())
    })
}

/// Compares the clip of the replicas' mean with the mean of their clips.
fn clip_before(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let (extents, param) = inner(&inputs, "g", 1)?;
    let (max_norm, ranks) = (attrs.number("max_norm")?, attrs.extent("ranks")?);
    if extents != [ranks] {
        return Err(Refusal::Misfit(format!("its gradients are of {extents:?}, not of {ranks} replicas")));
    }
    recorded(
        vector,
        &inputs,
        &[("p".into(), param)],
        |_, _| (),
        |r, ()| {
            let g = r.input("g")?;
            let each: Vec<Grads<'_>> = (0..ranks).map(|rank| r.given(&[(r.params[0], g.index(0, rank))])).collect();
            let reduced = r.given(&[(r.params[0], mean(r, each.clone())?)]);
            r.out("clip_of_mean", present(&reduced.clip_by_global_norm(max_norm), r.params[0]));
            r.out(
                "mean_of_clips",
                mean(r, each.into_iter().map(|grads| grads.local_clip().clip_by_global_norm(max_norm)).collect())?,
            );
            Ok(())
        },
    )
}
