//! Standard output, whose reader may leave before the end, as `head` does.

use crate::interrupt;
use serde::Serialize;
use std::{
    fmt,
    io::{self, Write},
};

/// Prints a line. Where nobody reads any more, a run is asked to stop, as by Ctrl-C: it still saves. Where it cannot be
/// written for another reason, the process ends with status 1; a run prints nothing between its first step and its save.
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

/// As `println!`, which would panic where [`line`](crate::output::line) does not.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
