//! Runs that cannot be: exit status 1, one sentence, and nothing lost.

use crate::{names, wgrad_in};
use std::{collections::HashMap, fs, path::Path};
use tempfile::TempDir;

/// A short run.
const SHORT: &str = "rnn --length 20 --threads 1";

/// A directory with `good.st`, saved by a short run.
fn with_checkpoint() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), &format!("{SHORT} --steps 3 --json --save good.st")).json();
    assert_eq!(names(dir.path()), ["good.st"]);
    dir
}

/// Asserts that a run does not start, says why, and leaves the file alone that it was to save.
#[track_caller]
fn refuses(dir: &Path, args: &str, holds: &[&str]) {
    let before = names(dir);
    fs::write(dir.join("target.st"), "precious").expect("can be written");
    wgrad_in(dir, &format!("{args} --steps 10 --quiet --save target.st")).fails(1, holds);
    assert_eq!(fs::read_to_string(dir.join("target.st")).expect("still there"), "precious");
    fs::remove_file(dir.join("target.st")).expect("can be removed");
    assert_eq!(names(dir), before, "files were left behind or lost: {args}");
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let dir = with_checkpoint();
    for (args, holds) in [
        // Another model: the tensor and both shapes.
        ("--task adding --cell rnn", &["good.st", "rnn/weight_ih", "f32[50, 6]", "f32[64, 2]"][..]),
        ("--cell lstm", &["good.st", "rnn/weight_ih", "f32[50, 6]", "f32[200, 6]"]),
        ("--case vanishing --fix lstm", &["good.st", "rnn/weight_ih", "f32[50, 6]", "f32[200, 6]"]),
        // The same shapes, other states: the identity network is trained by Adam, whose moments are not there.
        ("--cell irnn", &["good.st", "adam", "no tensor"]),
        // The same model, another run.
        ("--seed 3", &["good.st", "seed 0", "3"]),
        ("--length 30", &["good.st", "length 20", "30"]),
    ] {
        let args = args.split_once("--length").map_or(format!("{SHORT} {args}"), |_| format!("rnn --threads 1 {args}"));
        refuses(dir.path(), &format!("{args} --resume good.st"), holds);
    }
}

/// The length is no part of a model's shapes: whether the flow's history fits is for the command to check.
#[test]
fn a_checkpoint_of_another_length_is_refused_before_the_tables_mix() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), &format!("{SHORT} --steps 25 --json --save good.st")).json();
    let longer = wgrad_in(dir.path(), "rnn --length 50 --threads 1 --steps 27 --resume good.st");
    longer.fails(1, &["good.st", "length 20", "50"]);
}

#[test]
fn a_file_that_is_no_checkpoint_is_refused() {
    let dir = with_checkpoint();
    let path = |name: &str| dir.path().join(name);
    let good = fs::read(path("good.st")).expect("can be read");
    fs::write(path("half.st"), &good[..good.len() / 2]).expect("can be written");
    fs::write(path("short.st"), &good[..good.len() - 1]).expect("can be written");
    fs::write(path("stub.st"), &good[..4]).expect("can be written");
    fs::write(path("empty.st"), "").expect("can be written");
    fs::write(path("text.st"), "These are words, and there are more of them than eight bytes.\n").expect("written");
    fs::create_dir(path("folder.st")).expect("can be made");
    let values = 1.0f32.to_le_bytes();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &values).expect("one value");
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let foreign = safetensors::serialize([("weight", view)], Some(metadata)).expect("serializes");
    fs::write(path("foreign.st"), foreign).expect("can be written");
    for name in ["half.st", "short.st", "stub.st", "empty.st", "text.st", "missing.st", "folder.st", "foreign.st"] {
        refuses(dir.path(), &format!("{SHORT} --resume {name} --report report"), &[name]);
        assert!(!path("report").exists() || name == "foreign.st", "a report of nothing: {name}");
    }
    refuses(dir.path(), &format!("{SHORT} --resume nowhere/missing.st"), &["nowhere/missing.st", "cannot read"]);
    assert_eq!(fs::read(path("good.st")).expect("can be read"), good);
}

/// Training that cannot be saved would be lost: nothing is trained.
#[test]
fn a_place_where_nothing_can_be_saved_is_refused_before_the_first_step() {
    let dir = TempDir::new().expect("a directory");
    fs::create_dir(dir.path().join("folder")).expect("can be made");
    fs::write(dir.path().join("file"), "").expect("can be written");
    for target in ["nowhere/run.st", "nowhere/", "folder", "folder/", "file/run.st", "."] {
        let start = std::time::Instant::now();
        let args = format!("rnn --task adding --length 1000 --threads 1 --steps 1000000 --quiet --save {target}");
        wgrad_in(dir.path(), &args).fails(1, &[target, "cannot write"]);
        // The first save is due after 250 steps, which take minutes.
        assert!(start.elapsed().as_secs() < 20, "{target}: refused after {:?} only", start.elapsed());
    }
    // Nor is a run made for the comparison first.
    for (flag, holds) in [
        ("--save nowhere/run.st", &["nowhere/run.st", "cannot write"]),
        ("--resume missing.st", &["missing.st", "cannot read"]),
    ] {
        let args = format!("rnn --case exploding --fix clip-norm --length 20 --steps 50 --threads 1 {flag}");
        wgrad_in(dir.path(), &args).fails(1, holds);
    }
    assert_eq!(names(dir.path()), ["file", "folder"]);
}

/// A disk that is full while a run is saved, as a limit on the size of files has it.
#[test]
#[cfg(unix)]
fn a_full_disk_loses_nothing() {
    use crate::{Outcome, command, resnet, saved, transformer, two_tower};
    use std::process::Command;
    for args in [SHORT, transformer::BUILT_IN, resnet::SHORT, two_tower::SHORT] {
        let dir = TempDir::new().expect("a directory");
        wgrad_in(dir.path(), &format!("{args} --steps 3 --json --save run.st")).json();
        let before = saved(&dir.path().join("run.st"));
        for resume in ["", "--resume run.st"] {
            let wgrad = command(dir.path(), &format!("{args} --steps 5 --quiet --save run.st {resume}"));
            let mut limited = Command::new("sh");
            // With the signal ignored, what does not fit is an error of writing.
            limited.args(["-c", r#"trap '' XFSZ; ulimit -f 1; exec "$0" "$@""#]).arg(wgrad.get_program());
            let output = limited.args(wgrad.get_args()).current_dir(dir.path()).output().expect("the command starts");
            Outcome::new(args, output).fails(1, &["cannot write", "run.st"]);
            assert_eq!(saved(&dir.path().join("run.st")), before, "{args}");
            assert_eq!(names(dir.path()), ["run.st"], "{args}");
        }
        // With room again, it goes on.
        wgrad_in(dir.path(), &format!("{args} --steps 5 --json --save run.st --resume run.st")).json();
    }
}
