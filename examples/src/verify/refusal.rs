//! The reasons why a vector cannot be run. The vector then counts as failed, and the others still run.

/// A reason that a vector cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A kind of vectors that this version does not run.
    #[error("this version cannot run vectors of kind {0:?}")]
    Kind(String),
    /// An operation that this version does not have.
    #[error("this version has no operation {0:?}")]
    Operation(String),
    /// An option that an operation does not support.
    #[error("this version has no {0}")]
    Unsupported(String),
    /// An attribute that is missing, or has another form.
    #[error("its attribute {name:?} must be {want}, and is {have}")]
    Attribute {
        /// The attribute.
        name: String,
        /// The form that the operation needs.
        want: &'static str,
        /// The attribute in the index.
        have: String,
    },
    /// An input that the operation needs and the vector lacks.
    #[error("it has no input {0:?}")]
    Input(String),
    /// A tensor that the index names and the file lacks.
    #[error("{file} has no tensor {tensor:?}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor whose type cannot be an input or a result.
    #[error("{file}: the tensor {tensor:?} is of type {dtype}, and {want} is needed")]
    Type {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The tensor's type.
        dtype: String,
        /// The types that are allowed.
        want: &'static str,
    },
    /// A vector without expected results, which could not fail.
    #[error("it expects no result")]
    NothingExpected,
    /// An integer outside every integer type of this framework.
    #[error("the tensor {tensor:?} holds {value}, which fits into neither u32 nor, with the others, i32")]
    Integer {
        /// The tensor.
        tensor: String,
        /// The integer.
        value: i64,
    },
    /// Inputs or attributes that do not fit the operation; the text is the message of its panic.
    #[error("{0}")]
    Misfit(String),
    /// The session failed.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
}

/// The result of running a vector, or a part of it.
pub type Attempt<T> = Result<T, Refusal>;
