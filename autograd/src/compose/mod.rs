//! Functions over primitives: the code of each is its definition, and its gradient follows from the rules of the ops
//! that it records.

mod attention;
mod einsum;
mod elementwise;
mod indexing;
mod loss;
mod movement;
mod norm;
mod pool;
mod reduce;
mod resize;
mod softmax;
mod sort;

pub use attention::Attention;
pub use loss::{CrossEntropy, Reduction};
pub use norm::BatchNormed;
pub use pool::Pool2d;
