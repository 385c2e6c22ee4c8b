//! Linux on 64-bit ARM, by QEMU: the tests of the core and of the CPU backend, the golden vectors, and a run with its cure.

use std::path::Path;
use std::process::Command;

use super::toolchain::{Toolchain, provide};
use crate::command::run as run_command;
use crate::error::Result;

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// The variables that have cargo link for the target, and run what it has linked.
const LINKER: (&str, &str) = ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
const RUNNER: (&str, &str) = ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64");
const LIBRARIES: (&str, &str) = ("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu");

/// The test of sequences on several threads takes QEMU longer than all others together, and no kernel is in it that the
/// others leave out.
const SLOW_TEST: &str = "sequence::tests::the_bits_do_not_depend_on_the_number_of_threads";

/// Runs what there is to run.
pub fn run(root: &Path) -> Result<()> {
    provide(RUNNER.1, "qemu-user")?;
    provide(LINKER.1, "gcc-aarch64-linux-gnu")?;
    let toolchain = Toolchain::new(TRIPLE, "std,panic_unwind,test")?;
    let cargo = |subcommand: &str| {
        let mut command = toolchain.cargo(root, subcommand);
        for (name, value) in [LINKER, RUNNER, LIBRARIES] {
            command.env(name, value);
        }
        if toolchain.is_bare() {
            // The program then takes over the dependencies that the tests have built.
            command.args(["-Zfeature-unification", "--config", "resolver.feature-unification=\"workspace\""]);
        }
        command.env("CARGO_PROFILE_DEV_DEBUG", "false");
        command
    };
    run_command(cargo("test").args([
        "--package",
        "wgrad",
        "--package",
        "wgrad-cpu",
        "--lib",
        "--",
        "--skip",
        SLOW_TEST,
    ]))?;
    run_command(cargo("build").args(["--package", "wgrad-examples", "--bin", "wgrad"]))?;
    let wgrad = |args: &[&str]| {
        let mut command = Command::new(RUNNER.1);
        command.current_dir(root).env(LIBRARIES.0, LIBRARIES.1).arg(toolchain.built(root, "debug").join("wgrad"));
        run_command(command.args(args).args(["--device", "cpu"]))
    };
    wgrad(&["verify", "tests/golden"])?;
    // Until the cure shows: to the end it takes QEMU minutes.
    wgrad(&["rnn", "--case", "exploding", "--fix", "clip-norm", "--steps", "100"])
}
