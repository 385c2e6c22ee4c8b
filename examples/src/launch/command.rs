//! The `launch` command: it starts a run, and again when a rank is lost.

use super::{
    args::LaunchArgs,
    mpirun::{self, Outcome},
    restart::{Checkpoint, again},
};
use crate::{
    Error, Result,
    cli::{Cli, Command, Common, RunOptions},
    device::Device,
};
use clap::Parser;
use std::process;

/// `wgrad launch`. Returns the exit status of the last start.
///
/// # Errors
/// [`Error::Usage`] if the run is none that trains on ranks; [`Error::NoMpirun`] and [`Error::Mpirun`] if it cannot be
/// started; [`Error::RanksLost`] if it has been started again as often as it may.
pub fn launch(args: &LaunchArgs, common: &Common) -> Result<u8> {
    let options = checked(args)?;
    let checkpoint = options.files.save.as_deref().map(Checkpoint::new);
    let own =
        std::env::current_exe().map_err(|error| Error::Mpirun { path: args.mpirun.clone(), why: error.to_string() })?;
    let mut run = args.run.clone();
    let mut ranks = args.number;
    for count in 1.. {
        let mut command = process::Command::new(&args.mpirun);
        command.args(["-n", &ranks.to_string()]).args(&args.mpi_args).arg(&own);
        command.args(passed_on(common)).args(&run).args(["--ranks", "mpi"]);
        let why = match mpirun::run(&mut command)? {
            Outcome::Ended(status) => return Ok(status),
            Outcome::Lost(why) => why,
        };
        let left = match (count > args.restarts, ranks) {
            (true, _) if args.restarts == 0 => "--restarts 0 forbids it".to_string(),
            (true, _) => format!("this was restart {} of {}", args.restarts, args.restarts),
            (_, 1) => "no rank is left".into(),
            _ => {
                ranks -= 1;
                let from = checkpoint.as_ref().and_then(Checkpoint::written);
                let at = from.map_or("from the beginning".into(), |path| format!("from {}", path.display()));
                let restart = format!("restart {count} of {}", args.restarts);
                eprintln!("wgrad: {why}: starting again {at} with the ranks that are left, {ranks} ({restart})");
                run = again(&args.run, from, count);
                continue;
            }
        };
        return Err(Error::RanksLost { why, left });
    }
    unreachable!("the last start returns")
}

/// The options of the run, which must be one that trains on ranks.
fn checked(args: &LaunchArgs) -> Result<RunOptions> {
    let usage = |text: &str| Err(Error::Usage(format!("launch: {text}")));
    let run = Cli::try_parse_from(std::iter::once("wgrad").chain(args.run.iter().map(String::as_str)));
    let run = run.unwrap_or_else(|error| error.exit());
    let Some(options) = run.command.as_ref().and_then(Command::trained) else {
        return usage("only runs that train are started on ranks: rnn, transformer, resnet, two-tower and train");
    };
    if let Some(ranks) = options.ranks.ranks {
        return usage(&format!("the run has --ranks {ranks}, and launch itself adds --ranks mpi"));
    }
    if options.diagnose {
        return usage("a run with --diagnose is no run on ranks");
    }
    match &run.command {
        // A model that is resumed with --sample alone writes, and does not go on with its training.
        Some(Command::Transformer(asked)) if asked.sample.is_some() && run.common.steps.is_none() => {
            usage("--sample needs --steps here, as a run that is resumed without them only samples")
        }
        Some(Command::Train(asked)) if asked.print_defaults.is_some() => usage("--print-defaults is no run"),
        _ => Ok(options.clone()),
    }
}

/// The options of every subcommand that stand before the run's own.
fn passed_on(common: &Common) -> Vec<String> {
    let Common { device, threads, seed, steps, json, quiet, .. } = common;
    let valued = [
        ("--device", (*device != Device::Auto).then(|| device.to_string())),
        ("--threads", (*threads != 0).then(|| threads.to_string())),
        ("--seed", seed.map(|seed| seed.to_string())),
        ("--steps", steps.map(|steps| steps.to_string())),
    ];
    let valued = valued.into_iter().filter_map(|(name, value)| Some([name.to_string(), value?])).flatten();
    let flags = [("--json", *json), ("--quiet", *quiet)].into_iter().filter(|(_, set)| *set);
    valued.chain(flags.map(|(name, _)| name.to_string())).collect()
}
