//! TensorBoard, whose own reader the tests read event files with: from PyPI, beside what cargo builds.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::apt;
use crate::command::{run, target};
use crate::error::{Error, Result};

/// The version whose reader judges.
const VERSION: &str = "tensorboard==2.21.0";
/// Debian's package of the interpreter and its environments.
const PACKAGE: &str = "python3-venv";

/// The interpreter that has TensorBoard.
fn interpreter(root: &Path) -> PathBuf {
    let own = target(root).join("tensorboard");
    if cfg!(windows) { own.join("Scripts").join("python.exe") } else { own.join("bin").join("python") }
}

/// Sees to it that the tests find TensorBoard, unless they are told to do without (`WGRAD_NO_TENSORBOARD=1`). Gives its
/// interpreter.
pub fn provide(root: &Path) -> Result<PathBuf> {
    let python = interpreter(root);
    let wanted = env::var_os("WGRAD_NO_TENSORBOARD").is_none_or(|value| value != "1");
    if !wanted || works(&python, &["-c", "import tensorboard"]) {
        return Ok(python);
    }
    let system = if cfg!(windows) { "python" } else { "python3" };
    if !works(Path::new(system), &["-c", "import venv, ensurepip"]) {
        if !apt::may_install() {
            return Err(Error::Failed(format!(
                "the tests of event files read them with TensorBoard, and need Python with its module venv, such as Debian's \
                 package {PACKAGE}; or leave these tests out with WGRAD_NO_TENSORBOARD=1"
            )));
        }
        apt::install(PACKAGE)?;
    }
    run(Command::new(system).args(["-m", "venv", "--clear"]).arg(target(root).join("tensorboard")))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", VERSION]))?;
    Ok(python)
}

/// True if a program does this without an error.
fn works(program: &Path, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
