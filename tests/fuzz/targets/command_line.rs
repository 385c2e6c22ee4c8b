//! Any command line, its words one on a line: it is refused, or makes a run's settings.

#![no_main]

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use wgrad_examples::{
    cli::{Cli, Command, RnnArgs, TapeArgs, TapeExample},
    device::Device,
    rnn,
    transformer::{self, TransformerArgs},
};

fuzz_target!(|text: &str| {
    if let Ok(device) = text.parse::<Device>() {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    let Ok(cli) = Cli::try_parse_from(std::iter::once("wgrad").chain(text.lines())) else { return };
    let steps = cli.common.steps;
    match &cli.command {
        Some(Command::Rnn(args)) => recurrent(&args.settings, steps),
        Some(Command::Transformer(args)) => transformer(&args.settings, steps),
        Some(Command::Tape(TapeArgs { example: TapeExample::Rnn(args), .. })) => recurrent(args, steps),
        Some(Command::Tape(TapeArgs { example: TapeExample::Transformer(args), .. })) => transformer(args, steps),
        _ => {}
    }
});

fn recurrent(args: &RnnArgs, steps: Option<usize>) {
    if let Ok(config) = rnn::Config::new(args, steps) {
        assert!(config.steps > 0 && config.length > 0, "{config:?}");
    }
}

fn transformer(args: &TransformerArgs, steps: Option<usize>) {
    if let Ok(config) = transformer::Config::new(args, steps) {
        assert!(config.steps > 0 && config.batch.is_multiple_of(config.training.accumulate), "{config:?}");
    }
}
