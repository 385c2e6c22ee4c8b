//! Dropout as a module.

use wgrad::{Rng, Tensor};

/// Zeroes elements at random in training (Srivastava et al. 2014), and does nothing in evaluation:
///
/// `y = x / (1 - p)` with probability `1 - p`, else 0
///
/// so that the mean stays the same. The numbers come from the generator, whose counter the training program advances
/// once per run: see [`Rng::advance`]. A checkpoint around a dropout recomputes the same mask.
///
/// ```
/// use wgrad::{DType, Rng, Store, Tape};
/// use wgrad_nn::Dropout;
/// let mut store = Store::new();
/// let dropout = Dropout::new(0.1, Rng::new(&mut store, "dropout", 7));
/// let t = Tape::new(store.into_parts().0);
/// let x = t.input("x", [2, 3], DType::F32);
/// let (trained, used) = (dropout.forward(x, true), dropout.forward(x, false));
/// assert!(trained.id() != x.id() && used.id() == x.id());
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dropout {
    p: f64,
    rng: Rng,
}

impl Dropout {
    /// A dropout with this probability of a zero, in `[0, 1)`, and this source of randomness.
    ///
    /// # Panics
    /// If the probability is outside its range.
    #[track_caller]
    pub fn new(p: f64, rng: Rng) -> Self {
        assert!((0.0..1.0).contains(&p), "dropout: {p} is not a probability below 1");
        Self { p, rng }
    }

    /// The probability of a zero.
    pub fn p(&self) -> f64 {
        self.p
    }

    /// The source of randomness.
    pub fn rng(&self) -> Rng {
        self.rng
    }

    /// A tensor of the same shape and type. Outside training, and with a probability of 0, it is the tensor itself.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        if training && self.p > 0.0 { x.dropout(self.p, self.rng) } else { x }
    }

    /// As [`Dropout::forward`] if there is a dropout; otherwise the tensor itself.
    #[track_caller]
    pub(crate) fn optional<'t>(dropout: Option<Self>, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        if let Some(dropout) = dropout { dropout.forward(x, training) } else { x }
    }

    /// The probability and the source, for an operation that drops values itself; `None` if this dropout does nothing.
    pub(crate) fn of_weights(self, training: bool) -> Option<(f64, Rng)> {
        (training && self.p > 0.0).then_some((self.p, self.rng))
    }
}
