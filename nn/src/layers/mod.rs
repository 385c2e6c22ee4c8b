//! Layers, their parameters and initial values.

pub mod init;
pub mod paths;

mod activation;
mod attention;
mod batch_norm;
pub(crate) mod buffers;
mod builder;
mod conv;
mod dropout;
mod embedding;
mod linalg;
mod linear;
mod norm;
mod omega;
mod recurrent;
mod scale;
mod summary;
mod transformer;
mod upsample;

pub use activation::Activation;
pub use attention::{AttentionConfig, MultiHeadAttention};
pub use batch_norm::BatchNorm;
pub use buffers::{Buffers, Remembered};
pub use builder::Builder;
pub use conv::{Conv2d, ConvTranspose2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use init::{Fan, Init};
pub use linear::Linear;
pub use norm::{GroupNorm, LayerNorm, Norm, NormKind, RmsNorm};
pub use omega::omega;
pub(crate) use omega::{of_steps, unrolled};
pub use recurrent::{Outputs, Recurrent, RecurrentInit};
pub use scale::Scale;
pub use summary::{Row, Summary};
pub use transformer::{BlockConfig, FeedForward, NormPlace, TransformerBlock};
pub use upsample::{Interpolation, Upsample};
