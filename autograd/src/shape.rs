//! Shapes: the extents of a tensor, row-major, with NumPy's broadcasting rule.

use serde::{Deserialize, Serialize};
use std::{fmt, ops::Deref, sync::Arc};

/// The extent of each dimension, outermost first. A scalar has no dimensions.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape(Arc<[usize]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// The number of elements: the product of all extents, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.len()
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> Vec<isize> {
        let mut strides = vec![1; self.len()];
        for d in (1..self.len()).rev() {
            strides[d - 1] = strides[d] * self[d] as isize;
        }
        strides
    }

    /// The shape that `self` and `other` broadcast to, aligned at the last dimension: extents must be equal or 1.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.len().max(other.len());
        let extent = |s: &Shape, d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
        (0..rank)
            .map(|d| match (extent(self, d), extent(other, d)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape::from)
    }

    /// This shape with dimension `axis` set to `extent`.
    pub fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut dims = self.to_vec();
        dims[axis] = extent;
        dims.into()
    }

    /// This shape without the dimensions in `axes` (sorted).
    pub fn without(&self, axes: &[usize]) -> Shape {
        (0..self.len()).filter(|d| !axes.contains(d)).map(|d| self[d]).collect::<Vec<_>>().into()
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(Arc::new(dims))
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(dims.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims.into())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.iter().map(usize::to_string).collect();
        f.pad(&format!("[{}]", dims.join(", ")))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
