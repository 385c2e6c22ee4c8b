//! `cargo xtask cases`: every case of the examples without and with its cures.

use std::{ffi::OsString, path::Path};

use crate::command::{cargo, run as run_command};
use crate::error::{Error, Result};

/// Runs them with one seed, or as many as `--seeds` says; of all examples, or those that are named.
pub fn run(root: &Path, args: &[OsString]) -> Result<()> {
    let args = parse(args)?;
    let package = ["--release", "--package", "wgrad-examples"];
    run_command(cargo(root, ["build"]).args(package).arg("--bins"))?;
    run_command(cargo(root, ["run"]).args(package).args(["--example", "cases", "--"]).args(args))
}

/// What the program that runs them takes: the number of seeds, then the examples.
fn parse(args: &[OsString]) -> Result<Vec<OsString>> {
    let wrong =
        |what: &OsString| Err(Error::Usage(format!("cases: `{}` is neither --seeds N nor an example", what.display())));
    let mut parsed = vec![OsString::from("1")];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--seeds") => {
                let count = args.next().filter(|n| n.to_str().is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)));
                let Some(count) = count else {
                    return Err(Error::Usage("cases: --seeds needs a number above 0".into()));
                };
                parsed[0] = count.clone();
            }
            Some(name) if !name.starts_with('-') => parsed.push(arg.clone()),
            _ => return wrong(arg),
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Vec<OsString>> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn seeds_and_examples_in_any_order() {
        assert_eq!(parsed("").unwrap(), ["1"]);
        assert_eq!(parsed("rnn --seeds 3 resnet").unwrap(), ["3", "rnn", "resnet"]);
        for line in ["--seeds", "--seeds 0", "--seeds x", "--all"] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
