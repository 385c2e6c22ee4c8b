//! Memory: element types and operands, strided walks, scratch, and the sizes that suit caches.

pub(crate) mod elements;
pub(crate) mod half;
pub(crate) mod scratch;
pub(crate) mod sizes;
pub(crate) mod strides;
