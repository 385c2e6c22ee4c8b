//! Source lines: where something was recorded.

use std::{fmt, panic::Location};

/// A line of source code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site {
    file: &'static str,
    line: u32,
    column: u32,
}

impl Site {
    /// The caller's line.
    #[track_caller]
    pub const fn caller() -> Self {
        let at = Location::caller();
        Self { file: at.file(), line: at.line(), column: at.column() }
    }

    /// A line that a stored program names.
    pub(crate) fn new(file: &'static str, line: u32, column: u32) -> Self {
        Self { file, line, column }
    }

    /// The file's path, as the compiler was given it.
    pub fn file(&self) -> &'static str {
        self.file
    }

    /// The line, from 1 on.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The column, from 1 on.
    pub fn column(&self) -> u32 {
        self.column
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
