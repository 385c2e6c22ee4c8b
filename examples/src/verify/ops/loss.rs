//! Losses.

use super::{Form::One, Operation, op};

pub const OPERATIONS: &[Operation] = &[];
