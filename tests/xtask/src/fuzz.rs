//! `cargo xtask fuzz`: random tapes without end; with `--bytes`, random bytes for everything that reads bytes.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{cargo, output, replace, run as run_command};
use crate::error::{Error, Result};

/// Where the targets are. They need a nightly compiler, so the workspace leaves them out.
const FOLDER: &str = "tests/fuzz";

/// How long each target runs unless told otherwise.
const MINUTES: u64 = 10;

/// What to fuzz.
#[derive(Debug, PartialEq, Eq)]
pub enum Fuzz {
    /// Random tapes; the program that tries them reads these arguments.
    Tapes(Vec<OsString>),
    /// Each reader of bytes, for so many minutes.
    Bytes(u64),
}

impl Fuzz {
    /// Reads what follows `fuzz` on the command line.
    pub fn parse(args: Vec<OsString>) -> Result<Self> {
        if args.first().is_none_or(|first| first != "--bytes") {
            return Ok(Self::Tapes(args));
        }
        let usage = || Error::Usage("expected `fuzz --bytes`, or `fuzz --bytes --minutes N` with N from 1 on".into());
        match &args[1..] {
            [] => Ok(Self::Bytes(MINUTES)),
            [name, number] if name == "--minutes" => {
                let number =
                    number.to_str().and_then(|number| number.parse().ok()).filter(|n| (1..=100_000).contains(n));
                number.map(Self::Bytes).ok_or_else(usage)
            }
            _ => Err(usage()),
        }
    }

    /// Fuzzes.
    pub fn run(self, root: &Path) -> Result<()> {
        match self {
            Self::Tapes(args) => {
                let program =
                    ["run", "--quiet", "--profile", "fuzz", "--package", "wgrad-tests", "--bin", "fuzz", "--"];
                replace(cargo(root, program).args(args))
            }
            Self::Bytes(minutes) => bytes(root, minutes),
        }
    }
}

/// Runs every target, one after another; ends with the first that fails.
fn bytes(root: &Path, minutes: u64) -> Result<()> {
    if !succeeds(&mut nightly(root, ["--version"])) {
        return Err(Error::Failed(
            "fuzzing bytes needs a nightly compiler: `rustup toolchain install nightly --profile minimal`".into(),
        ));
    }
    if !succeeds(&mut nightly(root, ["fuzz", "--version"])) {
        eprintln!("cargo-fuzz is missing: it is installed from the registry, beside the other commands of cargo");
        run_command(&mut cargo(root, ["install", "--locked", "cargo-fuzz"]))?;
    }
    let targets = output(&mut nightly(root, ["fuzz", "list", "--fuzz-dir", FOLDER]))?;
    for target in targets.split_whitespace() {
        // What is found on the way is kept there, and the next run goes on from it.
        let corpus = format!("{FOLDER}/corpus/{target}");
        fs::create_dir_all(root.join(&corpus))
            .map_err(|error| Error::Failed(format!("{corpus} cannot be made: {error}")))?;
        let mut command = nightly(root, ["fuzz", "run", "--fuzz-dir", FOLDER, target, &corpus]);
        command.arg(format!("{FOLDER}/seeds/{target}"));
        command.args(["--", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"]);
        run_command(command.arg(format!("-max_total_time={}", 60 * minutes)))?;
    }
    Ok(())
}

/// The nightly cargo. That which started this program is another, and no proxy that would take `+nightly`.
fn nightly<'a>(root: &Path, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", "nightly", "cargo"]).args(args);
    command
}

/// Whether a command can be run, and succeeds. What it prints is dropped.
fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Fuzz> {
        Fuzz::parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn tapes_read_their_own_arguments() {
        assert_eq!(parse("").unwrap(), Fuzz::Tapes(vec![]));
        assert_eq!(
            parse("--minutes 3 --seed 7").unwrap(),
            Fuzz::Tapes(["--minutes", "3", "--seed", "7"].map(Into::into).into())
        );
    }

    #[test]
    fn bytes_take_minutes_alone() {
        assert_eq!(parse("--bytes").unwrap(), Fuzz::Bytes(MINUTES));
        assert_eq!(parse("--bytes --minutes 3").unwrap(), Fuzz::Bytes(3));
        for line in ["--bytes --minutes", "--bytes --minutes 0", "--bytes --minutes x", "--bytes --seed 1"] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }
}
