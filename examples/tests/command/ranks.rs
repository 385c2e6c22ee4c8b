//! Runs on several ranks, as threads: the numbers of one rank, one output, and one end.

use crate::{Json, numbers, saved, wgrad, wgrad_in};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A directory with a run file.
fn with(text: &str) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), text).expect("can be written");
    dir
}

fn mlp(rest: &str) -> TempDir {
    with(&format!("model = \"mlp\"\nsteps = 8\nbatch = 8\n{rest}\n"))
}

fn report(dir: &Path, more: &str) -> Json {
    wgrad_in(dir, &format!("train run.toml --threads 1 --json {more}")).json()
}

/// Asserts that two runs have made the same steps, up to the order of sums.
#[track_caller]
fn assert_close(some: &Json, other: &Json, tolerance: f64) {
    for name in ["steps", "loss_first", "loss_last", "metric", "grad_norm_max", "applied_norm_max"] {
        let [a, b] = [some, other].map(|report| report[name].as_f64().expect("a number"));
        assert!((a - b).abs() <= tolerance * a.abs().max(1.0), "{name}: {a} and {b}");
    }
}

#[test]
fn ranks_are_one_rank_with_the_batch_of_all() {
    const RNN: &str = "model = \"rnn\"\nsteps = 6\nbatch = 6\n[rnn]\nhidden = 8\nlength = 10";
    const GPT: &str = "model = \"transformer\"\nsteps = 4\nbatch = 4\n[transformer]\nwidth = 8\nlayers = 1\nheads = 2\n\
                       context = 8\nhidden = 16";
    let small = "[mlp]\nwidth = 8\ndepth = 2";
    for (text, ranks) in [
        (format!("model = \"mlp\"\nsteps = 8\nbatch = 8\n{small}"), 2),
        // Uneven shares: of two and three rows.
        (format!("model = \"mlp\"\nsteps = 8\nbatch = 7\n{small}"), 3),
        (format!("model = \"mlp\"\nsteps = 8\nbatch = 7\n[loss]\nsum = true\n[optimizer]\nlr = 1e-4\n{small}"), 3),
        // Micro-batches of five rows, noise that all ranks share, and a loss that is not the one shown.
        (
            format!(
                "model = \"mlp\"\nsteps = 6\nbatch = 10\n[loss]\nweight = 2\n[trainer]\naccumulate = 2\nnoise = 0.01\n\
                 clip_norm = 0.5\n{small}"
            ),
            2,
        ),
        (RNN.into(), 4),
        (GPT.into(), 3),
    ] {
        let dir = with(&text);
        let alone = report(dir.path(), "");
        assert_close(&alone, &report(dir.path(), &format!("--ranks threads:{ranks}")), 1e-5);
    }
}

#[test]
fn one_rank_is_a_run_without_ranks() {
    let dir = mlp("[mlp]\nwidth = 8\ndropout = 0.2\nnorm = \"batch\"");
    let alone = report(dir.path(), "--save alone.st");
    let one = report(dir.path(), "--ranks threads:1 --save one.st");
    assert_eq!(numbers(alone), numbers(one));
    assert_eq!(saved(&dir.path().join("alone.st")), saved(&dir.path().join("one.st")));
}

/// The bits and the checkpoints are those of ranks that share nothing out, so a run goes on with any ranks, either way.
#[test]
fn ranks_share_out_what_the_optimizer_keeps() {
    let dir = mlp("[mlp]\nwidth = 8\ndepth = 2\ndropout = 0.2\n[trainer]\nclip_norm = 0.5");
    for ranks in [2, 3] {
        let ranks = format!("--ranks threads:{ranks}");
        let plain = numbers(report(dir.path(), &format!("{ranks} --save plain.st")));
        let shared = numbers(report(dir.path(), &format!("{ranks} --shard --save shared.st")));
        assert_eq!(plain, shared, "{ranks}");
        let [plain, shared] = ["plain.st", "shared.st"].map(|name| saved(&dir.path().join(name)));
        assert_eq!(plain.tensors, shared.tensors, "{ranks}");
        report(dir.path(), &format!("{ranks} --shard --steps 4 --save half.st"));
        for shard in ["", "--shard"] {
            let again = report(dir.path(), &format!("{ranks} {shard} --resume half.st --save again.st"));
            assert_eq!(again["steps"], 8);
            assert_eq!(saved(&dir.path().join("again.st")).tensors, plain.tensors, "{ranks} {shard}");
        }
    }
    report(dir.path(), "--resume half.st");
    report(dir.path(), "--resume half.st --ranks threads:4 --shard");
}

