//! Any command line, its words one on a line: it is refused, or makes a run's settings.

#![no_main]

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use wgrad_examples::{
    cli::{Cli, Command, RnnRunArgs, TapeArgs, TapeExample},
    device::Device,
    resnet, rnn, two_tower,
};

fuzz_target!(|text: &str| {
    if let Ok(device) = text.parse::<Device>() {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
    let Ok(cli) = Cli::try_parse_from(std::iter::once("wgrad").chain(text.lines())) else { return };
    let steps = cli.common.steps;
    match &cli.command {
        Some(
            Command::Rnn(RnnRunArgs { settings: args, .. })
            | Command::Tape(TapeArgs { example: TapeExample::Rnn(args), .. }),
        ) => {
            if let Ok(config) = rnn::Config::new(args, steps) {
                assert!(config.steps > 0 && config.length > 0, "{config:?}");
            }
        }
        Some(
            Command::Resnet(resnet::ResNetRunArgs { settings: args, .. })
            | Command::Tape(TapeArgs { example: TapeExample::Resnet(args), .. }),
        ) => {
            if let Ok(config) = resnet::Config::new(args, steps) {
                let whole = config.batch.is_multiple_of(config.training.accumulate);
                assert!(config.steps > 0 && config.depth >= 8 && whole, "{config:?}");
            }
        }
        Some(
            Command::TwoTower(two_tower::TwoTowerRunArgs { settings: args, .. })
            | Command::Tape(TapeArgs { example: TapeExample::TwoTower(args), .. }),
        ) => {
            if let Ok(config) = two_tower::Config::new(args, steps) {
                let whole = config.batch.is_multiple_of(config.training.accumulate);
                assert!(config.steps > 0 && whole, "{config:?}");
            }
        }
        _ => {}
    }
});
