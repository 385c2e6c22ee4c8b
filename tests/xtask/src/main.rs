//! The `cargo xtask` command: what the project runs on itself, with no dependency so that it works before all else.

mod apt;
mod browser;
mod cases;
mod check;
mod command;
mod core_crate;
mod error;
mod fuzz;
mod gpu;
mod hosts;
mod mpi;
mod peers;
mod shaders;
mod size;
mod tensorboard;
mod test;
mod vulkan;

use std::ffi::OsString;
use std::process::ExitCode;

use error::{Error, Result};
use fuzz::Fuzz;

/// What `cargo xtask --help` prints, and what follows the message on wrong usage.
const USAGE: &str = "\
Usage: cargo xtask <subcommand>

Subcommands:
  test [-- <args>]  run all tests of the workspace, doc tests too; <args> go to `cargo test`
  check             run rustfmt, `size`, clippy and rustdoc; any warning is an error
  fuzz [<args>]     try random tapes without end, with fresh seeds; `fuzz --help` lists the arguments
  fuzz --bytes [--minutes N]
                    fuzz everything that reads bytes, each reader for N minutes (10); needs a nightly compiler
  shaders [<files>] prove the kernels of the wgpu backend, or WGSL files, for Vulkan, DX12 and Metal: validate, translate,
                    and have spirv-val and DXC judge; `shaders --help` lists the arguments
  cases [--seeds N] [<examples>]
                    run every case of the examples without and with each of its cures; fail if a verdict is not as it
                    should be
  peers <results>   put the tables of wgrad beside its peers into BENCHMARKS.md and docs/measurements.md, from files of rows of `bench/peers/run_all`
  floor             run the tests of the wgpu backend on the least of what devices offer
  widths            run the tests of the wgpu backend with subgroups of 4, 8 and 16 invocations
  mpi               run the tests of ranks that are processes of MPI, under mpirun with 2, 3 and 4 ranks
  hosts [<names>]   try other hosts, or those named of macos, arm, wasm, browser and windows: checks for macOS, tests on ARM
                    by QEMU, the page in Chromium, and Windows by Wine, with Vulkan and DX12
  web               make the page that trains in a browser
  size              check how small and how self-contained automatic differentiation is; list long files
  help              print this text

Exit status: that of the command that failed, 1 for a failed check, 2 for wrong usage.
";

/// The subcommands, for whoever names another.
const SUBCOMMANDS: &str = "test, check, fuzz, shaders, cases, peers, floor, widths, mpi, hosts, web, size or help";

/// One subcommand with its arguments.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    /// Run all tests, handing these arguments to `cargo test`.
    Test(Vec<OsString>),
    /// Run every static check.
    Check,
    /// Fuzz tapes or bytes.
    Fuzz(Fuzz),
    /// Prove all kernels, or as these arguments say.
    Shaders(Vec<OsString>),
    /// Run every case and cure of the examples, or as these arguments say.
    Cases(Vec<OsString>),
    /// Make the tables of BENCHMARKS.md and docs/measurements.md from these files.
    Peers(Vec<OsString>),
    /// Run the tests of the wgpu backend on the least of what devices offer.
    Floor,
    /// Run them with subgroups of several widths.
    Widths,
    /// Run the tests of ranks of MPI.
    Mpi,
    /// Try other hosts, all or these.
    Hosts(Vec<OsString>),
    /// Make the page.
    Web,
    /// Check the size and the dependencies of the core.
    Size,
    /// Print the usage text.
    Help,
}

impl Task {
    /// Reads the command line, without the program's name.
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut args = args.into_iter();
        let Some(name) = args.next() else {
            return Err(Error::Usage(format!("a subcommand is missing: expected {SUBCOMMANDS}")));
        };
        let mut rest: Vec<OsString> = args.collect();
        let task = match name.to_str() {
            Some("test") => {
                if rest.first().is_some_and(|first| first != "--") {
                    return Err(Error::Usage("arguments of `test` go after `--`".into()));
                }
                return Ok(Task::Test(rest.split_off(rest.len().min(1))));
            }
            Some("fuzz") => return Fuzz::parse(rest).map(Task::Fuzz),
            Some("shaders") => return Ok(Task::Shaders(rest)),
            Some("cases") => return Ok(Task::Cases(rest)),
            Some("peers") => return Ok(Task::Peers(rest)),
            Some("hosts") => return Ok(Task::Hosts(rest)),
            Some("web") => Task::Web,
            Some("check") => Task::Check,
            Some("floor") => Task::Floor,
            Some("widths") => Task::Widths,
            Some("mpi") => Task::Mpi,
            Some("size") => Task::Size,
            Some("help" | "--help" | "-h") => Task::Help,
            _ => {
                let name = name.display();
                return Err(Error::Usage(format!("no subcommand `{name}`: expected {SUBCOMMANDS}")));
            }
        };
        match rest.first() {
            Some(extra) => {
                Err(Error::Usage(format!("`{}` takes no arguments, found `{}`", name.display(), extra.display())))
            }
            None => Ok(task),
        }
    }

    /// Does the work.
    fn run(self) -> Result<()> {
        match self {
            Task::Test(args) => test::run(&command::workspace_root()?, &args),
            Task::Check => check::run(&command::workspace_root()?),
            Task::Fuzz(fuzz) => fuzz.run(&command::workspace_root()?),
            Task::Shaders(args) => shaders::run(&command::workspace_root()?, &args),
            Task::Cases(args) => cases::run(&command::workspace_root()?, &args),
            Task::Peers(files) => peers::run(&command::workspace_root()?, &files),
            Task::Floor => gpu::floor(&command::workspace_root()?),
            Task::Widths => gpu::widths(&command::workspace_root()?),
            Task::Mpi => mpi::run(&command::workspace_root()?),
            Task::Hosts(names) => hosts::run(&command::workspace_root()?, &names),
            Task::Web => hosts::web(&command::workspace_root()?),
            Task::Size => size::run(&command::workspace_root()?),
            Task::Help => {
                print!("{USAGE}");
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    match Task::parse(std::env::args_os().skip(1)).and_then(Task::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            if matches!(error, Error::Usage(_)) {
                eprint!("\n{USAGE}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task> {
        Task::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn only_the_first_separator_is_dropped() {
        assert_eq!(parse("test").unwrap(), Task::Test(vec![]));
        assert_eq!(parse("test --").unwrap(), Task::Test(vec![]));
        assert_eq!(
            parse("test -- norm -- --exact").unwrap(),
            Task::Test(["norm", "--", "--exact"].map(Into::into).into())
        );
    }

    #[test]
    fn wrong_usage_exits_with_2_and_names_what_is_allowed() {
        for line in ["", "tests", "test norm", "check --fix", "size now", "floor 4", "widths 4", "mpi 4"] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
        assert_eq!(parse("shaders a.wgsl").unwrap(), Task::Shaders(vec!["a.wgsl".into()]));
        assert!(parse("tests").unwrap_err().to_string().contains(SUBCOMMANDS));
    }
}
