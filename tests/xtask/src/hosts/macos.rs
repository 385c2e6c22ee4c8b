//! macOS: all code is checked for both of its processors, that of tests too. Nothing runs: there is no linker for it here, and
//! no Metal. `cargo xtask shaders` proves what Metal's compiler is given.

use std::path::Path;

use super::toolchain::Toolchain;
use crate::command::run as run_command;
use crate::error::Result;

const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-apple-darwin"];

/// Checks all crates.
pub fn run(root: &Path) -> Result<()> {
    for triple in TARGETS {
        let toolchain = Toolchain::new(triple, "std,panic_unwind,test")?;
        let mut check = toolchain.cargo(root, "check");
        // A dependency of the benchmarks has a C file. It has nothing to be checked, and nothing is linked.
        for tool in ["CC", "AR"] {
            check.env(format!("{tool}_{}", triple.replace('-', "_")), "true");
        }
        run_command(check.args(["--workspace", "--all-targets"]))?;
    }
    Ok(())
}
