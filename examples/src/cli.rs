//! The options and subcommands of the command line.

use crate::{
    Error, Result,
    device::Device,
    launch::LaunchArgs,
    ranks::{Rank, RanksArgs},
    replay::ReplayArgs,
    resnet::{ResNetArgs, ResNetRunArgs},
    rnn::{Case, CellName, Fix, TaskName},
    run::Kept,
    runfile::{DiagnoseArgs, TrainArgs},
    runs::{CompareArgs, RunsArgs},
    transformer::{TransformerArgs, TransformerRunArgs},
    two_tower::{TwoTowerArgs, TwoTowerRunArgs},
    verify::KINDS,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{path::PathBuf, time::Duration};
use wgrad_nn::Precision;

/// Vanishing and exploding gradients, and their cures, on CPU and GPU. Without a subcommand: the tour.
#[derive(Parser, Debug)]
#[command(name = "wgrad", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The options of every subcommand.
    #[command(flatten)]
    pub common: Common,
    /// The subcommand; without one, the command runs the tour.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options of every subcommand.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// auto (the best GPU that is no software renderer, else the CPU), cpu, gpu (the best of all), or gpu:N (the number
    /// that `wgrad doctor` shows)
    #[arg(long, global = true, default_value_t = Device::Auto, value_name = "DEVICE")]
    pub device: Device,
    /// CPU threads, at most 1024; 0 takes all cores
    #[arg(long, global = true, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub threads: u16,
    /// The seed of parameters and data: the same seed gives the same bits; default: the seed in the run file, or else 0
    #[arg(long, global = true, value_name = "N")]
    pub seed: Option<u64>,
    /// The most training steps to make; each example has its own default
    #[arg(long, global = true, value_name = "N")]
    pub steps: Option<usize>,
    /// Print one JSON object as the last line of standard output; bench prints one for each result, and with --profile
    /// another with the time of each kernel
    #[arg(long, global = true)]
    pub json: bool,
    /// Print the result only
    #[arg(long, global = true)]
    pub quiet: bool,
    /// The rank that runs the command.
    #[arg(skip)]
    pub rank: Rank,
}

impl Common {
    /// The seed; 0 if the command line gives none.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a recurrent network on a task over sequences
    Rnn(RnnRunArgs),
    /// Train a decoder of transformer blocks on a text, character by character
    Transformer(TransformerRunArgs),
    /// Train a residual network, or a plain one, on images
    Resnet(ResNetRunArgs),
    /// Train a text decoder behind an image encoder to describe digits
    TwoTower(TwoTowerRunArgs),
    /// Train the run that a file describes
    Train(TrainArgs),
    /// Tell what is wrong with the run that a file describes, where, since when, and what cures it
    Diagnose(DiagnoseArgs),
    /// Run the step in a capsule again, value by value, and tell whether the model or the device is to blame
    Replay(ReplayArgs),
    /// Start a run on several ranks by mpirun, and again with the ranks that are left when one is lost
    Launch(LaunchArgs),
    /// List the runs in a folder, each with its outcome, in one table
    Runs(RunsArgs),
    /// Set one run beside another, such as before and after a cure
    Compare(CompareArgs),
    /// Print one recorded step: forward, backward, passes, optimizer
    Tape(TapeArgs),
    /// Run golden vectors, whose expected values another framework has computed
    Verify(VerifyArgs),
    /// Time training steps and single operations
    Bench(BenchArgs),
    /// Tell which devices there are, what they offer, and whether their kernels compute what they should
    ///
    /// Small programs run on every adapter and on the CPU (on one device with --device), and are compared with the
    /// reference interpreter. The exit status is 1 if a result is wrong, or if --device asks for a GPU that is not
    /// there. Without --device, a missing GPU is no failure: doctor then tells what to install.
    Doctor,
}

