//! The mean over replicas: ranks of a world, or replicas on one tape.

use crate::{
    PassConfig, Tensor,
    grads::Grads,
    op::Reduce,
    pass_state::{Action, PassState},
    random::fnv1a,
    recorded::PassKind,
    store::Flat,
};

impl<'t, S> Grads<'t, S> {
    /// The mean over the ranks that train together ([`crate::Session::with_collective`]); with a single rank, the same
    /// gradients. Record it once per update, when all micro-batches are in.
    ///
    /// `(1/R) sum_r g_r`; for gradients weighted by tokens `sum_r n_r g_r / sum_r n_r`, which is not the mean of the
    /// ranks' means.
    ///
    /// A NaN or infinity of one rank reaches all. An earlier verdict becomes that of all ranks
    /// ([`crate::Pitfall::LocalVerdict`]), except ranks without tokens. All ranks have the same bits afterwards. If
    /// ranks have gradients of different parameters, the run is refused on all of them
    /// ([`crate::Pitfall::MissingGradient`]).
    ///
    /// # Panics
    /// [`crate::Pitfall::ClipBeforeAllReduce`] if they have been clipped before, unless [`Grads::local_clip`] declares
    /// that this is meant.
    #[track_caller]
    pub fn all_reduce(mut self) -> Self {
        const NAME: &str = "all_reduce";
        self.apply(Action::AllReduce);
        let (tape, ranks) = (self.tape, self.tape.ranks());
        if ranks == 1 {
            return self;
        }
        let present: String = self.present.iter().map(|param| format!("{};", tape.layout.param(param).path)).collect();
        let tag = fnv1a(&present);
        let (verdict, weight) = (self.verdict, self.weight);
        let (flat, extra) = self.pass(PassKind::AllReduce, NAME, &[("ranks", ranks.to_string())], |flat| {
            // All values are prepared before the first exchange, so that one stop of the kernels serves all exchanges.
            let out = flat.map(|_, g| weight.map_or(g, |weight| weighted(g, weight)));
            let against = verdict.map(|verdict| !heard(verdict, weight));
            let sums = out.map(|_, g| g.over_ranks(Reduce::Sum, tag));
            let against = against.map(|against| against.over_ranks(Reduce::Max, tag));
            let total = weight.map(|weight| weight.over_ranks(Reduce::Sum, tag));
            let flat = sums.map(|_, sum| mean(sum, total, ranks));
            let verdict = against.map(|against| total.map_or(!against, |total| (!against).and(total.not_equals(0.0))));
            (flat, verdict.into_iter().chain(total).collect())
        });
        if verdict.is_some() {
            self.apply(Action::ReduceVerdict);
            self.verdict = Some(extra[0]);
        }
        self.weight = weight.and(extra.last().copied());
        self.with_flat(flat)
    }