#[test]
fn what_cannot_be_shared_out_is_told() {
    let dir = mlp("[optimizer]\nkind = \"muon\"");
    let muon = "run.toml: --shard: muon needs whole matrices";
    wgrad_in(dir.path(), "train run.toml --ranks threads:2 --shard").fails(2, &[muon]);
    assert_eq!(wgrad_in(dir.path(), "train run.toml --shard").status, Some(2), "of ranks alone");
    report(dir.path(), "--ranks threads:1 --shard");
    // A rank alone cannot make a step of all, so its report has no recorded step.
    let dir = mlp("[mlp]\nwidth = 8");
    report(dir.path(), "--ranks threads:2 --shard --report page");
    assert!(dir.path().join("page").exists());
}

#[test]
fn a_run_on_four_ranks_goes_on_with_two_and_with_one() {
    let dir = mlp("[mlp]\nwidth = 8\ndepth = 2");
    let whole = report(dir.path(), "--ranks threads:4");
    report(dir.path(), "--ranks threads:4 --steps 4 --save half.st");
    for more in ["", "--ranks threads:2", "--ranks threads:4"] {
        assert_close(&whole, &report(dir.path(), &format!("--resume half.st {more}")), 1e-5);
    }
}

/// A checkpoint has the key of rank 0 and the counter of all, so that the same ranks go on with the same masks.
#[test]
fn dropout_goes_on_where_it_was() {
    let dir = mlp("[mlp]\nwidth = 16\ndropout = 0.5");
    let whole = numbers(report(dir.path(), "--ranks threads:2 --save whole.st"));
    report(dir.path(), "--ranks threads:2 --steps 4 --save half.st");
    assert_eq!(numbers(report(dir.path(), "--ranks threads:2 --resume half.st --save again.st")), whole);
    let [whole, again] = ["whole.st", "again.st"].map(|name| saved(&dir.path().join(name)));
    assert_eq!(whole, again);
    let alone = report(dir.path(), "--resume half.st --save alone.st");
    assert_eq!(alone["steps"], 8);
    let alone = saved(&dir.path().join("alone.st"));
    for state in ["state:dropout/key", "state:dropout/counter"] {
        assert_eq!(alone.tensors[state], whole.tensors[state], "{state}");
    }
}

#[test]
fn each_example_trains_on_ranks() {
    for args in [
        "rnn --case exploding --fix meta-clip --length 20",
        "rnn --case vanishing --fix omega --length 20 --accumulate 2",
        "transformer --precision f16",
        "resnet --depth 8",
        "two-tower",
    ] {
        let run = |more: &str| wgrad(&format!("{args} --steps 3 --json --ranks threads:3 {more}")).json();
        let report = run("");
        assert_eq!((&report["steps"], &report["diverged"]), (&3.into(), &false.into()), "{args}: {report:?}");
        assert_eq!(numbers(report), numbers(run("--shard")), "{args}");
    }
}

#[test]
fn all_ranks_stop_at_a_loss_that_is_not_finite() {
    let dir = mlp("[inputs]\nnan_at = 3\n[mlp]\nwidth = 8");
    for more in ["", "--ranks threads:3"] {
        let report = report(dir.path(), more);
        assert_eq!((&report["verdict"], &report["steps"]), (&"non-finite".into(), &4.into()), "{report:?}");
    }
}

