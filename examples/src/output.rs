//! Standard output, whose reader may leave before the end, as `head` does.

use crate::interrupt;
use serde::Serialize;
use std::{
    fmt,
    io::{self, Write},
};

/// Prints a line. If the reader has closed the pipe, the run is asked to stop as by Ctrl-C, and still saves. After any
/// other failure to write, the process ends with status 1. No step is lost then: a run prints nothing between its first
/// step and its save.
pub fn line(text: fmt::Arguments<'_>) {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => interrupt::request(),
        Err(error) => {
            eprintln!("wgrad: cannot write to standard output: {error}");
            std::process::exit(1);
        }
    }
}

/// Prints one JSON object.
pub fn json(value: &impl Serialize) {
    line(format_args!("{}", serde_json::to_string(value).expect("a report serializes")));
}

/// Prints a line as `println!` does, but through [`line`](crate::output::line), which does not panic if the write
/// fails.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
