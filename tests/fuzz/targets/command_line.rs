//! Any command line, its words one on a line: it is refused, or makes a run's settings.

#![no_main]

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use wgrad_examples::{
    cli::{Cli, Command, TapeArgs, TapeExample},
    device::Device,
    resnet, rnn, transformer, two_tower,
};

/// Checks the settings that some arguments make of an example, and the same arguments of its tape.
macro_rules! check {
    ($cli:ident, $example:ident, $variant:ident, $config:ident => $holds:expr) => {
        let args = match &$cli.command {
            Some(Command::$variant(args)) => Some(&args.settings),
            Some(Command::Tape(TapeArgs { example: TapeExample::$variant(args), .. })) => Some(args),
            _ => None,
        };
        if let Some(Ok($config)) = args.map(|args| $example::Config::new(args, $cli.common.steps)) {
            assert!($config.steps > 0 && $holds, "{:?}", $config);
        }
    };
}

fuzz_target!(|text: &str| {
    if let Ok(device) = text.parse::<Device>() {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    let Ok(cli) = Cli::try_parse_from(std::iter::once("wgrad").chain(text.lines())) else { return };
    check!(cli, rnn, Rnn, config => config.length > 0);
    check!(cli, transformer, Transformer, config => config.batch.is_multiple_of(config.training.accumulate));
    check!(cli, resnet, Resnet, config => config.depth >= 8 && config.batch.is_multiple_of(config.training.accumulate));
    check!(cli, two_tower, TwoTower, config => config.batch.is_multiple_of(config.training.accumulate));
});
