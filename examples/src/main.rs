//! The `wgrad` command.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use wgrad_examples::{
    Result, bench,
    cli::{Cli, Command, Common},
    doctor, interrupt,
    output::json,
    replay,
    report::Report,
    resnet, rnn, runfile, runs, say, tape, tour, transformer, two_tower, verify,
};

fn main() -> ExitCode {
    quieten_drivers();
    outlive_limits();
    let cli = Cli::parse();
    interrupt::listen();
    let done = |()| true;
    let outcome = match &cli.command {
        None => the_tour(&cli.common).map(done),
        Some(Command::Rnn(args)) => rnn::train(args, &cli.common).map(done),
        Some(Command::Transformer(args)) => transformer::train(args, &cli.common).map(done),
        Some(Command::Resnet(args)) => resnet::train(args, &cli.common).map(done),
        Some(Command::TwoTower(args)) => two_tower::train(args, &cli.common).map(done),
        Some(Command::Train(args)) => runfile::train(args, &cli.common).map(done),
        Some(Command::Diagnose(args)) => runfile::diagnose(args, &cli.common).map(done),
        Some(Command::Replay(args)) => replay::replay(args, &cli.common).map(done),
        Some(Command::Runs(args)) => runs::runs(args, &cli.common).map(done),
        Some(Command::Compare(args)) => runs::compare(args, &cli.common).map(done),
        Some(Command::Tape(args)) => tape::tape(args, &cli.common).map(done),
        Some(Command::Verify(args)) => verify::verify(args, &cli.common),
        Some(Command::Doctor) => doctor::doctor(&cli.common),
        Some(Command::Bench(args)) => bench::bench(args, &cli.common).map(done),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        // The command has already shown the failed checks.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("wgrad: {error}");
            ExitCode::from(if error.is_of_usage() { 2 } else { 1 })
        }
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
