//! Statistics of activations: scalars to tap, computed from tensors that a model probes.
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

/// The smallest and the largest finite element, as scalars; masked attention scores are infinite, and do not count.
/// Scores within 10 in magnitude are sound; beyond 100 the soft-max is saturated. Without a finite element, the
/// smallest is infinity and the largest minus infinity.
#[track_caller]
pub fn range(x: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let (x, finite) = (x.detach(), x.is_finite());
    let or = |value: f64| finite.select(x, x.tape().full(x.shape(), value, x.dtype()));
    (or(f64::INFINITY).min(), or(f64::NEG_INFINITY).max())
}

/// The mean entropy of the soft-max over the last dimension of scores, in nats: near 0, each query attends to one key
/// alone. Its error is about 1e-6; [`Tensor::softmax_entropy`] is exact to its last digits, and takes three times as
/// long.
///
/// # Panics
/// If the scores are a scalar, or no floats.
#[track_caller]
pub fn entropy(scores: Tensor<'_>) -> Tensor<'_> {
    let x = scores.detach();
    let x = if x.dtype() == wgrad::DType::F16 { x.cast(wgrad::DType::F32) } else { x };
    let axis = x.rank().saturating_sub(1);
    let max = x.max_axes(&[axis]);
    let top = max.is_finite().select(max, max.zeros_like());
    // The exponential of -104 is 0 in f32, so scores further below and masked scores contribute nothing.
    let below = (x - top.unsqueeze(axis)).maximum(-104.0);
    let e = below.exp();
    let sum = e.sum_axes(&[axis]);
    (sum.log() - (e * below).sum_axes(&[axis]) / sum).mean().cast(scores.dtype())
}

/// The share of elements that are exactly 0, such as outputs of dead rectifiers.
#[track_caller]
pub fn zero_fraction(x: Tensor<'_>) -> Tensor<'_> {
    x.detach().equals(0.0).cast(wgrad::DType::F32).mean()
}

/// The mean Euclidean norm of the rows `[.., width]`, such as those that enter a projection.
///
/// # Panics
/// If `x` is a scalar, or has no floats.
#[track_caller]
pub fn row_norm(x: Tensor<'_>) -> Tensor<'_> {
    x.detach().norm_axes(&[x.rank().saturating_sub(1)]).mean()
}

#[cfg(test)]
mod tests {
    use super::entropy;
    use wgrad::{Array, DType, Session, Store};
    use wgrad_cpu::CpuBackend;

    fn scores(x: Vec<f32>) -> [f64; 2] {
        let mut session =
            Session::new(Box::new(CpuBackend::new(1).expect("threads")), Store::new()).expect("there is room");
        let rows = x.len() / 3;
        let step = session
            .record(|t| {
                let x = t.input("x", [rows, 3], DType::F32);
                t.tap("fast", entropy(x));
                t.tap("exact", x.softmax_entropy(1).mean());
            })
            .expect("it compiles");
        let taps = session.run_now(&step, &[("x", &Array::new([rows, 3], x))]).expect("it runs");
        ["fast", "exact"].map(|name| taps.scalar(name).expect("tapped"))
    }

    #[test]
    fn entropy_is_that_of_the_distribution() {
        let out = f32::NEG_INFINITY;
        for x in [
            vec![0.0, 0.0, 0.0],
            vec![1.0, -2.0, 0.3, 5.0, 5.0, 4.9],
            vec![2.0, out, out, 1.0, 0.5, out],
            vec![3e38, 1.0, -3e38],
            vec![1e4, 1e4 - 3.0, -1e9],
            vec![0.0, -100.0, -103.5],
        ] {
            let [fast, exact] = scores(x.clone());
            assert!((fast - exact).abs() < 1e-6, "{x:?}: {fast} and {exact}");
        }
        assert!((scores(vec![7.0; 6])[0] - 3f64.ln()).abs() < 1e-6);
        assert!(scores(vec![f32::NAN, 1.0, 2.0])[0].is_nan());
    }
}
