//! Running cargo, or rustup: every command is printed before it starts, and its failure ends the subcommand.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// The root of the workspace, two folders above this package.
pub fn workspace_root() -> Result<PathBuf> {
    // Asked at run time, not compiled in: the binary stays right when the checkout moves or a target folder is shared.
    std::env::var_os("CARGO_MANIFEST_DIR")
        .and_then(|package| Path::new(&package).ancestors().nth(2).map(Path::to_owned))
        .ok_or_else(|| Error::Failed("the workspace is unknown: start this as `cargo xtask`".into()))
}

/// Where cargo puts what it builds, and checks what they need and leave behind.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}

/// The cargo that started this program, in the root of the workspace.
pub fn cargo<S: AsRef<OsStr>>(root: &Path, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(args);
    command
}

/// Prints a command, runs it and waits for it.
///
/// Ctrl-C needs no handler: the terminal sends it to the child as well as to this program.
pub fn run(command: &mut Command) -> Result<()> {
    let line = print(command);
    let status = command.status().map_err(|error| not_started(&line, &error))?;
    if status.success() { Ok(()) } else { Err(Error::Command { line, status }) }
}

/// Prints a command and becomes it, so that what it says on Ctrl-C comes before the next prompt. Elsewhere than on Unix
/// it is run as any other.
pub fn replace(command: &mut Command) -> Result<()> {
    #[cfg(unix)]
    {
        let line = print(command);
        Err(not_started(&line, &std::os::unix::process::CommandExt::exec(command)))
    }
    #[cfg(not(unix))]
    run(command)
}

/// Prints a command, runs it and returns what it writes to stdout.
pub fn output(command: &mut Command) -> Result<String> {
    let line = print(command);
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|error| not_started(&line, &error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::Command { line, status: output.status })
    }
}

/// Prints a command as one would type it and returns that line.
fn print(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            line += &format!("{}=\"{}\" ", name.display(), value.display());
        }
    }
    let program = Path::new(command.get_program());
    line += &program.file_stem().unwrap_or(program.as_os_str()).display().to_string();
    for arg in command.get_args() {
        line += &format!(" {}", arg.display());
    }
    // To stderr, as cargo's own messages, so that the order is kept when the two streams are stored apart.
    eprintln!("$ {line}");
    line
}

/// The error for a command that could not be started at all.
fn not_started(line: &str, error: &std::io::Error) -> Error {
    Error::Failed(format!("`{line}` cannot be started: {error}"))
}
