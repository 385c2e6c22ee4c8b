//! Any command line, its words one on a line: it is refused, or makes a run's settings.

#![no_main]

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use wgrad_examples::{
    cli::{Cli, Command, TapeArgs, TapeExample},
    device::Device,
    rnn::Config,
};

fuzz_target!(|text: &str| {
    if let Ok(device) = text.parse::<Device>() {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    let Ok(cli) = Cli::try_parse_from(std::iter::once("wgrad").chain(text.lines())) else { return };
    let args = match &cli.command {
        Some(Command::Rnn(args)) => &args.settings,
        Some(Command::Tape(TapeArgs { example: TapeExample::Rnn(args), .. })) => args,
        _ => return,
    };
    if let Ok(config) = Config::new(args, cli.common.steps) {
        assert!(config.steps > 0 && config.length > 0, "{config:?}");
    }
});
