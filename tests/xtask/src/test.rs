//! `cargo xtask test`: what the tests need from the machine, then all tests of the workspace.

use std::ffi::OsString;
use std::path::Path;

use crate::command::{cargo, run as run_command};
use crate::error::Result;
use crate::{browser, mpi, tensorboard, vulkan};

/// Runs all tests, doc tests too, in the dev profile; `args` go to `cargo test`.
///
/// The tests need a C linker; and a Vulkan driver, a browser, TensorBoard and MPI, which are installed where they are missing
/// and that is allowed.
/// A target that fails does not keep the others from running, so that one run names everything that is wrong.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    vulkan::provide()?;
    browser::provide()?;
    let mpi = mpi::features()?;
    let cache = vulkan::cache(root);
    let python = tensorboard::provide(root)?;
    let mut tests = cargo(root, ["test", "--workspace", "--no-fail-fast"]);
    run_command(tests.env("MESA_SHADER_CACHE_DIR", cache).env("WGRAD_TENSORBOARD", python).args(mpi).args(args))
}
