//! The `train` command: its options, and the run of a file.

use super::{
    config::RunFile,
    document::listed,
    read::{defaults, models},
};
use crate::{
    Error, Result,
    cli::{Common, RunOptions},
    run::{Asked, show},
    say,
};
use clap::Args;
use std::path::PathBuf;

/// Options of `wgrad train`.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// The run: model, data, loss, optimizer and passes on gradients
    #[arg(value_name = "FILE.toml", required_unless_present = "print_defaults", conflicts_with = "print_defaults")]
    pub file: Option<PathBuf>,
    /// Print a complete file with comments, and train nothing: mlp, rnn, transformer, resnet or two-tower
    #[arg(long, value_name = "MODEL", conflicts_with = "ranks")]
    pub print_defaults: Option<String>,
    /// The run's files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}

/// `wgrad train`.
///
/// # Errors
/// If the file cannot be read, a line of it is invalid, or the run fails.
pub fn train(args: &TrainArgs, common: &Common) -> Result<()> {
    if let Some(model) = &args.print_defaults {
        let unknown = || Error::Usage(format!("--print-defaults {model}: expected {}", listed(models())));
        say!("{}", defaults(model).ok_or_else(unknown)?.trim_end());
        return Ok(());
    }
    let path = args.file.as_ref().expect("clap requires one or the other");
    let run = open(path, common)?;
    let asked = Asked { run: &run, beside: None, title: "as asked", what: run.part(), cure: None };
    show(&asked, common, &args.run)
}

/// Reads a run file; the command line's seed and steps replace those of the file.
///
/// # Errors
/// As [`RunFile::read`]; [`Error::Usage`] if the command line asks for 0 steps.
pub(super) fn open(path: &std::path::Path, common: &Common) -> Result<RunFile> {
    let mut run = RunFile::read(path)?;
    run.seed = common.seed.unwrap_or(run.seed);
    match common.steps {
        Some(0) => return Err(Error::Usage("--steps 0: expected at least 1".into())),
        // The schedule of the file stays, so that a run that is stopped early and resumed equals an uninterrupted run.
        Some(steps) => run.steps = steps,
        None => {}
    }
    Ok(run)
}
