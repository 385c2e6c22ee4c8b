//! The command `wgrad`, as a user runs it: the built binary, its output, its exit status, its files.

mod bench;
mod browser;
mod devices;
mod diagnose;
mod errors;
mod files;
mod gpu;
#[cfg(unix)]
mod interrupts;
#[cfg(unix)]
mod launch;
#[cfg(all(unix, feature = "mpi"))]
mod mpi;
mod output;
mod ranks;
mod replay;
mod reports;
mod resnet;
mod runfiles;
mod runs;
mod saving;
mod tape;
mod transformer;
mod two_tower;
mod usage;
mod verify;

use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A report.
type Json = Map<String, Value>;

/// The fields of a report, in the order of the specification.
const FIELDS: [&str; 18] = [
    "example",
    "case",
    "fix",
    "device",
    "seed",
    "steps",
    "loss_first",
    "loss_last",
    "metric",
    "metric_name",
    "target",
    "reached",
    "diverged",
    "grad_norm_max",
    "applied_norm_max",
    "flow_ratio",
    "verdict",
    "ms_per_step",
];

/// The command with these arguments, separated by spaces, in this directory. On the CPU, where they name no device: what
/// these tests find does not depend on the machine's GPUs.
fn command(dir: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgrad"));
    if !args.contains("--device") {
        command.args(["--device", "cpu"]);
    }
    // Colour that a user's settings force would be no fault of the command.
    command.args(args.split_whitespace()).current_dir(dir).env_remove("CLICOLOR_FORCE").env_remove("FORCE_COLOR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process has printed, and how it ended.
#[derive(Debug)]
struct Outcome {
    args: String,
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn new(args: &str, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let outcome = Self { args: args.into(), status: output.status.code(), stdout, stderr };
        for noise in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
            assert!(!outcome.stderr.contains(noise), "a panic: {outcome:#?}");
        }
        // Both are pipes here, which get neither colour nor a progress bar.
        for text in [&outcome.stdout, &outcome.stderr] {
            assert!(!text.contains(['\x1b', '\r']), "terminal codes in a pipe: {outcome:#?}");
        }
        outcome
    }

    /// Asserts success without complaint.
    #[track_caller]
    fn fine(self) -> Self {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""), "wgrad {}: {self:#?}", self.args);
        self
    }

    /// The object that is the only line of standard output.
    #[track_caller]
    fn json(self) -> Json {
        let outcome = self.fine();
        assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:#?}");
        match serde_json::from_str(&outcome.stdout) {
            Ok(Value::Object(object)) => object,
            other => panic!("{other:?} is no object: {outcome:#?}"),
        }
    }

    /// Asserts a failure with this exit status, told in one line that holds all of these.
    #[track_caller]
    fn fails(&self, status: i32, holds: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        assert_eq!(self.stderr.lines().count(), 1, "one sentence: {self:#?}");
        for part in holds {
            assert!(self.stderr.contains(part), "expected {part:?}: {self:#?}");
        }
        // What Rust's derived formatting would leak.
        for leak in ["Some(", "None)", "Error {", "Err("] {
            assert!(!self.stderr.contains(leak), "{leak:?} is no plain language: {self:#?}");
        }
    }
}

/// Runs to the end.
fn wgrad_in(dir: &Path, args: &str) -> Outcome {
    Outcome::new(args, command(dir, args).output().expect("the command starts"))
}

/// Runs to the end, where no files are wanted.
fn wgrad(args: &str) -> Outcome {
    wgrad_in(Path::new(env!("CARGO_TARGET_TMPDIR")), args)
}

/// A report without what differs between two runs that do the same: time, and the device's name, which tells the threads.
fn numbers(mut report: Json) -> Json {
    assert!(report.remove("ms_per_step").is_some() && report.remove("device").is_some(), "{report:?}");
    report
}

/// A checkpoint's tensors and metadata, by name.
#[derive(PartialEq, Debug)]
struct Saved {
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    metadata: BTreeMap<String, String>,
}

/// Reads a checkpoint, and asserts that it is whole.
#[track_caller]
fn saved(path: &Path) -> Saved {
    let bytes = fs::read(path).expect("the checkpoint can be read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("the checkpoint is whole");
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("the checkpoint has a header");
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, (view.shape().to_vec(), view.data().to_vec()))
    };
    Saved {
        tensors: file.tensors().into_iter().map(tensor).collect(),
        metadata: header.metadata().clone().expect("a checkpoint has metadata").into_iter().collect(),
    }
}

/// The names in a directory, hidden ones too.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the directory can be read");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Waits until something holds: as long as it may take on a machine that has much else to do.
#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(600), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
