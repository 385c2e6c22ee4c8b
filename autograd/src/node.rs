//! A node of a recorded program, and the scope it was recorded in.

use crate::{DType, Shape, Site, op::Op};
use std::{fmt, ops::Range};

/// Names a node of a tape: its position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The node's position on its tape.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("%{}", self.0))
    }
}

/// Names a scope: its position in the list of scopes. The first is the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScopeId(pub(crate) u32);

/// A place in the tree of names that a program is written in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scope {
    /// The scope around it; the root is its own parent.
    pub parent: ScopeId,
    /// The name; empty for the root.
    pub name: String,
    /// The iteration, if the scope is one turn of a loop.
    pub turn: Option<usize>,
}

/// One operation of a program, with the shape and type of its result, and the place where it was recorded.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The nodes it reads.
    pub inputs: Box<[NodeId]>,
    /// The shape of its result.
    pub shape: Shape,
    /// The element type of its result.
    pub dtype: DType,
    /// The scope it was recorded in.
    pub scope: ScopeId,
    /// The caller's line that recorded it; for a gradient node, the line of the node it differentiates.
    pub site: Site,
}

impl Node {
    /// The inputs that gradients flow on to.
    pub(crate) fn differentiated(&self) -> &[NodeId] {
        &self.inputs[..self.op.differentiable_inputs(self.inputs.len())]
    }

    /// True if gradients flow through the node. A custom rule runs when the sweep reaches its first output, whatever
    /// the type of that output.
    pub(crate) fn carries(&self) -> bool {
        self.dtype.is_float() || matches!(self.op, Op::Custom { .. })
    }
}

/// A stretch of the tape that the reverse sweep recomputes instead of reading.
pub(crate) type Checkpoint = Range<u32>;
