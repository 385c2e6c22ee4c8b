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

/// Tests that sweep so many numbers that each takes QEMU half a minute or more. The golden vectors and the tests beside
/// them run the same kernels here.
const SLOW_TESTS: [&str; 3] = [
    "sequence::tests::the_bits_do_not_depend_on_the_number_of_threads",
    "simd::math::tests::gates_are_within_one_unit_in_the_last_place",
    "simd::math::tests::sin_and_cos_are_within_one_unit_in_the_last_place",
];

/// Runs what there is to run.
pub fn run(root: &Path) -> Result<()> {
    provide(RUNNER.1, "qemu-user")?;
    provide(LINKER.1, "gcc-aarch64-linux-gnu")?;
    // The compiler only recommends the package.
    provide("/usr/aarch64-linux-gnu/lib/crti.o", "libc6-dev-arm64-cross")?;
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
    let mut tests = cargo("test");
    tests.args(["--package", "wgrad", "--package", "wgrad-cpu", "--lib", "--"]);
    run_command(SLOW_TESTS.iter().fold(&mut tests, |tests, test| tests.args(["--skip", test])))?;
    run_command(cargo("build").args(["--package", "wgrad-examples", "--bin", "wgrad"]))?;
    let wgrad = |args: &[&str]| {
        let mut command = Command::new(RUNNER.1);
        command.current_dir(root).env(LIBRARIES.0, LIBRARIES.1).arg(toolchain.built(root, "debug").join("wgrad"));
        run_command(command.args(args).args(["--device", "cpu"]))
    };
    wgrad(&["verify", "tests/golden"])?;
    // The whole run takes QEMU minutes.
    wgrad(&["rnn", "--case", "exploding", "--fix", "clip-norm", "--steps", "50"])
}
