//! Units of an arena, such as the rows of weights, which a pass treats one by one.

use crate::{
    op::Segments,
    store::{Layout, Param, StateId},
};
use std::sync::Arc;

/// Stretches of an arena, each within a parameter, none empty, in the order of the arena.
pub(super) struct Units {
    /// The segment of each unit.
    pub segments: Arc<Segments>,
    /// The parameter of each unit.
    pub params: Vec<Param>,
}

impl Units {
    /// The units of an arena's parameters: `dims` gives the number of leading dimensions that tell a parameter's units
    /// apart (0: the whole is one unit), or `None` if it has no units.
    pub fn of(layout: &Layout, arena: StateId, dims: impl Fn(Param) -> Option<usize>) -> Self {
        let (mut ranges, mut params) = (vec![], vec![]);
        for param in layout.members(arena) {
            let decl = layout.param(param);
            let Some(dims) = dims(param).filter(|_| decl.shape.numel() > 0) else { continue };
            let count: usize = decl.shape[..dims].iter().product();
            let len = decl.shape.numel() / count;
            ranges.extend((0..count).map(|i| (decl.offset + i * len, len)));
            params.extend(std::iter::repeat_n(param, count));
        }
        let total = layout.state(arena).shape.numel();
        Self { segments: Arc::new(Segments { total, ranges: ranges.into() }), params }
    }

    /// A value for each unit, for a [`crate::Tape::table`].
    pub fn table(&self, value: impl Fn(Param, usize) -> f64) -> Vec<f64> {
        self.params.iter().zip(&self.segments.ranges).map(|(param, (_, len))| value(*param, *len)).collect()
    }
}

/// The number of leading dimensions that tell the rows of a parameter apart: 1 for weights (rows of `[out, in]`,
/// filters of `[out, in, ..]`), 0 for vectors and scalars.
pub(super) fn row_dims(layout: &Layout, param: Param) -> usize {
    (layout.param(param).shape.rank() >= 2) as usize
}
