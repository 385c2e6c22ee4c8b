//! Errors of running programs: everything that depends on data or devices. Misuse of shapes panics instead,
//! when it is recorded.

use crate::{DType, Pitfall, Shape, Site, collective::Difference};

/// An error of a session or a backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A run was started without one of the program's inputs.
    #[error("input {name:?} is missing: the program wants {dtype}{shape} (recorded at {site})")]
    MissingInput {
        /// The input.
        name: String,
        /// Its type.
        dtype: DType,
        /// Its shape.
        shape: Shape,
        /// The line that recorded the input.
        site: Site,
    },
    /// A run was given two values for one input.
    #[error("input {name:?} is given twice")]
    InputTwice {
        /// The name.
        name: String,
    },
    /// A run was given an input that the program does not have.
    #[error("the program has no input {name:?}: it has {known}")]
    UnknownInput {
        /// The name given.
        name: String,
        /// The names that the program knows.
        known: String,
    },
    /// Data of another shape or type than declared.
    #[error("{what} wants {want_dtype}{want}, but was given {have_dtype}{have}{}", site.map_or(String::new(), recorded_for_one_size))]
    Mismatch {
        /// The input or state.
        what: String,
        /// The declared type.
        want_dtype: DType,
        /// The declared shape.
        want: Shape,
        /// The type given.
        have_dtype: DType,
        /// The shape given.
        have: Shape,
        /// The line that recorded it, if it is an input.
        site: Option<Site>,
    },
    /// An i64 that does not fit into u32.
    #[error("the integer {value} does not fit into u32")]
    IntegerRange {
        /// The value.
        value: i64,
    },
    /// An index outside the axis that it points into.
    #[error("{op}: index {index} is out of range for an axis of {extent} (recorded at {site})")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index.
        index: u32,
        /// The axis's extent.
        extent: usize,
        /// The line that recorded the operation.
        site: Site,
    },
    /// One name used for two recording functions.
    #[error("{name:?} names the program recorded at {first}; the one at {second} needs a name of its own")]
    NameTaken {
        /// The name.
        name: String,
        /// The place where it was first used.
        first: Site,
        /// The place where it was used again.
        second: Site,
    },
    /// A program of another session, or over a store that declares something else.
    #[error("this program cannot run here: it was recorded over {recorded}, and this session has {session}")]
    ForeignProgram {
        /// The store that the program was recorded over.
        recorded: String,
        /// The store of the session.
        session: String,
    },
    /// A known mistake that only a run can show. Nothing was run, and no state has changed.
    #[error("{pitfall} ({subject}{})", site.map_or(String::new(), |site| format!(", recorded at {site}")))]
    Pitfall {
        /// The mistake.
        pitfall: Pitfall,
        /// The place where it was found.
        subject: String,
        /// The line that recorded it.
        site: Option<Site>,
    },
    /// A fault of a run that is over. Its step was skipped: parameters, optimizer states and counters are as they were.
    /// The error comes once; after that the session goes on.
    #[error("run {run}: {what} (recorded at {site})")]
    Late {
        /// The run's number.
        run: u64,
        /// The mistake.
        what: String,
        /// Its number, if it is a known mistake.
        pitfall: Option<Pitfall>,
        /// The line to blame.
        site: Site,
    },
    /// A file whose content is not a program.
    #[error("this file is not a valid program: {why}")]
    NoProgram {
        /// The reason.
        why: String,
    },
    /// Another rank has left.
    #[error("rank {rank} has left: the others cannot go on without it")]
    RankLost {
        /// The rank.
        rank: usize,
    },
    /// Another rank took no part in an exchange. Nothing has changed on this one.
    #[error("the run failed on rank {rank}")]
    RankFailed {
        /// The rank.
        rank: usize,
    },
    /// Two ranks are not at the same place of the same program. No state has changed on any rank.
    #[error("rank {rank} {difference} rank 0")]
    RanksDiffer {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The thing in which it differs.
        difference: Difference,
    },
    /// A program recorded for another number of ranks.
    #[error("this program was recorded for {recorded} ranks, and there are {ranks}")]
    OtherRanks {
        /// The number of ranks that it was recorded for.
        recorded: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A state that another number of ranks share out: see [`crate::Store::shard`].
    #[error("{state:?} is shared out among {shared} ranks, and there are {ranks}")]
    OtherShares {
        /// The state.
        state: String,
        /// The number of ranks that it is shared out among.
        shared: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A backend's report.
    #[error("{0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The end of a message about an input.
fn recorded_for_one_size(site: Site) -> String {
    format!(
        ": a program accepts only the shapes and types that it was recorded with; `Session::run_cached` records one \
         program per shape (recorded at {site})"
    )
}

/// The result of a session's calls.
pub type Result<T> = std::result::Result<T, Error>;
