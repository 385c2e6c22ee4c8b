//! The `wgrad` command.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use wgrad_examples::{
    Error, Result,
    cli::{Cli, Command, Common, RnnArgs, TapeArgs},
    interrupt,
    rnn::{self, Case, CellName, Config, Files, Fix, FlowColumn, TaskName, Watch, flow_table},
    say, tour,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    interrupt::listen();
    let outcome = match &cli.command {
        None => the_tour(&cli.common),
        Some(Command::Rnn(args)) => train(args, &cli.common),
        Some(Command::Tape(args)) => print_tape(args, &cli.common),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wgrad: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn the_tour(common: &Common) -> Result<()> {
    #[derive(Serialize)]
    struct Tour {
        tour: Vec<wgrad_examples::report::Report>,
    }
    let reports = tour::tour(common)?;
    if common.json {
        print_json(&Tour { tour: reports });
    } else if common.quiet {
        reports.iter().for_each(|r| say!("{} {}: {}", r.case, r.fix, r.verdict));
    }
    Ok(())
}

fn train(args: &RnnArgs, common: &Common) -> Result<()> {
    let config = Config::new(args, common.steps)?;
    let files = Files { save: args.save.clone(), resume: args.resume.clone() };
    let watch = if common.quiet { Watch::Silent } else { Watch::Bar };
    let beside = if common.json || common.quiet { None } else { comparison(args, common)? };
    let beside = match beside {
        Some((title, other)) => {
            rnn::check(&config, common, &files)?;
            say!("First {title}, for the comparison:");
            let other = rnn::run(&other, common, &Files::default(), watch)?;
            say!("{}\n\nNow as asked:", tour::line(&other));
            Some((title, other))
        }
        None => None,
    };
    let finished = rnn::run(&config, common, &files, watch)?;
    let report = &finished.report;
    if finished.interrupted && !common.json {
        match &files.save {
            Some(path) => {
                let path = path.display();
                say!("Interrupted after {} steps and saved: go on with --resume {path}", report.steps);
            }
            None => say!("Interrupted after {} steps; nothing is saved without --save FILE", report.steps),
        }
    }
    if common.json {
        print_json(report);
        return Ok(());
    }
    say!("{}", tour::line(&finished));
    if common.quiet {
        return Ok(());
    }
    let mut peak = vec![];
    let mut typical = vec![];
    let asked = match (&beside, args.fix) {
        (None, _) => "|dL/dz|",
        (Some(_), Fix::None) => "as asked",
        (Some(_), _) => "with the cure",
    };
    for (name, run) in beside.iter().map(|(title, run)| (*title, run)).chain([(asked, &finished)]) {
        peak.push(FlowColumn { name: name.into(), flow: run.history.flow_at_peak() });
        typical.push(FlowColumn { name: name.into(), flow: run.history.typical_flow() });
    }
    say!("\nMean |dL/dz| per time step, at the step of the largest gradient:\n{}", flow_table(&peak));
    say!("Mean |dL/dz| per time step, the median over the last tenth of steps:\n{}", flow_table(&typical));
    say!("flow ratio, first third over last third: {:.1e}", report.flow_ratio);
    say!("verdict: {}", report.verdict);
    if report.case != "healthy" && args.fix == Fix::None {
        let cure = if args.case == Case::Exploding { "clip-norm" } else { "omega" };
        say!("The cure is one flag away: --fix {cure}");
    }
    Ok(())
}

/// The run that this one is shown beside: a cured one beside the same without the cure, a gated cell on the digits beside
/// the tanh network.
fn comparison(args: &RnnArgs, common: &Common) -> Result<Option<(&'static str, Config)>> {
    let (title, other) = match (args.fix, args.task, args.cell) {
        (Fix::None, TaskName::Digits, None | Some(CellName::Lstm | CellName::Gru)) => {
            ("the tanh network", RnnArgs { cell: Some(CellName::Rnn), ..args.clone() })
        }
        (Fix::None, ..) => return Ok(None),
        _ => ("without the cure", RnnArgs { fix: Fix::None, ..args.clone() }),
    };
    Ok(Some((title, Config::new(&other, common.steps)?)))
}

fn print_tape(args: &TapeArgs, common: &Common) -> Result<()> {
    let program = rnn::program(&Config::new(&args.rnn, common.steps)?, common.seed);
    say!("{}", (if args.dot { program.to_dot() } else { program.to_string() }).trim_end());
    Ok(())
}

fn print_json(value: &impl Serialize) {
    say!("{}", serde_json::to_string(value).expect("a report serializes"));
}
