//! The `diagnose` command and its options.

use super::command::open;
use crate::{Result, cli::Common, run};
use clap::Args;
use std::path::PathBuf;

/// Options of `wgrad diagnose`.
#[derive(Args, Clone, Debug)]
pub struct DiagnoseArgs {
    /// The run: model, data, loss, optimizer and passes on gradients
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Run the same steps again with each remedy of the findings, until one cures, beside two controls
    #[arg(long)]
    pub prove: bool,
    /// The steps of each of these runs; default: all steps, or 40 % of them if the run takes 15 seconds or more
    #[arg(long, value_name = "N", requires = "prove", value_parser = clap::value_parser!(u32).range(1..))]
    pub horizon: Option<u32>,
    /// Write the updates, measurements and findings of the run to a new file, as lines of JSON
    #[arg(long, value_name = "FILE.jsonl")]
    pub metrics: Option<PathBuf>,
    /// Show the run and its findings on a page that opens from disk, DIR/index.html, beside DIR/metrics.jsonl and event
    /// files for TensorBoard
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Keep the step at which the run breaks in a file, for `wgrad replay`
    #[arg(long, value_name = "FILE")]
    pub capsule: Option<PathBuf>,
}

/// `wgrad diagnose`.
///
/// # Errors
/// If the file cannot be read, a line of it is invalid, or a run fails.
pub fn diagnose(args: &DiagnoseArgs, common: &Common) -> Result<()> {
    let file = args.file.display();
    let again = format!("wgrad diagnose {file} --prove");
    let asked = run::Diagnose {
        title: &file.to_string(),
        prove: args.prove,
        horizon: args.horizon,
        again: &again,
        kept: run::Kept { metrics: args.metrics.as_deref(), report: args.report.as_deref() },
        capsule: args.capsule.as_deref(),
    };
    run::diagnose(&open(&args.file, common)?, &asked, common)
}
