//! A stack of linear layers, for studies of first values and activations.

use crate::{Activation, Builder, Init, Linear};
use wgrad::Tensor;

/// Linear layers with an activation between each two.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The layers.
    pub layers: Vec<Linear>,
    /// What follows each but the last.
    pub activation: Activation,
}

impl Mlp {
    /// Declares the layers `0`, `1`, .. from each of the widths to the next, all with the same initializer.
    ///
    /// # Panics
    /// If there are fewer than two widths.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, widths: &[usize], activation: Activation, init: &Init) -> Self {
        assert!(widths.len() >= 2, "mlp of the widths {widths:?}: needs those of its inputs and of its outputs");
        let mut layers = Vec::with_capacity(widths.len() - 1);
        for (i, pair) in widths.windows(2).enumerate() {
            layers.push(Linear::new(b.at(&i.to_string()), pair[0], pair[1], init));
        }
        Self { layers, activation }
    }

    /// Maps `[.., inputs]` to `[.., outputs]`.
    ///
    /// The input of each activation is probed as `layer[i]/z`: see [`wgrad::Tape::with_probe`].
    ///
    /// # Panics
    /// As [`Linear::forward`].
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let (last, hidden) = self.layers.split_last().expect("at least one layer");
        let _call = x.tape().call("mlp", &[x]);
        let mut h = x;
        for (i, layer) in hidden.iter().enumerate() {
            let _scope = x.tape().enter_turn("layer", i);
            h = self.activation.probed(layer.forward(h));
        }
        last.forward(h)
    }
}
