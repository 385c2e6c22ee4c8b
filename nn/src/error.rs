//! Errors of files and data. Misuse of shapes and hyper-parameters panics instead.

use std::{io, path::PathBuf};

/// The error of a data set: of any type.
pub type DataError = Box<dyn std::error::Error + Send + Sync>;

/// An error of a checkpoint, a data set, or a setting that a user gives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempt: `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A file that another run, in this process or another, still saves to.
    #[error("cannot write {}: another run that has not ended saves to it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Metadata that is too long for the header of a checkpoint.
    #[error("cannot write {}: its names and metadata take {bytes} bytes, and the header has room for {most}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The size of the names and metadata, in bytes.
        bytes: usize,
        /// The room in the header, in bytes.
        most: usize,
    },
    /// A file that is not in the safetensors format, or that is cut short.
    #[error("{} is not a safetensors file, or it was cut short ({why})", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        why: String,
    },
    /// A safetensors file that another program wrote.
    #[error("{} is a safetensors file, but not a checkpoint of wgrad: only its parameters can be loaded", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A checkpoint in a format that this version does not know.
    #[error("{} is a checkpoint of format {found:?}; this version reads format {known:?}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The format that is read.
        known: &'static str,
    },
    /// A line that is not a line of metrics, in a file of metrics.
    #[error("{}, line {line}: {why}", path.display())]
    Metrics {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The fault of the line.
        why: String,
    },
    /// A file that this version cannot read as a capsule.
    #[error("{} is no capsule that this version reads: {why}", path.display())]
    Capsule {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A tensor that the program declares and the file lacks.
    #[error("{} has no tensor {tensor:?}, which this program needs", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the program does not declare.
    #[error("{} has a tensor {tensor:?}, which this program does not know", path.display())]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A pattern that matches no tensor that both a checkpoint and the program have.
    #[error(
        "{}: nothing to load by the pattern {pattern:?}: it matches {in_file} of the file's tensors and {in_program} of this program's, and none that both have", path.display()
    )]
    NoMatch {
        /// The file.
        path: PathBuf,
        /// The pattern.
        pattern: String,
        /// The number of the file's tensors that it matches.
        in_file: usize,
        /// The number of the program's tensors that it matches.
        in_program: usize,
    },
    /// A state with elements for each parameter, in a checkpoint of other parameters, or of another order.
    #[error(
        "{}: the tensor {tensor:?} has elements for each parameter, and this program has other parameters, or the same in another order; load the parameters without it", path.display()
    )]
    OtherParams {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Two tensors of a file that stand for one parameter.
    #[error("{}: the tensors {first:?} and {second:?} are both mapped to the parameter {param:?}", path.display())]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// One tensor.
        first: String,
        /// The other.
        second: String,
        /// The parameter.
        param: String,
    },
    /// A tensor of another shape or type than declared.
    #[error("{}: the tensor {tensor:?} is {have}, and this program needs {want}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The declared type and shape, such as `f32[2, 3]`.
        want: String,
        /// The type and shape in the file.
        have: String,
    },
    /// A tensor of a type that cannot be loaded.
    #[error("{}: the tensor {tensor:?} is of type {dtype}, which cannot be loaded: f64, f32, f16, bf16, u32, i32 and bool can", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type, such as `i64`.
        dtype: String,
    },
    /// The same parameters in another order of declaration, which the flat optimizer states depend on.
    #[error("{}: its parameters were declared in another order: {have:?} stands where this program has {want:?}", path.display())]
    Order {
        /// The file.
        path: PathBuf,
        /// The first parameter that differs, in this program.
        want: String,
        /// The parameter in its place, in the file.
        have: String,
    },
    /// A line of a table that cannot be parsed.
    #[error("line {line} of the table: {why}")]
    Table {
        /// The line, from 1 on.
        line: usize,
        /// The fault.
        why: String,
    },
    /// A file or folder of data that is not in the expected format, or that is cut short.
    #[error("{} is not {format}: {why}", path.display())]
    Format {
        /// The file or folder.
        path: PathBuf,
        /// The expected format.
        format: &'static str,
        /// The fault.
        why: String,
    },
    /// A data set with too few samples for a batch.
    #[error("the data has {have} samples, and a batch takes at least {need}")]
    TooFew {
        /// The number of samples.
        have: usize,
        /// The fewest that make a batch.
        need: usize,
    },
    /// A text whose characters are all the same.
    #[error("every character of the text is {character:?}; training needs at least two different characters")]
    OneCharacter {
        /// The character.
        character: char,
    },
    /// A text with too few characters.
    #[error("the text has {have} characters, and training on windows of it takes at least {need}")]
    TooShort {
        /// The number of characters.
        have: usize,
        /// The fewest characters that are enough.
        need: usize,
    },
    /// A character that a vocabulary lacks.
    #[error("the character {character:?}, number {} of the text, is not in the vocabulary", at + 1)]
    Character {
        /// The character.
        character: char,
        /// The number of characters before it.
        at: usize,
    },
    /// A text whose characters differ from those that a saved model was trained on.
    #[error(
        "the text has another vocabulary ({text} characters) than the model was saved with ({saved}): {only_text:?} only in the text, {only_saved:?} only in the model; resume with the text that it was trained on"
    )]
    Vocabulary {
        /// The text's number of characters.
        text: usize,
        /// The model's number of characters.
        saved: usize,
        /// Some characters that only the text has.
        only_text: String,
        /// Some characters that only the model has.
        only_saved: String,
    },
    /// A text that is no position in a data set.
    #[error("{text:?} is no position in the data: {why}")]
    Position {
        /// The position as it was saved.
        text: String,
        /// The fault.
        why: String,
    },
    /// A batch that its data set cannot prepare.
    #[error("cannot prepare the batch at {epoch}:{sample} (epoch {epoch}, {}): {source}", few(samples))]
    Batch {
        /// The number of whole epochs before the batch.
        epoch: u64,
        /// The number of samples of this epoch before the batch.
        sample: u64,
        /// The samples of the batch.
        samples: Vec<usize>,
        /// The data set's error.
        source: DataError,
    },
    /// A thread that cannot be started.
    #[error("cannot start a thread to prepare data: {source}")]
    Thread {
        /// The system's message.
        source: io::Error,
    },
    /// A depth that no network of equal blocks has.
    #[error("there is no network of depth {depth}: depths are {per_block} n + 2, such as {} or {}", 3 * per_block + 2, 9 * per_block + 2)]
    Depth {
        /// The depth asked for.
        depth: usize,
        /// The number of layers that one more block in each stage adds.
        per_block: usize,
    },
    /// An error of a session.
    #[error(transparent)]
    Session(#[from] wgrad::Error),
}

/// The result of reading or writing data.
pub type Result<T> = std::result::Result<T, Error>;

/// Some samples, the first ones by their numbers.
fn few(samples: &[usize]) -> String {
    const FEW: usize = 8;
    let named: Vec<String> = samples.iter().take(FEW).map(usize::to_string).collect();
    let rest = samples.len() - named.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("samples {}{more}", named.join(", "))
}
