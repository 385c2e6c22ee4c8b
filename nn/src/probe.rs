//! What a look at an activation says: numbers to tap, of tensors that a model probes.
//!
//! ```
//! use wgrad::{DType, Store, Tape};
//! use wgrad_nn::{AttentionConfig, Builder, Init, MultiHeadAttention, probe};
//! let mut store = Store::new();
//! let config = AttentionConfig { width: 8, heads: 2, ..AttentionConfig::default() };
//! let init = Init::Normal(0.02);
//! let attention = MultiHeadAttention::new(Builder::new(&mut store, 0), &config, &init, &init);
//! let tape = Tape::new(store.into_parts().0);
//! let x = tape.input("x", [1, 4, 8], DType::F32);
//! tape.with_probe(
//!     |path, scores| {
//!         if path.ends_with("attention/scores") {
//!             let (low, high) = probe::range(scores);
//!             let of = [("low", low), ("high", high), ("entropy", probe::entropy(scores))];
//!             of.map(|(what, value)| scores.tape().tap(&format!("{path}/{what}"), value));
//!         }
//!         scores
//!     },
//!     || attention.forward(x, true),
//! );
//! let taps = tape.finish().taps().iter().map(|tap| tap.name.clone()).collect::<Vec<_>>();
//! assert_eq!(taps, ["attention/scores/low", "attention/scores/high", "attention/scores/entropy"]);
//! ```

use wgrad::Tensor;

/// The smallest and the largest finite element, scalars: of attention's scores, those that no mask has taken away. Within
/// 10 in magnitude they are sound, beyond 100 the soft-max is saturated. Infinities of the other sign if nothing is finite.
#[track_caller]
pub fn range(x: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let (x, finite) = (x.detach(), x.is_finite());
    let or = |value: f64| finite.select(x, x.tape().full(x.shape(), value, x.dtype()));
    (or(f64::INFINITY).min(), or(f64::NEG_INFINITY).max())
}

/// The mean entropy of the distributions that rows of scores stand for, in nats: see [`Tensor::softmax_entropy`], over the
/// last dimension. Near 0 each query attends to one key alone.
///
/// # Panics
/// If the scores are a scalar, or no floats.
#[track_caller]
pub fn entropy(scores: Tensor<'_>) -> Tensor<'_> {
    scores.detach().softmax_entropy(scores.rank().saturating_sub(1)).mean()
}

/// The share of elements that are exactly 0, such as outputs of dead rectifiers.
#[track_caller]
pub fn zero_fraction(x: Tensor<'_>) -> Tensor<'_> {
    x.detach().equals(0.0).cast(wgrad::DType::F32).mean()
}

/// The mean Euclidean norm of the rows `[.., width]`, such as those that enter a projection.
///
/// # Panics
/// If it is a scalar, or no floats.
#[track_caller]
pub fn row_norm(x: Tensor<'_>) -> Tensor<'_> {
    x.detach().norm_axes(&[x.rank().saturating_sub(1)]).mean()
}
