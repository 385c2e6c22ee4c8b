//! `cargo xtask check`: everything that can be said about the source without running it, the cheapest first.

use std::path::Path;

use crate::command::{cargo, run as run_command};
use crate::error::Result;
use crate::size;

/// Runs rustfmt, the size check, clippy and rustdoc, and stops at the first that complains.
pub fn run(root: &Path) -> Result<()> {
    run_command(&mut cargo(root, ["fmt", "--all", "--check"]))?;
    size::run(root)?;
    run_command(&mut cargo(
        root,
        ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
    ))?;
    run_command(cargo(root, ["doc", "--workspace", "--all-features", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}
