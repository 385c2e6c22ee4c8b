//! The `wgrad` command.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use wgrad_examples::{
    Error, Result, bench,
    cli::{Cli, Command, Common},
    interrupt,
    output::json,
    report::Report,
    rnn, say, tape, tour, verify,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::listen();
    let done = |()| true;
    let outcome = match &cli.command {
        None => the_tour(&cli.common).map(done),
        Some(Command::Rnn(args)) => rnn::train(args, &cli.common).map(done),
        Some(Command::Tape(args)) => tape::tape(args, &cli.common).map(done),
        Some(Command::Verify(args)) => verify::verify(args, &cli.common),
        Some(Command::Bench(args)) => bench::bench(args, &cli.common).map(done),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        // What has failed a check has been shown.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("wgrad: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn the_tour(common: &Common) -> Result<()> {
    #[derive(Serialize)]
    struct Tour {
        tour: Vec<Report>,
    }
    let reports = tour::tour(common)?;
    if common.json {
        json(&Tour { tour: reports });
    } else if common.quiet {
        reports.iter().for_each(|r| say!("{} {}: {}", r.case, r.fix, r.verdict));
    }
    Ok(())
}
