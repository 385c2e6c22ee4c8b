//! `cargo xtask test`: what the tests need from the machine, then all tests of the workspace.

use std::ffi::OsString;
use std::path::Path;

use crate::command::{cargo, run as run_command};
use crate::error::Result;

/// Runs all tests, doc tests too, in the dev profile; `args` go to `cargo test`.
///
/// The tests need nothing but a CPU and a C linker. A step that brings in more, such as a software adapter, belongs
/// here, before the one command, and must be safe to repeat.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    run_command(cargo(root, ["test", "--workspace", "--all-features"]).args(args))
}