    /// The mean over replicas whose gradients are all on this tape, in the order in which they are given, this one
    /// first, so that the order of addition does not depend on a device. Otherwise as [`Grads::all_reduce`].
    ///
    /// # Panics
    /// If the replicas have gradients of different parameters, or under different scales; or some are weighted, and
    /// others are not. As [`Grads::all_reduce`].
    #[track_caller]
    pub fn all_reduce_on_tape(mut self, others: &[Grads<'t, S>]) -> Self {
        const NAME: &str = "all_reduce";
        let ranks = others.len() + 1;
        self.judge_together(others);
        let own = |grads: &Self| grads.verdict.map(|verdict| heard(verdict, grads.weight));
        self.verdict = own(&self);
        for other in others {
            assert!(self.present == other.present, "{NAME}: the replicas have gradients of different parameters");
            let arenas = |grads: &Self| grads.flat.parts().iter().map(|(arena, _)| *arena).collect::<Vec<_>>();
            assert!(
                arenas(&self) == arenas(other),
                "{NAME}: the replicas were asked for gradients of different parameters"
            );
            assert!(self.scaler == other.scaler, "{NAME}: the replicas' losses have different scales");
            let weighted = (self.weight.is_some(), other.weight.is_some());
            assert!(weighted.0 == weighted.1, "{NAME}: some replicas are weighted by tokens, and others are not");
            if let Some(verdict) = own(other) {
                self.and_verdict(verdict);
            }
            for (generator, drawn) in &other.generators {
                self.moves(*generator, *drawn);
            }
            self.assigned.extend(&other.assigned);
        }
        let all = || std::iter::once(&self).chain(others);
        let (flat, extra) = self.pass(PassKind::AllReduce, NAME, &[("replicas", ranks.to_string())], |flat| {
            let weights: Option<Vec<Tensor<'t>>> = all().map(|rank| rank.weight).collect();
            let total = weights.as_ref().map(|weights| sum(weights.iter().copied()));
            let each = |(i, _): (usize, &_)| {
                let (arena, _) = flat.parts()[i];
                let of = |(r, rank): (usize, &Grads<'t, S>)| {
                    let g = rank.flat.get(arena).expect("replicas have the same arenas");
                    weights.as_ref().map_or(g, |weights| weighted(g, weights[r]))
                };
                (arena, mean(sum(all().enumerate().map(of)), total, ranks))
            };
            (Flat::new(flat.parts().iter().enumerate().map(each).collect()), total.into_iter().collect())
        });
        self.weight = extra.first().copied();
        if let (Some(verdict), Some(total)) = (self.verdict, self.weight) {
            self.verdict = Some(verdict.and(total.not_equals(0.0)));
        }
        self.with_flat(flat)
    }

    /// Checks the actions on each replica by the rules for several replicas, which hold from here on.
    #[track_caller]
    fn judge_together(&mut self, others: &[Grads<'t, S>]) {
        let ranks = others.len() + 1;
        let together = |grads: &Self| {
            let history = grads.history.borrow();
            let config = PassConfig { ranks, ..*history.state.config() };
            PassState::new(config).allowing(history.state.allowed()).after(&history.done)
        };
        // Not within a closure: the refusal names the caller's line.
        let refused = others.iter().find_map(|other| together(other).err());
        let state = match refused.map_or_else(|| together(self), Err) {
            Ok(state) => state,
            Err(pitfall) => self.tape.refuse(pitfall),
        };
        let (judged, half) = others.iter().fold((true, false), |(judged, half), other| {
            let other = other.history.borrow();
            (judged && other.judged, half || other.half)
        });
        let history = self.history.get_mut();
        history.state = state;
        history.judged &= judged;
        history.half |= half;
        self.apply(Action::ReduceVerdict);
        self.apply(Action::AllReduce);
    }
}

/// A gradient times its number of tokens; 0 if there are none, whatever the gradient.
#[track_caller]
fn weighted<'t>(g: Tensor<'t>, tokens: Tensor<'t>) -> Tensor<'t> {
    tokens.equals(0.0).select(g.zeros_like(), g * tokens.cast(g.dtype()))
}

/// The verdict of a replica, which is true if it has no tokens.
#[track_caller]
fn heard<'t>(verdict: Tensor<'t>, tokens: Option<Tensor<'t>>) -> Tensor<'t> {
    tokens.map_or(verdict, |tokens| verdict.or(tokens.equals(0.0)))
}

/// A sum over replicas divided by their number, or by the number of their tokens.
#[track_caller]
fn mean<'t>(sum: Tensor<'t>, total: Option<Tensor<'t>>, ranks: usize) -> Tensor<'t> {
    match total {
        Some(total) => sum / total.equals(0.0).select(total.ones_like(), total).cast(sum.dtype()),
        None => sum / ranks as f64,
    }
}

/// The sum of some tensors, in their order.
#[track_caller]
fn sum<'t>(tensors: impl Iterator<Item = Tensor<'t>>) -> Tensor<'t> {
    tensors.reduce(|a, b| a + b).expect("at least one")
}
