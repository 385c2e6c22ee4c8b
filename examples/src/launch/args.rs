//! The options of `wgrad launch`.

use clap::Args;
use std::path::PathBuf;

/// Options of `wgrad launch`.
#[derive(Args, Clone, Debug)]
pub struct LaunchArgs {
    /// The number of ranks
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub number: u16,
    /// When a rank is lost, start again with one rank fewer, at most K times: from the checkpoint of --save if this
    /// command has made one, and otherwise from the beginning
    #[arg(long, value_name = "K", default_value_t = 3)]
    pub restarts: u32,
    /// The program that starts the ranks
    #[arg(long, value_name = "PATH", default_value = "mpirun")]
    pub mpirun: PathBuf,
    /// A further argument of mpirun, such as --mpi-arg=--hostfile --mpi-arg=hosts
    #[arg(long = "mpi-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub mpi_args: Vec<String>,
    /// The run: a subcommand that trains, with its options, after --
    #[arg(last = true, required = true, value_name = "RUN")]
    pub run: Vec<String>,
}