/// The settings of a run of `wgrad rnn`; `wgrad tape rnn` prints a step of the same run.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct RnnArgs {
    /// The failure that the run reproduces (temporal order, tanh RNN)
    #[arg(long, value_enum, default_value_t = Case::Healthy, value_name = "CASE")]
    pub case: Case,
    /// The cure of the case; exploding: clip-norm, meta-clip; vanishing: omega, lstm
    #[arg(long, value_enum, default_value_t = Fix::None, value_name = "FIX")]
    pub fix: Fix,
    /// The task
    #[arg(long, value_enum, default_value_t = TaskName::TemporalOrder, value_name = "TASK")]
    pub task: TaskName,
    /// The recurrent layer; default: rnn for temporal-order, lstm for the others
    #[arg(long, value_enum, value_name = "CELL")]
    pub cell: Option<CellName>,
    /// The number of time steps of a generated task; default: 50 for temporal-order, 30 for adding
    #[arg(long, value_name = "T")]
    pub length: Option<usize>,
    /// The bound of clip-norm (default: 1), or the first bound of meta-clip (default: 0.001)
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub max_norm: Option<f64>,
    /// The training options
    #[command(flatten)]
    pub training: Training,
}

/// Options of `wgrad rnn`.
#[derive(Args, Clone, Debug)]
pub struct RnnRunArgs {
    /// The settings of the run
    #[command(flatten)]
    pub settings: RnnArgs,
    /// The run's files, or a diagnosis
    #[command(flatten)]
    pub run: RunOptions,
}

/// The file that a run is saved to, and the file that it continues from.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct FileArgs {
    /// Save the run here when it ends, when it is interrupted, and at intervals. The file is replaced in one step, at
    /// the target of a symbolic link, and keeps its mode. A path that is read-only or no regular file is refused at the
    /// start, and so is a file that another run saves to
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Continue from a file that --save has written; model, data and seed must be the same, case and cure may differ
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
}

/// The purpose of a run: its files, or a diagnosis.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct RunOptions {
    /// The run's files
    #[command(flatten)]
    pub files: FileArgs,
    /// Write the updates, measurements, alerts and evaluations of the run to a new file, as lines of JSON
    #[arg(long, value_name = "FILE.jsonl")]
    pub metrics: Option<PathBuf>,
    /// Show the run on a page that opens from disk, DIR/index.html, beside DIR/metrics.jsonl and event files for
    /// TensorBoard. The page is written while the run goes on, and every tenth update is measured in full for it. A
    /// folder that already holds the page of a run is refused
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// In place of training alone, tell what is wrong with the run, where, since when, and what cures it
    #[arg(long, conflicts_with_all = ["save", "resume", "ranks"])]
    pub diagnose: bool,
    /// Run the same steps again with each remedy of the findings, until one cures, beside two controls
    #[arg(long, requires = "diagnose")]
    pub prove: bool,
    /// Keep the step at which the run breaks in a file, for `wgrad replay`
    #[arg(long, value_name = "FILE", requires = "diagnose")]
    pub capsule: Option<PathBuf>,
    /// The ranks that train together
    #[command(flatten)]
    pub ranks: RanksArgs,
}

impl Command {
    /// The files and ranks of the run that the subcommand trains; `None` if it trains none.
    pub fn trained(&self) -> Option<&RunOptions> {
        match self {
            Command::Rnn(args) => Some(&args.run),
            Command::Transformer(args) => Some(&args.run),
            Command::Resnet(args) => Some(&args.run),
            Command::TwoTower(args) => Some(&args.run),
            Command::Train(args) => Some(&args.run),
            _ => None,
        }
    }

    /// The ranks that run the subcommand, if it runs on ranks.
    pub fn ranks(&self) -> Option<&RanksArgs> {
        match self {
            Command::Bench(args) => Some(&args.ranks),
            _ => self.trained().map(|run| &run.ranks),
        }
    }
}

/// The options that decide how an example is trained.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Training {
    /// f16: matrix products and convolutions in half precision, with a loss scale that adapts itself
    #[arg(long, value_enum, default_value_t = PrecisionName::F32, value_name = "TYPE")]
    pub precision: PrecisionName,
    /// Cut each batch into K micro-batches, whose gradients add up to one update
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub accumulate: usize,
    /// Compute the values within blocks again in the backward sweep, instead of keeping them
    #[arg(long)]
    pub checkpoint: bool,
}

impl Default for Training {
    fn default() -> Self {
        Self { precision: PrecisionName::F32, accumulate: 1, checkpoint: false }
    }
}

impl RunOptions {
    /// The files that record the metrics of the run.
    pub fn kept(&self) -> Kept<'_> {
        Kept { metrics: self.metrics.as_deref(), report: self.report.as_deref() }
    }
}

