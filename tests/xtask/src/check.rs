//! `cargo xtask check`: everything that can be said about the source without running it, the cheapest first.

use std::path::Path;

use crate::command::{cargo, run as run_command};
use crate::error::Result;
use crate::{mpi, size};

/// Runs rustfmt, the size check, clippy and rustdoc, and stops at the first that complains.
pub fn run(root: &Path) -> Result<()> {
    run_command(&mut cargo(root, ["fmt", "--all", "--check"]))?;
    size::run(root)?;
    let mpi = mpi::features()?;
    let clippy = ["clippy", "--workspace", "--all-targets"];
    run_command(cargo(root, clippy).args(&mpi).args(["--", "-D", "warnings"]))?;
    run_command(cargo(root, ["doc", "--workspace", "--no-deps"]).args(&mpi).env("RUSTDOCFLAGS", "-D warnings"))
}
