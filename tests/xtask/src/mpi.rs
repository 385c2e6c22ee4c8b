//! MPI, for ranks that are processes: installed where it is missing and that is allowed, and its tests.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use crate::apt;
use crate::command::{cargo, run as run_command};
use crate::error::{Error, Result};

/// Debian's packages: the library, `mpirun` and what it starts ranks on other machines with, and the reader of C headers.
const PACKAGES: [&str; 4] = ["libopenmpi-dev", "openmpi-bin", "openssh-client", "libclang-dev"];

/// Programs that are there with them.
const PROGRAMS: [&str; 2] = ["mpicc", "mpirun"];

/// The variable that leaves MPI out.
const LEFT_OUT: &str = "WGRAD_NO_MPI";

/// The features of cargo that build and test with MPI, or nothing if `WGRAD_NO_MPI=1` leaves it out, which is printed.
/// The packages of MPI are installed before. Elsewhere than on Linux, a machine without it does without.
pub fn features() -> Result<Vec<&'static str>> {
    let left_out = env::var_os(LEFT_OUT).is_some_and(|value| value == "1");
    let is_there = PROGRAMS.into_iter().all(starts);
    if left_out || (!is_there && !cfg!(target_os = "linux")) {
        let why = if left_out { format!("{LEFT_OUT}=1") } else { format!("no {}", PROGRAMS.join(" or ")) };
        eprintln!("xtask: {why}: ranks of MPI are neither checked nor tested");
        return Ok(vec![]);
    }
    if !is_there {
        provide()?;
    }
    Ok(vec!["--features", "wgrad-mpi/mpi,wgrad-tests/mpi,wgrad-examples/mpi"])
}

fn provide() -> Result<()> {
    if apt::may_install() {
        return apt::install_all(&PACKAGES);
    }
    let [first @ .., last] = PACKAGES;
    Err(Error::Failed(format!(
        "the tests of ranks need MPI: install it, such as Debian's packages {} and {last}, or leave these tests out with \
         {LEFT_OUT}=1",
        first.join(", ")
    )))
}

/// Runs the tests of ranks under `mpirun`, with 2, 3 and 4 of them, and those of the command on them.
pub fn run(root: &Path) -> Result<()> {
    let features = features()?;
    if features.is_empty() {
        return Err(Error::Failed("MPI is left out, so there is nothing to test".into()));
    }
    run_command(cargo(root, ["test", "--workspace", "--test", "mpi"]).args(&features))?;
    run_command(cargo(root, ["test", "--workspace", "--test", "command"]).args(&features).args(["--", "mpi::"]))
}

fn starts(name: &str) -> bool {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
