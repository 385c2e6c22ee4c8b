//! The errors of gradient checks.

use crate::{DType, NodeId, Site};
use std::fmt;

/// The order of a derivative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Order {
    /// The gradient.
    First,
    /// The gradient of a slope: a product of the Hessian with a vector.
    Second,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Order::First { "first" } else { "second" })
    }
}

/// The variable of a derivative.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// An input, by its position among the arrays given.
    Input(usize),
    /// A parameter, by its path.
    Param(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Input(i) => write!(f, "input {i}"),
            Source::Param(path) => write!(f, "parameter {path:?}"),
        }
    }
}

/// The way a source was moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Along {
    /// One element, by its index in each dimension.
    Element(Vec<usize>),
    /// All elements at once, in the random direction of this number.
    Direction(usize),
}

impl fmt::Display for Along {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Along::Element(index) => write!(f, "at {index:?}"),
            Along::Direction(i) => write!(f, "along random direction {i}"),
        }
    }
}

/// An operation whose gradient rule differences contradict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The operation's name in printed tapes.
    pub op: &'static str,
    /// Its node, on a tape on which the function is recorded first.
    pub node: NodeId,
    /// The line that recorded it; for the node of a gradient, the line of the node that it differentiates.
    pub site: Site,
}

/// A recorded derivative that differences contradict.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    /// The order of the derivative.
    pub order: Order,
    /// The operation whose rule is wrong, if it was found. In the second order it may be part of the recorded gradient.
    pub suspect: Option<Suspect>,
    /// The variable of the derivative.
    pub input: Source,
    /// The element or direction of the movement.
    pub index: Along,
    /// The recorded derivative.
    pub analytic: f64,
    /// The derivative by differences.
    pub numeric: f64,
    /// The largest difference that is allowed.
    pub tolerance: f64,
}

impl Mismatch {
    /// The name of the operation whose rule is wrong, if it was found.
    pub fn op(&self) -> Option<&'static str> {
        self.suspect.as_ref().map(|suspect| suspect.op)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, input, index, analytic, numeric, tolerance, .. } = self;
        write!(f, "the {order} derivative by {input} {index} is {analytic}, by differences {numeric}")?;
        write!(f, " (tolerance {tolerance:.1e})")?;
        match &self.suspect {
            Some(Suspect { op, node, site }) => write!(f, ": the gradient rule of {op} ({node}, recorded at {site})"),
            None => Ok(()),
        }
    }
}

/// The reason why a gradient check did not pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradcheckError {
    /// A derivative is wrong.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// Differences of a narrower type are too coarse to check anything: use f64, and cast nothing to a narrower type.
    #[error("{what} is {dtype}: gradients are checked in f64")]
    NotF64 {
        /// The subject of the message.
        what: String,
        /// The type.
        dtype: DType,
    },
    /// A value or a derivative is NaN or infinite.
    #[error("{what} is {value}")]
    NonFinite {
        /// The subject of the message.
        what: String,
        /// Its value.
        value: f64,
    },
    /// The values are so large beside the slope that their rounding hides it: no derivative could be told from another.
    #[error(
        "{what} is lost in the rounding of the values, which alone makes {rounding:.1e} of it: give smaller numbers"
    )]
    TooCoarse {
        /// The subject of the message.
        what: String,
        /// The part of it that rounding may have made.
        rounding: f64,
    },
    /// Every element or direction meets a kink.
    #[error("nothing could be compared: kinks lie within reach of all {kinks} elements or directions")]
    NothingCompared {
        /// The number of elements or directions that were skipped.
        kinks: usize,
    },
    /// An error of the session.
    #[error(transparent)]
    Session(#[from] crate::Error),
}
