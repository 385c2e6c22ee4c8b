//! `cargo xtask peers`: the tables of BENCHMARKS.md and docs/measurements.md.

use std::{ffi::OsString, path::Path};

use crate::command::{cargo, run as run_command};
use crate::error::{Error, Result};

/// Makes them from files of results.
pub fn run(root: &Path, results: &[OsString]) -> Result<()> {
    if results.is_empty() || results.iter().any(|file| file.to_str().is_some_and(|name| name.starts_with('-'))) {
        return Err(Error::Usage("peers: expected files of results".into()));
    }
    let program = ["--release", "--package", "wgrad-examples", "--example", "peers", "--"];
    // Cargo is started in the root of the workspace, and the files are named from here.
    let absolute = |file: &OsString| {
        std::path::absolute(file).map_err(|error| Error::Failed(format!("{}: {error}", file.display())))
    };
    let results = results.iter().map(absolute).collect::<Result<Vec<_>>>()?;
    run_command(
        cargo(root, ["run"])
            .args(program)
            .args([root.join("BENCHMARKS.md"), root.join("docs/measurements.md")])
            .args(results),
    )
}
