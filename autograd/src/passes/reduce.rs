//! The mean over replicas.

use crate::{Tensor, grads::Grads, store::Flat};

impl<'t, S> Grads<'t, S> {
    /// The mean over replicas whose gradients are all on this tape, in the order in which they are given, this one
    /// first: what is added up in which order does not depend on a device.
    ///
    /// `(1/R) sum_r g_r`; of gradients weighted by tokens `sum_r n_r g_r / sum_r n_r`, which a mean of the replicas' means
    /// is not.
    ///
    /// A NaN or infinity of one replica reaches all; what verdicts there are are joined.
    ///
    /// # Panics
    /// If the replicas have gradients of different parameters, or under different scales; or some are weighted, and
    /// others are not.
    #[track_caller]
    pub fn all_reduce(mut self, others: &[Grads<'t, S>]) -> Self {
        const NAME: &str = "all_reduce";
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
            if let Some(verdict) = other.verdict {
                self.and_verdict(verdict);
            }
            for generator in &other.generators {
                self.moves(*generator);
            }
        }
        let ranks = others.len() + 1;
        let all = || std::iter::once(&self).chain(others);
        let (flat, extra) = self.pass(NAME, &[("replicas", ranks.to_string())], |flat| {
            let weights: Option<Vec<Tensor<'t>>> = all().map(|rank| rank.weight).collect();
            let total = weights.as_ref().map(|weights| sum(weights.iter().copied()));
            let each = |(i, _): (usize, &_)| {
                let (arena, first) = flat.parts()[i];
                let dtype = first.dtype();
                let of = |(r, rank): (usize, &Grads<'t, S>)| {
                    let g = rank.flat.get(arena).expect("replicas have the same arenas");
                    match &weights {
                        // Tokens first: a replica without any has no gradient to speak of.
                        Some(weights) => weights[r].equals(0.0).select(g.zeros_like(), g * weights[r].cast(dtype)),
                        None => g,
                    }
                };
                let added = sum(all().enumerate().map(of));
                let mean = match total {
                    Some(total) => added / total.equals(0.0).select(total.ones_like(), total).cast(dtype),
                    None => added / ranks as f64,
                };
                (arena, mean)
            };
            (Flat::new(flat.parts().iter().enumerate().map(each).collect()), total.into_iter().collect())
        });
        self.weight = extra.first().copied();
        self.with_flat(flat)
    }
}

/// The sum of some tensors, from the first on.
#[track_caller]
fn sum<'t>(tensors: impl Iterator<Item = Tensor<'t>>) -> Tensor<'t> {
    tensors.reduce(|a, b| a + b).expect("at least one")
}
