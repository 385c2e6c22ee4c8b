//! Places along an axis: of the parts that an assembly puts together, and of the segments of a flat vector.

use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};

/// The place of one part of an [`crate::op::Op::Assemble`]: its element `i` along the axis lands at `start + i * step`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The position of the part's first element.
    pub start: usize,
    /// The distance between neighbours; negative for a reversed part.
    pub step: isize,
}

/// A partition of a flat vector into segments, with gaps allowed: `(start, len)` in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segments {
    /// The length of the flat vector.
    pub total: usize,
    /// Start and length of each segment.
    pub ranges: Box<[(usize, usize)]>,
}

/// Hashes the sizes alone: a program has few of these, and each may have many ranges.
impl Hash for Segments {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.total, self.ranges.len()).hash(state);
    }
}

impl Place {
    /// True if `len` elements placed here stay within `extent`.
    pub(crate) fn fits(self, len: usize, extent: usize) -> bool {
        if len <= 1 {
            return len == 0 || self.start < extent;
        }
        let reach = isize::try_from(len - 1).ok().and_then(|steps| steps.checked_mul(self.step));
        let last = reach.and_then(|reach| self.start.checked_add_signed(reach));
        self.step != 0 && self.start < extent && last.is_some_and(|last| last < extent)
    }

    /// The half-open range of positions that `len` elements placed here span.
    pub(crate) fn span(self, len: usize) -> (usize, usize) {
        if len == 0 {
            return (self.start, self.start);
        }
        let last = (self.start as isize + (len as isize - 1) * self.step) as usize;
        (self.start.min(last), self.start.max(last) + 1)
    }
}
