//! A stack of linear layers, for studies of first values, activations, norms and shortcuts.

use crate::layers::{Activation, Builder, Dropout, Fan, Init, Linear, Norm, NormKind};
use wgrad::Tensor;

/// Settings of an [`Mlp`].
#[derive(Clone, PartialEq, Debug)]
pub struct MlpConfig {
    /// The width of the input.
    pub inputs: usize,
    /// The width of each hidden layer.
    pub width: usize,
    /// The number of hidden layers.
    pub depth: usize,
    /// The width of the output.
    pub outputs: usize,
    /// The activation after each hidden layer.
    pub activation: Activation,
    /// The normalisation of each activation's input.
    pub norm: NormKind,
    /// True if the input of a hidden layer is added to its output, if both have the same width.
    pub residual: bool,
    /// The dropout of each hidden layer's output.
    pub dropout: Option<Dropout>,
    /// First values of the weights, including those of the head.
    pub init: Init,
    /// First value of the hidden layers' biases.
    pub bias: f64,
    /// The hidden layer behind which the gradient is cut: it and the layers before it do not learn.
    pub detach_after: Option<usize>,
}

impl Default for MlpConfig {
    /// One hidden layer of 8 rectified units with He's first values, from one input to one output.
    fn default() -> Self {
        Self {
            inputs: 1,
            width: 8,
            depth: 1,
            outputs: 1,
            activation: Activation::Relu,
            norm: NormKind::None,
            residual: false,
            dropout: None,
            init: Init::He { fan: Fan::In },
            bias: 0.0,
            detach_after: None,
        }
    }
}

/// A hidden layer.
#[derive(Clone, Debug)]
pub struct MlpLayer {
    /// The affine map.
    pub linear: Linear,
    /// The norm that follows it.
    pub norm: Norm,
}

/// Hidden layers, each an affine map, a norm and an activation; and a linear head.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The hidden layers.
    pub layers: Vec<MlpLayer>,
    /// The linear map from the last hidden layer to the outputs.
    pub head: Linear,
    /// The settings.
    pub config: MlpConfig,
}

impl Mlp {
    /// Declares the hidden layers `layer/0`, `layer/1`, .., each with `weight`, `bias`, and `norm` if there is one; and
    /// `head`.
    ///
    /// # Panics
    /// If `detach_after` is not below `depth`.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, config: &MlpConfig) -> Self {
        let MlpConfig { inputs, width, depth, outputs, norm, init, .. } = config;
        if let Some(layer) = config.detach_after {
            assert!(layer < *depth, "mlp: detach_after is {layer}, and there are only {depth} hidden layers");
        }
        let (mut hidden, mut layers, mut from) = (b.at("layer"), Vec::with_capacity(*depth), *inputs);
        for i in 0..*depth {
            let mut b = hidden.at(&i.to_string());
            let bias = Some(b.param("bias", [*width], &Init::Constant(config.bias)));
            let norm = Norm::new(b.at("norm"), *norm, *width);
            let linear = Linear { bias, ..Linear::without_bias(b, from, *width, init) };
            layers.push(MlpLayer { linear, norm });
            from = *width;
        }
        let head = Linear::new(b.at("head"), from, *outputs, init);
        Self { layers, head, config: config.clone() }
    }

    /// Maps `[batch, inputs]` to `[batch, outputs]`.
    ///
    /// The input of each activation is probed as `layer[i]/z`: see [`wgrad::Tape::with_probe`].
    ///
    /// # Panics
    /// As [`Linear::forward`]; in training, if batch normalisation is left with one row.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = x.tape().call("mlp", &[x]);
        let features = self.features(x, training);
        let _scope = x.tape().enter("head");
        self.head.forward(features)
    }

    /// The input of the head: `[batch, width]`.
    ///
    /// # Panics
    /// As [`Mlp::forward`].
    #[track_caller]
    pub fn features<'t>(&self, x: Tensor<'t>, training: bool) -> Tensor<'t> {
        let _call = x.tape().call("mlp", &[x]);
        let mut h = x;
        for (i, layer) in self.layers.iter().enumerate() {
            let _scope = x.tape().enter_turn("layer", i);
            let z = layer.norm.forward(layer.linear.forward(h), training);
            let y = Dropout::optional(self.config.dropout, self.config.activation.probed(z), training);
            h = if self.config.residual && h.shape() == y.shape() { h + y } else { y };
            if self.config.detach_after == Some(i) {
                h = h.detach();
            }
        }
        h
    }
}
