//! `wgrad runs` and `wgrad compare`: what they print of runs that were kept, and what they refuse.

use crate::wgrad_in;
use std::fs;
use tempfile::TempDir;

/// A directory with the reports of two runs, of which one breaks.
fn kept() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    let run = "model = \"mlp\"\nsteps = 40\n[mlp]\nwidth = 8\n";
    fs::write(dir.path().join("run.toml"), run).expect("can be written");
    fs::write(dir.path().join("nan.toml"), format!("{run}[inputs]\nnan_at = 20\n")).expect("can be written");
    wgrad_in(dir.path(), "train run.toml --report all/a --quiet --threads 1").fine();
    wgrad_in(dir.path(), "diagnose nan.toml --report all/deep/b --quiet --threads 1").fine();
    dir
}

#[test]
fn runs_are_listed_and_compared() {
    let dir = kept();
    let text = wgrad_in(dir.path(), "runs all").fine().stdout;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{text}");
    assert_eq!(rows[1][..3], ["all/a", "finished", "40"], "{text}");
    assert_eq!(rows[2][..3], ["all/deep/b", "broken", "21"], "{text}");
    assert!(text.contains("wgrad train run.toml") || text.contains("train run.toml"), "{text}");
    assert!(text.contains("nan-input, since step 20"), "{text}");
    let text = wgrad_in(dir.path(), "compare all/a all/deep/b/metrics.jsonl").fine().stdout;
    for part in ["all/a", "finished", "broken", "updates", "setting inputs.nan_at", "largest norm", "accuracy"] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(!text.contains("setting mlp.width"), "what is the same is not told:\n{text}");
    let json = wgrad_in(dir.path(), "compare all/a all/deep/b --json").json();
    assert_eq!((&json["before"]["end"], &json["after"]["end"]), (&"finished".into(), &"broken".into()));
    assert_eq!(
        (&json["after"]["updates"], &json["after"]["finding"]),
        (&21.into(), &"nan-input, since step 20".into())
    );
    assert!(json["before"]["loss_last"].as_f64() < json["before"]["loss_first"].as_f64(), "{json:?}");
    // A page that is there stays.
    wgrad_in(dir.path(), "compare all/a all/deep/b --report all/both").fine();
    let again = wgrad_in(dir.path(), "compare all/a all/deep/b --report all/both");
    again.fails(1, &["all/both/index.html: it exists already"]);
    // A run that was killed has no end.
    let path = dir.path().join("all/a/metrics.jsonl");
    let lines = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, &lines[..lines.len() / 2]).expect("it can be written");
    let text = wgrad_in(dir.path(), "runs all").fine().stdout;
    assert!(text.contains("no end") && text.contains("the run is still going on, or was killed"), "{text}");
}

#[test]
fn what_is_no_run_is_refused() {
    let dir = kept();
    let fails = |args: &str, holds: &[&str]| wgrad_in(dir.path(), args).fails(1, holds);
    fails("runs none", &["cannot read none"]);
    fs::create_dir(dir.path().join("empty")).expect("it can be made");
    fails("runs empty", &["empty holds no run", "--report"]);
    fails("compare all/a none", &["cannot read none"]);
    fails("compare all/a empty", &["cannot read empty/metrics.jsonl"]);
    fails("compare all/a run.toml", &["run.toml, line 1: it is no JSON"]);
    fs::write(dir.path().join("short"), "").expect("it can be written");
    fails("compare short all/a", &["short is a run of 0 updates"]);
    // One that is damaged hides no other.
    fs::create_dir(dir.path().join("all/c")).expect("it can be made");
    fs::write(dir.path().join("all/c/metrics.jsonl"), "damaged\n").expect("it can be written");
    let outcome = wgrad_in(dir.path(), "runs all");
    assert!(
        outcome.stdout.lines().count() == 3 && outcome.stderr.contains("all/c/metrics.jsonl, line 1"),
        "{outcome:#?}"
    );
}

/// A run that cannot start leaves nothing that the next try would be refused for.
#[test]
fn a_run_without_its_device_leaves_no_report() {
    let dir = kept();
    wgrad_in(dir.path(), "diagnose nan.toml --capsule kept --quiet --threads 1").fine();
    for args in ["train run.toml", "diagnose run.toml", "replay kept", "rnn --steps 5"] {
        let outcome = wgrad_in(dir.path(), &format!("{args} --device gpu:99 --report report"));
        assert!(!outcome.stderr.is_empty() && outcome.stdout.is_empty(), "{outcome:#?}");
        assert!(!dir.path().join("report").exists(), "{args}");
    }
    wgrad_in(dir.path(), "train run.toml --report report --quiet --threads 1").fine();
}
