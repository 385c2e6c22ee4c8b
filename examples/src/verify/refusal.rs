//! Why one vector cannot be run. It then counts as failed, and the others go on.

/// Why a vector cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A kind of vectors that is not run yet.
    #[error("this version cannot run vectors of kind {0:?}")]
    Kind(String),
    /// An operation that does not exist here.
    #[error("this version has no operation {0:?}")]
    Operation(String),
    /// What an operation is asked for and cannot do.
    #[error("this version has no {0}")]
    Unsupported(String),
    /// An attribute that is not there, or of another form.
    #[error("its attribute {name:?} must be {want}, and is {have}")]
    Attribute {
        /// The attribute.
        name: String,
        /// What the operation needs.
        want: &'static str,
        /// What the index says.
        have: String,
    },
    /// An input that the operation needs.
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
    /// A tensor of a type that is no input or result here.
    #[error("the tensor {tensor:?} is of type {dtype}, and {want} is needed")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
        /// What would do.
        want: &'static str,
    },
    /// A vector that cannot fail.
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
    /// Inputs or attributes that do not fit the operation, which its panic tells.
    #[error("{0}")]
    Misfit(String),
    /// A run failed.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
}

/// The result of running a vector, or of a part of that.
pub type Attempt<T> = Result<T, Refusal>;
