//! Activations by name, for modules that leave the choice to their configuration.

use std::fmt;
use wgrad::Tensor;

/// The function after a layer's affine map, element by element.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub enum Activation {
    /// [`Tensor::relu`].
    #[default]
    Relu,
    /// [`Tensor::leaky_relu`] with this slope; 0.01 is usual.
    LeakyRelu(f64),
    /// [`Tensor::sigmoid`].
    Sigmoid,
    /// [`Tensor::tanh`].
    Tanh,
    /// [`Tensor::gelu`].
    Gelu,
    /// [`Tensor::gelu_tanh`].
    GeluTanh,
    /// [`Tensor::silu`].
    Silu,
    /// The identity: the layers before and after it make one linear map.
    Identity,
}

impl Activation {
    /// A tensor of the same shape and type.
    #[track_caller]
    pub fn apply<'t>(self, x: Tensor<'t>) -> Tensor<'t> {
        match self {
            Activation::Relu => x.relu(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Identity => x,
        }
    }

    /// The activation of `z`, which a diagnosis may hook under the name `z` to see the gradient that reaches it.
    #[track_caller]
    pub(crate) fn probed<'t>(self, z: Tensor<'t>) -> Tensor<'t> {
        self.apply(z.probe("z"))
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activation::Relu => "relu",
            Activation::LeakyRelu(slope) => return write!(f, "leaky-relu({slope})"),
            Activation::Sigmoid => "sigmoid",
            Activation::Tanh => "tanh",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu-tanh",
            Activation::Silu => "silu",
            Activation::Identity => "identity",
        })
    }
}
