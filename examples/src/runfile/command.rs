//! `wgrad train`: what it takes, and what it prints.

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
    /// The run: model, data, loss, optimizer and what is done to gradients
    #[arg(value_name = "FILE.toml", required_unless_present = "print_defaults", conflicts_with = "print_defaults")]
    pub file: Option<PathBuf>,
    /// Print a complete file with comments, and train nothing: mlp, rnn, transformer, resnet or two-tower
    #[arg(long, value_name = "MODEL")]
    pub print_defaults: Option<String>,
    /// Its files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}

/// `wgrad train`.
///
/// # Errors
/// If the file cannot be read or a line of it is not allowed, or the run fails.
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

/// Reads a file, with what the command line says instead.
///
/// # Errors
/// As [`RunFile::read`]; [`Error::Usage`] if no step is asked for.
pub(super) fn open(path: &std::path::Path, common: &Common) -> Result<RunFile> {
    let mut run = RunFile::read(path)?;
    run.seed = common.seed.unwrap_or(run.seed);
    match common.steps {
        Some(0) => return Err(Error::Usage("--steps 0: expected at least 1".into())),
        // The schedule stays that of the file, so that a run that is gone on with is the same as one that was not interrupted.
        Some(steps) => run.steps = steps,
        None => {}
    }
    Ok(run)
}
