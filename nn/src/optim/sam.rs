//! Sharpness-aware minimisation: the gradient at the worst of the parameters nearby, for any optimizer.

use super::check_not_negative;
use crate::layers::buffers::Buffers;
use wgrad::{Flat, Grads, Tape};

/// Sharpness-aware minimisation (Foret, Kleiner, Mobahi & Neyshabur 2021):
///
/// ```text
/// g = dL/dp at p
/// g = dL/dp at p + rho * g / |g|          (|g| over all parameters; at g = 0 it stays at p)
/// ```
///
/// The second gradient goes through passes and optimizer as any other, and the step starts from `p`: a program has two
/// forward and two backward passes, and no state. So the base optimizer is whichever takes the gradient:
///
/// ```
/// use wgrad::{Array, DType, DynamicScale, LossScaler, Optimizer, Store, Tape};
/// use wgrad_nn::{Builder, Init, Linear, optim::{Sam, Sgd, SgdConfig}};
///
/// let mut store = Store::new();
/// let model = Linear::new(Builder::new(&mut store, 0), 3, 2, &Init::XavierUniform { gain: 1.0 });
/// let params = store.params();
/// let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), momentum: 0.9, ..Default::default() });
/// let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
/// let sam = Sam::new(0.05);
///
/// let t = &Tape::new(store.into_parts().0);
/// let (x, y) = (t.input("x", [4, 3], DType::F32), t.input("y", [4], DType::U32));
/// let grads = sam.grad(|| {
///     let loss = t.autocast(DType::F16, || model.forward(x).cross_entropy(y));
///     scaler.scale(loss).grad(&params)
/// });
/// sgd.step(grads.unscale(&scaler).clip_by_global_norm(1.0));
/// scaler.update(t);
/// ```
///
/// A loss scale leaves the direction as it is, to the last bit if it is a power of two. A non-finite first gradient
/// makes the parameters above NaN, and with them the second loss and its gradient: a check of those is one of both. Over
/// several ranks, and over micro-batches, each gradient climbs by its own batch (the paper's m-sharpness); `all_reduce`
/// within the closure makes it that of all ranks.
///
/// Buffers, such as the running statistics of a batch normalisation, keep what the first forward pass has made of them.
/// Dropout draws other numbers for the second. Inputs and taps belong outside the closure, which would declare them
/// twice. Gradients through the update go through the climb too, which the step itself, as in the paper, takes for a
/// constant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sam {
    rho: f64,
}

impl Default for Sam {
    /// The paper's radius of 0.05.
    fn default() -> Self {
        Self { rho: 0.05 }
    }
}

impl Sam {
    /// Climbs as far as `rho`, in the norm over all parameters.
    ///
    /// # Panics
    /// If the radius is negative or not finite.
    #[track_caller]
    pub fn new(rho: f64) -> Self {
        check_not_negative("sam", "rho", rho);
        Self { rho }
    }

    /// Calls `gradient` twice, which records a loss and its gradient: for the parameters as they are, and above them.
    /// The second gradient is returned.
    #[track_caller]
    pub fn grad<'t, S>(&self, mut gradient: impl FnMut() -> Grads<'t, S>) -> Grads<'t, S> {
        let first = gradient();
        let above = self.above(&first);
        at(first.tape(), &above, gradient)
    }

    /// The parameters at the end of the climb along a gradient.
    #[track_caller]
    pub(crate) fn above<'t, S>(&self, grads: &Grads<'t, S>) -> Flat<'t> {
        let tape = grads.tape();
        let mut above = vec![];
        tape.pass("sam", &[("rho", self.rho.to_string())], &grads.flat().tensors(), || {
            let norm = grads.norm();
            for &(arena, g) in grads.flat().parts() {
                let norm = norm.cast(g.dtype());
                // Divide each element rather than the radius, which a large norm would make 0.
                let unit = g / norm.equals(0.0).select(norm.ones_like(), norm);
                above.push((arena, tape.state(arena) + unit * self.rho));
            }
            above.iter().map(|(_, values)| *values).collect()
        });
        Flat::new(above)
    }
}

/// Records a gradient for other values of the parameters. Buffers keep their values.
#[track_caller]
pub(crate) fn at<'t, S>(tape: &'t Tape, values: &Flat<'t>, gradient: impl FnOnce() -> Grads<'t, S>) -> Grads<'t, S> {
    let kept = Buffers::of(tape.layout()).remember(tape);
    let grads = tape.with_params(values, || tape.scoped("above", gradient));
    for &(buffer, value) in kept.moved(tape).values() {
        tape.assign(buffer, value);
    }
    grads
}