impl Training {
    /// Refuses a number of micro-batches that does not divide the batch.
    ///
    /// # Errors
    /// [`Error::Usage`] if `accumulate` is 0 or does not divide the batch.
    pub fn check(&self, batch: usize) -> Result<()> {
        let accumulate = self.accumulate;
        if accumulate == 0 || !batch.is_multiple_of(accumulate) {
            return Err(Error::Usage(format!(
                "--accumulate {accumulate}: expected a divisor of the batch, which is {batch}"
            )));
        }
        Ok(())
    }
}

/// A precision by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum PrecisionName {
    /// Everything in f32.
    #[default]
    F32,
    /// Matrix products and convolutions in f16.
    F16,
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::F32 => Precision::F32,
            PrecisionName::F16 => Precision::F16,
        }
    }
}

/// Options of `wgrad tape`.
#[derive(Args, Debug)]
pub struct TapeArgs {
    /// Graphviz instead of text, for `dot -Tsvg`
    #[arg(long, global = true)]
    pub dot: bool,
    /// The plan for the device instead of the tape: kernels, the memory they share, bytes read and written, arithmetic
    #[arg(long, global = true, conflicts_with = "dot")]
    pub plan: bool,
    /// The example
    #[command(subcommand)]
    pub example: TapeExample,
}

/// The examples whose step can be printed; each takes the options that its step depends on.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum TapeExample {
    /// The recurrent network
    Rnn(RnnArgs),
    /// The decoder
    Transformer(TransformerArgs),
    /// The network for images
    Resnet(ResNetArgs),
    /// The encoder of images and the decoder of text
    TwoTower(TwoTowerArgs),
    /// A small network with every pass between its loss and its parameters
    Passes,
}

/// Options of `wgrad verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// The directory of index.json and the files with the tensors
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Only vectors of this kind
    #[arg(long, value_name = "KIND", value_parser = KINDS.map(|kind| kind.name))]
    pub kind: Option<String>,
}

/// Options of `wgrad bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// The workloads to time: w1 and w2 (transformers), w3 (tanh RNN), w4 (LSTM), w5 (ResNet-20), w6 (gradient passes),
    /// w7 (single operations)
    #[arg(required = true, value_name = "WORKLOAD")]
    pub workloads: Vec<String>,
    /// Weights and batches from DIR/WORKLOAD.safetensors, the same for every framework; without it, drawn from the seed
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Batches of N examples, 1 to 1024, instead of the workload's own number: for w1 to w5, and not with --data
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: Option<u16>,
    /// The time for the timed steps of each workload; each result of w6 and w7 gets a third of it
    #[arg(long, value_name = "SECONDS", default_value = "12", value_parser = seconds)]
    pub budget: Duration,
    /// Only results whose names begin with NAME, such as w7_matmul
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The ranks that share each batch
    #[command(flatten)]
    pub ranks: RanksArgs,
    /// After each result, print the time of each kernel of a step
    ///
    /// The steps are run again, within the same budget, and each kernel is timed. Kernels that do the same share one
    /// line, with their number. The milliseconds are medians. The share is of the whole step: the sum of all kernels,
    /// and the median time outside them ("between kernels": inputs, commits by a copy, values read back). "of limit" is
    /// the shortest possible time in percent of the line's time. The shortest possible time is that of the arithmetic
    /// at the speed of a matrix product of 1024x1024, or that of the bytes at the speed of a copy of 256 MiB (or of the
    /// largest buffer of the device), whichever is longer; the column names it. Both limits are measured on the same
    /// device and threads. More than 100 % of the copy means that the data was in the caches. A GPU needs timestamps;
    /// small kernels that it runs as one share their time in equal parts. The memory of later results includes the
    /// tensors that measure the limits.
    ///
    /// With --json: {"workload", "backend", "threads", "iters", "step_ms" (the median), "kernels" (their number),
    /// "kernels_ms", "between_ms", "between_share", "matmul_gflops", "copy_gbs", "profile": [{"kernel", "over",
    /// "computes", "recorded_in", "operands" (the first's), "count", "ms", "share", "gflops", "gbs", "of_limit",
    /// "limit"}, ..]}
    #[arg(long, conflicts_with = "ranks")]
    pub profile: bool,
}

/// The longest budget, in seconds.
const LONGEST: f64 = 86_400.0;

pub(crate) fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=LONGEST).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("expected seconds, 0 to {LONGEST}"))
}
