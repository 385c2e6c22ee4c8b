//! `wgrad train`: runs from files, the complete files, and what is refused.

use crate::{command, numbers, wgrad, wgrad_in};
use std::fs;
use tempfile::TempDir;

/// The models, each with a file of a few short steps.
const EACH: [(&str, &str); 5] = [
    ("mlp", "steps = 6\n[mlp]\nwidth = 8\ndepth = 2"),
    ("rnn", "steps = 6\nbatch = 4\n[rnn]\nhidden = 8\nlength = 10"),
    ("transformer", "steps = 4\nbatch = 2\n[transformer]\nwidth = 8\nlayers = 1\nheads = 2\ncontext = 8\nhidden = 16"),
    ("resnet", "steps = 3\nbatch = 8\n[resnet]\ndepth = 8\nwidth = 4\n[schedule]\nwarmup = 1"),
    ("two-tower", "steps = 2\nbatch = 4"),
];

/// A directory with a run file.
fn with(text: &str) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), text).expect("can be written");
    dir
}

fn file(model: &str, rest: &str) -> TempDir {
    with(&format!("model = {model:?}\n{rest}\n"))
}

#[test]
fn each_model_trains_and_reports() {
    for (model, rest) in EACH {
        let dir = file(model, rest);
        let report = wgrad_in(dir.path(), "train run.toml --threads 1 --json").json();
        assert_eq!((&report["example"], &report["case"]), (&model.into(), &"run".into()));
        assert!(report["loss_last"].as_f64().expect("a number").is_finite(), "{report:?}");
        let again = wgrad_in(dir.path(), "train run.toml --threads 2 --json").json();
        assert_eq!(numbers(again), numbers(report), "{model}");
    }
}

#[test]
fn a_healthy_run_reaches_its_target_and_a_faulty_one_does_not() {
    let reached = |rest: &str| {
        let dir = file("mlp", rest);
        wgrad_in(dir.path(), "train run.toml --json").json()["reached"].as_bool().expect("a flag")
    };
    assert!(reached("[mlp]\ndepth = 3"));
    for fault in [
        "[optimizer]\nlr = 1e-7",
        "[trainer]\nclip_norm = 1e-5\n[optimizer]\nkind = \"sgd\"",
        "[inputs]\nlabels = \"shuffled\"",
        "[inputs]\nconstant = true",
        "[inputs]\nnan_at = 3",
        "[mlp]\nbias = -10",
        "[mlp]\ninit = \"constant\"\nstd = 0.1",
        "[mlp]\nnorm = \"batch\"\nnorm_momentum = 1e-6",
        "[mlp]\ndetach_after = 5\ninit = \"normal\"",
        "[mlp]\nfreeze = [\"layer/*\"]\ninit = \"normal\"",
        "[loss]\nunguarded = \"sqrt\"",
        "[loss]\nunguarded = \"div\"\n[inputs]\noutlier_at = 0\noutlier_scale = 0",
        "[loss]\nunguarded = \"log\"\n[inputs]\nscale = 10000",
    ] {
        assert!(!reached(fault), "{fault}");
    }
}

#[test]
fn the_other_data_is_learnt_too() {
    for (model, rest) in [
        ("mlp", "data = \"regression\"\ntarget = 0.1\nsteps = 600"),
        ("mlp", "data = \"spirals\"\ntarget = 0.95\nsteps = 800\n[optimizer]\nlr = 3e-3"),
    ] {
        let dir = file(model, rest);
        let report = wgrad_in(dir.path(), "train run.toml --json").json();
        assert_eq!(report["reached"], true, "{rest}: {report:?}");
    }
}

#[test]
fn a_complete_file_is_printed_and_runs() {
    for (model, rest) in EACH {
        let printed = wgrad(&format!("train --print-defaults {model}")).fine().stdout;
        let dir = with(&printed);
        let complete = wgrad_in(dir.path(), "train run.toml --steps 2 --json").json();
        let short = wgrad_in(file(model, "").path(), "train run.toml --steps 2 --json").json();
        assert_eq!(numbers(complete), numbers(short), "{model} {rest}");
    }
    wgrad("train --print-defaults cnn")
        .fails(2, &["--print-defaults cnn: expected mlp, rnn, transformer, resnet or two-tower"]);
}

#[test]
fn the_command_line_has_the_last_word() {
    let dir = file("mlp", "seed = 3\nsteps = 5\n[mlp]\nwidth = 8");
    let report = |more: &str| wgrad_in(dir.path(), &format!("train run.toml --json {more}")).json();
    let as_asked = report("");
    assert_eq!((&as_asked["seed"], &as_asked["steps"]), (&3.into(), &5.into()));
    let other = report("--seed 4 --steps 2");
    assert_eq!((&other["seed"], &other["steps"]), (&4.into(), &2.into()));
    assert_ne!(as_asked["loss_first"], other["loss_first"]);
}

#[test]
fn a_run_goes_on_where_it_was_saved() {
    let rest = "steps = 8\n[inputs]\nlabels = \"shuffled\"\noutlier_at = 5\n[trainer]\naccumulate = 2\nnoise = 0.01\n\
                [mlp]\nwidth = 8\ndropout = 0.1\nnorm = \"batch\"";
    let dir = file("mlp", rest);
    let run = |more: &str| numbers(wgrad_in(dir.path(), &format!("train run.toml --json {more}")).json());
    let whole = run("");
    run("--steps 4 --save half.st");
    assert_eq!(run("--resume half.st"), whole);
    wgrad_in(dir.path(), "train run.toml --json --resume half.st --seed 9").fails(1, &["half.st", "seed"]);
}

#[test]
fn what_cannot_be_run_is_told_with_file_and_line() {
    let dir = with("model = \"mlp\"\n[mlp]\nfreeze = [\"layers\"]\n");
    let fails = |args: &str, status, holds: &[&str]| wgrad_in(dir.path(), args).fails(status, holds);
    fails("train run.toml", 2, &["run.toml: \"layers\" in [mlp] matches no parameter; they are layer/0/bias, "]);
    fails("train there_is_none.toml", 1, &["cannot read there_is_none.toml"]);
    fails("train run.toml --steps 0", 2, &["--steps 0"]);
    for (text, holds) in [
        ("model = \"mlp\"\nlr = 3", "run.toml, line 2: lr is no key of a run file"),
        (
            "model = \"mlp\"\n[optimizer]\nlr = \"high\"",
            "run.toml, line 3: optimizer.lr is \"high\": expected a number",
        ),
        ("model = \"mlp\"\n[mlp\n", "run.toml, line 2: this is no TOML"),
        ("model = \"mlp\"\n[mlp]\nfreeze = [\"**\"]", "run.toml: [mlp] freezes every parameter"),
        ("model = \"transformer\"\ntext = \"none.txt\"", "none.txt"),
    ] {
        fs::write(dir.path().join("run.toml"), text).expect("can be written");
        let status = if text.contains("text =") { 1 } else { 2 };
        fails("train run.toml", status, &[holds]);
    }
    fs::write(dir.path().join("run.toml"), b"model = \"mlp\"\n\xff\n").expect("can be written");
    fails("train run.toml", 2, &["run.toml, line 2: this is no text in UTF-8"]);
    // Without a file clap says what is missing.
    let output = command(dir.path(), "train").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}
