//! Matrix products: the kernel with its epilogue, products by `gemm`, and those of small matrices within other kernels.

pub(crate) mod gemm;
pub(crate) mod matrix;
pub(crate) mod product;
pub(crate) mod tiles;
pub(crate) mod transpose;

mod float;
mod grid;
mod half;
mod outer_products;