#[test]
fn one_rank_prints_and_writes() {
    let dir = mlp("[mlp]\nwidth = 8");
    let run = "train run.toml --threads 1 --metrics m.jsonl --report page --save run.st";
    let outcome = wgrad_in(dir.path(), &format!("{run} --ranks threads:3")).fine();
    assert_eq!(outcome.stdout.lines().filter(|line| line.starts_with("verdict: ")).count(), 1, "{outcome:#?}");
    let metrics = fs::read_to_string(dir.path().join("m.jsonl")).expect("it is written");
    assert_eq!(metrics.lines().filter(|line| line.contains("\"settings\"")).count(), 1, "{metrics}");
    assert!(dir.path().join("page/index.html").exists() && dir.path().join("run.st").exists());
    let beside =
        wgrad("rnn --case exploding --fix clip-norm --length 20 --steps 3 --threads 1 --ranks threads:2").fine();
    assert_eq!(beside.stdout.matches("Now as asked:").count(), 1, "{beside:#?}");
}

#[test]
fn what_cannot_be_run_on_ranks_is_told_once() {
    let dir = mlp("[mlp]\nwidth = 8");
    let fails = |args: &str, status, holds: &[&str]| {
        wgrad_in(dir.path(), &format!("train {args}")).fails(status, holds);
    };
    fails("run.toml --ranks threads:9", 2, &["rank 0: ", "9 ranks", "8 rows"]);
    fails("run.toml --ranks threads:2 --steps 0", 2, &["--steps 0"]);
    fails("run.toml --ranks threads:3 --resume missing.st", 1, &["rank 0: cannot read missing.st"]);
    fails("run.toml --ranks threads:2 --overlap", 2, &["--overlap is for ranks of MPI"]);
    fails("missing.toml --ranks threads:3", 1, &["rank 0: cannot read missing.toml"]);
    fails("run.toml --ranks threads:3 --save nowhere/run.st", 1, &["rank 0: ", "cannot write nowhere/run.st"]);
    if !cfg!(feature = "mpi") {
        fails("run.toml --ranks mpi", 2, &["built without MPI", "cargo build --release --features mpi"]);
    }
    for (args, holds) in [
        ("run.toml --ranks threads:0", "threads:N"),
        ("run.toml --ranks 4", "expected mpi, or threads:N"),
        ("run.toml --ranks threads:2 --diagnose", "--diagnose"),
        ("run.toml --ranks mpi --patience=-1", "--patience"),
    ] {
        let outcome = wgrad_in(dir.path(), &format!("train {args}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
        assert!(outcome.stderr.contains(holds), "{outcome:#?}");
    }
}

#[cfg(unix)]
#[test]
fn a_rank_that_cannot_save_ends_all() {
    use crate::{Outcome, command};
    use std::process::Command;
    let dir = mlp("[mlp]\nwidth = 32");
    let wgrad = command(dir.path(), "train run.toml --quiet --threads 1 --save run.st --ranks threads:3");
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 1; exec "$0" "$@""#]).arg(wgrad.get_program());
    let output = limited.args(wgrad.get_args()).current_dir(dir.path()).output().expect("the command starts");
    Outcome::new("a full disk", output).fails(1, &["rank 0: ", "cannot write", "run.st"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_all_ranks_after_the_same_update() {
    use crate::interrupts::interrupted;
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let run = "rnn --case vanishing --length 30 --threads 1 --ranks threads:3";
    let args = format!("{run} --steps 100000000 --json --save run.st");
    let stopped = interrupted(dir.path(), &args, || path.exists()).json();
    assert!(stopped["steps"].as_u64().is_some_and(|steps| steps >= 50), "{stopped:?}");
    // The file holds the very step at which the run stopped.
    let again = wgrad_in(dir.path(), &format!("{run} --json --steps 1 --resume run.st")).json();
    assert_eq!(numbers(again), numbers(stopped));
}
