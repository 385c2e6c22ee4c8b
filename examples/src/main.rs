//! The `wgrad` command.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use wgrad_examples::{
    Error, Result, bench,
    cli::{Cli, Command, Common},
    doctor, interrupt, launch,
    output::json,
    ranks, replay,
    report::Report,
    resnet, rnn, runfile, runs, say, tape, tour, transformer, two_tower, verify,
};

fn main() -> ExitCode {
    quieten_drivers();
    outlive_limits();
    let cli = Cli::parse();
    interrupt::listen();
    let run = |common: &Common| run(cli.command.as_ref(), common);
    let (outcome, rank) = match cli.command.as_ref().and_then(Command::ranks) {
        Some(asked) => ranks::each(asked, &cli.common, &run),
        None => (run(&cli.common).map_err(|error| vec![error]), None),
    };
    let status = outcome.unwrap_or_else(|errors| {
        errors.iter().for_each(|error| eprintln!("wgrad: {error}"));
        errors.first().map_or(1, Error::status)
    });
    // The errors have been told.
    drop(rank);
    ExitCode::from(status)
}

/// Runs a subcommand, and returns the exit status.
fn run(command: Option<&Command>, common: &Common) -> Result<u8> {
    let done = |()| 0;
    // The command has already shown the failed checks.
    let passed = |passed: bool| u8::from(!passed);
    match command {
        None => the_tour(common).map(done),
        Some(Command::Rnn(args)) => rnn::train(args, common).map(done),
        Some(Command::Transformer(args)) => transformer::train(args, common).map(done),
        Some(Command::Resnet(args)) => resnet::train(args, common).map(done),
        Some(Command::TwoTower(args)) => two_tower::train(args, common).map(done),
        Some(Command::Train(args)) => runfile::train(args, common).map(done),
        Some(Command::Diagnose(args)) => runfile::diagnose(args, common).map(done),
        Some(Command::Replay(args)) => replay::replay(args, common).map(done),
        Some(Command::Runs(args)) => runs::runs(args, common).map(done),
        Some(Command::Compare(args)) => runs::compare(args, common).map(done),
        Some(Command::Tape(args)) => tape::tape(args, common).map(done),
        Some(Command::Verify(args)) => verify::verify(args, common).map(passed),
        Some(Command::Doctor) => doctor::doctor(common).map(passed),
        Some(Command::Bench(args)) => bench::bench(args, common).map(done),
        Some(Command::Launch(args)) => launch::launch(args, common),
    }
}

/// Turns off the Mesa layer that lets the desktop choose among GPUs. Without a desktop, the layer has nothing to choose
/// from and prints complaints on standard error.
fn quieten_drivers() {
    let set = |name| std::env::var_os(name).is_some();
    if cfg!(target_os = "linux") && !set("XDG_RUNTIME_DIR") && !set("NODEVICE_SELECT") {
        // SAFETY: no other thread runs yet, which could read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Catches the signal of the limit on file sizes. A write beyond the limit is then an error that can be reported, and
/// does not end the process.
fn outlive_limits() {
    #[cfg(unix)]
    use std::sync::{Arc, atomic::AtomicBool};
    #[cfg(unix)]
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        eprintln!("wgrad: a limit on the size of files will end a run at once: {error}");
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
